// SPDX-License-Identifier: MIT
// roce_lane.hpp - a connected socket beside that of a soft RoCE endpoint, for its
// busiest peer.
//
// The kernel looks up a route for every datagram that leaves an unconnected socket,
// and another when it arrives: a tenth of the round trip of a short message. So a
// peer that gets many sends in a row gets its own socket, which has the endpoint's
// address and port, and to which the kernel then delivers the peer's datagrams. The
// lane lives while its owner polls, datagrams arrive and no call on it fails. An
// owner that sleeps waits for one descriptor, so the lane closes before, and opens
// again only after the owner has polled for a while: during a sleep other peers may
// send.
//
//	closed -> open -> leaving -> closed
//
// leaving: the socket is connected to an address from which nothing comes, and its
// contents are still to be read. A datagram that the kernel is about to add when the
// last look finds nothing is lost, as on any wire.
//
// The kernel counts the IPv4 identification of a connected socket's datagrams from
// an unknown number. Devices check it in the ICRC, soft RoCE does not: so there is a
// lane only between endpoints with their own UDP ports.
#pragma once

#include <chrono>
#include <cstdint>

#include "userland/ud/roce_socket.hpp"

namespace coop::ud
{

class roce_lane
{
public:
	explicit roce_lane(roce_socket &socket) : socket_(socket) {}
	~roce_lane() { close(); }
	roce_lane(const roce_lane &) = delete;
	roce_lane &operator=(const roce_lane &) = delete;

	bool is_open() const { return fd_ >= 0; }
	int fd() const { return fd_; }

	// From now on sends go to another peer.
	void turn(const any_sockaddr &to);
	// The socket for sends to that peer.
	int way() const { return usable_ ? fd_ : socket_.fd(); }
	// A send has gone to that peer.
	void sent();
	// The owner polls; the owner wants to sleep.
	void polled() { polls_ += polls_ < polls_awake; }
	void rest();

	// While open: poll the endpoint's own socket before the lane this time; the lane was empty,
	// so poll that socket too.
	bool others_due() const { return others_first_ || found_ >= found_a_turn; }
	bool others_overdue() const;
	void looked_at_others(bool found);
	// The lane has been polled. Closes it if it was leaving and is empty.
	void looked(bool found);
	// The lane has failed.
	void leave();

private:
	static constexpr std::uint32_t sends_in_a_row = 256;
	// After a failure, which may be the peer's, or a temporary lack of descriptors.
	static constexpr std::uint32_t sends_after_failure = 1u << 14;
	static constexpr std::uint32_t polls_awake = 256;
	static constexpr std::uint32_t empty_looks = 1u << 16;
	static constexpr std::uint32_t found_a_turn = 8; // polls of the lane per poll of the others
	static constexpr std::uint32_t others_at_first = 256;
	static constexpr std::chrono::microseconds others_every{100}; // while the lane is empty

	void close();

	roce_socket &socket_;
	any_sockaddr to_{}, peer_{}; // the destination of sends; the peer of the lane
	int fd_ = -1;
	bool usable_ = false; // open, not leaving, and to_ is peer_
	bool leaving_ = false;
	// Polls of the others still due, for datagrams that the peer sent before the lane opened.
	std::uint32_t others_first_ = 0;
	std::uint32_t alike_ = 0, needed_ = sends_in_a_row; // sends
	std::uint32_t polls_ = 0, empty_ = 0, found_ = 0;
	std::chrono::steady_clock::time_point others_at_{};
};

} // namespace coop::ud
