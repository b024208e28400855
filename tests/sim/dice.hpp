// SPDX-License-Identifier: MIT
// dice.hpp - the simulator's only source of chance.
//
// One 64-bit seed decides everything in a round, so the seed replays a violation. The generator
// is xoshiro256**, seeded by splitmix64; the code avoids standard distributions because they
// differ between libraries.
#pragma once

#include <cstdint>

namespace coop::sim
{

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr u64 mix(u64 x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

constexpr u64 mix(u64 a, u64 b)
{
	return mix(mix(a) ^ b);
}

class dice
{
public:
	explicit dice(u64 seed)
	{
		for (auto &s : s_)
			s = seed = mix(seed);
	}
	u64 next()
	{
		const u64 out = rotl(s_[1] * 5, 7) * 9, t = s_[1] << 17;
		s_[2] ^= s_[0];
		s_[3] ^= s_[1];
		s_[1] ^= s_[2];
		s_[0] ^= s_[3];
		s_[2] ^= t;
		s_[3] = rotl(s_[3], 45);
		return out;
	}
	// Uniform in [0, n); the multiplication's bias is below 2^-32 and negligible.
	u32 below(u32 n) { return static_cast<u32>((next() >> 32) * n >> 32); }
	// Uniform in [lo, hi].
	u32 between(u32 lo, u32 hi) { return lo + below(hi - lo + 1); }
	bool chance(u32 ppm) { return ppm && below(1000000) < ppm; }
	bool coin() { return next() >> 63; }

private:
	static u64 rotl(u64 x, int k) { return x << k | x >> (64 - k); }
	u64 s_[4];
};

} // namespace coop::sim
