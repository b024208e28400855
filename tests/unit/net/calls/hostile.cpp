// SPDX-License-Identifier: MIT
// hostile.cpp - peers that do not keep to the protocol of calls harm only themselves.
#include "userland/net/calls/head.hpp"

#include "lab.hpp"

using namespace calls;
using core::call_head;
using core::call_kind;

namespace
{

enum : std::uint32_t { echo = 1, keep };

class net_hostile : public testing::TestWithParam<way>
{
protected:
	void SetUp() override
	{
		r.serve(echo, [this](const request &q) {
			ran++;
			q.answer(q.bytes());
		});
		ASSERT_EQ(r.start(any_address()), 0);
		ASSERT_EQ(enemy.start(any_address(),
				      [this](endpoint &, std::span<const std::byte> m) {
					      call_head h;
					      if (!call_head::get(m, h))
						      return;
					      {
						      std::lock_guard hold(lock);
						      heads.push_back(h);
					      }
					      arrived.add();
				      }),
			  0);
		ASSERT_EQ(friendly.start(any_address()), 0);
	}
	void send(const call_head &h, std::span<const std::byte> body = {})
	{
		std::vector<std::byte> m(call_head::size);
		h.put(m.data());
		m.insert(m.end(), body.begin(), body.end());
		send(m);
	}
	void send(std::span<const std::byte> m)
	{
		ASSERT_EQ(enemy.send(r.text(), m, clock::now() + patience), 0);
	}
	call_head request_of(std::uint64_t id, std::uint32_t method)
	{
		call_head h;
		h.kind = call_kind::request;
		h.call = id;
		h.method = method;
		return h;
	}
	std::vector<call_head> all_heads()
	{
		std::lock_guard hold(lock);
		return heads;
	}
	// A send may end before the machine has looked at the message.
	template <class counter> static bool reaches(counter count, std::uint64_t n)
	{
		for (const auto end = clock::now() + patience; clock::now() < end;) {
			if (count() >= n)
				return true;
			std::this_thread::sleep_for(1ms);
		}
		return false;
	}
	// It still serves others.
	void lives()
	{
		const auto bytes = patterned(50000);
		const call_result c =
			friendly.call(r.text(), echo, bytes, clock::now() + patience).get();
		EXPECT_EQ(c.status, 0);
		EXPECT_TRUE(c.bytes == bytes);
	}

	domain d{GetParam().options};
	std::mutex lock;
	std::vector<call_head> heads; ///< what the enemy got
	tally arrived;
	std::atomic<unsigned> ran{0};
	rpc r{d, {.max_requests = 20, .max_requests_of_peer = 10}};
	rpc friendly{d};
	messenger enemy{d};
};
INSTANTIATE_TEST_SUITE_P(on, net_hostile, testing::ValuesIn(ways()), name_of);

TEST_P(net_hostile, malformed_messages_are_counted)
{
	send(std::span<const std::byte>());
	send(patterned(31));
	send(patterned(1000));
	call_head h = request_of(1, echo);
	h.length = 5;
	send(h, patterned(4));
	h.flags = 0x8000;
	send(h, patterned(5));
	EXPECT_TRUE(reaches([&] { return r.stats().malformed; }, 5));
	lives();
	EXPECT_EQ(r.stats().malformed, 5u);
	EXPECT_EQ(r.stats().served, 1u);
}

TEST_P(net_hostile, a_request_under_way_is_not_run_again)
{
	tally kept_ones;
	std::vector<request> kept;
	r.serve(keep, [&](const request &q) {
		kept.push_back(q);
		kept_ones.add();
	});
	for (int i = 0; i < 3; i++)
		send(request_of(7, keep));
	ASSERT_TRUE(kept_ones.reaches(1));
	EXPECT_TRUE(reaches([&] { return r.stats().repeated; }, 2));
	lives();
	// Another peer may use the same number.
	EXPECT_EQ(kept_ones.count(), 1u);
	EXPECT_EQ(r.stats().repeated, 2u);
	ASSERT_EQ(kept[0].answer("once"), 0);
	ASSERT_TRUE(arrived.reaches(1));
	EXPECT_EQ(all_heads()[0].call, 7u);
	kept.clear();
}

TEST_P(net_hostile, a_flood_is_refused_beyond_the_limit)
{
	std::mutex held;
	std::vector<request> kept;
	r.serve(keep, [&](const request &q) {
		std::lock_guard hold(held);
		kept.push_back(q);
	});
	for (std::uint64_t id = 0; id < 100; id++)
		send(request_of(id, keep));
	EXPECT_TRUE(reaches([&] { return r.stats().refused; }, 90));
	lives();
	ASSERT_TRUE(arrived.reaches(1));
	std::vector<request> gone;
	{
		std::lock_guard hold(held);
		EXPECT_EQ(kept.size(), 10u);
		gone.swap(kept);
	}
	EXPECT_EQ(r.stats().refused, 90u);
	for (const call_head &h : all_heads())
		EXPECT_EQ(static_cast<std::int32_t>(h.method), -ENOBUFS);
}

TEST_P(net_hostile, a_descriptor_that_is_none_fails_its_request)
{
	call_head h = request_of(3, echo);
	h.flags = call_head::bulk;
	h.length = 1 << 20;
	send(h, patterned(60));
	ASSERT_TRUE(arrived.reaches(1));
	EXPECT_EQ(all_heads()[0].kind, call_kind::answer);
	EXPECT_EQ(static_cast<std::int32_t>(all_heads()[0].method), -EPROTO);
	h = request_of(4, echo);
	h.flags = call_head::bulk;
	h.length = ~std::uint64_t{0};
	send(h, patterned(60));
	ASSERT_TRUE(arrived.reaches(2));
	EXPECT_EQ(static_cast<std::int32_t>(all_heads()[1].method), -EFBIG);
	lives();
	EXPECT_EQ(ran, 1u);
}

// Memory that a machine offers to all.
struct offered final : buffer_handler {
	offered(domain &d, transfer_machine &tm, std::size_t size) :
		bytes(patterned(size)),
		registered(d, bytes.data(), size)
	{
		operation o;
		o.queue = queue_type::passive_bulk_send;
		o.handler = this;
		EXPECT_EQ(tm.add(registered, o), 0);
	}
	void on_buffer(const buffer_event &) override { over.add(); }

	std::vector<std::byte> bytes;
	buffer registered;
	tally over;
};

TEST_P(net_hostile, an_argument_must_be_the_callers_and_of_its_length)
{
	messenger third(d);
	ASSERT_EQ(third.start(any_address()), 0);
	offered small(d, enemy.machine(), 1), theirs(d, third.machine(), 5000),
		mine(d, enemy.machine(), 5000);
	call_head h = request_of(1, echo);
	h.flags = call_head::bulk;
	h.length = 5000;
	send(h, small.registered.descriptor());
	h.call = 2;
	send(h, theirs.registered.descriptor());
	ASSERT_TRUE(arrived.reaches(2));
	for (const call_head &got : all_heads())
		EXPECT_EQ(static_cast<std::int32_t>(got.method), -EPROTO) << got.call;
	EXPECT_EQ(ran, 0u);
	h.call = 3;
	send(h, mine.registered.descriptor());
	ASSERT_TRUE(arrived.reaches(3));
	EXPECT_EQ(all_heads()[2].method, 0u);
	EXPECT_EQ(all_heads()[2].length, 5000u);
	EXPECT_EQ(small.over.count() + theirs.over.count(), 0u) << "they were not read";
	EXPECT_EQ(enemy.stop() + third.stop(), 0);
}

TEST_P(net_hostile, a_result_must_be_the_peers_and_of_its_length)
{
	messenger third(d), liar(d);
	std::vector<std::byte> descriptor;
	ASSERT_EQ(third.start(any_address()), 0);
	ASSERT_EQ(liar.start(any_address(),
			     [&](endpoint &from, std::span<const std::byte> m) {
				     call_head h;
				     if (!call_head::get(m, h) || h.kind != call_kind::request)
					     return;
				     h.kind = call_kind::answer;
				     h.method = h.time = 0;
				     h.flags = call_head::bulk;
				     h.length = 5000;
				     std::byte head[call_head::size];
				     h.put(head);
				     EXPECT_EQ(liar.post(from, {head, descriptor}), 0);
			     }),
		  0);
	offered small(d, liar.machine(), 1), theirs(d, third.machine(), 5000),
		own(d, liar.machine(), 5000);
	for (const offered *o : {&small, &theirs}) {
		descriptor = bytes_of(o->registered.descriptor());
		const call_result c = r.call(liar.text(), 1, "?", clock::now() + patience).get();
		EXPECT_EQ(c.status, -EPROTO);
		EXPECT_FALSE(c.remote);
	}
	descriptor = bytes_of(own.registered.descriptor());
	const call_result c = r.call(liar.text(), 1, "?", clock::now() + patience).get();
	EXPECT_EQ(c.status, 0);
	EXPECT_TRUE(c.bytes == own.bytes);
	EXPECT_EQ(small.over.count() + theirs.over.count(), 0u) << "they were not read";
	EXPECT_EQ(liar.stop() + third.stop(), 0);
}

TEST_P(net_hostile, answers_of_others_end_no_call)
{
	// The enemy knows the number of the call, and that its peer is another one.
	messenger victim_of(d);
	std::atomic<std::uint64_t> id{0};
	tally asked;
	ASSERT_EQ(victim_of.start(any_address(),
				  [&](endpoint &, std::span<const std::byte> m) {
					  call_head h;
					  if (call_head::get(m, h) &&
					      h.kind == call_kind::request) {
						  id = h.call;
						  asked.add();
					  }
				  }),
		  0);
	auto f = r.call(victim_of.text(), 1, "to the other", clock::now() + patience);
	ASSERT_TRUE(asked.reaches(1));
	call_head h;
	h.call = id;
	for (call_kind kind : {call_kind::answer, call_kind::unknown, call_kind::unknown,
			       call_kind::unknown, call_kind::alive, call_kind::answer}) {
		h.kind = kind;
		send(h);
	}
	EXPECT_TRUE(reaches([&] { return r.stats().late; }, 2));
	lives();
	EXPECT_EQ(f.wait_for(0s), std::future_status::timeout);
	EXPECT_EQ(r.stats().late, 2u);
	// Its own peer may end it, but not with a status that is no error.
	h.kind = call_kind::answer;
	h.method = 5;
	std::vector<std::byte> m(call_head::size);
	h.put(m.data());
	ASSERT_EQ(victim_of.send(r.text(), m, clock::now() + patience), 0);
	const call_result c = f.get();
	EXPECT_EQ(c.status, -EPROTO);
	EXPECT_FALSE(c.remote);
}

TEST_P(net_hostile, a_second_answer_is_late)
{
	messenger twice(d);
	ASSERT_EQ(twice.start(any_address(),
			      [&](endpoint &from, std::span<const std::byte> m) {
				      call_head h;
				      if (!call_head::get(m, h) || h.kind != call_kind::request)
					      return;
				      h.kind = call_kind::answer;
				      h.method = h.time = 0;
				      std::byte head[call_head::size];
				      h.put(head);
				      for (int i = 0; i < 2; i++)
					      EXPECT_EQ(twice.post(from, head), 0);
			      }),
		  0);
	tally over;
	ASSERT_EQ(r.call(
			  twice.text(), 1, {},
			  [&](call_result &&c) {
				  EXPECT_EQ(c.status, 0);
				  over.add();
			  },
			  clock::now() + patience),
		  0);
	ASSERT_TRUE(over.reaches(1));
	const auto until = clock::now() + patience;
	while (r.stats().late == 0 && clock::now() < until)
		lives();
	EXPECT_EQ(r.stats().late, 1u);
	EXPECT_EQ(over.count(), 1u);
}

TEST_P(net_hostile, a_result_with_a_false_descriptor_ends_its_call)
{
	messenger liar(d);
	ASSERT_EQ(liar.start(any_address(),
			     [&](endpoint &from, std::span<const std::byte> m) {
				     call_head h;
				     if (!call_head::get(m, h) || h.kind != call_kind::request)
					     return;
				     h.kind = call_kind::answer;
				     h.method = 0;
				     h.time = 0;
				     h.flags = call_head::bulk;
				     h.length = 100000;
				     std::vector<std::byte> a(call_head::size + 50);
				     h.put(a.data());
				     EXPECT_EQ(liar.post(from, a), 0);
			     }),
		  0);
	const call_result c = r.call(liar.text(), 1, "?", clock::now() + patience).get();
	EXPECT_LT(c.status, 0);
	EXPECT_NE(c.status, -ETIMEDOUT);
	EXPECT_TRUE(c.bytes.empty());
}

} // namespace
