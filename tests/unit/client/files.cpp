// SPDX-License-Identifier: MIT
// files.cpp - which replies the client believes, what the kernel may keep, and how a reader
// survives a change of version.
#include "files_rig.hpp"

namespace coop::client
{
namespace
{

TEST_F(client_files, the_kernel_keeps_pages_of_the_version_that_it_read)
{
	(void)table.told(*node, table.now(), s.file.attr, false);
	auto a = open();
	EXPECT_TRUE(kept) << "it has no pages, so it need not drop any";
	EXPECT_EQ(read(*a), 0);
	close(std::move(a));
	close(open());
	EXPECT_TRUE(kept);
	s.set(11, 0);
	close(open());
	EXPECT_FALSE(kept);
	EXPECT_TRUE(attr_stale);
}

TEST_F(client_files, bytes_that_are_here_do_not_come_with_the_open_reply)
{
	close(open());
	EXPECT_GT(s.asked_inline, 0u);
	{
		block_ref b = store->get({node->fid, 10}, 0, 100);
		b->publish(b->claim(1), origin::storage);
	}
	close(open());
	EXPECT_EQ(s.asked_inline, 0u);
	store->drop({node->fid, 10});
	close(open());
	EXPECT_GT(s.asked_inline, 0u);
}

TEST_F(client_files, no_room_in_the_store_is_no_error)
{
	auto file = open();
	r.refuse = -ENOMEM;
	EXPECT_EQ(read(*file), 0) << "storage has the bytes";
	close(std::move(file));
}

TEST_F(client_files, nothing_is_kept_until_the_kernel_has_thrown_away_what_it_was_told_to)
{
	auto old = open();
	EXPECT_EQ(read(*old), 0);
	s.set(11, 0);
	r.good = 11;
	auto first = open();
	EXPECT_FALSE(kept);
	auto second = open();
	EXPECT_FALSE(kept);
	EXPECT_EQ(read(*second), 0);
	// 'first' told the kernel to drop its pages; the kernel may not have done it yet.
	auto third = open();
	EXPECT_FALSE(kept);
	EXPECT_EQ(read(*first), 0);
	EXPECT_EQ(read(*third), 0);
	auto fourth = open();
	EXPECT_TRUE(kept);
}

TEST_F(client_files, pages_of_two_versions_are_not_kept)
{
	auto a = open();
	EXPECT_EQ(read(*a), 0);
	s.set(11, 0);
	r.good = 11;
	table.learn(*node, table.now(), s.file.attr, nullptr);
	EXPECT_EQ(stale, 1u);
	EXPECT_EQ(read(*a), 0);
	open();
	EXPECT_FALSE(kept);
}

TEST_F(client_files, no_lock_is_answered_while_the_kernel_may_have_pages_that_another_lock_drops)
{
	auto a = open(), b = open();
	EXPECT_EQ(read(*a), 0);
	EXPECT_EQ(read(*b), 0);
	s.set(11, 0);
	r.good = 11;
	bool drop = false;
	ASSERT_EQ(f.refresh(*a, {}, drop), 0);
	EXPECT_TRUE(drop);
	ASSERT_EQ(f.refresh(*b, {}, drop), 0);
	EXPECT_TRUE(drop);
	const unsigned told = stale;
	f.dropped(*a);
	EXPECT_EQ(read(*a), 0);
	ASSERT_EQ(f.refresh(*a, {}, drop), 0);
	EXPECT_TRUE(drop) << "the notification for the other lock is still under way";
	f.dropped(*a);
	f.dropped(*b);
	ASSERT_EQ(f.refresh(*b, {}, drop), 0);
	EXPECT_FALSE(drop);
	EXPECT_EQ(stale, told + 1);
	open();
	EXPECT_TRUE(kept);
}

TEST_F(client_files, no_lock_is_answered_while_the_kernel_may_have_pages_that_an_open_drops)
{
	auto a = open();
	EXPECT_EQ(read(*a), 0);
	s.set(11, 0);
	r.good = 11;
	auto idle = open();
	EXPECT_FALSE(kept);
	bool drop = false;
	ASSERT_EQ(f.refresh(*a, {}, drop), 0);
	EXPECT_TRUE(drop);
	f.dropped(*a);
	ASSERT_EQ(f.refresh(*a, {}, drop), 0);
	EXPECT_FALSE(drop) << "an open file that is not used has nothing left to drop";
	auto locks = open();
	EXPECT_FALSE(kept);
	std::uint64_t cookie = 0;
	(void)f.lock(*idle, {}, false, nullptr, cookie);
	(void)f.lock(*locks, {}, false, nullptr, cookie);
	ASSERT_EQ(f.refresh(*locks, {}, drop), 0);
	EXPECT_FALSE(drop) << "an open file that asks for a lock has been opened";
	open();
	EXPECT_TRUE(kept);
}

TEST_F(client_files, own_writes_chain_versions_and_keep_the_rest)
{
	auto a = writer_of_a_cached_file();
	write(*a);
	EXPECT_EQ(node->version, 11u);
	EXPECT_TRUE(store->find({node->fid, 11}, 1));
	EXPECT_EQ(stale, 0u);
	open();
	EXPECT_TRUE(kept);
}

TEST_F(client_files, a_foreign_write_between_ours_drops_everything)
{
	auto a = writer_of_a_cached_file();
	s.foreign = true;
	write(*a);
	EXPECT_EQ(node->version, 11u);
	EXPECT_FALSE(store->find({node->fid, 11}, 1));
	EXPECT_FALSE(store->find({node->fid, 10}, 1));
	open();
	EXPECT_FALSE(kept);
	EXPECT_EQ(stale, 0u) << "a pwrite() may be in flight";
	close(std::move(a));
	EXPECT_EQ(stale, 1u);
}

// Another reply shows our change before the change's own reply has come.
TEST_F(client_files, a_change_of_ours_under_way_is_not_taken_for_somebody_elses)
{
	auto a = writer_of_a_cached_file();
	s.during_write = [&] {
		EXPECT_TRUE(node->changing);
		EXPECT_FALSE(table.learn(*node, table.now(), s.file.attr, nullptr));
		EXPECT_EQ(node->version, 10u);
	};
	write(*a);
	EXPECT_FALSE(node->changing);
	EXPECT_EQ(node->version, 11u);
	EXPECT_EQ(node->kernel_version, 11u);
	EXPECT_TRUE(store->find({node->fid, 11}, 1));
	close(open());
	EXPECT_TRUE(kept);
	close(std::move(a));
	EXPECT_EQ(stale, 0u);
}

TEST_F(client_files, an_open_that_met_a_change_of_ours_asks_again_after_it)
{
	auto a = writer_of_a_cached_file();
	std::thread opener;
	s.during_write = [&] {
		const std::uint64_t before = s.opens;
		opener = std::thread([this] { close(open()); });
		while (s.opens == before)
			std::this_thread::yield();
	};
	write(*a);
	opener.join();
	EXPECT_TRUE(kept);
	EXPECT_EQ(node->version, 11u);
	EXPECT_EQ(node->kernel_version, 11u);
}

TEST_F(client_files, an_open_that_a_change_of_ours_overtook_asks_again)
{
	auto a = writer_of_a_cached_file();
	s.before_open = [&] {
		write(*a);
		s.set(20, 100); // another client, after our write
	};
	const unsigned asked = s.getattrs;
	close(open());
	EXPECT_EQ(s.getattrs, asked + 1);
	EXPECT_FALSE(kept);
	EXPECT_EQ(node->version, 20u);
}

TEST_F(client_files, a_change_of_ours_during_a_read_leaves_what_was_read_good)
{
	auto a = writer_of_a_cached_file();
	r.during_read = [&] { write(*a, 5000); };
	EXPECT_EQ(read(*a), 0);
	EXPECT_EQ(node->kernel_version, 11u);
	open();
	EXPECT_TRUE(kept);
}

TEST_F(client_files, somebody_elses_change_during_a_read_does_not)
{
	auto a = open();
	r.during_read = [&] {
		s.set(11, 0);
		table.learn(*node, table.now(), s.file.attr, nullptr);
	};
	EXPECT_EQ(read(*a), 0);
	EXPECT_EQ(stale, 1u);
	open();
	EXPECT_FALSE(kept);
}

TEST_F(client_files, an_old_reply_does_not_undo_a_write)
{
	auto a = open(O_RDWR);
	ticket asked = table.now();
	attributes before = s.file.attr;
	write(*a);
	table.learn(*node, asked, before, nullptr);
	EXPECT_EQ(node->version, 11u);
	EXPECT_EQ(node->size, 10u);
}

TEST_F(client_files, replies_out_of_order_leave_the_later_request_standing)
{
	ticket first = table.now(), second = table.now();
	attributes old = s.file.attr;
	s.set(11, 5);
	table.learn(*node, second, s.file.attr, nullptr);
	table.learn(*node, first, old, nullptr);
	EXPECT_EQ(node->version, 11u);
}

TEST_F(client_files, a_stale_read_goes_on_with_the_new_version)
{
	auto a = open();
	s.set(11, 0);
	r.good = 11;
	EXPECT_EQ(read(*a), 0);
	EXPECT_EQ(r.seen, (std::vector<std::uint64_t>{10, 11}));
	EXPECT_EQ(s.getattrs, 1u);
	EXPECT_EQ(s.direct_reads, 0u);
}

TEST_F(client_files, what_changes_too_fast_is_read_without_a_version)
{
	auto a = open();
	r.good = 0;
	read_answer answer;
	EXPECT_EQ(f.read(*a, 0, 100, answer), 0);
	EXPECT_EQ(answer.direct_length, 100u);
	EXPECT_EQ(s.direct_reads, 1u);
	EXPECT_LE(r.seen.size(), 4u);
	open();
	EXPECT_FALSE(kept);
}

TEST_F(client_files, an_append_elsewhere_than_assumed_spoils_the_kernels_pages)
{
	s.set(10, 100);
	table.learn(*node, table.now(), s.file.attr, nullptr);
	s.appends = true;
	auto a = open(O_RDWR | O_APPEND);
	write(*a, 100);
	EXPECT_EQ(stale, 0u);
	write(*a, 100); // the end is at 110
	EXPECT_EQ(stale, 1u);
	EXPECT_EQ(node->size, 120u);
}

// The kernel sends these past its pages, which still have what was at the end before.
TEST_F(client_files, pages_of_appended_bytes_are_dropped_if_the_kernel_has_any)
{
	s.set(10, 100);
	table.learn(*node, table.now(), s.file.attr, nullptr);
	s.appends = true;
	auto a = open(O_WRONLY | O_APPEND);
	write(*a, 100);
	EXPECT_FALSE(drop) << "nothing was read here";
	r.good = 11;
	auto reader = open();
	EXPECT_EQ(read(*reader), 0);
	write(*a, 110);
	ASSERT_TRUE(drop);
	EXPECT_EQ(drop->offset, 110u);
	EXPECT_EQ(drop->length, 10u);
	close(open());
	EXPECT_TRUE(kept) << "the other pages are valid";
	write(*a, 110); // the end is at 120
	ASSERT_TRUE(drop);
	EXPECT_EQ(drop->offset, 0u);
	EXPECT_EQ(drop->length, 0u);
	EXPECT_EQ(stale, 0u);
}

TEST_F(client_files, only_writers_commit_at_close)
{
	auto a = open(O_RDWR);
	EXPECT_EQ(f.flush(*a), 0);
	EXPECT_EQ(s.commits, 0u);
	write(*a);
	EXPECT_EQ(f.flush(*a), 0);
	EXPECT_EQ(f.flush(*a), 0);
	EXPECT_EQ(f.commit(*a), 0);
	EXPECT_EQ(s.commits, 1u) << "nothing was left to commit";
}

TEST_F(client_files, a_commit_covers_what_other_open_files_changed)
{
	auto a = open(O_RDWR), b = open();
	write(*a);
	EXPECT_EQ(f.commit(*b), 0);
	EXPECT_EQ(s.commits, 1u);
	auto c = open(O_RDWR | O_TRUNC);
	EXPECT_EQ(f.commit(*c), 0);
	EXPECT_EQ(s.commits, 2u) << "a truncation too";
}

TEST_F(client_files, a_commit_that_fails_is_told_to_every_open_file_once)
{
	auto a = open(O_RDWR), b = open(O_RDWR);
	write(*a);
	write(*b);
	s.commit_error = -EIO;
	EXPECT_EQ(f.commit(*a), -EIO);
	s.commit_error = 0;
	EXPECT_EQ(f.flush(*b), -EIO) << "the failure may have lost b's writes";
	write(*b);
	EXPECT_EQ(f.flush(*b), 0);
	EXPECT_EQ(f.commit(*a), 0);
}

// For changes without bytes to write again, such as a truncation.
TEST_F(client_files, what_storage_lost_in_a_crash_is_told_to_every_open_file_once)
{
	auto a = open(O_RDWR | O_TRUNC), b = open(O_RDWR);
	s.verifier = 2;
	EXPECT_EQ(f.commit(*a), -EIO);
	EXPECT_EQ(f.commit(*b), -EIO);
	EXPECT_EQ(f.commit(*a), 0);
	EXPECT_EQ(f.commit(*b), 0);
	EXPECT_EQ(f.commit(*open()), 0) << "opened later";
}

TEST_F(client_files, a_crash_between_two_changes_is_told_though_the_commit_fits_the_second)
{
	auto a = open(O_RDWR | O_TRUNC);
	s.verifier = 2;
	auto b = open(O_RDWR | O_TRUNC);
	EXPECT_EQ(f.commit(*a), -EIO);
	write(*a);
	EXPECT_EQ(f.commit(*a), 0);
}

TEST_F(client_files, what_nobody_has_open_any_more_is_nobodys_loss)
{
	auto a = open(O_RDWR | O_TRUNC);
	close(std::move(a));
	s.verifier = 2;
	a = open(O_RDWR);
	write(*a);
	EXPECT_EQ(f.commit(*a), 0);
}

TEST_F(client_files, truncation_at_open_starts_a_version_of_its_own)
{
	auto a = open();
	EXPECT_EQ(read(*a), 0);
	auto b = open(O_RDWR | O_TRUNC);
	EXPECT_EQ(node->version, 11u);
	EXPECT_EQ(node->size, 0u);
	EXPECT_EQ(stale, 0u);
}

// The kernel drops the pages when it has the reply of the truncating open. If another open dropped
// pages, they might be those that the first one has written since.
TEST_F(client_files, another_open_waits_until_the_kernel_has_truncated)
{
	auto a = open();
	EXPECT_EQ(read(*a), 0);
	auto cuts = open(O_RDWR | O_TRUNC);
	EXPECT_EQ(node->truncating, 1u);
	std::thread uses([&] { write(*cuts); });
	auto other = open();
	uses.join();
	EXPECT_TRUE(kept);
	EXPECT_EQ(node->truncating, 0u);
	close(std::move(cuts));
}

TEST_F(client_files, a_read_from_before_a_truncation_does_not_make_later_pages_foreign)
{
	auto a = open();
	std::unique_ptr<open_file> cuts;
	r.during_read = [&] {
		cuts = open(O_WRONLY | O_TRUNC);
		r.good = 10; // the read had its bytes
	};
	EXPECT_EQ(read(*a), 0);
	write(*cuts);
	close(std::move(cuts));
	open();
	EXPECT_TRUE(kept);
}

TEST_F(client_files, the_kernel_is_told_once_of_each_version)
{
	const auto tell = [&] { return table.told(*node, table.now(), s.file.attr, false); };
	EXPECT_TRUE(tell());
	open();
	EXPECT_FALSE(attr_stale) << "it has just got these attributes";
	s.set(11, 5);
	const ticket since = table.now();
	open();
	EXPECT_TRUE(attr_stale);
	open();
	EXPECT_TRUE(attr_stale) << "the first open may not have told it yet";
	table.announced(*node, since);
	open();
	EXPECT_FALSE(attr_stale);
	EXPECT_TRUE(tell());
	open();
	EXPECT_FALSE(attr_stale);
	s.set(12, 6);
	EXPECT_TRUE(tell());
	open();
	EXPECT_TRUE(attr_stale) << "it may have ignored the newest and believe those of 11";
}

TEST_F(client_files, attributes_of_a_request_from_before_a_notification_do_not_count)
{
	EXPECT_TRUE(table.told(*node, table.now(), s.file.attr, false));
	const ticket listing = table.now();
	const attributes old = s.file.attr;
	s.set(11, 5);
	const ticket since = table.now();
	open();
	EXPECT_TRUE(attr_stale);
	table.announced(*node, since);
	EXPECT_FALSE(table.told(*node, listing, old, false));
	attributes shown = old;
	f.show(*node, listing, shown);
	EXPECT_EQ(shown.version, 11u);
	open();
	EXPECT_FALSE(attr_stale);
}

TEST_F(client_files, attributes_that_the_kernel_takes_in_any_case_count)
{
	const ticket since = table.now();
	table.announced(*node, since);
	attributes out;
	ASSERT_EQ(f.setattr(who, *node, {storage::set_mode, 0600, 0, 0, 0, {}, {}}, out), 0);
	open();
	EXPECT_FALSE(attr_stale);
	s.set(20, 7);
	open();
	EXPECT_TRUE(attr_stale);
}

TEST_F(client_files, forgotten_while_open)
{
	auto a = open();
	table.forget(node, 1);
	EXPECT_EQ(table.count().held, 0u);
	EXPECT_EQ(read(*a), 0);
	close(std::move(a));
}

} // namespace
} // namespace coop::client
