// SPDX-License-Identifier: MIT
// acts.cpp - each act of rpc/chan with past, in-order, duplicate, future and out-of-window
// datagrams: segments and ACKs.
#include <gtest/gtest.h>

#include "tests/unit/chan/lab.hpp"

namespace
{

using namespace coop::test;

const std::string big(5000, 'B'); // six chunks of 1024 - 120

TEST(chan_segment, in_order_is_delivered_and_acknowledged_within_50_us)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, "one");
	const auto d = lab.pull(0);
	ASSERT_EQ(d.size(), 1u);
	EXPECT_EQ(d[0].channel, u32{COOP_CHAN_COMMAND});
	EXPECT_EQ(lab.deliver(d[0], 1), COOP_CHAN_PLACE);
	const coop_chan_ev *ev = lab.b().event(COOP_CHAN_EV_DELIVERED);
	ASSERT_TRUE(ev);
	EXPECT_EQ(lab.b().placed.at(ev->cookie), "one");
	EXPECT_EQ(ev->tag, 5u);
	EXPECT_TRUE(lab.pull(1).empty()); // the ACK is delayed
	const u64 before = lab.now;
	EXPECT_LE(coop_chan_deadline(lab.b().e), before + 56); // to the next tick of 8 us
	lab.wait(56);
	const auto ack = lab.pull(1);
	ASSERT_EQ(ack.size(), 1u);
	EXPECT_EQ(ack[0].p.type, COOP_CHAN_T_ACK);
	EXPECT_EQ(ack[0].p.ack, d[0].p.seq + 1);
	lab.deliver(ack[0], 0);
	ASSERT_TRUE(lab.a().event(COOP_CHAN_EV_SENT));
	EXPECT_EQ(lab.a().event(COOP_CHAN_EV_SENT)->err, 0);
	EXPECT_EQ(lab.a().stats().segments_used, 0u);
}

TEST(chan_segment, duplicate_is_dropped_and_acknowledged_at_once)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, "one");
	const auto d = lab.pull(0);
	lab.deliver(d[0], 1);
	lab.wait(100);
	lab.pull(1); // this ACK is lost
	EXPECT_EQ(lab.deliver(d[0], 1), COOP_CHAN_DONE);
	EXPECT_EQ(lab.b().stats().rx_duplicate, 1u);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
	const auto ack = lab.pull(1);
	ASSERT_EQ(ack.size(), 1u);
	EXPECT_EQ(ack[0].p.ack, d[0].p.seq + 1);
}

TEST(chan_segment, of_the_future_is_delivered_and_told_selectively)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, "one");
	lab.send(0, 1, "two");
	const auto d = lab.pull(0);
	ASSERT_EQ(d.size(), 2u);
	EXPECT_EQ(lab.deliver(d[1], 1), COOP_CHAN_PLACE);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
	EXPECT_EQ(lab.b().stats().reorder_used, 1u);
	EXPECT_EQ(lab.deliver(d[1], 1), COOP_CHAN_DONE); // and again: a duplicate
	const auto ack = lab.pull(1);
	ASSERT_EQ(ack.size(), 1u);
	EXPECT_EQ(ack[0].p.ack, d[0].p.seq);
	EXPECT_EQ(ack[0].p.sack, 1u); // ack itself is missing, the one after it is here
	lab.deliver(ack[0], 0);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 1u); // the second message
	lab.deliver(d[0], 1);
	EXPECT_EQ(lab.b().stats().reorder_used, 0u);
	lab.run(1000);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 2u);
	EXPECT_EQ(lab.a().stats().retransmits, 0u);
}

TEST(chan_segment, past_the_window_is_dropped_and_acknowledged_at_once)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, "one");
	const auto d = lab.pull(0);
	for (const u32 ahead : {4096u, 5000u, 0x7fffffffu}) {
		const auto far = forged(d[0], [&](auto &p) { p.seq += ahead; });
		const u64 before = lab.b().stats().rx_out_of_window;
		EXPECT_EQ(lab.deliver(far, 0, chan_address(0, lab_command), 1), COOP_CHAN_DONE);
		EXPECT_EQ(lab.b().stats().rx_out_of_window, before + 1);
		EXPECT_EQ(lab.pull(1).size(), 1u);
	}
	const auto last = forged(d[0], [&](auto &p) { p.seq += 4095; });
	EXPECT_EQ(lab.deliver(last, 0, chan_address(0, lab_command), 1), COOP_CHAN_PLACE);
	// The ACK carries the whole bitmap that fits a datagram of this channel.
	lab.wait(60);
	const auto ack = lab.pull(1);
	ASSERT_EQ(ack.size(), 1u);
	EXPECT_EQ(ack[0].p.n_map, (512u - 64) / 8);
}

TEST(chan_segment, last_chunk_forces_an_ack)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, big);
	const auto d = lab.pull(0);
	ASSERT_EQ(d.size(), 6u);
	for (u32 i = 0; i < 6; ++i) {
		EXPECT_EQ(d[i].channel, u32{COOP_CHAN_DATA});
		EXPECT_EQ(d[i].p.first, d[0].p.seq);
		EXPECT_EQ(d[i].p.offset, i * 904);
		EXPECT_TRUE(lab.pull(1).empty()) << i;
		EXPECT_EQ(lab.deliver(d[i], 1), i ? COOP_CHAN_COPY : COOP_CHAN_PLACE);
	}
	EXPECT_EQ(lab.pull(1).size(), 1u);
	EXPECT_EQ(lab.b().placed.at(lab.b().event(COOP_CHAN_EV_DELIVERED)->cookie), big);
}

TEST(chan_segment, chunks_in_any_order_make_the_message)
{
	chan_lab lab;
	lab.greet();
	std::string text;
	for (u32 i = 0; i < 5000; ++i)
		text += static_cast<char>('a' + i % 23);
	lab.send(0, 1, text);
	const auto d = lab.pull(0);
	for (const u32 i : {5u, 0u, 3u, 1u, 4u})
		lab.deliver(d[i], 1);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 0u);
	lab.deliver(d[2], 1);
	ASSERT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
	EXPECT_EQ(lab.b().asked, 2u); // for the greeting, and once for this
	EXPECT_EQ(lab.b().placed.at(lab.b().event(COOP_CHAN_EV_DELIVERED)->cookie), text);
}

TEST(chan_segment, chunk_that_is_not_what_its_number_says_is_dropped)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, big);
	const auto d = lab.pull(0);
	lab.deliver(d[0], 1);
	const std::vector<void (*)(coop_chan_packet &)> lies = {
		[](auto &p) { p.offset += 8; },
		[](auto &p) { p.offset = 0; },
		[](auto &p) { p.offset = 0xfffffff0u; },
		[](auto &p) { p.length = 1000; },
		[](auto &p) { p.length = 0; },
		[](auto &p) { p.unit = 0; },
		[](auto &p) { p.unit = 8; },
		[](auto &p) { p.first -= 1; },
		[](auto &p) { p.first += 2; },
		[](auto &p) { p.length = 0xffffffffu; },
		[](auto &p) { p.tag ^= 1; },
		[](auto &p) { p.length += 904; },
	};
	u64 bad = 0;
	for (const auto lie : lies) {
		EXPECT_EQ(lab.deliver(forged(d[1], lie), 1, chan_address(0, lab_data), 1),
			  COOP_CHAN_DONE);
		EXPECT_EQ(lab.b().stats().rx_bad_chunk, ++bad);
	}
	// More or fewer bytes than its header says.
	for (const int wrong : {-1, 1}) {
		const auto lie = forged(d[1], [&](auto &p) { p.payload_len += wrong; });
		auto bytes = lie;
		bytes.resize(lie.size() + wrong);
		EXPECT_EQ(lab.deliver(bytes, 1, chan_address(0, lab_data), 1), COOP_CHAN_DONE);
	}
	EXPECT_EQ(lab.b().stats().rx_malformed, 2u);
	for (u32 i = 1; i < 6; ++i)
		lab.deliver(d[i], 1);
	EXPECT_EQ(lab.b().placed.at(lab.b().event(COOP_CHAN_EV_DELIVERED)->cookie), big);
}

TEST(chan_segment, overlapping_chunks_do_not_make_a_message)
{
	// The same place under another number: the arithmetic gives another place.
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, big);
	const auto d = lab.pull(0);
	lab.deliver(d[0], 1);
	for (u32 i = 1; i < 6; ++i) {
		const auto copy = forged(d[0], [&](auto &p) { p.seq += i; });
		lab.deliver(copy, 1, chan_address(0, lab_data), 1);
	}
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 0u);
	EXPECT_EQ(lab.b().stats().rx_bad_chunk, 5u);
}

TEST(chan_ack, rides_on_what_is_sent_anyway)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, "question");
	const auto d = lab.pull(0);
	lab.deliver(d[0], 1);
	lab.send(1, 0, "answer");
	const auto r = lab.pull(1);
	ASSERT_EQ(r.size(), 1u);
	EXPECT_EQ(r[0].p.type, COOP_CHAN_T_MESSAGE);
	EXPECT_EQ(r[0].p.ack, d[0].p.seq + 1);
	lab.wait(1000);
	EXPECT_TRUE(lab.pull(1).empty()); // no ACK is owed
	lab.deliver(r[0], 0);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 1u);
	EXPECT_GE(lab.b().stats().tx_piggybacked, 1u);
}

namespace
{

constexpr unsigned replies = 4; // in a row, then an ACK waits for the next one

// Node 0 asks, node 1 answers.
struct conversation {
	chan_lab lab;

	conversation() { lab.greet(); }
	void ask()
	{
		lab.send(0, 1, "question");
		for (const auto &d : lab.pull(0))
			lab.deliver(d, 1);
	}
	void answer()
	{
		lab.send(1, 0, "answer");
		for (const auto &d : lab.pull(1))
			lab.deliver(d, 0);
		lab.wait(100);
		for (const auto &d : lab.pull(0)) // its ACK
			lab.deliver(d, 1);
	}
	// What node 1 sends of itself.
	std::size_t sent() { return lab.pull(1).size(); }
	void settle(unsigned times = replies, unsigned us = 300)
	{
		for (unsigned i = 0; i < times; i++) {
			ask();
			lab.wait(us);
			(void)sent();
			answer();
		}
	}
};

} // namespace

TEST(chan_ack, waits_for_a_reply_where_replies_come)
{
	conversation c;
	c.ask();
	c.lab.wait(60);
	EXPECT_EQ(c.sent(), 1u);
	c.answer();
	c.settle();
	const u64 acks = c.lab.b().stats().tx_acks;
	for (int i = 0; i < 10; i++) {
		c.ask();
		c.lab.wait(300);
		EXPECT_EQ(c.sent(), 0u);
		c.answer();
	}
	EXPECT_EQ(c.lab.b().stats().tx_acks, acks);
	// One that waits in vain ends it.
	c.ask();
	c.lab.wait(1590);
	EXPECT_EQ(c.sent(), 0u);
	c.lab.wait(20);
	EXPECT_EQ(c.sent(), 1u);
	c.ask();
	c.lab.wait(60);
	EXPECT_EQ(c.sent(), 1u);
}

TEST(chan_ack, waits_for_no_reply_that_comes_too_late)
{
	conversation c;
	c.settle(replies - 1);
	c.settle(1, 1700);
	c.settle(replies - 1);
	c.ask();
	c.lab.wait(60);
	EXPECT_EQ(c.sent(), 1u);
}

TEST(chan_ack, of_a_gap_waits_for_no_reply)
{
	conversation c;
	c.settle();
	c.lab.send(0, 1, "lost");
	EXPECT_EQ(c.lab.pull(0).size(), 1u);
	c.ask();
	c.lab.wait(60);
	EXPECT_EQ(c.sent(), 1u);
}

TEST(chan_ack, of_a_gap_takes_along_one_that_waits_for_a_reply)
{
	conversation c;
	c.settle();
	c.ask();
	c.lab.send(0, 1, "lost");
	EXPECT_EQ(c.lab.pull(0).size(), 1u);
	c.ask();
	c.lab.wait(60);
	EXPECT_EQ(c.sent(), 1u);
}

// The sender knows of the gap, and soon takes what was only overtaken for lost.
TEST(chan_ack, of_a_gap_that_closes_waits_for_no_reply)
{
	conversation c;
	c.settle();
	c.lab.send(0, 1, "overtaken");
	const auto overtaken = c.lab.pull(0);
	ASSERT_EQ(overtaken.size(), 1u);
	c.ask();
	c.answer(); // carries word of the gap
	c.lab.deliver(overtaken[0], 1);
	c.lab.wait(60);
	const auto ack = c.lab.pull(1);
	ASSERT_EQ(ack.size(), 1u);
	c.lab.deliver(ack[0], 0);
	c.lab.wait(1000);
	EXPECT_EQ(c.lab.a().stats().retransmits_fast, 0u);
}

TEST(chan_ack, old_and_doubled_ones_change_nothing)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, "one");
	auto d = lab.pull(0);
	lab.deliver(d[0], 1);
	lab.wait(60);
	const auto first = lab.pull(1);
	lab.send(0, 1, "two");
	d = lab.pull(0);
	lab.deliver(d[0], 1);
	lab.wait(60);
	const auto second = lab.pull(1);
	ASSERT_EQ(first.size() + second.size(), 2u);
	lab.deliver(second[0], 0);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 2u);
	lab.deliver(first[0], 0);
	lab.deliver(second[0], 0);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 2u);
	EXPECT_EQ(lab.a().stats().rx_bad_ack, 0u);
}

TEST(chan_ack, of_what_was_never_sent_is_a_lie)
{
	chan_lab lab;
	lab.greet();
	lab.send(1, 0, "carrier");
	const auto carrier = lab.pull(1);
	ASSERT_EQ(carrier.size(), 1u);
	const auto lie = [&](auto &&how) {
		const u64 before = lab.a().stats().rx_bad_ack;
		lab.deliver(forged(carrier[0], how), 0, chan_address(1, lab_command), 0);
		EXPECT_EQ(lab.a().stats().rx_bad_ack, before + 1);
		EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 0u);
	};
	lie([](auto &p) { p.ack += 1; });
	lie([](auto &p) { p.ack += 4096; });
	lie([](auto &p) { p.sack = 1; });
	// Reserved but not sent: more chunks than the congestion window allows.
	lab.send(0, 1, std::string(50000, 'x'));
	const auto d = lab.pull(0);
	ASSERT_LT(d.size(), 20u);
	lie([](auto &p) { p.sack = 1ull << 40; });
	lie([](auto &p) { p.ack += 40; });
}

TEST(chan_ack, small_overtaking_large_causes_no_retransmission)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, big);
	const auto large = lab.pull(0);
	std::vector<lab_datagram> small;
	for (u32 i = 0; i < 3; ++i) {
		lab.send(0, 1, "tiny");
		for (auto &d : lab.pull(0)) {
			EXPECT_EQ(d.channel, u32{COOP_CHAN_COMMAND});
			small.push_back(d);
		}
	}
	ASSERT_EQ(small.size(), 3u);
	// All small messages arrive; their ACKs arrive twice.
	for (const auto &d : small) {
		lab.deliver(d, 1);
		lab.wait(500);
		for (const auto &ack : lab.pull(1)) {
			lab.deliver(ack, 0);
			lab.deliver(ack, 0);
		}
		EXPECT_TRUE(lab.pull(0).empty());
	}
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 3u);
	EXPECT_EQ(lab.a().stats().retransmits, 0u);
	for (const auto &d : large)
		lab.deliver(d, 1);
	lab.run(1000);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 4u);
	EXPECT_EQ(lab.a().stats().retransmits, 0u);
}

TEST(chan_ack, a_later_one_of_the_same_channel_tells_of_a_loss)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, big);
	const auto d = lab.pull(0);
	for (u32 i = 1; i < 6; ++i)
		lab.deliver(d[i], 1); // the first is lost
	for (const auto &ack : lab.pull(1))
		lab.deliver(ack, 0);
	EXPECT_TRUE(lab.pull(0).empty()); // it may only be late
	lab.wait(1000);                   // much less than the minimum timeout
	const auto again = lab.pull(0);
	ASSERT_EQ(again.size(), 1u);
	EXPECT_EQ(again[0].p.seq, d[0].p.seq);
	EXPECT_EQ(lab.a().stats().retransmits_fast, 1u);
	EXPECT_EQ(lab.a().stats().timeouts, 0u);
	EXPECT_EQ(lab.a().stats().cwnd_cuts, 1u);
	lab.deliver(again[0], 1);
	lab.run(1000);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 1u);
}

TEST(chan_ack, overtaken_on_a_path_grown_slow_is_not_lost)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, big);
	const auto d = lab.pull(0);
	lab.wait(2000); // many round trips so far, but less than the minimum timeout
	lab.deliver(d[1], 1);
	lab.wait(100);
	for (const auto &ack : lab.pull(1))
		lab.deliver(ack, 0);
	ASSERT_EQ(lab.a().stats().retransmits_fast, 0u);
	lab.deliver(d[0], 1);
	lab.wait(100);
	for (const auto &ack : lab.pull(1))
		lab.deliver(ack, 0);
	for (std::size_t i = 2; i < d.size(); ++i)
		lab.deliver(d[i], 1);
	lab.run(1000);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 1u);
	EXPECT_EQ(lab.a().stats().retransmits, 0u);
}

TEST(chan_ack, lost_on_a_path_grown_slow_is_no_timeout)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, big);
	const auto d = lab.pull(0);
	lab.wait(3700); // plus a share for reordering: above the minimum timeout
	for (u32 i = 1; i < 6; ++i)
		lab.deliver(d[i], 1); // the first is lost
	lab.wait(100);
	for (const auto &ack : lab.pull(1))
		lab.deliver(ack, 0);
	for (u32 i = 0; i < 10; ++i)
		lab.wait(100);
	EXPECT_EQ(lab.a().stats().retransmits_fast, 1u);
	EXPECT_EQ(lab.a().stats().timeouts, 0u);
	// Fast again: a segment that others overtake is soon declared lost.
	lab.run(1000000);
	lab.greet();
	lab.send(0, 1, big);
	const auto e = lab.pull(0);
	ASSERT_GT(e.size(), 3u);
	lab.deliver(e[1], 1);
	lab.wait(100);
	for (const auto &ack : lab.pull(1))
		lab.deliver(ack, 0);
	lab.deliver(e[2], 1);
	lab.wait(1500);
	EXPECT_EQ(lab.a().stats().retransmits_fast, 2u);
}

TEST(chan_time, first_timeout_after_100_ms_then_as_measured)
{
	chan_lab lab;
	lab.send(0, 1, "one");
	const u64 start = lab.now;
	ASSERT_EQ(lab.pull(0).size(), 1u); // lost
	EXPECT_LE(coop_chan_deadline(lab.a().e), start + 100000);
	lab.wait(99000);
	EXPECT_TRUE(lab.pull(0).empty());
	lab.wait(1008);
	auto again = lab.pull(0);
	ASSERT_EQ(again.size(), 1u);
	EXPECT_EQ(again[0].channel, u32{COOP_CHAN_DATA}); // never on the command channel
	lab.deliver(again[0], 1);
	lab.now += 300;
	for (const auto &ack : lab.pull(1))
		lab.deliver(ack, 0);
	ASSERT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 1u);
	coop_chan_peer_info info;
	ASSERT_EQ(coop_chan_peer_get(lab.a().e, lab.open(0, 1), &info), 0);
	EXPECT_EQ(info.rto_us, 4000u); // the minimum
	EXPECT_LT(info.srtt_us, 400u); // of the second transmission, not the first
}

TEST(chan_time, timeouts_back_off)
{
	chan_lab lab;
	lab.send(0, 1, "one");
	std::vector<u64> at;
	u64 start = lab.now;
	lab.pull(0);
	for (u32 i = 0; i < 6; ++i) {
		do {
			lab.wait(coop_chan_deadline(lab.a().e) - lab.now);
		} while (lab.pull(0).empty());
		at.push_back((lab.now - start) / 1000);
		start = lab.now;
	}
	EXPECT_EQ(at, (std::vector<u64>{100, 200, 400, 800, 1000, 1000}));
}

TEST(chan_time, what_left_in_one_burst_times_out_once)
{
	coop_chan_cfg cfg = lab_cfg(0);
	cfg.max_tries = 4;
	chan_lab lab(cfg);
	lab.greet();
	constexpr u32 burst = 8;
	for (u32 i = 0; i < burst; ++i) { // all lost
		lab.send(0, 1, "tiny");
		lab.pull(0);
		lab.wait(100);
	}
	const u64 all_expired = lab.now + u64{2} * 4000 + 200;
	while (lab.now < all_expired) {
		lab.wait(50);
		lab.pull(0);
	}
	EXPECT_GE(lab.a().stats().retransmits_timeout, burst);
	EXPECT_EQ(lab.a().stats().timeouts, 1u);
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_PEER_DEAD), 0u);
	for (const u64 end = lab.now + 10000000;
	     !lab.a().count(COOP_CHAN_EV_PEER_DEAD) && lab.now < end;) {
		lab.wait(500);
		lab.pull(0);
	}
	EXPECT_EQ(lab.a().count(COOP_CHAN_EV_PEER_DEAD), 1u);
	EXPECT_EQ(lab.a().stats().timeouts, cfg.max_tries + 1);
}

// 32-bit stamps wrap after 71 minutes: beyond half of that, past looks like future.
TEST(chan_time, a_loss_counts_however_long_ago_the_one_before_was)
{
	chan_lab lab;
	for (u32 round = 1; round <= 4; ++round) {
		lab.greet();
		lab.send(0, 1, big);
		const auto d = lab.pull(0);
		for (u32 i = 1; i < d.size(); ++i)
			lab.deliver(d[i], 1);
		for (const auto &ack : lab.pull(1))
			lab.deliver(ack, 0);
		lab.wait(1000);
		EXPECT_EQ(lab.a().stats().cwnd_cuts, round);
		lab.run(100000);
		EXPECT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 1u);
		lab.now += u64{1} << 30; // 18 minutes
		lab.now += u64{round} << 30;
	}
}

TEST(chan_time, a_timeout_that_was_none_is_undone)
{
	for (const bool lost : {false, true}) {
		chan_lab lab;
		lab.greet();
		coop_chan_peer_info info;
		for (u32 i = 0; i < 4; ++i) {
			lab.send(0, 1, big + big);
			lab.run(1000);
		}
		lab.send(0, 1, big + big);
		const auto d = lab.pull(0);
		ASSERT_EQ(coop_chan_peer_get(lab.a().e, lab.open(0, 1), &info), 0);
		const u32 before = info.cwnd;
		ASSERT_GT(before, 12u);
		lab.wait(50000); // everything is delayed, or lost
		ASSERT_GE(lab.a().stats().timeouts, 1u);
		const auto again = lab.pull(0);
		for (const auto &each : lost ? again : d)
			lab.deliver(each, 1);
		for (const auto &ack : lab.pull(1))
			lab.deliver(ack, 0);
		ASSERT_EQ(coop_chan_peer_get(lab.a().e, lab.open(0, 1), &info), 0);
		EXPECT_EQ(lab.a().stats().timeouts_undone, lost ? 0u : 1u);
		if (lost)
			EXPECT_LT(info.cwnd, before);
		else
			EXPECT_GE(info.cwnd, before);
	}
}

TEST(chan_order, retransmissions_then_sends_then_acks)
{
	coop_chan_cfg cfg = lab_cfg(0);
	chan_lab lab(cfg);
	lab.greet();
	lab.send(0, 1, "lost");
	const auto lost = lab.pull(0);
	lab.send(1, 0, "first");
	for (const auto &d : lab.pull(1))
		lab.deliver(d, 0); // we owe an ACK ...
	lab.wait(200000);          // ... and a retransmission
	lab.send(0, 1, "new");
	const auto d = lab.pull(0);
	ASSERT_EQ(d.size(), 2u);
	EXPECT_EQ(d[0].p.seq, lost[0].p.seq);
	EXPECT_EQ(d[0].channel, u32{COOP_CHAN_DATA});
	EXPECT_EQ(d[1].p.type, COOP_CHAN_T_MESSAGE);
	EXPECT_EQ(d[1].channel, u32{COOP_CHAN_COMMAND});
	// The ACK rode on the retransmission: no datagram of its own.
	EXPECT_TRUE(d[0].p.flags & COOP_CHAN_W_ACK);
}

TEST(chan_order, credits_bound_what_the_network_holds)
{
	coop_chan_cfg cfg = lab_cfg(0);
	cfg.credits[0] = 8;
	cfg.credits[1] = 5;
	cfg.flags |= COOP_CHAN_F_TEST_NO_CWND;
	chan_lab lab(cfg);
	lab.greet();
	lab.a().keep = true;
	for (u32 i = 0; i < 20; ++i)
		lab.send(0, 1, "tiny");
	lab.send(0, 1, big);
	auto d = lab.pull(0);
	u32 n[2] = {};
	for (const auto &each : d)
		++n[each.channel];
	EXPECT_EQ(n[0], 6u); // a quarter is reserved for ACKs
	EXPECT_EQ(n[1], 5u);
	EXPECT_TRUE(lab.pull(0).empty());
	// An ACK still gets its credit.
	lab.send(1, 0, "hello");
	for (const auto &each : lab.pull(1))
		lab.deliver(each, 0);
	lab.wait(60);
	const auto ack = lab.pull(0);
	ASSERT_EQ(ack.size(), 1u);
	EXPECT_EQ(ack[0].p.type, COOP_CHAN_T_ACK);
	coop_chan_tx_done(lab.a().e, 0, d[0].id, 0, lab.now);
	EXPECT_EQ(lab.pull(0).size(), 0u); // refills the reserve
	coop_chan_tx_done(lab.a().e, 0, ack[0].id, 0, lab.now);
	EXPECT_EQ(lab.pull(0).size(), 1u);
}

} // namespace
