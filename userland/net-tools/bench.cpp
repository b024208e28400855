// SPDX-License-Identifier: MIT
// bench.cpp - coopnet bench: all measurements, in one mode of progress after the other.
//
// Each mode has its own server in the same mode, so that the cost of a mode includes both sides.
#include <algorithm>
#include <cstdio>

#include "commands.hpp"
#include "peers.hpp"

namespace coop::net_tools
{

namespace
{

bool has(const std::vector<std::string> &list, const char *word)
{
	return std::find(list.begin(), list.end(), word) != list.end();
}

progress progress_of(const std::string &word)
{
	for (const progress p : {progress::block, progress::notify})
		if (word == name(p))
			return p;
	return progress::poll;
}

trouble ping_sizes(const bench_request &r, const settings &how, session &s, printer &out)
{
	std::vector<std::size_t> sizes;
	if (trouble t = s.message_sizes(usual_messages, sizes))
		return t;
	for (const std::size_t size : sizes) {
		ping_task warm(size, {100, r.seconds / 10}, false),
			p(size, {r.count, r.seconds}, false);
		for (ping_task *one : {&warm, &p})
			if (trouble t = s.client().run(*one))
				return t;
		out.add(result_of(p, how, s.one_process()));
	}
	return {};
}

trouble stream_sizes(const bench_request &r, const settings &how, session &s, printer &out)
{
	for (const std::size_t size : {std::size_t{8}, std::size_t{64}, std::size_t{1024}}) {
		if (size > s.client().max_message())
			continue;
		stream_task warm(size, {1000, r.seconds / 10}, r.depth);
		stream_task p(size, {100 * r.count, r.seconds}, r.depth);
		for (stream_task *one : {&warm, &p})
			if (trouble t = s.client().run(*one))
				return t;
		out.add(result_of(p, size, how, s.one_process()));
	}
	return {};
}

trouble bulk_sizes(const bench_request &r, const settings &how, session &s, printer &out)
{
	const std::size_t most = s.client().max_bulk();
	for (const command d : {command::fetch, command::fill})
		for (const std::size_t size : {std::size_t{65536}, std::size_t{1048576}}) {
			if (size > most)
				continue;
			bulk_task warm(s.client(), d, size, {4 * r.bulk_depth, r.seconds / 10},
				       r.bulk_depth);
			bulk_task b(s.client(), d, size, {r.count, r.seconds}, r.bulk_depth);
			for (bulk_task *one : {&warm, &b})
				if (trouble t = s.client().run(*one))
					return t;
			out.add(result_of(b, d, how, s.one_process()));
		}
	return {};
}

trouble peers(const bench_request &r, session &s, printer &out)
{
	client &c = s.client();
	endpoint_figures e{};
	if (trouble t = measure_endpoints(c, r.peers, e))
		return t;
	auto &j = out.extra()["peers"];
	j = {{"count", e.count},
	     {"bytes", e.bytes},
	     {"make_ns", e.make_ns},
	     {"find_ns", e.find_ns},
	     {"connected", nullptr}};
	if (!r.json)
		std::printf(
			"\n%u end points: %.0f bytes each, made in %.0f ns, found again in %.0f "
			"ns\n",
			e.count, e.bytes, e.make_ns, e.find_ns);
	// If one process is both sides, its memory cannot be attributed.
	if (!r.connected || s.one_process())
		return {};
	connected_figures k{};
	const std::chrono::milliseconds patience(static_cast<long>(r.timeout_s * 1000));
	if (trouble t = measure_connected(c, r.connected, patience, k))
		return t;
	j["connected"] = {{"count", k.count}, {"bytes", k.bytes}};
	if (!r.json)
		std::printf("%u connected peers: %.0f bytes each, of the server's process\n",
			    k.count, k.bytes);
	return {};
}

} // namespace

int run_bench(const bench_request &r)
{
	printer out(r, "bench");
	const int status = guarded([&]() -> trouble {
		if (!r.plot.empty() && r.only == std::vector<std::string>{"peers"})
			return failure{exit_usage, "--plot: nothing that --only names has a curve"};
		if (trouble t = out.begin())
			return t;
		for (const std::string &mode : r.modes) {
			settings how = r.how;
			how.progress = progress_of(mode);
			session s(r, how, std::max(r.depth, 2 * r.bulk_depth + 2));
			if (trouble t = s.connect())
				return t;
			out.under(s.client().at().domain());
			if (has(r.only, "ping"))
				if (trouble t = ping_sizes(r, how, s, out))
					return t;
			if (has(r.only, "stream"))
				if (trouble t = stream_sizes(r, how, s, out))
					return t;
			if (has(r.only, "bulk"))
				if (trouble t = bulk_sizes(r, how, s, out))
					return t;
			if (!has(r.only, "peers") || mode != r.modes.back())
				continue;
			if (trouble t = peers(r, s, out))
				return t;
		}
		return {};
	});
	return status ? status : out.end();
}

} // namespace coop::net_tools
