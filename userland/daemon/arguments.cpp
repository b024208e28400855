// SPDX-License-Identifier: MIT
// arguments.cpp - coopfsd's command line by CLI11 and its configuration file by toml++.
#include "userland/daemon/arguments.hpp"

#include <CLI/CLI.hpp>
#include <set>
#include <stdexcept>
#include <string_view>
#include <toml++/toml.h>

namespace coop::daemon
{

namespace
{

constexpr int most_threads = 1024, most_connections = 65536;

} // namespace

std::optional<int> read_command_line(int argc, char **argv, arguments &out)
{
	CLI::App app{"Exports directory trees to coopfs clients.", "coopfsd"};
	app.set_version_flag("-V,--version", "coopfsd " COOP_VERSION);
	app.add_option("--export", out.exports,
		       "NAME[,OPTION]...=PATH: serve PATH as /NAME (may be given more than once); "
		       "options: dev (default), nodev, rw (default), ro, root_squash, all_squash, "
		       "anonuid=UID, anongid=GID, clients=NETWORK");
	app.add_option(
		"--listen", out.listen,
		"ADDR[:PORT]; default: 127.0.0.1, with a cluster key all addresses; port 17430");
	app.add_option("--key", out.key_file,
		       "cluster key: a file of at least 32 bytes, mode 0600");
	app.add_option("--config", out.config, "settings in TOML; the command line overrides them");
	app.add_option("--log-level", out.log_level, "trace debug info warning error critical off");
	app.add_option("--pid-file", out.pid_file, "file for the process id");
	app.add_option("--ready-fd", out.ready_fd,
		       "descriptor to write \"PORT\\n\" to once the daemon listens");
	app.add_option("--stats-file", out.stats_file,
		       "file for counters, written on SIGUSR1 and at exit");
	app.add_option("--state", out.state_dir, "directory for state that must survive a restart");
	app.add_option("--threads", out.threads, "threads that execute requests")
		->check(CLI::Range(1, most_threads));
	app.add_option("--max-connections", out.max_connections, "most clients at once")
		->check(CLI::Range(1, most_connections));
	app.failure_message([](const CLI::App *, const CLI::Error &e) {
		return std::string("coopfsd: ") + e.what() + "; `coopfsd --help` shows the usage\n";
	});
	try {
		app.parse(argc, argv);
	} catch (const CLI::ParseError &e) {
		return app.exit(e) == 0 ? 0 : 2;
	}
	return std::nullopt;
}

void read_config(arguments &a)
{
	if (a.config.empty())
		return;
	toml::table t;
	try {
		t = toml::parse_file(a.config);
	} catch (const toml::parse_error &e) {
		const auto line = e.source().begin.line; // 0: the file could not be read at all
		throw std::runtime_error(a.config + ": " +
					 (line ? "line " + std::to_string(line) + ": " : "") +
					 std::string(e.description()));
	}
	for (const auto &[key, value] : t) {
		static const std::set<std::string_view> known = {
			"export", "listen",  "key",        "log-level",      "pid-file",
			"state",  "threads", "stats-file", "max-connections"};
		if (!known.contains(key.str()))
			throw std::runtime_error(a.config + ": unknown setting '" +
						 std::string(key.str()) + "'");
	}
	const auto text = [&](std::string_view key, std::string &out) {
		if (!t.contains(key))
			return;
		const auto v = t[key].value<std::string>();
		if (!v)
			throw std::runtime_error(a.config + ": '" + std::string(key) +
						 "' is a string: " + std::string(key) +
						 " = \"...\"");
		if (out.empty())
			out = *v;
	};
	text("listen", a.listen);
	text("key", a.key_file);
	text("log-level", a.log_level);
	text("pid-file", a.pid_file);
	text("state", a.state_dir);
	text("stats-file", a.stats_file);
	const auto number = [&](std::string_view key, int most, std::optional<unsigned> &out) {
		if (!t.contains(key))
			return;
		const auto v = t[key].value_exact<std::int64_t>();
		if (!v || *v < 1 || *v > most)
			throw std::runtime_error(a.config + ": '" + std::string(key) +
						 "' is a number from 1 to " + std::to_string(most));
		if (!out)
			out = static_cast<unsigned>(*v);
	};
	number("threads", most_threads, a.threads);
	number("max-connections", most_connections, a.max_connections);
	if (!t.contains("export"))
		return;
	const toml::table *exports = t["export"].as_table();
	if (!exports)
		throw std::runtime_error(a.config +
					 ": 'export' is a table: [export] NAME = \"PATH\"");
	for (const auto &[name, path] : *exports) {
		const auto p = path.value<std::string>();
		if (!p)
			throw std::runtime_error(a.config + ": export " + std::string(name.str()) +
						 ": the path is a string");
		a.configured_exports.emplace_back(name.str(), *p);
	}
}

} // namespace coop::daemon
