// SPDX-License-Identifier: MIT
// hostile.cpp - control messages from an attacker who has the key.
#include "tests/unit/fetch/lab.hpp"

#include <random>

namespace
{

using namespace lab;

class hostile : public testing::Test
{
protected:
	hostile() : a(net.add()), b(net.add())
	{
		net.acquaint(a, b);
		// a's messages end here: the test answers.
		net.filter = [this](node &, std::vector<u8> &m) {
			if (command(m) == COOP_CMD_REQUEST) {
				EXPECT_EQ(coop_wire_decode(&asked, a.cfg.key, m.data(),
							   static_cast<u32>(m.size())),
					  COOP_DECODE_OK);
			}
			answers.push_back(command(m));
			return false;
		};
	}
	void send(node &to, const coop_msg &m)
	{
		std::vector<u8> bytes(COOP_CTRL_MAX);
		bytes.resize(coop_wire_encode(&m, a.cfg.key, bytes.data(), COOP_CTRL_MAX));
		to.ctrl(bytes, b.cfg.self);
		net.settle();
	}
	coop_msg commit()
	{
		coop_msg m = asked;
		m.command = COOP_CMD_COMMIT;
		std::memset(&m.u, 0, sizeof(m.u));
		m.u.commit.fid = {1, 2};
		m.u.commit.version = 7;
		m.u.commit.size = 1 << 30;
		m.u.commit.pages = 0xf;
		m.u.commit.source = b.cfg.self;
		return m;
	}
	network net;
	node &a, &b;
	coop_msg asked{};
	std::vector<u8> answers;
};

TEST_F(hostile, commits_that_do_not_fit_the_request)
{
	const std::vector<std::function<void(coop_msg_commit &)>> lies = {
		[](auto &c) { c.fid.lo++; },   [](auto &c) { c.version++; },
		[](auto &c) { c.size--; },     [](auto &c) { c.pages = ~u64{0}; },
		[](auto &c) { c.n_sums = 3; },
	};
	for (const auto &lie : lies) {
		network fresh;
		ASSERT_EQ(a.fetch(4), 0);
		net.settle();
		coop_msg m = commit();
		lie(m.u.commit);
		const u64 bad = a.stats().commits_bad;
		send(a, m);
		EXPECT_EQ(a.stats().commits_bad, bad + 1);
		net.run(60000);
		EXPECT_EQ(a.done.rbegin()->second.good, 0u);
		// The peer's circuit is open now; only its PONG closes it.
		coop_engine_peer_del(a.e, &b.cfg.self, COOP_PEER_BY_HAND);
		coop_engine_peer_add(a.e, &b.cfg.self, COOP_PEER_BY_HAND, net.now);
	}
}

TEST_F(hostile, a_commit_without_data_gives_no_page)
{
	ASSERT_EQ(a.fetch(4), 0);
	net.settle();
	send(a, commit());
	net.run(100000);
	EXPECT_EQ(a.done[1].good, 0u);
}

TEST_F(hostile, answers_to_nothing_are_counted_and_dropped)
{
	ASSERT_EQ(a.fetch(4), 0);
	net.settle();
	const coop_msg right = commit();
	coop_msg m = right;
	m.id ^= u64{1} << 40;
	send(a, m); // another use of the slot
	m = right;
	m.id ^= 1;
	send(a, m); // another slot
	m = right;
	m.imm += 4;
	send(a, m); // another generation
	m = right;
	m.command = COOP_CMD_PONG;
	send(a, m);
	EXPECT_EQ(a.stats().commits_stale, 3u);
	EXPECT_TRUE(a.done.empty());
}

TEST_F(hostile, unknown_kinds_are_refused_but_never_an_answer)
{
	coop_msg m{};
	m.version = COOP_WIRE_VERSION;
	m.command = 0x55;
	send(b, m);
	EXPECT_EQ(b.stats().ctrl_command, 1u);
	m.version = 9;
	send(b, m);
	EXPECT_EQ(b.stats().ctrl_version, 1u);
	EXPECT_EQ(answers, (std::vector<u8>{COOP_CMD_REFUSED, COOP_CMD_REFUSED}));
	m.command = COOP_CMD_REFUSED; // of a future version: no answer, or two nodes would loop
	send(b, m);
	EXPECT_EQ(answers.size(), 2u);
}

TEST_F(hostile, refusals_are_rationed)
{
	coop_msg m{};
	m.version = 9;
	m.command = 1;
	for (int i = 0; i < 1000; ++i)
		send(b, m);
	EXPECT_LE(answers.size(), 40u);
	net.now += 1000000;
	send(b, m);
	EXPECT_EQ(answers.back(), COOP_CMD_REFUSED);
}

TEST_F(hostile, we_are_no_reflector)
{
	ASSERT_EQ(a.fetch(4), 0);
	net.settle();
	coop_msg m = asked;
	m.u.request.data.gid[15] = 77; // data for another node
	send(b, m);
	EXPECT_EQ(b.served, 0u);
	m = asked;
	m.u.request.reply.gid[15] = 77;
	send(b, m);
	EXPECT_EQ(b.served, 0u);
	EXPECT_EQ(b.stats().ctrl_refused_tx, 2u);
}

TEST_F(hostile, one_node_cannot_hold_every_serve)
{
	network wide;
	node_shape s;
	s.serves = 8;
	node &victim = net.add(s);
	victim.hold_lookup = true;
	ASSERT_EQ(a.fetch(4), 0);
	net.settle();
	for (u64 i = 0; i < 100; ++i) {
		coop_msg m = asked;
		m.id = i << 32;
		m.u.request.data.gid[15] = m.u.request.reply.gid[15] = 2;
		m.u.request.reply.qpn = 0x4000;
		send(victim, m);
	}
	EXPECT_EQ(victim.held.size(), 6u);
	EXPECT_GE(victim.stats().serves_busy, 90u);
}

TEST_F(hostile, random_genuine_messages_do_no_harm)
{
	std::mt19937_64 dice(11);
	ASSERT_EQ(a.fetch(4), 0);
	net.settle();
	for (int i = 0; i < 20000; ++i) {
		coop_msg m = dice() % 2 ? asked : commit();
		auto *raw = reinterpret_cast<u8 *>(&m.u);
		for (u64 n = dice() % 6; n; --n)
			raw[dice() % sizeof(coop_msg_request)] = static_cast<u8>(dice());
		if (m.command == COOP_CMD_COMMIT)
			m.u.commit.n_sums %= COOP_MAX_PAGES + 1;
		else
			m.u.request.n_ext %= COOP_MAX_EXTENTS + 1;
		m.u.request.options &= static_cast<u16>(~COOP_OPT_SELECTIVE);
		if (dice() % 4 == 0)
			m.id = dice();
		send(dice() % 2 ? a : b, m);
	}
	net.run();
	EXPECT_EQ(a.done.size(), 1u);
	EXPECT_EQ(b.served, b.ended);
}

} // namespace
