// SPDX-License-Identifier: MIT
// limits.cpp - the daemon's limits, leases of other programs on its machine, and what a daemon
// without root can do.
#include "rig.hpp"

#include <atomic>
#include <sys/wait.h>
#include <thread>

using namespace rig;

using daemon_limits = daemon_test;

namespace
{

std::string numbered(int i)
{
	return "file-" + std::to_string(i);
}

} // namespace

TEST_F(daemon_limits, more_files_than_descriptors_are_served_one_after_another)
{
	settings_.max_inodes = 16;
	up();
	for (int i = 0; i < 100; i++)
		put(numbered(i), std::to_string(i));
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < 100; i++) {
			const entry e = find(numbered(i));
			const open_result o = open(e, O_RDONLY);
			EXPECT_EQ(read_text(*client_, e, o.open_id, 0, 10), std::to_string(i));
			write_result w{};
			EXPECT_EQ(client_->close(e.fh, o.open_id, w), 0);
			EXPECT_LE(server_->files().inodes.size(), 16u);
		}
}

TEST_F(daemon_limits, a_file_is_refused_only_when_all_are_in_use)
{
	settings_.max_inodes = 16;
	up();
	auto other = connect();
	for (int i = 0; i < 20; i++)
		put(numbered(i), "x");
	std::vector<std::pair<entry, open_result>> held;
	const auto open_by = [&](storage &s, int i) {
		entry e;
		open_result o{};
		int err = s.lookup(me(), s.root().fh, numbered(i), e);
		if (!err)
			err = s.open(me(), e.fh, O_RDONLY, 0, o);
		if (!err)
			held.emplace_back(e, o);
		return err;
	};
	for (int i = 0; i < 8; i++)
		ASSERT_EQ(open_by(*client_, i), 0) << i;
	EXPECT_EQ(open_by(*client_, 8), -EMFILE) << "one client gets at most half";
	// All but the one that the directory needs for a moment.
	for (int i = 8; i < 15; i++)
		ASSERT_EQ(open_by(*other, i), 0) << i;
	EXPECT_EQ(open_by(*other, 15), -ENFILE);
	EXPECT_EQ(read_text(*client_, held[0].first, held[0].second.open_id, 0, 1), "x");
	EXPECT_EQ(server_->files().inodes.size(), 16u);
	write_result w{};
	EXPECT_EQ(client_->close(held[0].first.fh, held[0].second.open_id, w), 0);
	EXPECT_EQ(open_by(*other, 15), 0);
}

TEST_F(daemon_limits, a_client_too_many_is_refused_until_another_one_ends)
{
	settings_.max_connections = 2;
	up();
	auto second = connect();
	EXPECT_THROW(connect(), std::runtime_error);
	EXPECT_EQ(client_->ping(), 0);
	EXPECT_EQ(second->ping(), 0);
	second.reset();
	EXPECT_TRUE(eventually([&] {
		try {
			second = connect();
			return true;
		} catch (const std::runtime_error &) {
			return false;
		}
	}));
}

// A program on the daemon's machine, here this one, holds a lease: opening waits until the
// program returns it, or for lease-break-time, which is longer than the client waits.
TEST_F(daemon_limits, a_local_lease_holder_keeps_nobody_else_waiting)
{
	up();
	put("leased", "text");
	put("free", "text");
	const entry e = find("leased");
	const coop::unique_fd holder(::open((tree_ / "leased").c_str(), O_RDWR | O_CLOEXEC));
	if (::fcntl(holder.get(), F_SETLEASE, F_WRLCK))
		GTEST_SKIP() << "SKIPPED: no leases on this file system";
	std::atomic<unsigned> opened{0};
	std::vector<std::thread> waiting;
	for (unsigned i = 0; i < 2 * settings_.threads; i++)
		waiting.emplace_back([&] {
			open_result o{};
			entry made;
			const int err = opened % 2
						? client_->open(me(), e.fh, O_RDWR, 0, o)
						: client_->create(me(), client_->root().fh,
								  "leased", O_RDWR, 0644, made, o);
			EXPECT_EQ(err, 0);
			opened++;
		});
	const auto &calls = server_->files().stats.calls;
	EXPECT_TRUE(eventually(
		[&] { return calls[COOP_ST_OPEN] + calls[COOP_ST_CREATE] >= settings_.threads; }));
	for (int i = 0; i < 10; i++)
		open(find("free"), O_RDONLY);
	EXPECT_EQ(opened, 0u);
	attributes a;
	EXPECT_EQ(client_->getattr(me(), e.fh, a), 0) << "a getattr does not wait";
	EXPECT_EQ(::fcntl(holder.get(), F_SETLEASE, F_UNLCK), 0);
	for (std::thread &t : waiting)
		t.join();
	EXPECT_EQ(opened, 2 * settings_.threads);
}

// In a child, because it cannot become root again.
TEST_F(daemon_limits, a_daemon_that_is_not_root_gives_creators_what_they_open)
{
	const std::string state = (base_ / "state").string();
	std::filesystem::create_directory(state);
	const uid_t other = ::geteuid() ? ::geteuid() : 4101;
	for (const std::string &dir : {tree_.string(), state})
		ASSERT_EQ(::chown(dir.c_str(), other, static_cast<gid_t>(-1)), 0);
	const pid_t child = ::fork();
	if (child == 0) {
		if (::setresuid(other, other, other))
			::_exit(2);
		up();
		entry e;
		open_result o{};
		write_result w{};
		const auto root = client_->root().fh;
		EXPECT_EQ(client_->create(me(), root, "f", O_RDWR | O_EXCL, 0444, e, o), 0);
		EXPECT_EQ(write_text(*client_, e, o.open_id, 0, "text", w), 0);
		EXPECT_EQ(read_text(*client_, e, o.open_id, 0, 10), "text");
		storage::setattr_request s{};
		s.valid = storage::set_size;
		s.size = 2;
		EXPECT_EQ(client_->setattr(me(), e.fh, s, w), -EACCES) << "as truncate(2)";
		s.by = o.open_id;
		EXPECT_EQ(client_->setattr(me(), e.fh, s, w), 0) << "as ftruncate(2)";
		open_result again{};
		EXPECT_EQ(client_->open(me(), e.fh, O_RDWR, 0, again), -EACCES);
		EXPECT_EQ(client_->close(e.fh, o.open_id, w), 0);
		EXPECT_EQ(client_->create(me(), root, "g", O_RDONLY | O_EXCL, 0, e, o), 0);
		EXPECT_EQ(read_text(*client_, e, o.open_id, 0, 10), "");
		// It cannot become another user, and must not lend its own rights to one.
		for (const caller &who : {caller{other + 1, other + 1, {}}, caller{0, 0, {}}}) {
			EXPECT_EQ(client_->create(who, root, "h", O_RDWR, 0666, e, o), -EACCES);
			EXPECT_EQ(client_->open(who, find("f").fh, O_RDONLY, 0, o), -EACCES);
			EXPECT_EQ(client_->lookup(who, root, "f", e), -EACCES);
			EXPECT_EQ(client_->unlink(who, root, "f"), -EACCES);
		}
		client_.reset();
		server_.reset();
		::_exit(HasFailure() ? 1 : 0);
	}
	int status = 0;
	ASSERT_EQ(::waitpid(child, &status, 0), child);
	EXPECT_EQ(status, 0);
}

// One thread may remove a file while another closes it last.
TEST(inode_table, what_is_discarded_while_held_goes_with_its_last_holder)
{
	const test::scratch all("coopfsd-inodes");
	std::ofstream(all.path() / "f") << "x";
	const coop::daemon::exported in({"data", all.path().string()}, {}, false);
	coop::unique_fd path;
	coop::daemon::exported::named f;
	ASSERT_EQ(in.walk(in.root(), "f", path), 0);
	ASSERT_EQ(in.name_of(path.get(), "", "f", f), 0);
	coop::daemon::inode_table table(4);
	coop::daemon::inode_ref one;
	ASSERT_EQ(table.put(in, f, std::move(path), S_IFREG, one), 0);
	table.discard(f.handle);
	coop::daemon::inode_ref another = table.find(f.handle);
	EXPECT_EQ(another, one);
	one.reset();
	EXPECT_EQ(table.size(), 1u);
	another.reset();
	EXPECT_EQ(table.size(), 0u);
	EXPECT_EQ(table.idle(), 0u);
}
