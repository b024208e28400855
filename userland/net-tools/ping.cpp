// SPDX-License-Identifier: MIT
// ping.cpp - coopnet ping: latency of messages over sizes.
#include "commands.hpp"

namespace coop::net_tools
{

int run_ping(const ping_request &r)
{
	printer out(r, "ping");
	const int status = guarded([&]() -> trouble {
		if (trouble t = out.begin())
			return t;
		session s(r, r.how, 4);
		std::vector<std::size_t> sizes;
		if (trouble t = s.connect())
			return t;
		out.under(s.client().at().domain());
		if (trouble t = s.message_sizes(usual_messages, sizes))
			return t;
		for (const std::size_t size : sizes) {
			ping_task warm(size, {100, r.seconds / 10}, false);
			if (trouble t = s.client().run(warm))
				return t;
			ping_task p(size, {r.count, r.seconds}, r.check);
			if (trouble t = s.client().run(p))
				return t;
			out.add(result_of(p, r.how, s.one_process()));
		}
		return {};
	});
	return status ? status : out.end();
}

} // namespace coop::net_tools
