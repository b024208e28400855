// SPDX-License-Identifier: MIT
// net_mem.cc - the messaging core over the transport mem, where nothing else can have brought
// about what is seen; and without threads.
#include <atomic>
#include <cerrno>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <thread>

#include "coop/net.hpp"

using namespace coop::net;

namespace
{

class ignore final : public buffer_handler
{
	void on_buffer(const buffer_event &) override {}
};

std::atomic<bool> no_threads{false};

// Nothing but the buffer can bring the message in: its time is far away.
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
	// y sleeps by then, with the message.
	std::this_thread::sleep_for(std::chrono::milliseconds(100));
	operation receive;
	receive.min_receive_size = 1;
	receive.max_receive_msgs = 1;
	receive.handler = &to;
	ASSERT_EQ(y.add(in, receive), 0);
	EXPECT_EQ(c.wait(clock::now() + std::chrono::seconds(10)), 0);
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

} // namespace

// In place of the C library's, which it calls unless there are to be no threads.
extern "C" int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *x)
{
	using function = decltype(&pthread_create);
	static const auto real = reinterpret_cast<function>(::dlsym(RTLD_NEXT, "pthread_create"));
	return no_threads ? EAGAIN : real(t, a, f, x);
}
