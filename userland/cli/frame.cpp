// SPDX-License-Identifier: MIT
// frame.cpp - layout of `coopfs top`. A mount takes eleven rows and one for each peer; if several
// mounts share a small terminal, peers are dropped first, then whole mounts.
#include "userland/cli/frame.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "userland/cli/format.hpp"

namespace coop::cli
{

namespace
{

constexpr std::array source_style{style::from_buffer, style::from_peer, style::from_storage};
constexpr double least_scale = 1 << 20; // bytes a second: do not magnify the noise of an idle mount

double per_second(std::uint64_t amount, double seconds)
{
	return seconds > 0 ? static_cast<double>(amount) / seconds : 0;
}

// The rate of a full bar: the greatest total in the history, rounded up to a power of two.
double full_scale(const mount_view &v)
{
	double top = least_scale;
	for (const auto rate : v.history)
		top = std::max(top, rate);
	return std::exp2(std::ceil(std::log2(top)));
}

// All bars of a frame begin at the same column.
constexpr std::size_t bar_at = 26;
std::size_t bar_columns_of(std::size_t columns)
{
	constexpr std::size_t right_of_it = 28, least = 4;
	return columns > bar_at + right_of_it + least ? columns - bar_at - right_of_it : least;
}

line title_line(const mount_view &v, std::size_t columns)
{
	line l;
	l.add(printable(v.mount.mountpoint), style::strong)
		.add("  " + printable(v.mount.source), style::faint);
	l.right(v.mount.type == "coopfs" ? "kernel" : "fuse", columns, style::faint);
	return l;
}

void draw_sources(const mount_view &v, std::size_t columns, bool ascii, std::vector<line> &out)
{
	const double full = full_scale(v);
	const std::size_t bar_columns = bar_columns_of(columns);
	out.emplace_back()
		.add("  source", style::faint)
		.right("rate", 24, style::faint)
		.to(bar_at)
		.add("0 .. " + human_rate(full), style::faint)
		.right("total", bar_at + bar_columns + 11, style::faint)
		.right("p50", bar_at + bar_columns + 19, style::faint)
		.right("p99", bar_at + bar_columns + 27, style::faint);
	for (std::size_t i = 0; i < source_name.size(); i++) {
		const double rate = per_second(v.recent.sources[i].bytes, v.seconds);
		const auto &latency = v.recent.sources[i].requests ? v.recent.sources[i].latency
								   : v.total.sources[i].latency;
		out.emplace_back()
			.add(std::string("  ") + source_name[i], source_style[i])
			.right(human_rate(rate), 24)
			.to(bar_at)
			.add(bar(rate / full, bar_columns, ascii), source_style[i])
			.right(human_bytes(static_cast<double>(v.total.sources[i].bytes)),
			       bar_at + bar_columns + 11)
			.right(at_most_us(latency_quantile(latency, 0.5)),
			       bar_at + bar_columns + 19)
			.right(at_most_us(latency_quantile(latency, 0.99)),
			       bar_at + bar_columns + 27);
	}
	out.emplace_back()
		.add("  all", style::strong)
		.right(human_rate(per_second(total_bytes(v.recent), v.seconds)), 24, style::strong)
		.to(bar_at)
		.add(sparkline(v.history, full, bar_columns, ascii), style::faint)
		.right(human_bytes(static_cast<double>(total_bytes(v.total))),
		       bar_at + bar_columns + 11, style::strong);
}

void draw_cache_and_wire(const mount_view &v, std::size_t columns, bool ascii,
			 std::vector<line> &out)
{
	const auto &c = v.total.cache;
	const double fill =
		c.capacity ? static_cast<double>(c.used) / static_cast<double>(c.capacity) : 0;
	const std::size_t bar_columns = bar_columns_of(columns);
	out.emplace_back()
		.add("  cache")
		.right(percent(c.used, c.capacity), 24)
		.to(bar_at)
		.add(bar(fill, bar_columns, ascii), fill > 0.95 ? style::warn : style::good)
		.add(" " + human_bytes(static_cast<double>(c.used)) + " of " +
		     human_bytes(static_cast<double>(c.capacity)));
	line wire;
	wire.add("  wire");
	for (const char *name : {"peer", "storage"}) {
		const auto w = v.recent.traffic.find(name);
		const auto rx = w == v.recent.traffic.end() ? 0 : w->second.rx_bytes;
		const auto tx = w == v.recent.traffic.end() ? 0 : w->second.tx_bytes;
		wire.add(std::string("  ") + name + " in ", style::faint)
			.add(human_rate(per_second(rx, v.seconds)))
			.add(" out ", style::faint)
			.add(human_rate(per_second(tx, v.seconds)));
	}
	out.push_back(std::move(wire));
	out.emplace_back()
		.add("  forest  ")
		.add(v.total.forest.empty() ? "-" : forest_line(v.total), style::faint);
}

style state_style(const std::string &state)
{
	if (state == "healthy")
		return style::good;
	return state == "open" ? style::bad : style::warn; // suspect, half-open
}

const peer_record *earlier_of(const mount_view &v, const peer_record &p)
{
	for (const auto &e : v.peers_before)
		if (e.gid == p.gid && e.lid == p.lid && e.qpn == p.qpn)
			return &e;
	return nullptr;
}

std::uint64_t grown(std::uint64_t now, std::uint64_t before)
{
	return now >= before ? now - before : now;
}

line peer_line(const mount_view &v, const peer_record &p, std::size_t address_columns)
{
	const auto *e = earlier_of(v, p);
	std::string who = printable(p.address());
	if (who.size() > address_columns)
		who.resize(address_columns);
	const std::size_t at = 2 + address_columns;
	line l;
	l.add("  " + who)
		.to(at + 1)
		.add(printable(p.state), state_style(p.state))
		.right(p.srtt_us ? human_time_us(p.srtt_us) : "-", at + 19)
		.right(human_rate(per_second(grown(p.rx_bytes, e ? e->rx_bytes : 0),
					     e ? v.seconds : 0)),
		       at + 32)
		.right(human_rate(per_second(grown(p.tx_bytes, e ? e->tx_bytes : 0),
					     e ? v.seconds : 0)),
		       at + 45)
		.right(std::to_string(p.failures), at + 51,
		       p.failures ? style::warn : style::plain);
	return l;
}

void draw_peers(const mount_view &v, std::size_t columns, std::size_t most, std::vector<line> &out)
{
	const std::size_t address_columns = columns > 2 + 52 + 12 ? columns - 2 - 52 : 12;
	const std::size_t at = 2 + address_columns;
	if (v.peers.empty()) {
		out.emplace_back().add("  no peers", style::faint);
		return;
	}
	out.emplace_back()
		.add("  peer", style::faint)
		.to(at + 1)
		.add("state", style::faint)
		.right("srtt", at + 19, style::faint)
		.right("in", at + 32, style::faint)
		.right("out", at + 45, style::faint)
		.right("fails", at + 51, style::faint);
	const bool all = v.peers.size() <= most;
	const std::size_t shown = all ? v.peers.size() : most - std::min<std::size_t>(most, 1);
	// If not all fit: first peers that are not healthy, then those with most traffic.
	std::vector<const peer_record *> order;
	for (const auto &p : v.peers)
		order.push_back(&p);
	if (!all)
		std::stable_sort(order.begin(), order.end(), [](const auto *a, const auto *b) {
			const bool a_ill = a->state != "healthy", b_ill = b->state != "healthy";
			return a_ill != b_ill
				       ? a_ill
				       : a->rx_bytes + a->tx_bytes > b->rx_bytes + b->tx_bytes;
		});
	for (std::size_t i = 0; i < shown; i++)
		out.push_back(peer_line(v, *order[i], address_columns));
	if (!all)
		out.emplace_back().add("  and " + std::to_string(v.peers.size() - shown) +
					       " more peers",
				       style::faint);
}

std::vector<line> draw_mount(const mount_view &v, std::size_t columns, std::size_t most_peers,
			     bool ascii)
{
	std::vector<line> out;
	out.push_back(title_line(v, columns));
	if (!v.error.empty())
		out.emplace_back().add("  " + printable(v.error), style::bad);
	draw_sources(v, columns, ascii, out);
	draw_cache_and_wire(v, columns, ascii, out);
	draw_peers(v, columns, most_peers, out);
	return out;
}

} // namespace

line &line::add(std::string text, style look)
{
	width_ += columns(text);
	spans_.push_back({std::move(text), look});
	return *this;
}

line &line::to(std::size_t column)
{
	return add(std::string(column > width_ ? column - width_ : 1, ' '));
}

line &line::right(std::string text, std::size_t column, style look)
{
	const auto need = columns(text);
	to(column > need ? column - need : 0);
	return add(std::move(text), look);
}

void line::cut(std::size_t width)
{
	std::size_t at = 0;
	for (auto &s : spans_) {
		std::size_t keep = 0; // bytes
		while (keep < s.text.size()) {
			const bool starts = (s.text[keep] & 0xc0) != 0x80;
			if (starts && at == width)
				break;
			at += starts;
			keep++;
		}
		s.text.resize(keep);
	}
	width_ = at;
}

std::string line::text() const
{
	std::string out;
	for (const auto &s : spans_)
		out += s.text;
	out.erase(out.find_last_not_of(' ') + 1);
	return out;
}

std::string bar(double fraction, std::size_t columns, bool ascii)
{
	static constexpr std::array eighth{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
	const double f = std::isfinite(fraction) ? std::clamp(fraction, 0.0, 1.0) : 0;
	auto parts = static_cast<std::size_t>(std::lround(f * 8 * static_cast<double>(columns)));
	if (parts == 0 && f > 0)
		parts = 1; // show even a small fraction
	std::string out;
	for (std::size_t i = 0; i < parts / 8; i++)
		out += ascii ? "#" : "█";
	if (parts % 8)
		out += ascii ? (parts % 8 >= 4 || parts < 8 ? "-" : " ") : eighth[parts % 8];
	const std::size_t used = parts / 8 + (parts % 8 != 0);
	return out + std::string(columns - used, ' ');
}

std::string sparkline(const std::deque<double> &values, double full, std::size_t columns,
		      bool ascii)
{
	static constexpr std::array block{" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
	static constexpr std::array letter{" ", ".", ":", "-", "=", "+", "*", "#", "@"};
	std::string out(columns > values.size() ? columns - values.size() : 0, ' ');
	for (std::size_t i = values.size() > columns ? values.size() - columns : 0;
	     i < values.size(); i++) {
		const double f = full > 0 ? std::clamp(values[i] / full, 0.0, 1.0) : 0;
		auto step = static_cast<std::size_t>(std::lround(f * 8));
		if (step == 0 && f > 0)
			step = 1;
		out += ascii ? letter[step] : block[step];
	}
	return out;
}

std::vector<line> draw_frame(const std::vector<mount_view> &views, double interval_s,
			     frame_size size, bool ascii)
{
	std::vector<line> out;
	std::array<char, 32> every;
	std::snprintf(every.data(), every.size(), "every %g s", interval_s);
	out.emplace_back()
		.add("coopfs top", style::strong)
		.add("  " + std::to_string(views.size()) +
		     (views.size() == 1 ? " mount, " : " mounts, ") + every.data())
		.right(size.rows ? "q quits" : "", size.columns, style::faint);

	constexpr std::size_t fixed_rows =
		11; // blank, title, 5 of sources, cache, wire, forest, heading of peers
	const std::size_t body = size.rows > 1 ? size.rows - 1 : 0;
	const std::size_t fit =
		size.rows ? std::max<std::size_t>(1, body / (fixed_rows + 1)) : views.size();
	const std::size_t shown = std::min(views.size(), fit);
	const std::size_t spare =
		body > shown * fixed_rows ? body - shown * fixed_rows - (shown < views.size()) : 0;
	for (std::size_t i = 0; i < shown; i++) {
		const auto &v = views[i];
		const std::size_t most =
			size.rows ? spare / shown -
					    std::min<std::size_t>(spare / shown, !v.error.empty())
				  : v.peers.size();
		out.emplace_back();
		for (auto &l : draw_mount(v, size.columns, most, ascii))
			out.push_back(std::move(l));
	}
	if (size.rows && out.size() > size.rows - (shown < views.size()))
		out.resize(size.rows - (shown < views.size()));
	if (shown < views.size())
		out.emplace_back().add(
			"and " + std::to_string(views.size() - shown) +
				" more mounts: name the ones to show, or make the window taller",
			style::faint);
	for (auto &l : out)
		l.cut(size.columns);
	return out;
}

} // namespace coop::cli
