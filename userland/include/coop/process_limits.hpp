// SPDX-License-Identifier: MIT
// process_limits.hpp - the limits of a process that serves others: what its environment set is no
// wish about them.
//
// A shell or a unit limits a program's files and memory (ulimit, LimitFSIZE=). A daemon that met
// such a limit would fail the programs that it serves, or end by SIGXFSZ. So it raises what it may,
// and takes an error in place of the signal.
#pragma once

#include <csignal>
#include <cstdint>
#include <sys/resource.h>

namespace coop
{

// Raises the soft limit to the hard one. Returns the limit; RLIM_INFINITY: none.
inline std::uint64_t raise_limit(int resource)
{
	rlimit limit{};
	if (::getrlimit(resource, &limit))
		return RLIM_INFINITY;
	limit.rlim_cur = limit.rlim_max;
	(void)::setrlimit(resource, &limit);
	(void)::getrlimit(resource, &limit);
	return limit.rlim_cur;
}

// A write beyond the limit of a file's size then fails with EFBIG. Returns that limit.
inline std::uint64_t raise_file_size_limit()
{
	(void)std::signal(SIGXFSZ, SIG_IGN);
	return raise_limit(RLIMIT_FSIZE);
}

} // namespace coop
