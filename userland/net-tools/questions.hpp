// SPDX-License-Identifier: MIT
// questions.hpp - what coopnet asks `coopnet serve`, by calls.
//
// Calls (coop/net/rpc.hpp) carry everything of the protocol that is not measured. They go through
// the machines that are measured, so there is one address, one port and one set of rights. While
// what is measured arrives, nothing of them is at work, except that the thread of deadlines wakes
// once, `probe` after the question before. Arguments and results are little-endian.
#pragma once

#include "coop/net/rpc.hpp"
#include "wire.hpp"

namespace coop::net_tools
{

/// Of all calls and of the messages in wire.hpp. 1 had no calls.
constexpr std::uint64_t protocol = 2;

enum method : std::uint32_t {
	tell = 1, ///< argument: the run, 2 bytes; result: `figures`
};

/// Counters and limits of the server's process.
struct figures {
	static constexpr std::size_t size = 56;

	std::uint64_t instance;    ///< of the server's process, chosen at random, not 0
	std::uint64_t counted;     ///< `count` messages of this run, modulo 2^32
	std::uint64_t cpu_us;      ///< processor time, user and system
	std::uint64_t resident;    ///< bytes
	std::uint64_t max_message; ///< bytes, limit set for its transport
	std::uint64_t max_bulk;    ///< bytes, limit of a `fetch` or `fill`

	void put(std::span<std::byte, size> to) const
	{
		std::size_t at = 0;
		for (const std::uint64_t v :
		     {protocol, instance, counted, cpu_us, resident, max_message, max_bulk}) {
			put64(to.data() + at, v);
			at += sizeof(v);
		}
	}
	/// @return false: of another version.
	static bool get(std::span<const std::byte> from, figures &out)
	{
		if (from.size() != size || get64(from.data()) != protocol)
			return false;
		const std::byte *const b = from.data();
		out = {get64(b + 8),  get64(b + 16), get64(b + 24),
		       get64(b + 32), get64(b + 40), get64(b + 48)};
		return true;
	}
};

/// No argument and no result goes by bulk transfer, so calls register no memory beside their send
/// buffers.
inline coop::net::rpc_options for_questions(const coop::net::domain_limits &l)
{
	coop::net::rpc_options o;
	o.max_body = figures::size;
	o.bulk_memory = 0;
	// A descriptor must fit even so.
	o.messages.max_message = 2 * figures::size + l.max_descriptor;
	o.messages.send_buffers = 8;
	return o;
}

} // namespace coop::net_tools
