// SPDX-License-Identifier: MIT
// whole_file.hpp - writes small files so that no reader and no crash ever sees a part of one.
//
// The bytes go to a new file under a name of its own, which then takes the place of the old one. A
// link that somebody planted under either name is never followed.
#pragma once

#include <string>
#include <string_view>
#include <sys/types.h>

namespace coop::daemon
{

enum class existing { keep, replace };
enum class synced { no, yes }; // yes: on stable storage when the call returns

struct whole_file {
	mode_t mode; // less the umask
	existing old;
	synced sync;
};

// Writes 'name' in the directory. 0 or -errno; -EEXIST: the name is taken and is to be kept.
[[nodiscard]] int write_whole(int dir, const std::string &name, std::string_view bytes,
			      const whole_file &);

// Replaces a file at a path that the administrator chose, with a file that all may read. Devices
// and FIFOs are written to; a symbolic link is refused (-ELOOP).
[[nodiscard]] int publish(const std::string &path, std::string_view text);

} // namespace coop::daemon
