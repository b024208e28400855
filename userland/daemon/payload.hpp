// SPDX-License-Identifier: MIT
// payload.hpp - memory for the data of replies: not cleared before it is filled,
// and kept for the next reply.
//
// A window of a reader's readahead is 256 KiB. The C library would map that much
// anew for each, have every page cleared at its first touch, and unmap it: more
// work than reading the file. Blocks of this one size are kept instead, a few
// MiB of them; other sizes come from where they always do.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace coop::daemon
{

constexpr std::size_t payload_block = 256u << 10; // bytes; what is kept has this size
constexpr std::size_t payload_small = 32u << 10;  // up to here the C library is as good
constexpr std::size_t payload_kept = 16;          // blocks

void *payload_take(std::size_t bytes);
void payload_give(void *, std::size_t bytes) noexcept;

template <class T> struct payload_allocator {
	using value_type = T;
	payload_allocator() = default;
	template <class U> payload_allocator(const payload_allocator<U> &) noexcept {}
	T *allocate(std::size_t n) { return static_cast<T *>(payload_take(n * sizeof(T))); }
	void deallocate(T *p, std::size_t n) noexcept { payload_give(p, n * sizeof(T)); }
	// resize() leaves bytes as they are; whoever calls it fills them or cuts them off.
	template <class U> void construct(U *p) noexcept { ::new (static_cast<void *>(p)) U; }
	template <class U, class... args> void construct(U *p, args &&...a)
	{
		::new (static_cast<void *>(p)) U(std::forward<args>(a)...);
	}
	friend bool operator==(const payload_allocator &, const payload_allocator &)
	{
		return true;
	}
};

using payload = std::vector<std::uint8_t, payload_allocator<std::uint8_t>>;

} // namespace coop::daemon
