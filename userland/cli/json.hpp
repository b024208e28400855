// SPDX-License-Identifier: MIT
// json.hpp - the tables in machine-readable form. Keys are those of the control files; byte counts
// are plain numbers of bytes.
#pragma once

#include <nlohmann/json.hpp>

#include "userland/cli/control.hpp"

namespace coop::cli
{

// {"sources": {"buffer": {"requests", "pages", "bytes", "share", "p50_us", "p99_us", "latency"},
// ...},
//  "traffic": {...}, "fetch": {...}, "serve": {...}, "endpoint": {...},
//  "read": {...}, "storage": {...}, "lease": {...}, "forest": {...}, "cache": {...}}
// share is null if no bytes were read; p50_us and p99_us are upper edges, null if none was counted.
nlohmann::ordered_json to_json(const mount_stats &);
nlohmann::ordered_json to_json(const peer_record &);
nlohmann::ordered_json to_json(const std::vector<peer_record> &);

// Bytes that are not UTF-8 (a path, a hostile file) are replaced; no exception.
std::string dump(const nlohmann::ordered_json &, int indent = -1);

} // namespace coop::cli
