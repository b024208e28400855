// SPDX-License-Identifier: MIT
// mem.cpp - the messaging core over the transport mem, where nothing else can cause the observed
// effects; and without threads.
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <mutex>
#include <pthread.h>
#include <thread>
#include <vector>

#include "coop/net.hpp"

using namespace coop::net;

namespace
{

class ignore final : public buffer_handler
{
	void on_buffer(const buffer_event &) override {}
};

std::atomic<bool> no_threads{false};

// Only the new buffer can bring the message in: its time limit is far away.
TEST(net_mem, a_message_that_waits_goes_into_the_next_buffer)
{
	struct counter final : buffer_handler {
		void on_buffer(const buffer_event &e) override
		{
			if (e.queue == queue_type::msg_recv && rung)
				rung->signal();
		}
		channel *rung = nullptr;
	} from, to;
	channel c;
	to.rung = &c;
	domain d({"mem", {{"places", "0"}, {"hold", "3600000"}, {"remote_errors", "0"}}});
	std::byte memory[2][64];
	buffer out(d, memory[0], 64), in(d, memory[1], 64);
	transfer_machine x(d), y(d);
	ASSERT_EQ(x.start("127.0.0.1@tcp:12345:1:7"), 0);
	ASSERT_EQ(y.start("127.0.0.1@tcp:12345:1:8"), 0);
	for (transfer_machine *each : {&x, &y})
		ASSERT_EQ(each->wait(tm_state::started), 0);
	endpoint_ptr there;
	ASSERT_EQ(x.make_endpoint("127.0.0.1@tcp:12345:1:8", there), 0);
	operation send;
	send.queue = queue_type::msg_send;
	send.length = 64;
	send.to = there.get();
	send.handler = &from;
	ASSERT_EQ(x.add(out, send), 0);
	// By then y sleeps and has the message.
	std::this_thread::sleep_for(std::chrono::milliseconds(100));
	operation receive;
	receive.min_receive_size = 1;
	receive.max_receive_msgs = 1;
	receive.handler = &to;
	ASSERT_EQ(y.add(in, receive), 0);
	EXPECT_EQ(c.wait(clock::now() + std::chrono::seconds(60)), 0);
}

// A buffer's end waits while another thread still delivers an earlier message of it. Messages in
// other buffers do not wait for that.
TEST(net_mem, two_threads_deliver)
{
	static constexpr std::chrono::seconds patience{20};
	struct handler final : buffer_handler {
		std::mutex lock;
		std::condition_variable changed;
		bool inside = false, leave = false;
		const buffer *shared = nullptr;
		std::atomic<int> sent{0}, shared_over{0}, other_over{0};

		void on_buffer(const buffer_event &e) override
		{
			if (e.queue == queue_type::msg_send) {
				sent++;
			} else if (e.buffer != shared) {
				other_over++;
			} else if (!e.queued) {
				shared_over++;
			} else {
				std::unique_lock guard(lock);
				inside = true;
				changed.notify_all();
				EXPECT_TRUE(
					changed.wait_for(guard, patience, [&] { return leave; }));
			}
		}
	} h;
	domain d({"mem"});
	std::vector<std::byte> memory(3 * 64);
	buffer shared(d, memory.data(), 64), other(d, memory.data() + 64, 64),
		out(d, memory.data() + 128, 8);
	h.shared = &shared;
	transfer_machine x(d), y(d);
	ASSERT_EQ(y.deliver_synchronously(), 0);
	ASSERT_EQ(x.start("127.0.0.1@tcp:12345:1:7"), 0);
	ASSERT_EQ(y.start("127.0.0.1@tcp:12345:1:8"), 0);
	for (transfer_machine *each : {&x, &y})
		ASSERT_EQ(each->wait(tm_state::started), 0);
	for (buffer *b : {&shared, &other}) {
		operation receive;
		receive.min_receive_size = 8;
		receive.max_receive_msgs = b == &shared ? 2 : 1;
		receive.handler = &h;
		ASSERT_EQ(y.add(*b, receive), 0);
	}
	endpoint_ptr there;
	ASSERT_EQ(x.make_endpoint("127.0.0.1@tcp:12345:1:8", there), 0);
	const auto send = [&](int times) {
		operation o;
		o.queue = queue_type::msg_send;
		o.length = 8;
		o.to = there.get();
		o.handler = &h;
		ASSERT_EQ(x.add(out, o), 0);
		for (const auto end = clock::now() + patience;
		     h.sent < times && clock::now() < end;)
			(void)y.pending();
		ASSERT_EQ(h.sent, times);
	};
	send(1);
	std::thread first([&] { EXPECT_EQ(y.deliver_all(), 1u); });
	{
		std::unique_lock guard(h.lock);
		EXPECT_TRUE(h.changed.wait_for(guard, patience, [&] { return h.inside; }));
	}
	send(2); // the last of the shared buffer
	EXPECT_FALSE(y.pending()) << "nothing that this thread may deliver";
	EXPECT_EQ(y.deliver_all(), 0u);
	send(3);
	EXPECT_TRUE(y.pending());
	EXPECT_EQ(y.deliver_all(), 1u);
	EXPECT_EQ(h.other_over, 1);
	EXPECT_EQ(h.shared_over, 0) << "its first message is still in hand";
	{
		std::lock_guard guard(h.lock);
		h.leave = true;
		h.changed.notify_all();
	}
	first.join();
	EXPECT_TRUE(y.pending());
	EXPECT_EQ(y.deliver_all(), 1u);
	EXPECT_EQ(h.shared_over, 1);
}

TEST(net_pool, no_thread_to_provide_buffers)
{
	domain d({"mem"});
	buffer_pool pool(d, {});
	ignore handler;
	transfer_machine tm(d);
	no_threads = true;
	EXPECT_EQ(tm.attach(pool, handler, 100, 1), -EAGAIN);
	no_threads = false;
	EXPECT_EQ(tm.attach(pool, handler, 100, 1), 0) << "it is as if nothing had been asked";
}

TEST(net_pool, buffers_too_small_for_the_least_message)
{
	domain d({"mem"});
	pool_options o;
	o.segment_size = 1000;
	o.segments = 3;
	buffer_pool pool(d, o);
	EXPECT_EQ(pool.buffer_size(), 3000u);
	ignore handler;
	transfer_machine tm(d);
	EXPECT_EQ(tm.attach(pool, handler, 3001, 1), -EFBIG) << "it would never receive";
	EXPECT_EQ(tm.attach(pool, handler, pool.buffer_size(), 1), 0);
}

} // namespace

// Replaces the C library's; calls it unless the test forbids threads.
extern "C" int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *x)
{
	using function = decltype(&pthread_create);
	static const auto real = reinterpret_cast<function>(::dlsym(RTLD_NEXT, "pthread_create"));
	return no_threads ? EAGAIN : real(t, a, f, x);
}
