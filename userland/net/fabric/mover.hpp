// SPDX-License-Identifier: MIT
// mover.hpp - moves the data of a work, in one of three ways.
//
// The receiver exposes its memory, and the writer writes by RMA. If the port can write to the
// peer's process (shm), the writer does that instead. If the receiver can read the writer's
// process, nothing is exposed: the writer lends, and the receiver copies (wire.hpp).
#pragma once

#include "sends.hpp"

namespace coop::net::fabric
{

/// Owns nothing; keeps its place in the work. Under the machine's lock.
class mover
{
public:
	mover(environment &e, sends &s) : env_(e), sends_(s) {}

	/// Registers the destination under keys for this one use. @return 0 or -errno.
	int expose(work &, control &);
	/// Stores the regions that the peer has exposed. False: they are too small.
	bool take_regions(work &w, const control &c) { return take_regions(w, c, 0); }
	/// Posts as many writes as the provider accepts. @return 0: all; -EAGAIN; or the link is
	/// broken.
	int write(work &);

	bool lends() const { return env_.options.lend && env_.port.lends(); }
	bool reads(const link &l) const { return env_.options.lend && env_.port.reads(l); }
	/// If peers can read our memory, tells them where it is.
	void lend(work &, control &);
	/// Stores the lent regions. False: we cannot read them.
	bool borrow(work &, const control &);
	/// Copies from lent memory. @return 0; -ENOENT: it is no longer lent, and the copy is
	/// invalid; or the link is broken.
	int copy(work &);

private:
	bool take_regions(work &, const control &, std::size_t first);
	int copy_region(work &, spi::cursor &to, std::uint64_t from, std::size_t length);

	environment &env_;
	sends &sends_;
};

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

} // namespace coop::net::fabric
