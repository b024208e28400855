// SPDX-License-Identifier: MIT
// local_server.cpp - see local_server.hpp.
#include "local_server.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>

extern char **environ;

namespace coop::net_tools
{

namespace
{

struct pipe_ends {
	int read = -1, write = -1;

	bool open()
	{
		int fds[2];
		if (::pipe2(fds, O_CLOEXEC))
			return false;
		read = fds[0];
		write = fds[1];
		return true;
	}
	~pipe_ends()
	{
		for (const int fd : {read, write})
			if (fd >= 0)
				::close(fd);
	}
};

// Reads up to the end of a line or of the file.
std::string read_line(int fd)
{
	std::string line;
	char c;
	for (;;) {
		const ssize_t n = ::read(fd, &c, 1);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0 || c == '\n')
			return line;
		line += c;
	}
}

std::vector<std::string> arguments(const settings &s, const std::string &address)
{
	std::vector<std::string> a = {"coopnet",   "serve",      "--until-eof",   "-t",
				      s.transport, "--progress", name(s.progress)};
	for (const auto &[key, value] : s.parameters) {
		a.push_back("-o");
		a.push_back(key + "=" + value);
	}
	for (const unsigned c : s.cpus) {
		a.push_back("--cpus");
		a.push_back(std::to_string(c));
	}
	a.push_back(address);
	return a;
}

} // namespace

local_server::~local_server()
{
	if (thread_.joinable()) {
		station_->reach(end_);
		thread_.join();
	}
	if (in_ >= 0)
		::close(in_);
	while (pid_ > 0 && ::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR)
		;
}

trouble local_server::start(const settings &s, bool within_process)
{
	const unsigned pid = static_cast<unsigned>(::getpid());
	address_ = "127." + std::to_string(1 + pid / 254 % 250) + '.' +
		   std::to_string(1 + pid % 254) + ".1@tcp:12345:31:0";
	return within_process ? start_thread(s) : start_process(s);
}

trouble local_server::start_thread(const settings &s)
{
	station_ = std::make_unique<station>(s);
	server_ = std::make_unique<server>(*station_, server::limits{}, end_);
	if (trouble t = server_->start(address_))
		return t;
	thread_ = std::thread([this, cpus = s.cpus] {
		sigset_t all; // signals go to the measuring side
		sigfillset(&all);
		pthread_sigmask(SIG_BLOCK, &all, nullptr);
		(void)confine_thread(cpus); // start() has refused missing processors
		(void)server_->run();       // its clients see the error
	});
	return {};
}

trouble local_server::start_process(const settings &s)
{
	pipe_ends in, out;
	if (!in.open() || !out.open())
		return failure{exit_failure, std::string("no server: ") + std::strerror(errno)};
	std::vector<std::string> words = arguments(s, address_);
	std::vector<char *> args;
	for (std::string &w : words)
		args.push_back(w.data());
	args.push_back(nullptr);
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, in.read, 0);
	posix_spawn_file_actions_adddup2(&actions, out.write, 1);
	const int status =
		::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, args.data(), environ);
	posix_spawn_file_actions_destroy(&actions);
	if (status) {
		pid_ = -1;
		return failure{exit_failure,
			       std::string("no server: /proc/self/exe cannot be run: ") +
				       std::strerror(status)};
	}
	in_ = std::exchange(in.write, -1);
	::close(std::exchange(out.write, -1));
	if (!read_line(out.read).empty())
		return {};
	return failure{exit_failure,
		       "the server on this machine has not started; see its message above"};
}

} // namespace coop::net_tools
