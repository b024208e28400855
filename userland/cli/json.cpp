// SPDX-License-Identifier: MIT
// json.cpp - statistics and peers as JSON. Key order is fixed, so that two outputs
// can be compared as text.
#include "userland/cli/json.hpp"

namespace coop::cli
{

namespace
{

using nlohmann::ordered_json;

ordered_json to_json(const counters &list)
{
	ordered_json out = ordered_json::object();
	for (const auto &[name, value] : list)
		out[name] = value;
	return out;
}

ordered_json edge(std::uint64_t us)
{
	return us ? ordered_json(us) : ordered_json(nullptr);
}

ordered_json to_json(const cache_stats &c)
{
	ordered_json out = {{"capacity", c.capacity}, {"used", c.used}, {"blocks", c.blocks}};
	if (c.evicted)
		out["evicted"] = *c.evicted;
	return out;
}

} // namespace

ordered_json to_json(const mount_stats &s)
{
	const auto total = total_bytes(s);
	ordered_json sources = ordered_json::object();
	for (std::size_t i = 0; i < s.sources.size(); i++) {
		const auto &one = s.sources[i];
		sources[source_name[i]] = {
			{"requests", one.requests},
			{"pages", one.pages},
			{"bytes", one.bytes},
			{"share", total ? ordered_json(static_cast<double>(one.bytes) /
						       static_cast<double>(total))
					: ordered_json(nullptr)},
			{"p50_us", edge(latency_quantile(one.latency, 0.5))},
			{"p99_us", edge(latency_quantile(one.latency, 0.99))},
			{"latency", one.latency},
		};
	}
	ordered_json traffic = ordered_json::object();
	for (const auto &[name, w] : s.traffic)
		traffic[name] = {{"rx_bytes", w.rx_bytes}, {"tx_bytes", w.tx_bytes}};
	ordered_json out = {{"sources", sources}, {"traffic", traffic}};
	for (const auto &[name, list] : counter_lists)
		out[name] = to_json(s.*list);
	out["cache"] = to_json(s.cache);
	return out;
}

ordered_json to_json(const peer_record &p)
{
	return {
		{"gid", p.gid},
		{"lid", p.lid},
		{"qpn", p.qpn},
		{"sl", p.sl},
		{"origin", p.origin},
		{"state", p.state},
		{"srtt_us", p.srtt_us},
		{"rttvar_us", p.rttvar_us},
		{"fails", p.fails},
		{"in_flight", p.in_flight},
		{"hits", p.hits},
		{"misses", p.misses},
		{"failures", p.failures},
		{"busy", p.busy},
		{"rx_pages", p.rx_pages},
		{"rx_bytes", p.rx_bytes},
		{"tx_pages", p.tx_pages},
		{"tx_bytes", p.tx_bytes},
		{"parent_trees", p.parent_trees},
	};
}

ordered_json to_json(const std::vector<peer_record> &peers)
{
	ordered_json out = ordered_json::array();
	for (const auto &p : peers)
		out.push_back(to_json(p));
	return out;
}

std::string dump(const ordered_json &j, int indent)
{
	return j.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

} // namespace coop::cli
