// SPDX-License-Identifier: MIT
// naive_core.hpp - the core of libcoop-net as a transport sees it, in its simplest form.
//
// One transport machine, one thread, the play's clock. Every operation has its own memory, of
// exactly its size, freed the moment the transport ends it: the sanitizer finds a byte written
// or read later, or beyond the end. It checks the contract of transport.hpp: each operation
// ends once, each landing comes back once and from its origin, holds on peers are balanced.
#pragma once

#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "tests/fuzz/check.hpp"
#include "userland/net/transport.hpp"

namespace fuzz_net
{

using namespace coop::net;

class naive_core final : public spi::sink
{
public:
	struct scope {
	};
	struct item {
		spi::transfer what{};
		std::unique_ptr<std::byte[]> memory;
		std::vector<segment> segments;
		std::uint64_t mark = 0; ///< set by the caller of add()
		std::size_t used = 0, out = 0;
		std::uint32_t messages = 0;
		bool going = false; ///< receive: cancelled, or full
	};

	naive_core(unsigned number, std::chrono::microseconds &clock) :
		next_(std::uint64_t(number + 1) << 52 | 1),
		clock_(clock)
	{
	}

	void begin(const std::function<std::unique_ptr<spi::transport_machine>(spi::sink &)> &make,
		   const address &own)
	{
		machine = make(*this);
		FUZZ_CHECK(machine->prepare(own) == 0);
		FUZZ_CHECK(machine->start(own) == 0);
		FUZZ_CHECK(started_);
	}
	/// Makes progress. @return whether there is more.
	bool turn() { return machine->progress(64) || !machine->arm(); }
	/// The clock has advanced.
	void expire() { machine->expire(now()); }
	time_point deadline() const { return machine->deadline(); }
	void stop() { machine->stop(); }
	bool is_stopped() const { return stopped_; }
	bool is_failed() const { return failed_; }
	int failed_with() const { return failed_with_; }
	void close() { machine.reset(); }

	/// An operation over `length` bytes in `pieces` pieces; the caller then fills passive
	/// ones and sends. 0: refused.
	spi::token add(queue_type q, std::size_t length, unsigned pieces, spi::peer_number peer,
		       const std::function<void(item &)> &fill)
	{
		const spi::token t = next_;
		next_ += 0x100001;
		item &i = items_[t];
		i.memory = std::make_unique<std::byte[]>(length);
		for (std::size_t at = 0; at < length;) {
			const std::size_t n =
				pieces > 1 ? std::min(length - at, length / pieces + 1) : length;
			i.segments.push_back({i.memory.get() + at, n});
			at += n;
		}
		if (length == 0)
			i.segments.push_back({i.memory.get(), 0});
		i.what.queue = q;
		i.what.memory = {i.segments, length, nullptr};
		i.what.length = length;
		i.what.peer = peer;
		i.what.key = t * 0x9e3779b97f4a7c15ull | 1;
		fill(i);
		if (q == queue_type::msg_recv) {
			line_.push_back(t);
			if (starved_) {
				starved_ = false;
				machine->receivable();
			}
			return t;
		}
		if (peer != spi::no_peer)
			peers_[peer].uses++;
		// It may end and disappear within the call.
		const spi::transfer x = i.what;
		if (machine->submit(t, x) == 0)
			return t;
		const auto it = items_.find(t);
		FUZZ_CHECK(it != items_.end()); // it ended although it was refused
		drop(it);
		return 0;
	}

	void cancel(spi::token t)
	{
		const auto it = items_.find(t);
		if (it == items_.end())
			return;
		if (it->second.what.queue != queue_type::msg_recv) {
			machine->cancel(t);
			return;
		}
		it->second.going = true;
		if (it->second.out)
			machine->cancel(t);
		over(t);
	}

	/// The number of a peer, for operations to it.
	spi::peer_number peer_at(const address &a)
	{
		const auto n = number_of(a, true);
		peers_[n].named = true;
		return n;
	}

	/// What the core does after a call.
	void settle()
	{
		for (spi::peer_number n = 0; n < peers_.size(); n++) {
			peer_state &p = peers_[n];
			if (!p.known || p.uses || p.held || p.named)
				continue;
			numbers_.erase(format(p.where));
			p = {};
			machine->peer_close(n);
		}
	}
	/// Releases peers that no operation uses.
	void forget_peers()
	{
		for (peer_state &p : peers_)
			p.named = false;
	}

	std::vector<spi::token> queued() const
	{
		std::vector<spi::token> all;
		for (const auto &[t, i] : items_)
			all.push_back(t);
		return all;
	}
	std::vector<spi::token> tokens() const { return queued(); }
	bool has(spi::token t) const { return items_.count(t); }
	const item &at(spi::token t) const { return items_.at(t); }
	/// The key of an operation; 0 after its end.
	std::uint64_t key(spi::token t) const { return has(t) ? at(t).what.key : 0; }
	const address &where(spi::peer_number n) const { return peers_.at(n).where; }

	std::unique_ptr<spi::transport_machine> machine;
	/// Called for operations before their memory goes, and for messages as they arrive.
	std::function<void(const item &, int status, std::size_t length)> on_end;
	std::function<void(std::span<const std::byte>, const address &from)> on_message;

	// spi::sink
	void started() override { started_ = true; }
	void failed(int status) override
	{
		failed_ = true;
		failed_with_ = status;
	}
	void stopped() override { stopped_ = true; }
	void completed(spi::token t, int status, std::size_t length) override
	{
		const auto it = items_.find(t);
		if (it == items_.end())
			return; // counted and skipped
		FUZZ_CHECK(it->second.what.queue != queue_type::msg_recv);
		FUZZ_CHECK(length <= it->second.what.length && (status == 0 || length == 0));
		FUZZ_CHECK(status <= 0 && status > -4096);
		if (on_end)
			on_end(it->second, status, length);
		drop(it);
	}
	const spi::transfer *find(spi::token t) override
	{
		const auto it = items_.find(t);
		return it == items_.end() ? nullptr : &it->second.what;
	}
	using spi::sink::find;
	spi::token use(spi::token, std::size_t, std::size_t, spi::peer_number) override
	{
		return 0;
	}
	void given_up(spi::token) override {}
	int place(std::size_t length, spi::landing &out) override
	{
		while (!line_.empty() && full(line_.front()))
			line_.pop_front();
		if (line_.empty()) {
			starved_ = true;
			return -ENOBUFS;
		}
		item &i = items_.at(line_.front());
		if (length > i.what.length - i.used)
			return -EMSGSIZE;
		out = {line_.front(), i.what.memory, i.used, length};
		out_[{out.token, out.offset}]++;
		i.used += length;
		i.messages++;
		i.out++;
		return 0;
	}
	void received(const spi::landing &l, spi::peer_number from) override
	{
		item &i = back(l);
		FUZZ_CHECK(from < peers_.size() && peers_[from].known);
		if (on_message)
			on_message({i.memory.get() + l.offset, l.length}, peers_[from].where);
		over(l.token);
	}
	int receive(const void *message, std::size_t length, spi::peer_number from) override
	{
		spi::landing l;
		const int r = place(length, l);
		if (r)
			return r;
		spi::scatter(l.memory, l.offset, message, length);
		received(l, from);
		return 0;
	}
	void abandon(const spi::landing &l) override
	{
		back(l);
		over(l.token);
	}
	bool received_in(spi::token, std::size_t, std::size_t, spi::peer_number) override
	{
		FUZZ_CHECK(!"transports that place only");
		return false;
	}
	spi::peer_number peer(const address &a) override
	{
		const auto n = number_of(a, false);
		if (n == spi::no_peer)
			return n;
		peers_[n].held = true; // at most one, however often it asks
		return n;
	}
	void release(spi::peer_number n) override
	{
		FUZZ_CHECK(n < peers_.size() && peers_[n].held);
		peers_[n].held = false;
	}
	time_point now() override { return time_point(clock_); }
	bool polled() const override { return false; }

private:
	static constexpr std::size_t peers_most = 24;
	struct peer_state {
		address where;
		bool known = false, named = false, held = false;
		unsigned uses = 0;
	};

	spi::peer_number number_of(const address &a, bool by_program)
	{
		const auto [it, fresh] = numbers_.try_emplace(format(a), spi::no_peer);
		if (!fresh)
			return it->second;
		spi::peer_number n = 0;
		while (n < peers_.size() && peers_[n].known)
			n++;
		if (n == peers_most && !by_program) {
			numbers_.erase(it);
			return spi::no_peer;
		}
		if (n == peers_.size())
			peers_.emplace_back();
		it->second = n;
		peers_[n].where = a;
		peers_[n].known = true;
		if (by_program)
			FUZZ_CHECK(machine->peer_open(n, a) == 0);
		return n;
	}
	void drop(std::map<spi::token, item>::iterator it)
	{
		const spi::peer_number n = it->second.what.peer;
		if (n != spi::no_peer) {
			FUZZ_CHECK(peers_[n].uses);
			peers_[n].uses--;
		}
		items_.erase(it);
	}
	bool full(spi::token t) const
	{
		const auto it = items_.find(t);
		return it == items_.end() || it->second.going ||
		       it->second.messages >= it->second.what.max_receive_msgs ||
		       it->second.what.length - it->second.used < it->second.what.min_receive_size;
	}
	item &back(const spi::landing &l)
	{
		const auto it = out_.find({l.token, l.offset});
		FUZZ_CHECK(it != out_.end());
		if (--it->second == 0)
			out_.erase(it);
		item &i = items_.at(l.token);
		FUZZ_CHECK(i.out && l.offset + l.length <= i.what.length);
		i.out--;
		return i;
	}
	void over(spi::token t)
	{
		const auto it = items_.find(t);
		if (it == items_.end() || !full(t) || it->second.out)
			return;
		std::erase(line_, t);
		items_.erase(it);
	}

	std::uint64_t next_;
	std::chrono::microseconds &clock_;
	std::map<spi::token, item> items_;
	std::deque<spi::token> line_; // receives that take messages
	std::map<std::pair<spi::token, std::size_t>, unsigned> out_;
	std::map<std::string, spi::peer_number> numbers_;
	std::deque<peer_state> peers_;
	bool starved_ = false, started_ = false, stopped_ = false, failed_ = false;
	int failed_with_ = 0;
};

} // namespace fuzz_net
