// SPDX-License-Identifier: MIT
// posting.cpp - what can arrive in a posted WR, and how it is judged.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "rpc/fetch/posting.h"

namespace
{

constexpr u32 responder_qp = 0x55;

class posting : public testing::Test
{
protected:
	posting() : wr_(COOP_MAX_SEGS), at_(COOP_MAX_SEGS)
	{
		coop_posting_init(&p_, wr_.data(), at_.data(), 0xfffffff0);
		EXPECT_EQ(coop_plan_init(&plan_, 12, 3000, 4096, 4, false),
			  0); // 3000 + 1096 a page
		start(0xff);
		source_.gid[0] = 0xfe;
		source_.qpn = responder_qp;
	}
	void start(u64 want)
	{
		u64 w[COOP_SEG_WORDS] = {want};
		coop_posting_start(&p_, &plan_, w);
	}
	coop_rx rx(u32 wr, u32 imm, u32 payload)
	{
		coop_rx r{};
		r.wr = wr;
		r.imm = imm;
		r.has_imm = true;
		r.byte_len = COOP_GRH + payload;
		r.src_qp = responder_qp;
		r.has_gid = true;
		r.src_gid[0] = 0xfe;
		return r;
	}
	coop_rx_verdict give(const coop_rx &r) { return coop_posting_rx(&p_, &r, 0); }
	coop_rx_verdict give(u32 wr, u32 seg)
	{
		return give(rx(wr, p_.imm + seg, coop_plan_len(&plan_, seg)));
	}
	u64 judge()
	{
		u64 got[COOP_SEG_WORDS] = {};
		moves_.assign(COOP_MAX_SEGS, {});
		foreign_ = displaced_ = 0;
		moves_.resize(coop_posting_judge(&p_, &source_, got, moves_.data(), &foreign_,
						 &displaced_));
		return got[0];
	}
	std::vector<coop_wr> wr_;
	std::vector<u16> at_;
	coop_posting p_;
	coop_plan plan_;
	coop_addr source_{};
	std::vector<coop_move> moves_;
	u64 foreign_, displaced_;
};

TEST_F(posting, in_order)
{
	for (u32 i = 0; i < 8; ++i) {
		EXPECT_FALSE(coop_posting_quiet(&p_));
		EXPECT_EQ(give(i, i), COOP_RX_KEPT);
	}
	EXPECT_TRUE(coop_posting_quiet(&p_));
	EXPECT_EQ(judge(), 0xffu);
	EXPECT_TRUE(moves_.empty());
}

TEST_F(posting, every_generation_but_this_one_is_stale)
{
	const u32 step = 1u << plan_.seg_bits;
	EXPECT_EQ(give(rx(0, p_.imm - step, 3000)), COOP_RX_STALE); // past
	EXPECT_EQ(give(rx(1, p_.imm + step, 3000)), COOP_RX_STALE); // future
	EXPECT_EQ(give(rx(2, p_.imm ^ 0x80000000, 3000)), COOP_RX_STALE);
	EXPECT_EQ(judge(), 0u);
}

TEST_F(posting, no_immediate_data_is_shared_by_attempts_of_any_size)
{
	u32 end = p_.imm + (1u << plan_.seg_bits);
	for (u32 pages : {1u, 64u, 3u, 1u, 17u}) {
		ASSERT_EQ(coop_plan_init(&plan_, 12, 4096, 4096, pages, false), 0);
		start(coop_plan_pages(&plan_, 0));
		EXPECT_LE(p_.imm - end, 64u) << "runs follow each other, rounded up";
		EXPECT_EQ(p_.imm & ((1u << plan_.seg_bits) - 1), 0u);
		end = p_.imm + (1u << plan_.seg_bits);
	}
}

TEST_F(posting, lengths_are_exact)
{
	EXPECT_EQ(give(rx(0, p_.imm + 0, 2999)), COOP_RX_BAD);
	EXPECT_EQ(give(rx(1, p_.imm + 1, 3000)), COOP_RX_BAD); // has 1096
	EXPECT_EQ(give(rx(2, p_.imm + 2, 3004)), COOP_RX_BAD);
	EXPECT_EQ(give(rx(3, p_.imm + 3, 0)), COOP_RX_PAD);
	coop_rx bare = rx(4, p_.imm + 4, 3000);
	bare.has_imm = false;
	EXPECT_EQ(give(bare), COOP_RX_BAD);
	EXPECT_EQ(judge(), 0u) << "a pad carries no data either";
}

TEST_F(posting, duplicates_count_once)
{
	EXPECT_EQ(give(0, 0), COOP_RX_KEPT);
	EXPECT_EQ(give(1, 0), COOP_RX_DUP);
	EXPECT_EQ(give(2, 2), COOP_RX_KEPT);
	EXPECT_EQ(judge(), 0b101u);
	EXPECT_TRUE(moves_.empty());
}

TEST_F(posting, displaced_segments_are_moves_unless_their_end_fell_into_spill)
{
	EXPECT_EQ(give(0, 2), COOP_RX_KEPT); // long into long
	EXPECT_EQ(give(1, 4), COOP_RX_KEPT); // long into short: lost
	EXPECT_EQ(give(2, 3), COOP_RX_KEPT); // short into long
	EXPECT_EQ(judge(), 0b1100u);
	ASSERT_EQ(moves_.size(), 2u);
	EXPECT_EQ(moves_[0].seg, 2);
	EXPECT_EQ(moves_[0].into, 0);
	EXPECT_EQ(moves_[1].seg, 3);
	EXPECT_EQ(moves_[1].into, 2);
	EXPECT_EQ(displaced_, 3u);
}

TEST_F(posting, unwanted_and_unknown_segments_are_bad)
{
	start(0b1111);
	EXPECT_EQ(p_.n_wr, 4u);
	EXPECT_EQ(give(0, 4), COOP_RX_BAD);                    // exists, not requested
	EXPECT_EQ(give(rx(9, p_.imm, 3000)), COOP_RX_IGNORED); // no such WR
	EXPECT_EQ(give(0, 0), COOP_RX_IGNORED);                // completed already
	ASSERT_EQ(coop_plan_init(&plan_, 12, 4096, 4096, 3, false), 0);
	start(0b111);
	EXPECT_EQ(give(rx(0, p_.imm + 3, 4096)), COOP_RX_BAD); // fits the bits but not the plan
}

TEST_F(posting, only_the_source_that_the_commit_names_counts)
{
	coop_rx forged = rx(1, p_.imm + 1, 1096);
	forged.src_qp = 0x66;
	coop_rx elsewhere = rx(2, p_.imm + 2, 3000);
	elsewhere.src_gid[15] = 1;
	EXPECT_EQ(give(0, 0), COOP_RX_KEPT);
	EXPECT_EQ(give(forged), COOP_RX_KEPT); // noted; judged later
	EXPECT_EQ(give(elsewhere), COOP_RX_KEPT);
	EXPECT_EQ(judge(), 1u);
	EXPECT_EQ(foreign_, 2u);
}

TEST_F(posting, senders_beyond_the_bound_are_dropped)
{
	for (u32 i = 0; i < COOP_SOURCES; ++i) {
		coop_rx r = rx(i, p_.imm + 7, 1096);
		r.imm = p_.imm + i;
		r.byte_len = COOP_GRH + coop_plan_len(&plan_, i);
		r.src_qp = 100 + i;
		EXPECT_EQ(give(r), COOP_RX_KEPT);
	}
	EXPECT_EQ(give(4, 4), COOP_RX_FOREIGN);
}

TEST_F(posting, untouched_wrs_serve_another_generation)
{
	const u32 old = p_.imm;
	u64 want[COOP_SEG_WORDS] = {0xff}, other[COOP_SEG_WORDS] = {0x7f};
	EXPECT_TRUE(coop_posting_reusable(&p_, &plan_, want));
	EXPECT_FALSE(coop_posting_reusable(&p_, &plan_, other));
	coop_posting_renew(&p_);
	EXPECT_NE(p_.imm, old);
	EXPECT_EQ(give(rx(0, old, 3000)), COOP_RX_STALE);
	EXPECT_FALSE(coop_posting_reusable(&p_, &plan_, want));
}

TEST_F(posting, flushes_never_count_more_than_was_posted)
{
	EXPECT_EQ(give(0, 0), COOP_RX_KEPT);
	coop_posting_flush(&p_, 3);
	EXPECT_FALSE(coop_posting_quiet(&p_));
	coop_posting_flush(&p_, 1000);
	EXPECT_TRUE(coop_posting_quiet(&p_));
	EXPECT_EQ(p_.n_done, 8u);
}

} // namespace
