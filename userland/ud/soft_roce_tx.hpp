// SPDX-License-Identifier: MIT
// soft_roce_tx.hpp - the sending half of soft RoCE.
//
// Equal datagrams of one post_send() become one UDP_SEGMENT super packet, which a
// shorter one may end, and all super packets go out with one sendmmsg(). The iovec
// points at the caller's pages; only heads, pads, ICRCs and small payloads are
// written, in wire order into a side buffer, so that adjacent ones take one entry.
//
// The kernel has copied everything when sendmmsg() returns, so a send completes when
// it is posted. So does a small one that may wait for others (send_wr::more): it is
// copied here, and leaves with them in one system call, mostly in one super packet.
// A datagram that the kernel refuses is lost as on a wire (counted in tx_errors); if
// the socket buffer is full, the sender waits, within a bound.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include <sys/socket.h>
#include <sys/uio.h>

#include "userland/ud/roce_lane.hpp"
#include "userland/ud/roce_socket.hpp"
#include "userland/ud/roce_wire.hpp"
#include "userland/ud/soft_roce_core.hpp"
#include "userland/ud/wire_simulator.hpp"

namespace coop::ud
{

class transmitter
{
public:
	transmitter(soft_roce_core &core, const roce_socket &socket, roce_lane &lane,
		    const wire_faults &faults);

	// Sends every WR that fits the MTU; the others vanish. 0, or -errno if this endpoint cannot
	// reach dst at all. Does not read the caller's memory after it returns.
	int send(queue_pair &qp, const address &dst, std::span<const send_wr> wrs);
	// Sends the datagrams that wait for more.
	void flush();
	// Sends what the wire simulator holds back.
	void settle();

private:
	static constexpr std::size_t max_messages = 32;
	static constexpr std::size_t max_iov = 512;
	static constexpr std::size_t max_super_bytes = 65000; // of UDP payload, either family
	static constexpr std::uint32_t max_segments = 64;     // the limit of older kernels
	static constexpr std::size_t side_bytes = 32768;
	static constexpr std::uint32_t inline_payload =
		256;                                   // up to here a copy is cheaper than an entry
	static constexpr std::size_t most_held = 8192; // payload bytes of a send that may wait

	struct message {
		std::size_t stride, length; // of the first datagram; of all
		std::uint32_t segments;
		std::size_t first_iov;
		bool has_imm, closed;
	};
	struct alignas(cmsghdr) segment_control {
		char bytes[CMSG_SPACE(sizeof(std::uint16_t))];
	};

	void append(queue_pair &qp, const address &dst, const send_wr &wr, std::size_t payload,
		    bool copied);
	message &place(std::size_t length, bool has_imm);
	void add(const void *data, std::size_t length);
	void send_batch();
	void set_header(std::size_t i);
	void address_headers(int fd);
	ssize_t send_one(int fd, const msghdr &);
	bool wait_writable(int fd);
	void send_singly(const message &);
	bool emit(const any_sockaddr &to, std::span<const std::uint8_t> datagram);

	soft_roce_core &core_;
	const roce_socket &socket_;
	roce_lane &lane_;
	wire_simulator wire_;
	bool segmenting_;
	flow flow_{};
	any_sockaddr to_{};
	bool reachable_ = false; // to_ is flow_.dst

	std::size_t n_messages_ = 0, n_iov_ = 0, side_used_ = 0;
	std::array<message, max_messages> messages_;
	std::array<mmsghdr, max_messages> headers_;
	std::array<segment_control, max_messages> control_;
	std::array<iovec, max_iov> iov_;
	std::vector<std::uint8_t> side_;
	std::vector<std::uint8_t> linear_; // for a message in one piece, on slow paths
};

} // namespace coop::ud
