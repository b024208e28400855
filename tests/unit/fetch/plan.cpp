// SPDX-License-Identifier: MIT
// plan.cpp - every page size, MTU and layout against a byte-by-byte reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "rpc/fetch/plan.h"

namespace
{

struct place {
	u32 seg, at;
};

// Where byte b of the pages (one after the other) travels, computed byte by byte.
std::vector<place> naive(u32 page, u32 mtu, u32 pages, bool packed)
{
	std::vector<place> out;
	u32 seg = 0, at = 0;
	for (u32 b = 0; b < page * pages; ++b) {
		out.push_back({seg, at});
		++at;
		const bool page_ends = (b + 1) % page == 0;
		if (at == mtu || (page_ends && !packed)) {
			++seg;
			at = 0;
		}
	}
	return out;
}

void check(u32 shift, u32 mtu, u32 wr, u32 pages, bool packed)
{
	const u32 page = 1u << shift;
	coop_plan p;
	ASSERT_EQ(coop_plan_init(&p, shift, mtu, wr, pages, packed), 0);
	const std::vector<place> ref = naive(page, mtu, pages, packed);
	ASSERT_EQ(p.n_segs, ref.back().seg + 1);
	ASSERT_LE(p.n_segs, 1u << p.seg_bits);
	u32 byte = 0;
	for (u32 s = 0; s < p.n_segs; ++s) {
		coop_seg seg;
		coop_plan_seg(&p, s, &seg);
		ASSERT_EQ(seg.seg, s);
		ASSERT_LE(seg.len, mtu);
		ASSERT_EQ(seg.len, coop_plan_len(&p, s));
		ASSERT_EQ(seg.len + seg.spill, wr); // rule 9
		ASSERT_LE(1u + seg.n_frag + (seg.spill > 0), 3u);
		u64 touched = 0;
		u32 at = 0;
		for (u32 f = 0; f < seg.n_frag; ++f) {
			touched |= u64{1} << seg.frag[f].page;
			ASSERT_LE(seg.frag[f].off + seg.frag[f].len, page);
			// Checks both ends of the fragment; it is contiguous on both
			// sides.
			for (u32 i : {0u, seg.frag[f].len - 1}) {
				const u32 b = seg.frag[f].page * page + seg.frag[f].off + i;
				ASSERT_EQ(ref[b].seg, s);
				ASSERT_EQ(ref[b].at, at + i);
			}
			at += seg.frag[f].len;
		}
		ASSERT_EQ(at, seg.len);
		ASSERT_EQ(touched, coop_plan_pages(&p, s));
		byte += seg.len;
	}
	ASSERT_EQ(byte, page * pages);
	for (u32 i = 0; i < pages; ++i) {
		u32 first, last;
		coop_plan_range(&p, i, &first, &last);
		ASSERT_EQ(first, ref[i * page].seg);
		ASSERT_EQ(last, ref[(i + 1) * page - 1].seg);
	}
}

TEST(plan, every_page_size_and_mtu)
{
	for (u32 shift = COOP_PAGE_MIN_SHIFT; shift <= COOP_PAGE_MAX_SHIFT; ++shift) {
		for (u32 mtu :
		     {256u, 260u, 512u, 1000u, 1024u, 1500u, 2048u, 2052u, 3000u, 4092u, 4096u}) {
			const u32 fit = COOP_MAX_SEGS / (((1u << shift) + mtu - 1) / mtu);
			for (u32 pages : {1u, 2u, 3u, std::min(fit, 7u), std::min(fit, 64u)}) {
				if (pages > fit || (pages << shift) > (1u << 18))
					continue;
				SCOPED_TRACE(testing::Message() << "shift " << shift << " mtu "
								<< mtu << " pages " << pages);
				check(shift, mtu, mtu, pages, false);
				check(shift, mtu, mtu, pages, true);
				check(shift, mtu, 4096, pages, false);
				if (testing::Test::HasFatalFailure())
					return;
			}
		}
	}
}

// All MTUs, at the page size where they matter most.
TEST(plan, every_mtu_of_small_pages)
{
	for (u32 mtu = COOP_MTU_MIN; mtu <= COOP_MTU_MAX; mtu += 4) {
		SCOPED_TRACE(testing::Message() << "mtu " << mtu);
		check(12, mtu, mtu, 3, false);
		check(12, mtu, mtu, 3, true);
		if (testing::Test::HasFatalFailure())
			return;
	}
}

TEST(plan, refuses_what_is_out_of_range)
{
	coop_plan p;
	EXPECT_EQ(coop_plan_init(&p, 11, 4096, 4096, 1, false), -EINVAL);
	EXPECT_EQ(coop_plan_init(&p, 17, 4096, 4096, 1, false), -EINVAL);
	EXPECT_EQ(coop_plan_init(&p, 12, 252, 4096, 1, false), -EINVAL);
	EXPECT_EQ(coop_plan_init(&p, 12, 4100, 4100, 1, false), -EINVAL);
	EXPECT_EQ(coop_plan_init(&p, 12, 1022, 4096, 1, false), -EINVAL);
	EXPECT_EQ(coop_plan_init(&p, 12, 4096, 2048, 1, false), -EINVAL);
	EXPECT_EQ(coop_plan_init(&p, 12, 4096, 4096, 0, false), -EINVAL);
	EXPECT_EQ(coop_plan_init(&p, 12, 4096, 4096, 65, false), -EINVAL);
	EXPECT_EQ(coop_plan_init(&p, 16, 256, 256, 5, false), -EINVAL);  // 1280 segments
	EXPECT_EQ(coop_plan_init(&p, 12, 1500, 4096, 4, true), -EINVAL); // four entries
}

} // namespace
