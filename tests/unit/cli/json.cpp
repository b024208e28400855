// SPDX-License-Identifier: MIT
// json.cpp - scripts rely on this shape.
#include "userland/cli/json.hpp"

#include <gtest/gtest.h>

using namespace coop::cli;

namespace
{

TEST(json, shape_of_stats)
{
	mount_stats s;
	s.sources[peer] = {2, 16, 300, {}};
	s.sources[peer].latency[4] = 2;
	s.sources[storage].bytes = 100;
	s.traffic["peer"] = {5, 6};
	s.fetch = {{"attempts", 7}};
	s.cache = {1000, 400, 3, 1};
	const auto j = nlohmann::json::parse(dump(to_json(s)));
	for (const char *name : {"buffer", "peer", "storage"})
		for (const char *key :
		     {"requests", "pages", "bytes", "share", "p50_us", "p99_us", "latency"})
			EXPECT_TRUE(j.at("sources").at(name).contains(key)) << name << " " << key;
	const auto &p = j["sources"]["peer"];
	EXPECT_EQ(p["bytes"], 300);
	EXPECT_DOUBLE_EQ(p["share"], 0.75);
	EXPECT_EQ(p["p50_us"], 16);
	EXPECT_EQ(p["latency"].size(), 32u);
	EXPECT_TRUE(j["sources"]["buffer"]["p50_us"].is_null());
	EXPECT_EQ(j["traffic"]["peer"]["tx_bytes"], 6);
	EXPECT_EQ(j["fetch"]["attempts"], 7);
	for (const char *name : {"serve", "endpoint", "read", "storage", "lease"})
		EXPECT_TRUE(j.at(name).is_object()) << name;
	EXPECT_EQ(j["cache"]["evicted"], 1);
	s.cache.evicted.reset(); // a mount by the module
	EXPECT_FALSE(to_json(s).at("cache").contains("evicted"));
	EXPECT_EQ(to_json(s).at("cache").at("used"), 400);
}

TEST(json, nothing_read_has_no_share)
{
	EXPECT_TRUE(to_json(mount_stats{})["sources"]["peer"]["share"].is_null());
}

TEST(json, large_numbers_stay_whole)
{
	mount_stats s;
	s.sources[peer].bytes = 18446744073709551615u;
	EXPECT_NE(dump(to_json(s)).find("18446744073709551615"), std::string::npos);
}

TEST(json, peers)
{
	peer_record p;
	p.gid = "::ffff:127.0.0.3";
	p.qpn = "0x11";
	p.state = "open";
	p.failures = 4;
	const auto j = nlohmann::json::parse(dump(to_json(std::vector{p})));
	ASSERT_EQ(j.size(), 1u);
	for (const char *key : {"gid", "lid", "qpn", "sl", "origin", "state", "srtt_us",
				"rttvar_us", "fails", "in_flight", "hits", "misses", "failures",
				"busy", "rx_pages", "rx_bytes", "tx_pages", "tx_bytes"})
		EXPECT_TRUE(j[0].contains(key)) << key;
	EXPECT_EQ(j[0]["failures"], 4);
	EXPECT_EQ(dump(to_json(std::vector<peer_record>{})), "[]");
}

TEST(json, bytes_that_are_not_utf8)
{
	const nlohmann::ordered_json j = {{"mountpoint", "/mnt/\xff\xfe"}};
	EXPECT_TRUE(nlohmann::json::accept(dump(j)));
}

} // namespace
