// SPDX-License-Identifier: MIT
// mute.hpp - silent services at a machine's address; see target::mute.
#pragma once

#include <memory>

#include "target.hpp"

namespace conformance
{

std::shared_ptr<void> mute_fabric(const net::address &);
std::shared_ptr<void> mute_ntrdma(const net::address &);
std::shared_ptr<void> mute_ntrdma_tcp(const net::address &);
std::shared_ptr<void> mute_ud(const net::address &);

} // namespace conformance
