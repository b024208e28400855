// SPDX-License-Identifier: MIT
// process.cpp - see process.hpp. A child gets our standard streams, so its error messages reach the
// user unchanged.
#include "userland/cli/process.hpp"

#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>

extern "C" {
#include <sys/pidfd.h> // glibc 2.36 declares these for C alone
extern char **environ;
}

namespace coop::cli
{

namespace
{

std::vector<char *> pointers(const std::vector<std::string> &argv)
{
	std::vector<char *> out;
	for (const auto &a : argv)
		out.push_back(const_cast<char *>(a.c_str()));
	out.push_back(nullptr);
	return out;
}

bool executable(const std::filesystem::path &path)
{
	std::error_code ec;
	return std::filesystem::is_regular_file(path, ec) && ::access(path.c_str(), X_OK) == 0;
}

failure cannot_start(const std::string &program, int err)
{
	return {status_of(err), "cannot start " + program + ": " + std::strerror(err)};
}

} // namespace

int milliseconds_until(deadline d)
{
	using namespace std::chrono;
	const auto left = ceil<milliseconds>(d - steady_clock::now()).count();
	return static_cast<int>(std::clamp<long long>(left, 0, 1 << 30));
}

std::string find_program(const std::string &name)
{
	std::error_code ec;
	const auto self = std::filesystem::read_symlink("/proc/self/exe", ec);
	if (!ec && executable(self.parent_path() / name))
		return (self.parent_path() / name).string();
	const char *path = std::getenv("PATH");
	std::istringstream dirs(path ? path : "/usr/local/bin:/usr/bin:/bin");
	for (std::string dir; std::getline(dirs, dir, ':');)
		if (!dir.empty() && executable(std::filesystem::path(dir) / name))
			return (std::filesystem::path(dir) / name).string();
	return {};
}

result<process> process::start(const std::vector<std::string> &argv)
{
	pid_t pid = -1;
	if (const int err = posix_spawn(&pid, argv[0].c_str(), nullptr, nullptr,
					pointers(argv).data(), environ))
		return cannot_start(argv[0], err);
	unique_fd fd(pidfd_open(pid, 0));
	if (!fd) {
		const int err = errno;
		::kill(pid, SIGTERM); // our child, not reaped yet: the pid is still its own
		::waitpid(pid, nullptr, 0);
		return cannot_start(argv[0], err);
	}
	return process(pid, std::move(fd));
}

std::optional<process> process::adopt(pid_t pid)
{
	unique_fd fd(pidfd_open(pid, 0));
	return fd ? std::optional(process(pid, std::move(fd))) : std::nullopt;
}

bool process::ended_by(deadline d) const
{
	pollfd p{fd_.get(), POLLIN, 0};
	for (;;) {
		const int n = ::poll(&p, 1, milliseconds_until(d));
		if (n > 0)
			return true;
		if (n == 0 || errno != EINTR)
			return false;
	}
}

int process::reap() const
{
	int status = 0;
	while (::waitpid(pid_, &status, 0) < 0)
		if (errno != EINTR)
			return 255;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void process::signal(int number) const
{
	pidfd_send_signal(fd_.get(), number, nullptr, 0);
}

failure become(const std::vector<std::string> &argv)
{
	::execv(argv[0].c_str(), pointers(argv).data());
	return cannot_start(argv[0], errno);
}

} // namespace coop::cli
