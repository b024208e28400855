// SPDX-License-Identifier: MIT
// sockets.hpp - TCP sockets of the back end for other hosts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "userland/include/coop/unique_fd.hpp"

namespace coop::ntrdma
{

/// An IPv6 address in network order, or an IPv4 address mapped into it.
using ip_address = std::array<std::uint8_t, 16>;

/// Listens there. 0 or -errno.
int listen_tcp(const ip_address &, std::uint16_t port, unique_fd &out);
/// Begins to connect, from the address `own`. 0, then the socket can be written once it is
/// connected or has failed, or -errno.
int call_tcp(const ip_address &own, const ip_address &to, std::uint16_t port, unique_fd &out);
/// Of a socket that call_tcp() made, and that can be written: 0, -EAGAIN (it still connects) or the
/// reason why it does not.
int connected(int socket);
/// The next caller, and from where. 0, -EAGAIN or another -errno.
int accept_tcp(int listener, unique_fd &out, ip_address &from);

/// A text of known length that comes from a socket, as far as it has come.
template <std::size_t length> struct arriving_text {
	std::array<std::uint8_t, length> bytes{};
	std::size_t filled = 0;
};
/// Takes more of it, and nothing behind it. 1: it is whole, and `filled` is 0 again; 0: there is
/// more to come; -1: the peer hung up.
int take_text(int socket, std::span<std::uint8_t> bytes, std::size_t &filled);
/// Sends a whole text, where there must be room for it. 0 or -errno: there was none (ENOBUFS), or
/// the peer hung up, mostly.
int send_text(int socket, std::span<const std::uint8_t> bytes);

} // namespace coop::ntrdma
