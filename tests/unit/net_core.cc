// SPDX-License-Identifier: MIT
// net_core.cc - the messaging core over a transport that does what the test says, when it
// says it.
//
// What the races of real transports come to is played here step by step: completions that are
// late or double, places that are given back, a transport that breaks.
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <gtest/gtest.h>
#include <mutex>
#include <sys/eventfd.h>
#include <thread>
#include <unistd.h>

#include "userland/net/transport.hpp"

#include "coop/net.hpp"

using namespace coop::net;

namespace
{

constexpr char here[] = "127.0.0.1@tcp:12345:1:1", there[] = "127.0.0.1@tcp:12345:1:2",
	       elsewhere[] = "127.0.0.1@tcp:12345:1:3";
constexpr std::size_t size = 1000;

// Everything a transport was called with, and the way to have it call the sink.
class puppet final : public spi::transport_machine
{
public:
	explicit puppet(spi::sink &s) : sink(s), fd_(::eventfd(0, EFD_NONBLOCK)) { last = this; }
	~puppet() override
	{
		::close(fd_);
		last = nullptr;
	}
	int start(const address &a) override
	{
		if (busy > 0) {
			busy--;
			return -EADDRINUSE;
		}
		own = a;
		sink.started();
		return 0;
	}
	void stop() override { stops++; }
	int submit(spi::token t, const spi::transfer &x) override
	{
		if (refuse)
			return refuse;
		submitted.push_back(t);
		more.push_back(x.more);
		return 0;
	}
	void flush() override { flushes++; }
	void cancel(spi::token t) override { cancelled.push_back(t); }
	int describe(spi::token, std::span<std::byte>) override { return undescribable; }
	void receivable() override { receivables++; }
	int peer_open(spi::peer_number n, const address &) override
	{
		opened.push_back(n);
		return 0;
	}
	void peer_close(spi::peer_number n) override { closed.push_back(n); }
	unsigned progress(unsigned) override
	{
		std::deque<std::function<void()>> now;
		{
			std::lock_guard guard(lock_);
			calls_++;
			now.swap(calls_to_make_);
		}
		for (auto &f : now)
			f();
		return static_cast<unsigned>(now.size());
	}
	bool arm() override
	{
		std::lock_guard guard(lock_);
		std::uint64_t n;
		[[maybe_unused]] ssize_t r = ::read(fd_, &n, sizeof(n));
		if (!calls_to_make_.empty())
			return false;
		calls_ = 0;
		arms++;
		return true;
	}
	int fd() const override { return fd_; }
	time_point deadline() const override { return never; }
	void expire(time_point) override {}

	// Runs f under the lock of the machine, and returns when the core has settled.
	void run(std::function<void()> f)
	{
		post(f);
		post([] {});
	}
	// As run(), for the last words of this object.
	void end(std::function<void()> f) { post(f); }
	// As run(), without waiting.
	void leave(std::function<void()> f)
	{
		std::lock_guard guard(lock_);
		calls_to_make_.push_back(std::move(f));
		ring();
	}
	static inline puppet *last = nullptr;
	static inline int busy = 0;
	std::atomic<int> arms{0};
	spi::sink &sink;
	address own;
	std::vector<spi::token> submitted, cancelled;
	std::vector<spi::peer_number> opened, closed;
	std::vector<bool> more;
	int flushes = 0;
	int stops = 0, receivables = 0, refuse = 0, undescribable = 0;

private:
	void post(const std::function<void()> &f)
	{
		std::mutex m;
		std::condition_variable c;
		bool done = false;
		{
			std::lock_guard guard(lock_);
			calls_to_make_.push_back([&] {
				f();
				std::lock_guard told(m);
				done = true;
				c.notify_all();
			});
			ring();
		}
		std::unique_lock guard(m);
		c.wait(guard, [&] { return done; });
	}
	// No longer than was promised.
	void ring()
	{
		if (calls_ >= spi::armed_calls)
			return;
		const std::uint64_t one = 1;
		[[maybe_unused]] ssize_t n = ::write(fd_, &one, sizeof(one));
	}

	const int fd_;
	unsigned calls_ = 0; // of progress() since arm()
	std::mutex lock_;
	std::deque<std::function<void()>> calls_to_make_;
};

class puppet_domain final : public spi::transport_domain
{
public:
	const domain_limits &limits() const override { return limits_; }
	const spi::traits &traits() const override { return traits_; }
	int check(const address &) const override { return 0; }
	int register_memory(std::span<const segment>, void **r) override
	{
		*r = nullptr;
		return 0;
	}
	void deregister_memory(void *) override {}
	std::unique_ptr<spi::transport_machine> make_machine(spi::sink &s) override
	{
		return std::make_unique<puppet>(s);
	}

private:
	const domain_limits limits_{4096, 1 << 20, 1 << 20, 8, 0, 100};
	const spi::traits traits_{{true, false}, true, true, 0};
};

class puppet_transport final : public spi::transport
{
public:
	const char *name() const override { return "puppet"; }
	std::span<const spi::parameter> parameters() const override { return {}; }
	std::unique_ptr<spi::transport_domain> open(const spi::parameter_values &) const override
	{
		return std::make_unique<puppet_domain>();
	}
};

// Synchronous delivery: a test sees the events of one step and no others.
class net_core : public testing::Test, public buffer_handler
{
protected:
	static void SetUpTestSuite()
	{
		static const puppet_transport the;
		if (!spi::find_transport("puppet"))
			spi::add_transport(the);
	}
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
		EXPECT_EQ(p->flushes, 0) << "not before all have returned";
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
	EXPECT_EQ(p->flushes, 1);
	tm.deliver_all();
	EXPECT_EQ(p->flushes, 1) << "once";
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

TEST_F(net_core, tokens_are_never_zero_and_differ)
{
	std::vector<spi::token> seen;
	for (int i = 0; i < 200; i++) {
		ASSERT_EQ(send(a), 0);
		const spi::token t = p->submitted.back();
		EXPECT_NE(t, 0u);
		EXPECT_EQ(t >> 52, 1u) << "the TMID is in the high bits";
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
	received(two); // double
	e = take();
	ASSERT_EQ(e.size(), 1u);
	EXPECT_EQ(e[0].offset, 100u);
	EXPECT_EQ(e[0].length, 200u);
	EXPECT_FALSE(e[0].queued);
	EXPECT_FALSE(a.queued());
	// Somebody was turned away; the transport hears of the next buffer.
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
	// An operation keeps the end point it goes to.
	ASSERT_EQ(send(a), 0);
	to.reset();
	EXPECT_EQ(p->closed.size(), 1u);
	p->run([&] { p->sink.completed(p->submitted[0], 0, 8); });
	EXPECT_EQ(p->closed.size(), 2u);
	take();
}

// A transport need not watch for long what others poll.
TEST_F(net_core, who_has_polled_and_waits_is_woken)
{
	ASSERT_EQ(receive(a), 0);
	for (const auto end = clock::now() + std::chrono::seconds(10);
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
	EXPECT_EQ(c.wait(clock::now() + std::chrono::seconds(10)), 0);
	EXPECT_EQ(take().size(), 1u);
}

class ignore final : public buffer_handler
{
	void on_buffer(const buffer_event &) override {}
};

TEST(net_stop, no_deficit_while_stopping)
{
	static const puppet_transport the;
	if (!spi::find_transport("puppet"))
		spi::add_transport(the);
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

// Without buffers that can take messages a machine would be deaf, however many are half full.
TEST(net_pool, buffers_that_wait_for_the_rest_of_a_message_are_made_up_for)
{
	static const puppet_transport the;
	if (!spi::find_transport("puppet"))
		spi::add_transport(the);
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
	for (const auto end = clock::now() + std::chrono::seconds(10);
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

TEST(net_start, an_address_that_others_hold_is_passed_over)
{
	static const puppet_transport the;
	if (!spi::find_transport("puppet"))
		spi::add_transport(the);
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
