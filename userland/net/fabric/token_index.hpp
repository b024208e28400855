// SPDX-License-Identifier: MIT
// token_index.hpp - finds the work of an operation by its token.
#pragma once

#include <cstdint>
#include <vector>

#include "../transport.hpp"

namespace coop::net::fabric
{

struct work;

/// Open addressing with linear probing; at most half full. Tokens are not 0.
class token_index
{
public:
	token_index() : table_(64) {}

	work *find(spi::token t) const
	{
		for (std::size_t at = home(t); table_[at].token; at = next(at))
			if (table_[at].token == t)
				return table_[at].work;
		return nullptr;
	}
	/// `t` must not be in it.
	void insert(spi::token t, work *w)
	{
		if (2 * ++count_ > table_.size())
			grow();
		put(t, w);
	}
	void erase(spi::token t)
	{
		std::size_t at = home(t);
		while (table_[at].token != t) {
			if (!table_[at].token)
				return;
			at = next(at);
		}
		count_--;
		// Move up the following entries that could not be found otherwise.
		for (std::size_t hole = at;;) {
			table_[hole].token = 0;
			do {
				at = next(at);
				if (!table_[at].token)
					return;
			} while (distance(home(table_[at].token), at) < distance(hole, at));
			table_[hole] = table_[at];
			hole = at;
		}
	}
	std::size_t size() const { return count_; }

private:
	struct entry {
		spi::token token = 0;
		fabric::work *work = nullptr;
	};

	std::size_t home(spi::token t) const
	{
		// Hashes the core's slot only: slots are reused soon, so entries stay in the cache.
		constexpr spi::token slot_mask = (1u << 20) - 1;
		return ((t & slot_mask) * 0x9e3779b97f4a7c15ull >> 32) & (table_.size() - 1);
	}
	std::size_t next(std::size_t at) const { return (at + 1) & (table_.size() - 1); }
	std::size_t distance(std::size_t from, std::size_t to) const
	{
		return (to - from) & (table_.size() - 1);
	}
	void put(spi::token t, work *w)
	{
		std::size_t at = home(t);
		while (table_[at].token)
			at = next(at);
		table_[at] = {t, w};
	}
	void grow()
	{
		std::vector<entry> old(table_.size() * 2);
		old.swap(table_);
		for (const entry &e : old)
			if (e.token)
				put(e.token, e.work);
	}

	std::vector<entry> table_;
	std::size_t count_ = 0;
};

} // namespace coop::net::fabric
