// SPDX-License-Identifier: MIT
// station.cpp - starting, stopping, and three ways to wait.
#include "station.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "advice.hpp"

namespace coop::net_tools
{

namespace
{

using namespace std::chrono_literals;

// A receive buffer holds the largest message, and many small ones before it is replaced.
constexpr std::size_t slack = 64 << 10;
constexpr std::uint32_t messages_most = 4096, receives = 2, pool_buffers = 8;
// Polls between two readings of the clock.
constexpr unsigned polls_a_look = 4096;
// Time without a step after which quiet() is called.
constexpr std::chrono::seconds quiet_for{1};

} // namespace

const char *name(progress p)
{
	switch (p) {
	case progress::poll:
		return "poll";
	case progress::block:
		return "block";
	case progress::notify:
		return "notify";
	}
	return "?";
}

station::station(const settings &s) :
	settings_(s),
	domain_({s.transport, s.parameters}),
	machine_(domain_, this)
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
	o.segment_size = std::min(largest + slack, limits().max_segment);
	pool_ = std::make_unique<net::buffer_pool>(domain_, o);
	int status = 0;
	if (settings_.progress != progress::block)
		status = machine_.deliver_synchronously();
	if (!status && !settings_.cpus.empty() && machine_.confine(settings_.cpus))
		return failure{exit_usage, "--cpus: no such processor, or not for this program"};
	if (!status)
		status = machine_.attach(*pool_, h, largest, messages_most);
	if (!status)
		status = machine_.set_pool_length(receives);
	if (!status)
		status = machine_.start(address);
	if (!status)
		status = machine_.wait(net::tm_state::started, net::clock::now() + 10s);
	if (!status)
		return {};
	return failure{status == -EINVAL ? exit_usage : exit_failure,
		       why_not_started(status, address, domain_)};
}

void station::stop(bool at_once)
{
	const auto over = [&] {
		const net::tm_state s = machine_.state();
		return s != net::tm_state::started && s != net::tm_state::starting &&
		       s != net::tm_state::stopping;
	};
	// The peer may still need operations under way; do not wait for a peer that has gone.
	for (const bool abort : {false, true}) {
		if ((at_once && !abort) || over() || machine_.stop(abort))
			continue;
		const auto deadline = net::clock::now() + (abort ? 10s : 1s);
		while (!over() && net::clock::now() < deadline) {
			machine_.deliver_all();
			(void)machine_.wait(net::tm_state::stopped, net::clock::now() + 1ms);
		}
	}
	while (!over()) { // a second signal ends the program
		machine_.deliver_all();
		(void)machine_.wait(net::tm_state::stopped, net::clock::now() + 1ms);
	}
	// Waits for callbacks; a machine that has not been started ends as well.
	(void)machine_.fini();
}

// With synchronous delivery this runs on the background thread, concurrently with until().
void station::on_state(const net::tm_event &e)
{
	if (e.state != net::tm_state::failed)
		return;
	lost_.store(e.status ? e.status : -EIO, std::memory_order_relaxed);
	bell_.signal();
}

bool station::until(goal &g, std::chrono::milliseconds patience, const std::function<void()> &quiet)
{
	const net::clock::duration look =
		quiet ? std::clamp<net::clock::duration>(patience / 4, 1ms, quiet_for) : patience;
	std::uint64_t seen = g.steps;
	net::time_point stepped = net::clock::now(), looked = stepped;
	// The next look notices a step, so date the step by that look.
	const auto alive = [&] {
		const net::time_point now = net::clock::now();
		const std::uint64_t steps = g.steps;
		if (std::exchange(seen, steps) != steps) {
			stepped = looked = now;
		} else if (now - looked >= look) {
			looked = now;
			if (quiet)
				quiet();
		}
		return now - stepped < patience;
	};
	for (unsigned polls = 1; !g.reached.load(std::memory_order_acquire); polls++) {
		if (lost()) {
			// Every buffer has an event: deliver those first.
			while (settings_.progress != progress::block && machine_.deliver_all())
				;
			return g.reached;
		}
		if (settings_.progress != progress::block && machine_.deliver_all())
			continue;
		if (settings_.progress == progress::poll) {
			if (polls % polls_a_look == 0 && !alive())
				return false;
			continue;
		}
		if (settings_.progress == progress::notify)
			(void)machine_.notify(bell_);
		(void)bell_.wait(std::min(stepped + patience, looked + look));
		if (!alive())
			return g.reached;
	}
	return true;
}

void station::reach(goal &g)
{
	g.reached.store(true, std::memory_order_release);
	bell_.signal();
}

trouble full_address(const std::string &text, const net::domain &d, net::address &out,
		     bool wildcard)
{
	in_addr ip;
	const std::string full =
		::inet_pton(AF_INET, text.c_str(), &ip) == 1 ? text + "@tcp:12345:31:0" : text;
	if (net::parse(full, out))
		return failure{exit_usage, "'" + text + "' is no address; transport " +
						   d.transport() + " takes " + address_forms(d)};
	if (out.wildcard() && !wildcard)
		return failure{exit_usage,
			       "'" + text +
				       "': `*` is for an own address; the first line of the server "
				       "has the chosen number"};
	return {};
}

std::string own_address(const net::address &server)
{
	net::address own = server;
	own.id = net::address::any;
	sockaddr_in6 to{};
	to.sin6_family = AF_INET6;
	to.sin6_port = htons(9); // any port: nothing is sent
	std::memcpy(&to.sin6_addr, server.ip.data(), server.ip.size());
	const int fd = ::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	sockaddr_in6 from{};
	socklen_t length = sizeof(from);
	if (fd >= 0 && ::connect(fd, reinterpret_cast<sockaddr *>(&to), sizeof(to)) == 0 &&
	    ::getsockname(fd, reinterpret_cast<sockaddr *>(&from), &length) == 0)
		std::memcpy(own.ip.data(), &from.sin6_addr, own.ip.size());
	if (fd >= 0)
		::close(fd);
	return net::format(own);
}

trouble may_run_on(const char *option, const std::vector<unsigned> &cpus)
{
	cpu_set_t before;
	::sched_getaffinity(0, sizeof(before), &before);
	// The kernel accepts a set if one of its processors exists: try each by itself.
	const auto wrong = std::find_if(cpus.begin(), cpus.end(),
					[](unsigned c) { return confine_thread({c}) != 0; });
	::sched_setaffinity(0, sizeof(before), &before);
	if (wrong == cpus.end())
		return {};
	std::string some;
	for (unsigned c = 0; c < CPU_SETSIZE; c++) {
		if (!CPU_ISSET(c, &before))
			continue;
		unsigned last = c;
		while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &before))
			last++;
		some += (some.empty() ? "" : ",") + std::to_string(c) +
			(last > c ? "-" + std::to_string(last) : "");
		c = last;
	}
	return failure{exit_usage, std::string(option) + ' ' + std::to_string(*wrong) +
					   ": there is no such processor for this program; it may "
					   "run on " +
					   some};
}

int confine_thread(const std::vector<unsigned> &cpus)
{
	if (cpus.empty())
		return 0;
	cpu_set_t set;
	CPU_ZERO(&set);
	for (const unsigned c : cpus)
		if (c < CPU_SETSIZE)
			CPU_SET(c, &set);
	return ::sched_setaffinity(0, sizeof(set), &set) ? -errno : 0;
}

} // namespace coop::net_tools
