// SPDX-License-Identifier: MIT
// net_fabric_device.cc - machines of the fabric transport whose device does what the test says.
//
// libfabric is that of the fuzzer. A machine alone on its network, with the core that the library
// has, is touched by nothing but its own calls; two of them, or one with an enemy, have the naive
// core and the test's own thread.
#include <arpa/inet.h>
#include <cstring>
#include <gtest/gtest.h>
#include <map>
#include <set>
#include <unordered_map>

#include "coop/net.hpp"
#include "tests/fuzz/fake_fabric.hpp"
#include "tests/fuzz/fake_objects.hpp"
#include "tests/fuzz/naive_core.hpp"
#include "tests/unit/own_ip.hpp"
#include "userland/net/fabric/machine.hpp"
#include "userland/net/fabric/ports.hpp"

namespace
{

using namespace fuzz_net;
using namespace std::chrono_literals;

std::string text_of(unsigned n)
{
	return own_ip(11 + n) + "@tcp:12345:31:" + std::to_string(n);
}

address at(unsigned n)
{
	address a;
	EXPECT_EQ(parse(text_of(n), a), 0);
	return a;
}

sockaddr_in place_of(unsigned n, std::uint16_t port)
{
	sockaddr_in a{};
	a.sin_family = AF_INET;
	a.sin_port = htons(port);
	::inet_pton(AF_INET, own_ip(11 + n).c_str(), &a.sin_addr);
	return a;
}

std::uint32_t ip_of(unsigned n)
{
	return ntohl(place_of(n, 0).sin_addr.s_addr);
}

class fabric_device : public testing::Test
{
protected:
	fabric_device()
	{
		the_fabric = &wire;
		wire.enemy_ip = ip_of(9);
		wire.to_enemy = [](connection &, unsigned, const passage &) {};
	}
	~fabric_device() override { the_fabric = nullptr; }

	fake_network wire;
};

// ---- alone, with the core of the library ------------------------------------------------------

TEST_F(fabric_device, an_ip_of_the_host_that_is_not_the_devices_is_foreign)
{
	wire.foreign_ip = ip_of(1);
	domain d({"fabric", {{"provider", "fake"}}});
	transfer_machine foreign(d), tm(d);
	EXPECT_EQ(foreign.start(text_of(1)), -ENOENT);
	EXPECT_EQ(foreign.state(), tm_state::failed);
	EXPECT_EQ(tm.start(text_of(2)), 0);
}

} // namespace
