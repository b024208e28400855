// SPDX-License-Identifier: MIT
// lock_book.cpp - the end of a wait and the lock that it brings are one step.
#include "userland/client/lock_book.hpp"

#include <gtest/gtest.h>

using namespace coop::client;

namespace
{

class client_lock_book : public testing::Test
{
protected:
	lock_book::lock wanted{"f", 7, {1, 0, ~0ull, COOP_ST_LOCK_POSIX, COOP_ST_LOCK_WRITE, 1}};
	lock_book book;
	std::uint64_t cookie = book.begin({wanted, nullptr});
};

} // namespace

// Who finds the wait over, as a cancellation that comes too late does, may unlock at once. If the
// book did not have the lock yet, that would release nothing, and the lock would stay for ever.
TEST_F(client_lock_book, a_wait_that_is_over_is_held)
{
	EXPECT_FALSE(book.queued(cookie));
	EXPECT_FALSE(book.holds(wanted));
	EXPECT_TRUE(book.grant(cookie));
	EXPECT_FALSE(book.end(cookie));
	EXPECT_TRUE(book.holds(wanted));
}

TEST_F(client_lock_book, a_grant_before_the_reply_ends_the_wait_with_the_reply)
{
	EXPECT_FALSE(book.grant(cookie));
	EXPECT_FALSE(book.holds(wanted));
	EXPECT_TRUE(book.queued(cookie));
	EXPECT_FALSE(book.end(cookie));
	EXPECT_TRUE(book.holds(wanted));
}

TEST_F(client_lock_book, a_wait_that_was_given_up_takes_no_lock)
{
	EXPECT_FALSE(book.queued(cookie));
	EXPECT_TRUE(book.end(cookie));
	EXPECT_FALSE(book.grant(cookie));
	EXPECT_FALSE(book.holds(wanted));
}
