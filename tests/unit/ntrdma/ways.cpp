// SPDX-License-Identifier: MIT
// ways.cpp - large messages go the way that the receiver has measured to be faster.
#include <gtest/gtest.h>

#include "sides.hpp"

namespace
{

using namespace coop::ntrdma;
using namespace coop::ntrdma::test;

constexpr std::uint32_t large = 64u << 10;

class large_messages : public testing::Test
{
protected:
	/// Sends `n`; the receiver sees each before any of its bytes are there, and streaming takes
	/// `stream_time` ns. @return those that were pulled.
	unsigned send(unsigned n, std::uint64_t pull_time, std::uint64_t stream_time)
	{
		unsigned before = j.pb.pulls;
		j.pb.pull_time = pull_time;
		for (unsigned i = 0; i < n; i++) {
			j.b.receive(j.b.at(large, large));
			j.a.memory[0] = static_cast<std::uint8_t>(i);
			j.a.pair->post_send(j.a.request(operation::send, j.a.at(0, large)));
			bytes_come_late(stream_time);
			j.settle();
			EXPECT_EQ(j.a.poll(j.a.sends).size(), 1u);
			EXPECT_EQ(j.b.poll(j.b.recvs).size(), 1u);
			EXPECT_EQ(j.b.memory[large], static_cast<std::uint8_t>(i));
		}
		return j.pb.pulls - before;
	}
	// The index of the bytes is hidden from the receiver's first look, as if the sender were
	// still copying.
	void bytes_come_late(std::uint64_t ns)
	{
		j.a.pair->flush_posts();
		std::uint64_t there = j.halves[0].stream_prod.exchange(seen_);
		bool streams = there != seen_;
		if (streams) {
			j.b.pair->progress();
			j.halves[0].stream_prod.store(seen_ = there);
			j.halves[0].bell++;
			j.pb.time += ns;
		}
	}

	joined j;
	std::uint64_t seen_ = 0;
};

TEST_F(large_messages, are_pulled_unless_there_is_a_clock)
{
	unsigned others = 0;
	for (unsigned i = 1; i <= 1000; i++)
		others += ways::other_way(i);
	EXPECT_GT(others, 3u);
	EXPECT_LT(others, 25u);
	EXPECT_EQ(send(1000, 0, 0), 1000u - others);
}

TEST_F(large_messages, go_the_faster_way)
{
	j.pb.time = 1;
	send(1000, 1000000, 100000);
	EXPECT_LT(send(500, 1000000, 100000), 20u) << "streaming is faster";
	send(4000, 100000, 1000000);
	EXPECT_GT(send(500, 100000, 1000000), 480u) << "pulling has become faster";
	send(1000, 100000, 99000);
	EXPECT_GT(send(500, 100000, 99000), 480u) << "as good is not good enough";
}

TEST_F(large_messages, the_first_choice_takes_less_than_64)
{
	j.pb.time = 1;
	send(64, 1000000, 100000);
	EXPECT_LT(send(500, 1000000, 100000), 20u) << "streaming is faster";
}

TEST(ways, one_slow_message_proves_nothing)
{
	ways w;
	for (int i = 0; i < 100; i++) {
		w.took(ways::pulled, 1000, 1024);
		w.took(ways::streamed, 1100, 1024);
	}
	EXPECT_FALSE(w.streams());
	w.took(ways::pulled, 100000000, 1024);
	EXPECT_FALSE(w.streams());
}

} // namespace
