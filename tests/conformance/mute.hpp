// SPDX-License-Identifier: MIT
// mute.hpp - services that say nothing, where a machine would be; see target::mute.
#pragma once

#include <memory>

#include "target.hpp"

namespace conformance
{

std::shared_ptr<void> mute_fabric(const std::string &provider, const net::address &);
std::shared_ptr<void> mute_ud(const net::address &);

} // namespace conformance
