// SPDX-License-Identifier: MIT
// processors.hpp - sets of processors: which there are, and which a thread stays on.
//
// What a program may use is the kernel's to say, and changes; it says so when a thread is to go
// there.
#pragma once

#include <cstdio>
#include <pthread.h>
#include <sched.h>
#include <span>

namespace coop::net::core
{

/// Numbers beyond what a cpu_set_t holds are left out.
inline cpu_set_t processor_set(std::span<const unsigned> numbers)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	for (const unsigned n : numbers)
		if (n < CPU_SETSIZE)
			CPU_SET(n, &set);
	return set;
}

/// Those that are online, whoever may run there; where the kernel does not tell, all.
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

/// The calling thread stays on these processors to the end of the scope; where it is, if there are
/// none or the kernel does not let it go there.
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
