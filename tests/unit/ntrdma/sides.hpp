// SPDX-License-Identifier: MIT
// sides.hpp - two queue pairs that share halves in plain memory, with all that each side owns.
#pragma once

#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "userland/ntrdma/core/queue_pair.hpp"

namespace coop::ntrdma::test
{

constexpr std::uint32_t all_rights = local_write | remote_write | remote_read | remote_atomic;

/// Of one segment.
inline send_request signalled_request(operation op, segment from, std::uint64_t remote,
				      std::uint32_t rkey)
{
	send_request r{};
	r.op = op;
	r.flags = signalled;
	r.remote = remote;
	r.rkey = rkey;
	r.segments = 1;
	r.at[0] = from;
	return r;
}

struct notes final : watcher {
	void completed(completion_queue &) override { notices++; }
	void happened(queue_pair &, event e) override { events.push_back(e); }
	void few_receives(shared_receives &) override { few++; }
	unsigned notices = 0, few = 0;
	std::vector<event> events;
};

struct fake_port : port {
	fake_port(half &mine, half &others, bool pulls) : out_{mine}, in_{others}, pulls_{pulls} {}
	half &out() override { return out_; }
	const half &in() const override { return in_; }
	bool can_pull() const override { return pulls_; }
	int pull(std::span<const wire_segment> from, std::span<const place> to) override
	{
		if (pull_error)
			return pull_error;
		std::vector<std::uint8_t> all;
		for (const wire_segment &s : from) {
			auto *at = reinterpret_cast<const std::uint8_t *>(s.addr);
			all.insert(all.end(), at, at + s.length);
		}
		const std::uint8_t *at = all.data();
		for (const place &p : to) {
			std::memcpy(p.at, at, p.length);
			at += p.length;
		}
		pulls++;
		time += pull_time;
		return 0;
	}
	void ring() override
	{
		rings++;
		if (auto f = std::exchange(on_ring, nullptr))
			f();
	}
	std::uint64_t now() override { return time; }
	void ended() override { ends++; }

	std::function<void()> on_ring;         // called once
	std::uint64_t time = 0, pull_time = 0; // ns; 0: no clock
	int pull_error = 0;
	unsigned pulls = 0, rings = 0, ends = 0;

private:
	half &out_;
	const half &in_;
	bool pulls_;
};

/// One side: 1 MiB of memory, registered once with every right, and a queue pair in state RTS.
struct side {
	side(std::uint32_t number, std::uint32_t peer, pair_options o = {},
	     shared_receives *shared = nullptr) :
		memory(1u << 20)
	{
		key = *regions.add(memory.data(), memory.size(), base(), 7, all_rights);
		o.number = number;
		o.domain = 7;
		o.send_queue = &sends;
		o.recv_queue = &recvs;
		o.shared = shared;
		pair = std::make_unique<queue_pair>(regions, seen, o);
		pair->peer = peer;
		pair->set_rights(all_rights);
		pair->set_state(pair_state::init);
		pair->set_state(pair_state::ready);
		pair->set_state(pair_state::sends);
	}

	std::uint64_t base() const { return reinterpret_cast<std::uintptr_t>(memory.data()); }
	segment at(std::uint64_t offset, std::uint32_t length) const
	{
		return {base() + offset, length, key};
	}
	send_request request(operation op, segment from, std::uint64_t remote = 0,
			     std::uint32_t rkey = 0) const
	{
		return signalled_request(op, from, remote, rkey);
	}
	int send(send_request r)
	{
		r.id = next_send++;
		int rc = pair->post_send(r);
		pair->flush_posts();
		return rc;
	}
	/// As send(), but the peer is not rung for.
	int store(send_request r)
	{
		r.id = next_send++;
		int rc = pair->post_send(r);
		pair->store_posts();
		return rc;
	}
	int receive(segment into)
	{
		recv_request r{};
		r.id = next_recv++;
		r.segments = 1;
		r.at[0] = into;
		int rc = pair->post_recv(r);
		pair->flush_posts();
		return rc;
	}
	std::vector<completion> poll(completion_queue &q)
	{
		std::array<completion, 64> got;
		std::size_t n = q.poll(got);
		return {got.begin(), got.begin() + static_cast<std::ptrdiff_t>(n)};
	}

	std::vector<std::uint8_t> memory;
	region_table regions;
	notes seen;
	completion_queue sends{seen}, recvs{seen};
	std::uint32_t key;
	std::unique_ptr<queue_pair> pair;
	std::uint64_t next_send = 0, next_recv = 1000;
};

inline pair_options depth(std::uint32_t n)
{
	pair_options o;
	o.send_depth = o.recv_depth = n;
	o.inline_bytes = 256;
	return o;
}

/// Two sides and the link between them.
struct joined {
	explicit joined(bool pulls = true, pair_options o = depth(16),
			shared_receives *shared = nullptr) :
		halves{std::make_unique<half[]>(2)},
		pa{halves[0], halves[1], pulls},
		pb{halves[1], halves[0], pulls},
		a{2, 1, o},
		b{1, 2, o, shared}
	{
		std::memset(static_cast<void *>(halves.get()), 0, 2 * sizeof(half));
		a.pair->attach(pa);
		b.pair->attach(pb);
	}
	/// Until neither side finds anything to do.
	void settle()
	{
		for (bool found = true; found;) {
			found = a.pair->progress();
			found |= b.pair->progress();
		}
	}

	std::unique_ptr<half[]> halves;
	fake_port pa, pb; // outlive the queue pairs
	side a, b;
};

} // namespace coop::ntrdma::test
