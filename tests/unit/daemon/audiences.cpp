// SPDX-License-Identifier: MIT
// audiences.cpp - the members of file versions: what each of them was told last is its role in the
// forest of those that are members now.
//
// The test beside the table is a naive one: lists of clients by file version, and the whole forest
// of each list computed again.
#include "userland/daemon/audiences.hpp"

#include <algorithm>
#include <gtest/gtest.h>
#include <optional>
#include <random>

using namespace coop::daemon;

namespace
{

using parents = std::vector<coop_st_parents>;

struct client final : audience_client {
	std::uint32_t id = 0;
	std::map<std::uint64_t, coop_st_body> told; // by file; the latest
	unsigned pushes = 0, needless = 0;          // needless: the roles that it was told before
	std::function<void()> on_push;
	audience_table::seat own; // as of a session, whose open files end with it

	std::uint32_t role_node() const override { return id; }
	node_ability can;
	node_ability ability() const override { return can; }
	bool full = false; // drops what is pushed
	bool push(std::uint16_t op, const coop_st_body &b) override
	{
		if (full)
			return false;
		EXPECT_EQ(op, COOP_ST_ROLES);
		const auto old = told.find(b.fid.lo);
		pushes++;
		needless += old != told.end() && old->second.version == b.version &&
			    colours(old->second) == colours(b);
		told[b.fid.lo] = b;
		if (on_push)
			on_push();
		return true;
	}
	static std::vector<std::uint32_t> colours(const coop_st_body &b)
	{
		std::vector<std::uint32_t> all;
		for (std::uint32_t c = 0; c < b.roles.n_colours; c++) {
			const coop_st_parents &p = b.roles.colours[c];
			all.insert(all.end(), {p.parent, p.alternate, p.level});
		}
		return all;
	}
	bool knows(std::uint64_t file) const { return told.contains(file); }
	std::uint32_t members(std::uint64_t file) const { return told.at(file).roles.members; }
};

constexpr file_version file(std::uint64_t fid, std::uint64_t version = 1)
{
	return {{7, fid}, version};
}

void settle(audience_table &t)
{
	while (t.flush())
		;
}

// Of a member, or of a leaf below the forest of 'all'.
std::vector<std::uint32_t> expected(const std::vector<client *> &all, std::size_t number,
				    std::size_t leaves = 0, bool leaf = false)
{
	std::vector<std::uint32_t> out;
	const auto id = [&](std::uint32_t n) { return n == COOP_NONE ? 0 : all[n]->id; };
	if (all.size() + leaves < 2 || all.empty())
		return out;
	for (std::uint32_t c = 0; c < COOP_FOREST_COLOURS; c++) {
		coop_role r;
		(leaf ? coop_forest_leaf_role : coop_forest_role)(static_cast<u32>(all.size()),
								  static_cast<u32>(number), c, &r);
		out.insert(out.end(), {id(r.parent), id(r.alternate), r.level});
	}
	return out;
}

// Every client of the lists was told its roles, or has none and was told nothing else.
void check(const std::vector<client *> &all, const file_version &f,
	   const std::vector<client *> &leaves = {})
{
	for (std::size_t i = 0; i < all.size() + leaves.size(); i++) {
		const bool leaf = i >= all.size();
		const std::size_t number = leaf ? i - all.size() : i;
		const client &c = *(leaf ? leaves : all)[number];
		const std::vector<std::uint32_t> roles = expected(all, number, leaves.size(), leaf);
		const auto said = c.told.find(f.fid.lo);
		const bool silent = said == c.told.end() || said->second.version != f.version;
		if (silent) {
			ASSERT_EQ(roles.size(), 0u) << "member " << i << " was told nothing";
			continue;
		}
		ASSERT_EQ(client::colours(said->second), roles)
			<< (leaf ? "leaf " : "member ") << number << " of " << all.size() << " and "
			<< leaves.size();
		if (all.size() > 1 && !leaf)
			ASSERT_EQ(said->second.roles.index, i);
	}
}

std::vector<std::shared_ptr<client>> make(std::uint32_t n)
{
	std::vector<std::shared_ptr<client>> all;
	for (std::uint32_t i = 0; i < n; i++) {
		all.push_back(std::make_shared<client>());
		all.back()->id = 1000 + i;
	}
	return all;
}

} // namespace

TEST(audiences, a_client_that_is_alone_costs_nothing)
{
	audience_table t;
	unsigned woken = 0;
	t.on_change([&] { woken++; });
	const auto all = make(1);
	{
		const auto seat = t.join(all[0], file(1)), again = t.join(all[0], file(1));
		EXPECT_EQ(t.size(), 1u);
		settle(t);
	}
	EXPECT_EQ(t.size(), 0u);
	EXPECT_EQ(all[0]->pushes, 0u);
	EXPECT_EQ(woken, 0u);
}

TEST(audiences, who_opens_is_told_at_once_and_the_others_together)
{
	audience_table t;
	unsigned woken = 0;
	t.on_change([&] { woken++; });
	const auto all = make(3);
	std::vector<audience_table::seat> seats;
	std::vector<client *> members;
	for (const auto &c : all) {
		seats.push_back(t.join(c, file(1)));
		members.push_back(c.get());
	}
	EXPECT_EQ(all[0]->pushes, 0u);
	EXPECT_EQ(all[1]->pushes, 1u);
	EXPECT_EQ(all[2]->pushes, 1u);
	EXPECT_EQ(all[2]->members(1), 3u);
	EXPECT_EQ(client::colours(all[2]->told[1]), expected(members, 2));
	EXPECT_EQ(woken, 1u) << "one call until the flush";
	settle(t);
	EXPECT_EQ(all[0]->pushes, 1u);
	EXPECT_EQ(all[1]->pushes, 2u);
	EXPECT_EQ(all[2]->pushes, 1u) << "its roles have not changed";
	check(members, file(1));
	seats.pop_back();
	EXPECT_EQ(woken, 2u);
}

TEST(audiences, the_last_of_two_is_told_that_it_is_alone)
{
	audience_table t;
	const auto all = make(2);
	auto first = t.join(all[0], file(1));
	{
		const auto second = t.join(all[1], file(1));
		settle(t);
	}
	settle(t);
	EXPECT_EQ(all[0]->members(1), 1u);
	EXPECT_EQ(all[0]->told[1].roles.n_colours, 0u);
}

TEST(audiences, an_open_beside_another_one_repeats_the_roles)
{
	audience_table t;
	const auto all = make(2);
	const auto first = t.join(all[0], file(1)), second = t.join(all[1], file(1));
	settle(t);
	all[1]->told.clear(); // forgotten at a close that the daemon executes late
	const auto again = t.join(all[1], file(1));
	EXPECT_EQ(all[1]->members(1), 2u);
	EXPECT_EQ(all[0]->pushes, 1u);
}

TEST(audiences, another_version_is_another_audience)
{
	audience_table t;
	const auto all = make(3);
	const auto a = t.join(all[0], file(1, 5)), b = t.join(all[1], file(1, 5));
	settle(t);
	const auto c = t.join(all[2], file(1, 6));
	EXPECT_FALSE(all[2]->knows(1));
	const auto later = t.join(all[1], file(1, 6));
	settle(t);
	EXPECT_EQ(t.size(), 2u);
	EXPECT_EQ(all[0]->members(1), 1u) << "left behind with the old version";
	check({all[2].get(), all[1].get()}, file(1, 6));
	t.depart(*all[1], file(1, 6));
	settle(t);
	EXPECT_EQ(all[2]->members(1), 2u) << "another open of the same version";
	t.depart(*all[1], file(1, 7));
	settle(t);
	EXPECT_EQ(all[2]->members(1), 1u);
	t.moved(*all[1]);
	EXPECT_EQ(t.size(), 2u) << "it was no member when its node moved";
}

TEST(audiences, roles_that_were_dropped_are_told_later)
{
	audience_table t;
	const auto all = make(3);
	const auto a = t.join(all[0], file(1, 5));
	all[0]->full = true;
	const auto b = t.join(all[1], file(1, 5));
	settle(t);
	EXPECT_FALSE(all[0]->knows(1));
	all[0]->full = false;
	{
		const auto c = t.join(all[2], file(1, 5));
	}
	settle(t);
	EXPECT_EQ(all[0]->members(1), 2u) << "the same roles as those that were dropped";
}

TEST(audiences, a_node_that_registers_late_becomes_a_member_then)
{
	audience_table t;
	const auto all = make(2);
	all[1]->id = 0;
	const auto a = t.join(all[0], file(1)), b = t.join(all[1], file(1));
	settle(t);
	EXPECT_EQ(all[0]->pushes + all[1]->pushes, 0u);
	all[1]->id = 77;
	t.moved(*all[1]);
	settle(t);
	check({all[0].get(), all[1].get()}, file(1));
	all[0]->id = 78; // on a new connection: it knows nothing any more
	all[0]->told.clear();
	t.moved(*all[0]);
	settle(t);
	check({all[0].get(), all[1].get()}, file(1));
	all[0]->id = 0;
	t.moved(*all[0]);
	settle(t);
	EXPECT_EQ(all[1]->members(1), 1u);
}

TEST(audiences, a_change_costs_few_pushes_in_a_large_audience)
{
	audience_table t;
	const auto all = make(1000);
	std::vector<audience_table::seat> seats;
	std::vector<client *> members;
	unsigned before = 0;
	const auto cost = [&] {
		unsigned sum = 0;
		settle(t);
		for (const auto &c : all)
			sum += c->pushes;
		return sum - std::exchange(before, sum);
	};
	unsigned most = 0;
	for (const auto &c : all) {
		seats.push_back(t.join(c, file(1)));
		members.push_back(c.get());
		most = std::max(most, cost());
	}
	EXPECT_LE(most, 16u) << "to the newcomer and to its block";
	check(members, file(1));
	seats[3] = {}; // the block of the root and of the first carriers
	members[3] = members.back();
	members.pop_back();
	EXPECT_LE(cost(), 16u * 4) << "its block, two below, and that of the last member";
	check(members, file(1));
	for (const auto &c : all)
		EXPECT_EQ(c->needless, 0u);
}

namespace
{

bool is_leaf(const client &c)
{
	const coop_st_roles &r = c.told.at(1).roles;
	return r.n_colours && coop_forest_part_of(r.colours[0].level) == COOP_PART_LEAF;
}

} // namespace

TEST(audiences, who_does_not_forward_hangs_below_the_others)
{
	audience_table t;
	const auto all = make(4);
	all[0]->can.forwards = all[2]->can.forwards = false;
	std::vector<audience_table::seat> seats;
	seats.push_back(t.join(all[0], file(1)));
	EXPECT_EQ(all[0]->pushes, 0u) << "a lone leaf reads from storage";
	seats.push_back(t.join(all[2], file(1)));
	settle(t);
	EXPECT_EQ(all[0]->pushes + all[2]->pushes, 0u) << "and so do two";
	seats.push_back(t.join(all[1], file(1)));
	settle(t);
	check({all[1].get()}, file(1), {all[0].get(), all[2].get()});
	EXPECT_EQ(t.leaves(), 2u);
	seats.push_back(t.join(all[3], file(1)));
	settle(t);
	check({all[1].get(), all[3].get()}, file(1), {all[0].get(), all[2].get()});
	for (const auto &c : all)
		for (const coop_st_parents &p : c->told[1].roles.colours)
			for (std::uint32_t node : {p.parent, p.alternate})
				EXPECT_TRUE(node != all[0]->id && node != all[2]->id);
	seats[0] = {};
	seats[1] = {};
	settle(t);
	check({all[1].get(), all[3].get()}, file(1));
	seats[3] = {};
	settle(t);
	EXPECT_EQ(all[1]->members(1), 1u);
}

TEST(audiences, who_is_slow_beside_the_others_becomes_a_leaf)
{
	audience_table t;
	const auto all = make(12);
	std::vector<audience_table::seat> seats;
	for (std::size_t i = 0; i < all.size(); i++)
		all[i]->can.mbps = i == 3 ? 0 : 100000;
	all[0]->can.mbps = 10000;
	all[1]->can.mbps = 40000;
	for (std::size_t i = 0; i < 2; i++)
		seats.push_back(t.join(all[i], file(1)));
	settle(t);
	check({all[0].get(), all[1].get()}, file(1)); // more than a quarter
	for (std::size_t i = 2; i < all.size(); i++)
		seats.push_back(t.join(all[i], file(1)));
	settle(t);
	EXPECT_TRUE(is_leaf(*all[0]));
	EXPECT_EQ(t.leaves(), 1u) << "an unknown rate is not slow";
	for (std::size_t i = 2; i < all.size(); i++)
		seats[i] = {};
	settle(t);
	EXPECT_EQ(t.leaves(), 0u) << "beside the one that is left it is not slow";
	for (std::size_t i = 0; i < 2; i++)
		EXPECT_EQ(all[i]->members(1), 2u);
	EXPECT_FALSE(is_leaf(*all[0]));
}

TEST(audiences, rates_half_and_half_do_not_move_members_at_each_join)
{
	rate_classes r;
	for (unsigned i = 0; i < 16; i++)
		r.add(10000);
	const std::uint32_t slow = r.slow_below();
	EXPECT_GT(slow, 0u);
	EXPECT_LE(slow, 2500u);
	for (unsigned i = 0; i < 20; i++)
		r.add(100000);
	EXPECT_EQ(r.slow_below(), slow) << "the median has moved, but not for good";
	for (unsigned i = 0; i < 20; i++)
		r.add(100000);
	EXPECT_GT(r.slow_below(), 10000u);
	for (unsigned i = 0; i < 16; i++)
		r.remove(10000);
	for (unsigned i = 0; i < 40; i++)
		r.remove(100000);
	EXPECT_EQ(r.slow_below(), 0u) << "none is known";
}

TEST(audiences, members_that_come_together_cost_one_push_each)
{
	audience_table t;
	const auto all = make(500);
	std::vector<audience_table::seat> seats;
	for (const auto &c : all)
		seats.push_back(t.join(c, file(1)));
	settle(t);
	EXPECT_LE(t.pushed, 2 * all.size());
}

TEST(audiences, a_flush_gives_the_table_to_others_now_and_then)
{
	audience_table t;
	const auto all = make(1000);
	std::vector<audience_table::seat> seats;
	for (const auto &c : all)
		seats.push_back(t.join(c, file(1)));
	unsigned rounds = 1;
	while (t.flush())
		rounds++;
	EXPECT_GT(rounds, 2u);
}

TEST(audiences, a_session_may_end_while_it_is_told)
{
	audience_table t;
	auto all = make(2);
	all[0]->own = t.join(all[0], file(1));
	auto second = t.join(all[1], file(1));
	all[0]->on_push = [&] { all[0].reset(); }; // the table has the last reference
	settle(t);
	EXPECT_FALSE(all[0]);
	settle(t);
	EXPECT_EQ(all[1]->members(1), 1u);
}

namespace
{

// Lists of clients as the table should have them.
class model
{
public:
	explicit model(std::uint32_t n) : clients_(make(n))
	{
		for (std::size_t i = 0; i < n; i += 5)
			clients_[i]->can.forwards = false;
	}

	void step(std::mt19937 &dice)
	{
		const std::size_t who = dice() % clients_.size();
		const std::uint64_t fid = dice() % 3;
		switch (dice() % 8) {
		case 0:
		case 1:
		case 2:
			return join(who, file(fid, dice() % 8 ? 1 : 2));
		case 3:
		case 4:
		case 5:
			return leave(who, fid);
		case 6:
			clients_[who]->id = dice() % 4 ? ++last_id_ : 0;
			return move(who);
		default:
			settle(table_);
			return compare();
		}
	}
	void compare()
	{
		settle(table_);
		std::size_t audiences = 0;
		for (const auto &[f, all] : lists_) {
			const auto &below = leaves_[f];
			audiences += !all.empty() || !below.empty();
			check(all, file(f.first, f.second), below);
		}
		ASSERT_EQ(table_.size(), audiences);
	}
	std::size_t largest() const
	{
		std::size_t most = 0;
		for (const auto &[f, all] : lists_)
			most = std::max(most, all.size());
		return most;
	}

private:
	struct held {
		std::uint64_t version = 0;
		std::vector<audience_table::seat> seats;
	};
	using name = std::pair<std::uint64_t, std::uint64_t>; // file, version

	std::vector<client *> &list(const client *c, std::uint64_t fid, std::uint64_t version)
	{
		lists_[name{fid, version}];
		return (c->can.forwards ? lists_ : leaves_)[name{fid, version}];
	}
	void out(client *c, std::uint64_t fid, std::uint64_t version)
	{
		auto &all = list(c, fid, version);
		const auto at = std::find(all.begin(), all.end(), c);
		if (at == all.end())
			return;
		*at = all.back();
		all.pop_back();
		c->told.erase(fid);
	}
	void join(std::size_t who, const file_version &f)
	{
		client *c = clients_[who].get();
		held &h = held_[{who, f.fid.lo}];
		if (h.version != f.version)
			out(c, f.fid.lo, h.version);
		auto &all = list(c, f.fid.lo, f.version);
		if (c->id && std::find(all.begin(), all.end(), c) == all.end())
			all.push_back(c);
		h.version = f.version;
		h.seats.push_back(table_.join(clients_[who], f));
	}
	void leave(std::size_t who, std::uint64_t fid)
	{
		held &h = held_[{who, fid}];
		if (h.seats.empty())
			return;
		h.seats.pop_back();
		if (!h.seats.empty())
			return;
		out(clients_[who].get(), fid, h.version);
		h.version = 0;
	}
	void move(std::size_t who)
	{
		client *c = clients_[who].get();
		c->told.clear();
		for (std::uint64_t fid = 0; fid < 3; fid++) {
			const held &h = held_[{who, fid}];
			auto &all = list(c, fid, h.version);
			const auto at = std::find(all.begin(), all.end(), c);
			if (!c->id)
				out(c, fid, h.version);
			else if (at == all.end() && !h.seats.empty())
				all.push_back(c);
		}
		table_.moved(*c);
	}

	audience_table table_;
	std::vector<std::shared_ptr<client>> clients_;
	std::map<std::pair<std::size_t, std::uint64_t>, held> held_;
	std::map<name, std::vector<client *>> lists_, leaves_;
	std::uint32_t last_id_ = 5000;
};

} // namespace

TEST(audiences, members_are_told_what_the_whole_forest_says)
{
	std::size_t largest = 0;
	for (unsigned seed = 1; seed <= 3; seed++) {
		std::mt19937 dice(seed);
		model m(24 * seed);
		for (unsigned i = 0; i < 1000 && !testing::Test::HasFatalFailure(); i++)
			m.step(dice);
		m.compare();
		largest = std::max(largest, m.largest());
	}
	EXPECT_GT(largest, 16u) << "more than a block";
}
