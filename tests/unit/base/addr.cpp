// SPDX-License-Identifier: MIT
// addr.cpp - the text of an address: accepted forms, and texts refused whole.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

#include "rpc/base/addr.h"

namespace
{

struct good {
	const char *text;
	const char *canonical;
};

constexpr good goods[] = {
	{"gid=::ffff:127.0.0.3 lid=0x0000 qpn=0x000011 qkey=0x0001c00b sl=0",
	 "gid=::ffff:127.0.0.3 lid=0x0000 qpn=0x000011 qkey=0x0001c00b sl=0"},
	{"sl=7 qkey=1 qpn=17 gid=fe80::1",
	 "gid=fe80::1 lid=0x0000 qpn=0x000011 qkey=0x00000001 sl=7"},
	{"lid=0x11 qpn=0xfffffe qkey=0xffffffff",
	 "gid=:: lid=0x0011 qpn=0xfffffe qkey=0xffffffff sl=0"},
	{"  gid=1:2:3:4:5:6:7:8\tqpn=2 qkey=0 \n",
	 "gid=1:2:3:4:5:6:7:8 lid=0x0000 qpn=0x000002 qkey=0x00000000 sl=0"},
	{"gid=1::8 qpn=2 qkey=0", "gid=1::8 lid=0x0000 qpn=0x000002 qkey=0x00000000 sl=0"},
	{"gid=1:0:0:2:0:0:0:3 qpn=2 qkey=0",
	 "gid=1:0:0:2::3 lid=0x0000 qpn=0x000002 qkey=0x00000000 sl=0"},
	{"gid=1:: qpn=2 qkey=0", "gid=1:: lid=0x0000 qpn=0x000002 qkey=0x00000000 sl=0"},
	{"gid=FE80::AbCd qpn=0X2 qkey=0xA",
	 "gid=fe80::abcd lid=0x0000 qpn=0x000002 qkey=0x0000000a sl=0"},
	{"gid=1:2:3:4:5:6:1.2.3.4 qpn=2 qkey=0",
	 "gid=1:2:3:4:5:6:102:304 lid=0x0000 qpn=0x000002 qkey=0x00000000 sl=0"},
};

constexpr const char *bads[] = {
	"",
	"\n",
	"gid=::1",                  // no qpn, no qkey
	"gid=::1 qpn=2",            // no qkey
	"gid=::1 qkey=2",           // no qpn
	"qpn=2 qkey=2",             // neither gid nor lid
	"gid=:: qpn=2 qkey=2",      // the zero GID is no GID
	"lid=0 qpn=2 qkey=2",       // LID 0 is reserved
	"lid=0xc000 qpn=2 qkey=2",  // multicast LID
	"gid=ff02::1 qpn=2 qkey=2", // multicast GID
	"gid=::1 qpn=0 qkey=2",     // management queue pairs
	"gid=::1 qpn=1 qkey=2",
	"gid=::1 qpn=0xffffff qkey=2",    // the multicast queue pair
	"gid=::1 qpn=0x1000000 qkey=2",   // 25 bits
	"gid=::1 qpn=2 qkey=0x100000000", // 33 bits
	"gid=::1 qpn=2 qkey=2 sl=16",
	"gid=::1 lid=0x10000 qpn=2 qkey=2",
	"gid=::1 qpn=2 qkey=2 qkey=2",   // twice
	"gid=::1 qpn=2 qkey=2 mtu=4096", // unknown key
	"gid=::1 qpn=2 qkey=2 x",
	"gid=::1 qpn= qkey=2",
	"gid=::1 qpn=2, qkey=2",
	"gid=::1 qpn=-2 qkey=2",
	"gid=::1 qpn=0x qkey=2",
	"gid=::1 qpn=2 qkey=2\n\n",
	"gid=::1 qpn=2\nqkey=2",
	"gid=::1::2 qpn=2 qkey=2",
	"gid=:::1 qpn=2 qkey=2",
	"gid=:1 qpn=2 qkey=2",
	"gid=1: qpn=2 qkey=2",
	"gid=1:2:3:4:5:6:7 qpn=2 qkey=2",
	"gid=1:2:3:4:5:6:7:8:9 qpn=2 qkey=2",
	"gid=1:2:3:4:5:6:7::8 qpn=2 qkey=2",
	"gid=12345::1 qpn=2 qkey=2",
	"gid=::g qpn=2 qkey=2",
	"gid=::ffff:1.2.3 qpn=2 qkey=2",
	"gid=::ffff:1.2.3.4.5 qpn=2 qkey=2",
	"gid=::ffff:1.2.3.256 qpn=2 qkey=2",
	"gid=::ffff:1.2.3.4:5 qpn=2 qkey=2",
	"gid=1.2.3.4 qpn=2 qkey=2",
	"gid=::ffff:1..2.3 qpn=2 qkey=2",
};

TEST(addr, good_lines)
{
	for (const good &g : goods) {
		coop_addr a;
		char text[COOP_ADDR_TEXT];
		ASSERT_EQ(coop_addr_parse(g.text, std::strlen(g.text), &a), 0) << g.text;
		ASSERT_GT(coop_addr_format(&a, text, sizeof(text)), 0);
		EXPECT_STREQ(text, g.canonical);
		coop_addr again;
		ASSERT_EQ(coop_addr_parse(text, std::strlen(text), &again), 0) << text;
		EXPECT_EQ(std::memcmp(&a, &again, sizeof(a)), 0);
	}
}

TEST(addr, bad_lines_leave_the_result_alone)
{
	for (const char *text : bads) {
		coop_addr a;
		std::memset(&a, 0x5a, sizeof(a));
		coop_addr before = a;
		EXPECT_EQ(coop_addr_parse(text, std::strlen(text), &a), -EINVAL) << text;
		EXPECT_EQ(std::memcmp(&a, &before, sizeof(a)), 0);
	}
}

TEST(addr, reads_nothing_past_the_length)
{
	for (const good &g : goods) {
		for (std::size_t n = 0; n <= std::strlen(g.text); ++n) {
			const std::string exact(g.text, n);
			std::unique_ptr<char[]> tight(new char[n ? n : 1]); // ASan guards its end
			std::memcpy(tight.get(), exact.data(), n);
			coop_addr a;
			(void)coop_addr_parse(tight.get(), n, &a);
		}
	}
	const char nul[] = "gid=::1\0qpn=2 qkey=2";
	coop_addr a;
	EXPECT_EQ(coop_addr_parse(nul, sizeof(nul) - 1, &a), -EINVAL);
}

TEST(addr, format_needs_room_for_the_terminator)
{
	coop_addr a;
	const std::string line = goods[0].text;
	ASSERT_EQ(coop_addr_parse(line.data(), line.size(), &a), 0);
	char text[COOP_ADDR_TEXT];
	EXPECT_EQ(coop_addr_format(&a, text, line.size()), -ENOSPC);
	EXPECT_EQ(coop_addr_format(&a, text, line.size() + 1), static_cast<int>(line.size()));
}

TEST(addr, identity_is_gid_or_lid_and_qpn)
{
	const auto parse = [](const std::string &s) {
		coop_addr a;
		EXPECT_EQ(coop_addr_parse(s.data(), s.size(), &a), 0);
		return a;
	};
	const coop_addr a = parse("gid=::1 qpn=2 qkey=2"),
			other_key = parse("gid=::1 lid=3 qpn=2 qkey=9 sl=1");
	const coop_addr other_qp = parse("gid=::1 qpn=3 qkey=2"), lid = parse("lid=1 qpn=2 qkey=2"),
			lid2 = parse("lid=2 qpn=2 qkey=2");
	EXPECT_TRUE(coop_addr_same(&a, &other_key));
	EXPECT_EQ(coop_addr_hash(&a), coop_addr_hash(&other_key));
	EXPECT_FALSE(coop_addr_same(&a, &other_qp));
	EXPECT_FALSE(coop_addr_same(&a, &lid));
	EXPECT_FALSE(coop_addr_same(&lid, &lid2));
}

} // namespace
