// SPDX-License-Identifier: MIT
// stopped.cpp - a peer that exists and does nothing: a process after SIGSTOP.
//
// Every operation with it ends in time, by a deadline or because its own side stops, and the peer
// does not write to returned memory when it continues.
#include <cerrno>

#include "helper.hpp"
#include "world.hpp"

namespace conformance
{

namespace
{

constexpr queue_type with_data[] = {queue_type::msg_send, queue_type::active_bulk_recv,
				    queue_type::active_bulk_send};
constexpr std::size_t large = 40000;

class stopped : public suite
{
protected:
	std::string where;
	node *a = nullptr;
	endpoint_ptr to;
	std::unique_ptr<helper> h;
	unsigned seed = 100;

	// A helper that has answered, so that a connection exists.
	void meet()
	{
		where = w.next_address();
		a = &w.up();
		ASSERT_EQ(a->tm.make_endpoint(where, to), 0);
		h = std::make_unique<helper>(t, where);
		ASSERT_TRUE(answered());
	}
	// True if one of a few messages came back. Before it an echo may come of what the peer took
	// while it was stopped.
	bool answered()
	{
		const unsigned first = seed;
		while (seed - first < 20) {
			piece &out = w.memory(64), &in = w.memory(65536);
			out.fill(seed++);
			EXPECT_EQ(a->receive(in), 0);
			EXPECT_EQ(a->send(out, 64, to, clock::now() + 20s), 0);
			if (!w.ended(*a, out))
				return false;
			if (a->record.of(*out.buffer)[0].status == 0) {
				if (!w.ended(*a, in))
					return false;
				for (unsigned i = first; i < seed; i++)
					if (in.copy(0, 64) == patterned(i, 64))
						return true;
				continue;
			}
			EXPECT_TRUE(a->tm.del(*in.buffer));
			EXPECT_TRUE(w.ended(*a, in));
		}
		return false;
	}
	// The module takes its messages and gives its bytes; but only the process itself fetches.
	bool works_frozen(queue_type q) const
	{
		return t.works_frozen && q != queue_type::active_bulk_send;
	}
	// The time begins when the memory is ready, which may take long on a busy machine.
	piece &begin(queue_type q, std::chrono::milliseconds within = 0ms)
	{
		piece &p = w.memory(q == queue_type::msg_send ? large : helper::bulk);
		p.fill(5);
		const auto add = [&](time_point deadline) {
			return q == queue_type::msg_send
				       ? a->send(p, large, to, deadline)
				       : a->active(p, q,
						   q == queue_type::active_bulk_recv ? h->readable
										     : h->writable,
						   0, deadline);
		};
		EXPECT_EQ(within == 0ms ? add(never) : node::within(within, add), 0) << name(q);
		return p;
	}
};
COOP_CONFORMANCE(stopped, both);

} // namespace

TEST_P(stopped, peer_is_no_reason_to_be_late)
{
	if (!w.home().traits().between_processes)
		GTEST_SKIP() << t.label << " has no other processes";
	meet();
	if (HasFatalFailure())
		return;
	h->freeze();
	piece *into = nullptr;
	for (queue_type q : with_data) {
		piece &p = begin(q, 300ms);
		ASSERT_TRUE(w.ended(*a, p)) << name(q);
		const int status = a->record.of(*p.buffer)[0].status;
		EXPECT_TRUE(status == -ETIMEDOUT || (!status && works_frozen(q)))
			<< name(q) << ": " << status;
		if (q == queue_type::active_bulk_recv)
			into = &p;
	}
	const auto is = into->copy(0, helper::bulk);
	h->thaw();
	// By the second echo the peer has met all requests to it.
	EXPECT_TRUE(answered());
	EXPECT_TRUE(answered());
	EXPECT_EQ(into->copy(0, helper::bulk), is) << "written after it was returned";
}

TEST_P(stopped, peer_keeps_nobody_from_stopping)
{
	if (!w.home().traits().between_processes)
		GTEST_SKIP() << t.label << " has no other processes";
	meet();
	if (HasFatalFailure())
		return;
	h->freeze();
	std::vector<piece *> all;
	for (queue_type q : with_data)
		all.push_back(&begin(q));
	ASSERT_EQ(a->tm.stop(true), 0);
	ASSERT_TRUE(w.until([&] { return a->record.came(tm_state::stopped); }));
	for (piece *p : all) {
		// With synchronous delivery a state may be told before the events of buffers.
		ASSERT_TRUE(w.ended(*a, *p));
		ASSERT_EQ(a->record.finals(*p->buffer), 1u);
		const happened end = a->record.of(*p->buffer)[0];
		EXPECT_TRUE(end.status == -ECANCELED || (!end.status && works_frozen(end.queue)))
			<< name(end.queue) << ": " << end.status;
	}
	const auto is = all[1]->copy(0, helper::bulk);
	w.remove(*a);
	h->thaw();
	a = &w.up();
	ASSERT_EQ(a->tm.make_endpoint(where, to), 0);
	EXPECT_TRUE(answered());
	EXPECT_EQ(all[1]->copy(0, helper::bulk), is) << "written after it was returned";
}

} // namespace conformance
