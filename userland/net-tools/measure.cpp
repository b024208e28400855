// SPDX-License-Identifier: MIT
// measure.cpp - coopnet ping and bulk: latency of messages, and bandwidth of transfers under
// descriptors, over sizes.
#include "commands.hpp"

namespace coop::net_tools
{

namespace
{

// One session whose measurements measure() makes.
int in_session(const measure_request &r, const char *command, unsigned slots,
	       const std::function<trouble(session &, printer &)> &measure)
{
	printer out(r, command);
	const int status = guarded([&]() -> trouble {
		if (trouble t = out.begin())
			return t;
		session s(r, r.how, slots);
		if (trouble t = s.connect())
			return t;
		out.under(s.client().at().domain());
		trouble t = measure(s, out);
		if (!t)
			out.rails(r.how, s.client().at().machine().rails());
		return t;
	});
	return status ? status : out.end();
}

} // namespace

trouble ping_sizes(const measure_request &r, const settings &how, bool check, session &s,
		   printer &out)
{
	std::vector<std::size_t> sizes;
	if (trouble t = s.message_sizes(usual_messages, sizes))
		return t;
	for (const std::size_t size : sizes) {
		ping_task warm(size, {100, r.seconds / 10}, false);
		ping_task p(size, {r.count, r.seconds}, check);
		if (trouble t = s.run(warm, p))
			return t;
		out.add(result_of(p, how, s.one_process()));
	}
	return {};
}

trouble bulk_sizes(const measure_request &r, const settings &how, command d,
		   const std::vector<std::size_t> &sizes, unsigned depth, session &s, printer &out)
{
	for (const std::size_t size : sizes) {
		bulk_task warm(s.client(), d, size, {4 * depth, r.seconds / 10}, depth);
		bulk_task b(s.client(), d, size, {r.count, r.seconds}, depth);
		if (trouble t = s.run(warm, b))
			return t;
		out.add(result_of(b, d, how, s.one_process()));
	}
	return {};
}

int run_ping(const ping_request &r)
{
	return in_session(r, "ping", 4, [&](session &s, printer &out) {
		return ping_sizes(r, r.how, r.check, s, out);
	});
}

int run_bulk(const bulk_request &r)
{
	return in_session(r, "bulk", 2 * r.depth + 2, [&](session &s, printer &out) -> trouble {
		std::vector<std::size_t> sizes;
		if (trouble t = s.bulk_sizes({4096, 65536, 262144, 1048576, 4194304}, sizes))
			return t;
		if (r.direction != "fill")
			if (trouble t =
				    bulk_sizes(r, r.how, command::fetch, sizes, r.depth, s, out))
				return t;
		return r.direction == "fetch"
			       ? trouble()
			       : bulk_sizes(r, r.how, command::fill, sizes, r.depth, s, out);
	});
}

} // namespace coop::net_tools
