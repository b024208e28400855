// SPDX-License-Identifier: MIT
// icrc.hpp - the invariant CRC of RoCE v2, from a UDP socket's point of view.
//
// The ICRC covers the IP header, of which a UDP socket sees almost nothing. All
// fields can be reconstructed except the identification of an IPv4 header. (IPv6
// has no such field.)
//
// Sending: an unconnected socket that sets DF sends identification 0, and a
// UDP_SEGMENT super packet leaves with 0, 1, 2, ... in its segments. The sender
// computes exactly that, so that strict receivers accept it.
//
// Receiving: a CRC is linear. The difference between the ICRC computed with
// identification 0 and the received one is the identification's own
// contribution, shifted by the number of bytes that follow it. Dividing by that
// power of x must give a polynomial with bits in the identification only. This
// finds any sender's identification, at the price of 16 of the 32 bits: a
// corrupted packet passes with probability 2^-16 instead of 2^-32, after the
// checks of the link and the UDP checksum. Expected identifications (the segment
// number in a GRO batch) are tried first: that is free, and succeeds for all but
// foreign senders.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace coop::ud
{

// CRC32 (IEEE 802.3, reflected), zlib's convention: start with 0, chain the result.
std::uint32_t crc32(std::uint32_t crc, const void *data, std::size_t length);

constexpr std::uint16_t roce_port = 4791;

// Two ends of a UDP flow, both of one family.
struct flow {
	std::array<std::uint8_t, 16> src, dst; // IPv4: mapped
	std::uint16_t src_port;                // host byte order
	bool v6;
	std::uint16_t dst_port = roce_port;
};

constexpr std::size_t bth_bytes = 12;
constexpr std::size_t icrc_bytes = 4;

// CRC over the masked IP and UDP headers and 'head', which starts with a BTH (this masks its
// byte). udp_payload: bytes from BTH to ICRC, both included. Chain with crc32() over the rest up
// to the ICRC.
std::uint32_t icrc_begin(const flow &, std::size_t udp_payload, std::uint16_t ip_id,
			 const std::uint8_t *head, std::size_t head_length);

// The contribution (xor) of an identification to the CRC of a packet with a UDP payload of this
// length.
std::uint32_t icrc_of_id(std::uint16_t ip_id, std::size_t udp_payload);

// Finds the IPv4 identification that explains a wrong ICRC. Caches the divisor of the last
// length, because a flow has one or two.
class id_solver
{
public:
	// syndrome: (ICRC computed with identification 0) ^ (ICRC received).
	std::optional<std::uint16_t> solve(std::uint32_t syndrome, std::size_t udp_payload);

private:
	std::size_t length_ = 0;
	std::uint32_t divisor_ = 0;
};

} // namespace coop::ud
