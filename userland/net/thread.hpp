// SPDX-License-Identifier: MIT
// thread.hpp - a thread of the library in somebody else's program.
//
// It takes no signals: those are the program's business.
#pragma once

#include <csignal>
#include <pthread.h>
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
	std::thread t(std::move(f));
	pthread_setname_np(t.native_handle(), "coop-net");
	return t;
}

/// A mutex that spins for a moment before it sleeps: it is held for less than a microsecond
/// nearly always.
class adaptive_mutex
{
public:
	adaptive_mutex()
	{
		pthread_mutexattr_t a;
		pthread_mutexattr_init(&a);
		pthread_mutexattr_settype(&a, PTHREAD_MUTEX_ADAPTIVE_NP);
		pthread_mutex_init(&mutex_, &a);
		pthread_mutexattr_destroy(&a);
	}
	~adaptive_mutex() { pthread_mutex_destroy(&mutex_); }
	adaptive_mutex(const adaptive_mutex &) = delete;
	adaptive_mutex &operator=(const adaptive_mutex &) = delete;
	void lock() { pthread_mutex_lock(&mutex_); }
	void unlock() { pthread_mutex_unlock(&mutex_); }

private:
	pthread_mutex_t mutex_;
};

} // namespace coop::net::core
