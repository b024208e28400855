// SPDX-License-Identifier: MIT
// sealed.cpp - memory that two processes share has one size as long as it lives.
#include <cerrno>
#include <cstring>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include "userland/ntrdma/window/sealed.hpp"

namespace
{

using namespace coop;
using namespace coop::ntrdma;

constexpr std::size_t size = 8192;

struct mapping {
	mapping(const unique_fd &fd, std::size_t bytes) : at(map_sealed(fd.get(), bytes)) {}
	~mapping()
	{
		if (at)
			munmap(at, size);
	}
	void *at;
};

} // namespace

TEST(ntrdma_sealed, both_sides_see_what_one_writes)
{
	const unique_fd fd = make_sealed("coop-test", size);
	ASSERT_TRUE(fd);
	const mapping a(fd, size), b(fd, size);
	ASSERT_TRUE(a.at && b.at);
	std::memcpy(a.at, "here", 5);
	EXPECT_STREQ(static_cast<const char *>(b.at), "here");
}

TEST(ntrdma_sealed, nobody_changes_its_size)
{
	const unique_fd fd = make_sealed("coop-test", size);
	ASSERT_TRUE(fd);
	EXPECT_EQ(ftruncate(fd.get(), 0), -1);
	EXPECT_EQ(ftruncate(fd.get(), 2 * size), -1);
}

TEST(ntrdma_sealed, memory_of_another_size_is_refused)
{
	const unique_fd fd = make_sealed("coop-test", size);
	ASSERT_TRUE(fd);
	const mapping m(fd, 2 * size);
	EXPECT_FALSE(m.at);
	EXPECT_EQ(errno, EINVAL);
}

TEST(ntrdma_sealed, memory_that_a_peer_could_shrink_is_refused)
{
	const unique_fd fd{memfd_create("coop-test", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
	ASSERT_TRUE(fd);
	ASSERT_EQ(ftruncate(fd.get(), size), 0);
	for (const int seal : {0, F_SEAL_GROW, F_SEAL_SEAL}) {
		ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, seal), 0);
		const mapping m(fd, size);
		EXPECT_FALSE(m.at) << "without the seal against shrinking";
		EXPECT_EQ(errno, EINVAL);
	}
}

TEST(ntrdma_sealed, a_descriptor_that_is_assigned_closes_the_old_one)
{
	int ends[2];
	ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
	const unique_fd reading{ends[0]};
	unique_fd writing{ends[1]}, other = make_sealed("coop-test", size);
	const int number = other.get();
	writing = std::move(other);
	char byte;
	EXPECT_EQ(read(reading.get(), &byte, 1), 0) << "the write end is open";
	EXPECT_EQ(writing.get(), number);
	unique_fd &same = writing;
	writing = std::move(same);
	EXPECT_EQ(writing.get(), number) << "assigned to itself";
}
