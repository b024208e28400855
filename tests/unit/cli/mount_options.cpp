// SPDX-License-Identifier: MIT
// mount_options.cpp - which words of -o reach the file system, and which specs are
// refused before anything starts.
#include "userland/cli/mount_options.hpp"

#include <gtest/gtest.h>
#include <sys/mount.h>

using namespace coop::cli;

namespace
{

TEST(options, flags_and_words_part)
{
	const auto o = sort_options({"ro,readahead=64,nosuid", "ib", "ib_devname=rxe0"});
	EXPECT_EQ(o.flags, static_cast<unsigned long>(MS_RDONLY | MS_NOSUID));
	EXPECT_EQ(o.fs_text(), "readahead=64,ib,ib_devname=rxe0");
	EXPECT_EQ(o.fuse_text(), "ro,nosuid,readahead=64,ib,ib_devname=rxe0");
}

TEST(options, later_words_win)
{
	EXPECT_EQ(sort_options({"ro,rw"}).flags, 0u);
	EXPECT_EQ(sort_options({"rw", "ro"}).flags, static_cast<unsigned long>(MS_RDONLY));
	EXPECT_EQ(sort_options({"ro,rw"}).fuse_text(), "");
}

TEST(options, words_of_mount8_go_no_further)
{
	const auto o = sort_options(
		{"defaults,noauto,_netdev,nofail,user,x-systemd.automount,comment=a,,ib,"});
	EXPECT_EQ(o.flags, 0u);
	EXPECT_EQ(o.fuse_text(), "ib");
}

TEST(options, a_remount_is_told_what_was_said)
{
	const auto o = sort_options({"remount,rw,noatime,readahead=64"});
	EXPECT_TRUE(o.remount);
	EXPECT_EQ(o.flags, static_cast<unsigned long>(MS_NOATIME));
	EXPECT_EQ(o.said, static_cast<unsigned long>(MS_RDONLY | MS_NOATIME));
	EXPECT_EQ(o.fs_text(), "readahead=64") << "the word remount does not reach the file system";
	EXPECT_FALSE(sort_options({"ro"}).remount);
}

TEST(options, an_unknown_word_is_left_for_the_file_system_to_refuse)
{
	EXPECT_EQ(sort_options({"raedahead=64"}).fs_text(), "raedahead=64");
}

TEST(spec, parts)
{
	struct {
		const char *text, *server, *port, *path;
	} const rows[] = {
		{"host:/", "host", "", "/"},
		{"host:/data/x", "host", "", "/data/x"},
		{"10.0.0.1:17430:/data", "10.0.0.1", "17430", "/data"},
		{"[fd00::1]:/data", "fd00::1", "", "/data"},
		{"[fd00::1]:1:/data", "fd00::1", "1", "/data"},
		{"host:/a:/b", "host", "", "/a:/b"},
	};
	for (const auto &r : rows) {
		const auto s = parse_spec(r.text);
		ASSERT_TRUE(s) << r.text << ": " << s.error().text;
		EXPECT_EQ(s->servers, std::vector<std::string>{r.server});
		EXPECT_EQ(s->port, r.port);
		EXPECT_EQ(s->export_path, r.path);
	}
}

TEST(spec, many_servers)
{
	using list = std::vector<std::string>;
	struct {
		const char *text;
		list servers;
		const char *port;
	} const rows[] = {
		{"a,b:/data", {"a", "b"}, ""},
		{"10.0.0.1,10.0.0.2:17430:/data", {"10.0.0.1", "10.0.0.2"}, "17430"},
		{"[fd00::1],[fd00::2]:/data", {"fd00::1", "fd00::2"}, ""},
		{"a,[fd00::2],c:1:/data", {"a", "fd00::2", "c"}, "1"},
	};
	for (const auto &r : rows) {
		const auto s = parse_spec(r.text);
		ASSERT_TRUE(s) << r.text << ": " << s.error().text;
		EXPECT_EQ(s->servers, r.servers);
		EXPECT_EQ(s->port, r.port);
		EXPECT_EQ(s->export_path, "/data");
	}
	for (const char *text : {",a:/d", "a,:/d", "a,,b:/d", "[fd00::1],:/d", "a:1,b:2:/d", "a,b"})
		EXPECT_FALSE(parse_spec(text)) << text;
}

TEST(spec, refused)
{
	for (const char *text : {"", "host", "/data", ":/data", "host:", "host:data", "host:0:/d",
				 "host:65536:/d", "host:x:/d", "host::/d", "[fd00::1:/d", "[]:/d",
				 "[fd00::1]/d", "fd00::1:/d", "host:12 :/d"}) {
		const auto s = parse_spec(text);
		ASSERT_FALSE(s) << text;
		EXPECT_EQ(s.error().status, exit_usage);
		EXPECT_NE(s.error().text.find("SERVER[,SERVER...][:PORT]:/EXPORT"),
			  std::string::npos);
	}
	EXPECT_NE(parse_spec("fd00::1:/d").error().text.find("brackets"), std::string::npos);
}

} // namespace
