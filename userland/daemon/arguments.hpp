// SPDX-License-Identifier: MIT
// arguments.hpp - what coopfsd is told: its command line, and its configuration file.
//
// Plain values: the libraries that read them are known to arguments.cpp alone. They take long to
// compile, and nothing that serves requests may use their code (see CMakeLists.txt).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace coop::daemon
{

struct arguments {
	std::vector<std::string> exports; // NAME[,OPTION]...=PATH, from the command line
	// NAME[,OPTION]... and PATH, from the file
	std::vector<std::pair<std::string, std::string>> configured_exports;
	std::string config; // path of the file; empty: none
	std::string listen, key_file, state_dir, stats_file, log_level, pid_file; // empty: default
	std::optional<unsigned> threads, max_connections;                         // none: default
	int ready_fd = -1;
};

// Reads the command line. A value: nothing is left to do but to exit with this status, because the
// help or the version was asked for and is printed (0), or because the usage is wrong and is
// explained on standard error (2).
[[nodiscard]] std::optional<int> read_command_line(int argc, char **argv, arguments &out);

// Adds what the file at .config says and the command line did not. Throws std::runtime_error with
// a text that tells the administrator what to change.
void read_config(arguments &);

} // namespace coop::daemon
