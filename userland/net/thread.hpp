// SPDX-License-Identifier: MIT
// thread.hpp - a thread of the library inside an application.
//
// It blocks signals, which belong to the application. Its timer slack is minimal: the kernel would
// otherwise delay wake-ups by 50 us, the longest time for which an acknowledgement is held back.
#pragma once

#include <atomic>
#include <csignal>
#include <pthread.h>
#include <sys/prctl.h>
#include <thread>

namespace coop::net::core
{

template <class function> std::thread background_thread(function f)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	struct restore {
		const sigset_t &mask;
		~restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
	} guard{before};
	std::thread t([f = std::move(f)]() mutable {
		::prctl(PR_SET_TIMERSLACK, 1ul);
		f();
	});
	pthread_setname_np(t.native_handle(), "coop-net");
	return t;
}

/// A mutex that spins for a moment before it sleeps: it is almost always held for less than a
/// microsecond, and usually without contention; then lock and unlock cost one atomic operation
/// each.
class adaptive_mutex
{
public:
	adaptive_mutex() = default;
	adaptive_mutex(const adaptive_mutex &) = delete;
	adaptive_mutex &operator=(const adaptive_mutex &) = delete;

	void lock()
	{
		int open = free;
		if (!state_.compare_exchange_strong(open, held, std::memory_order_acquire))
			lock_slowly();
	}
	void unlock()
	{
		if (state_.exchange(free, std::memory_order_release) == wanted)
			state_.notify_one();
	}

private:
	static constexpr int free = 0, held = 1, wanted = 2; // wanted: a thread may be sleeping
	static constexpr int spins = 200;

	void lock_slowly()
	{
		for (int i = 0; i < spins; i++) {
			int open = free;
			if (state_.load(std::memory_order_relaxed) == free &&
			    state_.compare_exchange_weak(open, held, std::memory_order_acquire))
				return;
			pause();
		}
		while (state_.exchange(wanted, std::memory_order_acquire) != free)
			state_.wait(wanted, std::memory_order_relaxed);
	}
	static void pause()
	{
#if defined(__x86_64__)
		__builtin_ia32_pause();
#elif defined(__aarch64__)
		asm volatile("yield");
#endif
	}

	std::atomic<int> state_{free};
};

} // namespace coop::net::core
