// SPDX-License-Identifier: MIT
// lock.cpp - threads that wait for the lock of a node; see lock.hpp.
#include "userland/ntrdma/node/lock.hpp"

#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace coop::ntrdma
{

namespace
{

constexpr int looks = 64;                       // before a sleep
constexpr timespec overlooked{0, 1000 * 1000L}; // see lock.hpp

} // namespace

void node_lock::wait()
{
	for (int i = 0; i < looks; i++) {
		if (!held_.load(std::memory_order_relaxed) && try_lock())
			return;
#ifdef __x86_64__
		__builtin_ia32_pause();
#endif
	}
	sleepers_.fetch_add(1, std::memory_order_seq_cst);
	while (!try_lock())
		syscall(SYS_futex, &held_, FUTEX_WAIT_PRIVATE, 1, &overlooked, nullptr, 0);
	sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void node_lock::wake()
{
	syscall(SYS_futex, &held_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

} // namespace coop::ntrdma
