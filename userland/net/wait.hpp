// SPDX-License-Identifier: MIT
// wait.hpp - blocks for descriptors until a deadline.
//
// May return early (a signal, a rounded deadline): callers check their condition and the clock
// themselves.
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
