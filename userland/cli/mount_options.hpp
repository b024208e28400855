// SPDX-License-Identifier: MIT
// mount_options.hpp - sorts the options after -o: those for mount(8) and fstab only, flags of
// mount(2), and options of the file system.
#pragma once

#include <string>
#include <vector>

#include "userland/cli/result.hpp"

namespace coop::cli
{

struct mount_options {
	unsigned long flags = 0;          // MS_*
	unsigned long said = 0;           // those that an option set or cleared
	bool remount = false;             // the option "remount"
	std::vector<std::string> generic; // the options that gave 'flags', for a FUSE server
	std::vector<std::string> fs;      // the rest, as written

	std::string fs_text() const;   // "a,b"
	std::string fuse_text() const; // "ro,a,b"
};

// Later options override earlier ones (ro,rw). Empty ones are ignored.
mount_options sort_options(const std::vector<std::string> &lists);

// SERVER[,SERVER...][:PORT]:/EXPORT, SERVER a name, an IPv4 address or an IPv6 address in brackets.
struct mount_spec {
	std::vector<std::string> servers; // without brackets; one port for all
	std::string port, export_path;    // port may be empty; export_path begins with '/'
};
result<mount_spec> parse_spec(const std::string &text);

} // namespace coop::cli
