// SPDX-License-Identifier: MIT
// token_map.hpp - from tokens to numbers, without an allocation for each.
//
// Open addressing. erase() moves later entries back into the gap, so there are no tombstones, and a
// table in long use stays as fast as a new one.
#pragma once

#include <bit>
#include <vector>

#include "userland/net/transport.hpp"

namespace coop::net::ud
{

class token_map
{
public:
	static constexpr std::uint32_t none = 0xffffffff;

	/// Of at most `most` tokens.
	explicit token_map(std::uint32_t most) : slots_(std::bit_ceil(2 * std::size_t{most})) {}

	/// The token is not there.
	void insert(spi::token t, std::uint32_t value)
	{
		std::size_t i = home(t);
		while (slots_[i].key)
			i = next(i);
		slots_[i] = {t, value};
	}
	std::uint32_t find(spi::token t) const
	{
		if (!t)
			return none;
		for (std::size_t i = home(t); slots_[i].key; i = next(i))
			if (slots_[i].key == t)
				return slots_[i].value;
		return none;
	}
	void erase(spi::token t)
	{
		std::size_t i = home(t);
		while (slots_[i].key != t) {
			if (!slots_[i].key)
				return;
			i = next(i);
		}
		for (std::size_t j = next(i); slots_[j].key; j = next(j)) {
			// Whether j's way from its home leads over i.
			const std::size_t h = home(slots_[j].key);
			if (((j - h) & mask()) < ((j - i) & mask()))
				continue;
			slots_[i] = slots_[j];
			i = j;
		}
		slots_[i].key = 0;
	}

private:
	struct entry {
		spi::token key = 0;
		std::uint32_t value = 0;
	};
	std::size_t mask() const { return slots_.size() - 1; }
	std::size_t next(std::size_t i) const { return (i + 1) & mask(); }
	// From the slot alone: slots are reused soon, so entries stay in the cache. Spread, because
	// erase() takes as long as the run of entries.
	std::size_t home(spi::token t) const
	{
		constexpr spi::token slot_mask = (1u << 20) - 1;
		return ((t & slot_mask) * 0x9e3779b97f4a7c15ull >> 32) & mask();
	}

	std::vector<entry> slots_;
};

} // namespace coop::net::ud
