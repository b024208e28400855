// SPDX-License-Identifier: MIT
// payload.hpp - memory for reply data: not cleared before use, and pooled.
//
// A readahead window of a reader is 256 KiB. For each the C library would map fresh memory, the
// kernel clear every page at its first touch, and the C library unmap it: more work than reading
// the file. We pool a few MiB of blocks of this one size; other sizes come from operator new.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace coop::daemon
{

constexpr std::size_t payload_block = 256u << 10; // bytes; the size of a pooled block
constexpr std::size_t payload_small = 32u << 10;  // up to here malloc is as good
constexpr std::size_t payload_kept = 16;          // blocks

void *payload_take(std::size_t bytes);
void payload_give(void *, std::size_t bytes) noexcept;

template <class T> struct payload_allocator {
	using value_type = T;
	payload_allocator() = default;
	template <class U> payload_allocator(const payload_allocator<U> &) noexcept {}
	T *allocate(std::size_t n) { return static_cast<T *>(payload_take(n * sizeof(T))); }
	void deallocate(T *p, std::size_t n) noexcept { payload_give(p, n * sizeof(T)); }
	// resize() leaves bytes uninitialised; the caller fills them or cuts them off.
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
