// SPDX-License-Identifier: MIT
// state_directory.hpp - the daemon's own directory, for what must survive a restart.
//
// Whoever can write there chooses the key of the file handles, holds up all locks, and makes a
// daemon of root write where a link leads. So the directory belongs to the daemon's user and nobody
// else may write to it: the daemon does not start otherwise. All names in it are resolved from its
// descriptor, never through a link. A file in it that is not the daemon's own, and secret, counts
// as forged.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coop/unique_fd.hpp"
#include "userland/daemon/whole_file.hpp"

namespace coop::daemon
{

class state_directory
{
public:
	// Opens the directory, and makes it if it is missing. If that fails error() says why, and
	// so does each call: the daemon can do without. Throws std::runtime_error, with a text that
	// tells the administrator what to change, if others may change what is in it.
	explicit state_directory(std::string path);
	// A directory in this one.
	[[nodiscard]] state_directory below(const std::string &name) const;
	// Where it is if the administrator does not say: depends on the user.
	static std::string usual_path();

	const std::string &path() const { return path_; }
	// 0 or -errno.
	[[nodiscard]] int error() const { return error_; }

	// All return 0 or -errno. Files have mode 0600.
	// -ENOENT: there is no such file. -EPERM: there is, but it may be somebody else's work.
	[[nodiscard]] int read(const std::string &name, std::string &bytes) const;
	// -EEXIST: there is one.
	[[nodiscard]] int create(const std::string &name, std::string_view bytes, synced) const;
	[[nodiscard]] int replace(const std::string &name, std::string_view bytes, synced) const;
	// -ENOENT: there is no such file, and with synced::yes none will come back.
	int remove(const std::string &name, synced = synced::no) const;
	// What was removed until now does not come back.
	[[nodiscard]] int sync() const;
	// Opens a file for reading and writing, and makes it if it is missing.
	[[nodiscard]] int open(const std::string &name, unique_fd &out) const;
	// Files that read() would read.
	[[nodiscard]] std::vector<std::string> names() const;

private:
	state_directory(std::string path, unique_fd, int error);

	std::string path_; // for messages
	unique_fd dir_;
	int error_ = 0;
};

} // namespace coop::daemon
