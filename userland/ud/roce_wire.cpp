// SPDX-License-Identifier: MIT
// roce_wire.cpp - encodes and decodes UD headers. decode_head() only checks that the
// lengths fit; the receiver checks the rest (ICRC, queue pair, Q_Key).
#include "userland/ud/roce_wire.hpp"

namespace coop::ud
{

namespace
{

constexpr std::uint8_t migrated = 0x40; // no alternate path is in use
constexpr std::uint8_t version_mask = 0x0f;
constexpr std::uint16_t default_partition = 0xffff;
constexpr std::uint16_t partition_mask = 0x7fff; // without the membership bit

} // namespace

void encode_head(std::uint8_t *out, const datagram_head &h)
{
	out[0] = h.has_imm ? opcode_ud_send_imm : opcode_ud_send;
	// Messages of coopfs request an event, data do not.
	out[1] = static_cast<std::uint8_t>((h.has_imm ? 0 : solicited) | migrated | h.pad << 4);
	out[2] = default_partition >> 8;
	out[3] = default_partition & 0xff;
	put_be32(out + 4, h.dest_qp & qpn_mask);
	put_be32(out + 8, h.psn & qpn_mask);
	put_be32(out + 12, h.qkey);
	put_be32(out + 16, h.src_qp & qpn_mask);
	if (h.has_imm)
		put_be32(out + head_plain, h.imm);
}

std::optional<datagram_head> decode_head(const std::uint8_t *in, std::size_t available,
					 std::size_t length)
{
	if (available < head_plain || length < head_plain + icrc_bytes)
		return std::nullopt;

	datagram_head h{};
	if (in[0] == opcode_ud_send_imm)
		h.has_imm = true;
	else if (in[0] != opcode_ud_send)
		return std::nullopt;
	if (in[1] & version_mask)
		return std::nullopt;
	if (((in[2] << 8 | in[3]) & partition_mask) != partition_mask)
		return std::nullopt;

	h.pad = (in[1] >> 4) & 3;
	const std::size_t head = head_bytes(h.has_imm);
	if (available < head || length % 4 || length < head + h.pad + icrc_bytes)
		return std::nullopt;

	h.dest_qp = get_be32(in + 4) & qpn_mask;
	h.psn = get_be32(in + 8) & qpn_mask;
	h.qkey = get_be32(in + 12);
	h.src_qp = get_be32(in + 16) & qpn_mask;
	if (h.has_imm)
		h.imm = get_be32(in + head_plain);
	return h;
}

} // namespace coop::ud
