// SPDX-License-Identifier: MIT
// main.cpp - the program: arguments, daemonising, logging.
//
// The parent waits until the mount is usable and then exits with 0. Errors before that go to its
// standard error and exit code; later errors go to the system log.
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <getopt.h>
#include <memory>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/sinks/syslog_sink.h>
#include <spdlog/spdlog.h>

#include "coop/process_limits.hpp"
#include "fuse-shim/session.hpp"
#include "fuse-shim/signals.hpp"

namespace
{

enum exit_code { exit_ok = 0, exit_usage = 1, exit_failed = 32 }; // as mount(8)

struct arguments {
	std::string source, mountpoint, options;
	bool foreground = false;
	bool verbose = false;
};

void print_help()
{
	fmt::print("usage: coopfs-fuse SERVER[:PORT]:/EXPORT MOUNTPOINT [-o OPTION[,...]] [-f]\n\n"
		   "  -f  stay in the foreground, log to standard error\n"
		   "  -d  log more\n  -h  this text\n  -V  version\n\noptions:\n");
	for (const auto &[name, takes] : coop::client::option_help())
		fmt::print("  {}{}{}\n", name, takes.empty() ? "" : "=", takes);
}

[[noreturn]] void usage_error(std::string_view text)
{
	fmt::print(stderr, "coopfs-fuse: {}\ncoopfs-fuse: try -h for help\n", text);
	std::exit(exit_usage);
}

arguments parse(int argc, char **argv)
{
	arguments a;
	static const option words[] = {
		{"help", no_argument, nullptr, 'h'}, {"version", no_argument, nullptr, 'V'}, {}};
	for (int c; (c = getopt_long(argc, argv, "o:fdhV", words, nullptr)) != -1;) {
		switch (c) {
		case 'o':
			a.options += (a.options.empty() ? "" : ",") + std::string(optarg);
			break;
		case 'f':
			a.foreground = true;
			break;
		case 'd':
			a.verbose = true;
			break;
		case 'h':
			print_help();
			std::exit(exit_ok);
		case 'V':
			fmt::print("coopfs-fuse {}\n", COOP_VERSION);
			std::exit(exit_ok);
		default:
			fmt::print(stderr, "coopfs-fuse: try -h for help\n");
			std::exit(exit_usage);
		}
	}
	if (argc - optind != 2)
		usage_error("give a source and a mount point");
	a.source = argv[optind];
	std::unique_ptr<char, void (*)(void *)> path(realpath(argv[optind + 1], nullptr),
						     std::free);
	if (!path)
		usage_error(fmt::format("mount point '{}': {}", argv[optind + 1], strerror(errno)));
	a.mountpoint = path.get();
	return a;
}

void log_to(spdlog::sink_ptr sink, bool verbose)
{
	auto logger = std::make_shared<spdlog::logger>("coopfs-fuse", std::move(sink));
	logger->set_level(verbose ? spdlog::level::debug : spdlog::level::info);
	spdlog::set_default_logger(std::move(logger));
}

// In the parent: exits when the child reports that the mount is usable, or with the child's exit
// code.
[[noreturn]] void wait_for_child(pid_t child, int pipe)
{
	char byte;
	ssize_t n;
	do
		n = read(pipe, &byte, 1);
	while (n < 0 && errno == EINTR);
	if (n == 1)
		_exit(exit_ok);
	int status = 0;
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	_exit(WIFEXITED(status) && WEXITSTATUS(status) ? WEXITSTATUS(status) : exit_failed);
}

// Returns in the child, with the pipe to the parent.
int go_to_background()
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC) != 0)
		usage_error(fmt::format("pipe: {}", strerror(errno)));
	pid_t child = fork();
	if (child < 0)
		usage_error(fmt::format("fork: {}", strerror(errno)));
	if (child > 0) {
		close(ends[1]);
		wait_for_child(child, ends[0]);
	}
	close(ends[0]);
	setsid();
	return ends[1];
}

// Releases the caller's terminal, directory and pipes.
void detach(int tell, bool verbose)
{
	log_to(std::make_shared<spdlog::sinks::syslog_sink_mt>("coopfs-fuse", LOG_PID, LOG_DAEMON,
							       false),
	       verbose);
	if (chdir("/") != 0)
		spdlog::warn("cannot change to /");
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null >= 0) {
		for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
			dup2(null, fd);
		close(null);
	}
	char byte = 1;
	if (write(tell, &byte, 1) != 1)
		spdlog::warn("the parent process has gone");
	close(tell);
}

int serve(const arguments &a, const coop::client::mount_options &options, int tell)
{
	try {
		coop::shim::session session(options, a.mountpoint);
		int err = session.run([&] {
			if (tell >= 0)
				detach(tell, a.verbose);
			spdlog::info("{} is mounted on {}", coop::client::format_source(options),
				     a.mountpoint);
		});
		spdlog::info("{} is unmounted", a.mountpoint);
		return err < 0 ? exit_failed : exit_ok;
	} catch (const std::exception &e) {
		spdlog::error("{}: {}", a.source, e.what());
		return exit_failed;
	}
}

} // namespace

int main(int argc, char **argv)
{
	arguments a = parse(argc, argv);
	coop::client::mount_options options;
	if (auto wrong = coop::client::parse_source(a.source, options))
		usage_error(*wrong);
	if (auto wrong = coop::client::parse_options(a.options, options))
		usage_error(*wrong);
	int tell = a.foreground ? -1 : go_to_background();
	auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
	sink->set_pattern("coopfs-fuse: %v");
	log_to(std::move(sink), a.verbose);
	// The page store is a file to the kernel, and devices pin it.
	(void)coop::raise_file_size_limit();
	(void)coop::raise_limit(RLIMIT_MEMLOCK);
	(void)coop::raise_limit(RLIMIT_NOFILE);
	coop::shim::block_ending_signals();
	return serve(a, options, tell);
}
