// SPDX-License-Identifier: MIT
// fetch_tags.cpp - pages from a fabric where an attacker sees every REQUEST and sends
// data with the right source and generation; and from peers that leave tags out.
#include "tests/unit/fetch/lab.hpp"

namespace
{

using namespace lab;

class fetch_tags : public testing::Test
{
protected:
	fetch_tags() : a(net.add(shape())), b(net.add(shape())), id(net.acquaint(a, b)) {}
	static node_shape shape()
	{
		node_shape s;
		s.flags = COOP_F_PAGE_TAG;
		return s;
	}
	// Changes every message of this kind, as an attacker with the key can.
	void change(u8 which, std::function<void(coop_msg &)> how)
	{
		net.filter = [this, which, how](node &, std::vector<u8> &bytes) {
			coop_msg m;
			if (command(bytes) != which ||
			    coop_wire_decode(&m, a.cfg.key, bytes.data(),
					     static_cast<u32>(bytes.size())) != COOP_DECODE_OK)
				return true;
			how(m);
			bytes.resize(COOP_CTRL_MAX);
			bytes.resize(coop_wire_encode(&m, a.cfg.key, bytes.data(), COOP_CTRL_MAX));
			return true;
		};
	}
	// Fetches four pages while there is no other peer to ask and no circuit closes.
	u64 fetch()
	{
		EXPECT_EQ(a.fetch(4), 0);
		net.run(60000);
		return a.done.rbegin()->second.good;
	}
	void expect_closed_out(u32 bad)
	{
		EXPECT_EQ(a.stats().tag_bad, bad);
		EXPECT_EQ(a.stats().crc_bad, 0u);
		EXPECT_EQ(a.done.rbegin()->second.err, -EIO);
		EXPECT_EQ(a.peer(id).health, unsigned{COOP_PEER_OPEN})
			<< "a forger gets one attempt, then the peer's circuit opens";
	}
	network net;
	node &a, &b;
	u32 id;
};

TEST_F(fetch_tags, every_bit_is_the_responders)
{
	once(net, [](auto &air) { air[2].payload[4095] ^= 1; });
	EXPECT_EQ(fetch(), 0b1011u);
	expect_closed_out(1);
}

TEST_F(fetch_tags, pages_do_not_change_places)
{
	once(net, [](auto &air) { std::swap(air[0].payload, air[3].payload); });
	EXPECT_EQ(fetch(), 0b0110u);
	expect_closed_out(2);
}

TEST_F(fetch_tags, a_page_of_another_attempt_is_judged_by_its_bytes)
{
	std::vector<u8> old;
	once(net, [&](auto &air) { old = air[1].payload; });
	EXPECT_EQ(fetch(), 0b1111u);
	once(net, [&](auto &air) { air[0].payload = old; });
	EXPECT_EQ(fetch(), 0b1110u);
	expect_closed_out(1);
}

TEST_F(fetch_tags, tags_are_of_one_attempt)
{
	std::vector<u64> old;
	change(COOP_CMD_COMMIT, [&](coop_msg &m) {
		coop_msg_commit &c = m.u.commit;
		EXPECT_EQ(c.tags, 1u);
		ASSERT_EQ(c.n_sums, 4u);
		if (old.empty())
			old.assign(c.sum, c.sum + 4);
		else
			std::copy(old.begin(), old.end(), c.sum);
	});
	EXPECT_EQ(fetch(), 0b1111u);
	EXPECT_EQ(fetch(), 0u) << "the same bytes with tags of the attempt before";
	expect_closed_out(4);
}

TEST_F(fetch_tags, tags_are_of_one_page)
{
	change(COOP_CMD_COMMIT,
	       [](coop_msg &m) { std::swap(m.u.commit.sum[1], m.u.commit.sum[2]); });
	EXPECT_EQ(fetch(), 0b1001u);
	expect_closed_out(2);
}

TEST_F(fetch_tags, a_tag_is_right_or_wrong_as_a_whole)
{
	change(COOP_CMD_COMMIT, [](coop_msg &m) { m.u.commit.sum[3] ^= 1ull << 47; });
	EXPECT_EQ(fetch(), 0b0111u);
	expect_closed_out(1);
}

// Nothing weaker replaces missing tags.
TEST_F(fetch_tags, a_commit_without_tags_gives_no_page)
{
	const std::vector<std::function<void(coop_msg_commit &)>> lacks = {
		[](auto &c) { c.n_sums = 0, c.tags = 0; },
		[](auto &c) { c.tags = 0; },
		[](auto &c) { c.n_sums = 3; },
	};
	for (const auto &lack : lacks) {
		const u64 bad = a.stats().commits_bad;
		change(COOP_CMD_COMMIT, [&](coop_msg &m) { lack(m.u.commit); });
		EXPECT_EQ(fetch(), 0u);
		EXPECT_EQ(a.stats().commits_bad, bad + 1);
		EXPECT_EQ(a.peer(id).health, unsigned{COOP_PEER_OPEN});
		coop_engine_peer_del(a.e, &b.cfg.self, COOP_PEER_BY_HAND);
		id = static_cast<u32>(
			coop_engine_peer_add(a.e, &b.cfg.self, COOP_PEER_BY_HAND, net.now));
	}
}

// As with a peer older than the option: it does not know some bit.
TEST_F(fetch_tags, a_peer_that_does_not_know_them_is_not_asked_for_less)
{
	u32 asked = 0;
	change(COOP_CMD_REQUEST, [&](coop_msg &m) {
		++asked;
		EXPECT_TRUE(m.u.request.options & COOP_OPT_TAG);
		m.u.request.options = COOP_OPT_KNOWN + 1;
	});
	EXPECT_EQ(fetch(), 0u);
	EXPECT_EQ(asked, 1u);
	EXPECT_EQ(a.done[1].err, -EIO) << "storage must deliver";
	EXPECT_EQ(a.stats().fetches_refused, 1u);
	EXPECT_EQ(b.stats().ctrl_malformed, 1u);
	EXPECT_EQ(b.served, 0u);
	EXPECT_EQ(a.peer(id).health, unsigned{COOP_PEER_OPEN});
}

TEST_F(fetch_tags, who_does_not_ask_gets_none)
{
	u32 commits = 0;
	network plain;
	node &c = plain.add(), &d = plain.add(shape());
	plain.acquaint(c, d);
	plain.filter = [&](node &, std::vector<u8> &bytes) {
		coop_msg m;
		if (command(bytes) == COOP_CMD_COMMIT &&
		    coop_wire_decode(&m, a.cfg.key, bytes.data(), static_cast<u32>(bytes.size())) ==
			    COOP_DECODE_OK) {
			++commits;
			EXPECT_EQ(m.u.commit.n_sums, 0u);
			EXPECT_EQ(m.u.commit.tags, 0u);
		}
		return true;
	};
	ASSERT_EQ(c.fetch(4), 0);
	plain.run();
	EXPECT_EQ(c.done[1].good, 0b1111u);
	EXPECT_EQ(commits, 1u);
}

} // namespace
