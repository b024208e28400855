// SPDX-License-Identifier: MIT
// process.hpp - starts a helper program, and waits for a process that may not be our child, without
// a race on its pid.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "userland/cli/result.hpp"
#include "userland/include/coop/unique_fd.hpp"

namespace coop::cli
{

using deadline = std::chrono::steady_clock::time_point;

inline deadline deadline_after(double seconds)
{
	using namespace std::chrono;
	return steady_clock::now() +
	       duration_cast<steady_clock::duration>(duration<double>(seconds));
}

int milliseconds_until(deadline); // for poll(2): rounded up, never negative

// Finds a program: in this one's directory, else in PATH; empty if there is none.
std::string find_program(const std::string &name);

// A process, held by a pidfd, so that its pid cannot be reused for another one.
class process
{
public:
	static result<process> start(const std::vector<std::string> &argv); // argv[0]: path
	static std::optional<process> adopt(pid_t); // empty: no such process

	int descriptor() const { return fd_.get(); } // readable when the process has ended
	pid_t pid() const { return pid_; }
	bool ended_by(deadline) const; // waits; does not reap
	// For a child, once: exit status, or 128 + signal. Waits for its end.
	int reap() const;
	void signal(int number) const;

private:
	process(pid_t pid, unique_fd fd) : pid_(pid), fd_(std::move(fd)) {}
	pid_t pid_;
	unique_fd fd_;
};

// Replaces this program; returns only on failure.
failure become(const std::vector<std::string> &argv);

} // namespace coop::cli
