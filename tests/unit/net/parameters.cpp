// SPDX-License-Identifier: MIT
// parameters.cpp - what a domain reports of its parameters: the value in effect, and whether
// peers need it too.
#include <algorithm>
#include <gtest/gtest.h>
#include <system_error>

#include "coop/net.hpp"

using namespace coop::net;

namespace
{

bool built(const std::string &transport)
{
	const auto names = domain::transports();
	return std::find(names.begin(), names.end(), transport) != names.end();
}

domain_parameter of(const domain &d, const std::string &key)
{
	for (const domain_parameter &p : d.parameters())
		if (p.key == key)
			return p;
	ADD_FAILURE() << "no parameter " << key;
	return {};
}

TEST(parameters, have_the_value_given_or_the_standard_one)
{
	domain d({"mem", {{"max_message", "1m"}}});
	EXPECT_EQ(of(d, "max_message").value, "1m");
	EXPECT_EQ(of(d, "max_message").standard, "64k");
	EXPECT_TRUE(of(d, "max_message").both_sides);
	EXPECT_EQ(of(d, "lose").value, "0");
	EXPECT_FALSE(of(d, "lose").both_sides);
}

TEST(parameters, that_peers_need_are_marked)
{
	if (!built("ud"))
		GTEST_SKIP() << "built without the transport ud";
	domain d({"ud", {{"seal", "1"}}});
	EXPECT_EQ(of(d, "seal").value, "1");
	for (const char *key : {"device", "udp_port", "key", "seal", "max_message"})
		EXPECT_TRUE(of(d, key).both_sides) << key;
	for (const char *key : {"port", "socket_buffer", "window", "test_drop", "test_seed"})
		EXPECT_FALSE(of(d, key).both_sides) << key;
	const std::string text = domain::parameters("ud");
	const auto line = [&](const std::string &key) {
		const std::size_t at = text.find('\n' + key + '=');
		return text.substr(at + 1, text.find('\n', at + 1) - at - 1);
	};
	EXPECT_TRUE(line("seal").ends_with("[both sides]")) << line("seal");
	EXPECT_FALSE(line("window").ends_with("[both sides]")) << line("window");
}

TEST(parameters, tell_what_was_chosen)
{
	if (!built("fabric"))
		GTEST_SKIP() << "built without the transport fabric";
	domain d({"fabric", {{"provider", "no-such,tcp"}}});
	EXPECT_EQ(of(d, "provider").value, "tcp");
	EXPECT_EQ(of(d, "provider").standard, "tcp");
	EXPECT_TRUE(of(d, "provider").both_sides);
	EXPECT_FALSE(of(d, "sockets").both_sides);
}

TEST(parameters, a_device_that_is_missing_is_named_where_the_domain_is_opened)
{
	if (!built("ud"))
		GTEST_SKIP() << "built without the transport ud";
	try {
		domain d({"ud", {{"device", "no_such_device"}}});
		FAIL() << "opened";
	} catch (const std::system_error &e) {
		const std::string text = e.what();
		EXPECT_EQ(e.code().value(), ENODEV);
		EXPECT_NE(text.find("no_such_device"), std::string::npos) << text;
	}
}

// The error of a domain opened with these, or nothing.
std::string refused(const std::string &transport, const std::string &key, const std::string &value,
		    std::vector<std::pair<std::string, std::string>> others = {})
{
	others.emplace_back(key, value);
	try {
		domain d({transport, others});
	} catch (const std::system_error &e) {
		EXPECT_EQ(e.code().value(), EINVAL) << e.what();
		return e.what();
	}
	return {};
}

TEST(parameters, that_would_do_nothing_are_refused)
{
	if (!built("ud"))
		GTEST_SKIP() << "built without the transport ud";
	for (const auto &[key, value] :
	     {std::pair("port", "2"), std::pair("gid_index", "0"), std::pair("sl", "1")}) {
		const std::string text = refused("ud", key, value);
		EXPECT_NE(text.find(key), std::string::npos) << text;
		EXPECT_NE(text.find("device="), std::string::npos) << text;
	}
	for (const auto &[key, value] :
	     {std::pair("udp_port", "4791"), std::pair("socket_buffer", "1m"),
	      std::pair("test_drop", "1"), std::pair("test_duplicate", "1"),
	      std::pair("test_reorder", "1"), std::pair("test_corrupt", "1"),
	      std::pair("test_slow", "1")}) {
		const std::string text = refused("ud", key, value, {{"device", "no_such_device"}});
		EXPECT_NE(text.find(key), std::string::npos) << text;
		EXPECT_NE(text.find("soft RoCE"), std::string::npos) << text;
	}
	// As if the parameter were absent.
	EXPECT_EQ(refused("ud", "port", "1"), "");
}

TEST(parameters, a_provider_that_is_missing_is_answered_with_those_there_are)
{
	if (!built("fabric"))
		GTEST_SKIP() << "built without the transport fabric";
	try {
		domain d({"fabric", {{"provider", "no-such"}}});
		FAIL() << "opened";
	} catch (const std::system_error &e) {
		const std::string text = e.what();
		EXPECT_EQ(e.code().value(), ENODEV);
		const std::size_t behind = text.find("these serve: ");
		ASSERT_NE(behind, std::string::npos) << text;
		for (const char *there : {"tcp", "tcp;ofi_rxm"})
			EXPECT_NE(text.find(there, behind), std::string::npos) << text;
		EXPECT_EQ(text.find("shm", behind), std::string::npos) << text;
	}
}

} // namespace
