// SPDX-License-Identifier: MIT
// script.hpp - libFuzzer's bytes as the script of a play, and helpers of every play.
//
// After its end a script reads as zeros, so that a shorter input is a shorter play.
#pragma once

#include <cstddef>
#include <vector>

#include "rpc/fetch/engine.h"

class script
{
public:
	script(const u8 *data, std::size_t size) : at_(data), end_(data + size) {}
	bool more() const { return at_ < end_; }
	u8 byte() { return at_ < end_ ? *at_++ : 0; }
	u16 half()
	{
		const u16 low = byte();
		return static_cast<u16>(low | byte() << 8);
	}
	u32 word()
	{
		const u32 low = half();
		return low | static_cast<u32>(half()) << 16;
	}
	u64 quad()
	{
		const u64 low = word();
		return low | static_cast<u64>(word()) << 32;
	}

private:
	const u8 *at_, *end_;
};

/// Takes one of the first eight items in flight; with bit 3 of `how` it stays to come again.
template <class queue> typename queue::value_type pick(queue &under_way, u8 how)
{
	const std::size_t i = (how & 7) % under_way.size();
	typename queue::value_type one = under_way[i];
	if (!(how & 8))
		under_way.erase(under_way.begin() + static_cast<std::ptrdiff_t>(i));
	return one;
}

/// Changes some bytes of the first `most`.
inline void spoil(std::vector<u8> &bytes, std::size_t most, u32 times, script &in)
{
	for (; times && most; --times) {
		const u32 at = in.half();
		bytes[at % most] ^= in.byte();
	}
}
