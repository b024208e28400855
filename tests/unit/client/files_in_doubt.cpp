// SPDX-License-Identifier: MIT
// files_in_doubt.cpp - files of which this mount may have lost a lock.
#include "files_rig.hpp"

namespace coop::client
{
namespace
{

constexpr coop_st_lock all{1, 0, ~0ull, COOP_ST_LOCK_POSIX, COOP_ST_LOCK_READ, 1};

class client_files_in_doubt : public client_files
{
protected:
	std::unique_ptr<open_file> open_locked()
	{
		auto file = open(O_RDWR);
		std::uint64_t cookie = 0;
		(void)f.lock(*file, all, false, nullptr, cookie);
		EXPECT_EQ(read(*file), 0);
		stale = 0;
		return file;
	}
	void doubt(bool holds = true)
	{
		table.locks_in_doubt([&](const handle &fh) { return holds && fh == "file"; });
	}
	bool kernel_has_pages() const { return node->kernel_version != 0; }
};

TEST_F(client_files_in_doubt, are_not_read_here_unless_storage_vouches)
{
	auto file = open_locked();
	const std::size_t reads = r.seen.size();
	s.unvouched = -EBADF;
	EXPECT_EQ(read(*file), -EBADF);
	EXPECT_EQ(r.seen.size(), reads);
	EXPECT_EQ(s.direct_reads, 0u);
	s.unvouched = 0;
	EXPECT_EQ(read(*file), 0);
	close(std::move(file));
}

TEST_F(client_files_in_doubt, leave_the_kernel_each_time_that_it_has_read_them)
{
	auto file = open_locked();
	for (int i = 0; i < 2; i++) {
		EXPECT_TRUE(kernel_has_pages());
		doubt();
		EXPECT_EQ(stale, 1u);
		EXPECT_FALSE(kernel_has_pages());
		doubt();
		EXPECT_EQ(stale, 1u) << "there is nothing to drop";
		EXPECT_EQ(read(*file), 0);
		stale = 0;
	}
	// A read that was under way brings pages after that.
	r.during_read = [this] { doubt(); };
	EXPECT_EQ(read(*file), 0);
	EXPECT_TRUE(kernel_has_pages());
	close(std::move(file));
}

TEST_F(client_files_in_doubt, stay_if_they_are_not_locked_or_a_write_is_under_way)
{
	auto file = open_locked();
	doubt(false);
	EXPECT_TRUE(kernel_has_pages());
	s.during_write = [this] { doubt(); };
	write(*file);
	EXPECT_EQ(stale, 0u);
	EXPECT_TRUE(kernel_has_pages());
	close(std::move(file));
}

// What was stored to a page under the lock goes nowhere, through whichever open file.
TEST_F(client_files_in_doubt, of_a_lost_lock_take_no_stores_until_the_kernel_has_dropped_them)
{
	std::vector<std::function<void()>> later;
	inode_table t{*store,
		      {[this](inode &) { stale++; },
		       {},
		       [&](std::function<void()> then) { later.push_back(std::move(then)); }}};
	const auto n = t.keep(*t.ref(s.file));
	t.lock_lost("file");
	EXPECT_EQ(n->lost_stores, 0u) << "nobody asked for a lock of it";
	n->locked = true;
	t.lock_lost("another");
	EXPECT_EQ(n->lost_stores, 0u);
	t.lock_lost("file");
	EXPECT_EQ(n->lost_stores, 1u);
	EXPECT_EQ(stale, 1u);
	EXPECT_NE(t.to_drop(n->id, false), nullptr);
	ASSERT_EQ(later.size(), 1u);
	later[0]();
	EXPECT_EQ(n->lost_stores, 0u);
	EXPECT_EQ(t.to_drop(n->id, false), nullptr);
}

} // namespace
} // namespace coop::client
