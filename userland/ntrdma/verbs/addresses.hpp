// SPDX-License-Identifier: MIT
// addresses.hpp - the GIDs of the device from 1 on: the IP addresses of this machine.
//
// As on a device, an address keeps its number for as long as it is there: programs keep numbers,
// and addresses come and go. The number of one that has gone is empty until another takes it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <netinet/in.h>

namespace coop::ntrdma::verbs
{

using gid_bytes = std::array<std::uint8_t, 16>;

gid_bytes gid_of(const in_addr &);
/// True of an IPv4 address.
bool is_v4(const gid_bytes &);
/// True of the GID of a number that no address has.
bool is_empty(const gid_bytes &);
std::string text_of(const gid_bytes &);

/// Addresses that datagrams can use, by number; some may be empty. Number 0, for which the device
/// has a GID of its own, is 127.0.0.1.
std::vector<gid_bytes> own_addresses();
/// Around fork(): no other thread is at the table, so that the child can use it.
void hold_addresses();
void let_addresses_go();

} // namespace coop::ntrdma::verbs
