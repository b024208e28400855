// SPDX-License-Identifier: MIT
// mounts.hpp - the coopfs mounts of this mount namespace.
//
// /proc/self/mountinfo is the only source: it is what the kernel believes, it
// names FUSE and kernel mounts alike, and it can be read when a mount itself is
// dead and every path into it fails.
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
	unsigned dev_minor = 0; // of st_dev; the kernel module's name for the mount in /proc

	bool is_coopfs() const { return type == "coopfs" || type == "fuse.coopfs"; }
};

// Lines that are not mountinfo are passed over; octal escapes are undone. What a later mount at
// the same place hides is left out.
std::vector<mount_entry> parse_mountinfo(std::string_view text);

// \040 and the like, as the kernel writes blanks in a path.
std::string unescape_octal(std::string_view text);

// The mount that 'path' (absolute, normal) lies in, whatever its type.
std::optional<mount_entry> mount_of(const std::vector<mount_entry> &mounts, std::string_view path);

result<std::vector<mount_entry>> read_mounts();

// Absolute and free of symbolic links; of a dead mount, too, as far as its parent allows.
std::string canonical(const std::string &path);

// The mount that a command line means: the one that 'path' lies in or, if path is empty, the only
// one that there is.
result<mount_entry> choose_mount(const std::string &path);

// The same for commands that look at many: every coopfs mount if 'paths' is empty.
result<std::vector<mount_entry>> choose_mounts(const std::vector<std::string> &paths);

} // namespace coop::cli
