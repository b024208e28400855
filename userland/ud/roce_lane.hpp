// SPDX-License-Identifier: MIT
// roce_lane.hpp - a connected socket beside that of a soft RoCE endpoint, for the
// peer that it speaks with most.
//
// The kernel looks for a route of every datagram that leaves a socket that is not
// connected, and once more when it arrives: a tenth of the round trip of a short
// message. So a peer to whom many were sent in a row gets a socket of its own, which
// has the endpoint's address and port, and to which the kernel then gives what
// comes from there. It lives as long as its owner polls, something comes and nothing
// goes wrong with it. Who wants to sleep has one descriptor to wait for, so it goes
// before, and does not come again until its owner has polled for a while: others may
// send while one sleeps.
//
//	closed -> open -> leaving -> closed
//
// leaving: it is connected to where nothing comes from, and what it holds is still
// to be read. A datagram that the kernel was about to put there when the last look
// found nothing is lost, as on any wire.
//
// The kernel counts the IPv4 identification of a connected socket's datagrams from
// a number that nobody is told. Devices find it in the ICRC, soft RoCE does not: so
// there is a lane only between endpoints with UDP ports of their own.
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

	// What is sent goes to another peer than before, from now on.
	void turn(const any_sockaddr &to);
	// The socket for what goes to that peer.
	int way() const { return usable_ ? fd_ : socket_.fd(); }
	// Something went there.
	void sent();
	// The owner polls; it wants to sleep.
	void polled() { polls_ += polls_ < polls_awake; }
	void rest();

	// Open: the endpoint's own socket is to be looked at before it this time; it has been
	// empty, and the other is to be looked at as well.
	bool others_due() const { return others_first_ || found_ >= found_a_turn; }
	bool others_overdue() const;
	void looked_at_others(bool found);
	// The lane was looked at. It is closed after it if it was leaving and nothing is left.
	void looked(bool found);
	// It has failed.
	void leave();

private:
	static constexpr std::uint32_t sends_in_a_row = 256;
	// After a failure, which may be the peer's, or a lack of descriptors that passes.
	static constexpr std::uint32_t sends_after_failure = 1u << 14;
	static constexpr std::uint32_t polls_awake = 256;
	static constexpr std::uint32_t empty_looks = 1u << 16;
	static constexpr std::uint32_t found_a_turn = 8; // in the lane, for one look at the others
	static constexpr std::uint32_t others_at_first = 256;
	static constexpr std::chrono::microseconds others_every{100}; // while the lane is empty

	void close();

	roce_socket &socket_;
	any_sockaddr to_{}, peer_{}; // whom is sent to; whose the lane is
	int fd_ = -1;
	bool usable_ = false; // open, not leaving, and to_ is peer_
	bool leaving_ = false;
	// Looks at the others yet, for what the peer sent before the lane was there.
	std::uint32_t others_first_ = 0;
	std::uint32_t alike_ = 0, needed_ = sends_in_a_row; // sends
	std::uint32_t polls_ = 0, empty_ = 0, found_ = 0;
	std::chrono::steady_clock::time_point others_at_{};
};

} // namespace coop::ud
