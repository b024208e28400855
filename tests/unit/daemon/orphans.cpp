// SPDX-License-Identifier: MIT
// orphans.cpp - what a daemon does with the nameless files of the one before it: those that clients
// open again stay until their last close, the others go when the grace time ends.
#include "userland/daemon/orphans.hpp"

#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <memory>

#include "tests/lib/scratch.hpp"

using coop::daemon::orphans;

namespace
{

class daemon_orphans : public testing::Test
{
protected:
	std::unique_ptr<orphans> daemon(const std::string &export_id = "x", bool writable = true)
	{
		return std::make_unique<orphans>(root_.get(), export_id, writable);
	}
	// An open file loses its last name.
	void lose(orphans &of, const coop_fid &f)
	{
		const std::string path = all_.path() / "f";
		std::ofstream(path) << "bytes";
		const coop::unique_fd fd(::open(path.c_str(), O_PATH | O_CLOEXEC));
		of.opened(f);
		const orphans::guard hold = of.hold(f);
		ASSERT_EQ(of.keep_locked(f, fd.get()), 0);
		ASSERT_EQ(::unlink(path.c_str()), 0);
		of.settle_locked(f, fd.get());
	}
	static bool there(const orphans &of, const coop_fid &f)
	{
		coop::unique_fd fd;
		return !of.find(f, fd);
	}

	const test::scratch all_{"coopfsd-orphans"};
	const coop::unique_fd root_{
		::open(all_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
	const coop_fid one_{1, 1}, two_{2, 2}, three_{3, 3};
};

TEST_F(daemon_orphans, live_over_a_restart_until_the_last_close)
{
	{
		const auto first = daemon();
		for (const coop_fid &f : {one_, two_, three_})
			lose(*first, f);
		first->freeze();
		first->closed(three_); // the end of its session with that of the daemon
	}
	const auto second = daemon();
	second->opened(one_); // again
	second->opened(three_);
	second->closed(three_);
	EXPECT_TRUE(there(*second, three_)) << "another client may open it again";
	second->end_grace();
	EXPECT_TRUE(there(*second, one_)) << "it is open";
	EXPECT_FALSE(there(*second, two_)) << "no client has opened it again";
	EXPECT_FALSE(there(*second, three_));
	second->closed(one_);
	EXPECT_FALSE(there(*second, one_));
	EXPECT_FALSE(std::filesystem::exists(all_.path() / orphans::directory));
}

TEST_F(daemon_orphans, of_another_export_or_a_read_only_one_stay)
{
	{
		const auto first = daemon();
		lose(*first, one_);
		first->freeze();
	}
	for (const auto &other : {daemon("y"), daemon("x", false)}) {
		other->end_grace();
		EXPECT_TRUE(std::filesystem::exists(all_.path() / orphans::directory));
	}
	EXPECT_TRUE(there(*daemon(), one_));
}

} // namespace
