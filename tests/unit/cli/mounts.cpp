// SPDX-License-Identifier: MIT
// mounts.cpp - mountinfo as kernels write it: optional fields, escapes, mounts
// over mounts.
#include "userland/cli/mounts.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

using namespace coop::cli;

namespace
{

const char *const table =
	"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
	"30 22 0:30 / /mnt rw - tmpfs tmpfs rw\n"
	"31 30 0:31 / /mnt/a rw,nosuid master:1 propagate_from:2 - fuse.coopfs 127.0.0.1:/x "
	"rw,user_id=0\n"
	"32 30 0:32 / /mnt/with\\040blank\\011tab\\134slash rw - coopfs h:1:/y\\040z rw\n"
	"33 31 0:33 / /mnt/a/deep rw - proc proc rw\n";

const mount_entry *at(const std::vector<mount_entry> &all, const std::string &dir)
{
	for (const auto &m : all)
		if (m.mountpoint == dir)
			return &m;
	return nullptr;
}

TEST(mountinfo, fields)
{
	const auto all = parse_mountinfo(table);
	ASSERT_EQ(all.size(), 5u);
	const auto *a = at(all, "/mnt/a");
	ASSERT_TRUE(a);
	EXPECT_EQ(a->type, "fuse.coopfs");
	EXPECT_EQ(a->source, "127.0.0.1:/x");
	EXPECT_EQ(a->id, 31u);
	EXPECT_EQ(a->dev_minor, 31u);
	EXPECT_TRUE(a->is_coopfs());
	EXPECT_FALSE(at(all, "/mnt")->is_coopfs());
}

TEST(mountinfo, octal_escapes)
{
	const auto all = parse_mountinfo(table);
	const auto *m = at(all, "/mnt/with blank\ttab\\slash");
	ASSERT_TRUE(m);
	EXPECT_EQ(m->source, "h:1:/y z");
	EXPECT_EQ(m->dev_minor, 32u);
	EXPECT_TRUE(m->is_coopfs());
}

TEST(mountinfo, escapes_cut_short_are_text)
{
	EXPECT_EQ(unescape_octal("\\040"), " ");
	EXPECT_EQ(unescape_octal("a\\040b\\012"), "a b\n");
	EXPECT_EQ(unescape_octal("\\377"), "\377");
	for (const char *text : {"\\", "\\0", "\\04", "\\048", "\\089", "\\777", "\\x40"})
		EXPECT_EQ(unescape_octal(text), text);
}

TEST(mountinfo, lines_that_are_not_are_passed_over)
{
	EXPECT_TRUE(parse_mountinfo("").empty());
	EXPECT_TRUE(parse_mountinfo("\n\n").empty());
	EXPECT_TRUE(parse_mountinfo("1 2 3 4\n").empty());
	EXPECT_TRUE(parse_mountinfo("1 2 0:1 / /x rw no dash here\n").empty());
	EXPECT_TRUE(parse_mountinfo("1 2 0:1 / /x rw - coopfs\n").empty());
	EXPECT_TRUE(parse_mountinfo("1 2 - coopfs a b c d e f\n").empty());
	EXPECT_EQ(parse_mountinfo("junk\n1 2 0:1 / /x rw - coopfs s:/e").size(), 1u);
}

TEST(mountinfo, a_later_mount_hides_an_earlier)
{
	const auto all = parse_mountinfo("1 0 0:1 / /x rw - fuse.coopfs s:/one rw\n"
					 "2 1 0:2 / /x rw - tmpfs none rw\n");
	ASSERT_EQ(all.size(), 1u);
	EXPECT_EQ(all[0].type, "tmpfs");
}

TEST(mount_of, the_longest_that_contains_it)
{
	const auto all = parse_mountinfo(table);
	EXPECT_EQ(mount_of(all, "/mnt/a")->mountpoint, "/mnt/a");
	EXPECT_EQ(mount_of(all, "/mnt/a/file")->mountpoint, "/mnt/a");
	EXPECT_EQ(mount_of(all, "/mnt/a/deep/x")->mountpoint, "/mnt/a/deep");
	EXPECT_EQ(mount_of(all, "/mnt/ab")->mountpoint, "/mnt") << "only the prefix matches";
	EXPECT_EQ(mount_of(all, "/etc")->mountpoint, "/");
	EXPECT_FALSE(mount_of({}, "/etc"));
}

TEST(canonical, of_what_is_and_is_not_there)
{
	namespace fs = std::filesystem;
	std::string name = (fs::temp_directory_path() / "cli_mounts.XXXXXX").string();
	ASSERT_TRUE(::mkdtemp(name.data()));
	const fs::path dir = fs::canonical(name);
	fs::create_directory(dir / "real");
	fs::create_directory_symlink("real", dir / "link");
	EXPECT_EQ(canonical((dir / "link").string()), (dir / "real").string());
	EXPECT_EQ(canonical((dir / "link/").string()), (dir / "real").string());
	EXPECT_EQ(canonical((dir / "link/gone").string()), (dir / "real/gone").string());
	EXPECT_EQ(canonical((dir / "link/gone/").string()), (dir / "real/gone").string());
	fs::remove_all(dir);
}

} // namespace
