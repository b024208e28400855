// SPDX-License-Identifier: MIT
// pipe.cpp - Ethernet frames between two pipes over plain memory: whole, in order, never dropped;
// when a sleeper is woken; and what a peer may not say.
#include "userland/ntrdma/ether/pipe.hpp"

#include <deque>
#include <random>

#include <gtest/gtest.h>

#include "tests/unit/ntrdma/sides.hpp"
#include "userland/ntrdma/core/types.hpp"

namespace coop::ntrdma::test
{

namespace
{

using bytes = std::vector<std::uint8_t>;

struct two_pipes : ::testing::Test {
	std::unique_ptr<half> h0 = std::make_unique<half>(), h1 = std::make_unique<half>();
	bytes s0 = bytes(frame_stream_bytes), s1 = bytes(frame_stream_bytes);
	fake_port p0{*h0, *h1, false}, p1{*h1, *h0, false};
	pipe a{p0, s0.data(), s1.data()}, b{p1, s1.data(), s0.data()};

	void SetUp() override
	{
		ASSERT_TRUE(a.look());
		ASSERT_TRUE(b.look());
	}
	/// Sends a frame whose bytes are told by its number.
	static bytes frame(std::uint32_t number, std::uint32_t length)
	{
		bytes f(length);
		std::minstd_rand r{number + 1};
		for (std::uint8_t &c : f)
			c = static_cast<std::uint8_t>(r() >> 8);
		return f;
	}
	static void put(pipe &p, const bytes &f)
	{
		std::size_t done = 0, room = 0;
		for (const place &at : p.space()) {
			std::size_t n = std::min<std::size_t>(at.length, f.size() - done);
			std::memcpy(at.at, f.data() + done, n);
			done += n;
			room += at.length;
		}
		ASSERT_EQ(room, frame_most);
		p.send(static_cast<std::uint32_t>(f.size()));
	}
	static bytes get(pipe &p)
	{
		span_pair at;
		std::uint32_t length = 0;
		EXPECT_TRUE(p.next(&at, &length));
		bytes f;
		for (const place &piece : at)
			f.insert(f.end(), piece.at, piece.at + piece.length);
		EXPECT_EQ(f.size(), length);
		p.take();
		return f;
	}
};

TEST_F(two_pipes, frames_of_all_sizes_arrive_whole_and_in_order)
{
	std::mt19937 random{20261126};
	std::deque<std::uint32_t> sizes;
	std::uint32_t sent = 0, taken = 0;
	for (int round = 0; taken < 150; round++) {
		ASSERT_LT(round, 10000) << "it does not move";
		ASSERT_TRUE(a.look());
		while (a.room() && random() % 8) {
			std::uint32_t length = frame_least;
			switch (random() % 4) {
			case 0:
				length = frame_most;
				break;
			case 1:
				length += random() % 128;
				break;
			default:
				length += random() % (frame_most - frame_least + 1);
			}
			sizes.push_back(length);
			put(a, frame(sent++, length));
		}
		ASSERT_TRUE(b.look());
		while (b.waiting() && random() % 4) {
			ASSERT_EQ(get(b), frame(taken, sizes.front()));
			sizes.pop_front();
			taken++;
		}
	}
}

TEST_F(two_pipes, a_full_stream_stops_the_sender_until_a_frame_is_taken)
{
	std::uint32_t sent = 0;
	for (; a.room(); sent++)
		put(a, frame(sent, frame_most));
	EXPECT_GE(sent, frame_stream_bytes / frame_most - 1);
	ASSERT_TRUE(a.look());
	EXPECT_FALSE(a.room());
	ASSERT_TRUE(b.look());
	EXPECT_EQ(b.waiting(), sent);
	EXPECT_EQ(get(b), frame(0, frame_most));
	ASSERT_TRUE(a.look());
	EXPECT_TRUE(a.room());
}

TEST_F(two_pipes, a_sender_without_a_posted_receive_stops)
{
	std::uint32_t sent = 0;
	for (; a.room(); sent++)
		put(a, frame(sent, frame_least));
	EXPECT_EQ(sent, ring_entries);
	EXPECT_EQ(a.credits(), 0u);
	EXPECT_LT(a.outstanding_bytes(), frame_stream_bytes / 2);
	ASSERT_TRUE(b.look());
	get(b);
	ASSERT_TRUE(a.look());
	EXPECT_EQ(a.credits(), 1u);
	EXPECT_TRUE(a.room());
}

TEST_F(two_pipes, a_sleeper_is_woken_once_for_each_sleep)
{
	b.wait(pipe::frames);
	put(a, frame(0, 100));
	EXPECT_EQ(p0.rings, 0u);
	a.ring();
	EXPECT_EQ(p0.rings, 1u);
	a.ring();
	EXPECT_EQ(p0.rings, 1u);
	b.wait(pipe::nothing);
	a.ring();
	EXPECT_EQ(p0.rings, 1u);
	b.wait(pipe::frames);
	a.ring();
	EXPECT_EQ(p0.rings, 2u);
}

TEST_F(two_pipes, room_wakes_only_who_waits_for_it_and_when_half_is_free)
{
	for (std::uint32_t i = 0; a.room(); i++)
		put(a, frame(i, frame_most));
	std::uint32_t all = a.outstanding();
	a.wait(pipe::frames);
	ASSERT_TRUE(b.look());
	get(b);
	EXPECT_EQ(p1.rings, 0u);
	a.wait(pipe::room_too);
	ASSERT_TRUE(a.look());
	EXPECT_FALSE(a.much_room());
	std::uint32_t left = all - 1;
	for (; !p1.rings; left--) {
		ASSERT_GT(left, 0u);
		get(b);
	}
	EXPECT_LE(left * frame_most, frame_stream_bytes / 2 + frame_most);
	EXPECT_GT(left, 1u);
	ASSERT_TRUE(a.look());
	EXPECT_TRUE(a.much_room());
}

TEST_F(two_pipes, room_does_not_wake_who_waits_for_frames)
{
	for (std::uint32_t i = 0; a.room(); i++)
		put(a, frame(i, frame_most));
	a.wait(pipe::frames);
	ASSERT_TRUE(b.look());
	while (b.waiting())
		get(b);
	EXPECT_EQ(p1.rings, 0u);
}

TEST_F(two_pipes, the_last_receive_wakes_a_sender_that_ran_out_of_them)
{
	for (std::uint32_t i = 0; a.room(); i++)
		put(a, frame(i, frame_least));
	a.wait(pipe::room_too);
	ASSERT_TRUE(b.look());
	while (b.waiting())
		get(b);
	EXPECT_EQ(p1.rings, 1u);
	ASSERT_TRUE(a.look());
	EXPECT_TRUE(a.much_room());
}

TEST_F(two_pipes, any_look_answers_for_a_sign_of_life)
{
	EXPECT_TRUE(a.answered());
	a.ask();
	EXPECT_FALSE(a.answered());
	ASSERT_TRUE(b.look());
	EXPECT_TRUE(a.answered());
}

TEST_F(two_pipes, words_beside_the_frames)
{
	EXPECT_FALSE(b.peer_up());
	a.say_up(true);
	EXPECT_TRUE(b.peer_up());
	EXPECT_FALSE(b.ended());
	a.end(link_word::closed);
	EXPECT_TRUE(b.ended());
	EXPECT_EQ(p0.ends, 1u);
}

// What a peer of good faith never stores. Each lie is one, against what is possible at its edge.
TEST_F(two_pipes, impossible_indices_are_refused)
{
	auto lie = [&](auto &word, auto possible, auto impossible) {
		auto before = word.load();
		word = possible;
		pipe honest{p0, s0.data(), s1.data()};
		EXPECT_TRUE(honest.look());
		word = impossible;
		pipe fresh{p0, s0.data(), s1.data()};
		EXPECT_FALSE(fresh.look());
		word = before;
	};
	lie(h1->wqe_prod, ring_entries, ring_entries + 1);
	lie(h1->wqe_cons, 0u, 1u);
	lie(h1->recv_post, ring_entries, ring_entries + 1);
	lie(h1->stream_prod, std::uint64_t{frame_stream_bytes},
	    std::uint64_t{frame_stream_bytes} + 1);
	lie(h1->stream_cons, std::uint64_t{0}, std::uint64_t{1});
}

// They are free-running: no value of them means that nothing was stored yet.
TEST_F(two_pipes, indices_pass_their_greatest_value)
{
	constexpr std::uint32_t first = 0u - ring_entries - 3;
	pipe from{p0, s0.data(), s1.data(), first}, to{p1, s1.data(), s0.data(), first};
	for (std::uint32_t i = 0; i < 2 * ring_entries; i++) {
		ASSERT_TRUE(from.look()) << i;
		ASSERT_TRUE(from.room()) << i;
		put(from, frame(i, 100));
		ASSERT_TRUE(to.look()) << i;
		ASSERT_EQ(get(to), frame(i, 100));
	}
}

TEST_F(two_pipes, indices_do_not_go_back)
{
	put(b, frame(0, 1000));
	put(a, frame(0, 1000));
	ASSERT_TRUE(b.look());
	get(b);
	ASSERT_TRUE(a.look());
	h1->wqe_prod = 0;
	EXPECT_FALSE(a.look());
	h1->wqe_prod = 1;
	EXPECT_TRUE(a.look());
	h1->wqe_cons = 0;
	EXPECT_FALSE(a.look());
	h1->wqe_cons = 1;
	h1->stream_cons = 0;
	EXPECT_FALSE(a.look());
}

TEST_F(two_pipes, impossible_entries_are_refused)
{
	put(b, frame(0, 1000));
	put(b, frame(1, frame_most));
	ASSERT_TRUE(a.look());
	wqe &w = h1->wqes[0];
	const wqe good = w;
	span_pair at;
	std::uint32_t length;
	auto refused = [&](auto change) {
		w = good;
		change();
		bool fine = a.next(&at, &length);
		w = good;
		return !fine;
	};
	EXPECT_TRUE(refused([&] { w.op = static_cast<std::uint8_t>(operation::write); }));
	EXPECT_TRUE(refused([&] { w.how = static_cast<std::uint8_t>(carriage::pull); }));
	EXPECT_TRUE(refused([&] { w.segments = 1; }));
	EXPECT_TRUE(refused([&] { w.length = frame_least - 1; }));
	EXPECT_TRUE(refused([&] { w.length = frame_most + 1; }));
	EXPECT_FALSE(refused([] {}));
	get(a);
	get(a);
	put(b, frame(2, 1000));
	ASSERT_TRUE(a.look());
	h1->wqes[2].length = 1100; // more than it stored
	EXPECT_FALSE(a.next(&at, &length));
}

} // namespace

} // namespace coop::ntrdma::test
