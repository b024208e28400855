// SPDX-License-Identifier: MIT
// pools.cpp - receive queues that fill themselves.
//
// Conformance tests pool_*.
#include <cerrno>

#include "world.hpp"

namespace conformance
{

namespace
{

class watcher final : public pool_handler
{
public:
	void not_empty(buffer_pool &p) override
	{
		if (on_not_empty)
			on_not_empty(p);
		first++;
	}
	void below_threshold(buffer_pool &) override { below++; }
	std::function<void(buffer_pool &)> on_not_empty;
	std::atomic<int> first{0}, below{0};
};

pool_options of(std::uint32_t buffers, pool_handler *h = nullptr, std::uint32_t threshold = 0)
{
	pool_options o;
	o.buffers = buffers;
	o.segment_size = 4096;
	o.handler = h;
	o.threshold = threshold;
	return o;
}

class pools : public suite
{
protected:
	// A machine with a pool; returns its buffers to the pool unless `keep`.
	node &pooled(buffer_pool &p, std::uint32_t length = 0, bool keep = false)
	{
		node &n = w.made();
		if (!keep)
			n.record.on_event = [](const buffer_event &e) {
				if (!e.queued && e.buffer->pool())
					EXPECT_EQ(e.buffer->pool()->put(e.buffer), 0);
			};
		EXPECT_EQ(n.tm.attach(p, n.record, 4096, 1), 0);
		if (length)
			EXPECT_EQ(n.tm.set_pool_length(length), 0);
		EXPECT_TRUE(n.up(w.next_address()));
		return n;
	}
	bool holds(node &n, std::size_t receives)
	{
		return w.until([&] { return n.tm.queued(queue_type::msg_recv) == receives; });
	}
	// Sends one after the other.
	void send(node &from, node &to, unsigned n)
	{
		piece &out = w.memory(64);
		const endpoint_ptr e = from.to(to);
		for (unsigned i = 1; i <= n; i++) {
			ASSERT_EQ(from.send(out, 64, e), 0);
			ASSERT_TRUE(w.ended(from, out, i));
			ASSERT_EQ(from.record.of(*out.buffer).back().status, 0) << i;
			ASSERT_TRUE(w.until([&] { return to.record.count() >= i; })) << i;
		}
	}
};
class pools_once : public pools
{
};
COOP_CONFORMANCE(pools, both);
COOP_CONFORMANCE(pools_once, automatic);

} // namespace

TEST_P(pools, pool_initial_min)
{
	buffer_pool &p = w.pool(of(10));
	EXPECT_EQ(p.free(), 10u);
	node &a = pooled(p), &b = pooled(p, 5);
	EXPECT_TRUE(holds(a, 2)) << "the default";
	EXPECT_TRUE(holds(b, 5));
	EXPECT_EQ(p.free(), 3u);
	EXPECT_EQ(a.tm.set_pool_length(3), -EBADFD);
	node &c = w.made();
	EXPECT_EQ(c.tm.set_pool_length(0), -EINVAL);
	EXPECT_EQ(c.tm.attach(p, c.record, 0, 1), -EINVAL);
	EXPECT_EQ(c.tm.attach(p, c.record, 1, 0), -EINVAL);
	EXPECT_EQ(c.tm.attach(p, c.record, 4097, 1), -EFBIG) << "it would never receive";
	EXPECT_EQ(p.buffer_size(), 4096u);
	EXPECT_EQ(c.tm.attach(p, c.record, p.buffer_size(), 1), 0);
	EXPECT_EQ(c.tm.attach(p, c.record, 1, 1), -EINVAL) << "one pool per machine";
}

TEST_P(pools, pool_min_one)
{
	buffer_pool &p = w.pool(of(3));
	node &a = pooled(p, 1), &b = w.up();
	EXPECT_TRUE(holds(a, 1));
	EXPECT_EQ(p.free(), 2u);
	send(b, a, 50);
	EXPECT_TRUE(holds(a, 1));
	EXPECT_EQ(a.record.messages().size(), 50u);
}

TEST_P(pools, pool_refill_before_callback)
{
	buffer_pool &p = w.pool(of(8));
	node &a = w.made(), &b = w.up();
	std::atomic<unsigned> least{100};
	a.record.on_event = [&](const buffer_event &e) {
		if (e.sender)
			least = std::min<unsigned>(
				least, static_cast<unsigned>(a.tm.queued(queue_type::msg_recv)));
		if (!e.queued)
			EXPECT_EQ(p.put(e.buffer), 0);
	};
	ASSERT_EQ(a.tm.attach(p, a.record, 4096, 1), 0);
	ASSERT_EQ(a.tm.set_pool_length(3), 0);
	ASSERT_TRUE(a.up(w.next_address()));
	ASSERT_TRUE(holds(a, 3));
	send(b, a, 20);
	EXPECT_EQ(least, 3u);
}

TEST_P(pools, pool_deficit_exact)
{
	buffer_pool &p = w.pool(of(3));
	node &a = pooled(p, 5, true), &b = w.up();
	ASSERT_TRUE(w.until([&] { return a.tm.receive_deficit() == 2; }));
	EXPECT_TRUE(holds(a, 3));
	send(b, a, 1);
	EXPECT_TRUE(w.until([&] { return a.tm.receive_deficit() == 3; }));
	EXPECT_EQ(a.tm.queued(queue_type::msg_recv), 2u);
	ASSERT_EQ(p.grow(1), 0);
	EXPECT_TRUE(w.until([&] { return a.tm.receive_deficit() == 2; }));
	EXPECT_TRUE(holds(a, 3));
	net::buffer *filled = const_cast<net::buffer *>(a.record.messages()[0].buffer);
	ASSERT_EQ(p.put(filled), 0);
	EXPECT_TRUE(w.until([&] { return a.tm.receive_deficit() == 1; }));
	EXPECT_EQ(p.put(filled), -EBUSY) << "it is queued again";
	ASSERT_EQ(p.grow(3), 0);
	EXPECT_TRUE(w.until([&] { return a.tm.receive_deficit() == 0; }));
	EXPECT_TRUE(holds(a, 5));
	EXPECT_TRUE(w.until([&] { return p.free() == 2; }));
	// Short again, and stopped.
	node &c = pooled(p, 5);
	EXPECT_TRUE(w.until([&] { return c.tm.receive_deficit() == 3; }));
	ASSERT_EQ(c.tm.stop(true), 0);
	EXPECT_EQ(c.tm.receive_deficit(), 0u);
}

TEST_P(pools, pool_not_empty_is_light)
{
	watcher &h = w.keep<watcher>();
	buffer_pool &p = w.pool(of(2, &h, 1));
	node &a = pooled(p, 3, true), &b = w.up();
	ASSERT_TRUE(w.until([&] { return a.tm.receive_deficit() == 1; }));
	EXPECT_EQ(h.below, 1);
	EXPECT_EQ(p.get(), nullptr);
	send(b, a, 1);
	net::buffer *filled = const_cast<net::buffer *>(a.record.messages()[0].buffer);
	ASSERT_TRUE(w.until([&] { return a.tm.receive_deficit() == 2; }));
	const int before = h.first;
	std::thread::id told;
	std::uint32_t free = 0, deficit = 0;
	h.on_not_empty = [&](buffer_pool &pool) {
		told = std::this_thread::get_id();
		free = pool.free();
		deficit = a.tm.receive_deficit();
	};
	ASSERT_EQ(p.put(filled), 0);
	EXPECT_EQ(h.first, before + 1);
	EXPECT_EQ(told, std::this_thread::get_id());
	EXPECT_EQ(free, 1u) << "the thread of put() does not take the buffer";
	EXPECT_EQ(deficit, 2u);
	EXPECT_TRUE(w.until([&] { return a.tm.receive_deficit() == 1; }));
	EXPECT_EQ(p.put(nullptr), -EINVAL);
	EXPECT_EQ(p.put(w.memory(4096).buffer.get()), -EINVAL);
	h.on_not_empty = nullptr;
}

TEST_P(pools, pool_two_tms_refill)
{
	buffer_pool &p = w.pool(of(2));
	node &a = pooled(p, 2), &b = pooled(p, 2);
	EXPECT_TRUE(holds(a, 2));
	EXPECT_TRUE(w.until([&] { return b.tm.receive_deficit() == 2; }));
	ASSERT_EQ(p.grow(1), 0);
	EXPECT_TRUE(holds(b, 1));
	ASSERT_EQ(p.grow(4), 0);
	EXPECT_TRUE(holds(b, 2));
	node &c = w.up();
	send(c, a, 20);
	send(c, b, 20);
	EXPECT_TRUE(holds(a, 2));
	EXPECT_TRUE(holds(b, 2));
	EXPECT_TRUE(w.until([&] { return p.free() == 3; }));
	EXPECT_EQ(p.total(), 7u);
}

TEST_P(pools_once, pool_colour_order)
{
	pool_options o = of(6);
	o.affinity = 1h;
	buffer_pool &p = w.pool(o);
	net::buffer *b[6];
	for (unsigned i = 0; i < 6; i++)
		b[i] = p.get(i < 3 ? 7 : i == 3 ? 8 : buffer_pool::no_colour);
	EXPECT_EQ(p.get(7), nullptr);
	for (net::buffer *each : {b[0], b[2], b[1], b[3], b[4]})
		ASSERT_EQ(p.put(each), 0);
	EXPECT_EQ(p.put(b[4]), -EINVAL) << "it is in the pool";
	// Of colour 7, most recently used first; then those without colour; then the least
	// recent.
	EXPECT_EQ(p.get(7), b[1]);
	EXPECT_EQ(p.get(7), b[2]);
	EXPECT_EQ(p.get(9), b[4]);
	EXPECT_EQ(p.get(9), b[0]);
	EXPECT_EQ(p.get(7), b[3]);
	EXPECT_EQ(p.get(7), nullptr);
	for (net::buffer *each : b)
		ASSERT_EQ(p.put(each), 0);

	// A lapsed claim is void: b[1] is plain by then, and first in line.
	o.affinity = 0ms;
	buffer_pool &q = w.pool(o);
	net::buffer *one = q.get(1), *other = q.get(2);
	ASSERT_EQ(q.put(one), 0);
	ASSERT_EQ(q.put(other), 0);
	EXPECT_EQ(q.get(3), other) << "the last returned of those without a colour";
	ASSERT_EQ(q.put(other), 0);

	// A machine asks with its colour, even if others were in the pool for longer.
	o.affinity = 1h;
	buffer_pool &r = w.pool(o);
	net::buffer *all[6];
	for (unsigned i = 0; i < 6; i++)
		all[i] = r.get(i < 4 ? 7 : 8);
	for (net::buffer *each : all)
		ASSERT_EQ(r.put(each), 0);
	node &n = w.made();
	EXPECT_EQ(n.tm.set_colour(buffer_pool::max_colours), -EINVAL);
	EXPECT_EQ(n.tm.set_colour(8), 0);
	EXPECT_EQ(n.tm.colour(), 8u);
	n.record.on_event = [&](const buffer_event &e) {
		if (!e.queued)
			EXPECT_EQ(r.put(e.buffer), 0);
	};
	ASSERT_EQ(n.tm.attach(r, n.record, 4096, 1), 0);
	ASSERT_EQ(n.tm.set_pool_length(2), 0);
	ASSERT_TRUE(n.up(w.next_address()));
	ASSERT_TRUE(holds(n, 2));
	for (int i = 3; i >= 0; i--)
		EXPECT_EQ(r.get(7), all[i]);
	EXPECT_EQ(r.get(7), nullptr);
	for (int i = 0; i < 4; i++)
		ASSERT_EQ(r.put(all[i]), 0);
}

TEST_P(pools, pool_return_before_stop)
{
	for (bool abort : {true, false}) {
		buffer_pool &p = w.pool(of(6));
		node &a = w.made(), &b = w.up();
		std::atomic<int> free{-1};
		a.record.on_change = [&](const tm_event &e) {
			if (e.state == tm_state::stopped)
				free = static_cast<int>(p.free());
		};
		a.record.on_event = [&](const buffer_event &e) {
			if (!e.queued)
				EXPECT_EQ(p.put(e.buffer), 0);
		};
		ASSERT_EQ(a.tm.attach(p, a.record, 4096, 1), 0);
		ASSERT_EQ(a.tm.set_pool_length(4), 0);
		ASSERT_TRUE(a.up(w.next_address()));
		ASSERT_TRUE(holds(a, 4));
		send(b, a, 3);
		const std::size_t events = a.record.count();
		ASSERT_EQ(a.tm.stop(abort), 0);
		ASSERT_TRUE(w.until([&] { return a.record.came(tm_state::stopped); }));
		EXPECT_EQ(free, 6);
		EXPECT_EQ(a.record.count(), events) << "idle buffers return without events";
		w.remove(a);
	}
}

TEST_P(pools_once, pool_foreign_domain)
{
	domain &other = w.open(), &mine = w.open();
	buffer_pool &p = w.pool(of(4), &other);
	node &n = w.made(&mine);
	EXPECT_EQ(n.tm.attach(p, n.record, 64, 1), -EINVAL);
	ASSERT_TRUE(n.up(w.next_address()));
	EXPECT_EQ(n.tm.attach(p, n.record, 64, 1), -EBADFD);
	EXPECT_EQ(p.free(), 4u);
}

} // namespace conformance
