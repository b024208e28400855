// SPDX-License-Identifier: MIT
// works.hpp - the works of a machine, by id and by token.
//
// A work does not move while the machine exists, because libfabric's completions point to it. An
// ended work with completions to come is a zombie until the last one.
#pragma once

#include <deque>
#include <vector>

#include "environment.hpp"

namespace coop::net::fabric
{

/// Owns all works. Under the machine's lock.
class works
{
public:
	explicit works(environment &e) : env_(e) {}

	/// A work on the link, for an operation or (token 0) a message to come. Null: there are too
	/// many, or too many with this peer.
	work *make(link &, spi::token);
	/// The live work of this id; a peer may have made it up.
	work *find(std::uint32_t id)
	{
		const std::uint32_t slot = id & slot_mask;
		if (slot == 0 || slot > all_.size())
			return nullptr;
		work &w = all_[slot - 1];
		return w.id == id && w.link ? &w : nullptr;
	}
	/// The same, if it is on this link.
	work *find(std::uint32_t id, const link &l)
	{
		work *w = find(id);
		return w && w->link == &l ? w : nullptr;
	}
	/// The live work of an operation; a peer may have made the token up.
	work *of_token(spi::token t) const
	{
		const std::size_t slot = t & token_slot_mask;
		work *w = slot < by_token_.size() ? by_token_[slot] : nullptr;
		return w && t && w->token == t ? w : nullptr;
	}

	/// The work has ended, without a report to the core.
	void release(work &);
	/// The same, because the peer does not want it any more.
	void give_up(work &w)
	{
		const spi::token t = w.token;
		release(w);
		env_.sink.given_up(t);
	}
	/// The work and its operation have ended; the memory is quiet.
	void finish(work &, int status);
	/// A zombie's completion has come.
	void bury(work &w)
	{
		if (w.out == 0)
			free(w);
	}
	/// Closes all regions; peers can write nowhere any more.
	void close_regions()
	{
		for (work &w : all_)
			w.keys.clear();
	}

private:
	// An id: 17 bits of slot, where 0 means none, and 13 of generation. The slot that has
	// rested longest is used next, and as many as `resting` others rest: so an id comes back
	// after two million works at the earliest, and a message about the work before is no longer
	// on its way then.
	static constexpr std::uint32_t slots = 1u << 17, slot_mask = slots - 1;
	static constexpr std::uint32_t most = 1u << 16, resting = 256;
	static constexpr spi::token token_slot_mask = (1u << 20) - 1;

	void free(work &w)
	{
		w.stage = work::stage::free;
		free_.push_back(&w);
	}

	environment &env_;
	std::deque<work> all_;              ///< index: the slot in the id, less one
	std::deque<work *> free_;           ///< that which has rested longest first
	std::vector<std::uint32_t> shares_; ///< live works by peer
	/// Index: the core's slot in the token (transport.hpp), which has one live operation. An
	/// entry may be outdated: then its work has another token, or none.
	std::vector<work *> by_token_;
};

} // namespace coop::net::fabric
