// SPDX-License-Identifier: MIT
// thread.hpp - a thread of the library in somebody else's program.
//
// It takes no signals: those are the program's business. Its sleeps end when they are to, which
// the kernel would otherwise put off by 50 us: as long as an acknowledgement is held back at most.
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

/// A mutex that spins for a moment before it sleeps: it is held for less than a microsecond
/// nearly always, and mostly nobody else wants it: then it costs one atomic operation to take
/// and one to give back.
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
	static constexpr int free = 0, held = 1, wanted = 2; // wanted: somebody may sleep
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
