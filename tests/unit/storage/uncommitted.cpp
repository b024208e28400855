// SPDX-License-Identifier: MIT
// uncommitted.cpp - a client tells when names that no commit has covered may be lost: never
// silently, and without false errors for ever.
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <vector>

#include "rpc/storage/uncommitted.h"

namespace
{

constexpr u64 boot = 100, next_boot = 200, own = 150; // verifiers

class uncommitted : public testing::Test
{
protected:
	explicit uncommitted(u32 n = 8) : memory_(coop_uncommitted_size(n) / sizeof(u64) + 1)
	{
		coop_uncommitted_init(&t_, memory_.data(), n);
	}
	static coop_fid dir(u64 n) { return {n, n * 7}; }
	void change(u64 n, u64 run = boot, u64 exact = 0)
	{
		const coop_fid d = dir(n);
		coop_uncommitted_add(&t_, &d, run, exact);
	}
	u64 now() { return coop_uncommitted_now(&t_); }
	// True: lost.
	bool commit(u64 n, u64 run, u64 verifier, u64 covers)
	{
		const coop_fid d = dir(n);
		return coop_uncommitted_done(&t_, &d, covers, run, verifier);
	}
	bool commit(u64 n, u64 run, u64 verifier) { return commit(n, run, verifier, now()); }
	bool commit(u64 n, u64 run = boot) { return commit(n, run, run); }

	std::vector<u64> memory_;
	coop_uncommitted t_;
};

TEST_F(uncommitted, a_commit_after_a_crash_finds_the_loss_once)
{
	change(1);
	EXPECT_TRUE(commit(1, next_boot));
	EXPECT_FALSE(commit(1, next_boot));
	EXPECT_FALSE(commit(2, next_boot)) << "nothing of it was changed";
}

TEST_F(uncommitted, what_was_committed_before_the_crash_is_not_lost)
{
	change(1);
	EXPECT_FALSE(commit(1));
	EXPECT_FALSE(coop_uncommitted_any(&t_));
	EXPECT_FALSE(commit(1, next_boot));
}

TEST_F(uncommitted, the_oldest_change_counts)
{
	change(1);
	change(1, next_boot);
	EXPECT_TRUE(commit(1, next_boot));
}

TEST_F(uncommitted, a_change_during_a_commit_is_not_covered)
{
	change(1);
	const u64 covers = now();
	change(1);
	EXPECT_FALSE(commit(1, boot, boot, covers));
	EXPECT_TRUE(commit(1, next_boot));
}

TEST_F(uncommitted, a_directory_with_a_verifier_of_its_own_fails_once)
{
	change(1);
	EXPECT_TRUE(commit(1, boot, own)) << "an fsync of it by another client has failed";
	change(1);
	EXPECT_FALSE(commit(1, boot, own));
	change(1);
	EXPECT_TRUE(commit(1, boot, own + 1)) << "and once more";
	change(1);
	EXPECT_TRUE(commit(1, next_boot)) << "its own verifier ends with the run";
	change(1, next_boot);
	EXPECT_FALSE(commit(1, next_boot));
}

TEST_F(uncommitted, an_own_verifier_is_learned_without_a_change)
{
	EXPECT_FALSE(commit(1, boot, own));
	change(1);
	EXPECT_FALSE(commit(1, boot, own));
}

TEST_F(uncommitted, a_reply_with_a_verifier_needs_no_other)
{
	change(1, boot, own);
	EXPECT_FALSE(commit(1, boot, own));
}

TEST_F(uncommitted, a_failed_commit_has_told)
{
	change(1);
	const coop_fid d = dir(1);
	coop_uncommitted_failed(&t_, &d, now());
	EXPECT_FALSE(commit(1, boot, own));
}

TEST_F(uncommitted, a_daemon_without_verifiers_of_names_is_not_judged)
{
	change(1, 0);
	EXPECT_FALSE(commit(1, 0, boot));
	EXPECT_FALSE(commit(1, next_boot));
}

TEST_F(uncommitted, a_full_table_doubts_all_that_it_does_not_know)
{
	for (u64 n = 1; n <= 9; n++)
		change(n);
	for (u64 n = 1; n <= 9; n++)
		EXPECT_FALSE(commit(n)) << "no crash, no loss";
	EXPECT_TRUE(coop_uncommitted_any(&t_));
	EXPECT_FALSE(commit(9, next_boot)) << "known to be committed";
	EXPECT_TRUE(commit(1, next_boot)) << "not known any more";
	EXPECT_FALSE(commit(1, next_boot)) << "told";
	change(77, next_boot);
	EXPECT_TRUE(commit(77, next_boot));
	change(77, next_boot);
	EXPECT_FALSE(commit(77, next_boot));
}

TEST_F(uncommitted, a_sync_of_everything_ends_all_doubt)
{
	for (u64 n = 1; n <= 9; n++)
		change(n);
	EXPECT_FALSE(coop_uncommitted_done_all(&t_, now(), boot));
	EXPECT_FALSE(coop_uncommitted_any(&t_));
	for (u64 n = 1; n <= 9; n++)
		EXPECT_FALSE(commit(n, next_boot));
}

TEST_F(uncommitted, a_sync_of_everything_tells_a_loss_once_and_so_does_the_directory)
{
	change(1);
	EXPECT_TRUE(coop_uncommitted_done_all(&t_, now(), next_boot));
	EXPECT_FALSE(coop_uncommitted_done_all(&t_, now(), next_boot));
	EXPECT_TRUE(commit(1, next_boot));
	EXPECT_FALSE(commit(1, next_boot));
}

TEST_F(uncommitted, a_removed_directory_takes_no_room)
{
	for (u64 n = 1; n <= 100; n++) {
		change(n);
		const coop_fid d = dir(n);
		coop_uncommitted_remove(&t_, &d);
	}
	EXPECT_FALSE(coop_uncommitted_any(&t_));
}

// Beside a table without a limit: whatever that finds lost, this one finds lost.
TEST_F(uncommitted, no_loss_is_hidden)
{
	std::mt19937 random(1);
	std::map<u64, u64> oldest; // directory: verifier
	u64 run = boot, errors = 0, losses = 0;
	for (int step = 0; step < 20000; step++) {
		const u64 n = random() % 20;
		switch (random() % 8) {
		case 0:
			run += random() % 50 == 0;
			break;
		case 1:
		case 2:
		case 3: {
			const bool found = commit(n, run);
			const auto it = oldest.find(n);
			const bool lost = it != oldest.end() && it->second != run;
			ASSERT_TRUE(found || !lost) << "step " << step;
			errors += found;
			losses += lost;
			oldest.erase(n);
			break;
		}
		default:
			change(n, run);
			oldest.try_emplace(n, run);
		}
	}
	EXPECT_GT(losses, 0u);
	EXPECT_GE(errors, losses);
}

} // namespace
