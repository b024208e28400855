// SPDX-License-Identifier: MIT
// control.cpp - the parsers of the control files on good and bad input, and the values
// computed from them.
#include "userland/cli/control.hpp"
#include "userland/cli/format.hpp"

#include <gtest/gtest.h>

#include <limits>

using namespace coop::cli;

namespace
{

const std::string whole =
	"coopfs-stats 1\n"
	"source buffer requests 1 pages 2 bytes 8192\n"
	"source peer requests 3 pages 48 bytes 196608\n"
	"source storage requests 0 pages 0 bytes 0\n"
	"latency buffer 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
	"latency peer 0 0 0 0 0 0 2 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
	"latency storage 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
	"traffic peer rx_bytes 200000 tx_bytes 7\n"
	"traffic storage rx_bytes 11 tx_bytes 12\n"
	"fetch attempts 5\n"
	"fetch retries 1\n"
	"serve pages 9\n"
	"endpoint drops 18446744073709551615\n"
	"read errors 3\n"
	"storage calls 6\n"
	"forest carrier 3\n"
	"cache capacity 1048576 used 524288 blocks 4 evicted 2\n";

TEST(stats_text, every_record)
{
	const auto s = parse_stats(whole);
	ASSERT_TRUE(s) << s.error().text;
	EXPECT_EQ(s->sources[buffer].bytes, 8192u);
	EXPECT_EQ(s->sources[peer].requests, 3u);
	EXPECT_EQ(s->sources[peer].pages, 48u);
	EXPECT_EQ(s->sources[peer].latency[6], 2u);
	EXPECT_EQ(s->sources[peer].latency[7], 1u);
	EXPECT_EQ(s->traffic.at("peer").rx_bytes, 200000u);
	EXPECT_EQ(s->traffic.at("storage").tx_bytes, 12u);
	ASSERT_EQ(s->fetch.size(), 2u);
	EXPECT_EQ(s->fetch[1].first, "retries");
	EXPECT_EQ(s->endpoint[0].second, std::numeric_limits<std::uint64_t>::max());
	ASSERT_EQ(s->read.size(), 1u);
	EXPECT_EQ(s->read[0].second, 3u);
	ASSERT_EQ(s->storage_calls.size(), 1u);
	EXPECT_EQ(s->storage_calls[0].first, "calls");
	EXPECT_EQ(counter_of(s->forest, "carrier"), 3u);
	EXPECT_EQ(counter_of(s->forest, "leaf"), 0u);
	EXPECT_EQ(counter_of(difference(*s, *s).forest, "carrier"), 3u) << "a gauge";
	EXPECT_NE(stats_table(*s).find("carries 3 trees"), std::string::npos);
	EXPECT_EQ(s->cache.used, 524288u);
	EXPECT_EQ(s->cache.evicted, 2u);
	EXPECT_EQ(total_bytes(*s), 8192u + 196608u);
}

TEST(stats_text, what_is_not_known_is_passed_over)
{
	const auto s = parse_stats("coopfs-stats 1\n"
				   "weather sunny\n"
				   "source moon requests 1\n"
				   "source peer requests 2 colour 3 bytes 4\n"
				   "\n");
	ASSERT_TRUE(s) << s.error().text;
	EXPECT_EQ(s->sources[peer].requests, 2u);
	EXPECT_EQ(s->sources[peer].bytes, 4u);
}

class malformed_stats : public testing::TestWithParam<const char *>
{
};

TEST_P(malformed_stats, names_its_line)
{
	const auto s =
		parse_stats(std::string("coopfs-stats 1\nfetch good 1\n") + GetParam() + "\n");
	ASSERT_FALSE(s);
	EXPECT_EQ(s.error().status, exit_failure);
	EXPECT_NE(s.error().text.find("line 3"), std::string::npos) << s.error().text;
}

INSTANTIATE_TEST_SUITE_P(
	lines, malformed_stats,
	testing::Values(
		"source", "source peer requests", "source peer requests x",
		"source peer requests -1", "source peer bytes 18446744073709551616",
		"source peer bytes 1.5", "latency peer 1 2 3", "latency peer",
		"latency peer 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0",
		"traffic", "traffic peer rx_bytes", "fetch", "fetch attempts", "fetch attempts 1 2",
		"read errors", "storage calls x", "cache capacity", "cache capacity 0x10"));

TEST(stats_text, only_this_version)
{
	for (const char *text :
	     {"", "\n", "coopfs-stats 2\n", "coopfs-stats 11\n", "source peer requests 1\n"})
		EXPECT_FALSE(parse_stats(text)) << text;
}

TEST(stats_text, a_long_bad_line_is_not_repeated_whole)
{
	const auto s = parse_stats("coopfs-stats 1\nfetch " + std::string(100000, 'x') + "\n");
	ASSERT_FALSE(s);
	EXPECT_LT(s.error().text.size(), 300u);
}

TEST(stats_text, every_prefix_is_survived)
{
	for (std::size_t n = 0; n <= whole.size(); n++)
		static_cast<void>(static_cast<bool>(parse_stats(whole.substr(0, n))));
}

const char *const peer_line =
	"peer gid=::ffff:127.0.0.3 lid=0x0000 qpn=0x000011 sl=0 origin=hand,daemon state=half-open "
	"srtt_us=210 rttvar_us=20 fails=3 in_flight=1 hits=5 misses=6 failures=7 busy=8 rx_pages=9 "
	"rx_bytes=36864 tx_pages=10 tx_bytes=40960\n";

TEST(peers_text, every_key)
{
	const auto p = parse_peers(peer_line);
	ASSERT_TRUE(p) << p.error().text;
	ASSERT_EQ(p->size(), 1u);
	const auto &one = p->front();
	EXPECT_EQ(one.gid, "::ffff:127.0.0.3");
	EXPECT_EQ(one.state, "half-open");
	EXPECT_EQ(one.origin, "hand,daemon");
	EXPECT_EQ(one.srtt_us, 210u);
	EXPECT_EQ(one.failures, 7u);
	EXPECT_EQ(one.tx_bytes, 40960u);
	EXPECT_EQ(one.address(), "127.0.0.3 qpn 0x000011");
}

TEST(peers_text, a_fabric_without_gids_goes_by_lid)
{
	const auto p = parse_peers("peer lid=0x0007 qpn=0x11 state=healthy\n");
	ASSERT_TRUE(p);
	EXPECT_EQ(p->front().address(), "lid 0x0007 qpn 0x11");
	const auto q = parse_peers("peer gid=fe80::1 lid=0x0007 qpn=0x11 state=healthy\n");
	ASSERT_TRUE(q);
	EXPECT_EQ(q->front().address(), "fe80::1 qpn 0x11");
}

TEST(peers_text, none_and_unknown)
{
	EXPECT_TRUE(parse_peers("")->empty());
	EXPECT_EQ(parse_peers(std::string("# remark\n") + peer_line + peer_line + "\n")->size(),
		  2u);
}

TEST(peers_text, malformed)
{
	for (const char *text :
	     {"peer\n", "peer gid=::1 state=healthy\n", "peer qpn=0x1 state=healthy\n",
	      "peer gid=::1 qpn=0x1\n", "peer gid=::1 qpn=0x1 state=healthy hits=many\n",
	      "peer gid=::1 qpn=0x1 state=healthy hits\n",
	      "peer gid=::1 qpn=0x1 state=healthy rx_bytes=-1\n"})
		EXPECT_FALSE(parse_peers(text)) << text;
}

TEST(info_text, both_forms)
{
	const auto i =
		parse_info("server 127.0.0.1:17430\nmountpoint=/mnt/a b\npid 12\n\nlonely\n");
	EXPECT_EQ(i.at("server"), "127.0.0.1:17430");
	EXPECT_EQ(i.at("mountpoint"), "/mnt/a b");
	EXPECT_EQ(i.at("pid"), "12");
	EXPECT_EQ(i.size(), 3u);
}

TEST(difference, counts_what_happened_between)
{
	auto a = *parse_stats(whole), b = a;
	b.sources[peer].bytes += 100;
	b.sources[peer].latency[6] += 4;
	b.traffic["peer"].rx_bytes += 10;
	b.fetch[0].second += 2;
	b.cache.used = 1;
	const auto d = difference(b, a);
	EXPECT_EQ(d.sources[peer].bytes, 100u);
	EXPECT_EQ(d.sources[peer].latency[6], 4u);
	EXPECT_EQ(d.sources[buffer].bytes, 0u);
	EXPECT_EQ(d.traffic.at("peer").rx_bytes, 10u);
	EXPECT_EQ(d.fetch[0].second, 2u);
	EXPECT_EQ(d.cache.used, 1u) << "a gauge";
}

TEST(difference, a_reset_in_between_is_not_a_huge_number)
{
	auto a = *parse_stats(whole), b = a;
	b.sources[peer].bytes = 40;
	EXPECT_EQ(difference(b, a).sources[peer].bytes, 40u);
}

TEST(latency_quantile, edges)
{
	std::array<std::uint64_t, 32> h{};
	EXPECT_EQ(latency_quantile(h, 0.5), 0u);
	h[0] = 1;
	EXPECT_EQ(latency_quantile(h, 0.5), 1u);
	EXPECT_EQ(latency_quantile(h, 1.0), 1u);
	h = {};
	h[5] = 98;
	h[9] = 2;
	EXPECT_EQ(latency_quantile(h, 0.5), 32u);
	EXPECT_EQ(latency_quantile(h, 0.98), 32u);
	EXPECT_EQ(latency_quantile(h, 0.99), 512u);
	EXPECT_EQ(latency_quantile(h, 0.001), 32u) << "the first bucket with a count";
	h = {};
	h[31] = 1;
	EXPECT_EQ(latency_quantile(h, 0.5), 1ull << 31);
	h.fill(std::numeric_limits<std::uint64_t>::max());
	EXPECT_EQ(latency_quantile(h, 0.5), 1ull << 15) << "the sum exceeds 64 bits";
}

// The definition, taken literally, on many small histograms.
TEST(latency_quantile, agrees_with_a_sorted_list)
{
	std::uint64_t seed = 1;
	for (int round = 0; round < 500; round++) {
		std::array<std::uint64_t, 32> h{};
		std::vector<std::uint64_t> list;
		for (std::size_t i = 0; i < h.size(); i++) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			h[i] = (seed >> 60) < 10 ? 0 : (seed >> 33) % 7;
			list.insert(list.end(), h[i], std::uint64_t{1} << i);
		}
		if (list.empty())
			continue;
		for (const std::size_t k : {1, 25, 50, 99, 100}) {
			const auto rank = std::max<std::size_t>(1, (list.size() * k + 99) / 100);
			EXPECT_EQ(latency_quantile(h, static_cast<double>(k) / 100), list[rank - 1])
				<< "round " << round << " quantile " << k;
		}
	}
}

} // namespace
