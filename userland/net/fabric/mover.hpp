// SPDX-License-Identifier: MIT
// mover.hpp - moves the data of a work, by RMA: one side exposes its memory to the other, which
// writes there or reads from there (wire.hpp).
//
// Each operation of libfabric touches one region of the peer's memory and as many pieces of ours as
// fit, so the segments of the two sides may differ.
#pragma once

#include "sends.hpp"

namespace coop::net::fabric
{

/// Pieces of an operation's memory, for one operation of libfabric.
struct piece_list {
	static constexpr std::size_t most = 16;

	iovec pieces[most];
	void *descs[most] = {};
	std::size_t count = 0, bytes = 0;

	/// Takes up to `length` bytes from the cursor in at most `pieces_most` pieces. Stops where
	/// the memory ends.
	piece_list(spi::cursor &from, std::size_t length, std::size_t pieces_most,
		   local_keys::descriptors local = {})
	{
		while (bytes < length && count < pieces_most) {
			if (!local.empty())
				descs[count] = local[from.index()];
			const auto piece = from.next(length - bytes);
			if (piece.empty())
				return;
			pieces[count++] = {piece.data(), piece.size()};
			bytes += piece.size();
		}
	}
	std::span<iovec> span() { return {pieces, count}; }
	/// Whether each descriptor is the right one; for providers that do not check.
	bool covered(const work &w) const
	{
		return fabric::covered(w.memory, w.local, {pieces, count}, {descs, count});
	}
};

/// Owns nothing; keeps its place in the work. Under the machine's lock.
class mover
{
public:
	mover(environment &e, sends &s) : env_(e), sends_(s) {}

	/// Registers the memory for `access` by the peer, under keys for this one use. @return 0 or
	/// -errno.
	int expose(work &, std::uint64_t access, control &);
	/// Stores the regions that the peer has exposed. False: they are too small.
	bool take_regions(work &, const control &);
	/// Posts as many writes, or reads, as the provider accepts. @return 0: all; -EAGAIN; or the
	/// link is broken.
	int move(work &);
	/// Whether active receives on this link read.
	bool reads(const link &l) const
	{
		return env_.options.read && l.lends && env_.provider.reads();
	}

private:
	int post(work &, piece_list &, const region &, bool last);

	environment &env_;
	sends &sends_;
};

} // namespace coop::net::fabric
