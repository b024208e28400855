// SPDX-License-Identifier: MIT
// export_options.cpp - parsing of exports and networks, mapping of users.
#include "userland/daemon/export_options.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <charconv>
#include <cstring>
#include <stdexcept>

namespace coop::daemon
{

namespace
{

constexpr unsigned v4_prefix_bits = 96;

template <class number> bool parse_number(std::string_view text, number most, number &out)
{
	number n;
	const auto [end, err] = std::from_chars(text.data(), text.data() + text.size(), n);
	if (err != std::errc() || end != text.data() + text.size() || n > most)
		return false;
	out = n;
	return true;
}

bool is_v4(const network::address &a)
{
	static constexpr std::uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
	return !std::memcmp(a.data(), mapped, sizeof(mapped));
}

// Splits an option at its '='.
std::pair<std::string_view, std::string_view> split_value(std::string_view option)
{
	const std::size_t eq = option.find('=');
	if (eq == option.npos)
		return {option, {}};
	return {option.substr(0, eq), option.substr(eq + 1)};
}

bool takes_value(std::string_view option)
{
	return option == "anonuid" || option == "anongid" || option == "clients";
}

} // namespace

bool network::parse(const std::string &text, address &out)
{
	address a{};
	if (::inet_pton(AF_INET6, text.c_str(), a.data()) == 1) {
		out = a;
		return true;
	}
	a[10] = a[11] = 0xff;
	if (::inet_pton(AF_INET, text.c_str(), a.data() + 12) != 1)
		return false;
	out = a;
	return true;
}

network::network(std::string_view text)
{
	const std::size_t slash = text.find('/');
	const std::string at(text.substr(0, slash));
	const unsigned skipped = at.find(':') == at.npos ? v4_prefix_bits : 0;
	unsigned bits = 128 - skipped;
	if (!parse(at, at_) ||
	    (slash != text.npos && !parse_number(text.substr(slash + 1), bits, bits)))
		throw std::runtime_error("'" + std::string(text) +
					 "' is no network: give an IPv4 or IPv6 address, "
					 "or ADDRESS/BITS");
	bits_ = skipped + bits;
}

bool network::contains(const address &a) const
{
	if (is_v4(a) != is_v4(at_))
		return false;
	const unsigned whole = bits_ / 8, rest = bits_ % 8;
	if (std::memcmp(a.data(), at_.data(), whole) != 0)
		return false;
	return !rest || (a[whole] ^ at_[whole]) >> (8 - rest) == 0;
}

bool export_spec::admits(const std::string &address) const
{
	network::address a;
	return clients.empty() || (network::parse(address, a) &&
				   std::any_of(clients.begin(), clients.end(),
					       [&](const network &n) { return n.contains(a); }));
}

void export_spec::squash(coop_st_cred &c) const
{
	if (all_squash) {
		c.uid = anonuid;
		c.gid = anongid;
		c.n_groups = 0;
	} else if (root_squash) {
		if (c.uid == 0)
			c.uid = anonuid;
		if (c.gid == 0)
			c.gid = anongid;
		std::replace(c.groups, c.groups + c.n_groups, decltype(+c.groups[0]){0}, anongid);
	}
}

std::pair<std::string_view, std::string_view> split_export(std::string_view text)
{
	for (std::size_t at = 0, word = 0; at < text.size(); at++) {
		if (text[at] == ',')
			word = at + 1;
		else if (text[at] == '=' && !(word && takes_value(text.substr(word, at - word))))
			return {text.substr(0, at), text.substr(at + 1)};
		else if (text[at] == '=') // the value extends to the next comma, or to the path
			while (at + 1 < text.size() && text[at + 1] != ',' && text[at + 1] != '=')
				at++, word = at + 1;
	}
	return {text, {}};
}

export_spec parse_export(std::string_view name, std::string_view path)
{
	export_spec spec;
	std::string_view options = name;
	const auto next = [&options] {
		const std::size_t comma = options.find(',');
		const std::string_view word = options.substr(0, comma);
		options.remove_prefix(comma == options.npos ? options.size() : comma + 1);
		return word;
	};
	spec.name = next();
	if (spec.name.starts_with('/'))
		spec.name.erase(0, 1);
	spec.path = path;
	if (spec.name.empty() || spec.name.size() > COOP_ST_NAME_MAX || spec.path.empty())
		throw std::runtime_error("export '" + std::string(name) +
					 (spec.path.empty() ? "" : "=" + spec.path) +
					 "': give NAME[,OPTION]...=PATH");
	const auto id = [&](std::string_view option, std::string_view value, std::uint32_t &out) {
		// The greatest number means "no id" to the kernel.
		if (!parse_number<std::uint32_t>(value, UINT32_MAX - 1, out))
			throw std::runtime_error("export " + spec.name + ": " +
						 std::string(option) + "=" + std::string(value) +
						 ": give a numeric id");
	};
	while (!options.empty()) {
		const std::string_view word = next();
		const auto [option, value] = split_value(word);
		if (word == "dev" || word == "nodev")
			spec.devices = word == "dev";
		else if (word == "ro" || word == "rw")
			spec.read_only = word == "ro";
		else if (word == "root_squash" || word == "no_root_squash")
			spec.root_squash = word == "root_squash";
		else if (word == "all_squash" || word == "no_all_squash")
			spec.all_squash = word == "all_squash";
		else if (option == "anonuid")
			id(option, value, spec.anonuid);
		else if (option == "anongid")
			id(option, value, spec.anongid);
		else if (option == "clients")
			try {
				spec.clients.emplace_back(value);
			} catch (const std::runtime_error &e) {
				throw std::runtime_error("export " + spec.name +
							 ": clients: " + e.what());
			}
		else
			throw std::runtime_error(
				"export " + spec.name + ": unknown option '" + std::string(word) +
				"'; one of dev, nodev, ro, rw, root_squash, no_root_squash, "
				"all_squash, no_all_squash, anonuid=UID, anongid=GID, "
				"clients=NETWORK");
	}
	return spec;
}

} // namespace coop::daemon
