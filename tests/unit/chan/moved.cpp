// SPDX-License-Identifier: MIT
// moved.cpp - a peer that comes back at another LID (the UDP port of soft RoCE) or with another
// Q_Key: it is answered where it is now, and only its own proof moves a session.
#include <gtest/gtest.h>

#include "tests/unit/chan/lab.hpp"

namespace
{

using namespace coop::test;

constexpr u16 other_port = 4791;

// Node 1 restarts at another port, with the same GID and QPNs.
void move(chan_lab &lab)
{
	lab.b().cfg.self.lid = other_port;
	lab.restart(1);
	lab.now += 2000;
}

coop_addr known_place(chan_lab &lab)
{
	coop_chan_peer_info info{};
	EXPECT_EQ(coop_chan_peer_get(lab.a().e, lab.open(0, 1), &info), 0);
	return info.addr.command;
}

// The node sends a message to the other, which arrives. No time passes in which a timeout could
// help.
void expect_delivery(chan_lab &lab, u32 from)
{
	lab_node &n = *lab.node[from], &to = *lab.node[1 - from];
	n.events.clear();
	to.events.clear();
	lab.send(from, 1 - from, "hello again");
	lab.run(10000);
	EXPECT_EQ(to.count(COOP_CHAN_EV_DELIVERED), 1u);
	ASSERT_EQ(n.count(COOP_CHAN_EV_SENT), 1u);
	EXPECT_EQ(n.event(COOP_CHAN_EV_SENT)->err, 0);
}

TEST(chan_moved, a_restarted_peer_is_challenged_where_it_is_now)
{
	chan_lab lab;
	lab.greet();
	move(lab);
	expect_delivery(lab, 1);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_PEER_RESTARTED), 1u);
	EXPECT_EQ(known_place(lab).lid, other_port);
	expect_delivery(lab, 0);
	EXPECT_EQ(lab.a().stats().retransmits_timeout, 0u);
}

TEST(chan_moved, a_peer_whose_session_is_over_is_answered_where_it_is_now)
{
	chan_lab lab;
	lab.greet();
	coop_chan_close(lab.b().e, lab.open(1, 0), lab.now);
	lab.run(1000); // its RESET
	ASSERT_EQ(lab.a().count(COOP_CHAN_EV_PEER_RESTARTED), 1u);
	move(lab);
	expect_delivery(lab, 1);
	EXPECT_EQ(known_place(lab).lid, other_port);
	expect_delivery(lab, 0);
}

TEST(chan_moved, both_open_at_once)
{
	for (const u32 quiet : {1000u, 1000000u, ~0u}) {
		coop_chan_cfg a = lab_cfg(0), b = lab_cfg(1);
		a.quiet_us = b.quiet_us = quiet;
		chan_lab lab(a, b);
		lab.send(0, 1, "to where it was");
		lab.pull(0);
		move(lab);
		lab.send(1, 0, "from where it is");
		lab.run(1000000);
		for (auto &n : lab.node) {
			EXPECT_EQ(n->count(COOP_CHAN_EV_DELIVERED), 1u) << quiet;
			ASSERT_EQ(n->count(COOP_CHAN_EV_SENT), 1u) << quiet;
			EXPECT_EQ(n->event(COOP_CHAN_EV_SENT)->err, 0) << quiet;
		}
		EXPECT_EQ(known_place(lab).lid, other_port) << quiet;
	}
}

TEST(chan_moved, a_restarted_peer_is_challenged_with_its_new_q_key)
{
	chan_lab lab;
	lab.greet();
	lab.b().cfg.self.qkey = 0x98;
	lab.b().cfg.data_qkey = 0x99;
	lab.restart(1);
	expect_delivery(lab, 1);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_PEER_RESTARTED), 1u);
	expect_delivery(lab, 0);
}

// The LID is not part of a datagram, so the MAC does not cover it: anyone may repeat an OPEN from
// elsewhere.
TEST(chan_moved, an_open_from_elsewhere_without_a_proof_moves_nothing)
{
	for (const bool live : {false, true}) {
		chan_lab lab;
		lab.greet();
		if (!live) {
			coop_chan_close(lab.b().e, lab.open(1, 0), lab.now);
			lab.run(1000);
		}
		lab.restart(1);
		lab.now += 2000;
		lab.send(1, 0, "new life");
		const auto open = lab.pull(1);
		ASSERT_EQ(open.size(), 1u);
		coop_addr elsewhere = lab.source(1, COOP_CHAN_COMMAND);
		elsewhere.lid = other_port;
		EXPECT_EQ(lab.deliver(open[0].bytes, COOP_CHAN_COMMAND, elsewhere, 0),
			  COOP_CHAN_DONE);
		const auto challenge = lab.pull(0);
		ASSERT_EQ(challenge.size(), 1u);
		EXPECT_EQ(challenge[0].p.type, COOP_CHAN_T_CHALLENGE);
		EXPECT_EQ(challenge[0].to_lid, other_port);
		EXPECT_EQ(known_place(lab).lid, 0u);
		// The true one comes later, and its session stays where it is.
		lab.run(1000000);
		EXPECT_EQ(lab.a().count(COOP_CHAN_EV_DELIVERED), 1u);
		EXPECT_EQ(lab.deliver(open[0].bytes, COOP_CHAN_COMMAND, elsewhere, 0),
			  COOP_CHAN_DONE);
		EXPECT_EQ(known_place(lab).lid, 0u);
		expect_delivery(lab, 0);
	}
}

} // namespace
