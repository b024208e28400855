// SPDX-License-Identifier: MIT
// message.hpp - what two connection managers say, over a UNIX socket or over TCP.
//
// Each message has 264 bytes; all numbers are little-endian:
//
//	 0   4  magic, "ntcm"			17   1  initiator depth
//	 4   2  version				18   1  RNR retries
//	 6   2  kind				19   1  bytes of private data
//	 8   4  number of the queue pair	20 196  private data
//	12   4  reason				216  24  address of the sender
//	16   1  responder resources		240  24  address of the receiver
//
// An address is 16 bytes of IPv6, or of IPv4 mapped into it; 2 of the port; 2 of zeros; 4 of the
// scope.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <sys/socket.h>

#include "userland/ntrdma/stream/sockets.hpp"

namespace coop::ntrdma::cm
{

constexpr std::size_t private_most = 196;
constexpr std::size_t message_bytes = 264;

enum class kind : std::uint16_t {
	req = 1,
	rep,
	rtu,
	rej,
	dreq,
	find, // of datagrams: which queue pair serves the port
	found,
};

struct message {
	kind what;
	std::uint32_t qpn;
	std::uint32_t reason;
	std::uint8_t responder_resources, initiator_depth, rnr_retry, private_length;
	std::uint8_t data[private_most];
	sockaddr_storage from, to;
};

/// The part of a message that has come.
using message_text = arriving_text<message_bytes>;

/// A connection carries few of them, so there is room. 0 or -errno: the peer hung up, mostly.
int say(int socket, const message &);
/// 1 and the message; 0 if there is more to come; -1 if the peer hung up, or it is none.
int hear(int socket, message_text &, message &);

} // namespace coop::ntrdma::cm
