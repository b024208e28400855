// SPDX-License-Identifier: MIT
// scratch.hpp - a directory that this process uses and that disappears with it, however
// the process ends.
//
// A child waits for the end of the process, which closes its pipe, and removes the
// directory: a fuzzer leaves by _Exit(), and no process can catch SIGKILL. Create it
// before any thread.
#pragma once

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace test
{

class scratch
{
public:
	explicit scratch(const std::string &prefix)
	{
		std::string name =
			(std::filesystem::temp_directory_path() / (prefix + "-XXXXXX")).string();
		int ends[2];
		if (!::mkdtemp(name.data()) || ::pipe(ends))
			std::abort();
		path_ = name;
		child_ = ::fork();
		if (child_ < 0)
			std::abort();
		if (child_ == 0) {
			for (int s : {SIGINT, SIGTERM, SIGHUP, SIGQUIT})
				::signal(s, SIG_IGN);
			::close(ends[1]);
			for (int fd : {0, 1, 2}) // a reader of these waits for the parent only
				::close(fd);
			char none;
			while (::read(ends[0], &none, 1) < 0 && errno == EINTR) {}
			std::error_code ec;
			std::filesystem::remove_all(path_, ec);
			::_exit(0);
		}
		::close(ends[0]);
		life_ = ends[1];
		// Programs that the process starts must not inherit it: they may
		// outlive the process.
		::fcntl(life_, F_SETFD, FD_CLOEXEC);
	}
	~scratch()
	{
		::close(life_);
		::waitpid(child_, nullptr, 0);
	}
	scratch(const scratch &) = delete;
	scratch &operator=(const scratch &) = delete;
	const std::filesystem::path &path() const { return path_; }

private:
	std::filesystem::path path_;
	int life_ = -1;
	pid_t child_ = -1;
};

} // namespace test
