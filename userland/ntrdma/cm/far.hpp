// SPDX-License-Identifier: MIT
// far.hpp - addresses of other hosts: how they are written, and from where they are reached.
#pragma once

#include <infiniband/verbs.h>
#include <sys/socket.h>

#include "userland/ntrdma/node/backend.hpp"

namespace coop::ntrdma::cm
{

/// IPv4 is mapped into IPv6.
ip_address ip_of(const sockaddr *);
/// The other way; IPv4 if it was that.
sockaddr_storage address_of(const ip_address &, std::uint16_t port);
bool is_loopback(const sockaddr *);
/// True if it is an address of one link alone, which no GID is.
bool is_link_local(const sockaddr *);
/// The address from which this host sends to another, port 0. 0 or -errno.
int source_of(const sockaddr *to, sockaddr_storage *own);
/// The own end's address of a connection.
ip_address own_ip(int socket);
/// The device's GID that is this address; -1 if it has none.
int gid_index(ibv_context *, const ip_address &);

} // namespace coop::ntrdma::cm
