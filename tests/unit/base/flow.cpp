// SPDX-License-Identifier: MIT
// flow.cpp - labels spread what goes to a peer, and what goes to different peers.
#include <gtest/gtest.h>

#include <set>

#include "rpc/base/flow.h"

namespace
{

struct gid {
	u8 raw[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0};
	explicit gid(u32 host)
	{
		raw[14] = static_cast<u8>(host >> 8);
		raw[15] = static_cast<u8>(host);
	}
};

// As rdma_flow_label_to_udp_sport() of Linux.
u32 port_of(u32 label)
{
	return ((label & 0x3fff) ^ (label & 0xfc000) >> 14) | 0xc000;
}

TEST(flow, each_of_a_peer_has_a_source_port_of_its_own)
{
	for (u32 host = 2; host < 2000; host++) {
		std::set<u32> ports;
		for (u32 flow = 0; flow < COOP_FLOWS; flow++) {
			const u32 label = coop_flow_label(gid(1).raw, gid(host).raw, flow);
			EXPECT_NE(label, 0u);
			EXPECT_LE(label, COOP_FLOW_LABEL_MAX);
			EXPECT_EQ(label, coop_flow_label(gid(1).raw, gid(host).raw, flow));
			ports.insert(port_of(label));
		}
		EXPECT_EQ(ports.size(), COOP_FLOWS);
	}
}

// With 16 paths by the port, none gets twice its share of 1000 peers' flows.
TEST(flow, of_many_peers_differ)
{
	constexpr u32 paths = 16, hosts = 1000;
	for (bool towards : {false, true}) {
		u32 on[paths] = {};
		for (u32 host = 2; host < 2 + hosts; host++) {
			const gid own(1), peer(host);
			const u32 label = towards ? coop_flow_label(peer.raw, own.raw, 0)
						  : coop_flow_label(own.raw, peer.raw, 0);
			on[port_of(label) * 0x9e3779b1u >> 28]++;
		}
		for (u32 n : on)
			EXPECT_LT(n, 2 * hosts / paths);
	}
}

TEST(flow, queue_pairs_of_two_nodes_take_all)
{
	std::set<u32> flows;
	for (u32 own = 0; own < COOP_FLOWS; own++)
		flows.insert(coop_flow_of(0x123456 + own, 0xfffffe));
	EXPECT_EQ(flows.size(), COOP_FLOWS);
	EXPECT_EQ(coop_flow_of(17, 18), coop_flow_of(18, 17));
}

TEST(flow, zero_is_no_label)
{
	// One in 2^18 hashes is zero.
	for (u32 own = 0; own < 24; own++)
		for (u32 host = 0; host < 0x10000; host++)
			ASSERT_NE(coop_flow_label(gid(host).raw, gid(own).raw, 0), 0u);
}

} // namespace
