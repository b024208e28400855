// SPDX-License-Identifier: MIT
// options.cpp - what the parameters of a domain have in common for all transports on the wire of
// ud; see options.hpp.
#include "options.hpp"

#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "coop/cluster_key.hpp"
#include "identity.hpp"

namespace coop::net::ud
{

std::vector<std::string> read_rails(const spi::parameter_values &p, const options &o)
{
	std::vector<std::string> all;
	const std::string &text = p.text("rails");
	for (std::size_t at = 0, comma; !text.empty() && at <= text.size(); at = comma + 1) {
		comma = std::min(text.find(',', at), text.size());
		const std::string one = text.substr(at, comma - at);
		in_addr ip{};
		if (one.empty() || std::find(all.begin(), all.end(), one) != all.end() ||
		    one == o.device.device)
			p.refuse("rails", "names '" + one + "' twice, or nothing between commas");
		if (!o.verbs && ::inet_pton(AF_INET, one.c_str(), &ip) != 1)
			p.refuse("rails", "'" + one + "' is no IPv4 address");
		std::array<std::uint8_t, 16> mapped{};
		mapped[10] = mapped[11] = 0xff;
		std::memcpy(mapped.data() + 12, &ip, 4);
		if (!o.verbs && spi::check_own_ip(mapped))
			p.refuse("rails", "'" + one + "' is no address of this host");
		all.push_back(one);
	}
	if (all.size() >= most_rails)
		p.refuse("rails", "names more than " + std::to_string(most_rails - 1));
	return all;
}

void read_shared(const spi::parameter_values &p, const option_limits &most, options &o)
{
	const auto number = [&](const char *key, std::uint64_t from, std::uint64_t to) {
		return static_cast<std::uint32_t>(p.number(key, from, to));
	};
	if (!p.text("key").empty()) {
		try {
			o.key = fabric_key(load_cluster_key(p.text("key")));
		} catch (const std::runtime_error &e) {
			p.refuse("key", std::string("cannot be used: ") + e.what());
		}
	}
	o.seal = p.flag("seal");
	o.page_crc = p.flag("bulk_crc");
	o.max_message = p.number("max_message", 64, 8u << 20);
	o.max_operations = number("operations", 16, most.operations);
	o.peers = number("peers", 1, most.peers);
	o.window = number("window", 64, COOP_CHAN_WINDOW);
	if (o.window & (o.window - 1))
		p.refuse("window", "must be a power of two");
	o.fetches = number("fetches", 1, 32);
	o.serves = number("serves", 2, most.serves);
	o.patience_us = p.number("bulk_patience", 100, 3600000) * 1000;
	o.tries = number("tries", 2, 250);
	o.start_delay_us = p.number("test_start_delay", 0, 3600000) * 1000;
	o.fixed_seq = !p.text("test_first_seq").empty();
	if (o.fixed_seq)
		o.first_seq = number("test_first_seq", 0, ~0u);
}

void check_rail(const char *transport, const std::string &name,
		std::span<const std::uint8_t, 16> gid)
{
	if (!ipv4_of(gid))
		throw std::system_error(EINVAL, std::generic_category(),
					std::string(transport) + ": rails=" + name +
						": the device has no IPv4 address (no RoCE v2 GID "
						"of one), by which peers would find the rail");
}

int check_own(const address &own)
{
	if (own.kind != address::form::lnet)
		return -EINVAL;
	return spi::check_own_ip(own.ip);
}

domain_limits limits_of(const options &o, std::size_t longest)
{
	domain_limits l{};
	l.max_message = longest;
	l.max_buffer = std::size_t{1} << 32;
	l.max_segment = std::size_t{1} << 32;
	l.max_segments = 1024;
	l.max_descriptor = 0;
	l.max_queued = o.max_operations;
	return l;
}

} // namespace coop::net::ud
