// SPDX-License-Identifier: MIT
// control.cpp - parsers of the control files' text.
//
// The text comes from a mount of this machine, but the program trusts it no further: lines, fields
// and numbers are bounded by their storage, and reading stops at a size that no mount has reason to
// write.
#include "userland/cli/control.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

namespace coop::cli
{

namespace
{

constexpr std::string_view stats_header = "coopfs-stats 1";

std::string_view next_line(std::string_view &text)
{
	const auto end = std::min(text.find('\n'), text.size());
	const auto line = text.substr(0, end);
	text.remove_prefix(std::min(end + 1, text.size()));
	return line;
}

// The next word, empty at the end of the line.
std::string_view next_word(std::string_view &line)
{
	line.remove_prefix(std::min(line.find_first_not_of(" \t\r"), line.size()));
	const auto end = std::min(line.find_first_of(" \t\r"), line.size());
	const auto word = line.substr(0, end);
	line.remove_prefix(end);
	return word;
}

std::optional<std::uint64_t> number(std::string_view word)
{
	std::uint64_t v = 0;
	const auto [end, err] = std::from_chars(word.data(), word.data() + word.size(), v);
	if (err != std::errc() || end != word.data() + word.size())
		return std::nullopt;
	return v;
}

struct slot {
	std::string_view key;
	std::uint64_t *value;
};

// Stores "key N key N ..." in the slots; keys without a slot are ignored. False: malformed.
bool take_pairs(std::string_view line, std::initializer_list<slot> slots)
{
	for (auto key = next_word(line); !key.empty(); key = next_word(line)) {
		const auto v = number(next_word(line));
		if (!v)
			return false;
		for (const auto &s : slots)
			if (s.key == key)
				*s.value = *v;
	}
	return true;
}

bool take_latency(std::string_view line, std::array<std::uint64_t, 32> &cells)
{
	for (auto &cell : cells) {
		const auto v = number(next_word(line));
		if (!v)
			return false;
		cell = *v;
	}
	return next_word(line).empty();
}

bool take_counter(std::string_view line, counters &list)
{
	const auto name = next_word(line);
	const auto v = number(next_word(line));
	if (name.empty() || !v || !next_word(line).empty())
		return false;
	list.emplace_back(name, *v);
	return true;
}

// One record; false: malformed.
bool take_record(std::string_view line, mount_stats &out)
{
	const auto kind = next_word(line);
	if (kind == "source" || kind == "latency") {
		const auto name = next_word(line);
		if (name.empty())
			return false;
		const auto at = std::find(source_name.begin(), source_name.end(), name);
		if (at == source_name.end())
			return true; // a source unknown to this program
		auto &s = out.sources[static_cast<std::size_t>(at - source_name.begin())];
		if (kind == "latency")
			return take_latency(line, s.latency);
		return take_pairs(
			line,
			{{"requests", &s.requests}, {"pages", &s.pages}, {"bytes", &s.bytes}});
	}
	if (kind == "traffic") {
		const auto name = next_word(line);
		if (name.empty())
			return false;
		auto &w = out.traffic[std::string(name)];
		return take_pairs(line, {{"rx_bytes", &w.rx_bytes}, {"tx_bytes", &w.tx_bytes}});
	}
	if (kind == "cache") {
		std::uint64_t evicted = 0;
		const bool known = line.find(" evicted ") != line.npos;
		const bool good = take_pairs(line, {{"capacity", &out.cache.capacity},
						    {"used", &out.cache.used},
						    {"blocks", &out.cache.blocks},
						    {"evicted", &evicted}});
		if (known)
			out.cache.evicted = evicted;
		return good;
	}
	for (const auto &[name, list] : counter_lists)
		if (kind == name)
			return take_counter(line, out.*list);
	return true;
}

failure malformed(const char *file, std::size_t line_number, std::string_view line)
{
	constexpr std::size_t shown = 60;
	return {exit_failure,
		std::string(file) + ": line " + std::to_string(line_number) + " is malformed: \"" +
			std::string(line.substr(0, shown)) + (line.size() > shown ? "..." : "") +
			"\"; do this program and the mount belong to the same release?"};
}

bool take_peer(std::string_view line, peer_record &p)
{
	const std::initializer_list<std::pair<std::string_view, std::string *>> texts = {
		{"gid", &p.gid},
		{"lid", &p.lid},
		{"qpn", &p.qpn},
		{"origin", &p.origin},
		{"state", &p.state}};
	const std::initializer_list<slot> numbers = {{"sl", &p.sl},
						     {"srtt_us", &p.srtt_us},
						     {"rttvar_us", &p.rttvar_us},
						     {"fails", &p.fails},
						     {"in_flight", &p.in_flight},
						     {"hits", &p.hits},
						     {"misses", &p.misses},
						     {"failures", &p.failures},
						     {"busy", &p.busy},
						     {"rx_pages", &p.rx_pages},
						     {"rx_bytes", &p.rx_bytes},
						     {"tx_pages", &p.tx_pages},
						     {"tx_bytes", &p.tx_bytes},
						     {"parent_trees", &p.parent_trees}};
	for (auto word = next_word(line); !word.empty(); word = next_word(line)) {
		const auto eq = word.find('=');
		if (eq == std::string_view::npos)
			return false;
		const auto key = word.substr(0, eq), value = word.substr(eq + 1);
		for (const auto &t : texts)
			if (t.first == key)
				*t.second = value;
		for (const auto &n : numbers) {
			if (n.key != key)
				continue;
			const auto v = number(value);
			if (!v)
				return false;
			*n.value = *v;
		}
	}
	return (!p.gid.empty() || !p.lid.empty()) && !p.qpn.empty() && !p.state.empty();
}

std::uint64_t since(std::uint64_t later, std::uint64_t earlier)
{
	return later >= earlier ? later - earlier : later;
}

counters since(const counters &later, const counters &earlier)
{
	counters out = later;
	for (auto &[name, value] : out)
		for (const auto &[old_name, old_value] : earlier)
			if (old_name == name)
				value = since(value, old_value);
	return out;
}

} // namespace

std::string peer_record::address() const
{
	constexpr std::string_view mapped = "::ffff:";
	std::string who = gid;
	if (who.starts_with(mapped) && who.find('.') != std::string::npos)
		who.erase(0, mapped.size());
	if (who.empty() || who == "::")
		who = "lid " + lid;
	return who + " qpn " + qpn;
}

result<mount_stats> parse_stats(std::string_view text)
{
	const auto header = next_line(text);
	if (header != stats_header)
		return malformed("stats", 1, header);
	mount_stats out;
	for (std::size_t n = 2; !text.empty(); n++) {
		const auto line = next_line(text);
		if (!take_record(line, out))
			return malformed("stats", n, line);
	}
	return out;
}

result<std::vector<peer_record>> parse_peers(std::string_view text)
{
	std::vector<peer_record> out;
	for (std::size_t n = 1; !text.empty(); n++) {
		const auto line = next_line(text);
		auto rest = line;
		if (next_word(rest) != "peer")
			continue;
		peer_record p;
		if (!take_peer(rest, p))
			return malformed("peers", n, line);
		out.push_back(std::move(p));
	}
	return out;
}

std::map<std::string, std::string> parse_info(std::string_view text)
{
	std::map<std::string, std::string> out;
	while (!text.empty()) {
		const auto line = next_line(text);
		const auto at = line.find_first_of(" =");
		if (at != std::string_view::npos && at != 0)
			out.emplace(line.substr(0, at), line.substr(at + 1));
	}
	return out;
}

std::uint64_t counter_of(const counters &list, std::string_view name)
{
	const auto at = std::find_if(list.begin(), list.end(),
				     [&](const auto &c) { return c.first == name; });
	return at == list.end() ? 0 : at->second;
}

std::uint64_t total_bytes(const mount_stats &s)
{
	std::uint64_t sum = 0;
	for (const auto &one : s.sources)
		sum += one.bytes;
	return sum;
}

mount_stats difference(const mount_stats &later, const mount_stats &earlier)
{
	mount_stats out = later;
	for (std::size_t i = 0; i < out.sources.size(); i++) {
		auto &s = out.sources[i];
		const auto &e = earlier.sources[i];
		s.requests = since(s.requests, e.requests);
		s.pages = since(s.pages, e.pages);
		s.bytes = since(s.bytes, e.bytes);
		for (std::size_t c = 0; c < s.latency.size(); c++)
			s.latency[c] = since(s.latency[c], e.latency[c]);
	}
	for (auto &[name, w] : out.traffic)
		if (const auto e = earlier.traffic.find(name); e != earlier.traffic.end()) {
			w.rx_bytes = since(w.rx_bytes, e->second.rx_bytes);
			w.tx_bytes = since(w.tx_bytes, e->second.tx_bytes);
		}
	for (const auto &[name, list] : counter_lists)
		if (list != &mount_stats::forest)
			out.*list = since(later.*list, earlier.*list);
	return out;
}

std::uint64_t latency_quantile(const std::array<std::uint64_t, 32> &latency, double q)
{
	// Doubles, because a hostile sum may overflow; no figure shown needs more than 53 bits.
	double sum = 0;
	for (const auto c : latency)
		sum += static_cast<double>(c);
	if (sum == 0)
		return 0;
	const double rank = std::max(1.0, std::ceil(q * sum));
	double below = 0;
	for (std::size_t i = 0; i < latency.size(); i++) {
		below += static_cast<double>(latency[i]);
		if (below >= rank)
			return std::uint64_t{1} << i;
	}
	return std::uint64_t{1} << (latency.size() - 1);
}

} // namespace coop::cli
