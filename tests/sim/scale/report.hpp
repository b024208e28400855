// SPDX-License-Identifier: MIT
// report.hpp - what a run found, as a line of a table and as JSON.
#pragma once

#include <string>

#include "tests/sim/scale/world.hpp"

namespace coop::scale
{

std::string scaling(const shape &); // what stands for what
std::string table_head();
std::string table_line(const shape &, const outcome &);
std::string details(const outcome &);
std::string json(const shape &, const outcome &);

} // namespace coop::scale
