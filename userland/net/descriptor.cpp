// SPDX-License-Identifier: MIT
// descriptor.cpp - see descriptor.hpp for the layout.
//
// Everything that decode() accepts is canonical: encode() makes the same bytes of it. After an
// error `out` may be partly written.
#include "descriptor.hpp"

#include <array>
#include <cerrno>
#include <cstring>

namespace coop::net::core
{

namespace
{

constexpr std::uint8_t version = 1;

constexpr std::array<std::uint32_t, 256> crc_table = [] {
	std::array<std::uint32_t, 256> t{};
	for (std::uint32_t i = 0; i < 256; i++) {
		std::uint32_t c = i;
		for (int bit = 0; bit < 8; bit++)
			c = c >> 1 ^ (c & 1 ? 0x82f63b78u : 0); // Castagnoli, reflected
		t[i] = c;
	}
	return t;
}();

std::uint32_t crc32c(const std::byte *p, std::size_t n)
{
	std::uint32_t c = ~0u;
	while (n--)
		c = c >> 8 ^ crc_table[(c ^ std::to_integer<std::uint32_t>(*p++)) & 0xff];
	return ~c;
}

template <class number> void put(std::byte *p, number v)
{
	for (std::size_t i = 0; i < sizeof(v); i++)
		p[i] = static_cast<std::byte>(v >> (8 * i));
}

template <class number> number get(const std::byte *p)
{
	number v = 0;
	for (std::size_t i = 0; i < sizeof(v); i++)
		v = static_cast<number>(v | std::to_integer<number>(p[i]) << (8 * i));
	return v;
}

} // namespace

std::uint32_t transport_id(std::string_view name)
{
	std::uint32_t h = 0x811c9dc5;
	for (char c : name)
		h = (h ^ static_cast<std::uint8_t>(c)) * 0x01000193;
	return h;
}

std::size_t encode(const descriptor &d, std::byte *out)
{
	const net::address &a = d.machine;
	put(out, version);
	put(out + 1, static_cast<std::uint8_t>((d.writable ? 1 : 0) | (d.reusable ? 2 : 0)));
	put(out + 2, static_cast<std::uint16_t>(d.part.size()));
	put(out + 4, d.transport);
	put(out + 8, d.size);
	put(out + 16, d.token);
	put(out + 24, d.key);
	put(out + 32, std::uint8_t(a.kind));
	put(out + 33, a.portal);
	put(out + 34, std::uint16_t(a.net));
	put(out + 36, a.instance);
	put(out + 38, std::uint16_t(0));
	put(out + 40, a.id);
	std::memcpy(out + 44, a.ip.data(), 16);
	if (!d.part.empty())
		std::memcpy(out + 60, d.part.data(), d.part.size());
	const std::size_t n = 60 + d.part.size();
	put(out + n, crc32c(out, n));
	return n + 4;
}

void seal(std::span<std::byte> text)
{
	if (text.size() >= 4)
		put(text.data() + text.size() - 4, crc32c(text.data(), text.size() - 4));
}

int decode(std::span<const std::byte> text, descriptor &out)
{
	const std::byte *p = text.data();
	if (text.size() < descriptor::fixed)
		return -EINVAL;
	const std::size_t part = get<std::uint16_t>(p + 2);
	if (text.size() != descriptor::fixed + part ||
	    get<std::uint32_t>(p + 60 + part) != crc32c(p, 60 + part) ||
	    get<std::uint8_t>(p) != version || get<std::uint8_t>(p + 1) > 3 ||
	    get<std::uint16_t>(p + 38) != 0)
		return -EINVAL;
	out.writable = (get<std::uint8_t>(p + 1) & 1) != 0;
	out.reusable = (get<std::uint8_t>(p + 1) & 2) != 0;
	out.transport = get<std::uint32_t>(p + 4);
	out.size = get<std::uint64_t>(p + 8);
	out.token = get<std::uint64_t>(p + 16);
	out.key = get<std::uint64_t>(p + 24);
	if (out.key == 0)
		return -EINVAL;
	net::address &a = out.machine;
	a.kind = static_cast<net::address::form>(get<std::uint8_t>(p + 32));
	a.portal = get<std::uint8_t>(p + 33);
	a.net = static_cast<network>(get<std::uint16_t>(p + 34));
	a.instance = get<std::uint16_t>(p + 36);
	a.id = get<std::uint32_t>(p + 40);
	std::memcpy(a.ip.data(), p + 44, 16);
	if (!is_valid(a) || a.wildcard())
		return -EINVAL;
	out.part = text.subspan(60, part);
	return 0;
}

} // namespace coop::net::core
