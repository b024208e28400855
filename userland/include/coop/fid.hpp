// SPDX-License-Identifier: MIT
// fid.hpp - file identities as keys of hash tables. A template, because this room includes no
// protocol: any struct with hi and lo will do.
#pragma once

#include <cstddef>

namespace coop
{

struct fid_hash {
	std::size_t operator()(const auto &f) const { return f.lo; }
};

struct fid_equal {
	bool operator()(const auto &a, const auto &b) const { return a.hi == b.hi && a.lo == b.lo; }
};

} // namespace coop
