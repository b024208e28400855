// SPDX-License-Identifier: MIT
// sessions.cpp - how sessions begin and end: with and without a challenge, restarts of either
// side, every kind of stale datagram, dead peers, and the events of each side.
#include <algorithm>
#include <gtest/gtest.h>

#include "tests/unit/chan/lab.hpp"

namespace
{

using namespace coop::test;

const std::string big(5000, 'B');

int only_error(lab_node &n)
{
	EXPECT_EQ(n.count(COOP_CHAN_EV_SENT), 1u);
	return n.event(COOP_CHAN_EV_SENT) ? n.event(COOP_CHAN_EV_SENT)->err : 1;
}

TEST(chan_session, first_message_needs_no_round_trip)
{
	chan_lab lab;
	lab.send(0, 1, "first");
	const auto d = lab.pull(0);
	ASSERT_EQ(d.size(), 1u);
	EXPECT_TRUE(d[0].p.flags & COOP_CHAN_W_OPEN);
	EXPECT_EQ(lab.deliver(d[0], 1), COOP_CHAN_PLACE);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
	ASSERT_FALSE(lab.b().events.empty());
	EXPECT_EQ(lab.b().events[0].kind, COOP_CHAN_EV_PEER_NEW);
	lab.run(1000);
	// Later datagrams omit the OPEN block.
	lab.send(0, 1, "second");
	for (const auto &each : lab.pull(0)) {
		EXPECT_FALSE(each.p.flags & COOP_CHAN_W_OPEN);
		lab.deliver(each, 1);
	}
	lab.send(1, 0, "back");
	lab.run(1000);
	lab.send(1, 0, "back");
	for (const auto &each : lab.pull(1))
		EXPECT_FALSE(each.p.flags & COOP_CHAN_W_OPEN);
}

TEST(chan_session, first_large_message_neither_when_the_data_qp_is_known)
{
	chan_lab lab;
	lab.send(0, 1, big);
	for (const auto &d : lab.pull(0))
		lab.deliver(d, 1);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
}

TEST(chan_session, unknown_data_qp_is_asked_for)
{
	chan_lab lab;
	lab.data_known = false;
	lab.send(0, 1, big);
	const auto d = lab.pull(0);
	ASSERT_EQ(d.size(), 1u);
	EXPECT_EQ(d[0].p.type, COOP_CHAN_T_VOID);
	EXPECT_EQ(d[0].channel, u32{COOP_CHAN_COMMAND});
	lab.deliver(d[0], 1);
	lab.run(10000);
	EXPECT_EQ(only_error(lab.a()), 0);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
}

TEST(chan_session, in_quiet_time_a_stranger_proves_that_he_lives)
{
	coop_chan_cfg b = lab_cfg(1);
	b.quiet_us = 1000000;
	chan_lab lab(lab_cfg(0), b);
	lab.send(0, 1, "first");
	const auto d = lab.pull(0);
	EXPECT_EQ(lab.deliver(d[0], 1), COOP_CHAN_DONE);
	EXPECT_EQ(lab.b().stats().peers, 0u); // it keeps no state for a
	const auto challenge = lab.pull(1);
	ASSERT_EQ(challenge.size(), 1u);
	EXPECT_EQ(challenge[0].p.type, COOP_CHAN_T_CHALLENGE);
	lab.deliver(challenge[0], 0);
	const auto proof = lab.pull(0); // at once, not after the timeout
	ASSERT_EQ(proof.size(), 1u);
	EXPECT_EQ(proof[0].p.dst_session, challenge[0].p.src_session);
	EXPECT_EQ(lab.deliver(proof[0], 1), COOP_CHAN_PLACE);
	// The earlier datagram now belongs to a's session and is a duplicate.
	EXPECT_EQ(lab.deliver(d[0], 1), COOP_CHAN_DONE);
	lab.run(1000);
	EXPECT_EQ(only_error(lab.a()), 0);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
}

TEST(chan_session, both_at_once)
{
	for (const u32 quiet : {1000u, 1000000u, ~0u}) {
		coop_chan_cfg a = lab_cfg(0), b = lab_cfg(1);
		a.quiet_us = b.quiet_us = quiet;
		chan_lab lab(a, b);
		lab.send(0, 1, "to b");
		lab.send(1, 0, "to a");
		const auto from_a = lab.pull(0), from_b = lab.pull(1);
		for (const auto &d : from_a)
			lab.deliver(d, 1);
		for (const auto &d : from_b)
			lab.deliver(d, 0);
		lab.run(1000000);
		for (auto &n : lab.node) {
			EXPECT_EQ(only_error(*n), 0) << quiet;
			EXPECT_EQ(n->count(COOP_CHAN_EV_DELIVERED), 1u) << quiet;
			EXPECT_EQ(n->count(COOP_CHAN_EV_PEER_RESTARTED), 0u) << quiet;
			EXPECT_EQ(n->stats().timeouts, 0u) << quiet;
		}
	}
}

TEST(chan_restart, of_the_receiver_is_told_once)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, big);
	lab.send(0, 1, "two");
	const auto d = lab.pull(0);
	lab.restart(1);
	for (const auto &each : d)
		EXPECT_EQ(lab.deliver(each, 1), COOP_CHAN_DONE);
	EXPECT_EQ(lab.b().stats().rx_stale_receiver, d.size());
	for (const auto &reset : lab.pull(1)) {
		EXPECT_EQ(reset.p.type, COOP_CHAN_T_RESET);
		lab.deliver(reset, 0);
	}
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_PEER_RESTARTED), 1u);
	EXPECT_EQ(lab.a().event(COOP_CHAN_EV_PEER_RESTARTED)->why, u32{COOP_CHAN_WHY_RESET});
	ASSERT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 2u);
	for (const auto &ev : lab.a().events)
		EXPECT_TRUE(ev.kind != COOP_CHAN_EV_SENT || ev.err == -ECONNRESET);
	EXPECT_EQ(lab.a().stats().segments_used, 0u);
	// The next send begins a session by itself.
	lab.a().events.clear();
	lab.send(0, 1, "three");
	lab.run(100000);
	EXPECT_EQ(only_error(lab.a()), 0);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_PEER_RESTARTED), 0u);
}

TEST(chan_restart, of_the_sender_is_told_once_and_aborts_receives)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, big);
	const auto old = lab.pull(0);
	lab.deliver(old[0], 1);
	lab.send(1, 0, "never answered");
	lab.pull(1);
	lab.restart(0);
	lab.send(0, 1, "new life");
	lab.run(1000000);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_PEER_RESTARTED), 1u);
	EXPECT_EQ(lab.b().event(COOP_CHAN_EV_PEER_RESTARTED)->why, u32{COOP_CHAN_WHY_NEW_SESSION});
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_ABORTED), 1u);
	EXPECT_EQ(lab.b().event(COOP_CHAN_EV_ABORTED)->err, -ECONNRESET);
	EXPECT_EQ(only_error(lab.b()), -ECONNRESET);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
	EXPECT_EQ(only_error(lab.a()), 0);
	// Datagrams of the old life arrive now.
	const u64 stale = lab.b().stats().rx_stale_sender + lab.b().stats().rx_stale_receiver;
	for (const auto &d : old)
		EXPECT_EQ(lab.deliver(d, 1), COOP_CHAN_DONE);
	EXPECT_EQ(lab.b().stats().rx_stale_sender + lab.b().stats().rx_stale_receiver,
		  stale + old.size());
	lab.run(1000000);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_PEER_RESTARTED), 1u);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
}

TEST(chan_restart, stale_opens_begin_nothing)
{
	chan_lab lab;
	lab.send(0, 1, "old life");
	const auto old = lab.pull(0); // an OPEN, held back in the fabric
	lab.restart(0);
	lab.now += 2000;
	lab.send(0, 1, "new life");
	lab.run(1000000);
	ASSERT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
	// With a session: b challenges, and the new life does not know the name.
	EXPECT_EQ(lab.deliver(old[0], 1), COOP_CHAN_DONE);
	lab.run(1000000);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_PEER_RESTARTED), 0u);
	// Without a session, soon after it ended: the same.
	coop_chan_close(lab.b().e, lab.open(1, 0), lab.now);
	lab.take_events(1);
	EXPECT_EQ(lab.deliver(old[0], 1), COOP_CHAN_DONE);
	lab.run(900);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
}

TEST(chan_restart, stale_resets_and_challenges_end_nothing)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, "one");
	const auto d = lab.pull(0);
	lab.restart(1);
	lab.deliver(d[0], 1);
	const auto reset = lab.pull(1);
	ASSERT_EQ(reset.size(), 1u);
	lab.deliver(reset[0], 0);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_PEER_RESTARTED), 1u);
	lab.send(0, 1, "two");
	lab.run(1000000);
	lab.a().events.clear();
	lab.deliver(reset[0], 0); // repeated much later
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_PEER_RESTARTED), 0u);
	const auto challenge = forged(reset[0], [](auto &p) { p.type = COOP_CHAN_T_CHALLENGE; });
	lab.deliver(challenge, 0, chan_address(1, lab_command), 0);
	lab.send(0, 1, "three");
	lab.run(1000000);
	EXPECT_EQ(only_error(lab.a()), 0);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_PEER_RESTARTED), 0u);
}

TEST(chan_restart, an_answer_to_the_old_name_is_dropped)
{
	chan_lab lab;
	lab.greet();
	lab.send(1, 0, "to the old life");
	const auto d = lab.pull(1);
	const auto wrong = [&](auto &&how) {
		EXPECT_EQ(lab.deliver(forged(d[0], how), 0, chan_address(1, lab_command), 0),
			  COOP_CHAN_DONE);
	};
	wrong([](auto &p) { p.dst_session ^= 1; });
	EXPECT_EQ(lab.a().stats().rx_stale_receiver, 1u);
	wrong([](auto &p) { p.src_session ^= 1; });
	EXPECT_EQ(lab.a().stats().rx_stale_sender, 1u);
	wrong([](auto &p) { p.dst_id += 8; });
	EXPECT_EQ(lab.a().stats().rx_stale_receiver, 2u);
	// The right names from another address.
	EXPECT_EQ(lab.deliver(d[0].bytes, 0, chan_address(3, lab_command), 0), COOP_CHAN_DONE);
	EXPECT_EQ(lab.deliver(d[0].bytes, 0, chan_address(1, 0x99), 0), COOP_CHAN_DONE);
	EXPECT_EQ(lab.a().stats().rx_address, 2u);
	EXPECT_EQ(lab.deliver(d[0], 0), COOP_CHAN_PLACE);
}

TEST(chan_restart, a_challenge_under_another_name_is_asked_about)
{
	chan_lab lab;
	lab.greet();
	lab.send(1, 0, "a word of his");
	const auto d = lab.pull(1);
	lab.deliver(d[0], 0);
	lab.settle();
	lab.run(1000);
	const auto challenge = forged(d[0], [](auto &p) {
		p.type = COOP_CHAN_T_CHALLENGE;
		p.flags = 0;
		p.src_session ^= 1;
		p.payload_len = 0;
	});
	const std::vector<u8> bare(challenge.begin(),
				   challenge.begin() + COOP_CHAN_HEADER + COOP_CHAN_MAC);
	lab.deliver(bare, 0, chan_address(1, lab_command), 0);
	EXPECT_EQ(lab.a().stats().challenges_rx, 1u);
	// One ACK, with the names of the session.
	auto asked = lab.pull(0);
	ASSERT_EQ(asked.size(), 1u);
	EXPECT_EQ(asked[0].p.type, COOP_CHAN_T_ACK);
	EXPECT_EQ(asked[0].p.src_session, d[0].p.dst_session);
	EXPECT_EQ(asked[0].p.dst_session, d[0].p.src_session);
	// The peer is the same and does not answer; the session goes on.
	lab.deliver(asked[0], 1);
	EXPECT_TRUE(lab.pull(1).empty());
	lab.send(0, 1, "one");
	lab.run(1000000);
	EXPECT_EQ(only_error(lab.a()), 0);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_PEER_RESTARTED), 0u);
	// The peer is another, and answers so.
	lab.restart(1);
	lab.deliver(bare, 0, chan_address(1, lab_command), 0);
	asked = lab.pull(0);
	ASSERT_EQ(asked.size(), 1u);
	lab.deliver(asked[0], 1);
	lab.settle();
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_PEER_RESTARTED), 1u);
	EXPECT_EQ(lab.a().event(COOP_CHAN_EV_PEER_RESTARTED)->why, u32{COOP_CHAN_WHY_RESET});
}

TEST(chan_restart, of_one_with_another_q_key_is_told)
{
	coop_chan_cfg other = lab_cfg(1);
	other.self.qkey = 0x98;
	other.data_qkey = 0x99;
	chan_lab lab(lab_cfg(0), other);
	lab.greet();
	lab.send(0, 1, "one");
	const auto d = lab.pull(0);
	lab.restart(1);
	lab.deliver(d[0], 1);
	// b no longer knows the peer, so its RESET has the wrong Q_Key.
	const auto reset = lab.pull(1);
	ASSERT_EQ(reset.size(), 1u);
	EXPECT_NE(reset[0].to_qkey, lab.a().cfg.self.qkey);
	lab.deliver(reset[0], 0);
	EXPECT_EQ(lab.a().stats().resets_rx, 0u);
	lab.run(2000000);
	EXPECT_EQ(only_error(lab.a()), -ECONNRESET);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_PEER_RESTARTED), 1u);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_PEER_DEAD), 0u);
	lab.a().events.clear();
	lab.send(0, 1, "two");
	lab.run(2000000);
	EXPECT_EQ(only_error(lab.a()), 0);
}

TEST(chan_close, ends_everything_and_tells_the_other)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, big);
	for (const auto &d : lab.pull(0))
		if (d.p.offset)
			lab.deliver(d, 1);
	lab.send(1, 0, "to the one who closes");
	lab.pull(1);
	EXPECT_EQ(coop_chan_close(lab.a().e, lab.open(0, 1), lab.now), 0);
	lab.take_events(0);
	EXPECT_EQ(only_error(lab.a()), -ECANCELED);
	for (const auto &d : lab.pull(0))
		lab.deliver(d, 1);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_PEER_RESTARTED), 1u);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_ABORTED), 1u);
	EXPECT_EQ(only_error(lab.b()), -ECONNRESET);
	EXPECT_EQ(lab.a().stats().peers, 0u);
	int err = 0;
	coop_chan_msg m{};
	m.peer = 12345;
	u32 id;
	err = coop_chan_send(lab.a().e, &m, lab.now, &id);
	EXPECT_EQ(err, -ENOENT);
}

TEST(chan_dead, never_answered)
{
	coop_chan_cfg cfg = lab_cfg(0);
	cfg.max_tries = 3;
	chan_lab lab(cfg);
	lab.send(0, 1, "is anybody there");
	lab.send(0, 1, big);
	const u64 start = lab.now;
	while (!lab.a().count(COOP_CHAN_EV_PEER_DEAD) && lab.now < start + 60000000) {
		lab.pull(0);
		lab.wait(coop_chan_deadline(lab.a().e) - lab.now);
	}
	ASSERT_EQ(lab.a().count(COOP_CHAN_EV_PEER_DEAD), 1u);
	EXPECT_EQ(lab.a().events[0].kind, COOP_CHAN_EV_PEER_DEAD);
	EXPECT_EQ(lab.a().events[0].why, u32{COOP_CHAN_WHY_NO_ANSWER});
	EXPECT_EQ(lab.a().events[0].err, -EHOSTUNREACH);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 2u);
	EXPECT_NEAR(static_cast<double>(lab.now - start), 100e3 + 200e3 + 400e3 + 800e3, 1e3);
	EXPECT_EQ(coop_chan_deadline(lab.a().e), ~u64{0});
	EXPECT_EQ(lab.a().stats().segments_used, 0u);
}

TEST(chan_dead, fell_silent_and_came_back)
{
	coop_chan_cfg cfg = lab_cfg(0);
	cfg.max_tries = 3;
	chan_lab lab(cfg);
	lab.greet();
	lab.send(0, 1, "one");
	while (!lab.a().count(COOP_CHAN_EV_PEER_DEAD)) {
		lab.pull(0);
		lab.wait(coop_chan_deadline(lab.a().e) - lab.now);
	}
	EXPECT_EQ(lab.a().events[0].why, u32{COOP_CHAN_WHY_SILENT});
	EXPECT_EQ(only_error(lab.a()), -ETIMEDOUT);
	lab.a().events.clear();
	lab.send(0, 1, "two");
	lab.run(1000000);
	EXPECT_EQ(only_error(lab.a()), 0);
	// The other side sees a new session of the same peer.
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_PEER_RESTARTED), 1u);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
}

TEST(chan_dead, a_sender_that_vanishes_frees_what_it_began)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, big);
	lab.deliver(lab.pull(0)[0], 1);
	EXPECT_EQ(lab.b().stats().receives_used, 1u);
	lab.pull(1);
	while (coop_chan_deadline(lab.b().e) != ~u64{0}) {
		lab.now = std::max(lab.now, coop_chan_deadline(lab.b().e));
		coop_chan_expire(lab.b().e, lab.now);
		lab.pull(1);
	}
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_ABORTED), 1u);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_PEER_DEAD), 1u);
	EXPECT_EQ(lab.b().stats().receives_used, 0u);
}

// The sender is not silent, but never continues the message.
TEST(chan_dead, a_sender_that_stalls_frees_what_it_began)
{
	coop_chan_cfg liar = lab_cfg(0), victim = lab_cfg(1);
	liar.max_tries = 100;
	victim.max_tries = 3;
	chan_lab lab(liar, victim);
	lab.greet();
	lab.send(0, 1, big);
	lab.deliver(lab.pull(0)[0], 1);
	ASSERT_EQ(lab.b().stats().receives_used, 1u);
	const u64 start = lab.now;
	while (!lab.b().count(COOP_CHAN_EV_PEER_DEAD) && lab.now < start + 60000000) {
		for (const auto &d : lab.pull(0))
			if (d.channel == COOP_CHAN_COMMAND) // it still asks for ACKs
				lab.deliver(d, 1);
		for (const auto &d : lab.pull(1))
			lab.deliver(d, 0);
		lab.wait(1000);
	}
	ASSERT_EQ(lab.b().count(COOP_CHAN_EV_PEER_DEAD), 1u);
	const auto dead =
		std::find_if(lab.b().events.begin(), lab.b().events.end(),
			     [](const auto &e) { return e.kind == COOP_CHAN_EV_PEER_DEAD; });
	EXPECT_EQ(dead->why, u32{COOP_CHAN_WHY_DATA_PATH});
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_ABORTED), 1u);
	EXPECT_EQ(lab.b().stats().receives_used, 0u);
}

TEST(chan_dead, data_path_that_takes_no_datagrams_is_told_apart)
{
	coop_chan_cfg cfg = lab_cfg(0);
	cfg.max_tries = 3;
	chan_lab lab(cfg);
	lab.greet();
	lab.send(0, 1, big);
	const u64 end = lab.now + 600000000;
	u64 chat = 0;
	while (!lab.a().count(COOP_CHAN_EV_PEER_DEAD) && lab.now < end) {
		for (const auto &d : lab.pull(0))
			if (d.channel == COOP_CHAN_COMMAND)
				lab.deliver(d, 1);
		for (const auto &d : lab.pull(1))
			lab.deliver(d, 0);
		lab.wait(1000);
		if (++chat % 20 == 0) // it still answers
			lab.send(0, 1, "tiny");
	}
	ASSERT_EQ(lab.a().count(COOP_CHAN_EV_PEER_DEAD), 1u);
	EXPECT_EQ(lab.a().event(COOP_CHAN_EV_PEER_DEAD)->why, u32{COOP_CHAN_WHY_DATA_PATH});
	EXPECT_STRNE(coop_chan_why_text(COOP_CHAN_WHY_DATA_PATH), "unknown");
}

// Passes nothing longer than `most`; returns the time until the first node declares the other
// dead.
u64 dead_on_narrow_path(chan_lab &lab, std::size_t most, u64 longest)
{
	const u64 start = lab.now;
	while (!lab.a().count(COOP_CHAN_EV_PEER_DEAD) && lab.now - start < longest) {
		for (u32 i = 0; i < 2; i++)
			for (const auto &d : lab.pull(i))
				if (d.bytes.size() <= most)
					lab.deliver(d, 1 - i);
		lab.wait(1000);
	}
	return lab.now - start;
}

TEST(chan_dead, path_that_never_took_a_long_datagram_is_told_early)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, std::string(400, 'm')); // larger than tiny, but passes
	lab.run(1000);
	lab.a().events.clear();
	lab.send(0, 1, big);
	EXPECT_LT(dead_on_narrow_path(lab, 600, 60000000), 4000000u);
	ASSERT_EQ(lab.a().count(COOP_CHAN_EV_PEER_DEAD), 1u);
	EXPECT_EQ(lab.a().event(COOP_CHAN_EV_PEER_DEAD)->why, u32{COOP_CHAN_WHY_DATA_PATH});
	EXPECT_EQ(only_error(lab.a()), -ETIMEDOUT);
	lab.a().events.clear();
	lab.send(0, 1, "tiny");
	EXPECT_EQ(dead_on_narrow_path(lab, 600, 1000000), 1000000u);
	EXPECT_EQ(only_error(lab.a()), 0);
}

TEST(chan_dead, path_that_took_long_datagrams_before_only_loses_some)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, big);
	lab.settle();
	lab.send(0, 1, big);
	EXPECT_EQ(dead_on_narrow_path(lab, 600, 12000000), 12000000u);
	lab.settle();
	lab.wait(1000000);
	lab.settle();
	EXPECT_EQ(lab.a().stats().sent_ok, lab.a().stats().sends);
}

// A peer that has no buffer for a datagram has received it.
TEST(chan_dead, what_is_refused_was_carried)
{
	chan_lab lab;
	lab.greet();
	lab.b().refuse = COOP_CHAN_NO_BUFFER;
	unsigned n = 0;
	for (const u64 end = lab.now + 20000000;
	     !lab.a().count(COOP_CHAN_EV_PEER_DEAD) && lab.now < end;) {
		int err = 0;
		lab.send(0, 1, big, 0, 5, &err); // as many as fit
		for (u32 i = 0; i < 2; i++)
			for (const auto &d : lab.pull(i))
				if (d.bytes.size() <= 600 || ++n % 3)
					lab.deliver(d, 1 - i);
		lab.wait(1000);
	}
	EXPECT_GT(n, 100u);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_PEER_DEAD), 0u);
}

// b hears nothing, but a hears it: b sends too. If a forgot the session before b does, a would
// take b's retransmissions for new messages.
TEST(chan_dead, a_deaf_peer_is_no_narrow_path)
{
	chan_lab lab;
	lab.send(1, 0, "ours"); // b never learns of a's session
	for (const auto &d : lab.pull(1))
		lab.deliver(d, 0);
	lab.pull(0);
	lab.send(0, 1, big);
	const u64 end = lab.now + 60000000;
	while (!lab.b().count(COOP_CHAN_EV_PEER_DEAD) && lab.now < end) {
		for (const auto &d : lab.pull(1))
			lab.deliver(d, 0);
		lab.pull(0);
		lab.wait(1000);
	}
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_PEER_DEAD), 1u);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_PEER_DEAD), 0u);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_DELIVERED), 1u);
}

// A peer that does not answer for a while is slow or away; the path is not narrow.
TEST(chan_dead, silence_is_no_narrow_path)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, big);
	EXPECT_LT(dead_on_narrow_path(lab, 0, 60000000), 60000000u);
	EXPECT_EQ(lab.a().event(COOP_CHAN_EV_PEER_DEAD)->why, u32{COOP_CHAN_WHY_SILENT});
}

TEST(chan_dead, another_version_is_told_at_once)
{
	chan_lab lab;
	lab.send(0, 1, "hello");
	const auto d = lab.pull(0);
	const auto next = forged(d[0], [](auto &p) { p.version = 2; });
	EXPECT_EQ(lab.deliver(next, 0, chan_address(0, lab_command), 1), COOP_CHAN_DONE);
	EXPECT_EQ(lab.b().stats().rx_version, 1u);
	const auto answer = lab.pull(1);
	ASSERT_EQ(answer.size(), 1u);
	EXPECT_EQ(answer[0].p.type, COOP_CHAN_T_VERSION);
	// As a peer with version 2 sees it: a version other than its own.
	const auto seen = forged(answer[0], [](auto &p) { p.version = 2; });
	lab.deliver(seen, 0, chan_address(1, lab_command), 0);
	ASSERT_EQ(lab.a().count(COOP_CHAN_EV_PEER_DEAD), 1u);
	EXPECT_EQ(lab.a().event(COOP_CHAN_EV_PEER_DEAD)->why, u32{COOP_CHAN_WHY_VERSION});
	EXPECT_EQ(only_error(lab.a()), -EPROTONOSUPPORT);
	EXPECT_TRUE(lab.pull(0).empty()); // no answer to an answer
}

TEST(chan_hostile, without_the_key_nothing_is_said_or_kept)
{
	coop_chan_cfg a = lab_cfg(0);
	a.key[3] ^= 1;
	chan_lab lab(a);
	lab.send(0, 1, "hello");
	for (const auto &d : lab.pull(0))
		EXPECT_EQ(lab.deliver(d, 1), COOP_CHAN_DONE);
	EXPECT_EQ(lab.b().stats().rx_mac, 1u);
	EXPECT_TRUE(lab.pull(1).empty());
	EXPECT_EQ(lab.b().stats().peers, 0u);
}

TEST(chan_hostile, strangers_are_bounded_and_may_be_kept_out)
{
	coop_chan_cfg closed = lab_cfg(1);
	closed.flags |= COOP_CHAN_F_NO_ACCEPT;
	chan_lab shut(lab_cfg(0), closed);
	shut.send(0, 1, "hello");
	for (const auto &d : shut.pull(0))
		shut.deliver(d, 1);
	EXPECT_EQ(shut.b().stats().rx_not_accepted, 1u);
	EXPECT_EQ(shut.b().stats().peers, 0u);

	chan_lab lab;
	lab.send(0, 1, "hello");
	const auto d = lab.pull(0);
	for (u32 i = 0; i < 100; ++i) {
		coop_addr src = chan_address(10 + i, lab_command);
		lab.deliver(d[0].bytes, 0, src, 1);
	}
	EXPECT_EQ(lab.b().stats().peers, 8u);
	EXPECT_EQ(lab.b().stats().rx_not_accepted, 92u);
	// An OPEN that names a QP other than its source: we must not send to that QP.
	const auto reflected = forged(d[0], [](auto &p) { p.hello.command_qpn = 0x77; });
	const u64 before = lab.b().stats().rx_address;
	lab.deliver(reflected, 0, chan_address(0, lab_command), 1);
	EXPECT_EQ(lab.b().stats().rx_address, before + 1);
}

TEST(chan_hostile, notes_are_bounded)
{
	coop_chan_cfg b = lab_cfg(1);
	b.quiet_us = ~0u;
	chan_lab lab(lab_cfg(0), b);
	lab.send(0, 1, "hello");
	const auto d = lab.pull(0);
	for (u32 i = 0; i < 200; ++i)
		lab.deliver(d[0], 1);
	EXPECT_EQ(lab.b().stats().notes_dropped, 136u);
	EXPECT_EQ(lab.pull(1).size(), 64u);
}

} // namespace
