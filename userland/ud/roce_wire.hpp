// SPDX-License-Identifier: MIT
// roce_wire.hpp - the headers of an unreliable datagram in RoCE v2.
//
//	BTH 12 | DETH 8 | [ImmDt 4] | payload | pad 0..3 | ICRC 4
//
// as UDP payload to port 4791. Only the two opcodes of UD exist: SEND and SEND
// with immediate. Everything is big endian except the ICRC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <endian.h>

#include "userland/ud/icrc.hpp"

namespace coop::ud
{

constexpr std::uint8_t opcode_ud_send = 0x64;
constexpr std::uint8_t opcode_ud_send_imm = 0x65;
constexpr std::size_t deth_bytes = 8;
constexpr std::size_t head_plain = bth_bytes + deth_bytes;
constexpr std::size_t head_imm = head_plain + 4;
constexpr std::uint32_t qpn_mask = 0xffffff;
constexpr std::uint8_t solicited = 0x80; // in byte 1: the sender asks for an event

struct datagram_head {
	std::uint32_t dest_qp, src_qp;
	std::uint32_t qkey;
	std::uint32_t psn; // 24 bits
	std::uint32_t imm;
	bool has_imm;
	std::uint8_t pad; // 0..3
};

inline void put_be32(std::uint8_t *p, std::uint32_t v)
{
	v = htobe32(v);
	__builtin_memcpy(p, &v, 4);
}

inline std::uint32_t get_be32(const std::uint8_t *p)
{
	std::uint32_t v;
	__builtin_memcpy(&v, p, 4);
	return be32toh(v);
}

// Only the ICRC travels least significant byte first.
inline void put_icrc(std::uint8_t *p, std::uint32_t v)
{
	v = htole32(v);
	__builtin_memcpy(p, &v, 4);
}

inline std::uint32_t get_icrc(const std::uint8_t *p)
{
	std::uint32_t v;
	__builtin_memcpy(&v, p, 4);
	return le32toh(v);
}

constexpr std::size_t head_bytes(bool has_imm)
{
	return has_imm ? head_imm : head_plain;
}

constexpr std::uint8_t pad_bytes(std::size_t payload)
{
	return static_cast<std::uint8_t>(-payload & 3);
}

constexpr std::size_t datagram_bytes(std::size_t payload, bool has_imm)
{
	return head_bytes(has_imm) + payload + pad_bytes(payload) + icrc_bytes;
}

// Writes head_bytes(h.has_imm) bytes.
void encode_head(std::uint8_t *out, const datagram_head &h);

// in: 'available' bytes of a datagram of 'length'. Empty: not a valid datagram (opcode, version,
// partition, inconsistent lengths).
std::optional<datagram_head> decode_head(const std::uint8_t *in, std::size_t available,
					 std::size_t length);

} // namespace coop::ud
