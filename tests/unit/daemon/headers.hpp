// SPDX-License-Identifier: MIT
// headers.hpp - what the daemon's tests include, compiled once for all of them: asio and spdlog
// take longer to compile than any of the tests. Each test still includes what it uses.
#pragma once

#include "rig.hpp"
#include "tests/lib/headers.hpp"
