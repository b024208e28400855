// SPDX-License-Identifier: MIT
// result.hpp - the result of a command: an exit status for scripts and a sentence that tells the
// user what to do. Every function of the CLI that can fail returns one; only constructors throw.
#pragma once

#include <cerrno>
#include <string>
#include <utility>
#include <variant>

namespace coop::cli
{

// Documented in --help; never renumbered.
enum exit_status : int {
	exit_ok = 0,
	exit_failure = 1,
	exit_usage = 2,
	exit_not_coopfs = 3,
	exit_permission = 4,
};

struct failure {
	exit_status status = exit_failure;
	std::string text;
};

// The exit status for an errno from a mount's files.
inline exit_status status_of(int err)
{
	return err == EACCES || err == EPERM ? exit_permission : exit_failure;
}

template <class T> class [[nodiscard]] result
{
public:
	result(T value) : v_(std::move(value)) {}
	result(failure f) : v_(std::move(f)) {}
	explicit operator bool() const { return v_.index() == 0; }
	T &operator*() { return std::get<0>(v_); }
	const T &operator*() const { return std::get<0>(v_); }
	T *operator->() { return &std::get<0>(v_); }
	const T *operator->() const { return &std::get<0>(v_); }
	const failure &error() const { return std::get<1>(v_); }

private:
	std::variant<T, failure> v_;
};

using done = std::monostate; // result<done>: success without a value

} // namespace coop::cli
