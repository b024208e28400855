// SPDX-License-Identifier: MIT
// leased_storage.hpp - storage that answers from leases where it can.
//
// It implements the storage interface and wraps the connection. It answers what it knows
// (lease_book), forwards all other calls, and keeps what the replies say if the daemon granted a
// lease with them.
//
// A lease is trusted only for COOP_ST_LEASE_TRUST_MS after the last word from the daemon. After
// that we ping the daemon first: it may have stopped waiting for our answer to a recall.
//
// A file opened for reading within a lease is not opened at storage: we choose its open id, and
// tell storage when it needs to know: for a read there or a lock, before the lease is returned (so
// that the file lives until its last close), or when the file has been open for a second.
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
