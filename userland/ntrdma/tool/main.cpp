// SPDX-License-Identifier: MIT
// main.cpp - coop-verbs: runs verbs programs on the software device, shows its state, and joins
// network namespaces by its rings.
//
// `run` names the directory of the stand-in libraries to the dynamic linker, before all others,
// and becomes the program. A preloaded library of two functions shows the device's file to programs
// that look for it. Nothing of the program is changed, and nothing remains afterwards.
#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <unistd.h>

#include "userland/ntrdma/tool/ether.hpp"
#include "userland/ntrdma/tool/info.hpp"

namespace
{

/// The directory of the stand-ins, beside the directory of this program; empty if not there.
std::string libraries()
{
	char self[PATH_MAX], real[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	if (n < 0)
		return {};
	self[n] = 0;
	std::string dir =
		std::string{self}.substr(0, std::string{self}.rfind('/')) + "/../lib/coop-verbs";
	if (!realpath(dir.c_str(), real) || access((dir + "/libibverbs.so.1").c_str(), R_OK))
		return {};
	return real;
}

/// Puts a word before those that the variable has.
void put_first(const char *variable, const std::string &word)
{
	const char *before = std::getenv(variable);
	setenv(variable, (before && *before ? word + ":" + before : word).c_str(), 1);
}

int run(std::vector<std::string> &words)
{
	std::string dir = libraries();
	if (dir.empty()) {
		std::fprintf(stderr, "coop-verbs: its libraries are not in ../lib/coop-verbs\n");
		return 125;
	}
	if (dir.find_first_of(":;") != std::string::npos) {
		std::fprintf(stderr,
			     "coop-verbs: the dynamic linker takes no directory with ':' or ';' in "
			     "its name: %s\n",
			     dir.c_str());
		return 125;
	}
	put_first("LD_LIBRARY_PATH", dir);
	// By its name alone, which that directory completes: a path may have spaces.
	put_first("LD_PRELOAD", "libcoop-verbs-paths.so");
	std::vector<char *> argv;
	for (std::string &w : words)
		argv.push_back(w.data());
	argv.push_back(nullptr);
	execvp(argv[0], argv.data());
	std::fprintf(stderr, "coop-verbs: %s: %s\n", argv[0], std::strerror(errno));
	return errno == ENOENT ? 127 : 126;
}

int info(bool json)
{
	std::vector<unsigned> silent;
	auto all = coop::ntrdma::ask_all(&silent);
	if (json) {
		nlohmann::json out = {{"processes", all}, {"silent", silent}};
		std::printf("%s\n", out.dump(2).c_str());
		return 0;
	}
	if (all.empty() && silent.empty())
		std::printf("no process of this user has the device open\n");
	std::printf("%s", coop::ntrdma::table_of(all).c_str());
	for (unsigned slot : silent)
		std::printf("slot %u does not answer: its process is stopped or ends\n", slot);
	return 0;
}

// CLI11 says of a wrong subcommand only that one is required.
std::string wrong_usage(const CLI::App *app, const CLI::Error &e)
{
	const auto used = app->get_subcommands();
	const auto extra = app->remaining(true);
	std::string what = e.what(), help = "coop-verbs";
	if (!used.empty())
		help += " " + used.back()->get_name();
	if (help == "coop-verbs run" && !extra.empty() && extra.front().front() != '-')
		what = "the program stands after --: coop-verbs run -- " + extra.front();
	else if (used.empty())
		what = (extra.empty() ? "a subcommand is required"
				      : "'" + extra.front() + "' is no subcommand") +
		       std::string("; there are: run, info, ether");
	return "coop-verbs: " + what + "; `" + help + " --help` shows the usage\n";
}

} // namespace

int main(int argc, char **argv)
{
	// CLI11 takes words like [a,b] apart, so it does not see those of the program.
	int own = 0;
	while (own < argc && std::strcmp(argv[own], "--"))
		own++;
	std::vector<std::string> words{argv + std::min(own + 1, argc), argv + argc};
	CLI::App app{"RDMA in software for verbs programs, and Ethernet over its rings",
		     "coop-verbs"};
	app.set_version_flag("-V,--version", "coop-verbs " COOP_VERSION);
	app.require_subcommand(1);
	app.failure_message(wrong_usage);
	bool json = false, copy = false;
	unsigned bound = 0;
	auto *runs = app.add_subcommand("run", "run a program on the software device");
	runs->footer("The program and its arguments follow after --.");
	runs->add_flag("--copy", copy,
		       "copy large messages through shared memory, instead of reading them from "
		       "the peer's memory");
	runs->add_option("--bound", bound,
			 "milliseconds after which a silent peer has lost its link (10000)")
		->check(CLI::Range(100u, 3600000u));
	auto *infos = app.add_subcommand("info", "the processes that have the device open, their "
						 "queue pairs, links and rings");
	infos->add_flag("--json", json, "as JSON");
	coop::ntrdma::ether_words words_of_ether;
	auto *ether = coop::ntrdma::add_ether(app, words_of_ether);
	app.footer("Exit status of run: the program's; 125 to 127 if it could not be run.");
	try {
		app.parse(own, argv);
	} catch (const CLI::ParseError &e) {
		return app.exit(e) ? 2 : 0;
	}
	if (*runs ? words.empty() : own != argc) {
		std::fprintf(stderr, "coop-verbs: %s\n",
			     *runs ? "run takes a program and its arguments, after --"
				   : "only run takes a program");
		return 2;
	}
	if (*infos)
		return info(json);
	if (*ether)
		return coop::ntrdma::run_ether(words_of_ether);
	if (copy)
		setenv("COOP_NTRDMA_PULL", "0", 1);
	if (bound)
		setenv("COOP_NTRDMA_BOUND_MS", std::to_string(bound).c_str(), 1);
	return run(words);
}
