// SPDX-License-Identifier: MIT
// base.hpp - conventions and names that all headers of the messaging library use.
//
// Errors are `int`: 0 or a negative errno value, and [[nodiscard]]. Only constructors throw
// (std::system_error, whose text gives the cause and the remedy). Lengths and offsets are in bytes;
// times are of the steady clock (CLOCK_MONOTONIC).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>

/// Marks symbols that programs may link to; the library hides all others.
#define COOP_NET_API __attribute__((visibility("default")))

/// The messaging library: domains, transfer machines, buffers, pools and end points.
namespace coop::net
{

/// The clock of all times and deadlines.
using clock = std::chrono::steady_clock;
/// A point in time of that clock.
using time_point = clock::time_point;

/// The deadline of an operation without time limit.
constexpr time_point never = time_point::max();

/// The six queues of a transfer machine. A buffer is on at most one of them.
/// @par Source
/// The network layer of Motr, which uses these names.
enum class queue_type : std::uint8_t {
	msg_recv,          ///< takes messages from any sender
	msg_send,          ///< sends a message to one end point
	passive_bulk_recv, ///< memory that the holder of its descriptor may write
	passive_bulk_send, ///< memory that the holder of its descriptor may read
	active_bulk_recv,  ///< reads the memory that a descriptor names
	active_bulk_send,  ///< writes the memory that a descriptor names
};

/// The priority of a message: a high one overtakes those of its sender that still wait, for a
/// connection, for room in it or for a window, but at most 16 in a row while others wait. Messages
/// are not ordered otherwise either.
enum class priority : std::uint8_t { normal, high };

constexpr std::size_t queue_types = 6; ///< number of queues of a transfer machine

/// The name as text: "MSG_RECV" and so on.
COOP_NET_API const char *name(queue_type) noexcept;

class buffer;
class buffer_pool;
class channel;
class domain;
class endpoint;
class transfer_machine;

/// Implementation; declared here so that handles can point to it.
namespace core
{
class buffer_state;
class domain_state;
class pool_state;
class machine;
class peers;
} // namespace core

} // namespace coop::net
