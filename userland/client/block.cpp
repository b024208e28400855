// SPDX-License-Identifier: MIT
// block.cpp - claim, publish, wait: see block.hpp for the invariants. Waiting is a futex on a
// counter that changes whenever pages stop loading; publishers make the system call only when
// somebody waits.
#include "userland/client/block.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <climits>
#include <cstring>

#include "userland/client/page_store.hpp"

namespace coop::client
{

namespace
{

void futex_wake_all(std::atomic<std::uint32_t> &word)
{
	::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// steady_clock is CLOCK_MONOTONIC, which FUTEX_WAIT_BITSET takes as an absolute time.
void futex_wait_until(std::atomic<std::uint32_t> &word, std::uint32_t value,
		      std::chrono::steady_clock::time_point deadline)
{
	using namespace std::chrono;
	const auto ns = duration_cast<nanoseconds>(deadline.time_since_epoch()).count();
	const timespec at{static_cast<time_t>(ns / 1000000000), static_cast<long>(ns % 1000000000)};
	::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, value, &at, nullptr,
		  FUTEX_BITSET_MATCH_ANY);
}

} // namespace

std::uint64_t block::claim(std::uint64_t want, std::uint32_t level)
{
	// Before the pages are loading: no peer may see them with a smaller level.
	std::uint32_t known = level_.load(std::memory_order_relaxed);
	while (known < level &&
	       !level_.compare_exchange_weak(known, level, std::memory_order_seq_cst))
		;
	if (pages_ < 64)
		want &= (std::uint64_t{1} << pages_) - 1;
	std::uint64_t loading = loading_.load(std::memory_order_acquire);
	std::uint64_t mine;
	do {
		mine = want & ~(loading | valid_.load(std::memory_order_acquire));
		if (mine == 0)
			return 0;
	} while (!loading_.compare_exchange_weak(loading, loading | mine, std::memory_order_acq_rel,
						 std::memory_order_acquire));
	// Between the two loads an owner may have published and let go; what is valid now
	// was never ours to fill.
	const std::uint64_t late = mine & valid_.load(std::memory_order_acquire);
	if (late != 0)
		settle(late);
	mine &= ~late;
	if (static_cast<std::uint32_t>(std::popcount(mine)) * much >= pages_)
		owner_.need_memory(*this);
	return mine;
}

void block::at_storage(std::uint64_t pages, bool there)
{
	redirected_.fetch_and(~pages, std::memory_order_seq_cst);
	if (there)
		at_storage_.fetch_or(pages, std::memory_order_seq_cst);
	else
		at_storage_.fetch_and(~pages, std::memory_order_seq_cst);
}

void block::redirected(std::uint64_t pages, std::uint32_t level)
{
	at_storage(pages, false);
	std::uint32_t known = redirected_level_.load(std::memory_order_relaxed);
	while (known < level &&
	       !redirected_level_.compare_exchange_weak(known, level, std::memory_order_seq_cst))
		;
	redirected_.fetch_or(pages, std::memory_order_seq_cst); // after the level
	// Serves that wait with a smaller level give up.
	if (watched_.load(std::memory_order_seq_cst) &&
	    watched_.exchange(false, std::memory_order_seq_cst))
		owner_.settled();
}

std::uint64_t block::awaitable(std::uint32_t level) const
{
	const std::uint64_t loading = loading_.load(std::memory_order_seq_cst);
	if (level <= COOP_LEVEL_STORAGE)
		return 0;
	if (level > level_.load(std::memory_order_seq_cst))
		return loading;
	std::uint64_t low = at_storage_.load(std::memory_order_seq_cst);
	const std::uint64_t told = redirected_.load(std::memory_order_seq_cst); // before the level
	if (level > redirected_level_.load(std::memory_order_seq_cst))
		low |= told;
	return loading & low;
}

void block::settle(std::uint64_t pages)
{
	const std::uint64_t low = at_storage_.load(std::memory_order_relaxed) |
				  redirected_.load(std::memory_order_relaxed);
	if ((low & pages) != 0)
		at_storage(pages, false);
	loading_.fetch_and(~pages, std::memory_order_seq_cst);
	epoch_.fetch_add(1, std::memory_order_seq_cst);
	if (waiters_.load(std::memory_order_seq_cst) != 0)
		futex_wake_all(epoch_);
	if (watched_.load(std::memory_order_seq_cst) &&
	    watched_.exchange(false, std::memory_order_seq_cst))
		owner_.settled();
}

void block::publish(std::uint64_t pages, origin from)
{
	if (pages == 0)
		return;
	if (from != origin::counted)
		(from == origin::peer ? fresh_peer_ : fresh_storage_)
			.fetch_or(pages, std::memory_order_relaxed);
	valid_.fetch_or(pages, std::memory_order_release);
	settle(pages);
}

void block::abandon(std::uint64_t pages)
{
	if (pages != 0)
		settle(pages);
}

std::uint64_t block::wait(std::uint64_t pages, std::chrono::steady_clock::time_point deadline)
{
	if ((loading() & pages) != 0) {
		waiters_.fetch_add(1, std::memory_order_seq_cst);
		for (;;) {
			const std::uint32_t seen = epoch_.load(std::memory_order_seq_cst);
			if ((loading_.load(std::memory_order_seq_cst) & pages) == 0 ||
			    std::chrono::steady_clock::now() >= deadline)
				break;
			futex_wait_until(epoch_, seen, deadline);
		}
		waiters_.fetch_sub(1, std::memory_order_relaxed);
	}
	return valid();
}

void block::take_fresh(std::uint64_t pages, std::uint64_t &from_peer, std::uint64_t &from_storage)
{
	from_peer = from_storage = 0;
	if ((fresh_peer_.load(std::memory_order_relaxed) & pages) != 0)
		from_peer = fresh_peer_.fetch_and(~pages, std::memory_order_relaxed) & pages;
	if ((fresh_storage_.load(std::memory_order_relaxed) & pages) != 0)
		from_storage = fresh_storage_.fetch_and(~pages, std::memory_order_relaxed) & pages;
	if ((from_peer | from_storage) == 0)
		count_use();
}

void block::count_use()
{
	// Racing users may lose a count: it steers eviction, nothing else.
	const std::uint8_t n = uses.load(std::memory_order_relaxed);
	if (n < max_uses)
		uses.store(static_cast<std::uint8_t>(n + 1), std::memory_order_relaxed);
	if (chances() == 0)
		set_chances(max_chances);
}

void block::unpin()
{
	if (pins_.fetch_sub(1, std::memory_order_acq_rel) == (forgotten | 1))
		owner_.release_forgotten(this);
}

void zero_tail(const block &b, std::uint64_t pages, std::uint64_t file_size, unsigned page_shift)
{
	const std::uint64_t page_bytes = std::uint64_t{1} << page_shift;
	const std::uint64_t used = file_size & (page_bytes - 1);
	if (used == 0)
		return;
	const std::uint64_t last = file_size >> page_shift;
	if (last / 64 == b.index() && (pages >> (last % 64) & 1) != 0)
		std::memset(b.data(static_cast<std::uint32_t>(last % 64)) + used, 0,
			    page_bytes - used);
}

} // namespace coop::client
