// SPDX-License-Identifier: MIT
// messages.cpp - the life of a message: who owns its memory, receivers that are not ready or
// refuse, cancellation, probes, seals.
#include <gtest/gtest.h>

#include "tests/unit/chan/lab.hpp"

namespace
{

using namespace coop::test;

const std::string big(5000, 'B');

int ended(lab_node &n)
{
	EXPECT_EQ(n.count(COOP_CHAN_EV_SENT), 1u);
	const coop_chan_ev *ev = n.event(COOP_CHAN_EV_SENT);
	return ev ? ev->err : 1;
}

TEST(chan_message, sizes)
{
	chan_lab lab;
	lab.greet();
	const u32 tiny = coop_chan_tiny(lab.a().e), unit = coop_chan_unit(lab.a().e);
	EXPECT_EQ(tiny, 512u - 120);
	EXPECT_EQ(unit, 1024u - 120);
	for (const u32 size :
	     {0u, 1u, tiny, tiny + 1, unit, unit + 1, 2 * unit, 2 * unit + 1, 1u << 20}) {
		std::string text(size, '\0');
		for (u32 i = 0; i < size; ++i)
			text[i] = static_cast<char>(i * 7 + size);
		lab.send(0, 1, text);
		lab.run(100000);
		ASSERT_EQ(ended(lab.a()), 0) << size;
		ASSERT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u) << size;
		const coop_chan_ev *ev = lab.b().event(COOP_CHAN_EV_DELIVERED);
		EXPECT_EQ(ev->length, size);
		EXPECT_EQ(lab.b().placed.at(ev->cookie), text);
		lab.a().events.clear();
		lab.b().events.clear();
	}
	int err = 0;
	EXPECT_EQ(lab.send(0, 1, std::string((1u << 20) + 1, 'x'), 0, 0, &err), 0u);
	EXPECT_EQ(err, -EMSGSIZE);
	EXPECT_EQ(lab.a().stats().retransmits, 0u);
}

TEST(chan_message, memory_is_the_networks_until_every_datagram_is_back)
{
	chan_lab lab;
	lab.greet();
	lab.a().keep = true;
	lab.send(0, 1, "mine");
	const auto d = lab.pull(0);
	lab.wait(200000);
	const auto again = lab.pull(0); // the network now holds it twice
	ASSERT_EQ(again.size(), 1u);
	lab.deliver(again[0], 1);
	lab.run(1000);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 0u);
	coop_chan_tx_done(lab.a().e, d[0].channel, d[0].id, 0, lab.now);
	lab.take_events(0);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 0u);
	coop_chan_tx_done(lab.a().e, again[0].channel, again[0].id, -EIO, lab.now);
	lab.take_events(0);
	EXPECT_EQ(ended(lab.a()), 0);
	EXPECT_EQ(lab.a().stats().tx_errors, 1u);
}

TEST(chan_message, sends_are_bounded)
{
	chan_lab lab;
	for (u32 i = 0; i < 64; ++i)
		EXPECT_NE(lab.send(0, 1, "x"), 0u);
	int err = 0;
	EXPECT_EQ(lab.send(0, 1, "x", 0, 0, &err), 0u);
	EXPECT_EQ(err, -EAGAIN);
	EXPECT_EQ(lab.send(0, 1, "x", 64, 0, &err), 0u);
	EXPECT_EQ(err, -EINVAL);
	lab.run(1000000);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 64u);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 64u);
}

TEST(chan_refusal, no_buffer_is_asked_again_until_there_is_one)
{
	chan_lab lab;
	lab.greet();
	lab.b().refuse = COOP_CHAN_NO_BUFFER;
	lab.send(0, 1, big);
	lab.settle();
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 0u);
	EXPECT_GT(lab.b().stats().rnr_tx, 0u);
	const u64 asked = lab.b().asked;
	EXPECT_TRUE(lab.pull(0).empty()); // it pauses
	lab.wait(1400);
	const auto knock = lab.pull(0);
	ASSERT_EQ(knock.size(), 1u); // then it tries one segment, not all
	lab.deliver(knock[0], 1);
	EXPECT_EQ(lab.b().asked, asked + 1);
	lab.b().refuse = 0;
	lab.run(20000);
	EXPECT_EQ(ended(lab.a()), 0);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
	EXPECT_EQ(lab.a().stats().timeouts, 0u);
}

TEST(chan_refusal, others_go_on_while_one_waits)
{
	chan_lab lab;
	lab.greet();
	lab.b().refuse = COOP_CHAN_NO_BUFFER;
	lab.send(0, 1, "nobody waits for me");
	lab.settle();
	lab.b().refuse = 0;
	lab.send(0, 1, big);
	lab.run(500); // less than the pause
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 1u);
	lab.run(5000);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 2u);
}

TEST(chan_refusal, what_is_ignored_is_repeated_and_uses_no_try)
{
	coop_chan_cfg cfg = lab_cfg(0);
	cfg.rnr_tries = 2;
	chan_lab lab(cfg);
	lab.greet();
	lab.b().ignore = true;
	lab.send(0, 1, big);
	lab.run(200000); // a peer that says nothing for longer counts as dead
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 0u);
	EXPECT_GT(lab.b().asked, 2u);
	lab.b().ignore = false;
	lab.run(2000000);
	EXPECT_EQ(ended(lab.a()), 0);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
}

TEST(chan_refusal, never_ready_ends_with_enobufs)
{
	coop_chan_cfg cfg = lab_cfg(0);
	cfg.rnr_tries = 5;
	chan_lab lab(cfg);
	lab.greet();
	lab.b().refuse = COOP_CHAN_NO_BUFFER;
	lab.send(0, 1, big);
	lab.run(1000000);
	EXPECT_EQ(ended(lab.a()), -ENOBUFS);
	EXPECT_EQ(lab.a().stats().segments_used, 0u); // the numbers are void and acknowledged
	lab.b().refuse = 0;
	lab.a().events.clear();
	lab.send(0, 1, "after it");
	lab.run(1000);
	EXPECT_EQ(ended(lab.a()), 0);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
}

TEST(chan_refusal, for_good_ends_at_once_with_its_code)
{
	for (const auto &[why, err] : {std::pair{COOP_CHAN_NO_LISTENER, -ECONNREFUSED},
				       std::pair{COOP_CHAN_TOO_LONG, -EMSGSIZE}}) {
		chan_lab lab;
		lab.greet();
		lab.b().refuse = why;
		lab.send(0, 1, big);
		lab.settle();
		EXPECT_EQ(ended(lab.a()), err);
		lab.run(100000);
		EXPECT_EQ(lab.a().stats().segments_used, 0u);
	}
}

TEST(chan_refusal, a_receiver_without_receives_is_not_ready)
{
	coop_chan_cfg cfg = lab_cfg(1);
	cfg.max_receives = 1;
	chan_lab lab(lab_cfg(0), cfg);
	lab.greet();
	lab.send(0, 1, big);
	const auto d = lab.pull(0);
	lab.deliver(d[0], 1); // takes the only receive
	lab.send(0, 1, "second");
	for (const auto &each : lab.pull(0))
		lab.deliver(each, 1);
	EXPECT_EQ(lab.b().asked, 2u); // for the greeting and big, not for the second
	EXPECT_EQ(lab.b().stats().rnr_tx, 1u);
	for (u32 i = 1; i < d.size(); ++i)
		lab.deliver(d[i], 1);
	lab.run(20000);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 2u);
}

// A peer that begins many messages and ends none must leave places to other peers.
TEST(chan_refusal, a_peer_leaves_places_to_others)
{
	coop_chan_cfg cfg = lab_cfg(1);
	cfg.max_receives = 4;
	chan_lab lab(lab_cfg(0), cfg);
	lab.greet();
	lab.node.emplace_back(std::make_unique<lab_node>(2, lab_cfg(2), lab.now));
	lab.now += 10000;
	const u32 all = cfg.max_receives;
	const std::string two_chunks(1500, 'T');
	std::vector<lab_datagram> begun;
	for (u32 i = 0; i < all + 1; ++i) {
		lab.send(0, 1, two_chunks);
		for (const auto &d : lab.pull(0))
			if (d.p.type == COOP_CHAN_T_CHUNK && d.p.offset == 0)
				begun.push_back(d);
	}
	ASSERT_GE(begun.size(), all);
	for (const auto &d : begun)
		lab.deliver(d, 1);
	EXPECT_EQ(lab.b().stats().receives_used, all / 2);
	EXPECT_GT(lab.b().stats().rnr_tx, 0u);
	const u32 asked = lab.b().asked;
	lab.send(2, 1, two_chunks);
	for (const auto &d : lab.pull(2))
		lab.deliver(d, 1);
	EXPECT_EQ(lab.b().asked, asked + 1);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
	// The waiting messages arrive when the begun ones have ended.
	for (u32 i = 0; i < 50 && lab.b().count(COOP_CHAN_EV_DELIVERED) < all + 2; ++i)
		lab.run(100000);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), all + 2);
	EXPECT_EQ(lab.b().stats().receives_used, 0u);
}

TEST(chan_refusal, unanswered_place_counts_as_refused)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, "one");
	const auto d = lab.pull(0);
	coop_chan_dgram rx{};
	rx.buf = d[0].bytes.data();
	rx.len = static_cast<u32>(d[0].bytes.size());
	rx.src = chan_address(0, lab_command);
	coop_chan_in in;
	ASSERT_EQ(coop_chan_rx(lab.b().e, &rx, lab.now, &in), COOP_CHAN_PLACE);
	ASSERT_EQ(coop_chan_rx(lab.b().e, &rx, lab.now, &in), COOP_CHAN_PLACE);
	EXPECT_EQ(lab.b().stats().unanswered, 1u);
	EXPECT_EQ(lab.b().stats().rnr_tx, 1u);
}

TEST(chan_cancel, of_a_queued_message_sends_nothing)
{
	chan_lab lab;
	lab.greet();
	const u32 id = lab.send(0, 1, big);
	EXPECT_EQ(coop_chan_cancel(lab.a().e, id, lab.now), 0);
	EXPECT_EQ(coop_chan_cancel(lab.a().e, id, lab.now), -ENOENT);
	EXPECT_TRUE(lab.pull(0).empty());
	EXPECT_EQ(ended(lab.a()), -ECANCELED);
	EXPECT_EQ(lab.a().stats().sends_used, 0u);
}

TEST(chan_cancel, under_way_aborts_the_receive)
{
	chan_lab lab;
	lab.greet();
	const u32 id = lab.send(0, 1, big);
	const auto d = lab.pull(0);
	lab.deliver(d[1], 1);
	EXPECT_EQ(coop_chan_cancel(lab.a().e, id, lab.now), 0);
	lab.run(10000);
	EXPECT_EQ(ended(lab.a()), -ECANCELED);
	ASSERT_EQ(lab.b().count(COOP_CHAN_EV_ABORTED), 1u);
	EXPECT_EQ(lab.b().event(COOP_CHAN_EV_ABORTED)->err, -ECANCELED);
	EXPECT_EQ(lab.b().stats().receives_used, 0u);
	EXPECT_EQ(lab.a().stats().segments_used, 0u);
	// Its late chunks have numbers already received: they open nothing.
	for (const auto &each : d)
		EXPECT_EQ(lab.deliver(each, 1), COOP_CHAN_DONE);
	EXPECT_EQ(lab.b().stats().receives_used, 0u);
}

TEST(chan_cancel, a_late_chunk_between_voids_opens_nothing)
{
	chan_lab lab;
	lab.greet();
	const u32 id = lab.send(0, 1, big);
	const auto d = lab.pull(0);
	coop_chan_cancel(lab.a().e, id, lab.now);
	const auto voids = lab.pull(0);
	ASSERT_EQ(voids.size(), 6u);
	lab.deliver(voids[2], 1);
	EXPECT_EQ(lab.deliver(d[1], 1), COOP_CHAN_DONE);
	lab.deliver(voids[0], 1);
	EXPECT_EQ(lab.deliver(d[4], 1), COOP_CHAN_DONE);
	EXPECT_EQ(lab.b().asked, 1u); // for the greeting
	for (const auto &each : voids)
		lab.deliver(each, 1);
	lab.run(1000);
	EXPECT_EQ(lab.a().stats().segments_used, 0u);
	EXPECT_EQ(lab.b().stats().reorder_used, 0u);
}

TEST(chan_cancel, waits_for_the_network)
{
	chan_lab lab;
	lab.greet();
	lab.a().keep = true;
	const u32 id = lab.send(0, 1, "one");
	const auto d = lab.pull(0);
	coop_chan_cancel(lab.a().e, id, lab.now);
	lab.take_events(0);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 0u);
	coop_chan_tx_done(lab.a().e, d[0].channel, d[0].id, 0, lab.now);
	lab.take_events(0);
	EXPECT_EQ(ended(lab.a()), -ECANCELED);
}

TEST(chan_give_up, of_a_half_message_is_told_to_its_sender)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, big);
	const auto d = lab.pull(0);
	ASSERT_GT(d.size(), 3u);
	lab.deliver(d[1], 1);
	EXPECT_EQ(coop_chan_give_up(lab.b().e, lab.b().receive, lab.now), 0);
	lab.take_events(1);
	ASSERT_EQ(lab.b().count(COOP_CHAN_EV_ABORTED), 1u);
	EXPECT_EQ(lab.b().event(COOP_CHAN_EV_ABORTED)->err, -ECANCELED);
	EXPECT_EQ(coop_chan_give_up(lab.b().e, lab.b().receive, lab.now), -ENOENT);
	EXPECT_EQ(coop_chan_give_up(lab.b().e, 1u << 30, lab.now), -ENOENT);
	// Its chunks have no place, and none asks for another.
	const u32 asked = lab.b().asked;
	EXPECT_EQ(lab.deliver(d[0], 1), COOP_CHAN_DONE);
	EXPECT_EQ(lab.deliver(d[2], 1), COOP_CHAN_DONE);
	lab.run(2000000);
	EXPECT_EQ(ended(lab.a()), -ENOBUFS);
	EXPECT_EQ(lab.b().asked, asked);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_ABORTED), 1u);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 0u);
	EXPECT_EQ(lab.b().stats().receives_used, 0u);
	EXPECT_EQ(lab.a().stats().segments_used, 0u);
	for (const auto &each : d)
		EXPECT_EQ(lab.deliver(each, 1), COOP_CHAN_DONE);
	lab.a().events.clear();
	lab.send(0, 1, big);
	lab.run(1000000);
	EXPECT_EQ(ended(lab.a()), 0);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
}

TEST(chan_give_up, is_heard_though_every_word_of_it_is_lost_once)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, big);
	auto d = lab.pull(0);
	lab.deliver(d[0], 1);
	coop_chan_give_up(lab.b().e, lab.b().receive, lab.now);
	for (std::size_t i = 1; i < d.size(); ++i)
		lab.deliver(d[i], 1);
	lab.pull(1); // all lost
	lab.run(2000000);
	EXPECT_EQ(ended(lab.a()), -ENOBUFS);
	EXPECT_EQ(lab.b().stats().receives_used, 0u);
}

TEST(chan_give_up, of_what_has_arrived_is_a_lie)
{
	chan_lab lab;
	lab.greet();
	lab.b().refuse = COOP_CHAN_NO_BUFFER;
	lab.send(0, 1, "waits");
	const auto first = lab.pull(0);
	lab.deliver(first[0], 1);
	const auto rnr = lab.pull(1);
	ASSERT_EQ(rnr.size(), 1u);
	lab.b().refuse = 0;
	lab.send(0, 1, "one");
	lab.send(0, 1, "two");
	const auto d = lab.pull(0);
	ASSERT_EQ(d.size(), 2u);
	for (const auto &each : d)
		lab.deliver(each, 1);
	lab.wait(1000);
	for (const auto &ack : lab.pull(1))
		if (ack.p.type == COOP_CHAN_T_ACK)
			lab.deliver(ack, 0);
	lab.take_events(0);
	ASSERT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 2u);
	for (const auto &each : d)
		for (const u8 why : {COOP_CHAN_GIVEN_UP, COOP_CHAN_NO_BUFFER, COOP_CHAN_TOO_LONG})
			lab.deliver(forged(rnr[0],
					   [&](auto &p) {
						   p.seq = each.p.seq;
						   p.first = each.p.seq;
						   p.reason = why;
					   }),
				    0, chan_address(1, lab_command), 0);
	lab.take_events(0);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 2u);
	coop_chan_close(lab.a().e, lab.open(0, 1), lab.now);
	lab.take_events(0);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 3u);
	EXPECT_EQ(lab.a().stats().segments_used, 0u);
}

TEST(chan_give_up, ends_with_the_session_too)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, big);
	const auto d = lab.pull(0);
	lab.deliver(d[0], 1);
	coop_chan_give_up(lab.b().e, lab.b().receive, lab.now);
	coop_chan_close(lab.b().e, lab.open(1, 0), lab.now); // its event waits
	lab.take_events(1);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_ABORTED), 1u);
	EXPECT_EQ(lab.b().stats().receives_used, 0u);
	lab.run(2000000);
	lab.send(0, 1, big);
	const auto again = lab.pull(0);
	lab.deliver(again[0], 1);
	for (u32 i = 0; i < 3 && !lab.b().stats().receives_used; ++i) {
		lab.settle(); // b may challenge a first
		lab.send(0, 1, big);
		lab.deliver(lab.pull(0)[0], 1);
	}
	lab.b().events.clear();
	ASSERT_EQ(lab.b().stats().receives_used, 1u);
	EXPECT_EQ(coop_chan_give_up(lab.b().e, lab.b().receive, lab.now), 0);
	lab.take_events(1); // here the event is out
	coop_chan_close(lab.b().e, lab.open(1, 0), lab.now);
	lab.take_events(1);
	EXPECT_EQ(lab.b().stats().receives_used, 0u);
}

TEST(chan_probe, is_acknowledged_and_not_delivered)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, std::string(coop_chan_unit(lab.a().e), 'p'), COOP_CHAN_PROBE);
	const auto d = lab.pull(0);
	ASSERT_EQ(d.size(), 1u);
	EXPECT_EQ(d[0].channel, u32{COOP_CHAN_DATA});
	EXPECT_EQ(d[0].bytes.size(), 1024u - 120 + 64); // as for a message of this size
	EXPECT_EQ(lab.deliver(d[0], 1), COOP_CHAN_DONE);
	lab.settle();
	EXPECT_EQ(ended(lab.a()), 0);
	EXPECT_EQ(lab.b().asked, 1u);
	int err = 0;
	lab.send(0, 1, std::string(coop_chan_unit(lab.a().e) + 1, 'p'), COOP_CHAN_PROBE, 0, &err);
	EXPECT_EQ(err, -EMSGSIZE);
}

TEST(chan_probe, small_messages_go_by_data_when_told_to)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, "x", COOP_CHAN_BY_DATA);
	const auto d = lab.pull(0);
	ASSERT_EQ(d.size(), 1u);
	EXPECT_EQ(d[0].channel, u32{COOP_CHAN_DATA});
	EXPECT_EQ(d[0].to_qpn, lab_data);
}

// Takes the messages of a in the order in which they begin, by the first byte of each.
std::string beginnings(chan_lab &lab)
{
	std::string order;
	lab.run(2000000);
	for (const coop_chan_ev &ev : lab.b().events)
		if (ev.kind == COOP_CHAN_EV_DELIVERED)
			order += lab.b().placed.at(ev.cookie)[0];
	return order;
}

// On both channels: behind the one that has begun, before those that have not.
TEST(chan_urgent, overtakes_what_has_not_begun)
{
	for (const u32 length : {10u, 20000u}) {
		chan_lab lab;
		lab.greet();
		for (char c = 'a'; c < 'h'; c++)
			lab.send(0, 1, std::string(length, c));
		lab.send(0, 1, std::string(length, 'X'), COOP_CHAN_URGENT);
		lab.send(0, 1, std::string(length, 'Y'), COOP_CHAN_URGENT);
		EXPECT_EQ(beginnings(lab), "XYabcdefg") << length;
		EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 9u);
	}
	// One that has begun goes on, in order.
	chan_lab lab;
	lab.greet();
	for (char c = 'a'; c < 'd'; c++)
		lab.send(0, 1, std::string(100000, c));
	for (const auto &d : lab.pull(0))
		lab.deliver(d, 1);
	lab.send(0, 1, std::string(20000, 'X'), COOP_CHAN_URGENT);
	EXPECT_EQ(beginnings(lab), "aXbc");
}

// Others wait for 16 of them at most, then one of them is next.
TEST(chan_urgent, leaves_turns_to_others)
{
	for (const u32 length : {10u, 5000u}) {
		chan_lab lab;
		lab.greet();
		lab.send(0, 1, std::string(length, 'a'));
		lab.send(0, 1, std::string(length, 'b'));
		for (int i = 0; i < 40; i++)
			lab.send(0, 1, std::string(length, 'X'), COOP_CHAN_URGENT);
		const std::string order = beginnings(lab);
		ASSERT_EQ(order.size(), 42u);
		EXPECT_EQ(order.find('a'), 16u);
		EXPECT_EQ(order.find('b'), 33u);
	}
}

TEST(chan_seal, damaged_payload_is_noticed_only_when_sealed)
{
	for (const bool sealed : {false, true}) {
		coop_chan_cfg a = lab_cfg(0), b = lab_cfg(1);
		if (sealed) {
			a.flags |= COOP_CHAN_F_SEAL;
			b.flags |= COOP_CHAN_F_SEAL;
		}
		chan_lab lab(a, b);
		lab.greet();
		lab.send(0, 1, "payload");
		auto d = lab.pull(0);
		d[0].bytes.back() ^= 1;
		EXPECT_EQ(lab.deliver(d[0], 1), sealed ? COOP_CHAN_DONE : COOP_CHAN_PLACE);
		EXPECT_EQ(lab.b().stats().rx_mac, sealed ? 1u : 0u);
	}
}

TEST(chan_seal, one_who_asks_for_seals_takes_nothing_without)
{
	coop_chan_cfg b = lab_cfg(1);
	b.flags |= COOP_CHAN_F_SEAL;
	chan_lab lab(lab_cfg(0), b);
	lab.send(0, 1, "payload");
	for (const auto &d : lab.pull(0))
		EXPECT_EQ(lab.deliver(d, 1), COOP_CHAN_DONE);
	EXPECT_EQ(lab.b().stats().rx_unsealed, 1u);
}

TEST(chan_window, four_thousand_segments_and_no_more)
{
	coop_chan_cfg cfg = lab_cfg(0);
	cfg.flags |= COOP_CHAN_F_TEST_NO_CWND;
	cfg.credits[0] = cfg.credits[1] = 1u << 16;
	cfg.max_sends = 5000;
	cfg.max_segments = 3 * 4096; // one peer may hold half of them
	chan_lab lab(cfg);
	lab.greet();
	for (u32 i = 0; i < 4500; ++i)
		lab.send(0, 1, "x");
	const auto d = lab.pull(0);
	EXPECT_EQ(d.size(), 4096u);
	EXPECT_TRUE(d.back().p.flags & COOP_CHAN_W_ACK_NOW); // the window is full
	for (const auto &each : d)
		lab.deliver(each, 1);
	lab.run(100000);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 4500u);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 4500u);
}

TEST(chan_window, tiny_messages_leave_room_for_a_large_one)
{
	coop_chan_cfg cfg = lab_cfg(0);
	cfg.flags |= COOP_CHAN_F_TEST_NO_CWND;
	cfg.credits[0] = cfg.credits[1] = 1u << 16;
	cfg.max_sends = 5000;
	chan_lab lab(cfg);
	lab.greet();
	for (u32 i = 0; i < 3500; ++i)
		lab.send(0, 1, "x");
	EXPECT_EQ(lab.pull(0).size(), 3500u);
	lab.send(0, 1, std::string(1u << 20, 'L')); // 1160 segments: must wait
	for (u32 i = 0; i < 500; ++i)
		lab.send(0, 1, "x");
	EXPECT_TRUE(lab.pull(0).empty());
}

} // namespace
