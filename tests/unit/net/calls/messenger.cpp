// SPDX-License-Identifier: MIT
// messenger.cpp - messages arrive as they were sent; every send ends once; nothing waits for ever.
#include "lab.hpp"

using namespace calls;

namespace
{

class net_messenger : public testing::TestWithParam<way>
{
protected:
	domain d{GetParam().options};
};
INSTANTIATE_TEST_SUITE_P(on, net_messenger, testing::ValuesIn(ways()), name_of);

struct inbox {
	std::mutex lock;
	std::vector<std::vector<std::byte>> messages;
	std::vector<std::string> senders;
	tally arrived;

	messenger::receiver receiver()
	{
		return [this](endpoint &from, std::span<const std::byte> bytes) {
			{
				std::lock_guard hold(lock);
				messages.push_back(bytes_of(bytes));
				senders.push_back(from.text());
			}
			arrived.add();
		};
	}
};

// Sends never end by themselves.
domain_options stalled()
{
	return {"mem", {{"lose", "1"}, {"remote_errors", "1"}}};
}

TEST_P(net_messenger, a_line_sends_a_text)
{
	inbox in;
	messenger a(d), b(d);
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address(), in.receiver()), 0);
	EXPECT_EQ(a.send(b.text(), "good morning", clock::now() + patience), 0);
	ASSERT_TRUE(in.arrived.reaches(1));
	EXPECT_EQ(text_of(in.messages[0]), "good morning");
	EXPECT_EQ(in.senders[0], a.text());
}

TEST_P(net_messenger, every_size_arrives_in_parts_too)
{
	inbox in;
	messenger a(d), b(d);
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address(), in.receiver()), 0);
	const std::size_t most = a.max_message();
	unsigned n = 0;
	for (std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{64}, std::size_t{4097},
				 most / 2 + 1, most - 1, most}) {
		const auto bytes = patterned(size, n);
		const std::span<const std::byte> all(bytes);
		ASSERT_EQ(a.post(b.address(), {all.first(size / 3), all.subspan(size / 3)}), 0);
		ASSERT_TRUE(in.arrived.reaches(++n)) << size;
		EXPECT_EQ(in.messages.back(), bytes) << size;
	}
	EXPECT_EQ(a.send(b.text(), patterned(most + 1)), -EMSGSIZE);
}

TEST_P(net_messenger, callbacks_may_post_but_not_wait)
{
	std::atomic<int> waited{0};
	tally echoed;
	messenger a(d), b(d);
	ASSERT_EQ(a.start(any_address(),
			  [&](endpoint &, std::span<const std::byte>) { echoed.add(); }),
		  0);
	ASSERT_EQ(b.start(any_address(),
			  [&](endpoint &from, std::span<const std::byte> bytes) {
				  waited = b.send(from, bytes);
				  EXPECT_EQ(b.post(from, bytes), 0);
			  }),
		  0);
	ASSERT_EQ(a.send(b.text(), "echo", clock::now() + patience), 0);
	ASSERT_TRUE(echoed.reaches(1));
	EXPECT_EQ(waited, -EDEADLK);
}

TEST_P(net_messenger, a_handler_on_its_machine_is_a_callback)
{
	tally over;
	messenger a(d, {.send_buffers = 1}), b(d);
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	EXPECT_FALSE(a.inside());
	std::vector<std::byte> bytes(8);
	buffer memory(d, bytes.data(), bytes.size());
	buffer_callback handler([&](const buffer_event &) {
		EXPECT_TRUE(a.inside());
		EXPECT_FALSE(b.inside());
		EXPECT_EQ(a.send(b.text(), "wait"), -EDEADLK);
		EXPECT_EQ(a.stop(), 0);
		over.add();
	});
	operation o;
	o.queue = queue_type::passive_bulk_send;
	o.handler = &handler;
	ASSERT_EQ(a.machine().add(memory, o), 0);
	EXPECT_TRUE(a.machine().del(memory));
	ASSERT_TRUE(over.reaches(1));
	EXPECT_EQ(a.stop(), 0);
	EXPECT_FALSE(a.inside());
}

TEST_P(net_messenger, a_callback_may_stop_it)
{
	tally over;
	messenger a(d), b(d);
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(
			  any_address(),
			  [&](endpoint &, std::span<const std::byte>) { EXPECT_EQ(b.stop(), 0); },
			  [&](int status) {
				  EXPECT_EQ(status, 0);
				  over.add();
			  }),
		  0);
	(void)a.send(b.text(), "stop", clock::now() + patience);
	ASSERT_TRUE(over.reaches(1));
	EXPECT_EQ(b.stop(), 0);
	EXPECT_EQ(over.count(), 1u);
	EXPECT_EQ(b.post(a.text(), {}), -EBADFD);
}

TEST_P(net_messenger, many_threads_send_through_few_buffers)
{
	constexpr unsigned threads = 4, each = 100;
	inbox in;
	messenger a(d, {.send_buffers = 2}), b(d);
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address(), in.receiver()), 0);
	std::vector<std::thread> all;
	for (unsigned t = 0; t < threads; t++)
		all.emplace_back([&, t] {
			for (unsigned i = 0; i < each; i++) {
				const std::byte m[2] = {std::byte(t), std::byte(i)};
				EXPECT_EQ(a.send(b.text(), m, clock::now() + patience), 0);
			}
		});
	for (std::thread &t : all)
		t.join();
	ASSERT_TRUE(in.arrived.reaches(threads * each));
	std::sort(in.messages.begin(), in.messages.end());
	EXPECT_EQ(std::unique(in.messages.begin(), in.messages.end()), in.messages.end());
	EXPECT_EQ(in.messages.size(), threads * each);
}

TEST_P(net_messenger, a_message_to_no_machine_is_reported)
{
	messenger a(d), b(d);
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	const std::string gone = b.text();
	ASSERT_EQ(b.stop(), 0);
	const int status = a.async_send(gone, patterned(8)).get();
	if (d.traits().reports_remote_errors)
		EXPECT_EQ(status, -ECONNREFUSED);
	EXPECT_EQ(a.post("nonsense", patterned(8)), -EINVAL);
}

TEST(net_messenger_limits, a_full_one_says_so_or_waits_until_the_deadline)
{
	domain d(stalled());
	tally ended;
	messenger a(d, {.send_buffers = 2}), b(d);
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	for (int i = 0; i < 2; i++)
		ASSERT_EQ(a.post(b.text(), patterned(8),
				 [&](int s) {
					 EXPECT_EQ(s, -ECANCELED);
					 ended.add();
				 }),
			  0);
	EXPECT_EQ(a.post(b.text(), patterned(8)), -EAGAIN);
	EXPECT_EQ(a.send(b.text(), patterned(8), clock::now() + 20ms), -ETIMEDOUT);
	EXPECT_EQ(a.wait_room(clock::now() + 20ms), -ETIMEDOUT);
	EXPECT_EQ(ended.count(), 0u);
	EXPECT_EQ(a.stop(), 0);
	EXPECT_EQ(ended.count(), 2u);
}

TEST(net_messenger_limits, a_post_that_fails_tells_of_its_buffer)
{
	domain d({"mem"});
	tally room;
	messenger a(d, {.max_message = 1 << 20, .send_buffers = 1}), b(d);
	ASSERT_EQ(a.on_room([&] { room.add(); }), 0);
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	const endpoint_ptr there = [&] {
		endpoint_ptr e;
		EXPECT_EQ(a.machine().make_endpoint(b.text(), e), 0);
		return e;
	}();
	// No post succeeds, so nothing else tells of a free buffer.
	const auto too_late = clock::now() - 1s;
	const auto bytes = patterned(a.max_message());
	std::atomic<bool> refused{false};
	const auto fails = [&] {
		const int status = a.post(there, bytes, {}, too_late);
		if (status == -EAGAIN)
			refused = true;
		else
			EXPECT_EQ(status, -ETIMEDOUT);
	};
	const auto until = clock::now() + patience;
	std::thread other([&] {
		while (!refused && clock::now() < until)
			fails();
	});
	while (!refused && clock::now() < until)
		fails();
	other.join();
	EXPECT_EQ(room.count() > 0, refused.load());
}

TEST(net_messenger_limits, a_deadline_ends_a_send)
{
	domain d(stalled());
	messenger a(d, {.send_buffers = 1}), b(d);
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	EXPECT_EQ(a.send(b.text(), patterned(8), clock::now() + 20ms), -ETIMEDOUT);
	EXPECT_EQ(a.send(b.text(), patterned(8), clock::now() - 1ms), -ETIMEDOUT);
	EXPECT_EQ(a.wait_room(clock::now() + patience), 0) << "its buffer is free again";
}

TEST(net_messenger_limits, a_stop_ends_those_who_wait)
{
	domain d(stalled());
	tally waiting;
	messenger a(d, {.send_buffers = 1}), b(d);
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	std::vector<std::thread> all;
	for (int i = 0; i < 3; i++)
		all.emplace_back([&] {
			waiting.add();
			const int status = a.send(b.text(), patterned(8));
			EXPECT_TRUE(status == -ECANCELED || status == -EBADFD) << status;
		});
	ASSERT_TRUE(waiting.reaches(3));
	EXPECT_EQ(a.stop(), 0);
	for (std::thread &t : all)
		t.join();
}

TEST(net_messenger_limits, options_and_states_are_checked)
{
	domain d({"mem"});
	EXPECT_THROW(messenger(d, {.max_message = 0}), std::system_error);
	EXPECT_THROW(messenger(d, {.send_buffers = 0}), std::system_error);
	EXPECT_THROW(messenger(d, {.receive_buffers = 0}), std::system_error);
	EXPECT_THROW(messenger(d, {.max_message = 1, .send_buffers = d.limits().max_queued}),
		     std::system_error);
	messenger a(d);
	EXPECT_EQ(a.stop(), -EBADFD);
	EXPECT_EQ(a.post("127.0.0.1@tcp:12345:33:7", {}), -EBADFD);
	EXPECT_EQ(a.start("127.0.0.1@tcp"), -EINVAL);
	EXPECT_EQ(a.start(any_address()), -EBADFD) << "a failed one stays failed";
}

} // namespace
