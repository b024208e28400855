// SPDX-License-Identifier: MIT
// info.cpp - asks each process that has the device open; see info.hpp.
#include "userland/ntrdma/tool/info.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <set>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "userland/ntrdma/window/greeting.hpp"

namespace coop::ntrdma
{

namespace
{

constexpr int patience_ms = 2000;

/// Slots with a listener, from the kernel's list of UNIX sockets.
std::set<unsigned> slots_in_use()
{
	std::set<unsigned> found;
	std::string prefix = "@coop-ntrdma/" + std::to_string(geteuid()) + "/";
	std::ifstream list{"/proc/net/unix"};
	for (std::string line; std::getline(list, line);) {
		auto at = line.find(prefix);
		if (at == std::string::npos)
			continue;
		std::string rest = line.substr(at + prefix.size());
		if (!rest.empty() && rest.find_first_not_of("0123456789") == std::string::npos)
			found.insert(static_cast<unsigned>(std::stoul(rest)));
	}
	return found;
}

nlohmann::json ask(unsigned slot)
{
	unique_fd socket = call(slot_name(slot));
	if (!socket || !send_greeting(socket.get(), new_greeting(greeting_kind::ask), {}))
		return nullptr;
	pollfd p{socket.get(), POLLIN, 0};
	if (poll(&p, 1, patience_ms) != 1)
		return nullptr;
	std::string text(256 << 10, 0);
	ssize_t n = recv(socket.get(), text.data(), text.size(), MSG_DONTWAIT);
	if (n <= 0)
		return nullptr;
	text.resize(static_cast<std::size_t>(n));
	return nlohmann::json::parse(text, nullptr, false);
}

/// Calls add() as std::printf.
template <typename F> void add_ethernet(const nlohmann::json &p, F add)
{
	const auto &e = p["ethernet"];
	add("process %d (%s): Ethernet %s at %s\n", p.value("pid", 0),
	    p.value("program", "").c_str(), e.value("interface", "").c_str(),
	    e.value("path", "").c_str());
	add("  %-8s %7s %7s %10s %10s %9s %7s %6s %6s %7s %6s\n", "link", "process", "carrier",
	    "sent", "received", "in stream", "stops", "links", "lost", "refused", "down");
	add("  %-8s %7d %7s %10llu %10llu %9llu %7llu %6llu %6llu %7llu %6llu\n",
	    e.value("link", "").c_str(), e.value("peer_pid", 0),
	    e.value("carrier", false) ? "up" : "down", e.value("sent", 0ull),
	    e.value("received", 0ull), e["send"].value("outstanding_bytes", 0ull),
	    e.value("stops", 0ull), e.value("links", 0ull), e["errors"].value("lost", 0ull),
	    e["errors"].value("refused", 0ull), e["errors"].value("down", 0ull));
}

/// The same. What a queue pair of its type has not is "-".
template <typename F> void add_pair(const nlohmann::json &q, F add)
{
	bool datagrams = q.value("type", "") == "UD";
	unsigned receives = q["receive"].value("post", 0u) - q["receive"].value("cons", 0u);
	if (datagrams)
		return add("  %8u %-4s %-5s %8s %7s %-8s %-6s %-6s %9s %9u %10llu %10llu %6s %7llu "
			   "%6s\n",
			   q.value("number", 0u), "UD", q.value("state", "").c_str(), "-", "-", "-",
			   q.value("backend", "").c_str(), "-", "-", receives,
			   q.value("sent", 0ull), q.value("served", 0ull), "-",
			   q.value("dropped", 0ull), "-");
	add("  %8u %-4s %-5s %8u %7d %-8s %-6s %-6s %9u %9u %10llu %10llu %6llu %7s %6llu\n",
	    q.value("number", 0u), "RC", q.value("state", "").c_str(), q.value("peer", 0u),
	    q.value("peer_pid", 0), q.value("link", "").c_str(), q.value("backend", "").c_str(),
	    q.value("pulls", false) ? "pulled" : "copied",
	    q["send"].value("post", 0u) - q["send"].value("cons", 0u), receives,
	    q.value("sent", 0ull), q.value("served", 0ull), q.value("waits", 0ull), "-",
	    q.value("errors", 0ull));
}

} // namespace

std::vector<nlohmann::json> ask_all(std::vector<unsigned> *silent)
{
	std::vector<nlohmann::json> all;
	for (unsigned slot : slots_in_use()) {
		nlohmann::json one = ask(slot);
		if (one.is_object())
			all.push_back(std::move(one));
		else
			silent->push_back(slot);
	}
	return all;
}

std::string table_of(const std::vector<nlohmann::json> &all)
{
	std::string out;
	auto add = [&out](const char *form, auto... values) {
		std::array<char, 256> line;
		std::snprintf(line.data(), line.size(), form, values...);
		out += line.data();
	};
	for (const auto &p : all) {
		if (p.contains("ethernet")) {
			add_ethernet(p, add);
			continue;
		}
		add("process %d (%s): %zu queue pairs, %u regions\n", p.value("pid", 0),
		    p.value("program", "").c_str(), p["pairs"].size(), p.value("regions", 0u));
		if (p["pairs"].empty())
			continue;
		add("  %8s %-4s %-5s %8s %7s %-8s %-6s %-6s %9s %9s %10s %10s %6s %7s %6s\n", "QP",
		    "type", "state", "peer", "process", "link", "by", "large", "send ring",
		    "receives", "sent", "served", "waits", "dropped", "errors");
		for (const auto &q : p["pairs"])
			add_pair(q, add);
	}
	return out;
}

} // namespace coop::ntrdma
