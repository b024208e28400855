// SPDX-License-Identifier: MIT
// advice.cpp - see advice.hpp.
#include "advice.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace coop::net_tools
{

namespace
{

constexpr char lnet_example[] = "10.0.0.1@tcp:12345:31:0";

// Quotes any text as one word of a shell command.
std::string shell_word(const std::string &s)
{
	if (std::all_of(s.begin(), s.end(), [](char c) {
		    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
			   (c >= '0' && c <= '9') || (c && std::strchr("._/@:=,+-", c));
	    }))
		return s;
	std::string q = "'";
	for (const char c : s)
		q += c == '\'' ? std::string("'\\''") : std::string(1, c);
	return q + "'";
}

// "fabric over tcp": must be the same on both sides before any message is understood.
std::string carrier(const net::domain &d)
{
	for (const net::domain_parameter &p : d.parameters())
		if (p.key == "provider")
			return d.transport() + " over " + p.value;
	return d.transport();
}

// What to compare if the other side runs but messages fail.
std::string agreement(const net::domain &d)
{
	std::string keys;
	for (const net::domain_parameter &p : d.parameters())
		if (p.both_sides)
			keys += (keys.empty() ? "" : ", ") + p.key + '=';
	return "both sides have to agree on -t" + (keys.empty() ? "" : " and of -o on " + keys);
}

// A server whose peer table is full does not answer: a hint.
std::string room(const net::domain &d)
{
	for (const net::domain_parameter &p : d.parameters())
		if (p.key == "peers" || p.key == "max_links")
			return "; a server with many clients may have no room for more (its `-o " +
			       p.key + "=`)";
	return {};
}

// A datagram is as long as both sides take, so one side is enough. A transport without mtu= sends
// what the port of its RDMA device takes.
std::string shorter_datagrams(const net::domain &d)
{
	for (const net::domain_parameter &p : d.parameters())
		if (p.key == "mtu")
			return "give one of the two sides, or both, a lower `-o mtu=` (" + p.value +
			       " here)";
	return "lower the MTU of the RDMA device of one of the two sides, or of both "
	       "(`ibv_devinfo` lists active_mtu; with RoCE it follows that of the network "
	       "interface, `ip link set INTERFACE mtu BYTES`), and start coopnet there again";
}

std::string serve_at(const std::string &peer, const net::domain &d)
{
	return '`' + command_line("serve", d, peer) + '`';
}

} // namespace

std::string command_line(const char *command, const net::domain &d, const std::string &address)
{
	std::string line = std::string("coopnet ") + command + " -t " + d.transport();
	for (const net::domain_parameter &p : d.parameters())
		if (p.both_sides && p.value != p.standard)
			line += " -o " + shell_word(p.key + '=' + p.value);
	return line + ' ' + shell_word(address);
}

std::string described(const net::domain &d)
{
	std::string text = "transport " + d.transport();
	bool strangers = true; // can reach it; else the kernel knows who a peer is
	for (const net::domain_parameter &p : d.parameters())
		strangers &= p.key != "backend" || p.value != "window";
	for (const net::domain_parameter &p : d.parameters()) {
		if (p.both_sides && p.value != p.standard)
			text += ", " + p.key + '=' + p.value;
		else if (p.key == "key" && strangers)
			text += ", no key";
	}
	return text;
}

std::string address_forms(const net::domain &d)
{
	const std::string lnet = "IP, or IP@tcp:12345:PORTAL:TMID (portal 0-63, TMID 0-4095), "
				 "for instance " +
				 std::string(lnet_example);
	const bool ports = d.transport() == "ntrdma" || d.transport() == "fabric";
	return ports ? lnet + "; or inet:tcp:IP@PORT or inet6:tcp:IPv6@PORT, for instance "
			      "inet6:tcp:fd00::1@3000"
		     : lnet;
}

std::string explain(int status, const std::string &peer, const net::domain &d)
{
	const std::string serve = serve_at(peer, d);
	switch (-status) {
	case ECONNREFUSED:
		return "no server at " + peer + " with transport " + carrier(d) +
		       " (connection refused); start " + serve +
		       " there, or if a server runs there, use the command in its second line: " +
		       agreement(d) + room(d);
	case EHOSTUNREACH:
	case ENETUNREACH:
		return peer +
		       " cannot be reached; check the address, the route and firewalls, and that " +
		       serve + " runs there: " + agreement(d);
	case EHOSTDOWN:
	case ETIMEDOUT:
		return peer + " does not answer; check whether " + serve +
		       " runs there: " + agreement(d) + room(d) +
		       "; or allow more time with --timeout";
	case ECOMM:
		return peer +
		       " answers, but long datagrams do not reach it; the path does not carry "
		       "them: " +
		       shorter_datagrams(d);
	case ECONNRESET:
		return peer + " has gone away; check why its " + serve + " ended";
	case ENOBUFS:
		return peer + " has no buffer for this (" + std::strerror(ENOBUFS) +
		       "); lower --size, or --depth of bulk and bench";
	case EMSGSIZE:
		return "a message was too long for " + peer +
		       " or for this side; lower --size, or give both sides a larger `-o "
		       "max_message=`" +
		       (d.transport() == "ud" ? " (half of window= times mtu= is a limit as well)"
			: d.transport() == "kernel"
				? " (half of window= times the active MTU is a limit as well)"
				: "");
	case EINVAL:
		return peer + " is no address that a machine of transport " + carrier(d) +
		       " can send to; it takes " + address_forms(d);
	case EFBIG:
		return peer +
		       " accepts no bulk transfer of this size; start its server with a larger "
		       "--max-bulk";
	case EPROTO:
	case EPROTONOSUPPORT:
		return peer + " and this side do not understand each other (" +
		       std::strerror(-status) +
		       "); install the same version of coopnet on both sides";
	case EBADMSG:
		return peer + " answered with wrong bytes; one side has another version of "
			      "coopnet, or the transport is broken";
	default:
		return peer + ": " + std::strerror(-status);
	}
}

std::string why_not_started(int status, const std::string &address, const net::domain &d)
{
	net::address a;
	switch (-status) {
	case EINVAL:
		if (net::parse(address, a) || a.kind == net::address::form::lnet)
			return "cannot start at " + address + ": " + std::strerror(EINVAL) +
			       "; one of the -o options is beyond what transport " + d.transport() +
			       " can do";
		return std::string("addresses that begin with ") +
		       (a.kind == net::address::form::inet ? "inet:" : "inet6:") +
		       " are not for transport " + carrier(d) + "; it takes " + address_forms(d);
	case EADDRINUSE:
		return address + " is in use; choose another TMID or port, or end the program that "
				 "has it";
	case EADDRNOTAVAIL:
		return "no number is free at " + address +
		       ", or no device of the transport has this IP; choose another portal or IP";
	case ENOENT:
		return address +
		       " is not an address of this host, or not of an RDMA device that the "
		       "transport needs; `ip address` lists the available ones";
	case ENODEV:
	case ENETDOWN:
		return "the RDMA device of " + described(d) +
		       " was removed or its port is down; `rdma link` lists the available ones";
	default:
		return "cannot start at " + address + ": " + std::strerror(-status);
	}
}

std::string why_lost(int status, const std::string &address, const net::domain &d)
{
	if (status != -ENODEV)
		return address + " has ended: " + std::strerror(-status);
	std::string device;
	for (const net::domain_parameter &p : d.parameters())
		if (p.key == "device")
			device = ' ' + p.value;
	// The module gives a machine up as well when the MTU of its port changes.
	const char *other = d.transport() == "kernel" ? ", or the MTU of its port has changed" : "";
	return address + " has ended: its RDMA device" + device + " was removed" + other +
	       "; `rdma link` lists the available ones";
}

std::string why_no_server(bool older, const std::string &peer, const net::domain &d)
{
	const std::string what =
		older ? peer + " answers messages, but no calls: its " + serve_at(peer, d) +
				" is of an older version of coopnet"
		      : "what runs at " + peer + " is no `coopnet serve` of this version";
	return what + "; install the same version of coopnet on both sides";
}

} // namespace coop::net_tools
