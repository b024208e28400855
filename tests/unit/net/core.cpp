// SPDX-License-Identifier: MIT
// core.cpp - the messaging core over a transport that does what the test says, when it says it.
//
// The tests play the outcomes of real transports' races step by step: late or double completions,
// returned places, a transport that breaks.
#include <cstring>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <thread>
#include <utility>

#include "tests/unit/net/puppet.hpp"
#include "userland/net/descriptor.hpp"

namespace
{

using namespace puppets;

// Synchronous delivery: a test sees the events of one step only.
class net_core : public testing::Test, public buffer_handler
{
protected:
	static void SetUpTestSuite() { add_puppet_transport(); }
	void SetUp() override
	{
		ASSERT_EQ(tm.deliver_synchronously(), 0);
		ASSERT_EQ(tm.start(here), 0);
		ASSERT_EQ(tm.wait(tm_state::started), 0);
		p = puppet::last;
		ASSERT_EQ(tm.make_endpoint(there, to), 0);
	}
	// A puppet does not stop by itself.
	void TearDown() override
	{
		if (!puppet::last)
			return;
		(void)tm.stop(true);
		p->run([&] {
			for (spi::token t : p->submitted)
				p->sink.completed(t, -ECANCELED, 0);
		});
		p->end([&] { p->sink.stopped(); });
		(void)tm.wait(tm_state::stopped);
		tm.deliver_all();
	}
	void on_buffer(const buffer_event &e) override { events.push_back(e); }
	std::vector<buffer_event> take()
	{
		while (tm.deliver_all())
			;
		return std::exchange(events, {});
	}
	int send(buffer &b)
	{
		operation o;
		o.queue = queue_type::msg_send;
		o.length = 8;
		o.to = to.get();
		o.handler = this;
		return tm.add(b, o);
	}
	int receive(buffer &b, std::size_t min = 100, std::uint32_t msgs = 100)
	{
		operation o;
		o.min_receive_size = min;
		o.max_receive_msgs = msgs;
		o.handler = this;
		return tm.add(b, o);
	}
	spi::landing place(std::size_t n, int expected = 0)
	{
		spi::landing l;
		p->run([&] { EXPECT_EQ(p->sink.place(n, l), expected); });
		return l;
	}
	void received(const spi::landing &l)
	{
		p->run([&] {
			address a;
			ASSERT_EQ(parse(elsewhere, a), 0);
			const auto n = p->sink.peer(a);
			p->sink.received(l, n);
			p->sink.release(n);
		});
	}
	void abandon(const spi::landing &l)
	{
		p->run([&] { p->sink.abandon(l); });
	}

	std::byte memory[4][size];
	domain d{{"puppet"}};
	buffer a{d, memory[0], size}, b{d, memory[1], size}, c{d, memory[2], size};
	transfer_machine tm{d};
	endpoint_ptr to;
	std::vector<buffer_event> events;
	puppet *p = nullptr;
};

TEST_F(net_core, late_and_double_completions_are_skipped)
{
	ASSERT_EQ(send(a), 0);
	const spi::token first = p->submitted.at(0);
	EXPECT_NE(first, 0u);
	EXPECT_TRUE(tm.del(a));
	EXPECT_TRUE(tm.del(a));
	EXPECT_EQ(p->cancelled, std::vector{first}) << "asked once";
	EXPECT_TRUE(take().empty()) << "its memory is not quiet yet";
	EXPECT_TRUE(a.queued());
	p->run([&] { p->sink.completed(first, -ECANCELED, 0); });
	auto e = take();
	ASSERT_EQ(e.size(), 1u);
	EXPECT_EQ(e[0].status, -ECANCELED);
	EXPECT_FALSE(tm.del(a));

	ASSERT_EQ(send(a), 0);
	const spi::token second = p->submitted.at(1);
	EXPECT_NE(first, second);
	p->run([&] {
		p->sink.completed(first, 0, 8);
		p->sink.completed(0, 0, 8);
		p->sink.completed(~0ull, 0, 8);
		EXPECT_EQ(p->sink.find(first), nullptr);
		EXPECT_NE(p->sink.find(second), nullptr);
	});
	EXPECT_TRUE(take().empty());
	EXPECT_TRUE(a.queued());
	p->run([&] {
		p->sink.completed(second, 0, 8);
		p->sink.completed(second, -EIO, 0);
	});
	e = take();
	ASSERT_EQ(e.size(), 1u);
	EXPECT_EQ(e[0].status, 0);
	EXPECT_EQ(e[0].length, 8u);
}

TEST_F(net_core, messages_of_callbacks_may_wait_for_those_of_the_next)
{
	struct again final : buffer_handler {
		void on_buffer(const buffer_event &e) override { act(*e.buffer); }
		std::function<void(buffer &)> act;
	} handler;
	handler.act = [&](buffer &one) {
		EXPECT_EQ(p->flushes, 0) << "this thread not before all have returned";
		EXPECT_EQ(send(one), 0);
	};
	operation o;
	o.queue = queue_type::msg_send;
	o.length = 8;
	o.to = to.get();
	o.handler = &handler;
	for (buffer *one : {&a, &b, &c})
		ASSERT_EQ(tm.add(*one, o), 0);
	EXPECT_EQ(p->more, (std::vector{false, false, false})) << "nobody knows what follows";
	p->run([&] {
		for (int i = 0; i < 3; i++)
			p->sink.completed(p->submitted[static_cast<std::size_t>(i)], 0, 8);
	});
	while (p->submitted.size() < 6)
		tm.deliver_all();
	EXPECT_EQ(p->more, (std::vector{false, false, false, true, true, false}));
	// The machine's thread may have helped, if this one was off the processor.
	const int before = p->flushes + p->others_flushes;
	EXPECT_GE(before, 1);
	EXPECT_LE(p->flushes, 1);
	tm.deliver_all();
	EXPECT_EQ(p->flushes + p->others_flushes, before) << "once";
}

TEST_F(net_core, what_was_faster_than_the_cancel_counts)
{
	ASSERT_EQ(send(a), 0);
	ASSERT_EQ(send(b), 0);
	EXPECT_TRUE(tm.del(a));
	EXPECT_TRUE(tm.del(b));
	p->run([&] {
		p->sink.completed(p->submitted[0], 0, 8);
		p->sink.completed(p->submitted[1], -ECONNRESET, 0);
	});
	const auto e = take();
	ASSERT_EQ(e.size(), 2u);
	EXPECT_EQ(e[0].status, 0);
	EXPECT_EQ(e[1].status, -ECONNRESET);
}

TEST_F(net_core, refused_by_the_transport)
{
	p->refuse = -ENOMEM;
	EXPECT_EQ(send(a), -ENOMEM);
	EXPECT_FALSE(a.queued());
	EXPECT_EQ(tm.stats(queue_type::msg_send).adds, 0u);
	p->refuse = 0;
	p->undescribable = -EIO;
	operation o;
	o.queue = queue_type::passive_bulk_send;
	o.handler = this;
	ASSERT_EQ(tm.add(a, o), 0);
	EXPECT_TRUE(a.descriptor().empty());
	p->run([&] { p->sink.completed(p->cancelled.at(0), -ECANCELED, 0); });
	const auto e = take();
	ASSERT_EQ(e.size(), 1u);
	EXPECT_EQ(e[0].status, -EIO);
}

// A use is an operation without event and key. The reusable one waits for its uses, whichever ends
// first, and takes none once it is to end.
TEST_F(net_core, a_reusable_operation_ends_after_its_uses)
{
	operation o;
	o.queue = queue_type::passive_bulk_send;
	o.reusable = true;
	o.handler = this;
	ASSERT_EQ(tm.add(a, o), 0);
	core::descriptor d;
	ASSERT_EQ(core::decode(a.descriptor(), d), 0);
	EXPECT_TRUE(d.reusable);
	const spi::token all = p->submitted.at(0);
	spi::token use[4];
	p->run([&] {
		for (std::size_t i = 0; i < 4; i++) {
			use[i] = p->sink.use(all, 100 * i, 50, 0);
			const spi::transfer *x = p->sink.find(use[i]);
			ASSERT_NE(x, nullptr);
			EXPECT_EQ(x->offset, 100 * i);
			EXPECT_EQ(x->length, 50u);
			EXPECT_FALSE(x->reusable);
			EXPECT_EQ(p->sink.find(use[i], x->key), nullptr) << "no peer can name it";
			EXPECT_EQ(p->sink.use(use[i], 0, 1, 0), 0u) << "it is none itself";
		}
		p->sink.completed(use[1], 0, 50);
		EXPECT_EQ(p->sink.find(use[1]), nullptr);
		p->sink.completed(use[1], 0, 50); // of no effect
		p->sink.given_up(use[3]);
		EXPECT_EQ(p->sink.find(use[3]), nullptr);
		p->sink.given_up(all); // stands for others
	});
	EXPECT_EQ(tm.queued(queue_type::passive_bulk_send), 1u);
	EXPECT_TRUE(take().empty());
	EXPECT_TRUE(tm.del(a));
	EXPECT_EQ(p->cancelled, (std::vector{use[2], use[0], all}));
	p->run([&] {
		EXPECT_EQ(p->sink.use(all, 0, 1, 0), 0u);
		p->sink.completed(all, -ECANCELED, 0);
		p->sink.completed(use[0], -ECANCELED, 0);
	});
	EXPECT_TRUE(take().empty()) << "one use has the memory";
	EXPECT_TRUE(a.queued());
	p->run([&] { p->sink.completed(use[2], 0, 50); });
	const auto e = take();
	ASSERT_EQ(e.size(), 1u);
	EXPECT_EQ(e[0].status, -ECANCELED);
	EXPECT_FALSE(a.queued());
}

// However many uses a peer begins, as many are left for others: half if it is the only one.
TEST_F(net_core, a_peer_leaves_uses_for_others)
{
	const std::uint32_t most = (d.limits().max_queued + 1) / 2;
	operation o;
	o.queue = queue_type::passive_bulk_send;
	o.reusable = true;
	o.handler = this;
	ASSERT_EQ(tm.add(a, o), 0);
	const spi::token all = p->submitted.at(0);
	p->run([&] {
		std::vector<spi::token> greedy, second;
		for (spi::token t; (t = p->sink.use(all, 0, 1, 7));)
			greedy.push_back(t);
		EXPECT_EQ(greedy.size(), (most + 1) / 2);
		for (spi::token t; (t = p->sink.use(all, 0, 1, 3));)
			second.push_back(t);
		EXPECT_EQ(second.size(), (most - greedy.size() + 1) / 2);
		EXPECT_NE(p->sink.use(all, 0, 1, 100), 0u);
		EXPECT_EQ(p->sink.use(all, 0, 1, 7), 0u);
		for (const spi::token t : greedy)
			p->sink.completed(t, 0, 1);
		for (const spi::token t : second)
			p->sink.given_up(t);
		for (std::uint32_t i = 0; i < (most - 1) / 2; i++)
			ASSERT_NE(p->sink.use(all, 0, 1, 3), 0u) << i;
	});
	p->end([&] { p->sink.failed(-EIO); }); // with them under way
	EXPECT_EQ(take().size(), 1u);
}

// Uses have half as many slots as programs, and neither takes those of the other.
TEST_F(net_core, uses_are_bounded)
{
	const std::uint32_t most = (d.limits().max_queued + 1) / 2;
	operation o;
	o.queue = queue_type::passive_bulk_recv;
	o.reusable = true;
	o.handler = this;
	ASSERT_EQ(tm.add(a, o), 0);
	const spi::token all = p->submitted.at(0);
	p->run([&] {
		std::vector<spi::token> uses;
		for (std::uint32_t i = 0; i < most; i++) {
			uses.push_back(p->sink.use(all, 0, 1, i));
			ASSERT_NE(uses.back(), 0u);
		}
		EXPECT_EQ(p->sink.use(all, 0, 1, most), 0u);
		p->sink.completed(uses[most / 2], 0, 1);
		EXPECT_NE(p->sink.use(all, 0, 1, most), 0u);
	});
	ASSERT_EQ(send(b), 0);
	p->end([&] { p->sink.failed(-EIO); }); // with them under way
	const auto e = take();
	ASSERT_EQ(e.size(), 2u);
	EXPECT_EQ(e[0].status, -EIO);
}

TEST_F(net_core, tokens_are_never_zero_and_differ)
{
	std::vector<spi::token> seen;
	for (int i = 0; i < 200; i++) {
		ASSERT_EQ(send(a), 0);
		const spi::token t = p->submitted.back();
		EXPECT_NE(t, 0u);
		seen.push_back(t);
		p->run([&] { p->sink.completed(t, 0, 8); });
		take();
	}
	std::sort(seen.begin(), seen.end());
	EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end());
}

TEST_F(net_core, messages_may_end_in_any_order)
{
	ASSERT_EQ(receive(a, 100, 3), 0);
	const auto one = place(100), two = place(200), three = place(300);
	EXPECT_EQ(one.offset, 0u);
	EXPECT_EQ(two.offset, 100u);
	EXPECT_EQ(three.offset, 300u);
	place(1, -ENOBUFS);
	received(three);
	received(one);
	auto e = take();
	ASSERT_EQ(e.size(), 2u);
	EXPECT_EQ(e[0].offset, 300u);
	EXPECT_TRUE(e[0].queued);
	EXPECT_TRUE(e[1].queued);
	received(two);
	received(two); // a second time
	e = take();
	ASSERT_EQ(e.size(), 1u);
	EXPECT_EQ(e[0].offset, 100u);
	EXPECT_EQ(e[0].length, 200u);
	EXPECT_FALSE(e[0].queued);
	EXPECT_FALSE(a.queued());
	// A message was refused; the transport hears of the next buffer.
	EXPECT_EQ(p->receivables, 0);
	ASSERT_EQ(receive(b), 0);
	EXPECT_EQ(p->receivables, 1);
}

TEST_F(net_core, a_place_given_back_is_used_again)
{
	ASSERT_EQ(receive(a, 900, 1), 0);
	const auto one = place(500);
	place(1, -ENOBUFS);
	abandon(one);
	const auto again = place(1000);
	EXPECT_EQ(again.offset, 0u);
	received(again);
	const auto e = take();
	ASSERT_EQ(e.size(), 1u);
	EXPECT_EQ(e[0].length, 1000u);
	EXPECT_FALSE(e[0].queued);
}

TEST_F(net_core, a_buffer_without_room_is_retired)
{
	ASSERT_EQ(receive(a), 0);
	ASSERT_EQ(receive(b), 0);
	place(size + 1, -EMSGSIZE);
	received(place(600));
	const auto next = place(600);
	EXPECT_EQ(next.memory.segments[0].base, memory[1]);
	const auto e = take();
	ASSERT_EQ(e.size(), 2u);
	EXPECT_TRUE(e[0].queued);
	EXPECT_FALSE(e[1].queued);
	EXPECT_EQ(e[1].buffer, &a);
	EXPECT_EQ(e[1].status, 0);
	EXPECT_EQ(e[1].sender, nullptr);
	abandon(next);
}

TEST_F(net_core, a_receive_ends_when_its_places_are_let_go)
{
	ASSERT_EQ(receive(a), 0);
	const auto one = place(100), two = place(100);
	EXPECT_TRUE(tm.del(a));
	EXPECT_EQ(p->cancelled, std::vector{one.token});
	place(1, -ENOBUFS);
	EXPECT_TRUE(take().empty());
	abandon(one);
	EXPECT_TRUE(take().empty());
	abandon(two);
	const auto e = take();
	ASSERT_EQ(e.size(), 1u);
	EXPECT_EQ(e[0].status, -ECANCELED);
	EXPECT_FALSE(e[0].queued);
}

TEST_F(net_core, a_transport_that_breaks_ends_everything)
{
	ASSERT_EQ(send(a), 0);
	ASSERT_EQ(receive(b), 0);
	const auto l = place(10);
	EXPECT_TRUE(tm.del(a));
	p->end([&] { p->sink.failed(-ENODEV); });
	EXPECT_EQ(tm.wait(tm_state::failed), 0);
	EXPECT_EQ(puppet::last, nullptr) << "the transport is gone";
	const auto e = take();
	ASSERT_EQ(e.size(), 2u);
	for (const auto &each : e) {
		EXPECT_FALSE(each.queued);
		EXPECT_EQ(each.status, each.buffer == &a ? -ECANCELED : -ENODEV);
	}
	EXPECT_EQ(receive(c), -EBADFD);
	EXPECT_EQ(tm.stop(true), -EBADFD);
	(void)l;
}

TEST_F(net_core, stop_waits_for_quiet_memory)
{
	ASSERT_EQ(send(a), 0);
	ASSERT_EQ(receive(b), 0);
	ASSERT_EQ(tm.stop(false), 0);
	EXPECT_EQ(tm.stop(false), -EBADFD);
	EXPECT_TRUE(take().empty()) << "a send is drained";
	EXPECT_TRUE(p->cancelled.empty());
	ASSERT_EQ(tm.stop(true), 0) << "enough waited";
	auto e = take();
	ASSERT_EQ(e.size(), 1u);
	EXPECT_EQ(e[0].buffer, &b);
	EXPECT_EQ(p->cancelled.size(), 1u);
	EXPECT_EQ(p->stops, 0);
	p->run([&] { p->sink.completed(p->submitted[0], -ECANCELED, 0); });
	EXPECT_EQ(p->stops, 1);
	EXPECT_EQ(tm.state(), tm_state::stopping);
	p->end([&] { p->sink.stopped(); });
	EXPECT_EQ(tm.wait(tm_state::stopped), 0);
	EXPECT_EQ(take().size(), 1u);
}

TEST_F(net_core, peers_are_numbered_while_they_are_used)
{
	EXPECT_EQ(p->opened.size(), 1u);
	address who;
	ASSERT_EQ(parse(elsewhere, who), 0);
	spi::peer_number n = spi::no_peer;
	p->run([&] {
		n = p->sink.peer(who);
		EXPECT_EQ(p->sink.peer(who), n);
	});
	EXPECT_NE(n, p->opened[0]);
	EXPECT_EQ(p->opened.size(), 1u) << "the transport knows it already";
	EXPECT_EQ(tm.endpoints(), 1u) << "it is nobody's";
	endpoint_ptr mine;
	ASSERT_EQ(tm.make_endpoint(elsewhere, mine), 0);
	EXPECT_EQ(p->opened.size(), 1u);
	p->run([&] { p->sink.release(n); });
	EXPECT_TRUE(p->closed.empty());
	mine.reset();
	EXPECT_EQ(p->closed, std::vector{n});
	ASSERT_EQ(tm.make_endpoint(elsewhere, mine), 0);
	EXPECT_EQ(p->opened.at(1), n) << "numbers are used again";
	// An operation keeps its end point alive.
	ASSERT_EQ(send(a), 0);
	to.reset();
	EXPECT_EQ(p->closed.size(), 1u);
	p->run([&] { p->sink.completed(p->submitted[0], 0, 8); });
	EXPECT_EQ(p->closed.size(), 2u);
	take();
}

// An end point counts as long as the program, an operation or an event holds it, each by itself.
TEST_F(net_core, end_points_in_use_are_counted)
{
	address who;
	ASSERT_EQ(parse(elsewhere, who), 0);
	ASSERT_EQ(tm.endpoints(), 1u);
	endpoint_ptr mine, again;
	ASSERT_EQ(tm.make_endpoint(elsewhere, mine), 0);
	ASSERT_EQ(tm.make_endpoint(elsewhere, again), 0);
	EXPECT_EQ(tm.endpoints(), 2u);
	mine.reset();
	EXPECT_EQ(tm.endpoints(), 2u);
	again.reset();
	EXPECT_EQ(tm.endpoints(), 1u);
	// An operation holds it, with references and without.
	ASSERT_EQ(send(a), 0);
	endpoint_ptr copy = to;
	to.reset();
	copy.reset();
	EXPECT_EQ(tm.endpoints(), 1u);
	p->run([&] { p->sink.completed(p->submitted[0], 0, 8); });
	EXPECT_EQ(tm.endpoints(), 0u);
	take();
	// An event holds it, and what its handler keeps.
	ASSERT_EQ(receive(a), 0);
	p->run([&] { EXPECT_EQ(p->sink.receive("", 1, p->sink.peer(who)), 0); });
	EXPECT_EQ(tm.endpoints(), 1u);
	const auto e = take();
	EXPECT_EQ(tm.endpoints(), 0u) << "the transport's hold is nobody's use";
	ASSERT_EQ(e.size(), 1u);
	ASSERT_EQ(tm.make_endpoint(elsewhere, mine), 0);
	p->run([&] { p->sink.release(p->sink.peer(who)); });
	EXPECT_EQ(tm.endpoints(), 1u);
	mine.reset();
	EXPECT_EQ(tm.endpoints(), 0u);
}

// A transport need not watch for long what others poll.
TEST_F(net_core, who_has_polled_and_waits_is_woken)
{
	ASSERT_EQ(receive(a), 0);
	for (const auto end = clock::now() + std::chrono::seconds(60);
	     p->arms == 0 && clock::now() < end;)
		std::this_thread::yield();
	ASSERT_GT(p->arms, 0);
	for (int i = 0; i < 1000; i++)
		ASSERT_FALSE(tm.pending());
	channel c;
	ASSERT_EQ(tm.notify(c), 0);
	std::this_thread::sleep_for(std::chrono::milliseconds(50));
	p->leave([&] {
		spi::landing l;
		ASSERT_EQ(p->sink.place(8, l), 0);
		address who;
		ASSERT_EQ(parse(elsewhere, who), 0);
		const auto n = p->sink.peer(who);
		p->sink.received(l, n);
		p->sink.release(n);
	});
	EXPECT_EQ(c.wait(clock::now() + std::chrono::seconds(60)), 0);
	EXPECT_EQ(take().size(), 1u);
}

// The kernel rounds sleeps up by 50 us, the longest delay of an ACK.
TEST(net_core_thread, sleeps_no_longer_than_it_means_to)
{
	add_puppet_transport();
	const int before = ::prctl(PR_GET_TIMERSLACK);
	int during = -1;
	tm_callback told([&](const tm_event &) { during = ::prctl(PR_GET_TIMERSLACK); });
	domain d{{"puppet"}};
	{
		transfer_machine tm(d, &told);
		ASSERT_EQ(tm.start(here), 0);
		ASSERT_EQ(tm.wait(tm_state::started), 0);
		EXPECT_EQ(during, 1);
		ASSERT_EQ(tm.stop(true), 0);
		puppet::last->end([] { puppet::last->sink.stopped(); });
		ASSERT_EQ(tm.wait(tm_state::stopped), 0);
	}
	EXPECT_EQ(::prctl(PR_GET_TIMERSLACK), before) << "that of the program is its own";
}

TEST(net_core_plain, not_every_transport_has_reusable_descriptors)
{
	add_puppet_transport();
	domain d{{"host puppet"}};
	transfer_machine tm(d);
	std::byte bytes[10];
	buffer b(d, bytes, sizeof(bytes));
	ASSERT_EQ(tm.start(there), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	buffer_callback ignored([](const buffer_event &) {});
	operation o;
	o.queue = queue_type::passive_bulk_send;
	o.reusable = true;
	o.handler = &ignored;
	EXPECT_FALSE(d.traits().reusable_descriptors);
	EXPECT_EQ(tm.add(b, o), -EOPNOTSUPP);
	EXPECT_FALSE(b.queued());
	puppet *p = puppet::last;
	(void)tm.stop(true);
	p->end([&] { p->sink.stopped(); });
	(void)tm.wait(tm_state::stopped);
}

} // namespace
