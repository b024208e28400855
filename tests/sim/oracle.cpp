// SPDX-License-Identifier: MIT
// oracle.cpp - filling, checking and blaming.
//
// The two loops over page memory run over every delivered byte. They take eight words at a
// time, because the compiler does not for want of a 64-bit vector multiplication; and the
// sanitizers skip them, because they touch exactly one page of the arena.
#include "tests/sim/oracle.hpp"

#include <cstdio>
#include <cstring>

namespace coop::sim
{

namespace
{

constexpr u64 step = 0x9e3779b97f4a7c15u; // odd
constexpr u64 poison_word = 0x5a5a5a5adeadbeefu;

constexpr u64 inverse(u64 odd)
{
	u64 x = odd;
	for (int i = 0; i < 6; ++i)
		x *= 2 - odd * x;
	return x;
}
static_assert(inverse(step) * step == 1);

using lanes = u64 __attribute__((vector_size(64)));
constexpr u32 n_lanes = sizeof(lanes) / 8;

#define RAMP(first)                                                                        \
	{                                                                                  \
		first, first + step, first + 2 * step, first + 3 * step, first + 4 * step, \
			first + 5 * step, first + 6 * step, first + 7 * step               \
	}

__attribute__((no_sanitize("address", "undefined"))) void write_words(u8 *mem, u32 words, u64 first)
{
	lanes want = RAMP(first);
	u32 i = 0;
	for (; i + n_lanes <= words; i += n_lanes, want += n_lanes * step)
		__builtin_memcpy(mem + 8 * i, &want, sizeof(want));
	for (; i < words; ++i) {
		const u64 word = first + i * step;
		__builtin_memcpy(mem + 8 * i, &word, 8);
	}
}

__attribute__((no_sanitize("address", "undefined"))) bool same_words(const u8 *mem, u32 words,
								     u64 first)
{
	lanes want = RAMP(first), in, diff = {};
	u32 i = 0;
	for (; i + n_lanes <= words; i += n_lanes, want += n_lanes * step) {
		__builtin_memcpy(&in, mem + 8 * i, sizeof(in));
		diff |= in ^ want;
	}
	u64 any = 0;
	for (u32 n = 0; n < n_lanes; ++n)
		any |= diff[n];
	for (; i < words; ++i) {
		u64 word;
		__builtin_memcpy(&word, mem + 8 * i, 8);
		any |= word ^ (first + i * step);
	}
	return !any;
}

bool all_zero(const u8 *mem, u32 len)
{
	return !len || (!mem[0] && !std::memcmp(mem, mem + 1, len - 1));
}

} // namespace

oracle::oracle(u64 seed, u32 files, u32 page_size, u32 max_pages) :
	seed_(mix(seed, 0x0c0)),
	page_size_(page_size),
	max_pages_(max_pages),
	editions_(files, 0)
{
}

u64 oracle::size(content c) const
{
	const u64 r = mix(key(c), 1);
	const u64 pages = 1 + r % max_pages_;
	// A third of the editions end on a page boundary; the others have 8 <= tail < page_size
	// in whole words, so that the last word of content is whole.
	const u64 tail = (r >> 32) % 3 ? 8 * (1 + (r >> 40) % (page_size_ / 8 - 1)) : page_size_;
	return (pages - 1) * page_size_ + tail;
}

u32 oracle::pages(content c) const
{
	return static_cast<u32>((size(c) + page_size_ - 1) / page_size_);
}

coop_fid oracle::fid(u32 file) const
{
	return {mix(seed_, file) | 1, u64{file} + 1};
}

bool oracle::find(const coop_fid &fid_, u64 version_, content &out) const
{
	if (!fid_.lo || fid_.lo > files() || version_ < 1000)
		return false;
	out.file = static_cast<u32>(fid_.lo - 1);
	out.edition = static_cast<u32>(version_ - 1000);
	return fid(out.file).hi == fid_.hi && version_ - 1000 <= editions_[out.file];
}

void oracle::fill(u8 *page, content c, u64 index) const
{
	const u64 start = index * page_size_, end = size(c);
	const u32 valid = start >= end ? 0
				       : static_cast<u32>(end - start < page_size_ ? end - start
										   : page_size_);
	write_words(page, valid / 8, key(c) + start / 8 * step);
	std::memset(page + valid, 0, page_size_ - valid);
}

bool oracle::right(const u8 *page, content c, u64 index) const
{
	const u64 start = index * page_size_, end = size(c);
	const u32 valid = start >= end ? 0
				       : static_cast<u32>(end - start < page_size_ ? end - start
										   : page_size_);
	return same_words(page, valid / 8, key(c) + start / 8 * step) &&
	       all_zero(page + valid, page_size_ - valid);
}

std::string oracle::blame(const u8 *page, content c, u64 index) const
{
	std::vector<u8> want(page_size_);
	fill(want.data(), c, index);
	u32 off = 0, bad = 0;
	for (u32 i = page_size_; i >= 8; i -= 8) {
		if (std::memcmp(page + i - 8, want.data() + i - 8, 8)) {
			off = i - 8;
			++bad;
		}
	}
	u64 word;
	std::memcpy(&word, page + off, 8);
	char text[240], whose[120] = "unknown bytes";
	if (!word) {
		std::snprintf(whose, sizeof(whose), "zeros");
	} else if (word == poison_word) {
		std::snprintf(whose, sizeof(whose), "memory that nothing wrote");
	} else {
		for (u32 f = 0; f < files(); ++f) {
			for (u32 e = 0; e <= editions_[f]; ++e) {
				const u64 n = (word - key({f, e})) * inverse(step);
				if (n < size({f, e}) / 8)
					std::snprintf(
						whose, sizeof(whose),
						"bytes of file %u version %llu page %llu + %u", f,
						static_cast<unsigned long long>(version({f, e})),
						static_cast<unsigned long long>(n * 8 / page_size_),
						static_cast<u32>(n * 8 % page_size_));
			}
		}
	}
	std::snprintf(text, sizeof(text),
		      "file %u version %llu page %llu: %u of %u words wrong, first at + %u: %s",
		      c.file, static_cast<unsigned long long>(version(c)),
		      static_cast<unsigned long long>(index), bad, page_size_ / 8, off, whose);
	return text;
}

void oracle::poison(u8 *mem, u32 len)
{
	for (u32 i = 0; i + 8 <= len; i += 128)
		std::memcpy(mem + i, &poison_word, 8);
}

} // namespace coop::sim
