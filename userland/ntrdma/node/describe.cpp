// SPDX-License-Identifier: MIT
// describe.cpp - what `coop-verbs info` shows of this process, as JSON, and what it says on stderr.
#include <cstdio>
#include <cstring>

#include <arpa/inet.h>
#include <unistd.h>

#include "userland/ntrdma/node/node.hpp"

namespace coop::ntrdma
{

namespace
{

constexpr std::size_t text_most = 128 << 10; // a datagram of a UNIX socket holds that
constexpr std::size_t told_most = 64;        // peers: others on the network may claim to be many

std::string program_name()
{
	char name[64] = "";
	if (std::FILE *f = std::fopen("/proc/self/comm", "r")) {
		if (!std::fgets(name, sizeof(name), f))
			name[0] = 0;
		std::fclose(f);
	}
	std::string out;
	for (const char *c = name; *c; c++)
		if (*c >= ' ' && *c != '"' && *c != '\\')
			out += *c;
	return out;
}

/// Of the peer, if TCP reaches it.
std::string address_of(const member &m)
{
	return m.by_tcp ? text_of(m.by_tcp->to) : "";
}

std::string describe_datagrams(const member &m)
{
	char text[512];
	const datagram_figures &d = *m.datagrams;
	std::snprintf(text, sizeof(text),
		      "{\"number\":%u,\"type\":\"UD\",\"state\":\"%s\",\"backend\":\"udp\","
		      "\"receive\":{\"post\":%u,\"cons\":%u},\"sent\":%llu,\"served\":%llu,"
		      "\"dropped\":%llu}",
		      m.pair->options().number, text_of(d.state), d.posted, d.taken,
		      static_cast<unsigned long long>(d.sent),
		      static_cast<unsigned long long>(d.received),
		      static_cast<unsigned long long>(d.dropped));
	return text;
}

std::string describe(const member &m)
{
	if (m.datagrams)
		return describe_datagrams(m);
	char text[1024];
	const queue_pair &p = *m.pair;
	auto r = p.rings();
	const pair_counts &c = p.counts();
	std::snprintf(text, sizeof(text),
		      "{\"number\":%u,\"type\":\"RC\",\"state\":\"%s\",\"peer\":%u,\"peer_pid\":%d,"
		      "\"link\":\"%s\","
		      "\"backend\":\"%s\",\"address\":\"%s\",\"pulls\":%s,\"send\":{\"post\":%u,"
		      "\"prod\":%u,\"cons\":%u,\"cmpl\":%u},"
		      "\"receive\":{\"post\":%u,\"cons\":%u},\"credits\":%d,\"sent\":%llu,"
		      "\"sent_bytes\":%llu,\"served\":%llu,\"served_bytes\":%llu,\"pulled\":%llu,"
		      "\"streamed\":%llu,\"waits\":%llu,\"errors\":%llu}",
		      p.options().number, text_of(p.state()), p.peer, m.peer, text_of(m.stage),
		      m.by_tcp ? "tcp" : "window", address_of(m).c_str(),
		      m.port && m.port->can_pull() ? "true" : "false", r.post, r.prod, r.cons,
		      r.cmpl, r.recv_post, r.recv_cons, static_cast<int>(p.credits()),
		      static_cast<unsigned long long>(c.sent),
		      static_cast<unsigned long long>(c.sent_bytes),
		      static_cast<unsigned long long>(c.served),
		      static_cast<unsigned long long>(c.served_bytes),
		      static_cast<unsigned long long>(c.pulled),
		      static_cast<unsigned long long>(c.streamed),
		      static_cast<unsigned long long>(c.waits),
		      static_cast<unsigned long long>(c.errors));
	return text;
}

} // namespace

std::string text_of(const ip_address &address)
{
	char text[INET6_ADDRSTRLEN] = "";
	in6_addr ip;
	std::memcpy(&ip, address.data(), sizeof(ip));
	bool v4 = IN6_IS_ADDR_V4MAPPED(&ip);
	inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? &ip.s6_addr[12] : &ip.s6_addr[0], text,
		  sizeof(text));
	return text;
}

/// A link that cannot come up is tried again and again, so each peer is named only once.
void node::tell_of_version(const std::string &peer)
{
	if (told_of_.size() < told_most && told_of_.insert(peer).second)
		std::fprintf(stderr,
			     "coop-verbs: %s has coop-verbs of another version, so no queue pair "
			     "is linked with it: use the same on both sides\n",
			     peer.c_str());
}

std::string node::describe() const
{
	std::string out = "{\"pid\":" + std::to_string(getpid()) + ",\"program\":\"" +
			  program_name() + "\",\"slot\":" + std::to_string(slot_) +
			  ",\"regions\":" + std::to_string(regions_.size()) +
			  ",\"bound_ms\":" + std::to_string(bound_.count()) + ",\"pairs\":[";
	std::size_t shown = 0;
	for (const auto &[number, m] : members_) {
		std::string one = ntrdma::describe(*m);
		if (out.size() + one.size() > text_most)
			break;
		out += (shown++ ? "," : "") + one;
	}
	return out + "],\"not_shown\":" + std::to_string(members_.size() - shown) + "}\n";
}

} // namespace coop::ntrdma
