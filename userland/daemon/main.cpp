// SPDX-License-Identifier: MIT
// main.cpp - coopfsd: options, signals, start and end.
//
// SIGTERM and SIGINT let running requests finish, then end the daemon. SIGUSR1 writes the counters;
// SIGHUP reads the log level from the configuration again. One thread waits for signals, so no
// handler ever runs.
#include <CLI/CLI.hpp>
#include <csignal>
#include <fstream>
#include <linux/capability.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <toml++/toml.h>
#include <unistd.h>

#include "userland/daemon/server.hpp"

namespace
{

struct options {
	coop::daemon::settings server;
	std::vector<std::string> exports;
	std::string config, log_level, pid_file;
	int ready_fd = -1;
};

// The command line overrides the file.
void read_config(options &o)
{
	if (o.config.empty())
		return;
	toml::table t;
	try {
		t = toml::parse_file(o.config);
	} catch (const toml::parse_error &e) {
		throw std::runtime_error(o.config + ": line " +
					 std::to_string(e.source().begin.line) + ": " +
					 std::string(e.description()));
	}
	const auto text = [&](std::string_view key, std::string &out) {
		if (auto v = t[key].value<std::string>(); v && out.empty())
			out = *v;
	};
	for (const auto &[key, value] : t) {
		static const std::set<std::string_view> known = {
			"export", "listen",  "key",        "log-level",      "pid-file",
			"state",  "threads", "stats-file", "max-connections"};
		if (!known.contains(key.str()))
			throw std::runtime_error(o.config + ": unknown setting '" +
						 std::string(key.str()) + "'");
	}
	text("listen", o.server.listen);
	text("key", o.server.key_file);
	text("log-level", o.log_level);
	text("pid-file", o.pid_file);
	text("state", o.server.state_dir);
	text("stats-file", o.server.stats_file);
	o.server.threads = t["threads"].value_or(o.server.threads);
	o.server.max_connections = t["max-connections"].value_or(o.server.max_connections);
	if (!t.contains("export"))
		return;
	const toml::table *exports = t["export"].as_table();
	if (!exports)
		throw std::runtime_error(o.config +
					 ": 'export' is a table: [export] NAME = \"PATH\"");
	for (const auto &[name, path] : *exports) {
		const auto p = path.value<std::string>();
		if (!p)
			throw std::runtime_error(o.config + ": export " + std::string(name.str()) +
						 ": the path is a string");
		o.server.exports.push_back(coop::daemon::parse_export(name.str(), *p));
	}
}

void set_log_level(const std::string &level)
{
	const auto l = spdlog::level::from_str(level.empty() ? "info" : level);
	if (l == spdlog::level::off && level != "off")
		throw coop::daemon::usage_error(
			"log level '" + level +
			"': one of trace debug info warning error critical off");
	spdlog::set_level(l);
}

void add_exports(options &o)
{
	for (const std::string &e : o.exports) {
		try {
			const auto [name, path] = coop::daemon::split_export(e);
			o.server.exports.push_back(coop::daemon::parse_export(name, path));
		} catch (const std::runtime_error &bad) {
			throw coop::daemon::usage_error(bad.what());
		}
	}
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

int serve(options &o)
{
	sigset_t wanted;
	sigemptyset(&wanted);
	for (int s : {SIGTERM, SIGINT, SIGUSR1, SIGHUP})
		sigaddset(&wanted, s);
	::pthread_sigmask(SIG_BLOCK, &wanted, nullptr);

	drop_resource_capability(); // of this thread, hence of those that it creates
	coop::daemon::server server(o.server);
	if (!o.pid_file.empty() && !(std::ofstream(o.pid_file) << ::getpid() << '\n'))
		throw std::runtime_error("--pid-file " + o.pid_file + ": " + std::strerror(errno));
	if (o.ready_fd >= 0) {
		const std::string line = std::to_string(server.port()) + "\n";
		if (::write(o.ready_fd, line.data(), line.size()) !=
		    static_cast<ssize_t>(line.size()))
			throw std::runtime_error("--ready-fd " + std::to_string(o.ready_fd) + ": " +
						 std::strerror(errno));
		::close(o.ready_fd);
	}
	for (;;) {
		int got = 0;
		if (::sigwait(&wanted, &got))
			continue;
		if (got == SIGUSR1) {
			server.write_stats();
			spdlog::info("{}", server.stats_text());
			server.log_connections();
		} else if (got == SIGHUP) {
			try {
				options again;
				again.config = o.config;
				read_config(again);
				if (!again.log_level.empty())
					set_log_level(again.log_level);
				spdlog::info("configuration read again (log level)");
			} catch (const std::exception &e) {
				spdlog::error("{}", e.what());
			}
		} else {
			spdlog::info("ending: {}", ::strsignal(got));
			server.drain();
			break;
		}
	}
	if (!o.pid_file.empty())
		::unlink(o.pid_file.c_str());
	return 0;
}

} // namespace

int main(int argc, char **argv)
{
	options o;
	spdlog::set_default_logger(spdlog::stderr_color_mt("coopfsd"));
	spdlog::set_pattern("%Y-%m-%d %H:%M:%S.%e coopfsd %^%l%$: %v");
	CLI::App app{"Exports directory trees to coopfs clients.", "coopfsd"};
	app.set_version_flag("-V,--version", "coopfsd " COOP_VERSION);
	app.add_option("--export", o.exports,
		       "NAME[,OPTION]...=PATH: serve PATH as /NAME (may be given more than once); "
		       "options: dev (default), nodev, rw (default), ro, root_squash, all_squash, "
		       "anonuid=UID, anongid=GID, clients=NETWORK");
	app.add_option(
		"--listen", o.server.listen,
		"ADDR[:PORT]; default: 127.0.0.1, with a cluster key all addresses; port 17430");
	app.add_option("--key", o.server.key_file,
		       "cluster key: a file of at least 32 bytes, mode 0600");
	app.add_option("--config", o.config, "settings in TOML; the command line overrides them");
	app.add_option("--log-level", o.log_level, "trace debug info warning error critical off");
	app.add_option("--pid-file", o.pid_file, "file for the process id");
	app.add_option("--ready-fd", o.ready_fd,
		       "descriptor to write \"PORT\\n\" to once the daemon listens");
	app.add_option("--stats-file", o.server.stats_file,
		       "file for counters, written on SIGUSR1 and at exit");
	app.add_option("--state", o.server.state_dir,
		       "directory for state that must survive a restart");
	app.add_option("--threads", o.server.threads, "threads that execute requests")
		->check(CLI::Range(1, 1024));
	app.add_option("--max-connections", o.server.max_connections, "most clients at once")
		->check(CLI::Range(1, 65536));
	try {
		app.parse(argc, argv);
	} catch (const CLI::ParseError &e) {
		return app.exit(e) == 0 ? 0 : 2;
	}
	try {
		read_config(o);
		set_log_level(o.log_level);
		add_exports(o);
		return serve(o);
	} catch (const coop::daemon::usage_error &e) {
		spdlog::critical("{}", e.what());
		return 2;
	} catch (const std::exception &e) {
		spdlog::critical("{}", e.what());
		return 1;
	}
}
