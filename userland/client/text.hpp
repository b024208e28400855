// SPDX-License-Identifier: MIT
// text.hpp - the text files under .coopfs/ (in the kernel: /proc/fs/coopfs/<id>/).
//
// One record per line, `key value` pairs, for people, scripts and the command-line tool. Rendering
// takes a snapshot of each part; the figures of one part are consistent, those of different parts
// are not.
#pragma once

#include <string>
#include <string_view>

#include "userland/client/membership.hpp"
#include "userland/client/node.hpp"
#include "userland/client/page_store.hpp"
#include "userland/client/reader.hpp"
#include "userland/client/storage.hpp"

namespace coop::client
{

// In all of these node may be null: no peers. Context: any thread.

std::string stats_text(const reader &, const node *, const page_store &, const storage &,
		       const membership &, std::uint64_t written_again = 0);
// Effect of a write to 'stats': resets all counters that can be reset. The traffic of the storage
// connection counts from its start.
void stats_reset(reader &, node *);
std::string peers_text(const node *, const membership &);
// The node's own address, then every peer's.
std::string ibaddr_text(const node *);
// Adds a peer by hand. Returns 0, -EINVAL (malformed: no effect), -ENOSPC, or -EOPNOTSUPP without a
// node.
int ibaddr_write(node *, std::string_view line);
// The attribute coopfs.forest of a file: this node's place among those that have it open.
std::string forest_text(const membership &, const node *, const content_key &);
// Fetches, serves and storage calls in flight, one per line, with their age.
std::string requests_text(const node *, const storage &);

} // namespace coop::client
