// SPDX-License-Identifier: MIT
// format.cpp - numbers at the limits of their units, and aligned columns.
#include "userland/cli/format.hpp"

#include <gtest/gtest.h>

#include <sstream>

using namespace coop::cli;

namespace
{

TEST(human, bytes)
{
	EXPECT_EQ(human_bytes(0), "0 B");
	EXPECT_EQ(human_bytes(1023), "1023 B");
	EXPECT_EQ(human_bytes(1024), "1.0 KiB");
	EXPECT_EQ(human_bytes(1536), "1.5 KiB");
	EXPECT_EQ(human_bytes(1048575), "1.0 MiB") << "not 1024.0 KiB";
	EXPECT_EQ(human_bytes(1073741824.0), "1.0 GiB");
	EXPECT_EQ(human_bytes(18446744073709551615.0), "16.0 EiB");
	EXPECT_EQ(human_rate(2048), "2.0 KiB/s");
}

TEST(human, time_and_share)
{
	EXPECT_EQ(at_most_us(0), "-");
	EXPECT_EQ(at_most_us(64), "<64 us");
	EXPECT_EQ(at_most_us(1024), "<1.0 ms");
	EXPECT_EQ(at_most_us(2097152), "<2.1 s");
	EXPECT_EQ(percent(0, 0), "-");
	EXPECT_EQ(percent(1, 3), "33.3 %");
	EXPECT_EQ(percent(3, 3), "100.0 %");
}

TEST(text, columns_count_characters)
{
	EXPECT_EQ(columns("abc"), 3u);
	EXPECT_EQ(columns("\xe2\x96\x88\xe2\x96\x8c "), 3u);
}

TEST(text, a_mount_cannot_drive_the_terminal)
{
	EXPECT_EQ(printable("a\x1b[2Jb\n"), "a?[2Jb?");
	peer_record p;
	p.gid = "\x1b]0;x\a";
	p.qpn = "0x1";
	p.state = "\x1b[31m";
	EXPECT_EQ(peers_table({p}).find('\x1b'), std::string::npos);
}

TEST(table, columns_line_up)
{
	table t({"name", "n"});
	t.add({"a", "1"});
	t.add({"longer", "1000"});
	EXPECT_EQ(t.text(), "name       n\n"
			    "a          1\n"
			    "longer  1000\n");
}

TEST(stats_table, shares_of_what_was_read)
{
	mount_stats s;
	s.sources[peer].bytes = 3 << 20;
	s.sources[peer].latency[7] = 10;
	s.sources[storage].bytes = 1 << 20;
	s.traffic["storage"].rx_bytes = 1 << 20;
	const auto text = stats_table(s);
	EXPECT_NE(text.find("75.0 %"), std::string::npos) << text;
	EXPECT_NE(text.find("25.0 %"), std::string::npos) << text;
	EXPECT_NE(text.find("<128 us"), std::string::npos) << text;
	EXPECT_NE(text.find("4.0 MiB"), std::string::npos) << text;
}

TEST(stats_table, of_nothing)
{
	EXPECT_NE(stats_table({}).find("-"), std::string::npos);
	EXPECT_EQ(peers_table({}), "no peers\n");
}

} // namespace
