// SPDX-License-Identifier: MIT
// processors.hpp - sets of processors: those online, and those that a thread is confined to.
//
// Only the kernel knows which processors a program may use, and that changes: the kernel reports it
// when a thread is confined.
#pragma once

#include <cstdio>
#include <pthread.h>
#include <sched.h>
#include <span>

namespace coop::net::core
{

/// Numbers too large for a cpu_set_t are left out.
inline cpu_set_t processor_set(std::span<const unsigned> numbers)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	for (const unsigned n : numbers)
		if (n < CPU_SETSIZE)
			CPU_SET(n, &set);
	return set;
}

/// The processors online, whether or not we may run there; all if the kernel does not tell.
inline cpu_set_t online_processors()
{
	cpu_set_t set;
	CPU_ZERO(&set);
	unsigned first, last;
	if (std::FILE *f = std::fopen("/sys/devices/system/cpu/online", "re")) {
		while (std::fscanf(f, "%u", &first) == 1) {
			if (std::fscanf(f, "-%u", &last) != 1)
				last = first;
			for (; first <= last && first < CPU_SETSIZE; first++)
				CPU_SET(first, &set);
			if (std::fgetc(f) != ',')
				break;
		}
		std::fclose(f);
	}
	if (CPU_COUNT(&set) == 0)
		for (unsigned n = 0; n < CPU_SETSIZE; n++)
			CPU_SET(n, &set);
	return set;
}

/// Confines the calling thread to these processors for the scope; no effect if there are none or
/// the kernel refuses.
class stay_on
{
public:
	explicit stay_on(std::span<const unsigned> numbers)
	{
		if (numbers.empty())
			return;
		const cpu_set_t there = processor_set(numbers);
		moved_ = !pthread_getaffinity_np(pthread_self(), sizeof(before_), &before_) &&
			 !pthread_setaffinity_np(pthread_self(), sizeof(there), &there);
	}
	~stay_on()
	{
		if (moved_)
			(void)pthread_setaffinity_np(pthread_self(), sizeof(before_), &before_);
	}
	stay_on(const stay_on &) = delete;
	stay_on &operator=(const stay_on &) = delete;

private:
	cpu_set_t before_;
	bool moved_ = false;
};

} // namespace coop::net::core
