// SPDX-License-Identifier: MIT
// ether.cpp - the subcommand that joins two network namespaces; see ether.hpp.
#include "userland/ntrdma/tool/ether.hpp"

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

namespace coop::ntrdma
{

namespace
{

std::atomic<bool> stop{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int)
{
	stop = true;
}

/// Blocks the signals that end this process; returns the mask to sleep with.
sigset_t take_signals()
{
	sigset_t ends, before;
	sigemptyset(&ends);
	struct sigaction act {
	};
	act.sa_handler = on_signal;
	for (int number : {SIGTERM, SIGINT, SIGHUP}) {
		sigaddset(&ends, number);
		sigaction(number, &act, nullptr);
	}
	std::signal(SIGPIPE, SIG_IGN);
	sigprocmask(SIG_BLOCK, &ends, &before);
	for (int number : {SIGTERM, SIGINT, SIGHUP})
		sigdelset(&before, number);
	return before;
}

constexpr unsigned bound_least = 100, bound_usual = 10000, bound_most = 3600000; // ms

/// As --bound says, or else the environment. False if that has no such number.
bool find_bound(ether_words &w)
{
	const char *text = std::getenv("COOP_NTRDMA_BOUND_MS");
	if (w.bound_ms)
		return true;
	w.bound_ms = bound_usual;
	if (!text || !*text)
		return true;
	char *end;
	unsigned long ms = std::strtoul(text, &end, 10);
	if (*end || ms < bound_least || ms > bound_most) {
		std::fprintf(stderr,
			     "coop-verbs: COOP_NTRDMA_BOUND_MS=%s is no number from %u to %u\n",
			     text, bound_least, bound_most);
		return false;
	}
	w.bound_ms = static_cast<unsigned>(ms);
	return true;
}

} // namespace

CLI::App *add_ether(CLI::App &app, ether_words &w)
{
	auto *ether = app.add_subcommand("ether", "join two network namespaces of this machine by "
						  "an Ethernet interface in each");
	ether->add_option("--path", w.options.path,
			  "where the two processes meet: a socket, the same for both, that either "
			  "may create")
		->required();
	ether->add_option("--name", w.options.interface.name,
			  "name of the interface; %d is the first free number")
		->capture_default_str();
	ether->add_option("--address", w.options.interface.addresses,
			  "ADDRESS/PREFIX of the interface, IPv4 or IPv6; may be given repeatedly");
	ether->add_option("--mtu", w.options.interface.mtu, "bytes of the largest packet")
		->check(CLI::Range(mtu_least, mtu_most))
		->capture_default_str();
	ether->add_option("--queue", w.options.interface.queue,
			  "packets that the interface holds while the peer takes none")
		->check(CLI::Range(1u, 1000000u))
		->capture_default_str();
	ether->add_option("--bound", w.bound_ms,
			  "milliseconds after which a silent peer has lost the link (10000)")
		->check(CLI::Range(bound_least, bound_most));
	ether->footer(
		"Start it in both network namespaces, in any order, as the same user with "
		"CAP_NET_ADMIN.\nThe interface vanishes with the process, which SIGTERM ends.");
	return ether;
}

int run_ether(ether_words &w)
{
	if (!find_bound(w))
		return 2;
	sigset_t asleep = take_signals();
	w.options.bound = std::chrono::milliseconds{w.bound_ms};
	try {
		bridge b{w.options};
		b.run(stop, asleep);
	} catch (const std::exception &e) {
		std::fprintf(stderr, "coop-verbs: ether: %s\n", e.what());
		return 1;
	}
	return 0;
}

} // namespace coop::ntrdma
