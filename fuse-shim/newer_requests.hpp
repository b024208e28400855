// SPDX-License-Identifier: MIT
// newer_requests.hpp - requests of the kernel that libfuse does not know, and what it does not
// agree on with the kernel.
//
// libfuse 3.14 refuses with ENOSYS what was added to the protocol after it. So we read the
// device in its place and turn such a request into one that it knows and that the kernel
// never sends in that form. Whatever belongs to a request (the descriptor that it came from,
// interrupts, the reply) stays libfuse's. The kernel asks by what it has, whatever minor
// version libfuse has agreed on.
#pragma once

#include <string_view>

#include <fuse_lowlevel.h>

#include "userland/client/storage.hpp"

namespace coop::shim
{

// FUSE_TMPFILE comes as a CREATE of this name, which no file can have.
constexpr std::string_view nameless = "/";

// FUSE_STATX comes as a BMAP, which the kernel asks for on mounts of block devices alone. This
// answers it. lifetime: whole seconds.
void reply_statx(fuse_req_t, const client::attributes &, double lifetime);

// The kernel leaves it to us to take set-ID bits from a file that is written, cut or given away
// (FUSE_HANDLE_KILLPRIV_V2, which libfuse 3.14 cannot say; Linux 5.12). Then it asks neither for
// the mode before a change of owner nor for a capability before each write, and tells of a write
// that shall take them by a SETATTR that sets nothing.
bool storage_takes_set_id();

// After the session is mounted and before its loop. Throws std::runtime_error.
void take_newer_requests(fuse_session *);

} // namespace coop::shim
