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
	std::optional<lock_book::wait> ended;
	std::uint64_t cookie = book.begin({wanted, nullptr, nullptr});
};

} // namespace

// Who finds the wait over, as a cancellation that comes too late does, may unlock at once. If the
// book did not have the lock yet, that would release nothing, and the lock would stay for ever.
TEST_F(client_lock_book, a_wait_that_is_over_is_held)
{
	EXPECT_FALSE(book.queued(cookie, 1));
	EXPECT_FALSE(book.holds(wanted));
	EXPECT_TRUE(book.grant(cookie));
	EXPECT_FALSE(book.end(cookie));
	EXPECT_TRUE(book.holds(wanted));
}

TEST_F(client_lock_book, a_grant_before_the_reply_ends_the_wait_with_the_reply)
{
	EXPECT_FALSE(book.grant(cookie));
	EXPECT_FALSE(book.holds(wanted));
	EXPECT_TRUE(book.queued(cookie, 1));
	EXPECT_FALSE(book.end(cookie));
	EXPECT_TRUE(book.holds(wanted));
}

// The reply then comes from a daemon that has only queued the wait.
TEST_F(client_lock_book, a_grant_before_the_reply_is_lost_with_the_daemon)
{
	EXPECT_FALSE(book.grant(cookie));
	book.forgotten();
	EXPECT_FALSE(book.queued(cookie, 2));
	EXPECT_FALSE(book.holds(wanted));
	EXPECT_TRUE(book.grant(cookie));
	EXPECT_TRUE(book.holds(wanted));
}

TEST_F(client_lock_book, an_open_file_that_lost_a_lock_is_known_until_it_is_closed)
{
	EXPECT_FALSE(book.any());
	EXPECT_FALSE(book.idle()) << "there is a wait";
	EXPECT_TRUE(book.end(cookie));
	EXPECT_TRUE(book.idle());
	book.took(wanted);
	EXPECT_TRUE(book.any());
	EXPECT_FALSE(book.idle());
	book.closed(7);
	EXPECT_FALSE(book.any());
	book.took(wanted);
	book.lost(7);
	EXPECT_FALSE(book.holds(wanted));
	EXPECT_TRUE(book.idle());
	EXPECT_TRUE(book.any());
	EXPECT_TRUE(book.is_lost(7));
	EXPECT_FALSE(book.is_lost(8));
	book.closed(7);
	EXPECT_FALSE(book.is_lost(7));
	EXPECT_FALSE(book.any());
}

TEST_F(client_lock_book, a_wait_that_was_given_up_takes_no_lock)
{
	EXPECT_FALSE(book.queued(cookie, 1));
	EXPECT_TRUE(book.end(cookie));
	EXPECT_FALSE(book.grant(cookie));
	EXPECT_FALSE(book.holds(wanted));
}

TEST_F(client_lock_book, a_cancelled_wait_ends_at_the_daemon_that_queued_it_last)
{
	EXPECT_FALSE(book.queued(cookie, 1));
	EXPECT_FALSE(book.queued(cookie, 2));
	EXPECT_TRUE(book.cancel(cookie, ended));
	ASSERT_TRUE(ended);
	EXPECT_EQ(ended->by, 2u);
	EXPECT_FALSE(book.cancel(cookie, ended));
	EXPECT_FALSE(book.ask_again(cookie));
}

// Else the daemon that granted it in its answer would not get it back.
TEST_F(client_lock_book, a_cancelled_wait_ends_at_the_daemon_that_answered_last)
{
	EXPECT_FALSE(book.queued(cookie, 1));
	EXPECT_TRUE(book.ask_again(cookie));
	EXPECT_FALSE(book.answered(cookie, 2));
	EXPECT_TRUE(book.cancel(cookie, ended));
	ASSERT_TRUE(ended);
	EXPECT_EQ(ended->by, 2u);
}

TEST_F(client_lock_book, a_wait_is_asked_about_once_at_a_time)
{
	EXPECT_FALSE(book.queued(cookie, 1));
	EXPECT_TRUE(book.ask_again(cookie));
	EXPECT_FALSE(book.ask_again(cookie));
	EXPECT_FALSE(book.answered(cookie)) << "it goes on";
	EXPECT_TRUE(book.ask_again(cookie));
	EXPECT_FALSE(book.answered(cookie));
	EXPECT_TRUE(book.grant(cookie));
	EXPECT_FALSE(book.answered(cookie)) << "it is over";
}

// Its owner could unlock, and the daemon could run the LOCK after that.
TEST_F(client_lock_book, a_wait_that_is_asked_about_ends_with_the_answer)
{
	EXPECT_FALSE(book.queued(cookie, 1));
	EXPECT_TRUE(book.ask_again(cookie));
	EXPECT_FALSE(book.grant(cookie));
	EXPECT_FALSE(book.holds(wanted));
	const auto over = book.answered(cookie);
	ASSERT_TRUE(over);
	EXPECT_FALSE(over->cancelled);
	EXPECT_TRUE(book.holds(wanted));
	EXPECT_FALSE(book.end(cookie));
}

// The answer decides how it ends: that it is queued, or that the lock is held.
TEST_F(client_lock_book, a_cancelled_wait_that_is_asked_about_ends_with_the_answer)
{
	EXPECT_FALSE(book.queued(cookie, 1));
	EXPECT_TRUE(book.ask_again(cookie));
	EXPECT_TRUE(book.cancel(cookie, ended));
	EXPECT_FALSE(ended);
	EXPECT_FALSE(book.cancel(cookie, ended)) << "it is cancelled";
	EXPECT_FALSE(book.queued(cookie, 1));
	EXPECT_FALSE(book.grant(cookie));
	EXPECT_TRUE(book.waiting().empty());
	EXPECT_TRUE(book.answered(cookie));
	EXPECT_FALSE(book.answered(cookie));
	EXPECT_FALSE(book.holds(wanted));
}
