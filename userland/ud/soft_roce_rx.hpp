// SPDX-License-Identifier: MIT
// soft_roce_rx.hpp - the receiving half of soft RoCE, without the socket.
//
// One recvmsg() brings a whole UDP_GRO batch: up to 64 KiB of equal datagrams of
// one flow, of which the last may be shorter. The kernel copies it once, and
// lay_out() makes that copy land in the right place: its iovec puts headers and
// ICRCs aside and the payloads into the receive WRs of the queue pair that the batch
// is probably for.
//
// deliver() then checks datagram by datagram. While they match the layout, they are
// complete in place. From the first mismatch on (other queue pair, other size,
// dropped for its ICRC), it copies the rest out and delivers it like any stream of
// bytes. Stray bytes in posted WRs do no harm: their memory belongs to the network
// until they complete.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <sys/uio.h>

#include "userland/ud/roce_wire.hpp"
#include "userland/ud/soft_roce_core.hpp"

namespace coop::ud
{

class receiver
{
public:
	explicit receiver(soft_roce_core &core);

	// The next packet is probably for one of these; call after posting WRs.
	void posted(queue_pair &qp);
	// Whether to peek at the packet first, which is cheaper than a wrong guess.
	bool should_peek() const { return surprise_ != 0; }
	// The iovec for the next packet, by a guess or by its first bytes. Valid until deliver().
	std::span<iovec> lay_out();
	std::span<iovec> lay_out(const std::uint8_t *head, std::size_t available,
				 std::size_t length, std::size_t segment);
	// 'length' bytes arrived there; segment: size of each datagram, 0: it is a single one.
	void deliver(const flow &from, std::size_t length, std::size_t segment);

private:
	static constexpr std::size_t largest_packet = 65536;
	static constexpr std::size_t side_bytes = 32; // per datagram: head, pad, ICRC
	static constexpr std::size_t max_iov = 320;
	static constexpr std::uint32_t max_planned = 64;
	static constexpr std::uint32_t bulk_payload = 1024;
	static constexpr std::uint8_t bulk_score_max = 8;
	static constexpr std::uint32_t surprise_max = 8;

	// The layout of the iovec: WRs [first, first + segments) of qp take one datagram each.
	struct plan {
		queue_pair *qp = nullptr;
		std::uint32_t first = 0, segments = 0;
		std::uint32_t payload = 0;
		bool imm = false;
		std::size_t stride = 0; // bytes of such a datagram
		std::size_t iov_count = 0;
	};

	enum class verdict { delivered, dropped, elsewhere };

	bool likely(const queue_pair &qp) const { return qp.posted() && qp.bulk_score; }
	queue_pair *guess();
	void judge_guess(bool bulk);
	std::span<iovec> lay_out_nothing();
	std::span<iovec> lay_out_for(queue_pair &qp, std::uint32_t payload, bool imm,
				     std::uint32_t segments);
	bool add_wr(const posted_recv &wr, std::uint32_t payload);
	const std::uint8_t *gather(std::size_t from, std::size_t length);

	void deliver_all(const flow &from, std::size_t length, std::size_t segment);
	verdict deliver_in_place(const flow &from, std::uint32_t k);
	void deliver_copy(const flow &from, const std::uint8_t *data, std::size_t length,
			  std::uint32_t k);
	bool icrc_right(std::uint32_t computed, std::uint32_t received, std::size_t length,
			std::uint16_t assumed_id, const flow &from, std::uint16_t &id);
	queue_pair *accept(const datagram_head &head);
	void complete(queue_pair &qp, const flow &from, const datagram_head &head,
		      std::size_t length, std::size_t payload, std::uint16_t id);
	void learn(queue_pair &qp, const datagram_head &head, std::size_t payload);

	soft_roce_core &core_;
	id_solver solver_;
	plan plan_;
	std::vector<queue_pair *> candidates_;
	queue_pair *last_bulk_ = nullptr;
	queue_pair *guessed_ = nullptr; // for the packet laid out
	std::uint32_t surprise_ = 2;    // packets to peek at before receiving them
	std::uint64_t posts_ = 0;
	std::array<iovec, max_iov> iov_;
	std::array<std::uint8_t, side_bytes *(max_planned + 1)> side_;
	std::vector<std::uint8_t> tail_, linear_;
};

} // namespace coop::ud
