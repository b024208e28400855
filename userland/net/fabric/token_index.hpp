// SPDX-License-Identifier: MIT
// token_index.hpp - finds the work of an operation by its token.
//
// The core names an operation by a slot and a generation (transport.hpp), and a slot has one live
// operation. So the index is an array by slot: as long as the most operations at a time.
#pragma once

#include <vector>

#include "../transport.hpp"

namespace coop::net::fabric
{

struct work;

class token_index
{
public:
	/// `t` may be anything that a peer has sent.
	work *find(spi::token t) const
	{
		const std::size_t at = slot_of(t);
		return at < table_.size() && table_[at].token == t ? table_[at].work : nullptr;
	}
	/// `t` must be live, and not in the index.
	void insert(spi::token t, work *w)
	{
		if (slot_of(t) >= table_.size())
			table_.resize(slot_of(t) + 1);
		table_[slot_of(t)] = {t, w};
	}
	/// `t` must be in the index.
	void erase(spi::token t) { table_[slot_of(t)] = {}; }

private:
	struct entry {
		spi::token token = 0;
		fabric::work *work = nullptr;
	};
	static std::size_t slot_of(spi::token t) { return t & ((1u << 20) - 1); }

	std::vector<entry> table_;
};

} // namespace coop::net::fabric
