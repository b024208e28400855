// SPDX-License-Identifier: MIT
// port.hpp - the interface of a back end: how a queue pair reaches its peer.
//
// A back end gives each connected queue pair a port. The core writes into out() and reads from
// in(), which the back end keeps equal to the peer's out(): by sharing the memory (window), or by
// sending what publish() left behind the indices (a byte stream). All else is here:
//
//	ring()	after a batch was published: wake the peer if it sleeps
//	pull()	copy from the peer's address space, where the back end can do that
//
// Rules:
// - One owner: every call comes under the lock of the device that owns the queue pair.
// - No call blocks and none calls back.
// - pull() returns 0 only if every byte came from the peer, which lived to the end of the copy.
//   It writes only `to`, and nothing after it has returned.
// - After close() the memory behind in() and out() stays valid until the port is destroyed.
#pragma once

#include <cstdint>
#include <span>

#include "userland/ntrdma/core/half.hpp"

namespace coop::ntrdma
{

/// A piece of this process's memory that was checked against the tables.
struct place {
	std::uint8_t *at;
	std::uint64_t length;
};

class port
{
public:
	virtual ~port() = default;
	virtual half &out() = 0;
	virtual const half &in() const = 0;
	/// True if pull() works with this peer; both sides know the same from link-up.
	virtual bool can_pull() const = 0;
	/// Copies as many bytes as `to` has; both lists have that many, in at most 8 pieces.
	/// 0, or a negative errno.
	virtual int pull(std::span<const wire_segment> from, std::span<const place> to) = 0;
	virtual void ring() = 0;
	/// ns of a clock that never goes back, for figures only. 0: there is none.
	virtual std::uint64_t now() { return 0; }
	/// The queue pair no longer uses this port; its owner may detach it and close the link.
	virtual void ended() = 0;
};

} // namespace coop::ntrdma
