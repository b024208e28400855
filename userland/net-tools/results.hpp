// SPDX-License-Identifier: MIT
// results.hpp - the figures of one measurement, as a line of text, as JSON and as a curve.
//
// MB are 10^6 bytes. The latency of a ping is half its round trip; that of a bulk transfer is the
// time from the offer of the memory to the event that the server has finished.
#pragma once

#include <nlohmann/json.hpp>

#include "plot.hpp"
#include "tasks.hpp"

namespace coop::net_tools
{

/// In microseconds.
struct percentiles {
	double least, p50, p90, p99, p999, most, mean;
};
/// From samples in ns, each divided by `share`. All 0 if there are none.
percentiles percentiles_of(std::vector<std::uint64_t> samples, double share);

/// One line of a table and one object of the JSON.
struct result {
	std::string what; ///< ping, bulk fetch, bulk fill, stream
	std::string mode; ///< of progress
	std::size_t size;
	unsigned depth = 1; ///< operations under way at a time
	std::uint64_t count;
	double seconds;
	std::optional<percentiles> latency;
	double mb_s, operations_s;
	double client_cpu_us;                ///< for each operation
	std::optional<double> server_cpu_us; ///< the same; none: client and server are one process
	std::optional<std::uint64_t> lost;   ///< stream
};

result result_of(const ping_task &, const settings &, bool one_process);
result result_of(const bulk_task &, command direction, const settings &, bool one_process);
result result_of(const stream_task &, std::size_t size, const settings &, bool one_process);

/// Heading and line; a new heading when `what` or `mode` changes.
std::string table_line(const result &, const result *before);
nlohmann::ordered_json to_json(const result &);
/// What went over a rail.
std::string rail_line(const net::rail_stats &);
/// Charts over size of the available results: latency of messages, of bulk transfers, bandwidth.
std::vector<chart> charts_of(const std::vector<result> &, const std::string &title);

} // namespace coop::net_tools
