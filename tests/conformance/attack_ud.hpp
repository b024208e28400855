// SPDX-License-Identifier: MIT
// attack_ud.hpp - what an enemy sends to a machine of the ud transport; see target::attack.
#pragma once

#include "target.hpp"

namespace conformance
{

/// from: the enemy's own IP address.
bool attack_ud(const net::address &, std::uint64_t seed, const std::string &from);

} // namespace conformance
