// SPDX-License-Identifier: MIT
// advice.cpp - what coopnet advises names only parameters that the transport has.
#include <algorithm>
#include <cerrno>
#include <gtest/gtest.h>
#include <regex>

#include "userland/net-tools/advice.hpp"

using namespace coop::net;

namespace
{

bool built(const std::string &transport)
{
	const auto names = domain::transports();
	return std::find(names.begin(), names.end(), transport) != names.end();
}

std::string about_long_datagrams(const domain &d)
{
	return coop::net_tools::explain(-ECOMM, "10.0.0.1@tcp:12345:31:0", d);
}

TEST(advice, lowers_mtu_where_it_is_a_parameter)
{
	if (!built("ud"))
		GTEST_SKIP() << "built without the transport ud";
	const std::string text = about_long_datagrams(domain({"ud", {{"mtu", "2048"}}}));
	EXPECT_NE(text.find("`-o mtu=` (2048 here)"), text.npos) << text;
}

// As `kernel`, which needs a module, `mem` has no mtu=.
TEST(advice, speaks_of_the_device_where_mtu_is_no_parameter)
{
	const std::string text = about_long_datagrams(domain({"mem", {}}));
	EXPECT_EQ(text.find("mtu="), text.npos) << text;
	EXPECT_NE(text.find("active_mtu"), text.npos) << text;
}

} // namespace
