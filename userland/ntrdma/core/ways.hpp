// SPDX-License-Identifier: MIT
// ways.hpp - which way is faster for large messages: the receiver pulls them, or they are streamed.
//
// Pulling copies once, on the receiver's processor. Streaming copies twice, on both processors at
// once: faster where they share a cache, slower where they do not, and on which of them a program
// runs may change. So the receiver measures both, and its advice stands in its half.
#pragma once

#include <algorithm>
#include <cstdint>

namespace coop::ntrdma
{

class ways
{
public:
	enum way : unsigned { pulled, streamed };

	/// A message of `bytes` took `ns` from when it was seen until it was there.
	void took(way w, std::uint64_t ns, std::uint32_t bytes)
	{
		std::uint64_t cost = (ns << 10) / std::max(bytes, 1u);
		std::uint64_t &mean = cost_[w];
		cost = std::max<std::uint64_t>(cost, 1);
		// A process that was preempted says nothing of the way.
		if (seen_[w] < first_ones)
			mean = seen_[w]++ ? std::min(mean, cost) : cost;
		else
			mean = (7 * mean + std::min(cost, 2 * mean)) / 8;
		if (!cost_[pulled] || !cost_[streamed])
			return;
		// Two copies keep two processors busy: a small gain is not worth that.
		streams_ = cost_[streamed] * 10 < cost_[pulled] * (streams_ ? 9 : 8);
	}
	/// Streaming is faster.
	bool streams() const { return streams_; }

	/// The sender takes the other way for the n-th large message, or none would be measured:
	/// one of eight until the first choice can be made, then one of 128. Not a fixed period: a
	/// program may have one too.
	static bool other_way(std::uint32_t n)
	{
		return n * 2654435761u >> (n <= soon ? 29 : 25) == 0;
	}

private:
	static constexpr unsigned first_ones = 4;
	static constexpr std::uint32_t soon = 64;

	std::uint64_t cost_[2] = {}; // ns per KiB
	unsigned seen_[2] = {};
	bool streams_ = false;
};

} // namespace coop::ntrdma
