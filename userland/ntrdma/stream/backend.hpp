// SPDX-License-Identifier: MIT
// backend.hpp - how this process reaches peers, as COOP_NTRDMA_BACKEND says.
#pragma once

#include "userland/ntrdma/stream/sockets.hpp"

namespace coop::ntrdma
{

/// Which queue pairs are linked by TCP.
enum class backend : std::uint8_t {
	window, // none: nothing listens
	tcp,    // all
	both,   // those whose peer has an address of another host
};

/// How TCP reaches a peer.
struct route {
	ip_address own, to;
};

/// Throws std::system_error if the environment has another word.
backend chosen_backend();

} // namespace coop::ntrdma
