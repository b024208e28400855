// SPDX-License-Identifier: MIT
// far_address.hpp - addresses of other hosts: how they are written.
#pragma once

#include <sys/socket.h>

#include "userland/ntrdma/stream/backend.hpp"

namespace coop::ntrdma::cm
{

/// IPv4 is mapped into IPv6.
ip_address ip_of(const sockaddr *);
/// The other way; IPv4 if it was that.
sockaddr_storage address_of(const ip_address &, std::uint16_t port);
bool is_loopback(const sockaddr *);
/// True if it is an address of one link alone, which no GID is.
bool is_link_local(const sockaddr *);
/// The own end's address of a connection.
ip_address own_ip(int socket);

} // namespace coop::ntrdma::cm
