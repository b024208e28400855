// SPDX-License-Identifier: MIT
// real_core.hpp - the core of libcoop-net in place of naive_core.hpp, for the same plays.
//
// A transfer machine with synchronous delivery, driven by net_alone.hpp, over the play's
// transport machine. So the enemy meets the library's own slots and tokens, receive queue and
// peers. As in the naive core, memory of an operation has exactly its size and is freed with
// its final event. It checks what the core promises to programs: one final event per operation,
// messages where they fit, nothing left at the end.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>

#include "coop/net.hpp"
#include "tests/fuzz/check.hpp"
#include "tests/fuzz/net_alone.hpp"
#include "userland/net/descriptor.hpp"

namespace fuzz_net
{

using namespace coop::net;

using machine_maker = std::function<std::unique_ptr<spi::transport_machine>(spi::sink &)>;

/// A domain whose machines the play creates.
class played_domain final : public spi::transport_domain
{
public:
	static inline machine_maker make;

	const domain_limits &limits() const override { return limits_; }
	const spi::traits &traits() const override { return traits_; }
	int check(const address &) const override { return 0; }
	int register_memory(std::span<const segment>, void **r) override
	{
		*r = nullptr;
		return 0;
	}
	void deregister_memory(void *) override {}
	std::unique_ptr<spi::transport_machine> make_machine(spi::sink &s) override
	{
		return std::make_unique<driven>(make(s), s);
	}

private:
	static constexpr std::size_t most = 1u << 24;
	const domain_limits limits_{most, most, most, 16, 0, 1u << 12};
	const spi::traits traits_{{false, true}, true, true, 0};
};

class played_transport final : public spi::transport
{
public:
	const char *name() const override { return "played"; }
	std::span<const spi::parameter> parameters() const override { return {}; }
	std::unique_ptr<spi::transport_domain> open(const spi::parameter_values &) const override
	{
		return std::make_unique<played_domain>();
	}
};

class real_core final : buffer_handler
{
public:
	using scope = alone; ///< one exists as long as a core

	struct item {
		spi::transfer what{};
		std::unique_ptr<std::byte[]> memory;
		std::unique_ptr<net::buffer> buffer;
		std::uint64_t mark = 0; ///< set by the caller of add()
		spi::token token = 0;
		std::uint32_t messages = 0;
	};

	real_core(unsigned, std::chrono::microseconds &clock) : clock_(clock)
	{
		static const played_transport transport;
		[[maybe_unused]] static const bool known = (spi::add_transport(transport), true);
		the_time = clock_;
	}

	void begin(const machine_maker &make, const address &own)
	{
		domain_ = std::make_unique<domain>(domain_options{"played"});
		played_domain::make = make;
		handle_ = std::make_unique<transfer_machine>(*domain_);
		driven_ = driven::all.back();
		core_ = driven_->core().shared_from_this();
		FUZZ_CHECK(handle_->deliver_synchronously() == 0);
		FUZZ_CHECK(handle_->start(format(own)) == 0);
		FUZZ_CHECK(handle_->state() == tm_state::started);
	}
	/// Makes progress. @return whether there is more.
	bool turn() { return fuzz_net::turn(*core_) || (driven_alive() && !driven_->arm()); }
	/// The clock has advanced.
	void expire()
	{
		the_time = clock_;
		(void)turn();
	}
	time_point deadline() const { return driven_alive() ? driven_->deadline() : never; }
	void stop() { FUZZ_CHECK(handle_->stop(false) == 0); }
	bool is_stopped() const { return handle_->state() == tm_state::stopped; }
	bool is_failed() const { return handle_->state() == tm_state::failed; }
	/// For a stopped machine.
	void close()
	{
		FUZZ_CHECK(items_.empty());
		forget_peers();
		settle();
		FUZZ_CHECK(handle_->endpoints() == 0);
		for (unsigned q = 0; q < queue_types; q++) {
			const auto type = static_cast<queue_type>(q);
			const queue_stats s = handle_->stats(type);
			FUZZ_CHECK(handle_->queued(type) == 0);
			FUZZ_CHECK(type == queue_type::msg_recv || s.adds == s.ok + s.failed);
		}
		core_.reset();
		handle_.reset();
	}

	/// Like naive_core::add().
	spi::token add(queue_type q, std::size_t length, unsigned pieces, spi::peer_number peer,
		       const std::function<void(item &)> &fill)
	{
		auto mine = std::make_unique<item>();
		item &i = *mine;
		const std::size_t size = std::max<std::size_t>(length, 1);
		i.memory = std::make_unique<std::byte[]>(size);
		std::vector<segment> segments;
		for (std::size_t at = 0; at < size;) {
			const std::size_t n =
				pieces > 1 ? std::min(size - at, size / pieces + 1) : size;
			segments.push_back({i.memory.get() + at, n});
			at += n;
		}
		i.buffer = std::make_unique<net::buffer>(*domain_, segments);
		i.what.queue = q;
		i.what.length = length;
		i.what.peer = peer;
		fill(i);
		operation o;
		o.queue = q;
		o.length = q == queue_type::msg_recv ? 0 : length;
		o.to = peer == spi::no_peer ? nullptr : named_.at(peer).get();
		o.min_receive_size = i.what.min_receive_size;
		o.max_receive_msgs = i.what.max_receive_msgs;
		o.handler = this;
		o.context = &i;
		std::byte text[core::descriptor::fixed];
		if (q == queue_type::active_bulk_recv || q == queue_type::active_bulk_send) {
			core::descriptor d;
			d.transport = core::transport_id("played");
			d.writable = q == queue_type::active_bulk_send;
			d.size = length;
			d.token = i.what.remote;
			d.key = i.what.remote_key;
			d.machine = where(peer);
			core::encode(d, text);
			o.descriptor = text;
			o.to = nullptr;
		}
		if (handle_->add(*i.buffer, o))
			return 0;
		i.token = core::pool_state::state_of(*i.buffer)->token;
		FUZZ_CHECK(items_.emplace(i.token, std::move(mine)).second);
		return i.token;
	}
	void cancel(spi::token t)
	{
		if (const auto it = items_.find(t); it != items_.end())
			(void)handle_->del(*it->second->buffer);
	}

	/// The number of a peer, for operations to it.
	spi::peer_number peer_at(const address &a)
	{
		endpoint_ptr p;
		FUZZ_CHECK(handle_->make_endpoint(a, p) == 0);
		const spi::peer_number n = static_cast<core::peer &>(*p).number;
		where_[n] = a;
		named_[n] = std::move(p);
		return n;
	}
	void settle() { (void)handle_->queued(queue_type::msg_recv); }
	void forget_peers() { named_.clear(); }

	std::vector<spi::token> queued() const
	{
		std::vector<spi::token> all;
		for (const auto &[t, i] : items_)
			all.push_back(t);
		return all;
	}
	/// For the enemy: the tokens, and some that were valid until recently.
	std::vector<spi::token> tokens() const
	{
		std::vector<spi::token> all = queued();
		all.insert(all.end(), ended_.begin(), ended_.end());
		return all;
	}
	bool has(spi::token t) const { return items_.count(t); }
	const item &at(spi::token t) const { return *items_.at(t); }
	const address &where(spi::peer_number n) const { return where_.at(n); }
	/// The key of an operation that others may use; 0 for all others.
	std::uint64_t key(spi::token t) const
	{
		core::descriptor d;
		return has(t) && core::decode(at(t).buffer->descriptor(), d) == 0 ? d.key : 0;
	}

	/// Called for operations before their memory goes, and for messages as they arrive.
	std::function<void(const item &, int status, std::size_t length)> on_end;
	std::function<void(std::span<const std::byte>, const address &from)> on_message;

private:
	bool driven_alive() const
	{
		return std::find(driven::all.begin(), driven::all.end(), driven_) !=
		       driven::all.end();
	}
	void on_buffer(const buffer_event &e) override
	{
		item &i = *static_cast<item *>(e.context);
		const bool receive = i.what.queue == queue_type::msg_recv;
		FUZZ_CHECK(items_.count(i.token) && e.queue == i.what.queue);
		FUZZ_CHECK(e.buffer == i.buffer.get());
		FUZZ_CHECK(e.status <= 0 && e.status > -4096 && (!e.status || !e.length));
		FUZZ_CHECK(e.offset + e.length <= i.what.length);
		FUZZ_CHECK(receive || (!e.queued && !e.sender));
		if (e.sender) {
			FUZZ_CHECK(++i.messages <= i.what.max_receive_msgs);
			if (on_message)
				on_message({i.memory.get() + e.offset, e.length},
					   e.sender->address());
		}
		if (e.queued)
			return;
		if (!receive && on_end)
			on_end(i, e.status, e.length);
		ended_.push_back(i.token);
		if (ended_.size() > 4)
			ended_.pop_front();
		items_.erase(i.token);
	}

	std::chrono::microseconds &clock_;
	std::unique_ptr<domain> domain_;
	std::unique_ptr<transfer_machine> handle_;
	std::shared_ptr<core::machine> core_;
	driven *driven_ = nullptr;
	std::map<spi::token, std::unique_ptr<item>> items_;
	std::deque<spi::token> ended_;
	std::map<spi::peer_number, endpoint_ptr> named_;
	std::map<spi::peer_number, address> where_;
};

} // namespace fuzz_net
