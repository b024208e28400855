// SPDX-License-Identifier: MIT
// pools.cpp - what machines get from a pool, and how they start and stop, over a transport that
// does what the test says.
#include <array>
#include <atomic>
#include <gtest/gtest.h>
#include <iterator>
#include <list>
#include <set>
#include <span>
#include <string>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <thread>
#include <tuple>
#include <utility>

#include "tests/unit/net/puppet.hpp"

static std::atomic<unsigned> binds{0};

// Counts the binds of the program.
extern "C" int bind(int fd, const sockaddr *a, socklen_t length) noexcept
{
	binds++;
	return static_cast<int>(::syscall(SYS_bind, fd, a, length));
}

namespace
{

using namespace puppets;

class ignore final : public buffer_handler
{
	void on_buffer(const buffer_event &) override {}
};

TEST(net_stop, no_deficit_while_stopping)
{
	add_puppet_transport();
	domain d({"puppet"});
	pool_options o;
	o.buffers = 1;
	buffer_pool pool(d, o);
	ignore handler;
	std::byte memory[8];
	buffer b(d, memory, sizeof(memory));
	transfer_machine tm(d);
	ASSERT_EQ(tm.attach(pool, handler, 100, 1), 0);
	ASSERT_EQ(tm.set_pool_length(3), 0);
	ASSERT_EQ(tm.start(here), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	EXPECT_EQ(tm.receive_deficit(), 2u);
	endpoint_ptr to;
	ASSERT_EQ(tm.make_endpoint(there, to), 0);
	operation send;
	send.queue = queue_type::msg_send;
	send.to = to.get();
	send.handler = &handler;
	ASSERT_EQ(tm.add(b, send), 0);
	ASSERT_EQ(tm.stop(false), 0);
	EXPECT_EQ(tm.state(), tm_state::stopping);
	EXPECT_EQ(tm.receive_deficit(), 0u);
	puppet *p = puppet::last;
	p->run([&] { p->sink.completed(p->submitted[0], 0, 0); });
	p->end([&] { p->sink.stopped(); });
	EXPECT_EQ(tm.wait(tm_state::stopped), 0);
	EXPECT_EQ(pool.free(), 1u);
}

// Notes the buffers that got messages, and returns them to their pool.
class noted final : public buffer_handler
{
public:
	std::set<const buffer *> seen;

private:
	void on_buffer(const buffer_event &e) override
	{
		if (e.sender)
			seen.insert(e.buffer);
		if (!e.queued)
			EXPECT_EQ(e.buffer->pool()->put(e.buffer), 0);
	}
};

class counted final : public buffer_handler
{
public:
	std::atomic<unsigned> messages{0};

private:
	void on_buffer(const buffer_event &e) override { messages += e.sender != nullptr; }
};

// 20 messages come one by one to a machine that has four of its pool's eight buffers posted, and
// one of the program's own behind them for each of `own`.
std::size_t buffers_that_got_messages(std::span<counted> own)
{
	add_puppet_transport();
	domain d({"puppet"});
	pool_options o;
	o.buffers = 8;
	buffer_pool pool(d, o);
	noted handler;
	std::byte memory[8];
	std::list<buffer> others;
	transfer_machine tm(d);
	EXPECT_EQ(tm.attach(pool, handler, 100, 1), 0);
	EXPECT_EQ(tm.set_pool_length(4), 0);
	EXPECT_EQ(tm.start(here), 0);
	EXPECT_EQ(tm.wait(tm_state::started), 0);
	for (counted &c : own) {
		operation takes;
		takes.min_receive_size = takes.max_receive_msgs = 1;
		takes.handler = &c;
		EXPECT_EQ(tm.add(others.emplace_back(d, memory, sizeof(memory)), takes), 0);
	}
	puppet *p = puppet::last;
	address from;
	EXPECT_EQ(parse(there, from), 0);
	// Those of the pool are back. With another buffer open, fewer of the pool are posted.
	const auto idle = [&] {
		for (const auto end = clock::now() + std::chrono::seconds(60);
		     pool.free() + tm.queued(queue_type::msg_recv) < 8 && clock::now() < end;)
			std::this_thread::yield();
		EXPECT_GE(pool.free() + tm.queued(queue_type::msg_recv), 8u);
	};
	for (int i = 0; i < 20; i++) {
		idle();
		p->run([&] { EXPECT_EQ(p->sink.receive("x", 1, p->sink.peer(from)), 0); });
	}
	idle();
	EXPECT_EQ(tm.stop(true), 0);
	p->end([&] { p->sink.stopped(); });
	EXPECT_EQ(tm.wait(tm_state::stopped), 0);
	EXPECT_EQ(pool.free(), 8u);
	return handler.seen.size();
}

// What the processor's caches have is used again, however many buffers wait.
TEST(net_pool, messages_one_by_one_go_round_two_buffers)
{
	EXPECT_EQ(buffers_that_got_messages({}), 2u);
}

// Buffers of the pool that come back do not overtake them for ever.
TEST(net_pool, the_programs_own_buffers_get_their_turn)
{
	std::array<counted, 2> own;
	EXPECT_GT(buffers_that_got_messages(own), 2u);
	EXPECT_EQ(own[0].messages, 1u);
	EXPECT_EQ(own[1].messages, 1u);
}

// Without buffers that can take messages a machine would be deaf, however many are half full.
TEST(net_pool, buffers_that_wait_for_the_rest_of_a_message_are_made_up_for)
{
	add_puppet_transport();
	domain d({"puppet"});
	pool_options o;
	o.buffers = 3;
	buffer_pool pool(d, o);
	ignore handler;
	transfer_machine tm(d);
	ASSERT_EQ(tm.attach(pool, handler, 100, 1), 0);
	ASSERT_EQ(tm.set_pool_length(2), 0);
	ASSERT_EQ(tm.start(here), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	puppet *p = puppet::last;
	spi::landing half[3], none;
	p->run([&] {
		for (spi::landing &l : half)
			EXPECT_EQ(p->sink.place(8, l), 0);
		EXPECT_EQ(p->sink.place(8, none), -ENOBUFS);
	});
	EXPECT_EQ(tm.receive_deficit(), 2u) << "all of the pool has been given out";
	p->run([&] { p->sink.abandon(half[0]); });
	EXPECT_EQ(p->receivables, 1);
	p->run([&] { EXPECT_EQ(p->sink.place(8, half[0]), 0); });
	ASSERT_EQ(pool.grow(2), 0);
	for (const auto end = clock::now() + std::chrono::seconds(60);
	     tm.receive_deficit() && clock::now() < end;)
		std::this_thread::yield();
	EXPECT_EQ(tm.receive_deficit(), 0u);
	EXPECT_EQ(tm.queued(queue_type::msg_recv), 5u);
	p->run([&] {
		for (const spi::landing &l : half)
			p->sink.abandon(l);
	});
	ASSERT_EQ(tm.stop(true), 0);
	p->end([&] { p->sink.stopped(); });
	EXPECT_EQ(tm.wait(tm_state::stopped), 0);
	EXPECT_EQ(pool.free(), 5u);
}

// max_queued is short, not the pool: the handler hears nothing of an empty pool, and the missing
// buffer comes with the next operation that ends.
TEST(net_pool, what_max_queued_holds_back_is_made_up_for)
{
	add_puppet_transport();
	struct : pool_handler {
		void not_empty(buffer_pool &) override { told++; }
		std::atomic<int> told{0};
	} watcher;
	domain d({"puppet"});
	pool_options o;
	o.buffers = 2;
	o.handler = &watcher;
	buffer_pool pool(d, o);
	ignore handler;
	std::list<buffer> out;
	transfer_machine tm(d);
	ASSERT_EQ(tm.attach(pool, handler, 100, 1), 0);
	ASSERT_EQ(tm.set_pool_length(3), 0);
	ASSERT_EQ(tm.start(here), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	endpoint_ptr to;
	ASSERT_EQ(tm.make_endpoint(there, to), 0);
	std::byte memory[8];
	operation send;
	send.queue = queue_type::msg_send;
	send.to = to.get();
	send.handler = &handler;
	for (std::uint32_t n = 2; n < d.limits().max_queued; n++)
		ASSERT_EQ(tm.add(out.emplace_back(d, memory, sizeof(memory)), send), 0);
	ASSERT_EQ(tm.add(out.emplace_back(d, memory, sizeof(memory)), send), -ENOBUFS);
	EXPECT_EQ(tm.receive_deficit(), 1u);
	watcher.told = 0;
	ASSERT_EQ(pool.grow(1), 0);
	const auto end = clock::now() + std::chrono::seconds(60);
	while (tm.receive_deficit() && clock::now() < end)
		std::this_thread::yield();
	EXPECT_EQ(tm.receive_deficit(), 0u);
	EXPECT_EQ(tm.queued(queue_type::msg_recv), 2u);
	EXPECT_EQ(pool.free(), 1u);
	puppet *p = puppet::last;
	p->run([&] { p->sink.completed(p->submitted[0], 0, 0); });
	EXPECT_EQ(tm.queued(queue_type::msg_recv), 3u);
	EXPECT_EQ(watcher.told, 1);
	ASSERT_EQ(tm.stop(true), 0);
	p->run([&] {
		for (const spi::token t : p->submitted)
			p->sink.completed(t, -ECANCELED, 0);
	});
	p->end([&] { p->sink.stopped(); });
	EXPECT_EQ(tm.wait(tm_state::stopped), 0);
}

// One machine ends while another gets buffers: the next one must not lose its turn.
TEST(net_pool, a_machine_that_goes_takes_no_turn_with_it)
{
	add_puppet_transport();
	struct : pool_handler {
		// In put(), before the thread that provides for the machines hears of it.
		void not_empty(buffer_pool &p) override
		{
			if (buffer *b = std::exchange(second, nullptr)) {
				EXPECT_EQ(p.put(b), 0);
			}
		}
		// On that thread, between two machines.
		void below_threshold(buffer_pool &) override
		{
			if (transfer_machine *tm = leaves.exchange(nullptr)) {
				EXPECT_EQ(tm->fini(), 0);
			}
		}
		buffer *second = nullptr;
		std::atomic<transfer_machine *> leaves{nullptr};
	} scene;
	domain d({"puppet"});
	pool_options o;
	o.buffers = 2;
	o.threshold = 2;
	o.handler = &scene;
	buffer_pool pool(d, o);
	buffer *first = pool.get(), *second = pool.get();
	ASSERT_TRUE(first && second);
	ignore handler;
	std::list<transfer_machine> machines;
	std::vector<puppet *> puppets;
	for (const char *at : {here, there, elsewhere}) {
		transfer_machine &tm = machines.emplace_back(d);
		puppets.push_back(puppet::last);
		ASSERT_EQ(tm.attach(pool, handler, 100, 1), 0);
		ASSERT_EQ(tm.set_pool_length(1), 0);
		ASSERT_EQ(tm.start(at), 0);
		ASSERT_EQ(tm.wait(tm_state::started), 0);
		EXPECT_EQ(tm.receive_deficit(), 1u);
	}
	const auto stop = [&](transfer_machine &tm, puppet *p) {
		EXPECT_EQ(tm.stop(true), 0);
		p->end([&] { p->sink.stopped(); });
		EXPECT_EQ(tm.wait(tm_state::stopped), 0);
	};
	transfer_machine &leaves = machines.front(), &last = machines.back();
	stop(leaves, puppets[0]);
	scene.second = second;
	scene.leaves = &leaves;
	ASSERT_EQ(pool.put(first), 0);
	const auto end = clock::now() + std::chrono::seconds(60);
	while (last.receive_deficit() && clock::now() < end)
		std::this_thread::yield();
	EXPECT_EQ(last.receive_deficit(), 0u);
	EXPECT_EQ(leaves.state(), tm_state::undefined);
	stop(*std::next(machines.begin()), puppets[1]);
	stop(last, puppets[2]);
}

// Machines, and puppets that stop with them.
class crew
{
public:
	~crew()
	{
		for (unsigned n = 0; n < puppets.size(); n++)
			stop(n);
	}
	transfer_machine &add(domain &d)
	{
		machines_.emplace_back(d);
		puppets.push_back(puppet::last);
		return machines_.back();
	}
	void stop(unsigned n)
	{
		if (at(n).stop(true))
			return; // it was stopped before
		puppet *p = puppets[n];
		p->end([p] { p->sink.stopped(); });
		EXPECT_EQ(at(n).wait(tm_state::stopped), 0);
	}
	transfer_machine &at(unsigned n) { return *std::next(machines_.begin(), n); }

	std::vector<puppet *> puppets;

private:
	std::list<transfer_machine> machines_;
};

// They wait in a line, and a served machine goes to its end; those at another pool do not count.
TEST(net_pool, who_waits_longest_is_served_first)
{
	add_puppet_transport();
	domain d({"puppet"});
	pool_options o;
	o.buffers = 1;
	buffer_pool pool(d, o), other(d, o);
	buffer *one = pool.get(), *another = other.get();
	ASSERT_TRUE(one && another);
	class : public buffer_handler
	{
		void on_buffer(const buffer_event &e) override
		{
			if (!e.queued)
				ended++;
		}

	public:
		std::atomic<unsigned> ended{0};
	} handler;
	const auto until = [](auto &&true_) {
		const auto end = clock::now() + std::chrono::seconds(60);
		while (!true_() && clock::now() < end)
			std::this_thread::yield();
		return true_();
	};
	const auto give_back = [&] {
		(void)pool.put(one);
		(void)other.put(another);
	};
	{
		crew all;
		for (const char *at : {here, there, elsewhere}) {
			transfer_machine &tm = all.add(d);
			ASSERT_EQ(tm.attach(at == elsewhere ? other : pool, handler, 100, 1), 0);
			ASSERT_EQ(tm.set_pool_length(1), 0);
			ASSERT_EQ(tm.start(at), 0);
			ASSERT_EQ(tm.wait(tm_state::started), 0);
			EXPECT_EQ(tm.receive_deficit(), 1u);
		}
		address who;
		ASSERT_EQ(parse("127.0.0.1@tcp:12345:1:9", who), 0);
		for (const unsigned turn : {0u, 1u, 0u, 1u}) {
			EXPECT_EQ(pool.put(one), 0);
			EXPECT_TRUE(until([&] { return pool.free() == 0; }));
			EXPECT_TRUE(until([&] { return all.at(turn).receive_deficit() == 0; }));
			EXPECT_EQ(all.at(1 - turn).receive_deficit(), 1u);
			EXPECT_EQ(all.at(2).receive_deficit(), 1u);
			if (HasFailure())
				break;
			// The buffer ends with a message, and the machine waits for the next.
			const unsigned before = handler.ended;
			puppet *p = all.puppets[turn];
			p->run([&] { EXPECT_EQ(p->sink.receive("", 1, p->sink.peer(who)), 0); });
			EXPECT_TRUE(until([&] { return handler.ended != before; }));
			EXPECT_EQ(all.at(turn).receive_deficit(), 1u);
		}
	}
	give_back();
	EXPECT_EQ(pool.free() + other.free(), 2u);
}

// The process need not ask the kernel for a number that it holds.
TEST(net_start, each_number_is_bound_once)
{
	add_puppet_transport();
	domain d({"host puppet"});
	crew all;
	const auto start = [&] {
		transfer_machine &tm = all.add(d);
		EXPECT_EQ(tm.start("127.0.0.1@tcp:12345:63:*"), 0);
		EXPECT_EQ(tm.wait(tm_state::started), 0);
		return tm.address().id;
	};
	const unsigned before = binds;
	std::vector<std::uint32_t> numbers;
	for (unsigned n = 0; n < 20; n++)
		numbers.push_back(start());
	for (unsigned n = 1; n < 20; n++)
		EXPECT_LT(numbers[n], numbers[n - 1]) << "downward";
	// Higher numbers may belong to other processes; the test binds each of its own once.
	const unsigned others = address::machines - numbers.back() - 20;
	EXPECT_LE(binds - before, 20 * (1 + others));
	all.stop(7);
	const unsigned again = binds;
	EXPECT_EQ(start(), numbers[7]) << "what is given back is taken again";
	EXPECT_LE(binds - again, 1 + others);
}

// After the machine's end the program may take the pool away, except for what deliver_all() has
// still to hand out: the state does not wait for that, since a program may wait for the state
// first.
class net_pool_at_the_end : public testing::TestWithParam<std::tuple<bool, bool>>,
			    public buffer_handler,
			    public tm_handler
{
protected:
	static void SetUpTestSuite() { add_puppet_transport(); }
	void on_buffer(const buffer_event &e) override
	{
		events.push_back(e);
		if (!e.queued) {
			EXPECT_EQ(pool.put(e.buffer), 0);
		}
	}
	void on_state(const tm_event &e) override
	{
		if (e.state != tm_state::started)
			free_then = pool.free();
	}

	domain d{{"puppet"}};
	buffer_pool pool{d, {3}};
	std::vector<buffer_event> events;
	std::uint32_t free_then = 99;
	transfer_machine tm{d, this};
};

TEST_P(net_pool_at_the_end, buffers_are_back_but_for_those_to_be_delivered_yet)
{
	const auto [fails, synchronous] = GetParam();
	const tm_state last = fails ? tm_state::failed : tm_state::stopped;
	ASSERT_EQ(tm.attach(pool, *this, 100, 4), 0);
	if (synchronous) {
		ASSERT_EQ(tm.deliver_synchronously(), 0);
	}
	ASSERT_EQ(tm.start(here), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	EXPECT_EQ(pool.free(), 1u);
	puppet *p = puppet::last;
	const auto message = [&] {
		address who;
		ASSERT_EQ(parse(elsewhere, who), 0);
		spi::landing l;
		ASSERT_EQ(p->sink.place(8, l), 0);
		const auto n = p->sink.peer(who);
		p->sink.received(l, n);
		p->sink.release(n);
	};
	if (fails) {
		p->end([&] {
			message();
			p->sink.failed(-ENODEV);
		});
	} else {
		p->run(message);
		ASSERT_EQ(tm.stop(true), 0);
		p->end([&] { p->sink.stopped(); });
	}
	ASSERT_EQ(tm.wait(last, clock::now() + std::chrono::seconds(30)), 0);
	EXPECT_EQ(free_then, synchronous ? 2u : 3u);
	EXPECT_EQ(events.size(), synchronous ? 0u : 2u);
	while (tm.deliver_all())
		;
	EXPECT_EQ(pool.free(), 3u);
	ASSERT_EQ(events.size(), 2u);
	EXPECT_TRUE(events[0].queued);
	EXPECT_EQ(events[0].status, 0);
	EXPECT_EQ(events[0].length, 8u);
	EXPECT_FALSE(events[1].queued);
	EXPECT_EQ(events[1].status, fails ? -ENODEV : -ECANCELED);
	EXPECT_EQ(events[1].buffer, events[0].buffer);
}

INSTANTIATE_TEST_SUITE_P(of_a_machine, net_pool_at_the_end,
			 testing::Combine(testing::Bool(), testing::Bool()), [](const auto &i) {
				 return std::string(std::get<0>(i.param) ? "failed" : "stopped") +
					(std::get<1>(i.param) ? "_synchronous" : "_automatic");
			 });

TEST(net_start, an_address_that_others_hold_is_passed_over)
{
	add_puppet_transport();
	domain d({"puppet"});
	{
		transfer_machine tm(d);
		puppet::busy = 2;
		ASSERT_EQ(tm.start("127.0.0.1@tcp:12345:1:*"), 0);
		EXPECT_EQ(tm.address().id, 4093u);
		ASSERT_EQ(tm.wait(tm_state::started), 0);
		(void)tm.stop(true);
		puppet::last->end([] { puppet::last->sink.stopped(); });
	}
	transfer_machine tm(d);
	puppet::busy = 1;
	EXPECT_EQ(tm.start("127.0.0.1@tcp:12345:1:5"), -EADDRINUSE);
	EXPECT_EQ(puppet::busy, 0);
	EXPECT_EQ(tm.state(), tm_state::failed);
}

} // namespace
