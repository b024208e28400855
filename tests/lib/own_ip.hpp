// SPDX-License-Identifier: MIT
// own_ip.hpp - loopback addresses that no other test process of this machine uses. Mounts of
// tests/e2e are in 127.64.0.0/10, end points of tests/unit/ud in 127.128.0.0/10.
#pragma once

#include <string>
#include <unistd.h>

inline std::string own_ip(unsigned last)
{
	const auto pid = static_cast<unsigned>(::getpid());
	return "127." + std::to_string(192 + pid / 254 % 60) + '.' + std::to_string(1 + pid % 254) +
	       '.' + std::to_string(last);
}
