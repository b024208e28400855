// SPDX-License-Identifier: MIT
// parameters.cpp - the keys and values with which a domain is opened.
//
// An unknown key is probably misspelt: it is refused by name, with the known keys.
#include <cerrno>
#include <charconv>
#include <system_error>

#include "transport.hpp"

namespace coop::net::spi
{

namespace
{

[[noreturn]] void refused(const std::string &text)
{
	throw std::system_error(EINVAL, std::generic_category(), text);
}

} // namespace

parameter_values::parameter_values(std::string transport, std::span<const parameter> known,
				   const std::vector<std::pair<std::string, std::string>> &given) :
	transport_(std::move(transport))
{
	std::string keys;
	for (const parameter &p : known) {
		values_[p.key] = p.standard;
		keys += keys.empty() ? p.key : std::string(", ") + p.key;
	}
	std::map<std::string, std::string> seen;
	for (const auto &[key, value] : given) {
		if (!values_.count(key))
			refused("transport " + transport_ + " has no parameter '" + key +
				"'; there are: " + (keys.empty() ? "none" : keys));
		if (!seen.emplace(key, value).second)
			refused("parameter '" + key + "' of transport " + transport_ +
				" is given twice");
		values_[key] = value;
	}
}

const std::string &parameter_values::text(const std::string &key) const
{
	return values_.at(key);
}

std::uint64_t parameter_values::number(const std::string &key, std::uint64_t least,
				       std::uint64_t most) const
{
	const std::string &t = text(key);
	const char *end = t.data() + t.size();
	std::uint64_t v = 0;
	auto [p, e] = std::from_chars(t.data(), end, v);
	unsigned shift = 0;
	if (e == std::errc() && p + 1 == end) {
		shift = *p == 'k' ? 10 : *p == 'm' ? 20 : *p == 'g' ? 30 : 0;
		p += shift != 0;
	}
	if (e != std::errc() || p != end || v > most >> shift || v << shift < least)
		refuse(key, "must be a number from " + std::to_string(least) + " to " +
				    std::to_string(most));
	return v << shift;
}

void parameter_values::refuse(const std::string &key, const std::string &why) const
{
	refused("parameter '" + key + "' of transport " + transport_ + " is '" + text(key) +
		"'; it " + why);
}

} // namespace coop::net::spi
