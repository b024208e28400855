// SPDX-License-Identifier: MIT
// forest.hpp - a file's forest as a mount describes it, and its drawing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "userland/cli/result.hpp"

namespace coop::cli
{

struct forest_record {
	struct colour {
		std::uint32_t level;
		std::string parent, alternate; // addresses; "-": none
	};
	std::uint32_t members = 0, index = 0;
	std::vector<colour> colours; // empty: this node is alone
};

// The value of the attribute coopfs.forest.
result<forest_record> parse_forest(std::string_view text);
// Lines for people: whom this node asks, and the trees.
std::string forest_text(const forest_record &);
// Numbers of the members that ask this node for the units of a colour.
std::vector<std::uint32_t> forest_children(const forest_record &, std::uint32_t colour);

} // namespace coop::cli
