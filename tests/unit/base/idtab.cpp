// SPDX-License-Identifier: MIT
// idtab.cpp - an id is invalid once its slot is freed.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "rpc/base/idtab.h"
#include "rpc/fetch/engine.h"

namespace
{

struct table {
	explicit table(u32 n) : memory(n) { coop_idtab_init(&t, memory.data(), n); }
	std::vector<coop_id> memory;
	coop_idtab t;
};

class idtab : public testing::TestWithParam<u32>
{
};

TEST_P(idtab, gives_distinct_ids_until_full)
{
	table x(GetParam());
	std::set<u32> ids;
	for (u32 i = 0; i < GetParam(); ++i) {
		const u32 id = coop_idtab_get(&x.t);
		ASSERT_NE(id, COOP_NONE);
		ASSERT_NE(id, 0u);
		EXPECT_LT(coop_idtab_slot(&x.t, id), GetParam());
		EXPECT_TRUE(ids.insert(id).second);
	}
	EXPECT_EQ(coop_idtab_get(&x.t), COOP_NONE);
	for (u32 id : ids)
		EXPECT_EQ(coop_idtab_put(&x.t, id), 0);
	EXPECT_EQ(x.t.used, 0u);
}

TEST_P(idtab, stale_ids_find_nothing)
{
	table x(GetParam());
	std::vector<u32> dead;
	for (u32 round = 0; round < 100; ++round) {
		const u32 id = coop_idtab_get(&x.t);
		for (u32 old : dead) {
			EXPECT_EQ(coop_idtab_slot(&x.t, old), COOP_NONE);
			EXPECT_EQ(coop_idtab_put(&x.t, old), -ENOENT);
		}
		ASSERT_EQ(coop_idtab_put(&x.t, id), 0);
		EXPECT_EQ(coop_idtab_put(&x.t, id), -ENOENT);
		dead.push_back(id);
	}
}

TEST_P(idtab, takes_any_value)
{
	table x(GetParam());
	const u32 id = coop_idtab_get(&x.t);
	u32 hits = 0;
	for (u32 low = 0; low < 4096; ++low)
		for (u32 high : {0u, 1u, 0x7fffu, 0xffffu})
			hits += coop_idtab_slot(&x.t, high << 16 | low) != COOP_NONE;
	EXPECT_LE(hits, 1u);
	EXPECT_EQ(coop_idtab_slot(&x.t, COOP_NONE), COOP_NONE);
	EXPECT_NE(coop_idtab_slot(&x.t, id), COOP_NONE);
}

INSTANTIATE_TEST_SUITE_P(sizes, idtab, testing::Values(1, 2, 3, 64, 1000));

TEST(idtab_wrap, generation_wraps_to_a_valid_id)
{
	table x(1);
	x.memory[0].gen = x.t.gen_max;
	const u32 last = coop_idtab_get(&x.t);
	EXPECT_NE(last, COOP_NONE);
	EXPECT_EQ(coop_idtab_put(&x.t, last), 0);
	const u32 first = coop_idtab_get(&x.t);
	EXPECT_NE(first, 0u);
	EXPECT_NE(first, COOP_NONE);
	EXPECT_NE(first, last);
}

} // namespace
