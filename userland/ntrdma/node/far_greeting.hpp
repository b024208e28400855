// SPDX-License-Identifier: MIT
// far_greeting.hpp - what two processes of different hosts say before their link is up.
//
//	caller			called
//	HELLO  ->
//			    <-	WELCOME
//	START  ->			the link is up
//
// Each has 56 bytes; all numbers are little-endian:
//
//	 0  4  magic, "ntrt"		12  4  number of the sender's queue pair
//	 4  2  version			16  4  number of the receiver's
//	 6  2  kind			20 16  address of the sender
//	 8  4  layout			36 16  address of the receiver
//					52  4  zero
//
// A called process whose queue pair is not ready keeps the HELLO for the bound. To all else that
// does not fit it hangs up, and the caller tries again. One of another version or layout gets
// REFUSE before, so that both sides can say why their link does not come up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "userland/ntrdma/stream/sockets.hpp"

namespace coop::ntrdma
{

enum class far_kind : std::uint16_t { hello = 1, welcome, start, refuse };

struct far_greeting {
	far_kind kind = far_kind::hello;
	std::uint32_t from = 0, to = 0; // queue-pair numbers
	ip_address own{}, peer{};       // of the sender, of the receiver
};

constexpr std::size_t far_greeting_bytes = 56;

/// The part of a greeting that has come.
using far_text = arriving_text<far_greeting_bytes>;

/// Only at the begin of a connection, where there is room for it. False: it is lost.
bool send_greeting(int socket, const far_greeting &);
/// 1 and the greeting, and nothing behind it was read; 0 if there is more to come; -1 if the peer
/// hung up or sent something else; -EPROTO if the greeting is of another version or layout.
int receive_greeting(int socket, far_text &, far_greeting &);

} // namespace coop::ntrdma
