// SPDX-License-Identifier: MIT
// backlog.hpp - what a listener does that has no descriptor left for a caller.
//
// The caller stays in the kernel's backlog. A set that reports levels would report it for ever, so
// the listener leaves the set for a while.
#pragma once

#include <cerrno>

namespace coop
{

/// Whether accept() failed with this error, a positive errno, for lack of descriptors or memory.
[[nodiscard]] constexpr bool keeps_callers_waiting(int error)
{
	return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

} // namespace coop
