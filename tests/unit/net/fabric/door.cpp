// SPDX-License-Identifier: MIT
// door.cpp - strangers that connect to a port of datagrams, and for whom there is no room.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <optional>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include "coop/unique_fd.hpp"
#include "tests/conformance/fabric_enemy.hpp"
#include "tests/lib/own_ip.hpp"
#include "userland/net/fabric/datagram_port.hpp"
#include "userland/net/fabric/ports.hpp"

namespace
{

using namespace coop::net;
using namespace coop::net::fabric;
using namespace std::chrono_literals;

// A port that strangers call.
class fabric_door : public testing::Test
{
protected:
	bool woken() const
	{
		pollfd p{house_->fd(), POLLIN, 0};
		return ::poll(&p, 1, 0) != 0;
	}
	// Far fewer looks than fit before the first stranger is sent away.
	bool goes_quiet()
	{
		for (int looks = 0; woken() && looks < 1000; looks++)
			house_->look();
		return !woken();
	}
	coop::unique_fd stranger() const
	{
		return coop::unique_fd(
			::socket(at_.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
	}
	int call(const coop::unique_fd &by) const
	{
		return ::connect(by.get(), reinterpret_cast<const sockaddr *>(&at_.storage),
				 static_cast<socklen_t>(at_.size));
	}
	void SetUp() override
	{
		address there;
		ASSERT_EQ(parse(own_ip(9) + "@tcp:12345:31:6", there), 0);
		house_.emplace("tcp;ofi_rxm", there);
		at_ = at_port(there, ports_of(there).ports[0]);
	}

	std::optional<conformance::fabric_enemy> house_;
	socket_address at_;
};

// More strangers than the port admits at a time: the others wait outside, and do not wake it.
TEST_F(fabric_door, strangers_at_it_keep_nobody_awake)
{
	std::vector<coop::unique_fd> strangers;
	for (int i = 0; i < 80; i++)
		ASSERT_EQ(call(strangers.emplace_back(stranger())), 0);
	EXPECT_TRUE(goes_quiet());
	strangers.clear();
	EXPECT_TRUE(goes_quiet());
	const coop::unique_fd another = stranger();
	ASSERT_EQ(call(another), 0);
	pollfd door{house_->fd(), POLLIN, 0};
	EXPECT_EQ(::poll(&door, 1, 30000), 1) << "nobody is let in any more";
}

// A stranger costs a descriptor, and there is none.
TEST_F(fabric_door, a_lack_of_descriptors_keeps_nobody_awake)
{
	const coop::unique_fd one = stranger();
	rlimit usual;
	ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
	rlimit few = usual;
	few.rlim_cur = 256;
	ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
	std::vector<coop::unique_fd> all;
	while (all.empty() || all.back())
		all.emplace_back(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0));
	const int called = call(one);
	const bool quiet = goes_quiet();
	all.clear();
	ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
	EXPECT_EQ(called, 0);
	EXPECT_TRUE(quiet);
	// Later it is let in, and sent away.
	const std::vector<char> noise(4096, 'x');
	EXPECT_GT(::send(one.get(), noise.data(), noise.size(), MSG_NOSIGNAL), 0);
	pollfd away{one.get(), POLLRDHUP, 0};
	for (const auto end = clock::now() + 60s; !::poll(&away, 1, 1) && clock::now() < end;)
		house_->look();
	EXPECT_NE(away.revents, 0);
}

} // namespace
