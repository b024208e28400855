// SPDX-License-Identifier: MIT
// grh.hpp - the 40 bytes at the head of every receive, as RoCE v2 hardware leaves
// them: an IPv6 header, or 20 unspecified bytes and an IPv4 header. A UDP socket
// delivers neither, so this reconstructs them; time to live, type of service and
// flow label are unknown and take their usual values.
#pragma once

#include <cstdint>

#include "userland/ud/icrc.hpp"

namespace coop::ud
{

// udp_payload: bytes from BTH to ICRC.
void write_grh(std::uint8_t *out, const flow &, std::size_t udp_payload, std::uint16_t ip_id);

} // namespace coop::ud
