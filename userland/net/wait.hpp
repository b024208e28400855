// SPDX-License-Identifier: MIT
// wait.hpp - to block for descriptors until a deadline.
//
// Wakes early (a signal, a deadline rounded): callers look at what they wait for and at the
// clock themselves.
#pragma once

#include <poll.h>
#include <time.h>

#include "coop/net/base.hpp"

namespace coop::net::core
{

/// ppoll() until `deadline`. Returns at once if it is past.
inline void poll_until(pollfd *fds, unsigned n, time_point deadline)
{
	timespec t{}, *limit = nullptr;
	if (deadline != never) {
		using namespace std::chrono;
		const auto left = duration_cast<nanoseconds>(deadline - clock::now()).count();
		if (left > 0)
			t = {static_cast<time_t>(left / 1000000000),
			     static_cast<long>(left % 1000000000)};
		limit = &t;
	}
	::ppoll(fds, n, limit, nullptr);
}

} // namespace coop::net::core
