// SPDX-License-Identifier: MIT
// event_loop.cpp - which thread runs what in the daemon: one thread while it makes progress,
// others when it is stuck.
#include <future>
#include <gtest/gtest.h>
#include <set>

#include "userland/daemon/event_loop.hpp"

using coop::daemon::event_loop;
using namespace std::chrono_literals;

namespace
{

constexpr auto deadline = 20s;
constexpr auto never = 1h; // patience in tests that need none

// A handler waits here until the test opens it. Tests declare what handlers use before the
// loop, so that it outlives the loop.
class gate
{
public:
	void open() { promise_.set_value(); }
	void pass()
	{
		reached_.set_value();
		future_.wait();
	}
	bool reached()
	{
		return reached_.get_future().wait_for(deadline) == std::future_status::ready;
	}

private:
	std::promise<void> promise_, reached_;
	std::shared_future<void> future_ = promise_.get_future().share();
};

bool comes(std::promise<void> &p)
{
	return p.get_future().wait_for(deadline) == std::future_status::ready;
}

// Not by post(): as if socket input had arrived.
template <class function> void arrives(event_loop &loop, function f)
{
	asio::post(loop.io(), loop.wrap(std::move(f)));
}

} // namespace

TEST(EventLoop, ALoneThreadRunsOneAfterAnother)
{
	std::promise<void> done;
	std::set<std::thread::id> who;
	event_loop loop(1, never);
	loop.start();
	for (int i = 0; i < 100; i++)
		loop.post([&] { who.insert(std::this_thread::get_id()); });
	loop.post([&] { done.set_value(); });
	ASSERT_TRUE(comes(done));
	EXPECT_EQ(who.size(), 1u);
}

TEST(EventLoop, WhatABusyLeaderPostsIsRunByAnother)
{
	std::promise<void> done;
	gate g;
	event_loop loop(2, never);
	loop.start();
	loop.post([&] {
		loop.post([&] { done.set_value(); });
		g.pass();
	});
	ASSERT_TRUE(g.reached());
	EXPECT_TRUE(comes(done));
	g.open();
}

// The third handler in a row blocks; by then the leader has called another thread.
TEST(EventLoop, MoreThanOneThreadCanRunIsSharedOut)
{
	std::promise<void> done;
	gate first, third;
	event_loop loop(2, never);
	loop.start();
	arrives(loop, [&] { first.pass(); });
	ASSERT_TRUE(first.reached());
	arrives(loop, [] {});
	arrives(loop, [] {});
	arrives(loop, [&] { third.pass(); });
	arrives(loop, [&] { done.set_value(); });
	first.open();
	ASSERT_TRUE(third.reached());
	EXPECT_TRUE(comes(done));
	third.open();
}

TEST(EventLoop, AnotherLeadsWhileTheLeaderIsStuck)
{
	constexpr unsigned slow = 7;
	std::promise<void> done;
	gate g;
	event_loop loop(2, 1ms);
	loop.start();
	EXPECT_FALSE(loop.blocks(slow));
	arrives(loop, [&] {
		event_loop::doing(slow);
		g.pass();
	});
	ASSERT_TRUE(g.reached());
	arrives(loop, [&] { done.set_value(); });
	EXPECT_TRUE(comes(done));
	for (unsigned i = 0; i < event_loop::handed_over; i++)
		EXPECT_TRUE(loop.blocks(slow));
	EXPECT_FALSE(loop.blocks(slow)) << "the leader no longer tries it";
	EXPECT_FALSE(loop.blocks(slow + 1));
	g.open();
}

// The handler that gets stuck wakes the watcher.
TEST(EventLoop, AnotherLeadsAfterARest)
{
	constexpr unsigned times = 20;
	std::array<std::promise<void>, times> done;
	std::array<gate, times> g;
	event_loop loop(2, 1ms);
	loop.start();
	for (unsigned i = 0; i < times; i++) {
		const auto end = std::chrono::steady_clock::now() + deadline;
		while (!loop.rests() && std::chrono::steady_clock::now() < end)
			std::this_thread::yield();
		ASSERT_TRUE(loop.rests());
		arrives(loop, [&, i] { g[i].pass(); });
		ASSERT_TRUE(g[i].reached());
		arrives(loop, [&, i] { done[i].set_value(); });
		EXPECT_TRUE(comes(done[i]));
		g[i].open();
	}
}

TEST(EventLoop, GoesOnWhenAllWereStuck)
{
	std::promise<void> done;
	gate one, two;
	event_loop loop(2, 1ms);
	loop.start();
	arrives(loop, [&] { one.pass(); });
	ASSERT_TRUE(one.reached());
	arrives(loop, [&] { two.pass(); });
	ASSERT_TRUE(two.reached());
	arrives(loop, [&] { done.set_value(); });
	two.open();
	EXPECT_TRUE(comes(done));
	one.open();
}

// Clients send these kinds: any number may come.
TEST(EventLoop, TakesAnyKind)
{
	std::promise<void> done;
	event_loop loop(1, 1ms);
	loop.start();
	loop.post([&] {
		event_loop::doing(~0u);
		done.set_value();
	});
	ASSERT_TRUE(comes(done));
	EXPECT_FALSE(loop.blocks(~0u));
}

TEST(EventLoop, EndsWithHandlersThatNeverRan)
{
	auto kept = std::make_shared<int>();
	{
		event_loop loop(1, never);
		loop.start();
		gate g;
		loop.post([&] { g.pass(); });
		ASSERT_TRUE(g.reached());
		loop.post([kept] { ADD_FAILURE() << "it ran after the end"; });
		std::thread end([&] { loop.stop(); });
		while (!loop.io().stopped())
			std::this_thread::yield();
		g.open();
		end.join();
	}
	EXPECT_EQ(kept.use_count(), 1);
}
