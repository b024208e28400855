// SPDX-License-Identifier: MIT
// nodes.cpp - which nodes a client is told of: all of few, and of many those that are named to it.
#include "members_rig.hpp"

#include <random>
#include <set>

using namespace rig;
using coop::daemon::all_told_max;
using coop::daemon::member_table;

namespace
{

// A member of the table, and the nodes that it knows from what it was told.
struct member {
	std::uint32_t id = 0;
	bool named = true;
	std::set<std::uint32_t> knows;
	std::size_t messages = 0;

	void hear(std::string_view text)
	{
		const auto *p = reinterpret_cast<const std::uint8_t *>(text.data());
		std::size_t at = 0;
		while (at < text.size()) {
			coop_st_header h;
			coop_st_body b{};
			ASSERT_EQ(coop_st_header_get(&h, p + at), 0);
			ASSERT_EQ(h.op, COOP_ST_NODE);
			ASSERT_EQ(coop_st_body_get(&b, coop_st_reply_fields(h.op),
						   p + at + COOP_ST_HEADER, h.body_len),
				  0);
			at += COOP_ST_HEADER + h.body_len;
			messages++;
			if (b.flags & 1)
				EXPECT_TRUE(knows.insert(b.node_id).second) << "told twice";
			else
				EXPECT_EQ(knows.erase(b.node_id), 1u) << "it never knew it";
		}
	}
};

class nodes : public testing::Test
{
protected:
	member &come(bool named = true, std::uint32_t before = 0)
	{
		all_.push_back(std::make_unique<member>());
		member &m = *all_.back();
		m.named = named;
		m.id = table_.join(
			address(++last_), [&m](std::string_view t, bool) { m.hear(t); }, named,
			before);
		EXPECT_NE(m.id, 0u);
		return m;
	}
	void go(std::size_t i)
	{
		table_.leave(all_[i]->id);
		all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(i));
	}
	void name(const member &to, const member &one)
	{
		const std::uint32_t ids[] = {0, one.id, to.id, 1};
		table_.name(to.id, ids);
	}

	member_table table_;
	std::vector<std::unique_ptr<member>> all_;
	std::uint32_t last_ = 0;
};

} // namespace

TEST_F(nodes, few_are_told_of_one_another)
{
	for (std::size_t i = 0; i < all_told_max; i++)
		come();
	for (const auto &m : all_)
		ASSERT_EQ(m->knows.size(), all_told_max - 1);
	go(7);
	for (const auto &m : all_)
		ASSERT_EQ(m->knows.size(), all_told_max - 2);
}

TEST_F(nodes, of_many_only_those_are_told_that_are_named)
{
	for (std::size_t i = 0; i < all_told_max; i++)
		come();
	member &a = come(), &b = come(), &first = *all_[0];
	EXPECT_EQ(a.knows.size() + b.knows.size(), 0u);
	EXPECT_EQ(first.knows.size(), all_told_max - 1);
	name(a, b);
	EXPECT_EQ(a.knows, std::set{b.id});
	EXPECT_EQ(b.knows, std::set{a.id}) << "a may ask it";
	name(a, b);
	name(b, a);
	EXPECT_EQ(a.messages + b.messages, 2u);
	name(first, a);
	EXPECT_EQ(a.knows, (std::set{b.id, first.id}));
	EXPECT_TRUE(first.knows.contains(a.id));
	const std::uint32_t gone = a.id;
	go(all_told_max);
	EXPECT_TRUE(b.knows.empty());
	EXPECT_FALSE(first.knows.contains(gone));
	EXPECT_EQ(all_[1]->messages, all_told_max - 1) << "it knew neither";
}

TEST_F(nodes, a_client_that_does_not_say_so_is_told_of_all)
{
	for (std::size_t i = 0; i < all_told_max + 3; i++)
		come();
	member &old = come(false);
	EXPECT_EQ(old.knows.size(), all_told_max + 3);
	member &later = come();
	EXPECT_TRUE(old.knows.contains(later.id));
	EXPECT_TRUE(later.knows.empty());
	name(old, later);
	EXPECT_EQ(later.knows, std::set{old.id}) << "it may be asked by it";
}

TEST_F(nodes, a_place_that_is_taken_again_is_not_taken_for_known)
{
	for (std::size_t i = 0; i < all_told_max + 2; i++)
		come();
	member &a = *all_[all_told_max];
	name(a, *all_.back());
	go(all_told_max + 1);
	EXPECT_TRUE(a.knows.empty());
	member &next = come();
	EXPECT_TRUE(a.knows.empty());
	name(a, next);
	EXPECT_EQ(a.knows, std::set{next.id});
}

TEST_F(nodes, who_registers_again_is_known_where_it_was_known)
{
	for (std::size_t i = 0; i < all_told_max; i++)
		come();
	member &a = come(), &b = come(), &c = come();
	name(a, b);
	// The same connection: it hears what both are told, and knows what it knew.
	auto fresh = std::make_unique<member>();
	fresh->id = table_.join(
		address(9999), [&a](std::string_view t, bool) { a.hear(t); }, true, a.id);
	EXPECT_EQ(b.knows, (std::set{a.id, fresh->id}));
	name(a, c); // as the old one, in between
	const std::uint32_t before = std::exchange(a.id, fresh->id);
	table_.leave(before, a.id);
	EXPECT_EQ(a.knows, (std::set{b.id, c.id}));
	EXPECT_EQ(b.knows, std::set{a.id});
	EXPECT_EQ(c.knows, std::set{a.id}) << "it was told of the old one only";
	EXPECT_EQ(a.messages, 2u);
	table_.leave(c.id);
	EXPECT_EQ(a.knows, std::set{b.id});
}

TEST_F(nodes, a_member_whose_address_another_one_has_is_named_no_more)
{
	for (std::size_t i = 0; i < all_told_max; i++)
		come();
	member &b = come(), &old = come();
	last_--; // it comes back before its connection has ended
	member &fresh = come();
	name(b, fresh);
	name(b, old);
	EXPECT_EQ(b.knows, std::set{fresh.id}) << "the client believes what it is told last";
	EXPECT_FALSE(old.knows.contains(b.id));
	table_.leave(old.id);
	EXPECT_EQ(b.knows, std::set{fresh.id});
}

TEST_F(nodes, whatever_comes_no_node_is_told_twice_or_stays_known)
{
	std::mt19937 dice(1);
	for (unsigned step = 0; step < 4000; step++) {
		const std::size_t n = all_.size();
		const unsigned what = dice() % 8;
		if (n < all_told_max - 20 || (n < all_told_max + 60 && what < 2))
			come(dice() % 20 != 0);
		else if (what < 4)
			go(dice() % n);
		else
			name(*all_[dice() % n], *all_[dice() % n]);
	}
	std::set<std::uint32_t> there;
	for (const auto &m : all_)
		there.insert(m->id);
	for (const auto &m : all_)
		for (const std::uint32_t id : m->knows)
			ASSERT_TRUE(there.contains(id));
	EXPECT_EQ(table_.size(), all_.size());
}

// ---- a daemon and its clients ------------------------------------------------------------------

namespace
{

class daemon_nodes : public members_test
{
protected:
	// Nodes without a client, so that there are many.
	void crowd()
	{
		for (std::uint32_t i = 0; i < all_told_max; i++)
			others_.push_back(server_->members().join(
				address(1000 + i), [](std::string_view, bool) {}, true, 0,
				circle()));
	}
	// Of the clients of this daemon's only export.
	coop::daemon::fabric_circle circle()
	{
		return {server_->files().find_export("data"), true};
	}
	std::unique_ptr<plain_client> node(char session, std::uint32_t number,
					   std::uint32_t flags = COOP_ST_JOIN_NAMED)
	{
		auto c = std::make_unique<plain_client>(port_, version_, version_, session);
		coop_st_body b{};
		b.addr = address(number);
		b.flags = flags;
		EXPECT_EQ(c->ask(COOP_ST_JOIN, b), 0);
		return c;
	}

	// Whether the client has heard of so many nodes that came or went since it was last asked.
	static bool hears(plain_client &c, std::size_t wanted)
	{
		const bool good = eventually([&] {
			EXPECT_EQ(c.ask(COOP_ST_PING, {}), 0);
			return c.count(COOP_ST_NODE) >= wanted;
		});
		const std::size_t heard = c.count(COOP_ST_NODE);
		c.pushes.clear();
		return good && heard == wanted;
	}

	std::uint16_t version_ = COOP_ST_VERSION;
	std::vector<std::uint32_t> others_;
};

} // namespace

TEST_F(daemon_nodes, a_node_is_told_before_the_message_that_names_it)
{
	serve();
	crowd();
	const auto a = node('a', 1), b = node('b', 2), c = node('c', 3);
	EXPECT_EQ(a->count(COOP_ST_NODE), 0u);
	ASSERT_EQ(a->open(file_, 1), 0);
	EXPECT_EQ(a->got.n_nodes, 0u);
	ASSERT_EQ(b->open(file_, 1), 0);
	EXPECT_EQ(b->got.n_nodes, 1u) << "an opener";
	ASSERT_EQ(b->pushes.size(), 2u);
	EXPECT_EQ(b->pushes[0], COOP_ST_NODE);
	EXPECT_EQ(b->pushes[1], COOP_ST_ROLES);
	ASSERT_EQ(c->open(file_, 1), 0);
	EXPECT_EQ(c->pushes,
		  (std::vector<std::uint16_t>{COOP_ST_NODE, COOP_ST_NODE, COOP_ST_ROLES}));
	EXPECT_TRUE(eventually([&] {
		EXPECT_EQ(a->ask(COOP_ST_PING, {}), 0);
		return a->count(COOP_ST_ROLES) > 0;
	}));
	EXPECT_EQ(a->count(COOP_ST_NODE), 2u);
}

TEST_F(daemon_nodes, a_node_that_is_named_to_another_is_told_though_it_asks_nothing)
{
	serve("small", 5000); // no roles
	crowd();
	const auto a = node('a', 1), b = node('b', 2);
	ASSERT_EQ(a->open(file_, 1), 0);
	ASSERT_EQ(b->open(file_, 1), 0);
	ASSERT_EQ(b->count(COOP_ST_NODE), 1u);
	std::uint8_t first = 0;
	EXPECT_EQ(::recv(a->fd(), &first, 1, MSG_PEEK), 1);
}

TEST_F(daemon_nodes, a_redirect_names_a_node_that_the_client_knows)
{
	serve("small", 5000);
	crowd();
	const auto a = node('a', 1), b = node('b', 2);
	const std::uint32_t id = a->got.node_id;
	coop_st_body read{};
	read.open_id = 1;
	read.count = 4096;
	read.version = file_.attr.version;
	read.flags = COOP_ST_READ_MAY_REDIRECT;
	// b opens before a, so that only the redirect names it.
	ASSERT_EQ(b->open(file_, 1), 0);
	EXPECT_EQ(b->count(COOP_ST_NODE), 0u);
	ASSERT_EQ(a->open(file_, 1), 0);
	ASSERT_EQ(a->ask(COOP_ST_READ_SHARED, read), 0);
	b->pushes.clear();
	ASSERT_EQ(b->ask(COOP_ST_READ_SHARED, read), 0);
	ASSERT_EQ(b->got.n_nodes, 1u);
	EXPECT_EQ(b->got.nodes[0], id);
}

TEST_F(daemon_nodes, a_client_that_does_not_ask_for_less_is_told_of_all)
{
	serve();
	crowd();
	const auto old = node('o', 1, 0);
	EXPECT_EQ(old->ask(COOP_ST_PING, {}), 0);
	EXPECT_EQ(old->count(COOP_ST_NODE), all_told_max);
}

TEST_F(daemon_nodes, a_client_that_reads_no_pushes_is_disconnected)
{
	serve();
	const auto silent = node('s', 1, 0);
	// More than the sockets' buffers take.
	constexpr std::size_t most = 64u << 20, each = 2 * 60;
	for (std::size_t sent = 0; sent < most && server_->members().size(); sent += each)
		server_->members().leave(server_->members().join(
			address(7), [](std::string_view, bool) {}, false, 0, circle()));
	EXPECT_TRUE(eventually([&] { return server_->members().size() == 0; }));
}

TEST_F(daemon_nodes, who_leaves_the_fabric_keeps_its_session)
{
	serve();
	const auto a = node('a', 1), b = node('b', 2);
	ASSERT_EQ(a->open(file_, 1), 0);
	ASSERT_EQ(b->open(file_, 1), 0);
	EXPECT_TRUE(hears(*a, 1));
	b->pushes.clear();
	ASSERT_EQ(b->ask(COOP_ST_LEAVE, {}), 0);
	EXPECT_EQ(server_->members().size(), 1u);
	EXPECT_TRUE(hears(*a, 1)) << "that b left";
	ASSERT_EQ(a->open(file_, 2), 0);
	EXPECT_EQ(a->got.n_nodes, 0u) << "it is no opener of the file any more";
	EXPECT_EQ(b->ask(COOP_ST_LEAVE, {}), 0) << "there is nothing left to do";
	coop_st_body check = plain_client::on(file_, 1);
	check.version = file_.attr.version;
	EXPECT_EQ(b->ask(COOP_ST_CHECK, check), 0) << "the file is open still";
	EXPECT_EQ(b->count(COOP_ST_NODE), 0u);
	coop_st_body back{};
	back.addr = address(2);
	back.flags = COOP_ST_JOIN_NAMED;
	ASSERT_EQ(b->ask(COOP_ST_JOIN, back), 0);
	EXPECT_TRUE(hears(*a, 1));
	EXPECT_TRUE(hears(*b, 1)) << "it is told of all again";
	b->cut();
	EXPECT_TRUE(hears(*a, 1));
	plain_client same(port_, version_, version_, 'b', b->used());
	EXPECT_FALSE(same.proof_flags & COOP_ST_W_NEW_SESSION);
	EXPECT_EQ(same.close(file_, 1), 0);
}

TEST_F(daemon_nodes, of_two_requests_to_join_or_leave_the_one_sent_later_counts)
{
	start();
	const auto c = node('c', 1);
	coop_st_body join{};
	join.addr = address(2);
	c->number(10);
	ASSERT_EQ(c->ask(COOP_ST_JOIN, join), 0);
	c->number(9);
	EXPECT_EQ(c->ask(COOP_ST_LEAVE, {}), 0);
	EXPECT_EQ(server_->members().size(), 1u);
	c->number(12);
	EXPECT_EQ(c->ask(COOP_ST_LEAVE, {}), 0);
	EXPECT_EQ(server_->members().size(), 0u);
	c->number(11);
	EXPECT_EQ(c->ask(COOP_ST_JOIN, join), 0);
	EXPECT_EQ(c->got.node_id, 0u);
	EXPECT_EQ(server_->members().size(), 0u);
}

TEST_F(daemon_nodes, who_leaves_the_fabric_does_not_know_yet_that_its_session_is_new)
{
	start();
	for (int again = 0; again < 2; again++) {
		plain_client c(port_, 7, version_, 's', 10u * static_cast<unsigned>(again));
		EXPECT_TRUE(c.proof_flags & COOP_ST_W_NEW_SESSION);
		EXPECT_EQ(c.ask(COOP_ST_LEAVE, {}), 0);
	}
}

TEST_F(daemon_nodes, an_older_protocol_has_no_request_to_leave)
{
	start();
	version_ = coop_st_op_since(COOP_ST_LEAVE) - 1;
	const auto old = node('o', 1);
	EXPECT_EQ(old->ask(COOP_ST_LEAVE, {}), EOPNOTSUPP);
	EXPECT_EQ(server_->members().size(), 1u);
}

TEST_F(daemon_nodes, a_bundle_names_nodes_that_the_client_knows)
{
	serve("small", 5000);
	crowd();
	const auto a = node('a', 1), b = node('b', 2);
	coop_st_body read{};
	read.open_id = 1;
	read.count = 8192;
	read.version = file_.attr.version;
	ASSERT_EQ(a->open(file_, 1), 0);
	ASSERT_EQ(a->ask(COOP_ST_READ_SHARED, read), 0);
	coop_st_body bundle = plain_client::on(client_->root(), 7);
	bundle.flags = COOP_ST_B_AT_NODES;
	b->flags = COOP_ST_F_LEASE;
	// A directory that has just changed has no bundle.
	ASSERT_TRUE(eventually([&] { return b->ask(COOP_ST_BUNDLE, bundle) == 0; }));
	EXPECT_EQ(b->got.flags, COOP_ST_B_AT_NODES);
	EXPECT_EQ(b->count(COOP_ST_NODE), 1u);
}
