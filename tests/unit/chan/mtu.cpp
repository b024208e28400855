// SPDX-License-Identifier: MIT
// mtu.cpp - a peer whose datagrams are shorter than ours. Its first answer tells, and what was cut
// too long for it until then is cut again.
#include <algorithm>
#include <gtest/gtest.h>
#include <set>

#include "tests/unit/chan/lab.hpp"

namespace
{

using namespace coop::test;

coop_chan_cfg with_mtu(u32 node, u32 command, u32 data)
{
	coop_chan_cfg cfg = lab_cfg(node);
	cfg.mtu[0] = command;
	cfg.mtu[1] = data;
	cfg.max_length = 200000;
	return cfg;
}

// As a device: a datagram that is longer than the buffers is lost.
void pass(chan_lab &lab)
{
	for (bool more = true; more;) {
		more = false;
		for (u32 i = 0; i < 2; i++)
			for (const auto &d : lab.pull(i)) {
				if (d.bytes.size() <= lab.node[1 - i]->cfg.mtu[d.channel])
					lab.deliver(d, 1 - i);
				more = true;
			}
	}
}

// Until both are silent.
void run(chan_lab &lab)
{
	for (;;) {
		pass(lab);
		const u64 at =
			std::min(coop_chan_deadline(lab.a().e), coop_chan_deadline(lab.b().e));
		if (at == ~u64{0})
			return;
		lab.wait(at > lab.now ? at - lab.now : 0);
	}
}

std::string text(std::size_t length)
{
	std::string s(length, 0);
	for (std::size_t i = 0; i < length; i++)
		s[i] = static_cast<char>('a' + i % 23);
	return s;
}

// Every send of node 0 was delivered once and whole.
void expect_all_arrived(chan_lab &lab)
{
	lab_node &a = lab.a(), &b = lab.b();
	EXPECT_EQ(a.count(COOP_CHAN_EV_PEER_DEAD), 0u);
	EXPECT_EQ(a.count(COOP_CHAN_EV_SENT), a.payload.size());
	EXPECT_EQ(b.count(COOP_CHAN_EV_DELIVERED), a.payload.size());
	std::multiset<std::string> sent, came;
	for (const auto &[cookie, s] : a.payload)
		sent.insert(s);
	for (const auto &ev : a.events) {
		if (ev.kind == COOP_CHAN_EV_SENT) {
			EXPECT_EQ(ev.err, 0);
		}
	}
	for (const auto &ev : b.events)
		if (ev.kind == COOP_CHAN_EV_DELIVERED)
			came.insert(b.placed.at(ev.cookie));
	EXPECT_EQ(came, sent);
}

TEST(chan_mtu, the_first_message_is_cut_again_for_a_narrower_peer)
{
	for (const std::size_t length : {1000u, 3900u, 4000u, 5000u, 50000u}) {
		chan_lab lab(with_mtu(0, 768, 4096), with_mtu(1, 768, 1024));
		lab.send(0, 1, text(length));
		run(lab);
		expect_all_arrived(lab);
		EXPECT_EQ(lab.a().stats().segments_used, 0u);
	}
}

TEST(chan_mtu, whatever_was_under_way_is)
{
	for (const bool data_known : {true, false}) {
		chan_lab lab(with_mtu(0, 768, 4096), with_mtu(1, 256, 512));
		lab.data_known = data_known;
		for (const std::size_t length : {0u, 100u, 600u, 640u, 700u, 10000u, 100000u, 20u})
			lab.send(0, 1, text(length));
		run(lab);
		expect_all_arrived(lab);
	}
}

// The last chunk is short, so it arrives; its message is placed, and aborted when the others turn
// out to be too long.
TEST(chan_mtu, a_message_whose_end_arrived_is_delivered_once)
{
	chan_lab lab(with_mtu(0, 768, 4096), with_mtu(1, 768, 1024));
	const u32 unit = coop_chan_unit(lab.a().e);
	lab.send(0, 1, text(3 * unit + 100));
	run(lab);
	expect_all_arrived(lab);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_ABORTED), 1u);
}

// What may have arrived is not sent under other numbers: it would be delivered twice.
TEST(chan_mtu, what_fits_is_not_cut_again)
{
	chan_lab lab(with_mtu(0, 768, 4096), with_mtu(1, 768, 1024));
	// The longest message in a datagram that b takes; the unit of b is shorter.
	const u32 most = 1024 - coop_chan_header_len(COOP_CHAN_T_MESSAGE, true, 0);
	ASSERT_GT(most, coop_chan_unit(lab.b().e));
	lab.send(0, 1, text(most));
	const auto first = lab.pull(0);
	ASSERT_EQ(first.size(), 1u);
	ASSERT_EQ(first[0].bytes.size(), 1024u);
	lab.send(1, 0, "hello"); // b's OPEN comes before its ACK
	const auto hello = lab.pull(1);
	lab.deliver(first[0], 1);
	for (const auto &d : hello)
		lab.deliver(d, 0);
	run(lab);
	EXPECT_EQ(lab.a().stats().tx_voids, 0u);
	expect_all_arrived(lab);
}

// The receiver must drop what is longer than it says: the sender relies on that.
TEST(chan_mtu, a_longer_datagram_than_the_own_mtu_is_dropped)
{
	chan_lab lab(with_mtu(0, 768, 4096), with_mtu(1, 768, 1024));
	lab.send(0, 1, text(3000));
	const auto first = lab.pull(0);
	ASSERT_EQ(first.size(), 1u);
	EXPECT_EQ(lab.deliver(first[0], 1), COOP_CHAN_DONE);
	EXPECT_EQ(lab.b().stats().rx_too_long, 1u);
	EXPECT_EQ(lab.b().stats().peers, 0u);
}

TEST(chan_mtu, is_known_in_the_next_session)
{
	chan_lab lab(with_mtu(0, 768, 4096), with_mtu(1, 256, 1024));
	lab.send(0, 1, "hello");
	run(lab);
	coop_chan_close(lab.b().e, lab.open(1, 0), lab.now);
	run(lab);
	ASSERT_EQ(lab.a().count(COOP_CHAN_EV_PEER_RESTARTED), 1u);
	for (auto &n : lab.node)
		n->events.clear();
	lab.a().payload.clear();
	lab.now += 10000; // past the quiet time
	lab.send(0, 1, text(10000));
	lab.send(0, 1, text(600));
	run(lab);
	expect_all_arrived(lab);
	EXPECT_EQ(lab.a().stats().retransmits, 0u);
}

// It learns, too, that the peer takes more now.
TEST(chan_mtu, of_a_peer_that_restarts_with_more_is_used)
{
	chan_lab lab(with_mtu(0, 768, 4096), with_mtu(1, 768, 1024));
	lab.send(0, 1, "hello");
	run(lab);
	lab.b().cfg.mtu[1] = 4096;
	lab.restart(1);
	lab.send(1, 0, "hello");
	run(lab);
	lab.a().payload.clear();
	lab.a().events.clear();
	lab.send(0, 1, text(3900));
	const auto d = lab.pull(0);
	ASSERT_EQ(d.size(), 1u);
	EXPECT_EQ(d[0].p.type, COOP_CHAN_T_MESSAGE);
}

// The first answer also says how much its window holds.
TEST(chan_mtu, a_message_too_long_for_the_narrower_peer_says_so)
{
	coop_chan_cfg a = with_mtu(0, 768, 4096), b = with_mtu(1, 256, 256);
	a.window = 256;
	a.max_length = 400000;
	a.max_segments = 8192;
	b.window = 256;
	b.max_length = 10000;
	chan_lab lab(a, b);
	lab.send(0, 1, text(400000));
	run(lab);
	ASSERT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 1u);
	EXPECT_EQ(lab.a().event(COOP_CHAN_EV_SENT)->err, -EMSGSIZE);
	EXPECT_EQ(lab.a().stats().segments_used, 0u);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 0u);
}

TEST(chan_mtu, a_probe_of_the_own_length_says_so)
{
	chan_lab lab(with_mtu(0, 768, 4096), with_mtu(1, 768, 1024));
	lab.send(0, 1, text(coop_chan_unit(lab.a().e)), COOP_CHAN_PROBE | COOP_CHAN_BY_DATA);
	run(lab);
	ASSERT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 1u);
	EXPECT_EQ(lab.a().event(COOP_CHAN_EV_SENT)->err, -EMSGSIZE);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_PEER_DEAD), 0u);
}

TEST(chan_mtu, one_that_the_host_cancelled_stays_cancelled)
{
	chan_lab lab(with_mtu(0, 768, 4096), with_mtu(1, 768, 1024));
	lab.a().keep = true;
	const u32 id = lab.send(0, 1, text(50000));
	const auto out = lab.pull(0);
	coop_chan_cancel(lab.a().e, id, lab.now);
	for (const auto &d : out)
		coop_chan_tx_done(lab.a().e, d.channel, d.id, 0, lab.now);
	lab.a().keep = false;
	run(lab);
	ASSERT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 1u);
	EXPECT_EQ(lab.a().event(COOP_CHAN_EV_SENT)->err, -ECANCELED);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 0u);
}

} // namespace
