// SPDX-License-Identifier: MIT
// attack_ntrdma.hpp - what an enemy sends to a machine of the transport ntrdma; see target::attack.
#pragma once

#include "target.hpp"

namespace conformance
{

bool attack_ntrdma(const net::address &, std::uint64_t seed);
bool attack_ntrdma_tcp(const net::address &, std::uint64_t seed);

} // namespace conformance
