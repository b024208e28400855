// SPDX-License-Identifier: MIT
// chan_main.cpp - coop-sim-chan: runs the scenarios of rpc/chan and prints the results.
//
//	coop-sim-chan [--seed N] [--rounds N] [--scenario NAME] [--messages N]
//	              [--break dedup|session|sack|mac|cwnd|rto]
//
// SEED=n in the environment replays, like --seed. Exit code 1 if the oracle found an error.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "rpc/chan/chan.h"
#include "tests/sim/chan_world.hpp"

extern "C" void coop_assert_failed(const char *what, const char *file, int line)
{
	std::fprintf(stderr, "%s:%d: engine assertion: %s\n", file, line, what);
	std::abort();
}

namespace
{

using namespace coop::sim;

u32 flag_of(const std::string &rule)
{
	if (rule == "dedup")
		return COOP_CHAN_F_TEST_NO_DEDUP;
	if (rule == "session")
		return COOP_CHAN_F_TEST_NO_SESSION;
	if (rule == "sack")
		return COOP_CHAN_F_TEST_NO_SACK;
	if (rule == "mac")
		return COOP_CHAN_F_TEST_NO_MAC;
	if (rule == "cwnd")
		return COOP_CHAN_F_TEST_NO_CWND;
	if (rule == "rto")
		return COOP_CHAN_F_TEST_NO_RTO;
	std::fprintf(stderr, "coop-sim-chan: no rule '%s'\n", rule.c_str());
	std::exit(2);
}

bool report(const chan_scenario &s, u64 seed, const chan_result &r)
{
	using ull = unsigned long long;
	const double seconds = static_cast<double>(r.last_us - r.first_us) / 1e6;
	std::printf("%-12s seed %llu: %llu delivered, %llu failed, %llu orphans, %.3f s; "
		    "%llu datagrams, %llu lost, %llu dropped, %llu retransmits (%.1f %%), "
		    "%llu stale, %llu refused, %llu dead, %llu restarted, %.0f MB/s\n",
		    s.name, static_cast<ull>(seed), static_cast<ull>(r.delivered),
		    static_cast<ull>(r.failed), static_cast<ull>(r.orphans), seconds,
		    static_cast<ull>(r.packets), static_cast<ull>(r.lost),
		    static_cast<ull>(r.dropped), static_cast<ull>(r.retransmits),
		    r.segments ? 100.0 * static_cast<double>(r.retransmits) /
					 static_cast<double>(r.segments)
			       : 0.0,
		    static_cast<ull>(r.stale), static_cast<ull>(r.refused),
		    static_cast<ull>(r.told_dead), static_cast<ull>(r.told_restarted),
		    seconds > 0 ? static_cast<double>(r.bytes) / 1e6 / seconds : 0.0);
	for (const auto &why : r.violations)
		std::printf("WRONG %s: %s\n", s.name, why.c_str());
	if (r.wrong)
		std::printf("WRONG %s: %llu in all; replay: coop-sim-chan --scenario %s --seed "
			    "%llu\n",
			    s.name, static_cast<ull>(r.wrong), s.name, static_cast<ull>(seed));
	return !r.wrong;
}

} // namespace

int main(int argc, char **argv)
{
	const char *env = std::getenv("SEED");
	u64 seed = env ? std::strtoull(env, nullptr, 0) : std::random_device{}();
	u32 rounds = 1, flags = 0, messages = 0;
	std::string only;
	for (int i = 1; i + 1 < argc; i += 2) {
		const std::string option = argv[i];
		if (option == "--seed")
			seed = std::strtoull(argv[i + 1], nullptr, 0);
		else if (option == "--rounds")
			rounds = static_cast<u32>(std::atoi(argv[i + 1]));
		else if (option == "--messages")
			messages = static_cast<u32>(std::atoi(argv[i + 1]));
		else if (option == "--scenario")
			only = argv[i + 1];
		else if (option == "--break")
			flags = flag_of(argv[i + 1]);
		else
			argc = 0;
	}
	if (argc % 2 == 0) {
		std::fprintf(stderr, "usage: coop-sim-chan [--seed N] [--rounds N] [--scenario "
				     "NAME] [--messages N] [--break RULE]\n");
		return 2;
	}
	bool ok = true, any = false;
	for (u32 i = 0; i < rounds; ++i)
		for (chan_scenario s : chan_scenarios()) {
			if (!only.empty() && only != s.name)
				continue;
			any = true;
			if (messages)
				s.messages = messages;
			ok &= report(s, seed + i, chan_run(s, seed + i, flags));
			std::fflush(stdout);
		}
	if (!any)
		std::fprintf(stderr, "coop-sim-chan: no scenario '%s'\n", only.c_str());
	return any && ok ? 0 : any ? 1 : 2;
}
