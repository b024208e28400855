// SPDX-License-Identifier: MIT
// payload.cpp - the pool of spare blocks.
#include "userland/daemon/payload.hpp"

#include <mutex>
#include <new>

namespace coop::daemon
{

namespace
{

bool is_block(std::size_t bytes)
{
	return bytes > payload_small && bytes <= payload_block;
}

struct spare_blocks {
	std::mutex mutex;
	std::size_t n = 0;
	void *block[payload_kept];
	~spare_blocks()
	{
		while (n)
			::operator delete(block[--n]);
	}
};

spare_blocks &spare()
{
	static spare_blocks blocks;
	return blocks;
}

} // namespace

void *payload_take(std::size_t bytes)
{
	if (!is_block(bytes))
		return ::operator new(bytes);
	spare_blocks &s = spare();
	{
		std::lock_guard lock(s.mutex);
		if (s.n)
			return s.block[--s.n];
	}
	return ::operator new(payload_block);
}

void payload_give(void *p, std::size_t bytes) noexcept
{
	if (is_block(bytes)) {
		spare_blocks &s = spare();
		std::lock_guard lock(s.mutex);
		if (s.n < payload_kept) {
			s.block[s.n++] = p;
			return;
		}
	}
	::operator delete(p);
}

} // namespace coop::daemon
