// SPDX-License-Identifier: MIT
// leased_storage.hpp - storage that is not asked what this mount has a lease of.
//
// It stands before the connection and is storage itself: what is known
// (lease_book) is answered here, all else goes on, and what the replies tell is kept
// where the daemon gave a lease with them.
//
// A lease is relied on only for COOP_ST_LEASE_TRUST_MS after the daemon was heard:
// then it is asked whether it is there, for it would not wait for us any longer.
//
// A file that is opened for reading within a lease is not opened at storage: its
// number is chosen, and storage is told when it is needed there (a read that must
// go there, a lock), before the lease is returned, so that the file lives until its
// last close, or when it has been open for a second.
#pragma once

#include <memory>

#include "userland/client/storage.hpp"

namespace coop::client
{

// With leases, if options.leases.
std::unique_ptr<storage> connect_with_leases(storage_options);
// The connection itself.
std::unique_ptr<storage> connect_without_leases(const storage_options &);

} // namespace coop::client
