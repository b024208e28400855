// SPDX-License-Identifier: MIT
// state_directory.cpp - what the daemon keeps for itself: files appear whole, nobody else writes
// there, and what another user may have put there is not believed.
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/scratch.hpp"
#include "userland/daemon/handle_key.hpp"
#include "userland/daemon/lock_recovery.hpp"
#include "userland/daemon/stability.hpp"

namespace
{

using namespace coop::daemon;

constexpr uid_t nobody = 65534;
const std::string session(COOP_ST_SESSION, '\x11'); // whose file has this name:
const std::string session_file(2 * COOP_ST_SESSION, '1');

class daemon_state_directory : public testing::Test
{
protected:
	std::string path(const std::string &name = "state")
	{
		return (base_.path() / name).string();
	}
	std::string inside(const std::string &name) { return path() + "/" + name; }
	mode_t mode(const std::string &of)
	{
		struct stat st = {};
		EXPECT_EQ(::lstat(of.c_str(), &st), 0) << of;
		return st.st_mode & 07777;
	}
	void make(const std::string &dir, mode_t m)
	{
		std::filesystem::create_directories(dir);
		::chmod(dir.c_str(), m);
	}
	void put(const std::string &file, const std::string &text, mode_t m = 0600)
	{
		std::ofstream(file) << text;
		::chmod(file.c_str(), m);
	}
	std::string get(const std::string &file)
	{
		std::ifstream f(file);
		return {std::istreambuf_iterator<char>(f), {}};
	}
	// What the constructor says when it refuses.
	std::string refusal(const std::string &dir)
	{
		try {
			const state_directory s(dir);
		} catch (const std::runtime_error &e) {
			return e.what();
		}
		return {};
	}
	std::string key_refusal(const state_directory &s)
	{
		try {
			(void)handle_key({}, s);
		} catch (const std::runtime_error &e) {
			return e.what();
		}
		return {};
	}

	test::scratch base_{"coopfsd-state"};
};

TEST_F(daemon_state_directory, what_it_makes_is_the_owners_alone)
{
	const mode_t before = ::umask(0);
	const state_directory s(path("up/there/state"));
	std::filesystem::create_symlink(path("up/there/state"), path());
	const lock_recovery locks(s);
	(void)handle_key({}, s);
	const stability stable(s, "boot");
	EXPECT_EQ(s.replace("f", "x", synced::no), 0);
	::umask(before);
	EXPECT_EQ(mode(s.path()), 0700u);
	EXPECT_EQ(mode(inside("locks")), 0700u);
	for (const char *name : {"handle.key", "verifier", "f"})
		EXPECT_EQ(mode(inside(name)), 0600u) << name;
}

TEST_F(daemon_state_directory, files_are_written_whole_or_not_at_all)
{
	const state_directory s(path());
	std::string text;
	EXPECT_EQ(s.read("f", text), -ENOENT);
	EXPECT_EQ(s.create("f", "first", synced::yes), 0);
	EXPECT_EQ(s.create("f", "second", synced::yes), -EEXIST);
	EXPECT_EQ(s.read("f", text), 0);
	EXPECT_EQ(text, "first");
	EXPECT_EQ(s.replace("f", "third", synced::no), 0);
	EXPECT_EQ(s.read("f", text), 0);
	EXPECT_EQ(text, "third");
	EXPECT_EQ(s.names(), std::vector<std::string>{"f"}); // and nothing under another name
	std::filesystem::create_directory(inside("d"));
	EXPECT_LT(s.replace("d", "text", synced::no), 0);
	EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path()), {}), 2);
	EXPECT_EQ(s.remove("f"), 0);
	EXPECT_EQ(s.remove("f"), -ENOENT);
}

TEST_F(daemon_state_directory, links_are_not_followed)
{
	const state_directory s(path());
	std::string text;
	put(path("victim"), "victim");
	for (const char *name : {"f", "verifier", "verifier.new"})
		std::filesystem::create_symlink(path("victim"), inside(name));
	EXPECT_EQ(s.read("f", text), -EPERM);
	EXPECT_EQ(s.create("f", "text", synced::no), -EEXIST);
	EXPECT_EQ(s.replace("f", "text", synced::no), 0);
	stability stable(s, "boot");
	stable.failed({1, 1});
	EXPECT_EQ(get(path("victim")), "victim");
	EXPECT_EQ(get(inside("f")), "text");

	std::filesystem::create_directory(path("elsewhere"));
	std::filesystem::create_directory_symlink(path("elsewhere"), inside("locks"));
	EXPECT_THROW((void)s.below("locks"), std::runtime_error);
}

TEST_F(daemon_state_directory, one_that_others_may_write_is_refused)
{
	for (const mode_t m : {0777u, 0770u, 0707u, 01777u}) {
		make(path(), m);
		put(inside("somebody's"), "");
		EXPECT_NE(refusal(path()).find("chmod 700"), std::string::npos) << m;
		EXPECT_EQ(mode(path()), m); // it may be /tmp
	}
	make(path("open"), 0777);
	make(path("open/state"), 0700);
	EXPECT_NE(refusal(path("open/state")).find("directory above"), std::string::npos);
	make(path("open"), 01777);
	EXPECT_EQ(refusal(path("open/state")), "");
}

// Daemons used to make it writable by all.
TEST_F(daemon_state_directory, one_of_an_earlier_daemon_is_closed)
{
	make(inside("locks"), 0777);
	make(path(), 0777);
	put(inside("handle.key"), std::string(32, 'k'));
	put(inside("verifier"), "boot 1\n");
	put(inside("locks/") + session_file, "");
	const state_directory s(path());
	lock_recovery locks(s);
	EXPECT_EQ(mode(path()), 0700u);
	EXPECT_EQ(mode(inside("locks")), 0700u);
	EXPECT_EQ(key_refusal(s), "");
	EXPECT_TRUE(locks.may_reclaim(session));
}

TEST_F(daemon_state_directory, what_others_may_have_put_there_is_not_believed)
{
	if (::geteuid())
		GTEST_SKIP() << "only root can give files to others";
	const state_directory s(path());
	make(inside("locks"), 0700);
	put(inside("verifier"), "boot 1\n");
	put(inside("locks/") + session_file, "");
	put(inside("handle.key"), std::string(32, 'k'));
	const std::uint64_t trusted = stability(s, "boot").verifier(0, {});
	for (const std::string &name :
	     {std::string("verifier"), std::string("handle.key"), "locks/" + session_file})
		ASSERT_EQ(::chown(inside(name).c_str(), nobody, nobody), 0);
	EXPECT_NE(stability(s, "boot").verifier(0, {}), trusted);
	EXPECT_FALSE(lock_recovery(s).in_grace());
	EXPECT_NE(key_refusal(s).find("Remove it"), std::string::npos);

	ASSERT_EQ(::chown(inside("locks").c_str(), nobody, nobody), 0);
	EXPECT_THROW((void)s.below("locks"), std::runtime_error);
	ASSERT_EQ(::chown(path().c_str(), nobody, nobody), 0);
	EXPECT_NE(refusal(path()).find("belongs to user 65534"), std::string::npos);
}

TEST_F(daemon_state_directory, the_handle_key_is_secret_and_survives)
{
	const state_directory s(path());
	const coop::digest first = handle_key({}, s);
	EXPECT_EQ(handle_key({}, s), first);
	::chmod(inside("handle.key").c_str(), 0644);
	EXPECT_NE(key_refusal(s).find("0600"), std::string::npos);
	::chmod(inside("handle.key").c_str(), 0600);
	std::filesystem::create_hard_link(inside("handle.key"), path("other name"));
	EXPECT_NE(key_refusal(s), "");
	std::filesystem::remove(path("other name"));
	EXPECT_EQ(handle_key({}, s), first);
}

// What crashes have left of keys that were not synced.
TEST_F(daemon_state_directory, a_damaged_handle_key_is_made_anew)
{
	const state_directory s(path());
	for (const std::string &left :
	     {std::string(), std::string(31, 'k'), std::string(64, '\0')}) {
		put(inside("handle.key"), left);
		const coop::digest fresh = handle_key({}, s);
		EXPECT_EQ(handle_key({}, s), fresh);
		EXPECT_NE(get(inside("handle.key")), left);
	}
}

TEST_F(daemon_state_directory, without_one_the_daemon_goes_on)
{
	put(path("file"), "");
	const state_directory s(path("file") + "/state");
	std::string text;
	EXPECT_EQ(s.error(), -ENOTDIR);
	EXPECT_EQ(s.read("f", text), -ENOTDIR);
	EXPECT_EQ(s.replace("f", "", synced::no), -ENOTDIR);
	EXPECT_EQ(s.below("locks").error(), -ENOTDIR);
	EXPECT_NE(handle_key({}, s), handle_key({}, s));
	lock_recovery locks(s);
	locks.holds(session);
	EXPECT_FALSE(locks.in_grace());
}

TEST_F(daemon_state_directory, published_files_replace_files_only)
{
	put(path("victim"), "victim");
	EXPECT_EQ(publish(path("figures"), "one"), 0);
	EXPECT_EQ(publish(path("figures"), "two"), 0);
	EXPECT_EQ(get(path("figures")), "two");
	EXPECT_FALSE(mode(path("figures")) & 0133);
	std::filesystem::create_symlink(path("victim"), path("link"));
	EXPECT_EQ(publish(path("link"), "text"), -ELOOP);
	EXPECT_EQ(get(path("victim")), "victim");
	EXPECT_EQ(publish("/dev/null", "text"), 0);
	struct stat st = {};
	EXPECT_TRUE(!::stat("/dev/null", &st) && S_ISCHR(st.st_mode));
}

} // namespace
