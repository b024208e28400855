// SPDX-License-Identifier: MIT
// fetch_one.cpp - a fetch with one peer to ask: its QUERYs, its patience, and how they
// are measured, both where others could have the pages and where none could.
#include "tests/unit/fetch/lab.hpp"

namespace
{

using namespace lab;

// A QUERY costs little, and there is no other peer to ask.
TEST(fetch_from_the_only_one, it_is_soon_asked_what_became_of_the_request)
{
	for (const u8 which : {COOP_CMD_REQUEST, COOP_CMD_COMMIT}) {
		network net;
		node_shape shape;
		shape.sole = true;
		node &a = net.add(shape), &b = net.add(shape);
		const u32 id = net.acquaint(a, b);
		ASSERT_EQ(a.fetch(4), 0);
		net.run();
		lose(net, which, 1);
		ASSERT_EQ(a.fetch(4), 0);
		net.run(a.cfg.peer_timeout_us / 8 - 1);
		ASSERT_EQ(a.done.count(2), 1u) << "within the patience of one attempt";
		EXPECT_EQ(a.done[2].err, 0);
		EXPECT_EQ(a.stats().queries, 1u);
		EXPECT_EQ(a.peer(id).failures, 0u) << "no attempt ran out of patience";
		// A silent peer gets fewer and fewer QUERYs, but the patience for it
		// stays.
		net.filter = [](node &, auto &) { return false; };
		ASSERT_EQ(a.fetch(4), 0);
		net.run();
		EXPECT_NE(a.done[3].err, 0);
		EXPECT_LE(a.stats().attempts, 6u);
		EXPECT_LE(a.stats().queries, 16u);
	}
}

// Sends the data first, then the COMMIT, as on a wire.
void answer_late(network &net, node &b)
{
	b.hold_lookup = false;
	b.hold_sends = true;
	coop_engine_lookup_done(b.e, b.held[0], ~u64{0}, b.size, 1000 + b.held[0], net.now);
	net.settle();
	b.hold_sends = false;
	for (; !b.sends.empty(); b.sends.pop_front())
		coop_engine_tx_done(b.e, b.sends.front().first, b.sends.front().second, 0, net.now);
}

class fetch_from_one : public testing::TestWithParam<bool>
{
protected:
	// One fetch measures the round trip; then the test sets the budget.
	void acquaint(u32 budget_us)
	{
		shape.sole = GetParam();
		a = &net.add(shape);
		b = &net.add(shape);
		id = net.acquaint(*a, *b);
		ASSERT_EQ(a->fetch(4), 0);
		net.run();
		coop_engine_tune(a->e, budget_us, 0, net.now);
	}
	network net;
	node_shape shape;
	node *a = nullptr, *b = nullptr;
	u32 id = 0;
};

TEST_P(fetch_from_one, silence_is_questioned_ever_rarer_and_waited_for_as_patiently)
{
	acquaint(1000000);
	net.filter = [](node &, auto &) { return false; };
	ASSERT_EQ(a->fetch(4), 0);
	net.run();
	EXPECT_EQ(a->done[2].err, -ETIMEDOUT);
	EXPECT_EQ(a->stats().attempts, 1u + 3u);
	EXPECT_GE(a->stats().queries, 2u);
	EXPECT_LE(a->stats().queries, 20u);
}

TEST_P(fetch_from_one, one_that_says_it_is_busy_with_it_is_questioned_ever_rarer)
{
	acquaint(1000000);
	b->hold_lookup = true;
	ASSERT_EQ(a->fetch(4), 0);
	net.run(900000);
	EXPECT_LE(a->stats().queries, 16u);
	EXPECT_EQ(a->stats().attempts, 1u + 1u);
	answer_late(net, *b);
	net.run();
	EXPECT_EQ(a->done[2].err, 0);
}

TEST_P(fetch_from_one, a_fetch_may_have_a_budget_of_its_own)
{
	acquaint(100000);
	b->hold_lookup = true;
	unsigned cookie = 1;
	for (const u32 us : {30000u, 150000u}) {
		a->budget_us = us;
		ASSERT_EQ(a->fetch(4), 0);
		net.run(us * 9 / 10);
		EXPECT_EQ(a->done.count(++cookie), 0u) << us;
		net.run(us / 10 + 5000);
		ASSERT_EQ(a->done.count(cookie), 1u) << us;
		EXPECT_EQ(a->done[cookie].err, -ETIMEDOUT);
	}
}

TEST_P(fetch_from_one, a_pause_does_not_make_what_is_lost_afterwards_dear)
{
	acquaint(200000);
	const unsigned pauses = 4;
	for (unsigned i = 0; i < pauses; i++) {
		b->hold_lookup = true;
		b->held.clear();
		ASSERT_EQ(a->fetch(4), 0);
		net.run(180000);
		answer_late(net, *b);
		net.run(1000);
		ASSERT_EQ(a->done.count(2 + i), 1u);
	}
	once(net, [](auto &air) { air.erase(air.begin() + 1); });
	ASSERT_EQ(a->fetch(8), 0);
	net.run(200000 / 8 + 1000);
	EXPECT_EQ(a->done.count(2 + pauses), 1u) << "within a share of the budget";
	net.run();
	EXPECT_EQ(a->done[2 + pauses].err, 0);
}

TEST_P(fetch_from_one, a_late_answer_with_a_hole_is_mended_within_the_budget)
{
	acquaint(200000);
	b->hold_lookup = true;
	ASSERT_EQ(a->fetch(8), 0);
	net.run(140000);
	once(net, [](auto &air) { air.erase(air.begin() + 1); });
	answer_late(net, *b);
	net.run();
	EXPECT_EQ(a->done[2].err, 0);
	EXPECT_EQ(a->done[2].good, 0xffu);
}

// A responder looks for a record only when it gets a QUERY.
TEST_P(fetch_from_one, no_record_is_believed_of_one_who_was_asked_for_it)
{
	acquaint(200000);
	std::vector<coop_msg> answers;
	net.filter = [&](node &to, auto &m) { // b gets nothing: the test answers
		if (&to != b)
			return true;
		coop_msg said{};
		if (coop_wire_decode(&said, b->cfg.key, m.data(), static_cast<u32>(m.size())) ||
		    said.command != COOP_CMD_REQUEST)
			return false;
		answers.push_back(said);
		return false;
	};
	ASSERT_EQ(a->fetch(4), 0);
	net.settle();
	ASSERT_EQ(answers.size(), 1u);
	coop_msg none{};
	none.version = COOP_WIRE_VERSION;
	none.command = COOP_CMD_REFUSED;
	none.reason = COOP_REASON_NO_RECORD;
	none.id = answers[0].id;
	none.imm = answers[0].imm;
	std::vector<u8> bytes(COOP_CTRL_MAX);
	bytes.resize(coop_wire_encode(&none, b->cfg.key, bytes.data(), COOP_CTRL_MAX));
	a->ctrl(bytes, b->cfg.self);
	net.settle();
	EXPECT_EQ(answers.size(), 1u) << "its REQUEST was not sent again at once";
	EXPECT_EQ(a->stats().attempts, 1u + 1u);
}

INSTANTIATE_TEST_SUITE_P(, fetch_from_one, testing::Bool());

} // namespace
