// SPDX-License-Identifier: MIT
// main.cpp - coopfsd. Apart from the rest, so that the linker meets program.cpp before
// arguments.cpp (see CMakeLists.txt).
#include "userland/daemon/arguments.hpp"
#include "userland/daemon/program.hpp"

int main(int argc, char **argv)
{
	coop::daemon::arguments a;
	if (const auto status = coop::daemon::read_command_line(argc, argv, a))
		return *status;
	return coop::daemon::run(a, coop::daemon::read_config);
}
