// SPDX-License-Identifier: MIT
// mount_kernel.hpp - a mount by the kernel module.
#pragma once

#include <string>

#include "userland/cli/commands.hpp"
#include "userland/cli/mount_options.hpp"

namespace coop::cli
{

// True if this kernel has the file system; loads the module if it is installed and we may.
bool kernel_has_coopfs();

// dir: canonical. The text of a failure is the kernel's own if it gives one.
result<done> mount_kernel(const mount_request &, const mount_spec &, const std::string &dir,
			  const mount_options &);

// Changes the given options and flags; for mount(8) all flags, because it passes them all.
result<done> remount_kernel(const mount_request &, const std::string &dir, const mount_options &);

} // namespace coop::cli
