// SPDX-License-Identifier: MIT
// newer_requests.hpp - FUSE requests and flags of newer kernels that libfuse does not know.
//
// libfuse 3.14 refuses requests that were added to the protocol after it with ENOSYS. So we read
// the device in its place and turn such a request into one that libfuse knows and that the kernel
// never sends in that form. All else about a request (its descriptor, interrupts, the reply) stays
// with libfuse. The kernel sends all requests that it knows, whatever minor version libfuse has
// negotiated.
#pragma once

#include <string_view>

#include <fuse_lowlevel.h>

#include "userland/client/storage.hpp"

namespace coop::shim
{

// FUSE_TMPFILE arrives as a CREATE of this name, which no file can have.
constexpr std::string_view nameless = "/";

// FUSE_STATX arrives as a BMAP, which the kernel sends only for mounts of block devices. This
// function answers it. lifetime: whole seconds.
void reply_statx(fuse_req_t, const client::attributes &, double lifetime);

// Whether the kernel leaves it to us to clear the set-id bits of a file that is written, truncated
// or given away (FUSE_HANDLE_KILLPRIV_V2, Linux 5.12; libfuse 3.14 cannot negotiate it). Then it
// requests neither the mode before a change of owner nor a capability before each write, and
// reports a write that has to clear the bits by a SETATTR that sets nothing.
bool storage_takes_set_id();

// Whether the kernel can be made to ask for a name again without dropping it (Linux 6.2): known
// after INIT.
bool kernel_expires_names();
// Makes it do so. Waits for the directory's inode lock.
void expire_name(fuse_session *, fuse_ino_t dir, std::string_view name);

// Call after mounting and before the session loop. Throws std::runtime_error.
void take_newer_requests(fuse_session *);

} // namespace coop::shim
