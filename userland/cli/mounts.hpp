// SPDX-License-Identifier: MIT
// mounts.hpp - the coopfs mounts of this mount namespace.
//
// /proc/self/mountinfo is the only source: it is the kernel's own view, lists FUSE and kernel
// mounts alike, and can be read when a mount is dead and every path into it fails.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "userland/cli/result.hpp"

namespace coop::cli
{

struct mount_entry {
	std::string mountpoint;
	std::string type;   // coopfs: the kernel module; fuse.coopfs: coopfs-fuse
	std::string source; // SERVER[:PORT]:/EXPORT
	unsigned long id = 0;
	unsigned dev_minor = 0; // of st_dev; the mount's directory in /proc/fs/coopfs

	bool is_coopfs() const { return type == "coopfs" || type == "fuse.coopfs"; }
};

// Lines that are not mountinfo are ignored; octal escapes are decoded. Mounts hidden by a later
// mount at the same place are left out.
std::vector<mount_entry> parse_mountinfo(std::string_view text);

// Decodes \040 and similar escapes, as the kernel writes blanks in a path.
std::string unescape_octal(std::string_view text);

// The mount that contains 'path' (absolute, normal), of any type.
std::optional<mount_entry> mount_of(const std::vector<mount_entry> &mounts, std::string_view path);

result<std::vector<mount_entry>> read_mounts();

// Absolute and free of symbolic links; works for a dead mount if its parent can be resolved.
std::string canonical(const std::string &path);

// The mount that a command line means: the one that contains 'path' or, if path is empty, the only
// one.
result<mount_entry> choose_mount(const std::string &path);

// The same for commands for many mounts: every coopfs mount if 'paths' is empty.
result<std::vector<mount_entry>> choose_mounts(const std::vector<std::string> &paths);

} // namespace coop::cli
