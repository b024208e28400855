// SPDX-License-Identifier: MIT
// attack_fabric.hpp - what an enemy sends to a machine of the fabric transport; see
// target::attack.
#pragma once

#include "target.hpp"

namespace conformance
{

bool attack_fabric(const std::string &provider, const net::address &, std::uint64_t seed);

} // namespace conformance
