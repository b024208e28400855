// SPDX-License-Identifier: MIT
// leases_opens.cpp - what an OPEN leaves at the daemon: a lease and a guard if the caller may
// read the file, nothing otherwise.
#include "rig.hpp"

#include <thread>

#include "userland/client/leased_storage.hpp"
#include "userland/daemon/session.hpp"

using namespace rig;

namespace
{

// A client with leases that counts recalls and never returns a lease by itself.
struct holder {
	std::atomic<unsigned> recalls{0};
	std::unique_ptr<storage> s; // ends first

	explicit holder(storage_options o)
	{
		o.leases = true;
		o.on_recall = [this](const coop_fid &) { recalls++; };
		s = coop::client::connect_without_leases(o);
	}
};

} // namespace

class daemon_leases_opens : public daemon_test
{
protected:
	const caller stranger_{12345, 12345, {}};

	void SetUp() override
	{
		daemon_test::SetUp();
		put("f", "0123456789");
		settle();
	}
	// Change times must prove the contents of files, even where they are coarse.
	static void settle() { std::this_thread::sleep_for(std::chrono::milliseconds(60)); }
	std::size_t held() { return server_->files().leases.held(); }
	// Runs change() after the request got its lease: before storage looks at the file,
	// before it judges, or after both, by chance.
	template <class request, class act>
	void pause_after_grant(coop::daemon::inode &node, request ask, act change)
	{
		const std::size_t before = held();
		std::atomic<bool> done{false};
		std::thread asker([&] {
			ask();
			done = true;
		});
		while (held() == before && !done)
			std::this_thread::yield();
		std::unique_lock still(node.mutex, std::defer_lock);
		while (!still.try_lock())
			;
		change();
		still.unlock();
		asker.join();
	}
	// False if a guard is in the way.
	bool append(const std::string &name)
	{
		const coop::unique_fd fd(::open((tree_ / name).c_str(),
						O_WRONLY | O_APPEND | O_NONBLOCK | O_CLOEXEC));
		EXPECT_TRUE(!fd || ::write(fd.get(), "x", 1) == 1);
		return bool(fd);
	}
	bool is_guarded(const std::string &name)
	{
		const coop::unique_fd fd(
			::open((tree_ / name).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
		EXPECT_TRUE(fd || errno == EWOULDBLOCK) << std::strerror(errno);
		return !fd;
	}
};

TEST_F(daemon_leases_opens, who_may_not_read_gets_no_lease)
{
	if (::geteuid())
		GTEST_SKIP() << "needs root";
	::chmod((tree_ / "f").c_str(), 0600);
	settle();
	up();
	holder a(client_options());
	const entry f = find("f");
	const std::size_t before = held();
	open_result o{};
	ASSERT_EQ(a.s->open(stranger_, f.fh, O_RDONLY, 0, o), -EACCES);
	EXPECT_EQ(held(), before);
	EXPECT_FALSE(is_guarded("f"));
	EXPECT_EQ(a.recalls, 0u);
	ASSERT_EQ(a.s->open(me(), f.fh, O_RDONLY, 0, o), 0);
	EXPECT_TRUE(o.attr.leased && !o.attr.ask_open);
	EXPECT_EQ(held(), before + 1);
	EXPECT_TRUE(is_guarded("f"));
	a.s->close_reader(f.fh, o.open_id);
}

// The client owns the lease; its other users continue to use it.
TEST_F(daemon_leases_opens, a_refusal_leaves_what_was_told_before)
{
	if (::geteuid())
		GTEST_SKIP() << "needs root";
	::chmod((tree_ / "f").c_str(), 0600);
	settle();
	up();
	holder a(client_options());
	entry f;
	ASSERT_EQ(a.s->lookup(me(), a.s->root().fh, "f", f), 0);
	ASSERT_TRUE(f.attr.leased);
	const std::size_t before = held();
	open_result o{};
	ASSERT_EQ(a.s->open(stranger_, f.fh, O_RDONLY, 0, o), -EACCES);
	EXPECT_EQ(held(), before);
	EXPECT_EQ(a.recalls, 0u);
	EXPECT_FALSE(is_guarded("f"));
	std::thread changer([&] {
		storage::setattr_request q{};
		write_result r;
		q.valid = storage::set_mode;
		q.mode = 0640;
		EXPECT_EQ(client_->setattr(me(), f.fh, q, r), 0);
	});
	EXPECT_TRUE(eventually([&] { return a.recalls == 1; })) << "the client relies on the lease";
	a.s->return_lease(f.attr.fid, [] {});
	changer.join();
}

// The guards reserved for opens within leases are for permitted opens.
TEST_F(daemon_leases_opens, refusals_use_up_no_guards)
{
	if (::geteuid())
		GTEST_SKIP() << "needs root";
	settings_.max_inodes = 16;
	std::vector<std::string> names;
	for (int i = 0; i < 16; i++) {
		names.push_back("many" + std::to_string(i));
		put(names.back(), "x");
		::chmod((tree_ / names.back()).c_str(), 0600);
	}
	settle();
	start();
	holder a(client_options());
	std::vector<entry> files(names.size());
	for (std::size_t i = 0; i < names.size(); i++) {
		open_result o{};
		ASSERT_EQ(a.s->lookup(me(), a.s->root().fh, names[i], files[i]), 0);
		ASSERT_EQ(a.s->open(stranger_, files[i].fh, O_RDONLY, 0, o), -EACCES);
	}
	for (std::size_t i = files.size() - 3; i < files.size(); i++) {
		open_result o{};
		ASSERT_EQ(a.s->open(me(), files[i].fh, O_RDONLY, 0, o), 0);
		EXPECT_TRUE(o.attr.leased && !o.attr.ask_open) << names[i];
		a.s->close_reader(files[i].fh, o.open_id);
	}
}

// A guard must not grant a right that the mode in the same reply denies.
TEST_F(daemon_leases_opens, a_right_goes_with_the_mode_that_is_told)
{
	if (::geteuid())
		GTEST_SKIP() << "needs root";
	up();
	const entry f = find("f");
	const auto node = server_->files().inodes.find(f.fh);
	ASSERT_TRUE(node);
	for (int i = 0; i < 40; i++) {
		::chmod((tree_ / "f").c_str(), 0644);
		settle();
		holder a(client_options());
		open_result o{};
		int opened = 1;
		pause_after_grant(
			*node, [&] { opened = a.s->open(stranger_, f.fh, O_RDONLY, 0, o); },
			[&] { ::chmod((tree_ / "f").c_str(), 0600); });
		ASSERT_TRUE(opened == 0 || opened == -EACCES) << opened;
		if (opened)
			continue;
		if (o.attr.leased) {
			EXPECT_EQ(o.attr.st.st_mode & 07777, 0644u) << "0600 would refuse";
			EXPECT_TRUE(eventually([&] { return a.recalls == 1; }));
		}
		a.s->close_reader(f.fh, o.open_id);
	}
}

// Storage does not report a store that ended before the guard: no lease covers the time before
// its guard.
TEST_F(daemon_leases_opens, a_store_before_the_guard_is_no_secret)
{
	up();
	const entry f = find("f");
	const auto node = server_->files().inodes.find(f.fh);
	ASSERT_TRUE(node);
	unsigned between = 0;
	// Few changes come in between where the processors are busy.
	const auto end = std::chrono::steady_clock::now() + deadline / 3;
	for (int i = 0; i < 20 || (between == 0 && std::chrono::steady_clock::now() < end); i++) {
		settle();
		holder a(client_options());
		open_result o{};
		struct stat st;
		pause_after_grant(
			*node, [&] { EXPECT_EQ(a.s->open(me(), f.fh, O_RDONLY, 4096, o), 0); },
			[&] {
				between += append("f"); // and closes it: a guard would be granted
				EXPECT_EQ(::stat((tree_ / "f").c_str(), &st), 0);
			});
		EXPECT_TRUE(!o.attr.leased || o.attr.st.st_size == st.st_size)
			<< "an old size, " << o.attr.st.st_size << ", as if it could not change";
		a.s->close_reader(f.fh, o.open_id);
	}
	if (between == 0)
		GTEST_SKIP() << "this machine is too busy: no store came in between";
}

// Of two replies, the one with the older look at the file may leave last.
TEST_F(daemon_leases_opens, what_is_older_than_what_was_told_is_not_told)
{
	up();
	const auto node = server_->files().inodes.find(find("f").fh);
	ASSERT_TRUE(node);
	auto &table = server_->files().leases;
	const auto early = std::make_shared<coop::daemon::session>("early"),
		   late = std::make_shared<coop::daemon::session>("late");
	const auto first = table.grant(early, node), second = table.grant(late, node);
	ASSERT_TRUE(first && second);
	struct stat st;
	ASSERT_EQ(::stat((tree_ / "f").c_str(), &st), 0);
	const coop_st_time now{st.st_ctim.tv_sec, static_cast<u32>(st.st_ctim.tv_nsec)},
		before{now.sec - 1, now.nsec};
	EXPECT_TRUE(table.tell(late.get(), node->fid, second, now));
	EXPECT_FALSE(table.tell(early.get(), node->fid, first, before));
	table.forgo(early.get(), node->fid, first);
	EXPECT_FALSE(table.holds(early.get(), node->fid));
	EXPECT_TRUE(table.holds(late.get(), node->fid)) << "it has the current state";
	table.give_back_all(late.get());
}
