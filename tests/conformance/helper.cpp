// SPDX-License-Identifier: MIT
// helper.cpp - see helper.hpp.
//
// The helper says READY on a pipe, and its descriptors in hexadecimal; an earlier end of the pipe
// means that it could not start.
#include "helper.hpp"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <spawn.h>
#include <sstream>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>

namespace conformance
{

namespace
{

std::string program()
{
	char self[4096];
	const ssize_t n = ::readlink("/proc/self/exe", self, sizeof(self) - 1);
	const std::string path(self, n > 0 ? static_cast<std::size_t>(n) : 0);
	const std::string tests = path.substr(0, path.rfind('/'));
	const std::string beside = tests + "/conformance-peer"; // all in one directory
	if (::access(beside.c_str(), X_OK) == 0)
		return beside;
	return tests.substr(0, tests.rfind('/')) + "/conformance-peer";
}

std::vector<std::byte> from_hex(const std::string &text)
{
	std::vector<std::byte> all;
	for (std::size_t at = 0; at + 1 < text.size(); at += 2)
		all.push_back(std::byte(std::stoul(text.substr(at, 2), nullptr, 16)));
	return all;
}

} // namespace

helper::helper(const target &t, const std::string &address)
{
	int ready[2];
	if (::pipe2(ready, O_CLOEXEC))
		throw std::system_error(errno, std::generic_category(), "pipe");
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ready[1], STDOUT_FILENO);
	const std::string path = program();
	::setenv("COOP_CONFORMANCE_PID", std::to_string(::getpid()).c_str(), 1);
	const char *argv[] = {path.c_str(), t.label.c_str(), address.c_str(), nullptr};
	const int r = ::posix_spawn(&pid_, path.c_str(), &actions, nullptr,
				    const_cast<char *const *>(argv), environ);
	posix_spawn_file_actions_destroy(&actions);
	::close(ready[1]);
	std::string line;
	for (char c = 0; r == 0 && c != '\n' && ::read(ready[0], &c, 1) == 1;)
		line += c;
	::close(ready[0]);
	if (r) {
		pid_ = -1;
		throw std::system_error(r, std::generic_category(), path);
	}
	std::string word, to_read, to_write;
	if (!(std::istringstream(line) >> word >> to_read >> to_write)) {
		kill();
		throw std::system_error(ECHILD, std::generic_category(), path + " did not start");
	}
	readable = from_hex(to_read);
	writable = from_hex(to_write);
}

void helper::freeze()
{
	int status;
	if (::kill(pid_, SIGSTOP) || ::waitpid(pid_, &status, WUNTRACED) != pid_)
		throw std::system_error(errno, std::generic_category(), "SIGSTOP");
}

void helper::thaw()
{
	if (::kill(pid_, SIGCONT))
		throw std::system_error(errno, std::generic_category(), "SIGCONT");
}

void helper::kill()
{
	if (pid_ <= 0)
		return;
	::kill(pid_, SIGKILL);
	::waitpid(pid_, nullptr, 0);
	pid_ = -1;
}

} // namespace conformance
