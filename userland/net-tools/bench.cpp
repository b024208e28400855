// SPDX-License-Identifier: MIT
// bench.cpp - coopnet bench: everything at once, in one mode of progress after the other.
//
// Each mode has a server of its own in the same mode, so that the cost of a mode is that of
// both sides.
#include <algorithm>
#include <cstdio>
#include <malloc.h>

#include "advice.hpp"
#include "commands.hpp"

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

struct peers_figures {
	unsigned count;
	double bytes, make_ns, find_ns; ///< of one
};

// Bytes that malloc() has given out; what is resident would hide what was used before.
std::uint64_t allocated()
{
	const struct mallinfo2 m = ::mallinfo2();
	return m.uordblks + m.hblkhd;
}

net::address peer_address(const net::address &like, unsigned i)
{
	// Nobody has to be there: an end point is not a connection.
	net::address a = like;
	a.ip[a.ip.size() - 3] = static_cast<std::uint8_t>(100 + i / 62500);
	a.ip[a.ip.size() - 2] = static_cast<std::uint8_t>(1 + i / 250 % 250);
	a.ip[a.ip.size() - 1] = static_cast<std::uint8_t>(1 + i % 250);
	return a;
}

trouble peers(const bench_request &r, session &s, peers_figures &out)
{
	net::transfer_machine &tm = s.client().at().machine();
	const net::address &like = s.client().server()->address();
	std::vector<net::endpoint_ptr> all(r.peers);
	const std::uint64_t before = allocated();
	const auto pass = [&](double &ns) -> trouble {
		const net::time_point began = net::clock::now();
		for (unsigned i = 0; i < r.peers; i++) {
			net::endpoint_ptr e;
			if (const int status = tm.make_endpoint(peer_address(like, i), e))
				return failure{exit_failure,
					       "end point " + std::to_string(i) + ": " +
						       explain(status,
							       net::format(peer_address(like, i)),
							       s.client().at().domain())};
			all[i] = std::move(e);
		}
		ns = std::chrono::duration<double, std::nano>(net::clock::now() - began).count() /
		     r.peers;
		return {};
	};
	out.count = r.peers;
	if (trouble t = pass(out.make_ns))
		return t;
	const std::uint64_t now = allocated();
	out.bytes = (now > before ? static_cast<double>(now - before) : 0.0) / r.peers;
	return pass(out.find_ns);
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
			peers_figures p{};
			if (trouble t = peers(r, s, p))
				return t;
			out.extra()["peers"] = {{"count", p.count},
						{"bytes", p.bytes},
						{"make_ns", p.make_ns},
						{"find_ns", p.find_ns}};
			if (!r.json)
				std::printf(
					"\n%u end points: %.0f bytes each, made in %.0f ns, found "
					"again in %.0f ns\n",
					p.count, p.bytes, p.make_ns, p.find_ns);
		}
		return {};
	});
	return status ? status : out.end();
}

} // namespace coop::net_tools
