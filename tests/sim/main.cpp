// SPDX-License-Identifier: MIT
// main.cpp - coop-sim: plays rounds until enough fetches have run.
//
// Every round has its own seed, derived from the run's, so a violation replays alone: the
// program prints the command. Rounds share nothing, so --jobs plays several at once; the
// program counts them in the order of their numbers and ends the run at the same round whatever
// the jobs. Exit 0: no violation; 1: a violation; 2: a bad command line. A crash names its
// round.
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/sim/scenario.hpp"
#include "tests/sim/world.hpp"

namespace
{

using namespace coop::sim;

thread_local u64 playing;           // seed of this thread's round
thread_local std::string assertion; // the engine's first failed assertion in it

constexpr u32 most_jobs = 256;

struct options {
	u64 fetches = 100000;
	std::optional<u64> seed;  // of the run
	std::optional<u64> round; // of the only round
	std::string scenario;
	std::string break_rule;
	u32 flags = 0;
	u32 jobs = std::clamp(std::thread::hardware_concurrency(), 1u, most_jobs);
	bool verbose = false;
};

[[noreturn]] void usage(int code)
{
	std::fprintf(code ? stderr : stdout,
		     "usage: coop-sim [--fetches N] [--seed S] [--round S] [--scenario NAME]\n"
		     "                [--break quiesce|generation|order|identity|mac|copies|sums] "
		     "[--jobs N]\n"
		     "                [--list] [-v]\n"
		     "  --fetches N   rounds are played until N fetches were started (100000)\n"
		     "  --seed S      seed of the run; SEED= in the environment does the same\n"
		     "  --round S     play the one round of seed S, as a violation names it\n"
		     "  --break RULE  switch an engine rule off: coop-sim must find wrong pages\n"
		     "  --jobs N      rounds at once (one a processor); changes no result\n"
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
		else if (arg == "--jobs")
			o.jobs = static_cast<u32>(std::clamp<u64>(number(value), 1, most_jobs));
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
	else if (o.break_rule == "sums")
		o.flags = COOP_F_TEST_NO_SUMS;
	else if (o.break_rule == "copies")
		o.flags = break_copies;
	else if (!o.break_rule.empty())
		usage(2);
	return o;
}

struct outcome {
	std::string scenario;
	tally counts;
};

outcome play(const options &o, u64 seed)
{
	dice rng(mix(seed, 1));
	const scenario s = draw(o.scenario, rng);
	playing = seed;
	assertion.clear();
	world w(s, seed, o.flags);
	tally t = w.run();
	if (!assertion.empty())
		t.note(t.broken, "the engine's own assertion failed: " + assertion);
	return {s.name, t};
}

// The rounds of a run: many threads play them in any order, the run counts them in theirs.
class rounds
{
public:
	rounds(const options &o, u64 seed, std::string with) :
		o_(o),
		seed_(seed),
		with_(std::move(with))
	{
	}
	void play_all()
	{
		std::vector<std::jthread> helpers;
		for (u32 i = 1; i < (o_.round ? 1 : o_.jobs); ++i)
			helpers.emplace_back([this] { work(); });
		work();
	}
	void print() const
	{
		if (o_.verbose) {
			for (const auto &[name, t] : by_name_) {
				std::printf("%s\n", name.c_str());
				t.print(false);
			}
			std::printf("all\n");
		}
		all_.print(true);
	}
	u64 passed() const { return passed_; }
	u64 failed() const { return failed_; }
	u64 fetches() const { return all_.fetches; }

private:
	u64 round(u64 n) const { return o_.round.value_or(mix(seed_, n)); }
	void work()
	{
		while (!over_) {
			const u64 n = next_++;
			outcome done = play(o_, round(n));
			const std::lock_guard hold(lock_);
			waiting_.emplace(n, std::move(done));
			for (auto it = waiting_.begin();
			     it != waiting_.end() && it->first == counted_ && !over_;
			     it = waiting_.erase(it))
				count(it->second);
		}
	}
	void count(const outcome &done)
	{
		const tally &t = done.counts;
		all_.add(t);
		by_name_[done.scenario].add(t);
		t.clean() ? ++passed_ : ++failed_;
		if (!t.clean() && failed_ <= 4) {
			std::printf("violation in scenario %s; replay: coop-sim --round %llu%s\n",
				    done.scenario.c_str(),
				    static_cast<unsigned long long>(round(counted_)),
				    with_.c_str());
			for (const std::string &text : t.notes)
				std::printf("  %s\n", text.c_str());
		}
		++counted_;
		over_ = o_.round || all_.fetches >= o_.fetches ||
			(failed_ >= 20 && o_.break_rule.empty());
	}

	const options &o_;
	const u64 seed_;
	const std::string with_;
	std::atomic<u64> next_ = 0; // next round to play
	std::atomic<bool> over_ = false;
	std::mutex lock_;                // guards all below
	std::map<u64, outcome> waiting_; // played before an earlier round ended
	u64 counted_ = 0, passed_ = 0, failed_ = 0;
	tally all_;
	std::map<std::string, tally> by_name_;
};

double processor_seconds()
{
	rusage u;
	getrusage(RUSAGE_SELF, &u);
	return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       1e-6 * static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

int run(const options &o)
{
	if (!o.scenario.empty()) {
		dice any(0);
		draw(o.scenario, any); // throws here and not in a thread
	}
	const u64 seed = o.seed.value_or(
		static_cast<u64>(std::chrono::system_clock::now().time_since_epoch().count()));
	const std::string with = (o.scenario.empty() ? "" : " --scenario " + o.scenario) +
				 (o.break_rule.empty() ? "" : " --break " + o.break_rule);
	std::printf("coop-sim: seed %llu%s\n",
		    static_cast<unsigned long long>(o.round.value_or(seed)), with.c_str());
	const auto start = std::chrono::steady_clock::now();
	rounds all(o, seed, with);
	all.play_all();
	const double seconds =
		std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
	all.print();
	const double cpu = processor_seconds();
	std::printf("%.1f s, %.1f s of processor time, %.0f fetches a second of it\n", seconds, cpu,
		    static_cast<double>(all.fetches()) / cpu);
	std::printf("sim: %llu passed, %llu failed\n",
		    static_cast<unsigned long long>(all.passed()),
		    static_cast<unsigned long long>(all.failed()));
	return all.failed() ? 1 : 0;
}

// Calls only what a signal handler may. The signal is raised again on return, with its default.
void name_round(int)
{
	char text[] = "coop-sim: crashed; replay: coop-sim --round                     \n";
	char *digit = text + sizeof(text) - 2;
	for (u64 n = playing; n; n /= 10)
		*--digit = static_cast<char>('0' + n % 10);
	if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
		_exit(1);
}

} // namespace

extern "C" void coop_assert_failed(const char *what, const char *file, int line)
{
	if (assertion.empty())
		assertion = std::string(what) + " at " + file + ":" + std::to_string(line);
}

int main(int argc, char **argv)
{
	std::setvbuf(stdout, nullptr, _IOLBF, 0);
	// A round reuses the memory that the one before freed, without page faults.
	mallopt(M_MMAP_THRESHOLD, 32 << 20);
	mallopt(M_TRIM_THRESHOLD, 1 << 30);
	struct sigaction crash = {};
	crash.sa_handler = name_round;
	crash.sa_flags = static_cast<int>(SA_RESETHAND);
	for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT})
		sigaction(signal, &crash, nullptr);
	const options o = parse(argc, argv);
	try {
		return run(o);
	} catch (const std::invalid_argument &e) {
		std::fprintf(stderr, "coop-sim: %s\n", e.what());
		return 2;
	}
}
