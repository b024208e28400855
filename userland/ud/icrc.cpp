// SPDX-License-Identifier: MIT
// icrc.cpp - see icrc.hpp for the computation and why it is possible.
#include "userland/ud/icrc.hpp"

#include <cstring>

#include <isa-l/crc.h>

namespace coop::ud
{

namespace
{

constexpr std::size_t lrh_bytes = 8; // all ones where InfiniBand has its local route header
constexpr std::size_t ipv4_bytes = 20;
constexpr std::size_t ipv6_bytes = 40;
constexpr std::size_t udp_bytes = 8;
constexpr std::size_t id_offset = 4;       // of the identification in an IPv4 header
constexpr std::size_t masked_bth_byte = 4; // FECN, BECN and reserved bits
constexpr std::size_t largest_head = 64;

// Arithmetic in GF(2)[x] modulo the CRC's polynomial, reflected: bit 31 is x^0.
constexpr std::uint32_t polynomial = 0xedb88320u;
constexpr std::uint32_t one = 0x80000000u;

constexpr std::uint32_t times_x(std::uint32_t a)
{
	return (a >> 1) ^ ((a & 1) ? polynomial : 0);
}

constexpr std::uint32_t over_x(std::uint32_t a)
{
	return (a & one) ? ((a ^ polynomial) << 1) | 1 : a << 1;
}

constexpr std::uint32_t times(std::uint32_t a, std::uint32_t b)
{
	std::uint32_t product = 0;
	for (; a; a <<= 1) {
		if (a & one)
			product ^= b;
		b = times_x(b);
	}
	return product;
}

// x^(8 * 2^i) and x^(-8 * 2^i): a shift by n bytes is a product over the bits of n.
struct power_table {
	std::uint32_t up[17], down[17];
};

constexpr power_table make_powers()
{
	power_table t{};
	std::uint32_t up = one, down = one;
	for (int i = 0; i < 8; i++) {
		up = times_x(up);
		down = over_x(down);
	}
	for (int i = 0; i < 17; i++) {
		t.up[i] = up;
		t.down[i] = down;
		up = times(up, up);
		down = times(down, down);
	}
	return t;
}

constexpr power_table powers = make_powers();

std::uint32_t shift(std::uint32_t a, const std::uint32_t *table, std::size_t bytes)
{
	for (int i = 0; bytes; i++, bytes >>= 1)
		if (bytes & 1)
			a = times(a, table[i]);
	return a;
}

// The number of bytes between the identification and the ICRC.
std::size_t bytes_behind_id(std::size_t udp_payload)
{
	return ipv4_bytes - id_offset - 2 + udp_bytes + udp_payload - icrc_bytes;
}

void put16(std::uint8_t *p, std::size_t v)
{
	p[0] = static_cast<std::uint8_t>(v >> 8);
	p[1] = static_cast<std::uint8_t>(v);
}

std::uint8_t *put_ipv4(std::uint8_t *p, const flow &f, std::size_t udp_length, std::uint16_t ip_id)
{
	p[0] = 0x45;
	p[1] = 0xff; // type of service
	put16(p + 2, ipv4_bytes + udp_length);
	put16(p + id_offset, ip_id);
	put16(p + 6, 0x4000); // DF
	p[8] = 0xff;          // time to live
	p[9] = 17;
	p[10] = p[11] = 0xff; // checksum
	std::memcpy(p + 12, f.src.data() + 12, 4);
	std::memcpy(p + 16, f.dst.data() + 12, 4);
	return p + ipv4_bytes;
}

std::uint8_t *put_ipv6(std::uint8_t *p, const flow &f, std::size_t udp_length)
{
	p[0] = 0x6f; // version; traffic class and flow label masked
	p[1] = p[2] = p[3] = 0xff;
	put16(p + 4, udp_length);
	p[6] = 17;
	p[7] = 0xff; // hop limit
	std::memcpy(p + 8, f.src.data(), 16);
	std::memcpy(p + 24, f.dst.data(), 16);
	return p + ipv6_bytes;
}

} // namespace

std::uint32_t crc32(std::uint32_t crc, const void *data, std::size_t length)
{
	// The library only reads, but its prototype lacks a const.
	return crc32_gzip_refl(crc, static_cast<unsigned char *>(const_cast<void *>(data)), length);
}

std::uint32_t icrc_begin(const flow &f, std::size_t udp_payload, std::uint16_t ip_id,
			 const std::uint8_t *head, std::size_t head_length)
{
	std::uint8_t pseudo[lrh_bytes + ipv6_bytes + udp_bytes + largest_head];
	const std::size_t udp_length = udp_bytes + udp_payload;

	std::memset(pseudo, 0xff, lrh_bytes);
	std::uint8_t *p = pseudo + lrh_bytes;
	p = f.v6 ? put_ipv6(p, f, udp_length) : put_ipv4(p, f, udp_length, ip_id);
	put16(p, f.src_port);
	put16(p + 2, f.dst_port);
	put16(p + 4, udp_length);
	p[6] = p[7] = 0xff; // checksum
	p += udp_bytes;

	const std::size_t taken = head_length < largest_head ? head_length : largest_head;
	std::memcpy(p, head, taken);
	p[masked_bth_byte] = 0xff;
	const std::uint32_t crc = crc32(0, pseudo, static_cast<std::size_t>(p - pseudo) + taken);
	return taken == head_length ? crc : crc32(crc, head + taken, head_length - taken);
}

std::uint32_t icrc_of_id(std::uint16_t ip_id, std::size_t udp_payload)
{
	// A message polynomial enters the register multiplied by x^32; reflected, the first byte
	// is the low one and its lowest bit the highest power.
	const std::uint32_t wire = (ip_id >> 8) | (ip_id & 0xffu) << 8;
	std::uint32_t r = wire;
	for (int i = 0; i < 16; i++)
		r = times_x(r);
	return shift(r, powers.up, bytes_behind_id(udp_payload));
}

std::optional<std::uint16_t> id_solver::solve(std::uint32_t syndrome, std::size_t udp_payload)
{
	if (udp_payload != length_) {
		divisor_ = one;
		for (int i = 0; i < 16; i++)
			divisor_ = over_x(divisor_);
		divisor_ = shift(divisor_, powers.down, bytes_behind_id(udp_payload));
		length_ = udp_payload;
	}
	const std::uint32_t r = times(syndrome, divisor_);
	if (r >> 16)
		return std::nullopt;
	return static_cast<std::uint16_t>((r & 0xff) << 8 | r >> 8);
}

} // namespace coop::ud
