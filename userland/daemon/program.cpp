// SPDX-License-Identifier: MIT
// program.cpp - coopfsd: settings, signals, start and end.
//
// One thread waits for signals, so no handler ever runs.
#include "userland/daemon/program.hpp"

#include <csignal>
#include <cstring>
#include <linux/capability.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "coop/process_limits.hpp"
#include "userland/daemon/server.hpp"
#include "userland/daemon/whole_file.hpp"

namespace coop::daemon
{
namespace
{

void set_log_level(const std::string &level)
{
	const auto l = spdlog::level::from_str(level.empty() ? "info" : level);
	if (l == spdlog::level::off && level != "off")
		throw usage_error("log level '" + level +
				  "': one of trace debug info warning error critical off");
	spdlog::set_level(l);
}

settings settings_of(const arguments &a)
{
	settings s;
	s.listen = a.listen;
	s.key_file = a.key_file;
	s.state_dir = a.state_dir;
	s.stats_file = a.stats_file;
	s.threads = a.threads.value_or(s.threads);
	s.max_connections = a.max_connections.value_or(s.max_connections);
	for (const auto &[name, path] : a.configured_exports)
		s.exports.push_back(parse_export(name, path));
	for (const std::string &e : a.exports) {
		try {
			const auto [name, path] = split_export(e);
			s.exports.push_back(parse_export(name, path));
		} catch (const std::runtime_error &bad) {
			throw usage_error(bad.what());
		}
	}
	return s;
}

// Threads that act for users must not have root's privileges: CAP_SYS_RESOURCE (reserved blocks,
// quotas) is not among the capabilities that leaving fsuid 0 drops.
void drop_resource_capability()
{
	__user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	__user_cap_data_struct data[2] = {};
	if (::syscall(SYS_capget, &head, data))
		return;
	data[0].effective &= ~(1u << CAP_SYS_RESOURCE);
	data[0].permitted &= ~(1u << CAP_SYS_RESOURCE);
	::syscall(SYS_capset, &head, data);
}

// What the daemon makes for itself only its user may change. For each file that it makes in an
// export a thread takes the caller's umask (caller_umask).
void keep_others_from_writing()
{
	constexpr mode_t others_write = 022;
	::umask(::umask(others_write) | others_write);
}

sigset_t block_signals()
{
	sigset_t set;
	sigemptyset(&set);
	for (int s : {SIGTERM, SIGINT, SIGUSR1, SIGHUP})
		sigaddset(&set, s);
	::pthread_sigmask(SIG_BLOCK, &set, nullptr);
	return set;
}

// To whom the arguments name: the pid file, and the descriptor that waits for the port.
void announce(const arguments &a, std::uint16_t port)
{
	if (!a.pid_file.empty())
		if (const int err = publish(a.pid_file, std::to_string(::getpid()) + "\n"))
			throw std::runtime_error("--pid-file " + a.pid_file + ": " +
						 std::strerror(-err));
	if (a.ready_fd < 0)
		return;
	const std::string line = std::to_string(port) + "\n";
	if (::write(a.ready_fd, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
		throw std::runtime_error("--ready-fd " + std::to_string(a.ready_fd) + ": " +
					 std::strerror(errno));
	::close(a.ready_fd);
}

void renew_log_level(const arguments &a, void (*configure)(arguments &))
{
	try {
		arguments again;
		again.config = a.config;
		configure(again);
		if (!again.log_level.empty())
			set_log_level(again.log_level);
		spdlog::info("configuration read again (log level)");
	} catch (const std::exception &e) {
		spdlog::error("{}", e.what());
	}
}

void serve(const arguments &a, void (*configure)(arguments &))
{
	const sigset_t wanted = block_signals();
	keep_others_from_writing();
	if (const auto most = raise_file_size_limit(); most != RLIM_INFINITY)
		spdlog::warn("files of the exports can have {} bytes at most (ulimit -f)", most);
	drop_resource_capability(); // of this thread, hence of those that it creates
	server server(settings_of(a));
	announce(a, server.port());
	for (;;) {
		int got = 0;
		if (::sigwait(&wanted, &got))
			continue;
		if (got == SIGUSR1) {
			server.write_stats();
			spdlog::info("{}", server.stats_text());
			server.log_connections();
		} else if (got == SIGHUP) {
			renew_log_level(a, configure);
		} else {
			spdlog::info("ending: {}", ::strsignal(got));
			server.drain();
			break;
		}
	}
	if (!a.pid_file.empty())
		::unlink(a.pid_file.c_str());
}

} // namespace

int run(arguments a, void (*configure)(arguments &))
{
	spdlog::set_default_logger(spdlog::stderr_color_mt("coopfsd"));
	spdlog::set_pattern("%Y-%m-%d %H:%M:%S.%e coopfsd %^%l%$: %v");
	try {
		configure(a);
		set_log_level(a.log_level);
		serve(a, configure);
		return 0;
	} catch (const usage_error &e) {
		spdlog::critical("{}", e.what());
		return 2;
	} catch (const std::exception &e) {
		spdlog::critical("{}", e.what());
		return 1;
	}
}

} // namespace coop::daemon
