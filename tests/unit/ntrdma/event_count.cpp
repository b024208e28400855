// SPDX-License-Identifier: MIT
// event_count.cpp - the count of unread events, while events are erased and read.
#include "userland/include/coop/event_count.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include "userland/include/coop/unique_fd.hpp"

namespace
{

using namespace coop;

struct counted : testing::Test {
	bool readable() const
	{
		pollfd p{fd.get(), POLLIN, 0};
		return poll(&p, 1, 0) == 1;
	}
	unique_fd fd{event_count::open()};
	event_count count;
};

TEST_F(counted, an_erased_event_leaves_nothing_to_read)
{
	event_count::add(fd.get());
	event_count::add(fd.get());
	count.erase(fd.get());
	EXPECT_TRUE(readable());
	ASSERT_TRUE(event_count::wait(fd.get()));
	EXPECT_TRUE(count.claim());
	EXPECT_FALSE(readable());
}

TEST_F(counted, a_reader_of_an_event_that_is_erased_meanwhile_reads_again)
{
	event_count::add(fd.get());
	ASSERT_TRUE(event_count::wait(fd.get()));
	count.erase(fd.get());
	event_count::add(fd.get()); // before the reader gets the lock
	EXPECT_FALSE(count.claim());
	EXPECT_TRUE(readable());
	ASSERT_TRUE(event_count::wait(fd.get()));
	EXPECT_TRUE(count.claim());
	EXPECT_FALSE(readable());
}

} // namespace
