// SPDX-License-Identifier: MIT
// grh.cpp - see grh.hpp.
#include "userland/ud/grh.hpp"

#include <cstring>

#include <arpa/inet.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <netinet/udp.h>

namespace coop::ud
{

namespace
{

constexpr std::uint32_t first_word = 0x4500; // version 4, five words, no type of service
constexpr std::uint8_t usual_ttl = 64;

std::uint32_t word(const std::uint8_t *p)
{
	return static_cast<std::uint32_t>(p[0] << 8 | p[1]);
}

void put16(std::uint8_t *p, std::uint32_t v)
{
	p[0] = static_cast<std::uint8_t>(v >> 8);
	p[1] = static_cast<std::uint8_t>(v);
}

// The header of RFC 791. Computes the checksum from the values, not from the written bytes: a load
// whose width differs from that of a recent store waits until the store reaches the cache.
void put_ipv4(std::uint8_t *out, const flow &f, std::uint32_t total, std::uint32_t id)
{
	const std::uint8_t *const src = f.src.data() + 12, *const dst = f.dst.data() + 12;
	std::uint32_t sum = first_word + total + id + IP_DF + (usual_ttl << 8 | IPPROTO_UDP);
	sum += word(src) + word(src + 2) + word(dst) + word(dst + 2);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = ~(sum + (sum >> 16));
	put16(out, first_word);
	put16(out + 2, total);
	put16(out + 4, id);
	put16(out + 6, IP_DF);
	out[8] = usual_ttl;
	out[9] = IPPROTO_UDP;
	put16(out + 10, sum);
	std::memcpy(out + 12, src, 4);
	std::memcpy(out + 16, dst, 4);
}

} // namespace

void write_grh(std::uint8_t *out, const flow &f, std::size_t udp_payload, std::uint16_t ip_id)
{
	const auto udp_length = static_cast<std::uint16_t>(sizeof(udphdr) + udp_payload);

	if (f.v6) {
		ip6_hdr h{};
		h.ip6_flow = htonl(6u << 28);
		h.ip6_plen = htons(udp_length);
		h.ip6_nxt = IPPROTO_UDP;
		h.ip6_hlim = usual_ttl;
		std::memcpy(&h.ip6_src, f.src.data(), 16);
		std::memcpy(&h.ip6_dst, f.dst.data(), 16);
		std::memcpy(out, &h, sizeof(h));
		return;
	}
	std::memset(out, 0, sizeof(ip6_hdr) - sizeof(iphdr));
	put_ipv4(out + sizeof(ip6_hdr) - sizeof(iphdr), f, sizeof(iphdr) + udp_length, ip_id);
}

} // namespace coop::ud
