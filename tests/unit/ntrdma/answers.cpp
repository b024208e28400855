// SPDX-License-Identifier: MIT
// answers.cpp - by TCP the answer to what a poll has found waits: for the next post, the next poll,
// the thread, and the end.
#include <cstdlib>
#include <functional>
#include <optional>

#include "tests/unit/ntrdma/process.hpp"

namespace
{

struct answers : testing::Test {
	answers()
	{
		setenv("COOP_NTRDMA_BACKEND", "tcp", 1);
		// A sign of life would take the answer along.
		setenv("COOP_NTRDMA_BOUND_MS", "3600000", 1);
		begin();
	}
	~answers() override
	{
		unsetenv("COOP_NTRDMA_BACKEND");
		unsetenv("COOP_NTRDMA_BOUND_MS");
	}

	void begin()
	{
		a.emplace();
		b.emplace();
		a->connect(b->number());
		b->connect(a->number());
		for (process *p : {&*a, &*b})
			while (!up(*p))
				std::this_thread::sleep_for(1ms);
		receive(*b);
	}
	static bool up(process &p)
	{
		auto held = p.n.hold();
		return p.m->stage == link_stage::up;
	}
	static void receive(process &p)
	{
		auto held = p.n.hold();
		recv_request r{};
		r.segments = 1;
		r.at[0] = {p.base(), 64, p.key};
		ASSERT_EQ(p.m->pair->post_recv(r), 0);
		p.m->pair->flush_receive_posts();
	}
	/// A call of the application to poll; under the lock.
	static std::size_t poll(process &p)
	{
		std::array<completion, 1> c;
		p.n.polled();
		return p.queue.poll(c);
	}
	/// A sends, and b polls until it has the message. As b's lock is held all the time, its
	/// thread has no part in it.
	[[nodiscard]] node_hold pass()
	{
		auto held = b->n.hold();
		a->send(operation::send, 8);
		while (!poll(*b))
			;
		return held;
	}
	/// What b has sent by now is in a's socket.
	bool answered()
	{
		auto held = a->n.hold();
		for (int i = 0; i < 10; i++)
			if (poll(*a))
				return true;
		return false;
	}

	std::optional<process> a, b;
};

TEST_F(answers, leave_with_the_next_post)
{
	receive(*a);
	auto held = pass();
	EXPECT_FALSE(answered());
	send_request r{};
	r.op = operation::send;
	r.segments = 1;
	r.at[0] = {b->base(), 8, b->key};
	ASSERT_EQ(b->m->pair->post_send(r), 0);
	b->m->pair->flush_posts();
	EXPECT_TRUE(answered());
}

TEST_F(answers, leave_with_the_next_poll_that_finds_nothing)
{
	auto held = pass();
	EXPECT_FALSE(answered());
	EXPECT_EQ(poll(*b), 0u);
	EXPECT_TRUE(answered());
}

TEST_F(answers, leave_without_another_call)
{
	for (int i = 0; i < 10; i++) {
		if (i)
			receive(*b);
		{
			auto held = pass();
			EXPECT_FALSE(answered());
		}
		EXPECT_EQ(a->wait().result, status::success);
		// The next one finds the thread asleep for as long as it likes, or not.
		if (i % 2)
			std::this_thread::sleep_for(30ms);
	}
}

TEST_F(answers, leave_before_the_link_ends)
{
	const std::function<void()> ends[] = {
		[&] { b->m->pair->set_state(pair_state::reset); },
		[&] { b->m->pair->set_state(pair_state::error); },
		[&] { b->m->pair->fail(status::flushed); },
		[&] { b->n.destroy(std::exchange(b->m, nullptr)); },
	};
	for (const auto &end : ends) {
		{
			auto held = pass();
			EXPECT_FALSE(answered());
			end();
			if (b->m)
				b->n.changed(b->m);
		}
		EXPECT_EQ(a->wait().result, status::success);
		begin();
	}
}

TEST_F(answers, do_not_wait_when_the_process_is_about_to_end)
{
	pass().unlock();
	b->n.send_answers(true);
	EXPECT_TRUE(answered());
	receive(*b);
	auto held = pass();
	EXPECT_TRUE(answered());
}

// A signal may have interrupted a thread that has the lock, and its handler ends the process.
TEST_F(answers, are_given_up_by_a_process_that_ends_within_a_call)
{
	auto held = pass();
	b->n.send_answers(true);
	EXPECT_FALSE(answered());
}

} // namespace
