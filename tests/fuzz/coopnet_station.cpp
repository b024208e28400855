// SPDX-License-Identifier: MIT
// coopnet_station.cpp - the station of coopnet for plays: no thread sleeps, every machine runs.
//
// station.cpp uses threads and waits; this file gives every machine of the play a turn. Receive
// buffers are small and few, so that they fill up, retire and run out.
#include <algorithm>
#include <utility>

#include "tests/fuzz/net_alone.hpp"
#include "userland/net-tools/advice.hpp"
#include "userland/net-tools/interruption.hpp"
#include "userland/net-tools/station.hpp"

namespace coop::net_tools
{

namespace
{

using namespace std::chrono_literals;
using fuzz_net::the_time;

constexpr std::uint32_t messages_most = 8, receives = 2, pool_buffers = 3;

// Moves the clock to the next deadline, by `limit` at the latest. @return false: at the limit.
bool pass(net::time_point limit)
{
	const net::time_point next = fuzz_net::next_deadline();
	the_time = std::max(the_time + 1us, std::min(next, limit).time_since_epoch());
	return the_time < limit.time_since_epoch();
}

} // namespace

const char *name(progress)
{
	return "played";
}

station::station(const settings &s) :
	settings_(s),
	domain_({s.transport, s.parameters}),
	machine_(domain_)
{
}

station::~station()
{
	stop();
}

trouble station::start(const std::string &address, net::buffer_handler &h)
{
	const std::size_t largest = limits().max_message;
	net::pool_options o;
	o.buffers = pool_buffers;
	o.segment_size = 4 * largest;
	pool_ = std::make_unique<net::buffer_pool>(domain_, o);
	int status = machine_.deliver_synchronously();
	if (!status)
		status = machine_.attach(*pool_, h, largest, messages_most);
	if (!status)
		status = machine_.set_pool_length(receives);
	if (!status)
		status = machine_.start(address);
	if (!status && machine_.state() == net::tm_state::started)
		return {};
	return failure{exit_failure, why_not_started(status, address, domain_)};
}

void station::stop(bool at_once)
{
	const auto over = [&] {
		const net::tm_state s = machine_.state();
		return s < net::tm_state::starting || s >= net::tm_state::stopped;
	};
	for (const bool abort : {false, true}) {
		if ((at_once && !abort) || over() || machine_.stop(abort))
			continue;
		const auto limit = net::clock::now() + (abort ? 10s : 1s);
		while (!over() && (fuzz_net::turn_all() || pass(limit)))
			;
	}
	while (machine_.deliver_all())
		;
	(void)machine_.fini();
}

bool station::until(goal &g, std::chrono::milliseconds patience, const std::function<void()> &quiet)
{
	std::uint64_t seen = g.steps;
	auto limit = net::clock::now() + patience, look = net::clock::now() + 1s;
	while (!g.reached) {
		const bool some = fuzz_net::turn_all();
		const std::uint64_t steps = g.steps;
		if (std::exchange(seen, steps) != steps) {
			limit = net::clock::now() + patience;
			look = net::clock::now() + 1s;
		} else if (net::clock::now() >= look) {
			look = net::clock::now() + 1s;
			if (quiet)
				quiet();
			continue;
		}
		if (!some && !pass(std::min(limit, look)) && net::clock::now() >= limit)
			return g.reached;
	}
	return true;
}

// No device disappears, and no signal arrives.
void station::on_state(const net::tm_event &) {}

int interrupted()
{
	return 0;
}

void station::reach(goal &g)
{
	g.reached = true;
}

trouble full_address(const std::string &text, const net::domain &, net::address &out, bool)
{
	if (net::parse(text, out))
		return failure{exit_usage, "'" + text + "' is no address"};
	return {};
}

std::string own_address(const net::address &server)
{
	net::address own = server;
	own.id = net::address::any;
	return net::format(own);
}

} // namespace coop::net_tools
