// SPDX-License-Identifier: MIT
// guest.cpp - calls at a machine of the program, which polls it and has messages of other kinds.
#include "lab.hpp"

using namespace calls;

namespace
{

enum : std::uint32_t { echo = 1, keep };

// A program with a machine that it polls, and calls at that machine.
class program final : buffer_handler
{
public:
	explicit program(domain &d, const rpc_options &o = {}) :
		pool_(d, {.buffers = 8, .segment_size = 65536}),
		machine(d),
		calls(d, machine, o, [this](endpoint &, std::span<const std::byte> m) {
			posted.push_back(text_of(m));
		})
	{
		EXPECT_EQ(machine.deliver_synchronously(), 0);
		EXPECT_EQ(machine.attach(pool_, *this, 8192, 64), 0);
		EXPECT_EQ(machine.start(any_address()), 0);
		EXPECT_EQ(machine.wait(tm_state::started), 0);
	}
	~program() { end(); }

	void end()
	{
		(void)machine.stop(true);
		while (machine.state() < tm_state::stopped || machine.deliver_all())
			machine.deliver_all();
		calls.stop();
	}
	std::string text() const { return format(machine.address()); }

private:
	void on_buffer(const buffer_event &e) override
	{
		if (e.sender && e.status == 0) {
			const auto *base = static_cast<std::byte *>(e.buffer->segments()[0].base);
			const std::span<const std::byte> m(base + e.offset, e.length);
			if (!calls.take(*e.sender, m))
				others.push_back(text_of(m));
		}
		if (!e.queued)
			(void)pool_.put(e.buffer);
	}

	buffer_pool pool_;

public:
	std::vector<std::string> others; ///< messages that are not of calls
	std::vector<std::string> posted; ///< messages of rpc::post()
	transfer_machine machine;
	rpc calls;
};

// Polls until `over`. @return false: patience ran out.
template <class condition> bool polled(std::initializer_list<program *> all, condition over)
{
	const time_point enough = clock::now() + patience;
	while (!over() && clock::now() < enough)
		for (program *p : all)
			p->machine.deliver_all();
	return over();
}

class net_guest : public testing::TestWithParam<way>
{
protected:
	domain d{GetParam().options};
};
INSTANTIATE_TEST_SUITE_P(on, net_guest, testing::ValuesIn(ways()), name_of);

TEST_P(net_guest, calls_of_every_size_on_the_thread_that_polls)
{
	program a(d), b(d);
	const auto here = std::this_thread::get_id();
	b.calls.serve(echo, [&](const request &q) {
		EXPECT_EQ(std::this_thread::get_id(), here);
		EXPECT_EQ(q.from(), a.machine.address());
		EXPECT_EQ(q.answer(q.bytes()), 0);
	});
	for (const std::size_t size : {0, 100, 16 << 10, (16 << 10) + 1, 1 << 20}) {
		const auto bytes = patterned(size);
		call_result got{1, false, {}};
		ASSERT_EQ(a.calls.call(b.text(), echo, bytes,
				       [&](call_result &&r) {
					       EXPECT_EQ(std::this_thread::get_id(), here);
					       got = std::move(r);
				       }),
			  0);
		ASSERT_TRUE(polled({&a, &b}, [&] { return got.status <= 0; })) << size;
		EXPECT_EQ(got.status, 0) << size;
		EXPECT_TRUE(got.bytes == bytes) << size;
	}
	EXPECT_TRUE(a.others.empty() && b.others.empty());
	EXPECT_EQ(b.calls.stats().served, 5u);
}

// A messenger speaks with it, and an rpc object with a machine of its own calls it.
TEST_P(net_guest, others_need_not_know)
{
	program p(d);
	p.calls.serve(echo, [](const request &q) { q.answer(q.bytes()); });
	rpc caller(d);
	messenger other(d);
	ASSERT_EQ(caller.start(any_address()), 0);
	ASSERT_EQ(other.start(any_address()), 0);
	ASSERT_EQ(other.post(p.text(), std::as_bytes(std::span("plain"))), 0);
	ASSERT_EQ(caller.post(p.text(), std::as_bytes(std::span("beside"))), 0);
	auto answer = caller.call(p.text(), echo, "hello", clock::now() + patience);
	EXPECT_TRUE(polled({&p}, [&] {
		return !p.others.empty() && !p.posted.empty() &&
		       answer.wait_for(0s) == std::future_status::ready;
	}));
	EXPECT_EQ(text_of(answer.get().bytes), "hello");
	EXPECT_EQ(p.others, std::vector{std::string("plain", 6)});
	EXPECT_EQ(p.posted, std::vector{std::string("beside", 7)});
	EXPECT_EQ(p.calls.stats().malformed, 0u);
}

TEST_P(net_guest, the_end_of_its_machine_ends_its_calls)
{
	program b(d);
	std::vector<request> kept;
	b.calls.serve(keep, [&](const request &q) { kept.push_back(q); });
	std::vector<int> ends;
	{
		program a(d);
		for (int i = 0; i < 2; i++)
			ASSERT_EQ(a.calls.call(b.text(), keep, patterned(10),
					       [&](call_result &&r) { ends.push_back(r.status); }),
				  0);
		ASSERT_TRUE(polled({&a, &b}, [&] { return kept.size() == 2; }));
		a.end();
		EXPECT_EQ(ends, (std::vector{-ECANCELED, -ECANCELED}));
		EXPECT_EQ(a.calls.call(b.text(), keep, {}, [](call_result &&) { FAIL(); }),
			  -EBADFD);
		EXPECT_EQ(a.calls.stop(), 0);
	}
	EXPECT_EQ(ends.size(), 2u);
	b.end();
	EXPECT_EQ(kept[0].answer("late"), -ECANCELED);
	kept.clear();
}

// The peer knows the call, and then has ended: the questions of this side find out.
TEST_P(net_guest, the_end_of_a_peer_ends_its_calls)
{
	program a(d, {.probe = 20ms});
	std::vector<request> kept;
	auto b = std::make_unique<program>(d);
	b->calls.serve(keep, [&](const request &q) { kept.push_back(q); });
	std::atomic<int> end{1}; // perhaps on the thread of deadlines
	ASSERT_EQ(a.calls.call(b->text(), keep, {}, [&](call_result &&r) { end = r.status; }), 0);
	ASSERT_TRUE(polled({&a, b.get()}, [&] { return kept.size() == 1; }));
	b->end();
	kept.clear();
	b.reset();
	EXPECT_TRUE(polled({&a}, [&] { return end <= 0; }));
	EXPECT_LT(end, 0);
}

TEST(net_guest_limits, what_is_not_for_a_guest_is_refused)
{
	domain d({"mem"});
	program p(d);
	EXPECT_THROW(rpc(d, p.machine), std::system_error) << "it has been started";
	EXPECT_EQ(p.calls.start(any_address()), -EBADFD);
	transfer_machine own(d);
	EXPECT_THROW(messenger(d, own, {.send_buffers = 0}), std::system_error);
	messenger m(d, own, {.receive_buffers = 0});
	EXPECT_EQ(m.start(any_address()), -EBADFD);
	EXPECT_EQ(m.post(p.text(), {}), -EBADFD) << "the machine has not been started";
	EXPECT_EQ(own.start(any_address()), 0);
	EXPECT_EQ(own.wait(tm_state::started), 0);
	EXPECT_EQ(m.send(p.text(), "a", clock::now() + patience), 0);
	EXPECT_EQ(m.stop(), 0);
	EXPECT_EQ(m.post(p.text(), {}), -EBADFD);
	EXPECT_EQ(own.stop(true), 0);
	EXPECT_EQ(own.wait(tm_state::stopped), 0);
}

// Its program may still hand over messages, from a machine that goes on.
TEST(net_guest_limits, after_stop_no_method_runs)
{
	domain d({"mem"});
	program a(d), b(d);
	b.calls.serve(echo, [](const request &) { FAIL(); });
	EXPECT_EQ(b.calls.stop(), 0);
	int end = 1;
	ASSERT_EQ(a.calls.call(b.text(), echo, {}, [&](call_result &&r) { end = r.status; }), 0);
	const auto received = [&] { return b.machine.stats(queue_type::msg_recv).ok; };
	EXPECT_TRUE(polled({&a, &b}, [&] { return received() > 0; }));
	EXPECT_TRUE(b.others.empty());
	a.end();
	EXPECT_EQ(end, -ECANCELED);
}

} // namespace
