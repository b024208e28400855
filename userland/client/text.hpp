// SPDX-License-Identifier: MIT
// text.hpp - the text files under .coopfs/ (in the kernel: /proc/fs/coopfs/<id>/).
//
// One record a line, `key value` pairs, so that a person, a script and the
// command-line tool read the same. Rendering takes a snapshot of each part; the
// figures of one text are of one moment for a part, not across parts.
#pragma once

#include <string>
#include <string_view>

#include "userland/client/node.hpp"
#include "userland/client/page_store.hpp"
#include "userland/client/reader.hpp"
#include "userland/client/storage.hpp"

namespace coop::client
{

// In all of these the node may be null: no peers. Context: any thread.

std::string stats_text(const reader &, const node *, const page_store &, const storage &,
		       std::uint64_t written_again = 0);
// What writing to 'stats' does: everything that can be counted anew is. The traffic of
// the storage connection counts from its start.
void stats_reset(reader &, node *);
std::string peers_text(const node *);
// Own address, then every peer's.
std::string ibaddr_text(const node *);
// Registers a peer by hand. 0, -EINVAL (malformed: nothing was done), -ENOSPC, or
// -EOPNOTSUPP without a node.
int ibaddr_write(node *, std::string_view line);
// Fetches, serves and calls of the daemon in flight, one a line, with their age.
std::string requests_text(const node *, const storage &);

} // namespace coop::client
