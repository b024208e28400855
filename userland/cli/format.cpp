// SPDX-License-Identifier: MIT
// format.cpp - the tables of `coopfs stats` and `coopfs peers`.
//
// Sizes are binary (KiB, MiB), like pages and chunks, so a figure can easily be compared with a
// page count.
#include "userland/cli/format.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace coop::cli
{

namespace
{

std::string scaled(double v, double step, const char *const *unit, std::size_t units)
{
	std::size_t u = 0;
	while (v >= step - 0.05 && u + 1 < units) {
		v /= step;
		u++;
	}
	std::array<char, 48> buf;
	std::snprintf(buf.data(), buf.size(), u == 0 ? "%.0f %s" : "%.1f %s", v, unit[u]);
	return buf.data();
}

std::uint64_t in(const mount_stats &s, const char *name)
{
	const auto w = s.traffic.find(name);
	return w == s.traffic.end() ? 0 : w->second.rx_bytes;
}

std::uint64_t out(const mount_stats &s, const char *name)
{
	const auto w = s.traffic.find(name);
	return w == s.traffic.end() ? 0 : w->second.tx_bytes;
}

} // namespace

std::string human_bytes(double bytes)
{
	static constexpr std::array unit{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	return scaled(bytes, 1024, unit.data(), unit.size());
}

std::string human_rate(double bytes_per_second)
{
	return human_bytes(bytes_per_second) + "/s";
}

std::string human_time_us(std::uint64_t us)
{
	static constexpr std::array unit{"us", "ms", "s"};
	return scaled(static_cast<double>(us), 1000, unit.data(), unit.size());
}

std::string at_most_us(std::uint64_t us)
{
	return us == 0 ? "-" : "<" + human_time_us(us);
}

std::string percent(std::uint64_t part, std::uint64_t whole)
{
	if (whole == 0)
		return "-";
	std::array<char, 32> buf;
	std::snprintf(buf.data(), buf.size(), "%.1f %%",
		      100.0 * static_cast<double>(part) / static_cast<double>(whole));
	return buf.data();
}

std::size_t columns(std::string_view text)
{
	return static_cast<std::size_t>(
		std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string printable(std::string_view text)
{
	std::string out(text);
	for (auto &c : out)
		if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
			c = '?';
	return out;
}

std::string table::text() const
{
	std::vector<std::size_t> width;
	for (const auto &row : rows_)
		for (std::size_t c = 0; c < row.size(); c++) {
			width.resize(std::max(width.size(), c + 1));
			width[c] = std::max(width[c], columns(row[c]));
		}
	std::string out;
	for (const auto &row : rows_) {
		std::string line;
		for (std::size_t c = 0; c < row.size(); c++) {
			const std::string pad(width[c] - columns(row[c]), ' ');
			const bool left = c < left_.size() ? left_[c] : c == 0;
			line += c ? "  " : "";
			line += left ? row[c] + pad : pad + row[c];
		}
		line.erase(line.find_last_not_of(' ') + 1);
		out += line + "\n";
	}
	return out;
}

std::string forest_line(const mount_stats &s)
{
	const auto count = [](const counters &list, const char *name) {
		return std::to_string(counter_of(list, name));
	};
	const auto saved = static_cast<double>(s.sources[peer].bytes);
	return "carries " + count(s.forest, "carrier") + " trees of " + count(s.forest, "files") +
	       " files, leaf in " + count(s.forest, "leaf") + "; " + count(s.forest, "parents") +
	       " parents, " + count(s.forest, "children") + " children, " +
	       count(s.serve, "waiting") + " waiting; " + count(s.read, "redirected_pages") +
	       " pages redirected, " + human_bytes(saved) + " saved";
}

std::string stats_table(const mount_stats &s)
{
	const auto total = total_bytes(s);
	table t({"source", "requests", "pages", "bytes", "share", "p50", "p99"});
	std::uint64_t requests = 0, pages = 0;
	for (std::size_t i = 0; i < s.sources.size(); i++) {
		const auto &one = s.sources[i];
		t.add({source_name[i], std::to_string(one.requests), std::to_string(one.pages),
		       human_bytes(static_cast<double>(one.bytes)), percent(one.bytes, total),
		       at_most_us(latency_quantile(one.latency, 0.5)),
		       at_most_us(latency_quantile(one.latency, 0.99))});
		requests += one.requests;
		pages += one.pages;
	}
	t.add({"all", std::to_string(requests), std::to_string(pages),
	       human_bytes(static_cast<double>(total)), percent(total, total), "", ""});

	table wire({"wire", "in", "out"});
	for (const char *name : {"peer", "storage"})
		wire.add({name, human_bytes(static_cast<double>(in(s, name))),
			  human_bytes(static_cast<double>(out(s, name)))});

	const auto &c = s.cache;
	return t.text() + "\n" + wire.text() +
	       (s.forest.empty() ? "" : "\nforest  " + forest_line(s) + "\n") + "\ncache  " +
	       human_bytes(static_cast<double>(c.used)) + " of " +
	       human_bytes(static_cast<double>(c.capacity)) + " (" + percent(c.used, c.capacity) +
	       "), " + std::to_string(c.blocks) + " blocks" +
	       (c.evicted ? ", " + std::to_string(*c.evicted) + " evicted" : "") + "\n";
}

std::string peers_table(const std::vector<peer_record> &peers)
{
	if (peers.empty())
		return "no peers\n";
	table t({"peer", "origin", "state", "srtt", "in flight", "hits", "misses", "failures",
		 "busy", "received", "sent", "parent in"});
	t.set_left({true, true, true});
	for (const auto &p : peers)
		t.add({printable(p.address()), printable(p.origin), printable(p.state),
		       p.srtt_us ? human_time_us(p.srtt_us) : "-", std::to_string(p.in_flight),
		       std::to_string(p.hits), std::to_string(p.misses), std::to_string(p.failures),
		       std::to_string(p.busy), human_bytes(static_cast<double>(p.rx_bytes)),
		       human_bytes(static_cast<double>(p.tx_bytes)),
		       std::to_string(p.parent_trees)});
	return t.text();
}

} // namespace coop::cli
