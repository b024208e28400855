// SPDX-License-Identifier: MIT
// serve.cpp - coopnet serve: the other side of measurements, until a signal ends it.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <poll.h>
#include <thread>
#include <unistd.h>

#include "advice.hpp"
#include "commands.hpp"
#include "interruption.hpp"

namespace coop::net_tools
{

namespace
{

// Reaches the goal when standard input ends.
class input_watch
{
public:
	input_watch(station &s, goal &g) :
		thread_([this, &s, &g] {
			char some[256];
			pollfd p[2] = {{0, POLLIN, 0}, {over_.fd(), POLLIN, 0}};
			while (::poll(p, 2, -1) >= 0 || errno == EINTR) {
				if (p[1].revents)
					return;
				if (p[0].revents && ::read(0, some, sizeof(some)) <= 0) {
					s.reach(g);
					return;
				}
			}
		})
	{
	}
	~input_watch()
	{
		over_.signal();
		thread_.join();
	}

private:
	net::channel over_;
	std::thread thread_;
};

} // namespace

int run_serve(const serve_request &r)
{
	return guarded([&]() -> trouble {
		if (trouble t = may_run_on("--cpus", r.how.cpus))
			return t;
		if (const int status = confine_thread(r.how.cpus))
			return failure{exit_usage,
				       "--cpus: " + std::string(std::strerror(-status))};
		goal end;
		station s(r.how);
		if (!s.domain().traits().between_processes)
			return failure{exit_usage,
				       "the transport " + r.how.transport +
					       " reaches only its own process; `coopnet bench -t " +
					       r.how.transport + "` measures it"};
		net::address where;
		if (trouble t = full_address(r.address, s.domain(), where, true))
			return t;
		server serving(s, {r.max_bulk}, end);
		if (trouble t = serving.start(net::format(where)))
			return t;
		const interruption by_signal(interruption::of::service);
		by_signal.ends(s, end);
		std::unique_ptr<input_watch> watch;
		if (r.until_eof)
			watch = std::make_unique<input_watch>(s, end);
		const std::string here = net::format(s.machine().address());
		std::printf("serving at %s, %s, %s; a signal ends it\n", here.c_str(),
			    described(s.domain()).c_str(), name(r.how.progress));
		if (!r.until_eof) // the parent that uses it needs no command line
			std::printf("clients type: %s\n",
				    command_line("ping", s.domain(), here).c_str());
		if (trouble t = printed())
			return t;
		trouble failed = serving.run();
		if (r.until_eof)
			return failed;
		if (serving.rails().size() > 1)
			for (const net::rail_stats &rail : serving.rails())
				std::fputs(rail_line(rail).c_str(), stdout);
		const server::counters c = serving.count();
		std::printf("%llu messages, %llu answered, %llu bulk transfers, %llu failed, %llu "
			    "dropped, %llu malformed, %llu calls\n",
			    static_cast<unsigned long long>(c.messages),
			    static_cast<unsigned long long>(c.answered),
			    static_cast<unsigned long long>(c.bulk_ok),
			    static_cast<unsigned long long>(c.bulk_failed),
			    static_cast<unsigned long long>(c.dropped + c.unsent),
			    static_cast<unsigned long long>(c.malformed),
			    static_cast<unsigned long long>(c.calls));
		return failed;
	});
}

} // namespace coop::net_tools
