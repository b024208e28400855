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

trouble stream_sizes(const bench_request &r, const settings &how, session &s, printer &out)
{
	for (const std::size_t size : {std::size_t{8}, std::size_t{64}, std::size_t{1024}}) {
		if (size > s.client().max_message())
			continue;
		stream_task warm(size, {1000, r.seconds / 10}, r.depth);
		stream_task p(size, {100 * r.count, r.seconds}, r.depth);
		if (trouble t = s.run(warm, p))
			return t;
		out.add(result_of(p, size, how, s.one_process()));
	}
	return {};
}

trouble both_bulk(const bench_request &r, const settings &how, session &s, printer &out)
{
	std::vector<std::size_t> sizes = {65536, 1048576};
	std::erase_if(sizes, [&](std::size_t size) { return size > s.client().max_bulk(); });
	for (const command d : {command::fetch, command::fill})
		if (trouble t = bulk_sizes(r, how, d, sizes, r.bulk_depth, s, out))
			return t;
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
				if (trouble t = ping_sizes(r, how, false, s, out))
					return t;
			if (has(r.only, "stream"))
				if (trouble t = stream_sizes(r, how, s, out))
					return t;
			if (has(r.only, "bulk"))
				if (trouble t = both_bulk(r, how, s, out))
					return t;
			out.rails(how, s.client().at().machine().rails());
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
