// SPDX-License-Identifier: MIT
// main.cpp - coop-sim: rounds until enough fetches were played.
//
// Every round has its own seed, derived from the run's, so that a violation is
// replayed alone: the command is printed. Exit 0: nothing was violated; 1:
// something was; 2: the command line makes no sense.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include "tests/sim/scenario.hpp"
#include "tests/sim/world.hpp"

namespace
{

using namespace coop::sim;

u64 asserts;

struct options {
	u64 fetches = 100000;
	std::optional<u64> seed;  // of the run
	std::optional<u64> round; // of the only round
	std::string scenario;
	std::string break_rule;
	u32 flags = 0;
	bool verbose = false;
};

[[noreturn]] void usage(int code)
{
	std::fprintf(
		code ? stderr : stdout,
		"usage: coop-sim [--fetches N] [--seed S] [--round S] [--scenario NAME]\n"
		"                [--break quiesce|generation|order|identity|mac] [--list] [-v]\n"
		"  --fetches N   rounds are played until N fetches were started (100000)\n"
		"  --seed S      seed of the run; SEED= in the environment does the same\n"
		"  --round S     play the one round of seed S, as a violation names it\n"
		"  --break RULE  switch a rule of the engine off: wrong pages must be found\n"
		"  --list        names of the scenarios\n"
		"  -v            a table for every scenario\n");
	std::exit(code);
}

u64 number(const char *text)
{
	char *end;
	const u64 n = std::strtoull(text, &end, 0);
	if (!*text || *end) {
		std::fprintf(stderr, "coop-sim: '%s' is not a number\n", text);
		std::exit(2);
	}
	return n;
}

options parse(int argc, char **argv)
{
	options o;
	if (const char *env = std::getenv("SEED"); env && *env)
		o.seed = number(env);
	for (int i = 1; i < argc; ++i) {
		const std::string arg = argv[i];
		if (arg == "-v") {
			o.verbose = true;
			continue;
		}
		if (arg == "-h" || arg == "--help")
			usage(0);
		if (arg == "--list") {
			for (const std::string &name : scenario_names())
				std::printf("%s\n", name.c_str());
			std::exit(0);
		}
		if (i + 1 == argc)
			usage(2);
		const char *value = argv[++i];
		if (arg == "--fetches")
			o.fetches = number(value);
		else if (arg == "--seed")
			o.seed = number(value);
		else if (arg == "--round")
			o.round = number(value);
		else if (arg == "--scenario")
			o.scenario = value;
		else if (arg == "--break")
			o.break_rule = value;
		else
			usage(2);
	}
	if (o.break_rule == "quiesce")
		o.flags = COOP_F_TEST_NO_QUIESCE;
	else if (o.break_rule == "generation")
		o.flags = COOP_F_TEST_NO_GENERATION;
	else if (o.break_rule == "order")
		o.flags = COOP_F_TEST_TRUST_ORDER;
	else if (o.break_rule == "identity")
		o.flags = COOP_F_TEST_NO_IDENTITY;
	else if (o.break_rule == "mac")
		o.flags = break_mac;
	else if (!o.break_rule.empty())
		usage(2);
	return o;
}

tally play(const options &o, u64 seed, std::string &name)
{
	dice rng(mix(seed, 1));
	const scenario s = draw(o.scenario, rng);
	name = s.name;
	world w(s, seed, o.flags);
	asserts = 0;
	tally t = w.run();
	if (asserts)
		t.note(t.broken,
		       "the engine's own assertion failed, round " + std::to_string(seed));
	return t;
}

int run(const options &o)
{
	const u64 seed = o.seed.value_or(
		static_cast<u64>(std::chrono::system_clock::now().time_since_epoch().count()));
	const std::string with = (o.scenario.empty() ? "" : " --scenario " + o.scenario) +
				 (o.break_rule.empty() ? "" : " --break " + o.break_rule);
	std::printf("coop-sim: seed %llu%s\n",
		    static_cast<unsigned long long>(o.round.value_or(seed)), with.c_str());
	const auto start = std::chrono::steady_clock::now();
	tally all;
	std::map<std::string, tally> by_name;
	u64 passed = 0, failed = 0;
	for (u64 n = 0; all.fetches < o.fetches; ++n) {
		const u64 round = o.round.value_or(mix(seed, n));
		std::string name;
		const tally t = play(o, round, name);
		all.add(t);
		by_name[name].add(t);
		t.clean() ? ++passed : ++failed;
		if (!t.clean() && failed <= 4) {
			std::printf("violation in scenario %s; replay: coop-sim --round %llu%s\n",
				    name.c_str(), static_cast<unsigned long long>(round),
				    with.c_str());
			for (const std::string &text : t.notes)
				std::printf("  %s\n", text.c_str());
		}
		if (o.round || (failed >= 20 && o.break_rule.empty()))
			break;
	}
	const double seconds =
		std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
	if (o.verbose) {
		for (const auto &[name, t] : by_name) {
			std::printf("%s\n", name.c_str());
			t.print(false);
		}
		std::printf("all\n");
	}
	all.print(true);
	std::printf("%.1f s, %.0f fetches/s\n", seconds,
		    static_cast<double>(all.fetches) / seconds);
	std::printf("sim: %llu passed, %llu failed\n", static_cast<unsigned long long>(passed),
		    static_cast<unsigned long long>(failed));
	return all.clean() ? 0 : 1;
}

} // namespace

extern "C" void coop_assert_failed(const char *what, const char *file, int line)
{
	if (!asserts++)
		std::printf("assertion: %s at %s:%d\n", what, file, line);
}

int main(int argc, char **argv)
{
	std::setvbuf(stdout, nullptr, _IOLBF, 0);
	const options o = parse(argc, argv);
	try {
		return run(o);
	} catch (const std::invalid_argument &e) {
		std::fprintf(stderr, "coop-sim: %s\n", e.what());
		return 2;
	}
}
