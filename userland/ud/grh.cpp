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

constexpr std::uint8_t usual_ttl = 64;

std::uint16_t header_checksum(const iphdr &header)
{
	std::uint16_t word[sizeof(header) / 2];
	std::memcpy(word, &header, sizeof(header));
	std::uint32_t sum = 0;
	for (const std::uint16_t w : word)
		sum += w;
	sum = (sum & 0xffff) + (sum >> 16);
	return static_cast<std::uint16_t>(~(sum + (sum >> 16)));
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
	iphdr h{};
	h.version = 4;
	h.ihl = sizeof(h) / 4;
	h.tot_len = htons(static_cast<std::uint16_t>(sizeof(h) + udp_length));
	h.id = htons(ip_id);
	h.frag_off = htons(IP_DF);
	h.ttl = usual_ttl;
	h.protocol = IPPROTO_UDP;
	std::memcpy(&h.saddr, f.src.data() + 12, 4);
	std::memcpy(&h.daddr, f.dst.data() + 12, 4);
	h.check = header_checksum(h);
	std::memset(out, 0, sizeof(ip6_hdr) - sizeof(h));
	std::memcpy(out + sizeof(ip6_hdr) - sizeof(h), &h, sizeof(h));
}

} // namespace coop::ud
