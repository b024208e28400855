// SPDX-License-Identifier: MIT
// rpc.cpp - every call ends once, with the method's result or the reason why there is none.
#include "lab.hpp"

using namespace calls;

namespace
{

enum : std::uint32_t { echo = 1, keep, size_of, grow, relay };

class net_rpc : public testing::TestWithParam<way>
{
protected:
	domain d{GetParam().options};

	static void echoing(rpc &r)
	{
		r.serve(echo, [](const request &q) { EXPECT_EQ(q.answer(q.bytes()), 0); });
	}
	static call_result ended(rpc &from, const std::string &to, std::uint32_t method,
				 std::span<const std::byte> bytes)
	{
		auto f = from.call(to, method, bytes, clock::now() + patience);
		return f.get();
	}
	// Again if its deadline passed before it had begun, on a busy machine.
	template <class function> static int begun_in_time(function begin)
	{
		const time_point enough = clock::now() + patience;
		int status;
		do
			status = begin();
		while (status == -ETIMEDOUT && clock::now() < enough);
		return status;
	}
};
INSTANTIATE_TEST_SUITE_P(on, net_rpc, testing::ValuesIn(ways()), name_of);

// Requests that a method keeps until the test answers them.
struct kept {
	std::mutex lock;
	std::vector<request> all;
	tally arrived;

	rpc::method_handler handler()
	{
		return [this](const request &q) {
			{
				std::lock_guard hold(lock);
				all.push_back(q);
			}
			arrived.add();
		};
	}
	void forget()
	{
		std::vector<request> gone;
		std::lock_guard hold(lock);
		gone.swap(all);
	}
};

TEST_P(net_rpc, every_size_goes_and_comes_back)
{
	rpc a(d, {.max_body = 4 << 20}), b(d, {.max_body = 4 << 20});
	echoing(b);
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	unsigned seed = 0;
	for (std::size_t size : {0, 1, 100, 16 << 10, (16 << 10) + 1, 100000, 4 << 20}) {
		const auto bytes = patterned(size, seed++);
		const call_result r = ended(a, b.text(), echo, bytes);
		ASSERT_EQ(r.status, 0) << size;
		EXPECT_TRUE(r.remote);
		EXPECT_TRUE(r.bytes == bytes) << size;
	}
	EXPECT_EQ(ended(a, b.text(), echo, patterned((4 << 20) + 1)).status, -EFBIG);
	EXPECT_EQ(a.stats().calls, 7u);
	EXPECT_EQ(b.stats().served, 7u);
	EXPECT_EQ(b.stats().unsent + b.stats().refused + a.stats().late, 0u);
}

TEST_P(net_rpc, a_result_is_limited_by_its_caller)
{
	rpc a(d, {.max_body = 100000}), b(d);
	b.serve(grow, [](const request &q) { EXPECT_EQ(q.answer(patterned(100001)), 0); });
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	EXPECT_EQ(ended(a, b.text(), grow, {}).status, -EFBIG);
}

TEST_P(net_rpc, a_method_says_its_errors)
{
	rpc a(d), b(d);
	b.serve(keep, [](const request &q) {
		EXPECT_EQ(q.fail(0), -EINVAL);
		EXPECT_EQ(q.fail(-ENOTTY), 0);
		EXPECT_EQ(q.answer("too late"), -EALREADY);
	});
	b.serve(size_of, [](const request &) {}); // dropped
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	for (auto [method, status] :
	     {std::pair{keep, -ENOTTY}, {size_of, -ECANCELED}, {relay, -ENOSYS}}) {
		const call_result r = ended(a, b.text(), method, patterned(10));
		EXPECT_EQ(r.status, status);
		EXPECT_TRUE(r.remote);
	}
	b.serve(keep, nullptr);
	EXPECT_EQ(ended(a, b.text(), keep, {}).status, -ENOSYS);
}

TEST_P(net_rpc, a_request_says_who_and_until_when)
{
	rpc a(d), b(d);
	ASSERT_EQ(a.start(any_address()), 0);
	b.serve(keep, [&](const request &q) {
		EXPECT_EQ(q.from(), a.address());
		EXPECT_EQ(q.method(), std::uint32_t{keep});
		EXPECT_EQ(text_of(q.bytes()), "who?");
		EXPECT_LE(q.deadline(), clock::now() + patience + 1ms);
		EXPECT_GT(q.deadline(), clock::now());
		EXPECT_EQ(q.answer("you"), 0);
	});
	ASSERT_EQ(b.start(any_address()), 0);
	const call_result r = a.call(b.text(), keep, "who?", clock::now() + patience).get();
	EXPECT_EQ(text_of(r.bytes), "you");
}

TEST_P(net_rpc, a_late_answer_is_ignored)
{
	kept k;
	rpc a(d), b(d);
	echoing(b);
	b.serve(keep, k.handler());
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	tally over;
	// Long enough for the request to arrive, in most runs.
	const auto begin = [&] {
		return a.call(
			b.text(), keep, patterned(8),
			[&](call_result &&r) {
				EXPECT_EQ(r.status, -ETIMEDOUT);
				EXPECT_FALSE(r.remote);
				over.add();
			},
			clock::now() + 300ms);
	};
	ASSERT_EQ(begun_in_time(begin), 0);
	ASSERT_TRUE(over.reaches(1));
	// Its clock began a little later, and may end before the answer has left.
	if (k.arrived.count() && k.all[0].answer("late") == 0)
		while (a.stats().late + b.stats().unsent == 0)
			ASSERT_EQ(ended(a, b.text(), echo, patterned(5)).status, 0);
	EXPECT_EQ(ended(a, b.text(), echo, patterned(5)).status, 0);
	EXPECT_EQ(over.count(), 1u);
	EXPECT_EQ(a.call(b.text(), keep, patterned(8), clock::now() - 1ms).get().status,
		  -ETIMEDOUT);
	k.forget();
}

TEST_P(net_rpc, answers_come_later_and_in_any_order)
{
	constexpr unsigned n = 50;
	kept k;
	tally over;
	std::vector<std::string> got(n);
	rpc a(d), b(d);
	b.serve(keep, k.handler());
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	std::vector<std::future<call_result>> all;
	for (unsigned i = 0; i < n; i++)
		all.push_back(a.call(b.text(), keep, std::to_string(i), clock::now() + patience));
	ASSERT_TRUE(k.arrived.reaches(n));
	std::thread other([&] {
		for (unsigned i = n; i-- > 0;)
			EXPECT_EQ(k.all[i].answer(k.all[i].bytes()), 0);
	});
	for (unsigned i = 0; i < n; i++) {
		const call_result r = all[i].get();
		EXPECT_EQ(r.status, 0);
		EXPECT_EQ(text_of(r.bytes), std::to_string(i));
	}
	other.join();
}

TEST_P(net_rpc, few_send_buffers_delay_answers_but_lose_none)
{
	constexpr unsigned n = 200;
	kept k;
	tally over;
	// Without probes, nothing but the answers themselves makes b send the next one.
	rpc a(d, {.messages = {.send_buffers = n}, .probe = 1h}),
		b(d, {.messages = {.send_buffers = 1}});
	b.serve(keep, k.handler());
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	for (unsigned i = 0; i < n; i++)
		ASSERT_EQ(a.call(
				  b.text(), keep, patterned(100, i),
				  [&, i](call_result &&r) {
					  EXPECT_EQ(r.status, 0);
					  EXPECT_TRUE(r.bytes == patterned(100, i));
					  over.add();
				  },
				  clock::now() + patience),
			  0);
	ASSERT_TRUE(k.arrived.reaches(n));
	std::vector<std::thread> all;
	for (unsigned t = 0; t < 4; t++)
		all.emplace_back([&, t] {
			for (unsigned i = t; i < n; i += 4)
				EXPECT_EQ(k.all[i].answer(k.all[i].bytes()), 0);
		});
	for (std::thread &t : all)
		t.join();
	EXPECT_TRUE(over.reaches(n));
	EXPECT_EQ(b.stats().unsent, 0u);
}

TEST_P(net_rpc, a_peer_that_does_not_receive_delays_no_other)
{
	constexpr unsigned n = 20;
	kept k;
	tally over, blocked, unblock;
	rpc b(d, {.messages = {.send_buffers = 8}}), stuck(d), friendly(d);
	echoing(b);
	b.serve(keep, k.handler());
	ASSERT_EQ(b.start(any_address()), 0);
	ASSERT_EQ(friendly.start(any_address()), 0);
	ASSERT_EQ(stuck.start(any_address(),
			      [&](endpoint &, std::span<const std::byte>) {
				      blocked.add();
				      unblock.reaches(1);
			      }),
		  0);
	const bool mem = std::string_view(GetParam().name) == "mem";
	for (unsigned i = 0; i < n; i++)
		ASSERT_EQ(stuck.call(
				  b.text(), keep, patterned(8),
				  [&](call_result &&r) {
					  if (mem) // others may give it up
						  EXPECT_EQ(r.status, 0);
					  over.add();
				  },
				  clock::now() + patience),
			  0);
	ASSERT_TRUE(k.arrived.reaches(n));
	ASSERT_EQ(friendly.post(stuck.text(), {}), 0);
	ASSERT_TRUE(blocked.reaches(1));
	for (const request &q : k.all)
		EXPECT_EQ(q.answer(""), 0);
	EXPECT_EQ(ended(friendly, b.text(), echo, patterned(10)).status, 0);
	EXPECT_EQ(ended(friendly, b.text(), relay, {}).status, -ENOSYS);
	unblock.add();
	EXPECT_TRUE(over.reaches(n));
}

TEST_P(net_rpc, no_answer_leaves_after_stop)
{
	kept k;
	rpc a(d), b(d);
	b.serve(keep, k.handler());
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	for (int i = 0; i < 3; i++)
		ASSERT_EQ(a.call(b.text(), keep, {}, [](call_result &&) {}), 0);
	ASSERT_TRUE(k.arrived.reaches(3));
	EXPECT_EQ(b.stop(), 0);
	EXPECT_EQ(k.all[0].answer("short"), -ECANCELED);
	EXPECT_EQ(k.all[1].answer(patterned(50000)), -ECANCELED);
	EXPECT_EQ(k.all[2].fail(-EIO), -ECANCELED);
	k.forget();
}

TEST_P(net_rpc, times_may_be_as_long_as_there_are)
{
	constexpr auto most = std::chrono::milliseconds::max();
	rpc a(d, {.probe = most, .unread = most}), b(d, {.probe = most, .unread = most});
	echoing(b);
	b.serve(keep, [](const request &q) {
		EXPECT_EQ(q.deadline(), never);
		EXPECT_EQ(q.answer(patterned(100000)), 0);
	});
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	EXPECT_EQ(ended(a, b.text(), echo, patterned(100000)).status, 0);
	// More milliseconds than the head has room for.
	EXPECT_EQ(a.call(b.text(), keep, "", clock::now() + 24h * 60).get().status, 0);
}

TEST_P(net_rpc, a_method_may_call)
{
	rpc a(d), b(d), c(d);
	echoing(c);
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(c.start(any_address()), 0);
	b.serve(relay, [&](const request &q) {
		const int status = b.call(
			c.text(), echo, q.bytes(), [q](call_result &&r) { q.answer(r.bytes); },
			q.deadline());
		if (status)
			q.fail(status);
	});
	ASSERT_EQ(b.start(any_address()), 0);
	const auto bytes = patterned(200000);
	const call_result r = ended(a, b.text(), relay, bytes);
	EXPECT_EQ(r.status, 0);
	EXPECT_TRUE(r.bytes == bytes);
}

TEST_P(net_rpc, callbacks_may_not_wait)
{
	rpc a(d), b(d);
	b.serve(keep, [&](const request &q) {
		EXPECT_TRUE(b.inside());
		q.fail(b.send(a.text(), q.bytes()));
	});
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	for (std::size_t size : {8, 100000}) // a message, and a bulk transfer
		EXPECT_EQ(ended(a, b.text(), keep, patterned(size)).status, -EDEADLK);
	tally over;
	ASSERT_EQ(a.call(
			  a.text(), relay, {},
			  [&](call_result &&) {
				  EXPECT_EQ(a.send(b.text(), {}), -EDEADLK);
				  EXPECT_EQ(a.stop(), 0);
				  over.add();
			  },
			  clock::now() + patience),
		  0);
	EXPECT_TRUE(over.reaches(1));
	EXPECT_FALSE(a.inside());
}

TEST_P(net_rpc, a_callback_of_a_deadline_may_stop)
{
	kept k;
	tally over;
	rpc a(d), b(d);
	b.serve(keep, k.handler());
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	const auto begin = [&] {
		return a.call(
			b.text(), keep, {},
			[&](call_result &&r) {
				EXPECT_EQ(r.status, -ETIMEDOUT);
				EXPECT_TRUE(a.inside());
				EXPECT_EQ(a.stop(), 0);
				over.add();
			},
			clock::now() + 50ms);
	};
	ASSERT_EQ(begun_in_time(begin), 0);
	EXPECT_TRUE(over.reaches(1));
	EXPECT_EQ(a.stop(), 0);
	k.forget();
}

TEST_P(net_rpc, messages_go_beside_calls)
{
	tally arrived;
	rpc a(d), b(d);
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address(),
			  [&](endpoint &from, std::span<const std::byte> bytes) {
				  EXPECT_EQ(from.address(), a.address());
				  EXPECT_EQ(bytes_of(bytes), patterned(bytes.size()));
				  arrived.add();
			  }),
		  0);
	EXPECT_EQ(a.send(b.text(), patterned(77), clock::now() + patience), 0);
	EXPECT_EQ(a.post(b.text(), patterned(a.max_message())), 0);
	EXPECT_EQ(a.post(b.text(), patterned(a.max_message() + 1)), -EMSGSIZE);
	EXPECT_TRUE(arrived.reaches(2));
}

TEST_P(net_rpc, the_end_of_a_peer_ends_its_calls)
{
	kept k;
	tally over;
	rpc a(d, {.probe = 50ms});
	auto b = std::make_unique<rpc>(d);
	b->serve(keep, k.handler());
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b->start(any_address()), 0);
	for (std::size_t size : {8, 100000})
		ASSERT_EQ(a.call(b->text(), keep, patterned(size),
				 [&](call_result &&r) {
					 EXPECT_NE(r.status, 0);
					 EXPECT_NE(r.status, -ETIMEDOUT);
					 EXPECT_FALSE(r.remote);
					 over.add();
				 }),
			  0);
	ASSERT_TRUE(k.arrived.reaches(2));
	b.reset();
	EXPECT_EQ(k.all[0].answer("from the grave"), -ECANCELED);
	EXPECT_TRUE(over.reaches(2)) << "without a deadline";
	k.forget();
}

TEST_P(net_rpc, a_peer_that_restarts_knows_no_calls)
{
	kept k;
	tally over;
	rpc a(d, {.probe = 50ms});
	auto b = std::make_unique<rpc>(d);
	b->serve(keep, k.handler());
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b->start(any_address()), 0);
	const std::string address = b->text();
	ASSERT_EQ(a.call(address, keep, patterned(8),
			 [&](call_result &&r) {
				 EXPECT_NE(r.status, 0);
				 EXPECT_FALSE(r.remote);
				 over.add();
			 }),
		  0);
	ASSERT_TRUE(k.arrived.reaches(1));
	b = std::make_unique<rpc>(d);
	echoing(*b);
	ASSERT_EQ(b->start(address), 0);
	EXPECT_TRUE(over.reaches(1));
	// Messages to it may fail until both sides have met again.
	call_result r;
	const time_point deadline = clock::now() + patience;
	do
		r = ended(a, address, echo, patterned(9));
	while (r.status && clock::now() < deadline);
	EXPECT_TRUE(r.bytes == patterned(9));
	k.forget();
}

TEST_P(net_rpc, a_peer_that_thinks_for_long_is_not_given_up)
{
	kept k;
	rpc a(d, {.probe = 10ms}), b(d);
	b.serve(keep, k.handler());
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	auto f = a.call(b.text(), keep, "think", clock::now() + patience);
	ASSERT_TRUE(k.arrived.reaches(1));
	EXPECT_EQ(f.wait_for(300ms), std::future_status::timeout) << "probed some 30 times";
	EXPECT_EQ(k.all[0].answer("done"), 0);
	EXPECT_EQ(text_of(f.get().bytes), "done");
	k.forget();
}

TEST_P(net_rpc, stop_ends_every_call_once)
{
	constexpr unsigned n = 20;
	kept k;
	tally over;
	rpc a(d), b(d);
	b.serve(keep, k.handler());
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	for (unsigned i = 0; i < n; i++)
		ASSERT_EQ(a.call(b.text(), keep, patterned(i % 2 ? 8 : 50000),
				 [&](call_result &&r) {
					 EXPECT_EQ(r.status, -ECANCELED);
					 over.add();
				 }),
			  0);
	EXPECT_EQ(a.stop(), 0);
	EXPECT_EQ(over.count(), n);
	EXPECT_EQ(a.call(b.text(), keep, "").get().status, -EBADFD);
	EXPECT_EQ(b.stop(), 0);
	k.forget();
}

TEST_P(net_rpc, limits_refuse_and_recover)
{
	kept k;
	rpc a(d, {.max_calls = 4}),
		b(d, {.bulk_memory = 200000, .max_requests = 4, .max_requests_of_peer = 2});
	echoing(b);
	b.serve(keep, k.handler());
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	const auto until = clock::now() + patience;
	EXPECT_EQ(ended(a, b.text(), echo, patterned(200001)).status, -ENOBUFS);
	auto one = a.call(b.text(), keep, "1", until), two = a.call(b.text(), keep, "2", until);
	ASSERT_TRUE(k.arrived.reaches(2));
	const call_result third = a.call(b.text(), keep, "3", until).get();
	EXPECT_EQ(third.status, -ENOBUFS);
	EXPECT_TRUE(third.remote);
	for (const request &q : k.all)
		EXPECT_EQ(q.answer(q.bytes()), 0);
	EXPECT_EQ(text_of(one.get().bytes), "1");
	EXPECT_EQ(text_of(two.get().bytes), "2");
	EXPECT_EQ(b.stats().refused, 2u);
	k.forget();
	// An answer leaves before its request does.
	call_result r;
	do
		r = ended(a, b.text(), echo, patterned(100000));
	while (r.status == -ENOBUFS && clock::now() < until);
	EXPECT_EQ(r.status, 0);
}

TEST_P(net_rpc, all_peers_together_are_limited)
{
	kept k;
	rpc a(d), c(d), b(d, {.max_requests = 2});
	b.serve(keep, k.handler());
	for (rpc *r : {&a, &b, &c})
		ASSERT_EQ(r->start(any_address()), 0);
	auto one = a.call(b.text(), keep, "1", clock::now() + patience),
	     two = c.call(b.text(), keep, "2", clock::now() + patience);
	ASSERT_TRUE(k.arrived.reaches(2));
	for (rpc *r : {&a, &c})
		EXPECT_EQ(ended(*r, b.text(), keep, {}).status, -ENOBUFS);
	for (const request &q : k.all)
		EXPECT_EQ(q.answer(q.bytes()), 0);
	EXPECT_EQ(text_of(one.get().bytes), "1");
	EXPECT_EQ(text_of(two.get().bytes), "2");
	k.forget();
}

TEST_P(net_rpc, a_long_argument_counts_until_it_is_dropped)
{
	kept k;
	rpc a(d), b(d, {.bulk_memory = 150000});
	b.serve(keep, k.handler());
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	auto first = a.call(b.text(), keep, patterned(100000), clock::now() + patience);
	ASSERT_TRUE(k.arrived.reaches(1));
	EXPECT_EQ(ended(a, b.text(), keep, patterned(100000)).status, -ENOBUFS);
	EXPECT_EQ(k.all[0].answer(patterned(100000)), -ENOBUFS) << "results count, too";
	EXPECT_EQ(k.all[0].answer("short"), 0);
	EXPECT_EQ(text_of(first.get().bytes), "short");
	EXPECT_EQ(ended(a, b.text(), keep, patterned(100000)).status, -ENOBUFS) << "still kept";
	k.forget();
	auto second = a.call(b.text(), keep, patterned(100000), clock::now() + patience);
	ASSERT_TRUE(k.arrived.reaches(2));
	EXPECT_EQ(k.all[0].answer(""), 0);
	EXPECT_EQ(second.get().status, 0);
	k.forget();
}

TEST_P(net_rpc, results_are_read_within_bulk_memory)
{
	rpc a(d, {.bulk_memory = 150000}), b(d);
	b.serve(grow, [](const request &q) { EXPECT_EQ(q.answer(patterned(150001)), 0); });
	b.serve(size_of, [](const request &q) { EXPECT_EQ(q.answer(patterned(150000)), 0); });
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	const call_result r = ended(a, b.text(), grow, {});
	EXPECT_EQ(r.status, -ENOBUFS);
	EXPECT_FALSE(r.remote);
	for (int i = 0; i < 3; i++)
		EXPECT_TRUE(ended(a, b.text(), size_of, {}).bytes == patterned(150000)) << i;
}

// The last answer has no other behind it whose end would make room.
TEST(net_rpc_limits, the_last_answer_leaves_too)
{
	domain d({"mem"});
	kept k;
	tally over;
	rpc a(d, {.probe = 1h}), c(d, {.probe = 1h}), b(d, {.messages = {.send_buffers = 1}});
	b.serve(keep, k.handler());
	for (rpc *r : {&a, &b, &c})
		ASSERT_EQ(r->start(any_address()), 0);
	for (unsigned n = 0; n < 2000; n += 2) {
		for (rpc *from : {&a, &c})
			ASSERT_EQ(from->call(
					  b.text(), keep, {}, [&](call_result &&) { over.add(); },
					  clock::now() + patience),
				  0);
		ASSERT_TRUE(k.arrived.reaches(n + 2));
		for (const request &q : k.all)
			EXPECT_EQ(q.answer(""), 0);
		ASSERT_TRUE(over.reaches(n + 2));
		ASSERT_EQ(b.stats().unsent, 0u);
		k.forget();
	}
}

TEST(net_rpc_limits, calls_are_limited_and_the_future_form_waits)
{
	domain d({"mem"});
	kept k;
	rpc a(d, {.max_calls = 1}), b(d);
	b.serve(keep, k.handler());
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	auto one = a.call(b.text(), keep, "1", clock::now() + patience);
	EXPECT_EQ(a.call(b.text(), keep, {}, [](call_result &&) { FAIL(); }), -EAGAIN);
	EXPECT_EQ(a.call(b.text(), keep, "x", clock::now() + 20ms).get().status, -ETIMEDOUT);
	std::thread waits([&] {
		EXPECT_EQ(a.call(b.text(), keep, "2", clock::now() + patience).get().status, 0);
	});
	ASSERT_TRUE(k.arrived.reaches(1));
	EXPECT_EQ(k.all[0].answer(""), 0);
	ASSERT_TRUE(k.arrived.reaches(2));
	EXPECT_EQ(k.all[1].answer(""), 0);
	waits.join();
	EXPECT_EQ(one.get().status, 0);
	k.forget();
}

// A question before the request would find that the peer does not know the call.
TEST(net_rpc_limits, a_request_under_way_is_not_asked_about)
{
	domain d({"mem", {{"lose", "1"}, {"remote_errors", "1"}}});
	rpc a(d, {.probe = 5ms}), b(d);
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	EXPECT_EQ(a.call(b.text(), echo, "", clock::now() + 200ms).get().status, -ETIMEDOUT);
	EXPECT_EQ(a.machine().stats(queue_type::msg_send).adds, 1u);
}

TEST(net_rpc_limits, one_question_to_a_peer_is_under_way)
{
	constexpr unsigned n = 10;
	domain d({"mem"});
	kept k;
	tally blocked, unblock;
	rpc a(d, {.probe = 5ms}), b(d), c(d);
	b.serve(keep, k.handler());
	c.serve(keep, k.handler());
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(c.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address(),
			  [&](endpoint &, std::span<const std::byte>) {
				  blocked.add();
				  unblock.reaches(1);
			  }),
		  0);
	for (unsigned i = 0; i < n; i++)
		ASSERT_EQ(a.call(b.text(), keep, {}, [](call_result &&) {}), 0);
	ASSERT_TRUE(k.arrived.reaches(n));
	ASSERT_EQ(c.post(b.text(), {}), 0);
	ASSERT_TRUE(blocked.reaches(1));
	EXPECT_EQ(a.call(c.text(), keep, "", clock::now() + 200ms).get().status, -ETIMEDOUT);
	EXPECT_LE(a.machine().queued(queue_type::msg_send), 2u) << "one to each peer";
	unblock.add();
	EXPECT_EQ(a.stop(), 0);
	k.forget();
}

TEST(net_rpc_limits, a_deadline_ends_a_call_whose_request_never_arrives)
{
	domain d({"mem", {{"lose", "1"}, {"remote_errors", "1"}}});
	rpc a(d), b(d);
	ASSERT_EQ(a.start(any_address()), 0);
	ASSERT_EQ(b.start(any_address()), 0);
	for (std::size_t size : {8, 100000})
		EXPECT_EQ(a.call(b.text(), echo, patterned(size), clock::now() + 20ms).get().status,
			  -ETIMEDOUT);
	EXPECT_THROW(rpc(d, {.messages = {.max_message = 40}}), std::system_error);
	EXPECT_THROW(rpc(d, {.probe = 0ms}), std::system_error);
	EXPECT_THROW(rpc(d, {.unread = 0ms}), std::system_error);
}

} // namespace
