// SPDX-License-Identifier: MIT
// processors.cpp - the processors that confine a machine's threads, and who may set them.
#include <gtest/gtest.h>
#include <sched.h>
#include <thread>

#include "tests/unit/net/puppet.hpp"

namespace
{

using namespace puppets;

cpu_set_t mine()
{
	cpu_set_t set;
	CPU_ZERO(&set);
	EXPECT_EQ(::sched_getaffinity(0, sizeof(set), &set), 0);
	return set;
}

cpu_set_t only(unsigned n)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(n, &set);
	return set;
}

std::vector<unsigned> numbers_of(const cpu_set_t &set)
{
	std::vector<unsigned> all;
	for (unsigned n = 0; n < CPU_SETSIZE; n++)
		if (CPU_ISSET(n, &set))
			all.push_back(n);
	return all;
}

using numbers = std::vector<unsigned>;

class net_processors : public testing::Test
{
protected:
	void SetUp() override
	{
		add_puppet_transport();
		if (cpus.size() < 2)
			GTEST_SKIP() << "one processor";
	}
	void TearDown() override { EXPECT_EQ(::sched_setaffinity(0, sizeof(before), &before), 0); }

	const cpu_set_t before = mine();
	const numbers cpus = numbers_of(before);
};

// A program whose threads stay on one processor each has the library's threads on another.
TEST_F(net_processors, who_stays_on_one_may_have_a_machine_on_another)
{
	const unsigned here_alone = cpus.front(), there = cpus.back();
	const cpu_set_t one = only(here_alone);
	ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
	numbers told;
	tm_callback handler([&](const tm_event &e) {
		if (e.state == tm_state::started)
			told = numbers_of(mine());
	});
	domain d({"puppet"});
	transfer_machine tm(d, &handler);
	const unsigned beyond[] = {CPU_SETSIZE - 1, CPU_SETSIZE, ~0u}, wanted[] = {there};
	EXPECT_EQ(tm.confine({}), -EINVAL);
	EXPECT_EQ(tm.confine(beyond), -EINVAL);
	ASSERT_EQ(tm.confine(wanted), 0);
	ASSERT_EQ(tm.start(here), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	EXPECT_EQ(told, numbers{there});
	EXPECT_EQ(numbers_of(mine()), numbers{here_alone});
	ASSERT_EQ(tm.stop(true), 0);
	puppet::last->end([] { puppet::last->sink.stopped(); });
	ASSERT_EQ(tm.wait(tm_state::stopped), 0);
}

// The domain's thread takes buffers for all machines, and the pool calls back for each machine on
// that machine's processors.
TEST_F(net_processors, a_pool_tells_of_a_machine_where_that_is)
{
	struct : pool_handler {
		void below_threshold(buffer_pool &) override
		{
			told = numbers_of(mine());
			by = std::this_thread::get_id();
			times++;
		}
		numbers told;
		std::thread::id by;
		std::atomic<int> times{0};
	} watcher;
	domain d({"puppet"});
	pool_options o;
	o.threshold = 1;
	o.handler = &watcher;
	buffer_pool pool(d, o);
	buffer_callback ignore([](const buffer_event &) {});
	std::vector<buffer *> out; // each machine finds an empty pool
	for (const numbers &where : {numbers{cpus.back()}, numbers{cpus.front()}, numbers{}}) {
		transfer_machine tm(d);
		ASSERT_EQ(tm.attach(pool, ignore, 100, 1), 0);
		if (!where.empty()) {
			ASSERT_EQ(tm.confine(where), 0);
		}
		ASSERT_EQ(tm.start(here), 0);
		ASSERT_EQ(tm.wait(tm_state::started), 0);
		EXPECT_EQ(tm.receive_deficit(), 2u);
		watcher.times = 0;
		ASSERT_EQ(pool.grow(1), 0);
		for (const auto end = clock::now() + std::chrono::seconds(30);
		     !watcher.times && clock::now() < end;)
			std::this_thread::yield();
		ASSERT_EQ(watcher.times, 1);
		EXPECT_NE(watcher.by, std::this_thread::get_id());
		EXPECT_EQ(watcher.told, where.empty() ? cpus : where);
		ASSERT_EQ(tm.stop(true), 0);
		puppet::last->end([] { puppet::last->sink.stopped(); });
		ASSERT_EQ(tm.wait(tm_state::stopped), 0);
		while (buffer *b = pool.get())
			out.push_back(b);
	}
	for (buffer *b : out)
		EXPECT_EQ(pool.put(b), 0);
}

} // namespace
