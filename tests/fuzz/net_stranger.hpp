// SPDX-License-Identifier: MIT
// net_stranger.hpp - a transfer machine that a play drives, without any manners.
//
// It sends whatever the play says, offers memory, ends receives at will, and counts what
// arrives. Each buffer has exactly its stated size and is freed with its operation, so that the
// sanitizer finds every late access.
//
// Also what plays with strangers have in common: addresses, random numbers that they share, and the
// way to a quiet network.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <string>

#include "coop/net.hpp"
#include "rpc/base/types.h"
#include "tests/fuzz/check.hpp"
#include "tests/fuzz/net_alone.hpp"

namespace fuzz_net
{

extern u64 random_state; // net_random.cpp

using bytes = std::vector<std::byte>;

inline const std::string nid = "127.0.0.1@tcp:12345:31:";

inline net::address at(unsigned id)
{
	net::address a;
	FUZZ_CHECK(net::parse(nid + std::to_string(id), a) == 0);
	return a;
}

/// Everything in flight arrives or is given up.
inline void calm()
{
	for (u32 turns = 0;; turns++) {
		FUZZ_CHECK(turns < 200000);
		if (turn_all())
			continue;
		const net::time_point next = next_deadline();
		if (next == net::never)
			return;
		the_time = std::max(the_time + std::chrono::microseconds(1),
				    std::chrono::nanoseconds(next.time_since_epoch()));
	}
}

class stranger final : net::buffer_handler
{
public:
	/// A message of this stranger has ended.
	std::function<void(const bytes &, int status)> on_sent;
	std::function<void(std::span<const std::byte>, net::endpoint &)> on_message;
	std::size_t bulk_most = 1u << 20; ///< bytes that it reads or writes at a time

	/// `receives`: its buffers for messages; it adds them again when they are full.
	stranger(net::domain &d, const std::string &address, unsigned receives) :
		domain_(d),
		machine_(std::make_unique<net::transfer_machine>(d))
	{
		FUZZ_CHECK(machine_->deliver_synchronously() == 0);
		FUZZ_CHECK(machine_->start(address) == 0);
		FUZZ_CHECK(machine_->state() == net::tm_state::started);
		while (receives--)
			receive(*make(4 * d.limits().max_message));
	}
	~stranger()
	{
		(void)machine_->stop(true);
		while (machine_->deliver_all() || machine_->state() < net::tm_state::stopped)
			;
		machine_.reset();
		FUZZ_CHECK(pieces_.empty());
	}

	net::address address() const { return machine_->address(); }
	net::endpoint_ptr end_point(const net::address &a)
	{
		net::endpoint_ptr p;
		FUZZ_CHECK(machine_->make_endpoint(a, p) == 0);
		return p;
	}
	void send(net::endpoint &to, bytes text)
	{
		piece *const p = make(std::max<std::size_t>(text.size(), 1));
		std::copy(text.begin(), text.end(), p->memory.get());
		p->text = std::move(text);
		net::operation o;
		o.queue = net::queue_type::msg_send;
		o.length = p->text.size();
		o.to = &to;
		add(*p, o);
	}
	/// Offers memory to others; its descriptor becomes the last of descriptors().
	void offer(bool write, std::size_t length, net::endpoint *alone)
	{
		if (offers_.size() == most_offers)
			return;
		piece *const p = make(length);
		std::memset(p->memory.get(), 0x3c, length);
		net::operation o;
		o.queue = write ? net::queue_type::passive_bulk_recv
				: net::queue_type::passive_bulk_send;
		o.to = alone;
		if (!add(*p, o))
			return;
		offers_.push_back(p);
		const auto d = p->buffer.descriptor();
		descriptors_.emplace_back(d.begin(), d.end());
		if (descriptors_.size() > 2 * most_offers)
			descriptors_.erase(descriptors_.begin());
	}
	/// Like an honest client for `fetch` and `fill`, or almost.
	void use(bool write, std::size_t length, std::span<const std::byte> descriptor)
	{
		if (length > bulk_most)
			return;
		piece *const p = make(std::max<std::size_t>(length, 1));
		std::memset(p->memory.get(), 0x69, length);
		net::operation o;
		o.queue = write ? net::queue_type::active_bulk_send
				: net::queue_type::active_bulk_recv;
		o.length = length;
		o.descriptor = descriptor;
		add(*p, o);
	}
	void withdraw(std::uint8_t which)
	{
		if (!offers_.empty())
			machine_->del(offers_[which % offers_.size()]->buffer);
	}
	/// The descriptors of its latest offers, ended ones too.
	const std::vector<bytes> &descriptors() const { return descriptors_; }
	void turn()
	{
		for (driven *d : driven::all)
			if (d->address() == machine_->address()) {
				(void)fuzz_net::turn(*d->core().shared_from_this());
				return;
			}
	}

private:
	static constexpr std::size_t most_offers = 32;
	struct piece {
		std::unique_ptr<std::byte[]> memory;
		net::buffer buffer;
		bytes text = {};
	};

	piece *make(std::size_t size)
	{
		auto memory = std::make_unique<std::byte[]>(size);
		std::byte *const base = memory.get();
		auto p = std::make_unique<piece>(
			piece{std::move(memory), net::buffer(domain_, base, size)});
		piece *const at = p.get();
		pieces_[at] = std::move(p);
		return at;
	}
	bool add(piece &p, net::operation &o)
	{
		o.handler = this;
		o.context = &p;
		if (machine_->add(p.buffer, o) == 0)
			return true;
		pieces_.erase(&p);
		return false;
	}
	void receive(piece &p)
	{
		net::operation o;
		o.min_receive_size = domain_.limits().max_message;
		o.max_receive_msgs = 4;
		add(p, o);
	}
	void on_buffer(const net::buffer_event &e) override
	{
		auto *const p = static_cast<piece *>(e.context);
		if (e.sender && on_message)
			on_message({p->memory.get() + e.offset, e.length}, *e.sender);
		if (e.queued)
			return;
		if (e.queue == net::queue_type::msg_recv && e.status == 0) {
			receive(*p);
			return;
		}
		if (e.queue == net::queue_type::msg_send && on_sent)
			on_sent(p->text, e.status);
		std::erase(offers_, p);
		pieces_.erase(p);
	}

	net::domain &domain_;
	std::unique_ptr<net::transfer_machine> machine_;
	std::map<piece *, std::unique_ptr<piece>> pieces_;
	std::vector<piece *> offers_;
	std::vector<bytes> descriptors_;
};

} // namespace fuzz_net
