// SPDX-License-Identifier: MIT
// pools.cpp - the pools of all peers: what one peer may hold of them, and that nobody who waits for
// one is forgotten.
#include <algorithm>
#include <gtest/gtest.h>

#include "tests/unit/chan/lab.hpp"

namespace
{

using namespace coop::test;

coop_chan_peer_info info(chan_lab &lab, u32 to)
{
	coop_chan_peer_info i{};
	EXPECT_EQ(coop_chan_peer_get(lab.a().e, lab.open(0, to, lab.data_known), &i), 0);
	return i;
}

// ---- segments ----------------------------------------------------------------------

// Node 1 takes everything except one segment, so node 0 frees no block.
class hoarder
{
public:
	hoarder() : lab(sender(), lab_cfg(1))
	{
		lab.greet();
		lab.a().payload.clear();
	}

	static coop_chan_cfg sender()
	{
		coop_chan_cfg cfg = lab_cfg(0);
		cfg.window = 1024;
		cfg.max_length = 300000;
		cfg.max_segments = 64 * blocks;
		cfg.max_tries = 125; // the one that is withheld is not what this is about
		return cfg;
	}

	// Sends so much that only the window and the pool are the limit.
	void fill()
	{
		for (unsigned i = 0; i < 8; i++)
			lab.send(0, 1, std::string(200000, 'x'));
		const u64 end = lab.now + 100000;
		while (lab.now < end) {
			pass();
			lab.wait(100);
		}
	}
	void pass()
	{
		for (u32 i = 0; i < 2; i++)
			for (const auto &d : lab.pull(i)) {
				if (i == 0 && !withheld && d.p.type == COOP_CHAN_T_CHUNK)
					withheld = d.p.seq;
				if (i == 0 && (d.to_gid != 1 || (hold && d.p.seq == withheld)))
					continue;
				lab.deliver(d, 1 - i);
			}
	}

	static constexpr u32 blocks = 20;
	chan_lab lab;
	u32 withheld = 0;
	bool hold = true;
};

TEST(chan_pools, a_peer_leaves_as_many_segments_as_it_holds)
{
	hoarder h;
	h.fill();
	const u32 held = info(h.lab, 1).window;
	EXPECT_GT(held, 64 * hoarder::blocks / 3);             // alone, it may have half
	EXPECT_LE(held, 64 * (hoarder::blocks / 2 + 1) + 222); // and the last of its messages
	// Another one finds room at once.
	h.lab.send(0, 2, std::string(300000, 'y'));
	h.pass();
	EXPECT_EQ(info(h.lab, 2).window, (300000 + 903) / 904u);
	// And the first goes on when it frees its own.
	h.hold = false;
	const u64 end = h.lab.now + 10000000;
	while (h.lab.a().count(COOP_CHAN_EV_SENT) < 8 && h.lab.now < end) {
		h.pass();
		h.lab.wait(100);
	}
	EXPECT_EQ(h.lab.a().count(COOP_CHAN_EV_SENT), 8u);
	EXPECT_EQ(h.lab.b().count(COOP_CHAN_EV_DELIVERED), 8u);
	EXPECT_EQ(info(h.lab, 1).window, 0u);
}

// Forges what node 1 would say of a chunk that it cannot take.
class refuser
{
public:
	explicit refuser(chan_lab &l, lab_datagram any) : lab(l), model(std::move(any)) {}

	void refuse(const lab_datagram &d)
	{
		const auto rnr = forged(model, [&](auto &p) {
			p.type = COOP_CHAN_T_RNR;
			p.flags = 0;
			p.ack = p.echo = 0;
			p.held = 0;
			p.sack = 0;
			p.n_map = 0;
			p.seq = d.p.seq;
			p.first = d.p.first;
			p.reason = COOP_CHAN_NO_BUFFER;
		});
		lab.deliver(rnr, COOP_CHAN_COMMAND, lab.source(1, COOP_CHAN_COMMAND), 0);
	}
	// Everything, until the message is over.
	void refuse_all()
	{
		const u64 end = lab.now + 300000000;
		while (!lab.a().count(COOP_CHAN_EV_SENT) && lab.now < end) {
			for (const auto &d : lab.pull(0))
				if (d.p.type == COOP_CHAN_T_CHUNK)
					refuse(d);
			const u64 at = coop_chan_deadline(lab.a().e);
			lab.wait(std::max(at, lab.now + 1) - lab.now);
		}
	}
	void expect_dead()
	{
		ASSERT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 1u);
		EXPECT_EQ(lab.a().event(COOP_CHAN_EV_SENT)->err, -ETIMEDOUT);
		ASSERT_EQ(lab.a().count(COOP_CHAN_EV_PEER_DEAD), 1u);
		EXPECT_EQ(lab.a().event(COOP_CHAN_EV_PEER_DEAD)->why, u32{COOP_CHAN_WHY_DATA_PATH});
		EXPECT_EQ(lab.a().stats().segments_used, 0u);
	}

	chan_lab &lab;
	lab_datagram model;
};

// A receiver always has room for the next segment in order of a message that it has placed.
TEST(chan_pools, who_never_takes_the_next_segment_loses_its_session)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, std::string(2000, 'x'));
	const auto chunks = lab.pull(0);
	ASSERT_EQ(chunks.size(), 3u);
	lab.deliver(chunks[0], 1);
	lab.now += 100;
	coop_chan_expire(lab.b().e, lab.now);
	const auto ack = lab.pull(1);
	ASSERT_EQ(ack.size(), 1u);
	lab.deliver(ack[0], 0);
	refuser r(lab, ack[0]);
	r.refuse(chunks[1]);
	r.refuse(chunks[2]);
	r.refuse_all();
	r.expect_dead();
}

// However many segments wait for a retransmission: the next in order is the first of them.
TEST(chan_pools, who_takes_no_segment_of_many_loses_its_session_as_soon)
{
	chan_lab lab;
	lab.greet();
	lab.send(0, 1, std::string(500000, 'x'));
	std::vector<lab_datagram> sent, model;
	for (;;) {
		sent = lab.pull(0);
		if (sent.size() >= 100)
			break;
		ASSERT_FALSE(sent.empty());
		for (const auto &d : sent)
			lab.deliver(d, 1);
		lab.now += 100;
		coop_chan_expire(lab.b().e, lab.now);
		for (const auto &d : model = lab.pull(1))
			lab.deliver(d, 0);
	}
	ASSERT_FALSE(model.empty());
	refuser r(lab, model[0]);
	for (const auto &d : sent)
		r.refuse(d);
	r.refuse_all();
	r.expect_dead();
	EXPECT_LT(lab.a().stats().timeouts, 2 * 16 + 3u);
}

// A receiver without a bitmap refuses segments out of order, however often.
TEST(chan_pools, who_refuses_segments_out_of_order_keeps_its_session)
{
	coop_chan_cfg b = lab_cfg(1);
	b.max_reorder = 0;
	chan_lab lab(lab_cfg(0), b);
	lab.greet();
	lab.send(0, 1, std::string(30000, 'x'));
	const u64 end = lab.now + 60000000;
	u32 n = 0;
	while (!lab.a().count(COOP_CHAN_EV_SENT) && lab.now < end) {
		for (u32 i = 0; i < 2; i++)
			for (const auto &d : lab.pull(i))
				if (i || n++ % 3) // the first of three is lost
					lab.deliver(d, 1 - i);
		lab.wait(1000);
	}
	EXPECT_GT(lab.a().stats().rnr_rx + lab.b().stats().rx_no_reorder, 20u);
	ASSERT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 1u);
	EXPECT_EQ(lab.a().event(COOP_CHAN_EV_SENT)->err, 0);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
}

// ---- those who wait ----------------------------------------------------------------

TEST(chan_pools, who_cannot_ask_for_a_data_qp_waits_for_the_pool)
{
	coop_chan_cfg a = lab_cfg(0);
	a.max_active = 1;
	chan_lab lab(a);
	lab.send(0, 2, "nobody answers");
	for (const auto &d : lab.pull(0))
		EXPECT_EQ(d.to_gid, 2u);
	ASSERT_EQ(lab.a().stats().active_used, 1u);
	lab.data_known = false;
	lab.send(0, 1, std::string(5000, 'x'));
	EXPECT_TRUE(lab.pull(0).empty());
	lab.data_known = true;
	EXPECT_EQ(coop_chan_close(lab.a().e, lab.open(0, 2), lab.now), 0);
	lab.a().events.clear();
	lab.take_events(0);
	lab.a().events.clear();
	lab.run(10000);
	EXPECT_EQ(lab.b().count(COOP_CHAN_EV_DELIVERED), 1u);
	ASSERT_EQ(lab.a().count(COOP_CHAN_EV_SENT), 1u);
	EXPECT_EQ(lab.a().event(COOP_CHAN_EV_SENT)->err, 0);
}

} // namespace
