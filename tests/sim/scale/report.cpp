// SPDX-License-Identifier: MIT
// report.cpp - text of a run's outcome.
#include "tests/sim/scale/report.hpp"

#include <cstdarg>
#include <cstdio>

namespace coop::scale
{

namespace
{

__attribute__((format(printf, 1, 2))) std::string text(const char *format, ...)
{
	char line[4096];
	va_list list;
	va_start(list, format);
	std::vsnprintf(line, sizeof(line), format, list);
	va_end(list);
	return line;
}

using ull = unsigned long long;

} // namespace

std::string scaling(const shape &s)
{
	return text("scaling: a page is one datagram of 4 KiB and takes the time of 64 KiB at "
		    "%u Gb/s, %llu ns; a unit of %u pages stands for %u KiB; %u file(s) of %u "
		    "units stand for %.0f MiB; one copy of them takes %.2f ms at that rate\n",
		    s.gbit, static_cast<ull>(s.page_ns(s.gbit)), s.unit_pages, s.unit_pages * 64,
		    s.files, s.units, s.pages() / 16.0,
		    static_cast<double>(s.pages()) * static_cast<double>(s.page_ns(s.gbit)) / 1e6);
}

std::string table_head()
{
	return "scenario    nodes  copies  median    last  sent mean  worst  longest wait  "
	       "messages  KiB a node    cpu      events\n"
	       "                    (sto.)   (in lone times)    (copies)           (ms)    "
	       "a page                  (s)\n";
}

std::string table_line(const shape &s, const outcome &o)
{
	return text("%-10s %6u %7.3f %7.3f %7.3f %10.2f %6.2f %13.2f %9.2f %11llu %6.1f %11llu%s\n",
		    s.scenario.c_str(), s.nodes, o.copies, o.median, o.last, o.sent_mean,
		    o.sent_worst, o.longest_wait_us / 1000, o.messages_a_page,
		    static_cast<ull>(o.node_bytes >> 10), o.cpu_s, static_cast<ull>(o.events),
		    s.coop ? "" : "  (without trees)");
}

std::string details(const outcome &o)
{
	const tally &t = o.t;
	std::string out = text(
		"  a lone reader takes %.3f ms; last of all nodes %.3f; %u healthy readers did "
		"not finish\n"
		"  loads %llu, of them relays %llu (%llu refused, %llu left to the askers); "
		"%llu fell to storage; %llu redirects; alternate first %llu\n"
		"  attempts %llu (%llu again), waits %llu (%llu ran out), BUSY %llu, QUERYs %llu, "
		"circuits opened %llu\n"
		"  datagrams: pages %llu, pads %llu, messages %llu of %.0f bytes; lost %llu, cut "
		"%llu, no room in a queue %llu, deepest queue %.0f us\n"
		"  wrong pages %llu, circles %llu\n",
		static_cast<double>(o.lone_ns) / 1e6, o.last_any, o.unfinished,
		static_cast<ull>(t.loads), static_cast<ull>(t.relays),
		static_cast<ull>(t.relays_refused), static_cast<ull>(t.relays_lost),
		static_cast<ull>(t.fell_to_storage), static_cast<ull>(t.redirects),
		static_cast<ull>(t.swaps), static_cast<ull>(t.attempts),
		static_cast<ull>(t.retries), static_cast<ull>(t.waits),
		static_cast<ull>(t.wait_timeouts), static_cast<ull>(t.busy),
		static_cast<ull>(t.queries), static_cast<ull>(t.peer_down),
		static_cast<ull>(o.net.pages), static_cast<ull>(o.net.pads),
		static_cast<ull>(o.net.letters),
		static_cast<double>(o.net.letter_bytes) /
			static_cast<double>(o.net.letters ? o.net.letters : 1),
		static_cast<ull>(o.net.lost), static_cast<ull>(o.net.cut),
		static_cast<ull>(o.net.overflow), static_cast<double>(o.net.deepest_ns) / 1000,
		static_cast<ull>(t.wrong), static_cast<ull>(t.circles));
	for (const std::string &each : t.notes)
		out += "  " + each + "\n";
	return out;
}

std::string json(const shape &s, const outcome &o)
{
	return text("{\"scenario\": \"%s\", \"nodes\": %u, \"files\": %u, \"units\": %u, "
		    "\"unit_pages\": %u, \"window\": %u, \"trees\": %u, \"arity\": %u, "
		    "\"coop\": %s, \"redirect\": %s, \"seed\": %llu, \"lone_ms\": %.4f, "
		    "\"copies\": %.5f, \"median\": %.4f, \"last\": %.4f, \"last_any\": %.4f, "
		    "\"sent_mean\": %.4f, \"sent_worst\": %.4f, \"longest_wait_ms\": %.3f, "
		    "\"messages_a_page\": %.3f, \"engine_bytes\": %llu, \"node_bytes\": %llu, "
		    "\"wall_s\": %.2f, \"cpu_s\": %.2f, \"events\": %llu, \"unfinished\": %u, "
		    "\"wrong\": %llu, "
		    "\"circles\": %llu, \"fell_to_storage\": %llu, \"relays\": %llu}",
		    s.scenario.c_str(), s.nodes, s.files, s.units, s.unit_pages, s.window, s.trees,
		    s.arity, s.coop ? "true" : "false", s.redirect ? "true" : "false",
		    static_cast<ull>(s.seed), static_cast<double>(o.lone_ns) / 1e6, o.copies,
		    o.median, o.last, o.last_any, o.sent_mean, o.sent_worst,
		    o.longest_wait_us / 1000, o.messages_a_page, static_cast<ull>(o.engine_bytes),
		    static_cast<ull>(o.node_bytes), o.wall_s, o.cpu_s, static_cast<ull>(o.events),
		    o.unfinished, static_cast<ull>(o.t.wrong), static_cast<ull>(o.t.circles),
		    static_cast<ull>(o.t.fell_to_storage), static_cast<ull>(o.t.relays));
}

} // namespace coop::scale
