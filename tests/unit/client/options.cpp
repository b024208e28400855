// SPDX-License-Identifier: MIT
// options.cpp - the parser names every bad mount option and the allowed values.
#include "userland/client/options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace coop::client
{
namespace
{

using testing::HasSubstr;

struct row {
	const char *text;
	const char *named; // in the message; null: accepted
};

class options : public testing::TestWithParam<row>
{
};

TEST_P(options, are_accepted_or_named)
{
	mount_options o;
	auto wrong = parse_options(GetParam().text, o);
	if (!GetParam().named) {
		EXPECT_FALSE(wrong) << *wrong;
		return;
	}
	ASSERT_TRUE(wrong) << GetParam().text;
	EXPECT_THAT(*wrong, HasSubstr(GetParam().named));
}

INSTANTIATE_TEST_SUITE_P(
	table, options,
	testing::Values(
		row{"", nullptr}, row{"ro", nullptr}, row{",,ro,", nullptr}, row{"ro,rw", "'ro'"},
		row{"readahead=0", nullptr}, row{"readahead=65536", nullptr},
		row{"readahead=65537", "'readahead'"}, row{"readahead=", "'readahead'"},
		row{"readahead=-1", "'readahead'"}, row{"readahead= 1", "'readahead'"},
		row{"readahead=1x", "'readahead'"}, row{"readahead=K", "'readahead'"},
		row{"cache_size=4M", nullptr}, row{"cache_size=4194303", "4194304"},
		row{"cache_size=16777216T", "'cache_size'"}, row{"cache_size=2g", nullptr},
		row{"keep_copies=1", nullptr}, row{"keep_copies=2", "auto, 0 or 1"},
		row{"ib", nullptr}, row{"ib=1", "no value"}, row{"ib,ib", "twice"},
		row{"ib_qkey=1", "'ib'"}, row{"ib,ib_qkey=0xffffffff", nullptr},
		row{"ib,ib_qkey=0x100000000", "'ib_qkey'"}, row{"ib,ib_qkey=0", "'ib_qkey'"},
		row{"ib,ib_tclass=255", nullptr}, row{"ib,ib_tclass=256", "0 to 255"},
		row{"ib_tclass=8", "'ib'"}, row{"ib,ib_mtu=4096", nullptr},
		row{"ib,ib_mtu=4095", "2048"}, row{"ib,ib_gid=3", "'ib_devname'"},
		row{"ib,ib_devname=rxe0,ib_gid=3", nullptr},
		row{"ib,ib_devname=rxe0,addr=127.0.0.1", "'addr'"},
		row{"ib,ib_devname=", "'ib_devname'"}, row{"ib,addr=::1", nullptr},
		row{"ib,addr=127.0.0.1.5", "'addr'"}, row{"addr=127.0.0.1", "'ib'"},
		row{"page_crc=1", "'ib'"}, row{"ib,page_crc=yes", "0 or 1"},
		row{"page_mac=1", "'ib'"}, row{"ib,page_mac=2", "0 or 1"},
		row{"ib,tree=on", "auto or off"}, row{"ib,bundles=1", "auto or off"},
		row{"tree=auto", "'ib'"}, row{"ib,forward=2", "0 or 1"}, row{"forward=0", "'ib'"},
		row{"ib,wait_timeout_ms=0", "'wait_timeout_ms'"}, row{"ib,serve_mbps=1K", nullptr},
		row{"nosuid,nodev,noatime", nullptr}, row{"_netdev,x-systemd.automount", nullptr},
		row{"readahea=1", "'readahea'"}, row{"READAHEAD=1", "the options are readahead="},
		row{"=", "''"}, row{"ib,soft", "only for the kernel module"},
		row{"timeo=3", "only for the kernel module"}));

TEST(option_values, arrive)
{
	mount_options o;
	ASSERT_FALSE(parse_options(
		"readahead=8,ra_async=0,commit_on_close=0,cache_size=1G,keep_copies=1,key=/"
		"k,ib,addr=127.0.0.9,"
		"ib_qkey=0x22,ib_tclass=104,ib_mtu=1024,ib_num_rrpc=3,ib_num_srpc=4,"
		"peer_timeout_ms=5,tree=off,bundles=off,forward=0,wait_timeout_ms=7,page_crc=1,"
		"page_mac=1,"
		"serve_mbps=6,"
		"ro,allow_other,nodev",
		o));
	EXPECT_EQ(o.readahead, 8u);
	EXPECT_FALSE(o.ra_async || o.commit_on_close);
	EXPECT_EQ(o.cache_size, 1ull << 30);
	EXPECT_EQ(o.keep_copies, mount_options::copies::always);
	EXPECT_EQ(o.key, "/k");
	EXPECT_EQ(o.addr, "127.0.0.9");
	EXPECT_EQ(o.ib_qkey, 0x22u);
	EXPECT_EQ(o.ib_tclass, 104u);
	EXPECT_EQ(o.ib_mtu, 1024u);
	EXPECT_EQ(o.ib_num_rrpc, 3u);
	EXPECT_EQ(o.ib_num_srpc, 4u);
	EXPECT_EQ(o.peer_timeout_ms, 5u);
	EXPECT_FALSE(o.tree || o.bundles);
	EXPECT_EQ(o.wait_timeout_ms, 7u);
	EXPECT_TRUE(o.page_crc && o.page_mac);
	EXPECT_EQ(o.serve_mbps, 6u);
	EXPECT_FALSE(o.forward);
	EXPECT_TRUE(o.read_only && o.allow_other);
	EXPECT_THAT(o.vfs, testing::ElementsAre("nodev"));
	EXPECT_THAT(format_options(o), HasSubstr("cache_size=1073741824\n"));
}

struct source_row {
	const char *text, *server;
	int port;
	const char *export_name; // null: refused
};

class sources : public testing::TestWithParam<source_row>
{
};

TEST_P(sources, are_taken_apart)
{
	const source_row &r = GetParam();
	mount_options o;
	auto wrong = parse_source(r.text, o);
	if (!r.export_name) {
		EXPECT_TRUE(wrong) << r.text;
		return;
	}
	ASSERT_FALSE(wrong) << *wrong;
	EXPECT_EQ(o.server, r.server);
	EXPECT_EQ(o.port, r.port);
	EXPECT_EQ(o.export_name, r.export_name);
	mount_options again;
	ASSERT_FALSE(parse_source(format_source(o), again));
	EXPECT_EQ(again.server, o.server);
	EXPECT_EQ(again.port, o.port);
}

INSTANTIATE_TEST_SUITE_P(
	table, sources,
	testing::Values(source_row{"host:/data", "host", 17430, "/data"},
			source_row{"127.0.0.1:99:/data/deep", "127.0.0.1", 99, "/data/deep"},
			source_row{"[::1]:/d", "::1", 17430, "/d"},
			source_row{"[fe80::1]:1:/d", "fe80::1", 1, "/d"},
			source_row{"host:/a:/b", "host", 17430, "/a:/b"},
			source_row{"host", "", 0, nullptr}, source_row{"", "", 0, nullptr},
			source_row{":/d", "", 0, nullptr}, source_row{"host:0:/d", "", 0, nullptr},
			source_row{"host:65536:/d", "", 0, nullptr},
			source_row{"host::/d", "", 0, nullptr},
			source_row{"::1:/d", "", 0, nullptr}, source_row{"[::1:/d", "", 0, nullptr},
			source_row{"[]:/d", "", 0, nullptr},
			source_row{"[host]:/d", "", 0, nullptr},
			source_row{"[::1]x:/d", "", 0, nullptr}));

} // namespace
} // namespace coop::client
