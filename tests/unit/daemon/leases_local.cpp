// SPDX-License-Identifier: MIT
// leases_local.cpp - names that a program of the daemon's machine makes in a leased directory,
// while a client changes the directory or where change times are coarse.
#include "rig.hpp"

#include <sys/inotify.h>
#include <sys/syscall.h>

namespace
{
std::atomic<int> watches_left{1 << 20};
} // namespace

// Replaces the C library's: as if fs.inotify.max_user_watches were reached.
extern "C" int inotify_add_watch(int fd, const char *name, std::uint32_t events) noexcept
{
	if (watches_left-- > 0)
		return static_cast<int>(::syscall(SYS_inotify_add_watch, fd, name, events));
	errno = ENOSPC;
	return -1;
}

using namespace coop::daemon;

namespace
{

class daemon_leases_local : public testing::Test
{
protected:
	// A file system that cannot be probed counts as one with coarse times.
	std::unique_ptr<exported> share(bool coarse) const
	{
		export_spec spec{"data", all.path().string()};
		spec.read_only = coarse;
		return std::make_unique<exported>(spec, coop::digest{}, false);
	}
	inode_ref dir(const std::string &name)
	{
		std::filesystem::create_directory(all.path() / name);
		coop::unique_fd path;
		exported::named f;
		inode_ref out;
		EXPECT_EQ(in->walk(in->root(), name.c_str(), path), 0);
		EXPECT_EQ(in->name_of(path.get(), "", name, f), 0);
		EXPECT_EQ(inodes.put(*in, f, std::move(path), S_IFDIR, out), 0);
		return out;
	}
	void make(const std::string &name) const { std::ofstream(all.path() / name) << "x"; }
	// As a request that looks at the directory.
	bool lease(const inode_ref &d)
	{
		const auto given = leases.grant(client, d);
		return given && leases.tell(client.get(), d->fid, given, now(d));
	}
	static coop_st_time now(const inode_ref &d)
	{
		struct stat st;
		EXPECT_EQ(::fstatat(d->path.get(), "", &st, AT_EMPTY_PATH), 0);
		return {st.st_ctim.tv_sec, static_cast<u32>(st.st_ctim.tv_nsec)};
	}
	bool holds(const inode_ref &d) const { return leases.holds(client.get(), d->fid); }
	bool is_recalled(const inode_ref &d) const
	{
		return rig::eventually([&] { return !holds(d); });
	}
	// All events so far have been handled. One reading may bring those of several directories,
	// in any order, so two are needed.
	void handle_events()
	{
		for (int i = 0; i < 2; i++) {
			const std::string name = "events" + std::to_string(markers_++);
			const inode_ref d = dir(name);
			ASSERT_TRUE(lease(d));
			make(name + "/new");
			ASSERT_TRUE(is_recalled(d));
		}
	}

	const test::scratch all{"coopfsd-local"};
	std::unique_ptr<exported> in = share(false);
	inode_table inodes{256};
	std::shared_ptr<session> client = std::make_shared<session>("client");
	lease_table leases{inodes};

private:
	int markers_ = 0;
};

} // namespace

TEST_F(daemon_leases_local, a_name_made_while_a_client_changes_the_directory_is_told)
{
	for (int i = 0; i < 50; i++) {
		const std::string at = "d" + std::to_string(i);
		const inode_ref d = dir(at);
		ASSERT_TRUE(lease(d));
		const lease_table::extent change{{d->fid}, {{0, "own"}}};
		ASSERT_TRUE(leases.begin(client, change, 1, nullptr));
		make(at + "/foreign");
		make(at + "/own");
		// The event comes while the change runs, or after it.
		if (i % 2)
			ASSERT_TRUE(is_recalled(d)) << i;
		(void)leases.tell(client.get(), d->fid, 0, now(d));
		leases.end(change, true);
		ASSERT_TRUE(is_recalled(d)) << i;
		leases.give_back(client.get(), d->fid);
	}
}

TEST_F(daemon_leases_local, above_the_kernels_number_of_watches_none_is_given)
{
	const inode_ref one = dir("one"), other = dir("other");
	watches_left = 1;
	EXPECT_TRUE(lease(one));
	EXPECT_FALSE(lease(other));
	EXPECT_TRUE(holds(one));
	watches_left = 1 << 20;
	EXPECT_TRUE(lease(other));
}

TEST_F(daemon_leases_local, a_clients_own_names_are_known)
{
	const inode_ref d = dir("d"), other = dir("other");
	ASSERT_TRUE(lease(d));
	ASSERT_TRUE(lease(other));
	for (int i = 0; i < 200; i++) {
		const std::string name = std::to_string(i);
		lease_table::extent change{{d->fid}, {{0, name}}};
		ASSERT_TRUE(leases.begin(client, change, 1, nullptr));
		make("d/" + name);
		leases.end(change, true);
		change.files.push_back(other->fid);
		change.names.emplace_back(1, name);
		ASSERT_TRUE(leases.begin(client, change, 2, nullptr));
		std::filesystem::rename(all.path() / "d" / name, all.path() / "other" / name);
		leases.end(change, true);
		if (i % 16 == 15)
			handle_events();
	}
	EXPECT_TRUE(holds(d));
	EXPECT_TRUE(holds(other));
}

// A program makes the name that a client failed to make.
TEST_F(daemon_leases_local, a_change_that_failed_explains_nothing)
{
	const inode_ref d = dir("d");
	ASSERT_TRUE(lease(d));
	const lease_table::extent failed{{d->fid}, {{0, "name"}}}, other{{d->fid}, {}};
	ASSERT_TRUE(leases.begin(client, failed, 1, nullptr));
	leases.end(failed, false);
	ASSERT_TRUE(leases.begin(client, other, 1, nullptr));
	make("d/name");
	leases.end(other, true);
	ASSERT_TRUE(is_recalled(d));
}

// The second name is made in the tick in which the holder looked.
TEST_F(daemon_leases_local, a_name_made_at_the_change_time_that_the_holder_knows_is_told)
{
	in = share(true);
	for (int i = 0; i < 50; i++) {
		const std::string at = "d" + std::to_string(i);
		const inode_ref d = dir(at);
		const auto given = leases.grant(client, d);
		ASSERT_TRUE(given);
		make(at + "/name");
		(void)leases.tell(client.get(), d->fid, given, now(d));
		ASSERT_TRUE(is_recalled(d)) << i;
		leases.give_back(client.get(), d->fid);
	}
}
