// SPDX-License-Identifier: MIT
// Rings, handles and receive buffers of the kernel transport; the module is this test.
#include <array>
#include <cerrno>
#include <cstring>
#include <gtest/gtest.h>
#include <map>
#include <string>
#include <vector>

#include "tests/unit/net/kernel/core.hpp"
#include "userland/net/kernel/receives.hpp"

namespace
{

using namespace coop::net;
using kernel::handles;
using kernel_test::core;

/// The module's side of two rings.
class module final : public kernel::rings
{
public:
	static constexpr std::uint32_t entries = 4;

	module() { use(&shared_, ops_.data(), entries, events_.data(), entries); }
	void sleep() { shared_.state = 0; }
	void wake() { shared_.state = COOP_NET_AWAKE; }
	/// The operations that it takes, up to so many.
	std::vector<coop_net_op> take(std::uint32_t most = entries)
	{
		std::vector<coop_net_op> out;
		while (out.size() < most && shared_.op_head != shared_.op_tail)
			out.push_back(ops_[shared_.op_head++ % entries]);
		return out;
	}
	void put(const coop_net_event &ev)
	{
		ASSERT_LT(shared_.event_tail - shared_.event_head, entries);
		events_[shared_.event_tail++ % entries] = ev;
	}
	void fail(int status)
	{
		shared_.state = COOP_NET_FAILED;
		shared_.failure = status;
	}
	unsigned entered = 0;
	bool performs = false; // what is in the ring, when it is told
	std::vector<coop_net_op> performed;

private:
	void enter() override
	{
		entered++;
		if (performs)
			for (const coop_net_op &op : take())
				performed.push_back(op);
	}

	coop_net_rings shared_{};
	std::array<coop_net_op, entries> ops_{};
	std::array<coop_net_event, entries> events_{};
};

coop_net_op numbered(std::uint32_t n)
{
	coop_net_op op{};
	op.code = COOP_NET_SEND;
	op.handle = n;
	return op;
}

TEST(rings, operations_beyond_the_ring_wait_in_order)
{
	module m;
	m.wake();
	std::uint32_t pushed = 0, expected = 0;
	while (pushed < 10)
		m.push(numbered(pushed++));
	while (expected < pushed) {
		m.submit();
		const auto taken = m.take(3);
		ASSERT_FALSE(taken.empty());
		for (const coop_net_op &op : taken)
			EXPECT_EQ(op.handle, expected++);
		if (pushed < 15) // there is room, but others wait
			m.push(numbered(pushed++));
	}
	m.submit();
	EXPECT_TRUE(m.take().empty());
}

// The module may take the whole ring and sleep without an event, and nothing else would bring the
// rest into the ring.
TEST(rings, operations_beyond_the_ring_do_not_wait_for_an_event)
{
	for (const bool awake : {true, false}) {
		module m;
		m.performs = true;
		if (awake)
			m.wake();
		for (std::uint32_t n = 0; n < 10; n++)
			m.push(numbered(n));
		m.submit();
		for (const coop_net_op &op : m.take())
			m.performed.push_back(op);
		ASSERT_EQ(m.performed.size(), 10u);
		for (std::uint32_t n = 0; n < 10; n++)
			EXPECT_EQ(m.performed[n].handle, n);
	}
}

TEST(rings, a_module_without_room_for_events_is_told_once)
{
	module m;
	m.wake();
	for (std::uint32_t n = 0; n < 10; n++)
		m.push(numbered(n));
	m.submit();
	EXPECT_EQ(m.entered, 1u);
	m.fail(-ENODEV);
	m.submit();
	EXPECT_EQ(m.entered, 1u);
}

TEST(rings, only_a_sleeping_module_is_told)
{
	module m;
	m.submit();
	EXPECT_EQ(m.entered, 0u); // there is nothing
	m.wake();
	m.push(numbered(0));
	m.submit();
	EXPECT_EQ(m.entered, 0u);
	m.sleep();
	m.push(numbered(1));
	m.submit();
	EXPECT_EQ(m.entered, 1u);
	EXPECT_EQ(m.take().size(), 2u);
	m.submit();
	EXPECT_EQ(m.entered, 1u); // all is taken
}

TEST(rings, events_come_in_order_and_before_the_failure)
{
	module m;
	coop_net_event ev{};
	for (std::uint32_t n = 0; n < 3 * module::entries; n++) {
		ev.handle = n;
		m.put(ev);
		if (n % 3 != 2)
			continue;
		for (std::uint32_t i = n - 2; i <= n; i++) {
			coop_net_event got{};
			ASSERT_TRUE(m.next(got));
			EXPECT_EQ(got.handle, i);
		}
		EXPECT_TRUE(m.empty());
	}
	m.put(ev);
	m.fail(-ENODEV);
	EXPECT_EQ(m.failure(), -ENODEV);
	EXPECT_TRUE(m.next(ev));
	EXPECT_FALSE(m.next(ev));
}

TEST(handles, an_id_names_one_use)
{
	handles h(2);
	const std::uint32_t a = h.take(handles::use::send, 7), id = h.id(a);
	EXPECT_EQ(h.of(id), a);
	EXPECT_EQ(h[a].number, 7u);
	const std::uint32_t b = h.take(handles::use::fetch, 8);
	EXPECT_EQ(h.take(handles::use::send, 9), handles::none);
	h.release(a);
	EXPECT_EQ(h.of(id), handles::none);
	EXPECT_EQ(h.take(handles::use::send, 9), a);
	EXPECT_EQ(h.of(id), handles::none);
	EXPECT_EQ(h.of(h.id(b)), b);
	EXPECT_EQ(h[77].what, handles::use::free);
}

class receive_buffers : public testing::Test
{
protected:
	receive_buffers() { module_.wake(); }

	void add(spi::token t, std::size_t min_size, std::uint32_t messages)
	{
		bytes_.emplace_back(100);
		segments_.push_back({bytes_.back().data(), 100});
		spi::transfer x{};
		x.memory.segments = {&segments_.back(), 1};
		x.memory.size = x.length = 100;
		x.min_receive_size = min_size;
		x.max_receive_msgs = messages;
		core_.open[t] = {100, min_size, messages};
		ASSERT_EQ(receives_.add(t, x, 5), 0);
	}
	coop_net_op given()
	{
		receives_.give();
		return only();
	}
	coop_net_op only()
	{
		module_.submit();
		const auto ops = module_.take();
		EXPECT_EQ(ops.size(), 1u);
		return ops.empty() ? coop_net_op{} : ops[0];
	}
	void came(const coop_net_op &op, std::size_t offset, std::size_t length,
		  std::uint32_t peer = 1)
	{
		coop_net_event ev{};
		ev.code = COOP_NET_RECEIVED;
		ev.handle = op.handle;
		ev.peer = peer;
		ev.offset = offset;
		ev.length = length;
		receives_.received(ev, 3);
	}
	void over(const coop_net_op &op, int status = 0)
	{
		coop_net_event ev{};
		ev.code = COOP_NET_RECV_OVER;
		ev.flags = COOP_NET_FINAL;
		ev.handle = op.handle;
		ev.status = status;
		receives_.over(ev);
	}
	using words = std::vector<std::string>;

	module module_;
	core core_;
	handles handles_{8};
	const address own_;
	kernel::receives receives_{handles_, module_, own_, core_};
	std::deque<std::vector<std::byte>> bytes_;
	std::deque<segment> segments_;
};

TEST_F(receive_buffers, go_to_the_module_and_end_with_their_last_message)
{
	add(1, 50, 9);
	const coop_net_op op = given();
	EXPECT_EQ(op.code, COOP_NET_RECV);
	EXPECT_EQ(op.buffer, 5u);
	EXPECT_EQ(op.length, 100u);
	EXPECT_EQ(op.u.recv.min_size, 50u);
	EXPECT_EQ(op.u.recv.max_messages, 9u);
	came(op, 0, 50);
	EXPECT_EQ(core_.heard, words{"0+50"});
	came(op, 50, 10); // it is full now
	over(op);
	EXPECT_EQ(core_.heard, (words{"0+50", "50+10"}));
	EXPECT_TRUE(core_.ended.empty());
	EXPECT_TRUE(core_.open.empty());
	EXPECT_EQ(handles_[op.handle].what, handles::use::free);
}

TEST_F(receive_buffers, lose_no_message_that_the_next_one_overtakes)
{
	add(1, 50, 9);
	const coop_net_op op = given();
	came(op, 40, 60); // the core would drop the buffer
	EXPECT_TRUE(core_.heard.empty());
	came(op, 0, 40);
	over(op);
	EXPECT_EQ(core_.heard, (words{"0+40", "40+60"}));
	EXPECT_TRUE(core_.ended.empty());
}

TEST_F(receive_buffers, end_when_the_module_retires_them)
{
	add(1, 1, 9);
	const coop_net_op op = given();
	came(op, 0, 60);
	over(op); // the next message was longer than 40 bytes
	EXPECT_EQ(core_.ended, (std::map<spi::token, int>{{1, 0}}));
}

TEST_F(receive_buffers, are_cancelled_once_the_module_is_done)
{
	add(1, 1, 9);
	const coop_net_op op = given();
	EXPECT_TRUE(receives_.cancel(1));
	EXPECT_FALSE(receives_.cancel(2));
	const coop_net_op cancel = only();
	EXPECT_EQ(cancel.code, COOP_NET_CANCEL);
	EXPECT_EQ(cancel.handle, op.handle);
	EXPECT_TRUE(core_.ended.empty());
	came(op, 0, 10); // it was under way
	over(op, -ECANCELED);
	EXPECT_EQ(core_.heard, words{"0+10"});
	EXPECT_EQ(core_.ended, (std::map<spi::token, int>{{1, -ECANCELED}}));
}

// The operation that sent it may be over before it is reported, and the number be another peer's.
TEST_F(receive_buffers, hold_the_number_of_this_machine_for_its_messages)
{
	add(1, 50, 9);
	add(2, 50, 9);
	receives_.give();
	module_.submit();
	const auto ops = module_.take();
	ASSERT_EQ(ops.size(), 2u);
	came(ops[0], 0, 10, 0);
	EXPECT_EQ(core_.heard, words{"0+10"});
	EXPECT_FALSE(core_.held);
	came(ops[0], 30, 60, 0);
	came(ops[1], 30, 60, 0);
	EXPECT_TRUE(core_.held);
	over(ops[1]);
	EXPECT_TRUE(core_.held);
	came(ops[0], 10, 20);
	over(ops[0]);
	EXPECT_FALSE(core_.held);
	EXPECT_EQ(core_.heard, (words{"0+10", "30+60", "10+20", "30+60"}));
}

} // namespace
