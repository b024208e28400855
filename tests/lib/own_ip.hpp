// SPDX-License-Identifier: MIT
// own_ip.hpp - loopback addresses that no other test process of this machine uses.
#pragma once

#include <string>
#include <unistd.h>

inline std::string own_ip(unsigned last)
{
	const auto pid = static_cast<unsigned>(::getpid());
	return "127." + std::to_string(1 + pid / 254 % 250) + '.' + std::to_string(1 + pid % 254) +
	       '.' + std::to_string(last);
}
