// SPDX-License-Identifier: MIT
// sim.cpp - runs every scenario of the rpc/chan simulator on one seed, and proves that the
// oracle notices each rule switched off. SEED=n replays.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/sim/chan_world.hpp"

namespace
{

using namespace coop::sim;

u64 seed()
{
	const char *env = std::getenv("SEED");
	return env ? std::strtoull(env, nullptr, 0) : 1;
}

std::string told(const chan_result &r, const chan_scenario &s)
{
	std::string text = "replay: coop-sim-chan --scenario " + std::string(s.name) + " --seed " +
			   std::to_string(seed());
	for (const auto &v : r.violations)
		text += "\n" + v;
	return text;
}

chan_scenario find(const std::string &name)
{
	for (const auto &s : chan_scenarios())
		if (name == s.name)
			return s;
	throw std::invalid_argument(name);
}

class chan_scenario_test : public testing::TestWithParam<chan_scenario>
{
};

TEST_P(chan_scenario_test, delivers_everything_once_or_says_that_it_did_not)
{
	chan_scenario s = GetParam();
	std::cout << "seed " << seed() << ": " << s.what << "\n";
	s.messages = std::min<u32>(s.messages, 4000);
	const chan_result r = chan_run(s, seed());
	EXPECT_EQ(r.wrong, 0u) << told(r, s);
	EXPECT_GT(r.delivered, s.messages / 8);
}

INSTANTIATE_TEST_SUITE_P(sim, chan_scenario_test, testing::ValuesIn(chan_scenarios()),
			 [](const auto &info) { return std::string(info.param.name); });

struct rule {
	const char *name, *scenario;
	u32 flag;
};

class chan_rule_test : public testing::TestWithParam<rule>
{
};

TEST_P(chan_rule_test, is_missed_when_it_is_off)
{
	chan_scenario s = find(GetParam().scenario);
	s.limit_us = 30000000;
	s.messages = std::min<u32>(s.messages, 4000);
	const chan_result whole = chan_run(s, seed());
	EXPECT_EQ(whole.wrong, 0u) << told(whole, s);
	EXPECT_GT(chan_run(s, seed(), GetParam().flag).wrong, 0u)
		<< GetParam().name << " switched off goes unnoticed in " << s.name << ", seed "
		<< seed();
}

INSTANTIATE_TEST_SUITE_P(sim, chan_rule_test,
			 testing::Values(rule{"dedup", "reorder_dup", COOP_CHAN_F_TEST_NO_DEDUP},
					 rule{"session", "restart", COOP_CHAN_F_TEST_NO_SESSION},
					 rule{"sack", "loss_1pct", COOP_CHAN_F_TEST_NO_SACK},
					 rule{"mac", "corrupt", COOP_CHAN_F_TEST_NO_MAC},
					 rule{"cwnd", "incast_16", COOP_CHAN_F_TEST_NO_CWND},
					 rule{"rto", "loss_10pct", COOP_CHAN_F_TEST_NO_RTO}),
			 [](const auto &info) { return std::string(info.param.name); });

TEST(chan_sim, is_the_same_for_a_seed)
{
	const chan_scenario s = find("everything");
	const chan_result a = chan_run(s, seed()), b = chan_run(s, seed());
	EXPECT_EQ(a.events, b.events);
	EXPECT_EQ(a.delivered, b.delivered);
	EXPECT_EQ(a.last_us, b.last_us);
}

} // namespace
