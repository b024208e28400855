// SPDX-License-Identifier: MIT
// The drawing of a file's forest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "rpc/storage/forest.h"
#include "userland/cli/documents.hpp"
#include "userland/cli/forest.hpp"

namespace
{

using namespace coop::cli;
using testing::HasSubstr;
using testing::Not;

std::string attribute(std::uint32_t members, std::uint32_t index)
{
	std::string out = "forest members " + std::to_string(members) + " index " +
			  std::to_string(index) + "\n";
	for (std::uint32_t c = 0; members > 1 && c < COOP_FOREST_COLOURS; c++) {
		coop_role r;
		coop_forest_role(members, index, c, &r);
		const auto at = [](std::uint32_t n) {
			return n == COOP_NONE ? std::string("-") : "10.0.0." + std::to_string(n);
		};
		out += "colour " + std::to_string(c) + " level " + std::to_string(r.level) +
		       " parent " + at(r.parent) + " alternate " + at(r.alternate) + "\n";
	}
	return out;
}

TEST(forest, a_lone_node_has_none)
{
	const auto f = parse_forest(attribute(1, 0));
	ASSERT_TRUE(f);
	EXPECT_THAT(forest_text(*f), HasSubstr("no other node"));
	EXPECT_EQ(nlohmann::json::parse(forest_document(*f))["members"], 1);
}

TEST(forest, a_few_nodes_are_drawn_whole)
{
	const auto f = parse_forest(attribute(3, 1));
	ASSERT_TRUE(f);
	const std::string text = forest_text(*f);
	EXPECT_THAT(text, HasSubstr("3 nodes have it open; this is number 1\n"));
	EXPECT_THAT(text, HasSubstr("\ncolours 1 4 7 10 13\n  1 (this node)\n    0\n    2\n"));
	EXPECT_THAT(text, HasSubstr("\ncolours 0 3 6 9 12 15\n  0\n    1 (this node)\n    2\n"));
	EXPECT_THAT(text, HasSubstr("storage"));
	const auto j = nlohmann::json::parse(forest_document(*f));
	EXPECT_EQ(j["colours"].size(), 16u);
	EXPECT_FALSE(j["colours"][1].contains("parent")) << "the root";
	EXPECT_EQ(j["colours"][0]["parent"], "10.0.0.0");
	EXPECT_EQ(j["colours"][1]["children"], nlohmann::json({0, 2}));
}

TEST(forest, of_many_nodes_the_own_path_is_drawn)
{
	const auto f = parse_forest(attribute(1000, 500));
	ASSERT_TRUE(f);
	const std::string text = forest_text(*f);
	EXPECT_THAT(text, HasSubstr("  storage > "));
	EXPECT_THAT(text, HasSubstr("500 (this node)"));
	EXPECT_LT(text.size(), 8000u);
}

TEST(forest, other_forms_are_refused)
{
	for (const char *text :
	     {"", "forest", "forest members 0 index 0\n", "forest members 3 index 3\n",
	      "forest members 3 index 1\ncolour 1 level 8 parent - alternate -\n",
	      "forest members 3 index 1\ncolour 0 level 8 parent - alternate -\n",
	      "forest members x index 1\n"})
		EXPECT_FALSE(parse_forest(text)) << text;
}

} // namespace
