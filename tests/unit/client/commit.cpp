// SPDX-License-Identifier: MIT
// commit.cpp - the fate of acknowledged writes when storage's machine crashes before they are
// on its disk: the client writes the latest bytes again, or reports the loss.
#include "commit_rig.hpp"

#include <linux/falloc.h>
#include <random>

namespace coop::client
{
namespace
{

TEST_F(client_commit, what_a_crash_took_is_written_again)
{
	auto a = open(), b = open();
	write(*a, 0, "one ");
	write(*b, 4, "two");
	s.crash();
	EXPECT_EQ(f->flush(*a), 0);
	EXPECT_EQ(disk(), "one two");
	EXPECT_EQ(f->commit(*b), 0);
	EXPECT_EQ(f->written_again(), 2u);
	EXPECT_EQ(s.commits, 2u) << "the commit of one covers the writes of the other";
	EXPECT_FALSE(node->changes.keeps());
}

TEST_F(client_commit, once_committed_it_is_not_kept)
{
	auto a = open();
	write(*a, 0, "old");
	EXPECT_EQ(f->commit(*a), 0);
	s.crash();
	write(*a, 1, "n");
	EXPECT_EQ(f->commit(*a), 0);
	EXPECT_EQ(disk(), "ond");
	EXPECT_EQ(f->written_again(), 0u);
}

TEST_F(client_commit, a_synchronous_write_commits_and_nothing_is_kept)
{
	auto a = open(O_RDWR | O_DSYNC);
	write(*a, 0, "one ");
	EXPECT_FALSE(node->changes.keeps());
	EXPECT_EQ(f->commit(*a), 0);
	write(*a, 4, "two");
	EXPECT_EQ(f->commit(*a), 0);
	s.crash();
	EXPECT_EQ(f->flush(*a), 0);
	EXPECT_EQ(disk(), "one two");
	EXPECT_EQ(s.commits, 0u);
}

TEST_F(client_commit, what_storage_does_not_call_stable_is_kept)
{
	auto a = open(O_RDWR | O_DSYNC);
	s.commits_writes = false;
	write(*a, 0, "bytes");
	EXPECT_EQ(s.stable_asked, 1u);
	s.crash();
	EXPECT_EQ(f->commit(*a), 0);
	EXPECT_EQ(disk(), "bytes");
	EXPECT_EQ(f->written_again(), 1u);
}

TEST_F(client_commit, who_streams_commits_once)
{
	auto a = open();
	for (unsigned i = 0; i < 10; i++)
		write(*a, i * 4, "four");
	EXPECT_EQ(f->commit(*a), 0);
	EXPECT_EQ(s.stable_asked, 0u);
	EXPECT_EQ(s.commits, 1u);
}

TEST_F(client_commit, what_is_kept_of_others_stays_kept)
{
	auto a = open(), b = open(O_RDWR | O_DSYNC);
	write(*a, 0, "kept");
	write(*b, 4, "more");
	EXPECT_EQ(s.stable_asked, 0u) << "a commit is owed";
	s.crash();
	EXPECT_EQ(f->commit(*b), 0);
	EXPECT_EQ(disk(), "keptmore");
}

// The write itself is stable, but the crash may have lost an earlier change.
TEST_F(client_commit, a_stable_write_does_not_hide_a_loss)
{
	auto a = open(O_RDWR | O_DSYNC);
	ASSERT_EQ(cut(2), 0);
	s.crash();
	write(*a, 0, "bytes");
	EXPECT_EQ(s.stable_asked, 1u);
	EXPECT_EQ(f->commit(*a), -EIO);
	EXPECT_EQ(f->commit(*a), 0);
	EXPECT_EQ(disk(), "bytes");
}

// A stable write covers writes answered before it was sent, not those answered since.
TEST_F(client_commit, a_stable_write_covers_what_was_before_it)
{
	auto a = open(O_RDWR | O_DSYNC);
	ASSERT_EQ(cut(2), 0);
	write(*a, 0, "bytes");
	EXPECT_EQ(f->commit(*a), 0);
	EXPECT_EQ(s.commits, 0u);
	s.during_write = [&] { node->changes.acknowledged(s.verifier); };
	write(*a, 0, "other");
	EXPECT_EQ(f->commit(*a), 0);
	EXPECT_EQ(s.commits, 1u);
}

TEST_F(client_commit, without_commits_at_close_each_fsync_commits_alone)
{
	f = std::make_unique<files>(s, *store, r, table, m, commit_options{.on_close = false});
	auto a = open(O_RDWR | O_DSYNC);
	write(*a, 0, "bytes");
	EXPECT_EQ(f->commit(*a), 0);
	EXPECT_EQ(s.stable_asked, 0u);
	EXPECT_EQ(s.commits, 1u);
}

TEST_F(client_commit, writes_that_follow_on_from_each_other_are_one)
{
	auto a = open();
	for (int i = 0; i < 100; i++)
		write(*a, static_cast<std::uint64_t>(i) * 10,
		      std::string(10, static_cast<char>('0' + i % 10)));
	const std::string whole = s.cache;
	s.crash();
	EXPECT_EQ(f->commit(*a), 0);
	EXPECT_EQ(disk(), whole);
	EXPECT_EQ(f->written_again(), 1u);
}

TEST_F(client_commit, a_byte_goes_out_as_it_was_written_last)
{
	auto a = open();
	write(*a, 0, "aaaaaaaaaa");
	write(*a, 5, "bbbbbbbbbb");
	write(*a, 2, "c");
	s.crash();
	EXPECT_EQ(f->commit(*a), 0);
	EXPECT_EQ(disk(), "aacaabbbbbbbbbb");
}

TEST_F(client_commit, what_was_written_after_the_crash_is_not_overwritten)
{
	auto a = open();
	write(*a, 0, "aaaaaaaaaa");
	s.crash();
	write(*a, 3, "bbb");
	s.during_write = [&] { EXPECT_EQ(s.cache.substr(3, 3), "bbb"); };
	EXPECT_EQ(f->commit(*a), 0);
	EXPECT_EQ(disk(), "aaabbbaaaa");
}

TEST_F(client_commit, a_crash_during_a_commit_is_noticed_by_the_next)
{
	auto a = open();
	write(*a, 0, "aaaa");
	s.crash();
	s.during_write = [&] { s.crash(); };
	EXPECT_EQ(f->commit(*a), 0);
	EXPECT_EQ(disk(), "aaaa");
	EXPECT_EQ(f->written_again(), 2u);
}

// A write during a commit must not join the commit's record: otherwise the client would not
// check whether the commit covered the first part.
TEST_F(client_commit, what_is_written_during_a_commit_leaves_the_rest_to_it)
{
	auto a = open();
	write(*a, 0, "aaaa");
	s.hold = true;
	std::thread commits([&] { EXPECT_EQ(f->commit(*a), 0); });
	ASSERT_TRUE(comes([&] { return s.commits == 1; }));
	write(*a, 4, "bbbb");
	s.crash();
	s.hold = false;
	commits.join();
	EXPECT_EQ(disk().substr(0, 4), "aaaa");
}

TEST_F(client_commit, an_fsync_during_the_writing_again_waits_for_it)
{
	auto a = open(), b = open();
	write(*a, 0, "aaaa");
	s.crash();
	std::thread other;
	s.during_write = [&] {
		other = std::thread([&] {
			EXPECT_EQ(f->commit(*b), 0);
			EXPECT_EQ(disk(), "aaaa");
		});
		std::this_thread::sleep_for(std::chrono::milliseconds(20));
	};
	EXPECT_EQ(f->commit(*a), 0);
	other.join();
}

TEST_F(client_commit, what_was_cut_off_or_punched_out_does_not_come_back)
{
	auto a = open();
	write(*a, 0, std::string(100, 'a'));
	ASSERT_EQ(f->fallocate(*a, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 10, 20), 0);
	ASSERT_EQ(cut(50), 0);
	const std::string whole = s.cache;
	s.crash();
	EXPECT_EQ(f->commit(*a), -EIO) << "the client keeps no bytes of the hole";
	EXPECT_EQ(disk().substr(0, 10), whole.substr(0, 10));
	EXPECT_EQ(disk().substr(30), whole.substr(30));
	EXPECT_EQ(f->commit(*a), 0);
}

TEST_F(client_commit, truncation_at_open_drops_what_was_written_before)
{
	auto a = open();
	write(*a, 0, "aaaa");
	auto b = open(O_RDWR | O_TRUNC);
	s.crash();
	EXPECT_EQ(f->commit(*a), -EIO);
	EXPECT_EQ(f->commit(*b), -EIO);
	EXPECT_EQ(disk(), "");
	EXPECT_EQ(f->written_again(), 0u);
}

TEST_F(client_commit, an_append_is_told)
{
	auto a = open(O_RDWR | O_APPEND);
	s.appends = true;
	write(*a, 0, "aaaa");
	s.crash();
	EXPECT_EQ(f->commit(*a), -EIO);
	EXPECT_EQ(f->written_again(), 0u);
}

// As after F_SETFL, or for a page of a mapping: it goes through an open without O_APPEND.
TEST_F(client_commit, a_write_in_place_to_a_file_opened_for_appending)
{
	auto a = open(O_RDWR | O_APPEND);
	std::string text = "aaaa";
	iovec v{text.data(), text.size()};
	std::optional<files::range> drop;
	ASSERT_EQ(f->write(*a, false, 0, {&v, 1}, text.size(), drop), 0);
	ASSERT_EQ(f->write(*a, false, 4, {&v, 1}, text.size(), drop), 0);
	s.crash();
	EXPECT_EQ(f->commit(*a), 0);
	EXPECT_EQ(disk(), "aaaaaaaa");
	EXPECT_EQ(s.opens, 2u);
	EXPECT_EQ(std::set(s.through.begin(), s.through.end()), (std::set<std::uint64_t>{2}));
	f->release(std::move(a));
	EXPECT_EQ(s.closed, (std::set<std::uint64_t>{1, 2}));
}

TEST_F(client_commit, no_room_for_it_is_told_to_all_once)
{
	auto a = open(), b = open();
	write(*a, 0, "aaaa");
	s.crash();
	s.write_error = -ENOSPC;
	EXPECT_EQ(f->commit(*a), -ENOSPC);
	s.write_error = 0;
	EXPECT_EQ(f->commit(*a), 0);
	EXPECT_EQ(f->commit(*b), -ENOSPC);
	EXPECT_EQ(f->commit(*b), 0);
}

// The failed write may have changed some of the bytes, and readers may have seen them.
TEST_F(client_commit, a_write_that_failed_is_not_undone_by_an_older_one)
{
	auto a = open();
	write(*a, 0, "aaaa");
	write(*a, 8, "cccc");
	s.write_error = -ENOSPC;
	EXPECT_EQ(try_write(*a, 2, "bb"), -ENOSPC);
	s.write_error = 0;
	s.crash();
	EXPECT_EQ(f->commit(*a), -EIO);
	EXPECT_EQ(disk(), std::string("aa\0\0\0\0\0\0cccc", 12));
}

TEST_F(client_commit, many_holes_end_what_is_kept)
{
	auto a = open();
	const std::size_t size = 2 * unstable::most_holes + 4;
	write(*a, 0, std::string(size, 'a'));
	for (std::size_t i = 1; node->changes.keeps() && i < size; i += 2)
		node->changes.acknowledged(1, i, 1);
	EXPECT_FALSE(node->changes.keeps());
	EXPECT_EQ(f->commit(*a), 0) << "nothing crashed";
}

// Another lock of the mount still covers the file, so locks do not show it.
TEST_F(client_commit, what_is_being_written_again_stops_when_a_lock_is_given_back)
{
	auto a = open();
	s.era = 1;
	write(*a, 0, "aaaa");
	write(*a, 8, "cccc");
	s.crash();
	s.during_write = [&] { node->changes.let_go(); };
	EXPECT_EQ(f->commit(*a), -EIO);
	EXPECT_EQ(disk(), "aaaa");
}

TEST_F(client_commit, a_disk_that_fails_is_told_and_not_tried_again)
{
	auto a = open();
	write(*a, 0, "aaaa");
	s.commit_error = -EIO;
	EXPECT_EQ(f->commit(*a), -EIO);
	EXPECT_EQ(s.commits, 1u);
	EXPECT_EQ(f->commit(*a), 0);
	EXPECT_EQ(f->written_again(), 0u);
}

TEST_F(client_commit, another_clients_failure_is_one_more_try)
{
	auto a = open();
	write(*a, 0, "aaaa");
	s.verifier++; // storage told another client
	EXPECT_EQ(f->commit(*a), 0);
	EXPECT_EQ(f->written_again(), 1u);
	write(*a, 0, "bbbb");
	s.verifier++;
	s.during_write = [&] { s.commit_error = -EIO; };
	EXPECT_EQ(f->commit(*a), -EIO);
	EXPECT_EQ(f->written_again(), 2u);
}

TEST_F(client_commit, a_verifier_that_never_stays_ends_it)
{
	auto a = open();
	write(*a, 0, "aaaa");
	s.restless = true;
	EXPECT_EQ(f->commit(*a), -EIO);
	EXPECT_LE(s.commits, 10u);
	s.restless = false;
	EXPECT_EQ(f->commit(*a), 0);
}

TEST_F(client_commit, each_byte_goes_through_the_open_file_that_it_came_by)
{
	auto a = open(), b = open(), reads = open(O_RDONLY);
	write(*a, 0, "a");
	write(*b, 1, "b");
	s.crash();
	s.through.clear();
	EXPECT_EQ(f->commit(*reads), 0);
	EXPECT_EQ(s.through, (std::vector<std::uint64_t>{a->open_id, b->open_id}));
	EXPECT_EQ(disk(), "ab");
}

TEST_F(client_commit, an_open_file_that_was_lost_keeps_no_other_from_its_bytes)
{
	auto a = open(), b = open();
	write(*a, 0, "a");
	write(*b, 1, "b");
	s.closed.insert(a->open_id);
	s.crash();
	EXPECT_EQ(f->commit(*a), -EBADF);
	EXPECT_EQ(f->commit(*a), -EBADF) << "and again";
	s.reconnects++;
	EXPECT_TRUE(comes([&] { return disk() == std::string("\0b", 2); }));
	EXPECT_EQ(f->commit(*b), -EIO);
}

TEST_F(client_commit, the_last_close_commits_what_came_after_the_flush)
{
	auto a = open();
	const std::uint64_t id = a->open_id;
	write(*a, 0, "aaaa");
	s.crash();
	f->release(std::move(a));
	EXPECT_EQ(disk(), "aaaa");
	EXPECT_TRUE(s.closed.contains(id));
}

TEST_F(client_commit, what_was_left_of_a_closed_file_is_told_to_the_others)
{
	auto a = open(), b = open();
	write(*a, 0, "aaaa");
	s.hold = true;
	struct killed : asker {
		bool gone() override { return true; }
	};
	{
		killed now;
		EXPECT_EQ(f->commit(*a), -EINTR);
	}
	s.hold = false;
	node->changes.leave(a->open_id);
	s.crash();
	EXPECT_EQ(f->commit(*b), -EIO);
	EXPECT_EQ(disk(), "");
}

TEST_F(client_commit, what_a_lock_guarded_is_not_written_again_after_it)
{
	auto a = open();
	s.era = 1;
	write(*a, 0, "mine");
	EXPECT_EQ(f->unlock(*a, {}), 0);
	s.era = 0;
	s.crash();
	s.cache = s.disk = "next";
	EXPECT_EQ(f->commit(*a), -EIO);
	EXPECT_EQ(disk(), "next");
}

TEST_F(client_commit, nor_when_the_lock_was_lost)
{
	auto a = open();
	s.era = 1;
	write(*a, 0, "mine");
	s.crash();
	s.cache = s.disk = "next";
	s.era = 2;
	EXPECT_EQ(f->commit(*a), -EIO);
	EXPECT_EQ(disk(), "next");
	write(*a, 0, "mine");
	s.crash();
	EXPECT_EQ(f->commit(*a), 0) << "it still holds a lock";
	EXPECT_EQ(disk(), "mine");
}

TEST_F(client_commit, who_is_killed_while_it_writes_again_leaves_it_to_the_next)
{
	auto a = open();
	write(*a, 0, "aaaa");
	write(*a, 8, "bbbb");
	s.crash();
	s.leave = true;
	EXPECT_EQ(f->commit(*a), -EINTR);
	s.leave = false;
	s.left = nullptr; // frees the turn too
	EXPECT_EQ(f->commit(*a), 0);
	EXPECT_EQ(disk(), std::string("aaaa\0\0\0\0bbbb", 12));
}

TEST_F(client_commit, a_connection_that_was_made_again_is_reason_to_look)
{
	auto a = open();
	write(*a, 0, "aaaa");
	s.crash();
	s.reconnects++;
	EXPECT_TRUE(comes([&] { return disk() == "aaaa"; }));
	EXPECT_EQ(f->commit(*a), 0);
}

TEST_F(client_commit, without_commits_at_close_an_fsync_brings_what_others_left)
{
	f = std::make_unique<files>(s, *store, r, table, m, commit_options{1 << 20, false});
	auto a = open();
	write(*a, 0, "aaaa");
	EXPECT_EQ(f->flush(*a), 0);
	f->release(std::move(a));
	EXPECT_EQ(s.commits, 0u);
	auto b = open(O_RDONLY);
	EXPECT_EQ(f->commit(*b), 0);
	EXPECT_EQ(disk(), "aaaa");
	s.commit_error = -ENOSPC;
	EXPECT_EQ(f->commit(*b), -ENOSPC);
}

// After a close without a commit only storage has the bytes, and they may be on its disk.
TEST_F(client_commit, older_bytes_do_not_go_out_over_those_of_a_closed_file)
{
	f = std::make_unique<files>(s, *store, r, table, m, commit_options{1 << 20, false});
	auto a = open(), b = open();
	write(*a, 0, "old old");
	write(*b, 4, "new");
	f->release(std::move(b));
	s.disk = s.cache; // storage wrote them by itself
	s.crash();
	EXPECT_EQ(f->commit(*a), -EIO);
	EXPECT_EQ(disk(), "old new");
}

TEST_F(client_commit, who_left_without_a_commit_is_no_loss_to_a_reader)
{
	f = std::make_unique<files>(s, *store, r, table, m, commit_options{1 << 20, false});
	auto a = open(), reads = open(O_RDONLY);
	write(*a, 0, "aaaa");
	{
		change_order::hold committing; // the committer waits for this; the writer leaves
		ASSERT_EQ(node->committing.take(table.keep(*node), deadline, committing), 0);
		s.reconnects++;
		ASSERT_TRUE(comes([&] { return s.looks > 0; }));
		node->changes.leave(a->open_id);
	}
	for (int i = 0; i < 50; i++) {
		ASSERT_EQ(f->commit(*reads), 0);
		std::this_thread::sleep_for(std::chrono::milliseconds(5));
	}
}

TEST_F(client_commit, without_commits_at_close_a_known_loss_is_told)
{
	f = std::make_unique<files>(s, *store, r, table, m, commit_options{1 << 20, false});
	auto a = open(), b = open();
	write(*a, 0, "aaaa");
	s.commit_error = -ENOSPC;
	EXPECT_EQ(f->commit(*b), -ENOSPC);
	EXPECT_EQ(f->flush(*a), -ENOSPC);
}

TEST_F(client_commit, much_is_committed_in_the_background)
{
	f = std::make_unique<files>(s, *store, r, table, m, commit_options{1 << 20});
	auto a = open();
	for (std::uint64_t i = 0; i < 64; i++)
		write(*a, i << 16, std::string(1 << 16, 'a'));
	EXPECT_TRUE(comes([&] { return s.commits > 0 && !disk().empty(); }));
	EXPECT_EQ(f->commit(*a), 0);
	EXPECT_EQ(disk().size(), 64u << 16);
}

TEST_F(client_commit, who_writes_more_than_can_be_kept_waits_for_a_commit)
{
	f = std::make_unique<files>(s, *store, r, table, m, commit_options{1 << 20});
	auto a = open();
	s.hold = true;
	std::atomic<std::uint64_t> written{0};
	std::thread writer([&] {
		for (std::uint64_t i = 0; i < 64; i++, written++)
			write(*a, i << 16, std::string(1 << 16, 'a'));
	});
	ASSERT_TRUE(comes([&] { return s.commits == 1; }));
	struct killed : asker {
		bool gone() override { return true; }
	};
	ASSERT_TRUE(comes([&] {
		killed now;
		return try_write(*a, 0, "x") == -EINTR;
	}));
	EXPECT_LT(written, 20u);
	s.hold = false;
	writer.join();
	EXPECT_EQ(f->commit(*a), 0);
	EXPECT_EQ(disk().size(), 64u << 16);
}

TEST_F(client_commit, many_small_writes_are_bounded_by_what_they_take)
{
	auto memory = kept_memory::create(64 << 10);
	unstable u;
	u.attach(1, true);
	char byte = 'a';
	const iovec v{&byte, 1};
	std::uint64_t n = 0;
	for (; memory->wait_for_room(std::chrono::milliseconds(1)) == 0; n++)
		u.wrote(*memory, 1, 1, 0, 2 * n, {&v, 1}, 1);
	EXPECT_LT(n * sizeof(unstable::kept), 2 * (64u << 10));
	u.detach(1);
	EXPECT_EQ(memory->used(), 0u);
}

TEST_F(client_commit, memory_that_no_write_needs_goes_back_to_the_system)
{
	auto memory = kept_memory::create();
	const auto take = [&] {
		std::size_t bytes = kept_memory::chunk_max;
		return memory->take(bytes);
	};
	const auto first = take();
	{
		const auto a = take(), b = take();
		EXPECT_FALSE(memory->trim());
	}
	EXPECT_TRUE(memory->trim()) << "two were in use at the last trim";
	{
		const auto again = take();
		EXPECT_FALSE(memory->trim()) << "the other chunk was not needed";
	}
	EXPECT_TRUE(memory->trim());
	EXPECT_FALSE(memory->trim());
	EXPECT_EQ(memory->used(), kept_memory::chunk_max);
}

// Against a plain copy of the bytes. Each justified report of a loss ends a round.
TEST_F(client_commit, any_order_of_writes_cuts_crashes_and_commits)
{
	std::mt19937 rng(7);
	auto a = open(), b = open();
	std::string model;
	bool loose = false;
	for (int i = 0; i < 20000; i++) {
		const std::uint64_t at = rng() % 300, length = 1 + rng() % 60;
		switch (rng() % 12) {
		case 0:
			s.crash();
			break;
		case 1:
		case 2: {
			const int one = f->commit(*a), other = f->commit(*b);
			EXPECT_EQ(one, other);
			if (one) {
				EXPECT_TRUE(loose);
				model = disk();
			}
			loose = false;
			ASSERT_EQ(disk(), model) << "step " << i;
			break;
		}
		case 3:
			if (rng() % 8)
				break;
			ASSERT_EQ(cut(at), 0);
			model.resize(at);
			loose = true;
			break;
		default: {
			const std::string text(length, static_cast<char>('a' + rng() % 26));
			write(rng() % 2 ? *a : *b, at, text);
			if (model.size() < at + length)
				model.resize(at + length);
			model.replace(at, length, text);
		}
		}
	}
	EXPECT_GT(f->written_again(), 1000u);
}

// The page store must not answer with bytes that the failed write may have replaced.
TEST_F(client_commit, a_write_that_failed_halfway_is_looked_at)
{
	auto file = open();
	write(*file, 0, "old");
	const auto before = node->version;
	s.half_writes = true;
	s.write_error = -ENOSPC;
	EXPECT_EQ(try_write(*file, 0, "new"), -ENOSPC);
	EXPECT_EQ(node->version, before + 1);
	s.write_error = 0;
	f->release(std::move(file));
}

} // namespace
} // namespace coop::client
