// SPDX-License-Identifier: MIT
// results.cpp - see results.hpp.
#include "results.hpp"

#include <algorithm>
#include <cstdio>
#include <numeric>

namespace coop::net_tools
{

namespace
{

template <class... values> std::string print(const char *format, values... v)
{
	char text[256];
	std::snprintf(text, sizeof(text), format, v...);
	return text;
}

std::string rounded(double v)
{
	return print(v < 10 ? "%.2f" : v < 1000 ? "%.1f" : "%.0f", v);
}

result common(const char *what, const task &t, std::size_t size, std::uint64_t count,
	      const settings &s, bool one_process)
{
	result r;
	r.what = what;
	r.mode = name(s.progress);
	r.size = size;
	r.count = count;
	r.seconds = t.seconds();
	const double n = static_cast<double>(std::max<std::uint64_t>(count, 1));
	r.operations_s = static_cast<double>(count) / t.seconds();
	r.mb_s = r.operations_s * static_cast<double>(size) / 1e6;
	r.client_cpu_us = t.client_cpu_us() / n;
	if (!one_process)
		r.server_cpu_us = t.server_cpu_us() / n;
	return r;
}

} // namespace

percentiles percentiles_of(std::vector<std::uint64_t> s, double share)
{
	if (s.empty())
		return {};
	std::sort(s.begin(), s.end());
	// The smallest sample such that at least `per_mille` of all samples are not above it.
	const auto at = [&](std::size_t per_mille) {
		const std::size_t rank = (s.size() * per_mille + 999) / 1000;
		return static_cast<double>(s[std::max<std::size_t>(rank, 1) - 1]) / share / 1e3;
	};
	const double sum = std::accumulate(s.begin(), s.end(), 0.0);
	return {static_cast<double>(s.front()) / share / 1e3,
		at(500),
		at(900),
		at(990),
		at(999),
		static_cast<double>(s.back()) / share / 1e3,
		sum / static_cast<double>(s.size()) / share / 1e3};
}

result result_of(const ping_task &t, const settings &s, bool one_process)
{
	result r = common("ping", t, t.size(), t.samples().size(), s, one_process);
	r.mb_s *= 2; // both directions
	r.latency = percentiles_of(t.samples(), 2);
	return r;
}

result result_of(const bulk_task &t, command direction, const settings &s, bool one_process)
{
	result r = common(direction == command::fetch ? "bulk fetch" : "bulk fill", t, t.size(),
			  t.samples().size(), s, one_process);
	r.depth = t.depth();
	r.latency = percentiles_of(t.samples(), 1);
	return r;
}

result result_of(const stream_task &t, std::size_t size, const settings &s, bool one_process)
{
	result r = common("stream", t, size, t.messages(), s, one_process);
	r.depth = t.depth();
	r.lost = t.messages() - t.arrived();
	return r;
}

std::string rail_line(const net::rail_stats &r)
{
	return print("rail %s: %.1f MB sent, %.1f received; %.1f read in %llu requests, %llu "
		     "failed\n",
		     r.name.c_str(), static_cast<double>(r.sent) / 1e6,
		     static_cast<double>(r.received) / 1e6, static_cast<double>(r.read_bytes) / 1e6,
		     static_cast<unsigned long long>(r.reads),
		     static_cast<unsigned long long>(r.failed));
}

std::string table_line(const result &r, const result *before)
{
	std::string text;
	if (!before || before->what != r.what || before->mode != r.mode) {
		const char *of = r.what == "ping"     ? ", us of half a round trip"
				 : r.what == "stream" ? ", one way"
						      : ", us of a transfer";
		text = (before ? "\n" : "") + r.what + of + ", " + r.mode + "\n" +
		       print("%9s %9s %9s %9s %9s %9s %9s %10s %11s %9s %9s\n", "bytes", "count",
			     "min", "p50", "p90", "p99", "p99.9", "max", "MB/s", "ops/s",
			     "cpu us/op");
	}
	text += print("%9zu %9llu", r.size, static_cast<unsigned long long>(r.count));
	if (r.latency)
		for (const double v : {r.latency->least, r.latency->p50, r.latency->p90,
				       r.latency->p99, r.latency->p999})
			text += print(" %9s", rounded(v).c_str());
	else
		text += print(" %9s %9s %9s %9s %9s", "-", "-", "-", "-", "-");
	text += print(" %10s %11s %9.0f ", r.latency ? rounded(r.latency->most).c_str() : "-",
		      rounded(r.mb_s).c_str(), r.operations_s);
	text += rounded(r.client_cpu_us) +
		(r.server_cpu_us ? " + " + rounded(*r.server_cpu_us) : " both");
	if (r.lost && *r.lost)
		text += print("  %llu lost", static_cast<unsigned long long>(*r.lost));
	return text + "\n";
}

nlohmann::ordered_json to_json(const result &r)
{
	nlohmann::ordered_json j = {{"what", r.what},   {"progress", r.mode},
				    {"bytes", r.size},  {"depth", r.depth},
				    {"count", r.count}, {"seconds", r.seconds},
				    {"mb_s", r.mb_s},   {"operations_s", r.operations_s}};
	if (r.latency)
		j["latency_us"] = {{"min", r.latency->least},  {"p50", r.latency->p50},
				   {"p90", r.latency->p90},    {"p99", r.latency->p99},
				   {"p99.9", r.latency->p999}, {"max", r.latency->most},
				   {"mean", r.latency->mean}};
	j["cpu_us"]["client"] = r.client_cpu_us;
	if (r.server_cpu_us)
		j["cpu_us"]["server"] = *r.server_cpu_us;
	else
		j["cpu_us"]["server"] = nullptr;
	if (r.lost)
		j["lost"] = *r.lost;
	return j;
}

std::vector<chart> charts_of(const std::vector<result> &all, const std::string &title)
{
	chart latency{title, "bytes", "half round trip, us", {}};
	chart transfer{title, "bytes", "bulk transfer, us", {}};
	chart bandwidth{title, "bytes", "MB/s", {}};
	const auto curve = [](chart & c, const std::string &name) -> auto &
	{
		for (auto &k : c.curves)
			if (k.name == name)
				return k.points;
		c.curves.push_back({name, {}});
		return c.curves.back().points;
	};
	for (const result &r : all) {
		const double x = static_cast<double>(r.size);
		if (r.what == "ping") {
			curve(latency, r.mode + " p50").emplace_back(x, r.latency->p50);
			curve(latency, r.mode + " p99").emplace_back(x, r.latency->p99);
			curve(latency, r.mode + " p99.9").emplace_back(x, r.latency->p999);
		} else if (r.latency) {
			curve(transfer, r.what + ", " + r.mode + " p50")
				.emplace_back(x, r.latency->p50);
			curve(transfer, r.what + ", " + r.mode + " p99")
				.emplace_back(x, r.latency->p99);
		}
		curve(bandwidth, r.what + ", " + r.mode).emplace_back(x, r.mb_s);
	}
	std::vector<chart> some;
	for (chart &c : std::vector{latency, transfer, bandwidth})
		if (!c.curves.empty())
			some.push_back(std::move(c));
	return some;
}

} // namespace coop::net_tools
