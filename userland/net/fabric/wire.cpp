// SPDX-License-Identifier: MIT
// wire.cpp - see wire.hpp.
#include "wire.hpp"

#include <cstring>
#include <endian.h>

namespace coop::net::fabric
{

namespace
{

constexpr std::uint32_t magic = 0x42464e43; // "CNFB"
constexpr std::uint8_t version = 3;
constexpr std::int32_t errno_most = 4095;
constexpr std::size_t address_size = 26;
// Features in the last byte of a greeting; further bits are for later releases.
constexpr std::uint8_t feature_lends = 1;

template <class integer> integer swap(integer v)
{
	if constexpr (sizeof(v) == 2)
		return static_cast<integer>(htole16(v));
	else if constexpr (sizeof(v) == 4)
		return static_cast<integer>(htole32(v));
	else if constexpr (sizeof(v) == 8)
		return static_cast<integer>(htole64(v));
	else
		return v;
}

class writer
{
public:
	explicit writer(std::byte *p) : p_(p) {}
	template <class integer> void put(integer v)
	{
		v = swap(v);
		std::memcpy(p_, &v, sizeof(v));
		p_ += sizeof(v);
	}
	void put(const address &a)
	{
		put(static_cast<std::uint8_t>(a.kind));
		put(a.portal);
		put(static_cast<std::uint16_t>(a.net));
		put(a.instance);
		put(a.id);
		std::memcpy(p_, a.ip.data(), a.ip.size());
		p_ += a.ip.size();
	}

private:
	std::byte *p_;
};

// The caller has checked the length.
class reader
{
public:
	explicit reader(std::span<const std::byte> s) : p_(s.data()) {}
	template <class integer> integer get()
	{
		integer v;
		std::memcpy(&v, p_, sizeof(v));
		p_ += sizeof(v);
		return swap(v);
	}
	address get_address()
	{
		address a;
		a.kind = static_cast<address::form>(get<std::uint8_t>());
		a.portal = get<std::uint8_t>();
		a.net = static_cast<network>(get<std::uint16_t>());
		a.instance = get<std::uint16_t>();
		a.id = get<std::uint32_t>();
		std::memcpy(a.ip.data(), p_, a.ip.size());
		p_ += a.ip.size();
		return a;
	}

private:
	const std::byte *p_;
};

// parse() of the address' text decides whether it is valid.
bool valid(const address &a)
{
	switch (a.kind) {
	case address::form::lnet:
	case address::form::inet:
	case address::form::inet6:
		break;
	default:
		return false;
	}
	address again;
	return !a.wildcard() && parse(format(a), again) == 0 && again == a;
}

} // namespace

std::size_t encode(const control &c, std::byte *out)
{
	writer w(out);
	w.put(static_cast<std::uint8_t>(c.verb));
	w.put(std::uint8_t(0));
	w.put(static_cast<std::uint16_t>(c.count));
	w.put(c.id);
	w.put(c.peer);
	w.put(c.status);
	w.put(c.length);
	w.put(c.token);
	w.put(c.key);
	if (c.ranged())
		w.put(c.offset);
	for (std::size_t n = 0; n < c.count; n++) {
		w.put(c.regions[n].address);
		w.put(c.regions[n].length);
		w.put(c.regions[n].key);
	}
	return control::fixed + (c.ranged() ? 8 : 0) + c.count * 24;
}

bool decode(std::span<const std::byte> text, control &out)
{
	if (text.size() < control::fixed)
		return false;
	reader r(text);
	const std::uint8_t verb = r.get<std::uint8_t>();
	r.get<std::uint8_t>();
	out.count = r.get<std::uint16_t>();
	if (verb >= control::verbs || out.count > control::regions_most)
		return false;
	out.verb = static_cast<enum control::verb>(verb);
	if (text.size() != control::fixed + (out.ranged() ? 8 : 0) + out.count * 24)
		return false;
	out.id = r.get<std::uint32_t>();
	out.peer = r.get<std::uint32_t>();
	out.status = r.get<std::int32_t>();
	out.length = r.get<std::uint64_t>();
	out.token = r.get<std::uint64_t>();
	out.key = r.get<std::uint64_t>();
	out.offset = out.ranged() ? r.get<std::uint64_t>() : 0;
	for (std::size_t n = 0; n < out.count; n++) {
		out.regions[n].address = r.get<std::uint64_t>();
		out.regions[n].length = r.get<std::uint64_t>();
		out.regions[n].key = r.get<std::uint64_t>();
	}
	return out.status <= 0 && out.status >= -errno_most;
}

std::uint64_t digest(const address &a)
{
	std::byte text[address_size];
	writer(text).put(a);
	std::uint64_t x = 0;
	for (std::byte b : text)
		x = (x ^ static_cast<std::uint64_t>(b)) * 0x9e3779b97f4a7c15ull, x ^= x >> 29;
	return x;
}

std::array<std::byte, hello::size> encode(const hello &h)
{
	std::array<std::byte, hello::size> text{};
	writer w(text.data());
	w.put(magic);
	w.put(version);
	w.put(h.from);
	w.put(h.to);
	w.put(h.link);
	w.put(h.cookie);
	w.put(h.window);
	w.put(h.eager);
	w.put(static_cast<std::uint8_t>(h.lends ? feature_lends : 0));
	return text;
}

bool decode(std::span<const std::byte> text, hello &out)
{
	if (text.size() < hello::least)
		return false;
	reader r(text);
	if (r.get<std::uint32_t>() != magic || r.get<std::uint8_t>() != version)
		return false;
	out.from = r.get_address();
	out.to = r.get<std::uint64_t>();
	out.link = r.get<std::uint32_t>();
	out.cookie = r.get<std::uint32_t>();
	out.window = r.get<std::uint16_t>();
	out.eager = r.get<std::uint32_t>();
	out.lends = text.size() >= hello::size && r.get<std::uint8_t>() & feature_lends;
	return valid(out.from) && out.link < word::links && out.window >= 2 && out.eager >= 64 &&
	       out.eager <= 1u << 24;
}

} // namespace coop::net::fabric
