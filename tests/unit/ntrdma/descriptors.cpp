// SPDX-License-Identifier: MIT
// descriptors.cpp - descriptors that come as they should, and peers that send others.
//
// A pipe whose write end was sent tells whether the receiver has closed what it got: its read end
// reports the end of file then.
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "userland/ntrdma/window/descriptors.hpp"

namespace
{

using namespace coop::ntrdma;

using text = std::array<char, 8>;

struct sockets {
	sockets()
	{
		int fds[2];
		EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
		from = unique_fd{fds[0]};
		to = unique_fd{fds[1]};
	}
	/// Sends as many copies of a pipe's write end as a peer likes, and keeps none.
	void send(std::size_t count, std::size_t bytes = sizeof(text))
	{
		int ends[2];
		ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
		reading = unique_fd{ends[0]};
		unique_fd writing{ends[1]};
		std::vector<int> all(count, writing.get());
		std::vector<char> control(CMSG_SPACE(count * sizeof(int))), data(bytes, 'x');
		iovec piece{data.data(), data.size()};
		msghdr m{};
		m.msg_iov = &piece;
		m.msg_iovlen = 1;
		m.msg_control = control.data();
		m.msg_controllen = control.size();
		cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(count * sizeof(int));
		std::memcpy(CMSG_DATA(c), all.data(), count * sizeof(int));
		ASSERT_EQ(sendmsg(from.get(), &m, 0), static_cast<ssize_t>(bytes));
	}
	int take() { return take_message(to.get(), std::as_writable_bytes(std::span{got}), fds); }
	bool all_closed() const
	{
		char byte;
		return read(reading.get(), &byte, 1) == 0;
	}

	unique_fd from, to, reading;
	text got{};
	std::vector<unique_fd> fds;
};

TEST(descriptors, come_with_the_bytes_of_their_message)
{
	sockets s;
	int zero[] = {0, 0, 0};
	for (std::size_t n : {0u, 3u, 1u}) {
		text sent{'n', static_cast<char>('0' + n)};
		ASSERT_TRUE(send_message(s.from.get(), std::as_bytes(std::span{sent}),
					 std::span{zero}.first(n)));
		EXPECT_EQ(s.take(), 1);
		EXPECT_EQ(s.got, sent);
		EXPECT_EQ(s.fds.size(), n);
		for (const unique_fd &fd : s.fds)
			EXPECT_EQ(fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
	}
	s.send(2);
	EXPECT_EQ(s.take(), 1);
	EXPECT_EQ(s.fds.size(), 2u);
	EXPECT_FALSE(s.all_closed());
	s.fds.clear();
	EXPECT_TRUE(s.all_closed());
}

TEST(descriptors, more_than_a_message_may_have_are_closed)
{
	for (std::size_t n : {4u, 5u, 200u}) {
		sockets s;
		s.send(n);
		EXPECT_EQ(s.take(), -1) << n;
		EXPECT_TRUE(s.fds.empty());
		EXPECT_TRUE(s.all_closed()) << n;
	}
	sockets s;
	int zero[4] = {};
	EXPECT_FALSE(send_message(s.from.get(), std::as_bytes(std::span{s.got}), zero));
}

TEST(descriptors, of_a_message_of_another_length_are_closed)
{
	for (std::size_t bytes : {sizeof(text) - 1, sizeof(text) + 1}) {
		sockets s;
		s.send(2, bytes);
		EXPECT_EQ(s.take(), -1) << bytes;
		EXPECT_TRUE(s.fds.empty());
		EXPECT_TRUE(s.all_closed()) << bytes;
	}
}

TEST(descriptors, of_which_some_found_no_place_are_closed)
{
	sockets s;
	s.send(2);
	rlimit usual;
	ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
	unique_fd next{fcntl(s.to.get(), F_DUPFD_CLOEXEC, 0)};
	rlimit few = usual;
	few.rlim_cur = static_cast<rlim_t>(next.get()) + 1; // a place for one
	next = unique_fd{};
	ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
	EXPECT_EQ(s.take(), -1);
	ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
	EXPECT_TRUE(s.fds.empty());
	EXPECT_TRUE(s.all_closed());
}

TEST(descriptors, beside_control_data_of_another_kind_are_closed)
{
	for (std::size_t n : {0u, 1u}) {
		sockets s;
		int on = 1;
		ASSERT_EQ(setsockopt(s.to.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)), 0);
		if (n)
			s.send(n);
		else
			ASSERT_TRUE(
				send_message(s.from.get(), std::as_bytes(std::span{s.got}), {}));
		EXPECT_EQ(s.take(), -1);
		EXPECT_TRUE(s.fds.empty());
		EXPECT_TRUE(!n || s.all_closed());
	}
}

TEST(descriptors, of_an_earlier_message_close_with_the_next_look)
{
	sockets s;
	s.send(1);
	EXPECT_EQ(s.take(), 1);
	EXPECT_EQ(s.take(), 0) << "there is none yet";
	EXPECT_TRUE(s.all_closed());
	s.from = unique_fd{};
	EXPECT_EQ(s.take(), -1) << "it hung up";
}

TEST(descriptors, a_full_socket_does_not_wait)
{
	sockets s;
	unsigned sent = 0;
	while (sent < 1000000 && send_message(s.from.get(), std::as_bytes(std::span{s.got}), {}))
		sent++;
	EXPECT_GT(sent, 0u);
	EXPECT_EQ(s.take(), 1);
	EXPECT_TRUE(send_message(s.from.get(), std::as_bytes(std::span{s.got}), {}));
}

TEST(descriptors, a_bell_is_an_eventfd_and_never_waits)
{
	unique_fd bell{eventfd(0, EFD_CLOEXEC)};
	const std::uint64_t full = std::numeric_limits<std::uint64_t>::max() - 1, one = 1;
	ASSERT_EQ(write(bell.get(), &full, sizeof(full)), static_cast<ssize_t>(sizeof(full)));
	ASSERT_TRUE(take_bell(bell));
	EXPECT_EQ(write(bell.get(), &one, sizeof(one)), -1);
	EXPECT_EQ(errno, EAGAIN);
	int ends[2];
	ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
	unique_fd reading{ends[0]}, writing{ends[1]};
	EXPECT_FALSE(take_bell(writing));
	EXPECT_EQ(fcntl(writing.get(), F_GETFL) & O_NONBLOCK, 0) << "another's file was changed";
	EXPECT_FALSE(take_bell(unique_fd{}));
}

} // namespace
