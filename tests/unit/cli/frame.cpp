// SPDX-License-Identifier: MIT
// frame.cpp - one frame of `coopfs top`: its text, and that it fits even the smallest
// terminal.
#include "userland/cli/frame.hpp"

#include <gtest/gtest.h>

#include "userland/cli/format.hpp"

using namespace coop::cli;

namespace
{

peer_record peer_at(int n, const char *state)
{
	peer_record p;
	p.gid = "::ffff:127.0.0." + std::to_string(n);
	p.qpn = "0x000011";
	p.state = state;
	p.srtt_us = 200;
	return p;
}

mount_view view(std::size_t peers)
{
	mount_view v;
	v.mount = {"/mnt/node2", "fuse.coopfs", "127.0.0.1:17430:/data", 1};
	v.seconds = 2;
	v.total.sources[peer].bytes = 1 << 30;
	v.recent.sources[peer].bytes = 200 << 20;
	v.recent.sources[peer].requests = 5;
	v.recent.sources[peer].latency[7] = 5;
	v.total.cache = {1 << 30, 1 << 29, 8192, 0};
	v.recent.traffic["peer"] = {210 << 20, 0};
	v.history = {0, 50.0 * (1 << 20), 100.0 * (1 << 20)};
	for (std::size_t i = 0; i < peers; i++)
		v.peers.push_back(peer_at(static_cast<int>(i) + 1, "healthy"));
	v.peers_before = v.peers;
	if (!v.peers.empty())
		v.peers.front().rx_bytes = 200 << 20;
	return v;
}

std::string text(const std::vector<line> &frame)
{
	std::string out;
	for (const auto &l : frame)
		out += l.text() + "\n";
	return out;
}

TEST(frame, says_who_serves)
{
	const auto t = text(draw_frame({view(2)}, 1, {80, 24}, true));
	EXPECT_NE(t.find("/mnt/node2"), std::string::npos) << t;
	EXPECT_NE(t.find("100.0 MiB/s"), std::string::npos) << t;
	EXPECT_NE(t.find("50.0 %"), std::string::npos) << t;
	EXPECT_NE(t.find("127.0.0.1 qpn 0x000011"), std::string::npos) << t;
	EXPECT_NE(t.find("200 us"), std::string::npos) << t;
	EXPECT_NE(t.find("##"), std::string::npos) << t;
	EXPECT_EQ(t.find("more"), std::string::npos) << t;
}

TEST(frame, fits_every_size)
{
	for (const std::size_t columns : {1, 2, 10, 26, 40, 79, 80, 81, 200})
		for (const std::size_t rows : {1, 2, 3, 9, 12, 24, 60})
			for (const std::size_t mounts : {1, 2, 5})
				for (const std::size_t peers : {0, 1, 40}) {
					const std::vector<mount_view> views(mounts, view(peers));
					const auto frame =
						draw_frame(views, 1, {columns, rows}, false);
					EXPECT_LE(frame.size(), rows);
					for (const auto &l : frame) {
						EXPECT_LE(l.width(), columns);
						EXPECT_LE(coop::cli::columns(l.text()), columns);
					}
				}
}

TEST(frame, what_does_not_fit_is_counted)
{
	const auto peers = text(draw_frame({view(40)}, 1, {80, 24}, true));
	EXPECT_NE(peers.find("and 29 more peers"), std::string::npos) << peers;
	const std::vector<mount_view> five(5, view(1));
	const auto mounts = text(draw_frame(five, 1, {80, 26}, true));
	EXPECT_NE(mounts.find("and 3 more mounts"), std::string::npos) << mounts;
	EXPECT_EQ(text(draw_frame({view(40)}, 1, {80, 0}, true)).find("more"), std::string::npos);
}

TEST(frame, peers_in_trouble_come_first)
{
	auto v = view(40);
	v.peers[39].state = "open";
	EXPECT_NE(text(draw_frame({v}, 1, {80, 24}, true)).find("127.0.0.40"), std::string::npos);
}

TEST(frame, a_mount_that_does_not_answer_says_why)
{
	auto v = view(1);
	v.error = "/mnt/node2: its coopfs-fuse process is gone";
	const auto t = text(draw_frame({v}, 1, {80, 24}, true));
	EXPECT_NE(t.find("process is gone"), std::string::npos) << t;
}

TEST(frame, first_look_has_no_rates_and_no_nonsense)
{
	auto v = view(1);
	v.seconds = 0;
	v.history.clear();
	const auto t = text(draw_frame({v}, 1, {80, 24}, true));
	EXPECT_EQ(t.find("nan"), std::string::npos) << t;
	EXPECT_EQ(t.find("inf"), std::string::npos) << t;
}

TEST(bar, ends_and_middle)
{
	EXPECT_EQ(bar(0, 4, true), "    ");
	EXPECT_EQ(bar(1, 4, true), "####");
	EXPECT_EQ(bar(7, 4, true), "####");
	EXPECT_EQ(bar(-1, 4, true), "    ");
	EXPECT_EQ(bar(0.0 / 0.0, 4, true), "    ");
	EXPECT_EQ(bar(0.5, 4, true), "##  ");
	EXPECT_EQ(bar(0.0001, 4, true), "-   ") << "a small value still shows";
	for (int i = 0; i <= 100; i++)
		EXPECT_EQ(columns(bar(i / 100.0, 13, false)), 13u);
}

TEST(sparkline, newest_at_the_right)
{
	EXPECT_EQ(sparkline({1, 2}, 2, 4, true), "  =@");
	EXPECT_EQ(sparkline({9, 0, 2}, 2, 2, true), " @");
	EXPECT_EQ(sparkline({}, 0, 3, true), "   ");
}

TEST(line, cuts_between_characters)
{
	line l;
	l.add("a\xe2\x96\x88").add("\xe2\x96\x88z");
	l.cut(2);
	EXPECT_EQ(l.text(), "a\xe2\x96\x88");
	EXPECT_EQ(l.width(), 2u);
}

} // namespace
