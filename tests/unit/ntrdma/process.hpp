// SPDX-License-Identifier: MIT
// process.hpp - a node with one queue pair; two of them are two processes to each other.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <gtest/gtest.h>
#include <thread>
#include <vector>

#include "tests/unit/ntrdma/sides.hpp"
#include "userland/ntrdma/node/node.hpp"

namespace
{

using namespace coop::ntrdma;
using namespace std::chrono_literals;

struct nothing final : watcher {
	void completed(completion_queue &) override {}
	void happened(queue_pair &, event e) override { last = e; }
	void few_receives(shared_receives &) override {}
	event last = event::established;
};

constexpr ip_address loopback{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};

struct process {
	explicit process() : memory(1u << 20)
	{
		auto held = n.hold();
		key = *n.regions().add(memory.data(), memory.size(), base(), 1, 15);
		pair_options o;
		o.domain = 1;
		o.send_depth = o.recv_depth = 8;
		o.send_queue = o.recv_queue = &queue;
		m = n.create(o);
	}
	~process()
	{
		auto held = n.hold();
		if (m)
			n.destroy(m);
	}
	std::uint64_t base() const { return reinterpret_cast<std::uintptr_t>(memory.data()); }
	std::uint32_t number() const { return m->pair->options().number; }
	void connect(std::uint32_t peer)
	{
		auto held = n.hold();
		m->pair->peer = peer;
		m->pair->set_rights(15);
		if (n.reaches() == backend::tcp)
			m->by_tcp = route{loopback, loopback};
		for (auto s : {pair_state::init, pair_state::ready, pair_state::sends})
			m->pair->set_state(s);
		n.changed(m);
	}
	void send(operation op, std::uint32_t length, std::uint64_t remote = 0,
		  std::uint32_t rkey = 0)
	{
		auto held = n.hold();
		ASSERT_EQ(m->pair->post_send(
				  test::signalled_request(op, {base(), length, key}, remote, rkey)),
			  0);
		m->pair->flush_posts();
	}
	/// True if the thread has seen to the link since connect().
	bool tended()
	{
		auto held = n.hold();
		return m->since != ticks{};
	}
	/// Does not poll until the thread has brought the completion, so it is its work.
	completion wait()
	{
		auto until = std::chrono::steady_clock::now() + 30s;
		std::array<completion, 1> c;
		while (std::chrono::steady_clock::now() < until) {
			std::this_thread::sleep_for(1ms);
			auto held = n.hold();
			if (m->pair->reap(queue, c))
				return c[0];
		}
		ADD_FAILURE() << "no completion";
		return {};
	}

	nothing seen;
	completion_queue queue{seen};
	std::vector<std::uint8_t> memory;
	std::uint32_t key;
	node n{seen};
	member *m;
};

} // namespace
