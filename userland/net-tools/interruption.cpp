// SPDX-License-Identifier: MIT
// interruption.cpp - see interruption.hpp.
#include "interruption.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace coop::net_tools
{

namespace
{

constexpr int ending[] = {SIGINT, SIGTERM, SIGHUP};

// Read by the handler; the station is set last, and cleared first.
std::atomic<station *> ended_station;
std::atomic<goal *> ended_goal;
std::atomic<int> came;
bool is_due; // a signal is the regular end

static_assert(std::atomic<station *>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void note(int n)
{
	const int e = errno;
	if (came.exchange(n)) { // second signal: do not wait any longer
		std::signal(n, SIG_DFL);
		std::raise(n); // takes effect when this returns
	}
	if (station *s = ended_station)
		s->reach(*ended_goal);
	errno = e;
}

bool ignored(int n)
{
	static const auto at_first = [] {
		std::array<bool, NSIG> all{};
		for (const int each : ending) {
			struct sigaction a {
			};
			::sigaction(each, nullptr, &a);
			all[static_cast<std::size_t>(each)] = a.sa_handler == SIG_IGN;
		}
		return all;
	}();
	return at_first[static_cast<std::size_t>(n)];
}

} // namespace

interruption::interruption(of what)
{
	is_due = what == of::service;
	install();
}

interruption::~interruption()
{
	ended_station = nullptr;
}

void interruption::install() const
{
	struct sigaction a {
	};
	for (const int n : ending) {
		a.sa_handler = ignored(n) ? SIG_IGN : note;
		a.sa_flags = SA_RESTART;
		::sigaction(n, &a, nullptr);
	}
}

void interruption::ends(station &s, goal &g) const
{
	ended_goal = &g;
	ended_station = &s;
	if (came) // before ends() was called
		s.reach(g);
}

int interrupted()
{
	return is_due ? 0 : came.load();
}

void die_interrupted()
{
	std::fputs("coopnet: interrupted\n", stderr);
	std::signal(came, SIG_DFL);
	std::raise(came);
	std::_Exit(128 + came); // the signal is blocked
}

} // namespace coop::net_tools
