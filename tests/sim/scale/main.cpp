// SPDX-License-Identifier: MIT
// main.cpp - coop-sim-scale: thousands of nodes read the same files at once.
//
// Each run is measured against a lone reader in the same simulator. Exit 0: all limits held and no
// page was wrong; 1: one did not; 2: a bad command line.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "tests/sim/scale/report.hpp"
#include "tests/sim/scale/world.hpp"

namespace
{

using namespace coop::scale;

const char usage_text[] =
	"usage: coop-sim-scale [--scenario NAME] [--nodes N] [--KEY N]... [--off RULE]...\n"
	"                      [--with redirect|opens] [--coop off] [--json] [-v] [--list]\n"
	"                      [--most-copies X] [--most-last X] [--most-wait-ms X]\n"
	"  --scenario NAME  see --list; 'start' without it\n"
	"  --KEY N          a number of the shape: files, units, unit_pages, window, gbit, ...;\n"
	"                   --list names them with their values\n"
	"  --off RULE       switches a rule off: waiting, levels, deepest_first, swap\n"
	"  --coop off       nodes ask hints and storage, as without trees\n"
	"  --most-...       limits; exit 1 if the run exceeds one\n"
	"  --seed S         SEED= in the environment does the same\n";

struct options {
	shape s;
	double most_copies = 0, most_last = 0, most_wait_ms = 0;
	bool json = false, verbose = false;
};

[[noreturn]] void usage(int code)
{
	std::fputs(usage_text, code ? stderr : stdout);
	std::exit(code);
}

std::map<std::string, u32 *> numbers(shape &s)
{
	return {{"nodes", &s.nodes},
		{"files", &s.files},
		{"units", &s.units},
		{"unit_pages", &s.unit_pages},
		{"window", &s.window},
		{"gbit", &s.gbit},
		{"storage_gbit", &s.storage_gbit},
		{"delay_ns", &s.delay_ns},
		{"host_ns", &s.host_ns},
		{"storage_ns", &s.storage_ns},
		{"queue_pages", &s.queue_pages},
		{"publish_us", &s.publish_us},
		{"detect_us", &s.detect_us},
		{"slots", &s.slots},
		{"queued", &s.queued},
		{"serves", &s.serves},
		{"peers", &s.peers},
		{"relays", &s.relays},
		{"peer_timeout_us", &s.peer_timeout_us},
		{"budget_us", &s.budget_us},
		{"window_pages", &s.window_pages},
		{"send_pages", &s.send_pages},
		{"trees", &s.trees},
		{"arity", &s.arity},
		{"waves", &s.waves},
		{"wave_us", &s.wave_us},
		{"loss_ppm", &s.loss_ppm},
		{"dying_ppm", &s.dying_ppm},
		{"slow_ppm", &s.slow_ppm},
		{"slow_by", &s.slow_by},
		{"cut_ppm", &s.cut_ppm},
		{"cut_us", &s.cut_us},
		{"fault_at_ppm", &s.fault_at_ppm}};
}

void list(shape &s)
{
	std::puts("scenarios:");
	for (const std::string &name : scenario_names())
		std::printf("  %-10s %s\n", name.c_str(), describe_scenario(name).c_str());
	std::puts("numbers:");
	for (const auto &[name, value] : numbers(s))
		std::printf("  %-16s %u\n", name.c_str(), *value);
	std::exit(0);
}

bool switch_rule(shape &s, const std::string &name, bool on)
{
	const std::map<std::string, bool *> rules = {{"waiting", &s.waiting},
						     {"levels", &s.levels},
						     {"deepest_first", &s.deepest_first},
						     {"swap", &s.swap},
						     {"redirect", &s.redirect},
						     {"opens", &s.opens},
						     {"leaves", &s.leaves},
						     {"chain", &s.chain},
						     {"fair", &s.fair},
						     {"coop", &s.coop}};
	const auto it = rules.find(name);
	if (it != rules.end())
		*it->second = on;
	return it != rules.end();
}

bool valid(const shape &s)
{
	return s.nodes && s.nodes < 1u << 24 && s.files && s.units && s.units < 1u << 16 &&
	       (s.unit_pages == 1 || s.unit_pages == 2 || s.unit_pages == 4 || s.unit_pages == 8) &&
	       s.window && s.window + s.relays < 0xffff && s.gbit && s.storage_gbit && s.waves &&
	       s.trees && s.trees <= most_trees && s.arity && s.serves && s.serves < 0xffff &&
	       s.slots;
}

// The scenario is applied first, so that any number can change it.
options parse(int argc, char **argv)
{
	options o;
	if (const char *seed = std::getenv("SEED"); seed && *seed)
		o.s.seed = std::strtoull(seed, nullptr, 0);
	const std::vector<std::string> args(argv + 1, argv + argc);
	for (std::size_t i = 0; i + 1 < args.size(); ++i) {
		if (args[i] == "--scenario" && !apply_scenario(o.s, args[i + 1]))
			usage(2);
	}
	auto keys = numbers(o.s);
	bool lists = false;
	for (std::size_t i = 0; i < args.size(); ++i) {
		const std::string &a = args[i];
		const bool more = i + 1 < args.size();
		if (a == "--help" || a == "-h") {
			usage(0);
		} else if (a == "--list") {
			lists = true;
		} else if (a == "--json") {
			o.json = true;
		} else if (a == "-v") {
			o.verbose = true;
		} else if (a.rfind("--", 0) || !more) {
			usage(2);
		} else if (const std::string key = a.substr(2), v = args[++i]; key == "seed") {
			o.s.seed = std::strtoull(v.c_str(), nullptr, 0);
		} else if (key == "most-copies") {
			o.most_copies = std::atof(v.c_str());
		} else if (key == "most-last") {
			o.most_last = std::atof(v.c_str());
		} else if (key == "most-wait-ms") {
			o.most_wait_ms = std::atof(v.c_str());
		} else if (key == "off" || key == "with") {
			if (!switch_rule(o.s, v, key == "with"))
				usage(2);
		} else if (key == "coop") {
			o.s.coop = v != "off";
		} else if (keys.count(key)) {
			*keys[key] = static_cast<u32>(std::strtoul(v.c_str(), nullptr, 0));
		} else if (key != "scenario") {
			usage(2);
		}
	}
	if (lists)
		list(o.s);
	if (!valid(o.s))
		usage(2);
	return o;
}

shape alone(shape s)
{
	s.nodes = 1;
	s.waves = 1;
	s.loss_ppm = s.dying_ppm = s.slow_ppm = s.cut_ppm = 0;
	return s;
}

int over(const char *what, double is, double most)
{
	if (!most || is <= most)
		return 0;
	std::printf("FAIL %s %.3f, at most %.3f\n", what, is, most);
	return 1;
}

int play(const options &o)
{
	const u64 lone = world(alone(o.s), 0).run().lone_ns;
	const outcome out = world(o.s, lone).run();
	if (o.json) {
		std::printf("%s\n", json(o.s, out).c_str());
	} else {
		std::printf("%sseed %llu\n%s%s", scaling(o.s).c_str(),
			    static_cast<unsigned long long>(o.s.seed), table_head().c_str(),
			    table_line(o.s, out).c_str());
		if (o.verbose || !out.t.notes.empty())
			std::printf("%s", details(out).c_str());
	}
	int failed = out.t.wrong || out.t.circles || !out.t.notes.empty() || out.unfinished;
	failed |= over("copies", out.copies, o.most_copies);
	failed |= over("last", out.last, o.most_last);
	failed |= over("longest wait in ms", out.longest_wait_us / 1000, o.most_wait_ms);
	return failed;
}

} // namespace

extern "C" void coop_assert_failed(const char *what, const char *file, int line)
{
	std::fprintf(stderr, "the engine's assertion failed: %s at %s:%d\n", what, file, line);
	std::abort();
}

int main(int argc, char **argv)
{
	const options o = parse(argc, argv);
	try {
		return play(o);
	} catch (const std::exception &e) {
		std::fprintf(stderr, "coop-sim-scale: %s\n", e.what());
		return 2;
	}
}
