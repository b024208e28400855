// SPDX-License-Identifier: MIT
// control.hpp - reads and writes a mount's control files, for example those under .coopfs/.
//
// One record per line. Unknown records and keys are ignored, so that an old program reads a new
// mount. A known but malformed record is an error that names its line, because a wrong figure is
// worse than none.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "userland/cli/result.hpp"

namespace coop::cli
{

// The source of the bytes that a reader got.
enum source : unsigned { buffer, peer, storage };
inline constexpr std::array<const char *, 3> source_name{"buffer", "peer", "storage"};

struct source_stats {
	std::uint64_t requests = 0, pages = 0, bytes = 0;
	// latency[i]: requests that took less than 2^i microseconds and are not counted below i.
	std::array<std::uint64_t, 32> latency{};
};

struct wire_stats {
	std::uint64_t rx_bytes = 0, tx_bytes = 0;
};

struct cache_stats {
	std::uint64_t capacity = 0, used = 0; // bytes
	std::uint64_t blocks = 0;
	std::optional<std::uint64_t> evicted; // none for the kernel's page cache
};

using counters = std::vector<std::pair<std::string, std::uint64_t>>; // in the order of the file

struct mount_stats {
	std::array<source_stats, 3> sources{};     // by enum source
	std::map<std::string, wire_stats> traffic; // peer, storage
	counters fetch, serve, endpoint;           // of the engine and its network
	counters read, storage_calls;              // of reads, and of the connection to the daemon
	counters lease;                            // requests answered from leases
	counters forest;                           // roles; gauges
	cache_stats cache;
};

// The records of counters, by the first word of their lines.
inline constexpr std::array<std::pair<const char *, counters mount_stats::*>, 7> counter_lists{{
	{"fetch", &mount_stats::fetch},
	{"serve", &mount_stats::serve},
	{"endpoint", &mount_stats::endpoint},
	{"read", &mount_stats::read},
	{"storage", &mount_stats::storage_calls},
	{"lease", &mount_stats::lease},
	{"forest", &mount_stats::forest},
}};

struct peer_record {
	std::string gid, lid, qpn; // as written; gid or lid is present
	std::string origin, state;
	std::uint64_t sl = 0;
	std::uint64_t srtt_us = 0, rttvar_us = 0;
	std::uint64_t fails = 0, in_flight = 0;
	std::uint64_t hits = 0, misses = 0, failures = 0, busy = 0;
	std::uint64_t rx_pages = 0, rx_bytes = 0, tx_pages = 0, tx_bytes = 0;
	std::uint64_t parent_trees = 0; // in which it is this node's parent

	std::string address() const; // "GID qpn N", for people
};

result<mount_stats> parse_stats(std::string_view text);
result<std::vector<peer_record>> parse_peers(std::string_view text);
std::map<std::string, std::string> parse_info(std::string_view text); // "key value" or "key=value"

std::uint64_t total_bytes(const mount_stats &);
// 0: not there.
std::uint64_t counter_of(const counters &, std::string_view name);

// The difference of two readings. A counter that decreased was reset in between: its later value is
// then the best known difference. Gauges (cache, forest) are the later
// ones.
mount_stats difference(const mount_stats &later, const mount_stats &earlier);

// Upper edge, in microseconds, of the histogram cell that contains the quantile (0 < q <= 1); 0 if
// nothing was counted.
std::uint64_t latency_quantile(const std::array<std::uint64_t, 32> &latency, double q);

// The control files of one mount. name: "stats", "peers", "ibaddr", ...
result<std::string> read_control(const std::string &mountpoint, const char *name);
result<done> write_control(const std::string &mountpoint, const char *name,
			   const std::string &text);

result<mount_stats> read_stats(const std::string &mountpoint);
result<std::vector<peer_record>> read_peers(const std::string &mountpoint);

} // namespace coop::cli
