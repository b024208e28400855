// SPDX-License-Identifier: MIT
// address.cpp - conversion of addresses between text and value.
//
// Every value has exactly one valid text, so addresses compare as their texts do; therefore a
// number with leading zeros is refused.
#include "coop/net/address.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace coop::net
{

namespace
{

constexpr struct {
	network net;
	const char *word;
} networks[] = {
	{network::tcp, "tcp"}, {network::o2ib, "o2ib"}, {network::lo, "lo"}, {network::kfi, "kfi"}};

constexpr std::array<std::uint8_t, 12> mapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

// A decimal number below `limit` that takes up all of `text`.
bool number(std::string_view text, std::uint32_t limit, std::uint32_t &out)
{
	const char *end = text.data() + text.size();
	if (text.empty() || (text[0] == '0' && text.size() > 1))
		return false;
	auto [p, e] = std::from_chars(text.data(), end, out);
	return e == std::errc() && p == end && out < limit;
}

bool number_or_any(std::string_view text, std::uint32_t limit, std::uint32_t &out)
{
	if (text == "*") {
		out = address::any;
		return true;
	}
	return number(text, limit, out);
}

bool network_word(std::string_view text, address &a)
{
	for (const auto &n : networks) {
		const std::string_view word = n.word;
		if (!text.starts_with(word))
			continue;
		std::uint32_t instance = 0;
		if (text.size() > word.size() && !number(text.substr(word.size()), 65536, instance))
			continue;
		a.net = n.net;
		a.instance = static_cast<std::uint16_t>(instance);
		return true;
	}
	return false;
}

bool ip_of(std::string_view text, int family, address &a)
{
	char copy[INET6_ADDRSTRLEN];
	if (text.size() >= sizeof(copy))
		return false;
	std::memcpy(copy, text.data(), text.size());
	copy[text.size()] = 0;
	if (family == AF_INET6)
		return inet_pton(AF_INET6, copy, a.ip.data()) == 1;
	std::copy(mapped.begin(), mapped.end(), a.ip.begin());
	return inet_pton(AF_INET, copy, a.ip.data() + mapped.size()) == 1;
}

// Splits `rest` at the first `c`: `head` before it, `rest` after it.
bool cut(std::string_view &rest, char c, std::string_view &head)
{
	const std::size_t at = rest.find(c);
	if (at == rest.npos)
		return false;
	head = rest.substr(0, at);
	rest.remove_prefix(at + 1);
	return true;
}

// NET:IP@PORT
bool parse_inet(std::string_view rest, address &a)
{
	std::string_view net;
	const int family = a.kind == address::form::inet ? AF_INET : AF_INET6;
	const std::size_t at = rest.rfind('@');
	return at != rest.npos && number_or_any(rest.substr(at + 1), address::ports, a.id) &&
	       a.id != 0 && cut(rest = rest.substr(0, at), ':', net) && network_word(net, a) &&
	       ip_of(rest, family, a);
}

// IP@NET:PID:portal:TMID
bool parse_lnet(std::string_view rest, address &a)
{
	std::string_view ip, net, pid, portal;
	std::uint32_t number_of_portal, number_of_pid;
	if (!cut(rest, '@', ip) || !cut(rest, ':', net) || !cut(rest, ':', pid) ||
	    !cut(rest, ':', portal))
		return false;
	if (!ip_of(ip, AF_INET, a) || !network_word(net, a) ||
	    !number(pid, address::pid + 1, number_of_pid) || number_of_pid != address::pid ||
	    !number(portal, address::portals, number_of_portal))
		return false;
	a.portal = static_cast<std::uint8_t>(number_of_portal);
	return number_or_any(rest, address::machines, a.id);
}

} // namespace

int parse(std::string_view text, address &out)
{
	address a;
	bool good;
	if (text.size() > address::text_max)
		return -EINVAL;
	if (text.starts_with("inet:")) {
		a.kind = address::form::inet;
		good = parse_inet(text.substr(5), a);
	} else if (text.starts_with("inet6:")) {
		a.kind = address::form::inet6;
		good = parse_inet(text.substr(6), a);
	} else {
		a.kind = address::form::lnet;
		good = parse_lnet(text, a);
	}
	if (!good)
		return -EINVAL;
	out = a;
	return 0;
}

std::string format(const address &a)
{
	char ip[INET6_ADDRSTRLEN] = "";
	if (a.kind == address::form::none)
		return {};
	if (a.kind == address::form::inet6)
		inet_ntop(AF_INET6, a.ip.data(), ip, sizeof(ip));
	else
		inet_ntop(AF_INET, a.ip.data() + mapped.size(), ip, sizeof(ip));

	std::string net, id = a.wildcard() ? "*" : std::to_string(a.id);
	for (const auto &n : networks)
		if (n.net == a.net)
			net = n.word;
	if (a.instance || a.net == network::o2ib)
		net += std::to_string(a.instance);

	if (a.kind == address::form::lnet)
		return std::string(ip) + '@' + net + ':' + std::to_string(address::pid) + ':' +
		       std::to_string(a.portal) + ':' + id;
	return (a.kind == address::form::inet ? "inet:" : "inet6:") + net + ':' + ip + '@' + id;
}

bool is_valid(const address &a) noexcept
{
	const bool known = std::any_of(std::begin(networks), std::end(networks),
				       [&](const auto &n) { return n.net == a.net; });
	const bool v4 = std::equal(mapped.begin(), mapped.end(), a.ip.begin());
	switch (a.kind) {
	case address::form::none:
		return false;
	case address::form::lnet:
		return known && v4 && a.portal < address::portals &&
		       (a.id < address::machines || a.wildcard());
	case address::form::inet:
	case address::form::inet6:
		return known && (v4 || a.kind == address::form::inet6) && a.portal == 0 &&
		       ((a.id > 0 && a.id < address::ports) || a.wildcard());
	}
	return false; // not an enumerator
}

std::uint64_t address::nid() const noexcept
{
	if (kind != form::lnet)
		return 0;
	return std::uint64_t(net) << 48 | std::uint64_t(instance) << 32 |
	       std::uint64_t(ip[12]) << 24 | std::uint64_t(ip[13]) << 16 |
	       std::uint64_t(ip[14]) << 8 | ip[15];
}

std::size_t hash(const address &a) noexcept
{
	std::uint64_t words[3] = {0, 0,
				  std::uint64_t(a.id) << 32 | std::uint64_t(a.instance) << 16 |
					  std::uint64_t(a.portal) << 8 | std::uint64_t(a.net) << 3 |
					  std::uint64_t(a.kind)};
	std::memcpy(words, a.ip.data(), 16);
	std::uint64_t h = 0;
	for (std::uint64_t w : words) { // MurmurHash3's finalizer, word by word
		h = (h ^ w) * 0xff51afd7ed558ccdull;
		h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53ull;
		h ^= h >> 33;
	}
	return static_cast<std::size_t>(h);
}

} // namespace coop::net
