// SPDX-License-Identifier: MIT
// info.hpp - what the processes of this user that have the device open say of themselves.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace coop::ntrdma
{

/// The answers of all processes that give one within two seconds, in order of their slots.
/// `silent` gets the slots of the others, which are stopped or were just about to end.
std::vector<nlohmann::json> ask_all(std::vector<unsigned> *silent);
/// As a table for people, with its header.
std::string table_of(const std::vector<nlohmann::json> &);

} // namespace coop::ntrdma
