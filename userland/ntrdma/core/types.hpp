// SPDX-License-Identifier: MIT
// types.hpp - what an application asks of the device, and what it gets back.
//
// The numbers of operations, statuses and access rights are those of <infiniband/verbs.h>, which
// verbs/ asserts, so that a request passes through the stand-in library without translation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace coop::ntrdma
{

/// Most scatter/gather segments of a request.
constexpr std::uint32_t max_segments = 8;
/// Most bytes of one message.
constexpr std::uint32_t max_message = 1u << 30;
/// Most requests of a queue; rounded up to a power of two inside.
constexpr std::uint32_t max_depth = 1u << 15;
/// Most bytes that a send may carry inline, copied when it is posted.
constexpr std::uint32_t max_inline = 1024;

enum class operation : std::uint8_t {
	write = 0,
	write_imm = 1,
	send = 2,
	send_imm = 3,
	read = 4,
	cmp_swap = 5,
	fetch_add = 6,
};

enum class status : std::uint32_t {
	success = 0,
	local_length = 1,      // a receive was too small for the message
	local_operation = 2,   // the request cannot be carried out
	local_protection = 4,  // lkey, bounds, PD or access of an own segment
	flushed = 5,           // the queue pair had failed before
	bad_response = 7,      // the peer broke the protocol
	remote_invalid = 9,    // the peer cannot carry out the request
	remote_access = 10,    // rkey, bounds, PD or access at the peer
	remote_operation = 11, // the peer failed meanwhile
	retry_exceeded = 12,   // the peer is gone, or does not answer
};

/// Access rights, of regions and of queue pairs.
enum access : std::uint32_t {
	local_write = 1,
	remote_write = 2,
	remote_read = 4,
	remote_atomic = 8,
};

/// Flags of a send request.
enum send_flag : std::uint8_t {
	fenced = 1,
	signalled = 2,
	solicited = 4,
	inlined = 8,
};

/// One piece of an application's memory, as in a request.
struct segment {
	std::uint64_t addr;
	std::uint32_t length; // bytes
	std::uint32_t lkey;
};

struct send_request {
	std::uint64_t id;
	operation op;
	std::uint8_t flags; // send_flag
	std::uint32_t imm;  // as the application gave it, never swapped
	std::uint64_t remote;
	std::uint32_t rkey;
	std::uint64_t compare_add, swap;
	std::uint32_t segments;
	std::array<segment, max_segments> at;
};

struct recv_request {
	std::uint64_t id;
	std::uint32_t segments;
	std::array<segment, max_segments> at;
};

/// Copies only the segments that there are.
inline void copy_request(recv_request &to, const recv_request &from)
{
	std::memcpy(&to, &from, offsetof(recv_request, at) + from.segments * sizeof(segment));
}

/// A completion, of either queue.
struct completion {
	std::uint64_t id;
	status result;
	operation op; // of a receive: send, send_imm or write_imm
	bool receive;
	std::uint32_t bytes;
	std::uint32_t imm; // valid if op has one
	std::uint32_t qp;  // own queue-pair number
	std::uint32_t peer;
};

inline bool has_imm(operation o)
{
	return o == operation::write_imm || o == operation::send_imm;
}
/// True if the request consumes a receive of the peer.
inline bool takes_receive(operation o)
{
	return o == operation::send || o == operation::send_imm || o == operation::write_imm;
}
/// True if the peer answers with data.
inline bool is_atomic(operation o)
{
	return o == operation::cmp_swap || o == operation::fetch_add;
}

} // namespace coop::ntrdma
