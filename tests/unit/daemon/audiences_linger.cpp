// SPDX-License-Identifier: MIT
// audiences_linger.cpp - members that linger after a short open: what the others are told
// meanwhile, and when they stop.
#include "userland/daemon/audiences.hpp"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>

using namespace coop::daemon;
using namespace std::chrono_literals;

namespace
{

struct client final : audience_client {
	std::uint32_t id = 0;
	std::map<std::uint64_t, coop_st_body> told; // by file; the latest
	unsigned pushes = 0;
	std::uint32_t role_node() const override { return id; }
	bool push(std::uint16_t, const coop_st_body &b) override
	{
		pushes++;
		told[b.fid.lo] = b;
		return true;
	}
};

constexpr file_version file(std::uint64_t fid, std::uint64_t version = 1)
{
	return {{fid, fid}, version};
}

class audiences_linger : public testing::Test
{
protected:
	using seat = audience_table::seat;

	audiences_linger()
	{
		table_.on_linger([this] { woken_++; }, [this] { return now_; });
	}
	void come(std::uint32_t n)
	{
		for (std::uint32_t i = 0; i < n; i++) {
			all_.push_back(std::make_shared<client>());
			all_.back()->id = 1000 + static_cast<std::uint32_t>(all_.size());
		}
		seats_.resize(all_.size());
	}
	void open(std::size_t i, const file_version &f = file(1))
	{
		seats_[i] = table_.join(all_[i], f);
	}
	void close(std::size_t i) { seats_[i] = {}; }
	void settle()
	{
		while (table_.flush())
			;
	}
	unsigned pushes() const
	{
		unsigned n = 0;
		for (const auto &c : all_)
			n += c->pushes;
		return n;
	}
	// As of a file that is open for long.
	void stay() { now_ += linger_time; }
	bool pass(std::chrono::milliseconds time)
	{
		now_ += time;
		const bool more = table_.expire();
		settle();
		return more;
	}
	// The last roles of these clients are those of one forest of so many members, a number
	// that is not told to those whose parents stay.
	void agree(const std::vector<std::size_t> &who, std::uint32_t members,
		   const file_version &f = file(1))
	{
		std::map<std::uint32_t, std::uint32_t> node; // by number, of those
		for (const std::size_t i : who) {
			ASSERT_TRUE(all_[i]->told.contains(f.fid.lo)) << i;
			const coop_st_body &b = all_[i]->told.at(f.fid.lo);
			ASSERT_EQ(b.version, f.version) << i;
			ASSERT_LT(b.roles.index, members) << i;
			ASSERT_TRUE(node.emplace(b.roles.index, all_[i]->id).second) << i;
		}
		for (const std::size_t i : who)
			for (std::uint32_t c = 0; members > 1 && c < COOP_FOREST_COLOURS; c++) {
				const coop_st_roles &told = all_[i]->told.at(f.fid.lo).roles;
				coop_role r;
				coop_forest_role(members, told.index, c, &r);
				ASSERT_EQ(told.colours[c].level, r.level);
				check(node, told.colours[c].parent, r.parent);
				check(node, told.colours[c].alternate, r.alternate);
			}
	}
	// Of lingering members only the numbers are known.
	static void check(const std::map<std::uint32_t, std::uint32_t> &node, std::uint32_t told,
			  std::uint32_t number)
	{
		ASSERT_EQ(told == 0, number == COOP_NONE);
		const auto known = node.find(number);
		if (known != node.end()) {
			ASSERT_EQ(told, known->second);
			return;
		}
		for (const auto &one : node)
			ASSERT_NE(told, one.second);
	}

	audience_table table_;
	audience_table::clock::time_point now_{1h};
	unsigned woken_ = 0;
	std::vector<std::shared_ptr<client>> all_;
	std::vector<seat> seats_;
};

} // namespace

TEST_F(audiences_linger, opens_and_closes_all_the_time_change_nobodys_roles)
{
	come(40);
	for (std::size_t i = 0; i < 40; i++)
		open(i);
	settle();
	unsigned before = pushes();
	for (unsigned round = 0; round < 5; round++)
		for (std::size_t i = 0; i < 40; i++) {
			close(i);
			settle();
			EXPECT_EQ(pushes(), before) << "closed";
			now_ += 1ms;
			open(i);
			EXPECT_EQ(pushes(), ++before) << "its own, with the reply";
			settle();
			ASSERT_EQ(pushes(), before) << "of the others'";
		}
	EXPECT_EQ(table_.lingering(), 0u);
	EXPECT_EQ(woken_, 1u);
}

TEST_F(audiences_linger, who_lingers_leaves_after_a_while)
{
	come(4);
	for (std::size_t i = 0; i < 4; i++)
		open(i);
	settle();
	close(1);
	EXPECT_EQ(woken_, 1u);
	now_ += 1ms;
	close(2);
	EXPECT_EQ(woken_, 1u) << "one call until expire() says that none lingers";
	settle();
	agree({0, 3}, 4);
	const unsigned told = all_[1]->pushes + all_[2]->pushes;
	EXPECT_TRUE(pass(linger_time - 1ms));
	agree({0, 3}, 3);
	EXPECT_FALSE(pass(1ms));
	agree({0, 3}, 2);
	EXPECT_EQ(all_[1]->pushes + all_[2]->pushes, told) << "they have the file no longer open";
	open(1);
	settle();
	agree({0, 1, 3}, 3);
	close(1);
	EXPECT_EQ(woken_, 2u);
}

TEST_F(audiences_linger, a_reader_whose_last_companion_leaves_the_fabric_is_told_so)
{
	come(5);
	for (std::size_t i = 0; i < 5; i++)
		open(i);
	settle();
	for (std::size_t i = 2; i < 5; i++)
		close(i);
	EXPECT_EQ(table_.lingering(), 3u);
	all_[1]->id = 0;
	table_.moved(*all_[1]);
	settle();
	EXPECT_EQ(table_.lingering(), 0u);
	EXPECT_EQ(all_[0]->told.at(1).roles.n_colours, 0u);
}

TEST_F(audiences_linger, the_latest_open_counts)
{
	come(3);
	for (std::size_t i = 0; i < 3; i++)
		open(i);
	settle();
	now_ += 2 * linger_time;
	open(2); // another process of that node
	close(2);
	close(2);
	EXPECT_EQ(table_.lingering(), 1u);
}

TEST_F(audiences_linger, who_had_the_file_open_for_long_leaves_at_once)
{
	come(3);
	for (std::size_t i = 0; i < 3; i++)
		open(i);
	stay();
	close(1);
	settle();
	EXPECT_EQ(table_.lingering(), 0u);
	EXPECT_EQ(woken_, 0u);
	agree({0, 2}, 2);
}

TEST_F(audiences_linger, the_last_one_that_has_the_file_open_is_alone_at_once)
{
	come(3);
	for (std::size_t i = 0; i < 3; i++)
		open(i);
	settle();
	close(2);
	EXPECT_EQ(table_.lingering(), 1u);
	close(1);
	settle();
	EXPECT_EQ(table_.lingering(), 0u);
	EXPECT_EQ(all_[0]->told.at(1).roles.n_colours, 0u);
	close(0);
	EXPECT_EQ(table_.size(), 0u);
	EXPECT_FALSE(pass(0ms));
}

TEST_F(audiences_linger, few_linger_beside_few)
{
	come(64);
	for (std::size_t i = 0; i < 64; i++)
		open(i);
	settle();
	for (std::size_t i = 2; i < 48; i++)
		close(i);
	settle();
	EXPECT_EQ(table_.lingering(), 46u);
	agree({0, 1, 48, 63}, 64);
	for (std::size_t i = 48; i < 64; i++) {
		close(i);
		settle();
		ASSERT_LE(table_.lingering(), 3 * (63 - i + 2)) << i;
	}
	const std::size_t left = table_.lingering();
	EXPECT_LE(left, 6u);
	agree({0, 1}, 2 + static_cast<std::uint32_t>(left));
}

TEST_F(audiences_linger, another_version_or_the_end_of_a_node_ends_it)
{
	come(5);
	for (std::size_t i = 0; i < 5; i++)
		open(i);
	settle();
	close(2);
	close(3);
	close(4);
	EXPECT_EQ(table_.lingering(), 3u);
	open(2, file(1, 2));
	table_.depart(*all_[3], file(1, 2));
	EXPECT_EQ(table_.lingering(), 1u);
	all_[4]->id = 77;
	table_.moved(*all_[4]);
	EXPECT_EQ(table_.lingering(), 0u) << "the others would be told of the new node for nothing";
	settle();
	agree({0, 1}, 2);
	EXPECT_EQ(table_.size(), 2u);
	close(0);
	open(0);
	settle();
	agree({0, 1}, 2);
}

TEST_F(audiences_linger, who_moves_to_another_version_leaves_no_crowd_behind)
{
	come(5);
	for (std::size_t i = 0; i < 5; i++)
		open(i);
	for (std::size_t i = 2; i < 5; i++)
		close(i);
	const auto other = table_.join(all_[0], file(1, 2));
	settle();
	EXPECT_EQ(table_.lingering(), 0u);
	EXPECT_EQ(all_[1]->told.at(1).roles.n_colours, 0u);
}

TEST_F(audiences_linger, an_ended_session_is_forgotten_with_its_node)
{
	come(4);
	for (std::size_t i = 0; i < 4; i++)
		open(i);
	close(3);
	all_[3]->id = 0;
	table_.moved(*all_[3]);
	all_[3].reset();
	settle();
	agree({0, 1, 2}, 3);
	EXPECT_FALSE(pass(linger_time));
}

TEST_F(audiences_linger, so_many_linger_and_no_more)
{
	constexpr std::size_t files = lingering_max + 10;
	come(3);
	std::vector<seat> held;
	for (std::uint64_t f = 0; f < files; f++) {
		for (std::size_t i = 0; i < 2; i++)
			held.push_back(table_.join(all_[i], file(f)));
		const auto third = table_.join(all_[2], file(f));
	}
	EXPECT_EQ(table_.lingering(), lingering_max);
	settle();
	agree({0, 1}, 2, file(0));
	agree({0, 1}, 3, file(files - 1));
	EXPECT_FALSE(pass(linger_time));
	EXPECT_EQ(table_.lingering(), 0u);
}

TEST_F(audiences_linger, members_agree_whatever_comes)
{
	std::size_t lingered = 0;
	for (unsigned seed = 1; seed <= 4; seed++) {
		std::mt19937 dice(seed);
		all_.clear();
		seats_.clear();
		come(24 * seed);
		std::vector<std::uint64_t> open_at(all_.size()); // version; 0: closed
		std::vector<bool> member(all_.size());
		std::uint32_t last_id = 100000 * seed;
		for (unsigned step = 0; step < 2000 && !HasFatalFailure(); step++) {
			const std::size_t who = dice() % all_.size();
			// In every other round all that lingers does so in one audience.
			const std::uint64_t v = seed % 2 || dice() % 16 ? 1 : 2;
			switch (dice() % 64) {
			case 0:
			case 1:
				all_[who]->id = ++last_id;
				all_[who]->told.clear();
				table_.moved(*all_[who]);
				break;
			case 2:
				(void)pass(std::chrono::milliseconds(dice() % 300));
				break;
			case 3:
				table_.depart(*all_[who], file(1, v));
				member[who] = member[who] && open_at[who] == v;
				break;
			default:
				if (open_at[who])
					close(who);
				else
					open(who, file(1, v));
				member[who] = !open_at[who];
				open_at[who] = open_at[who] ? 0 : v;
			}
			now_ += std::chrono::milliseconds(dice() % 4);
			lingered = std::max(lingered, table_.lingering());
			if (step % 16)
				continue;
			if (seed % 2 == 0)
				(void)pass(linger_time);
			settle();
			for (const std::uint64_t version : {1, 2}) {
				std::vector<std::size_t> members;
				for (std::size_t i = 0; i < all_.size(); i++)
					if (member[i] && open_at[i] == version)
						members.push_back(i);
				const std::size_t n = members.size() + table_.lingering();
				if (members.size() > 1)
					agree(members, static_cast<std::uint32_t>(n),
					      file(1, version));
			}
		}
		for (seat &s : seats_)
			s = {};
		(void)pass(2 * linger_time);
		ASSERT_EQ(table_.size(), 0u);
		ASSERT_EQ(table_.lingering(), 0u);
	}
	EXPECT_GT(lingered, 16u) << "more than a block";
}
