// SPDX-License-Identifier: MIT
// sync.cpp - events when the program asks for them, and not before.
//
// Conformance tests sync_*. Tests that must not poll wait by notify() and a channel.
#include <cerrno>

#include "world.hpp"

namespace conformance
{

namespace
{

class synchronous_delivery : public suite
{
protected:
	// Waits for the next event of n without asking for it.
	bool arrives(node &n)
	{
		channel c;
		EXPECT_EQ(n.tm.notify(c), 0);
		return c.wait(clock::now() + patience) == 0;
	}
};
COOP_CONFORMANCE(synchronous_delivery, synchronous);

} // namespace

TEST_P(synchronous_delivery, sync_no_event_before_call)
{
	node &a = w.up(), &b = w.up();
	EXPECT_EQ(a.tm.deliver_synchronously(), -EBADFD);
	piece &in = w.memory(64), &out = w.memory(64);
	ASSERT_EQ(b.receive(in), 0);
	ASSERT_EQ(a.send(out, 64, a.to(b)), 0);
	// The background threads have produced events for both, and neither handler has run.
	ASSERT_TRUE(arrives(b));
	ASSERT_TRUE(arrives(a));
	EXPECT_EQ(a.record.count(), 0u);
	EXPECT_EQ(b.record.count(), 0u);
	EXPECT_TRUE(in.buffer->queued());
	EXPECT_TRUE(b.tm.pending());
	EXPECT_EQ(b.record.count(), 0u);
	EXPECT_EQ(b.tm.deliver_all(), 1u);
	EXPECT_EQ(b.record.count(), 1u);
	EXPECT_FALSE(in.buffer->queued());
	EXPECT_EQ(a.tm.deliver_all(), 1u);
	EXPECT_EQ(a.record.count(), 1u);
}

TEST_P(synchronous_delivery, sync_notify_once)
{
	node &a = w.up(), &b = w.up();
	piece &in = w.memory(4096), &out = w.memory(64);
	ASSERT_EQ(b.receive(in, 64, 64), 0);
	const endpoint_ptr to = a.to(b);
	channel c;
	ASSERT_EQ(b.tm.notify(c), 0);
	EXPECT_FALSE(c.try_wait());
	for (unsigned i = 1; i <= 3; i++) {
		ASSERT_EQ(a.send(out, 64, to), 0);
		ASSERT_TRUE(arrives(a)); // b is not polled
		ASSERT_EQ(a.tm.deliver_all(), 1u);
	}
	EXPECT_EQ(c.wait(clock::now() + patience), 0);
	ASSERT_TRUE(w.until([&] { return b.record.messages().size() == 3; }));
	EXPECT_FALSE(c.try_wait()) << "once, for three events";
	// Without a pending event it waits for the next; otherwise it returns at once.
	channel d;
	ASSERT_EQ(b.tm.notify(d), 0);
	EXPECT_FALSE(b.tm.pending());
	EXPECT_FALSE(d.try_wait());
	ASSERT_EQ(a.send(out, 64, to), 0);
	EXPECT_EQ(d.wait(clock::now() + patience), 0);
	EXPECT_EQ(b.record.messages().size(), 3u);
	channel again;
	ASSERT_EQ(b.tm.notify(again), 0);
	EXPECT_EQ(again.wait(clock::now() + patience), 0);
	EXPECT_EQ(b.tm.deliver_all(), 1u);
	EXPECT_FALSE(d.try_wait());
	EXPECT_FALSE(again.try_wait());
}

TEST_P(synchronous_delivery, sync_empty_ok)
{
	node &a = w.made();
	EXPECT_EQ(a.tm.deliver_all(), 0u);
	EXPECT_FALSE(a.tm.pending());
	ASSERT_TRUE(a.up(w.next_address()));
	for (int i = 0; i < 1000; i++) {
		ASSERT_FALSE(a.tm.pending());
		ASSERT_EQ(a.tm.deliver_all(), 0u);
	}
	// If another call has taken the event, that is no error either.
	piece &in = w.memory(64);
	ASSERT_EQ(a.receive(in), 0);
	ASSERT_TRUE(a.tm.del(*in.buffer));
	ASSERT_TRUE(arrives(a));
	EXPECT_EQ(a.tm.deliver_all(), 1u);
	EXPECT_EQ(a.tm.deliver_all(), 0u);
	ASSERT_EQ(a.tm.stop(true), 0);
	EXPECT_EQ(a.tm.wait(tm_state::stopped, clock::now() + patience), 0);
	EXPECT_EQ(a.tm.deliver_all(), 0u);
}

TEST_P(synchronous_delivery, sync_same_thread)
{
	node &a = w.up(), &b = w.up();
	piece &in = w.memory(64), &out = w.memory(64), &gone = w.memory(64);
	ASSERT_EQ(b.receive(in), 0);
	ASSERT_EQ(node::within(200ms, [&](time_point by) { return b.receive(gone, 0, 1, by); }), 0);
	ASSERT_EQ(a.send(out, 64, a.to(b)), 0);
	ASSERT_TRUE(w.ended(a, out));
	ASSERT_TRUE(w.ended(b, in));
	ASSERT_TRUE(w.ended(b, gone));
	for (node *n : {&a, &b})
		for (const happened &h : n->record.all())
			EXPECT_EQ(h.thread, std::this_thread::get_id());
	// State events still come from the background thread.
	for (const auto &s : b.record.states())
		EXPECT_NE(s.second, std::this_thread::get_id());
	// A callback may deliver the events of its own operations.
	int depth = 0, deepest = 0;
	b.record.on_event = [&](const buffer_event &) {
		deepest = std::max(deepest, ++depth);
		if (depth < 3) {
			piece &p = w.memory(64);
			EXPECT_EQ(b.receive(p), 0);
			EXPECT_TRUE(b.tm.del(*p.buffer));
			while (b.tm.deliver_all() == 0)
				;
		}
		depth--;
	};
	piece &p = w.memory(64);
	ASSERT_EQ(b.receive(p), 0);
	ASSERT_TRUE(b.tm.del(*p.buffer));
	ASSERT_TRUE(w.ended(b, p));
	EXPECT_EQ(deepest, 3);
}

} // namespace conformance
