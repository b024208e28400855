// SPDX-License-Identifier: MIT
// priority.cpp - messages of high priority, behind a backlog.
//
// Conformance tests msg_priority_*. A transport may have begun to send some of the backlog, and a
// machine that is not polled makes progress by itself after three milliseconds. So an attempt
// counts if all messages were added within two; on a busy machine there may be several.
#include <algorithm>
#include <cstring>

#include "world.hpp"

namespace conformance
{

namespace
{

class message_priority : public suite
{
protected:
	static constexpr unsigned backlog = 40;

	/// Sends normal messages and then high ones, to a peer that was not spoken to before.
	/// @return the order in which they arrived, by their numbers; empty: too slow.
	std::vector<std::size_t> attempt(unsigned normal, unsigned high, std::size_t size)
	{
		const unsigned all = normal + high;
		node &a = w.up(), &b = w.up();
		std::vector<piece *> in, out;
		for (unsigned i = 0; i < all; i++) {
			in.push_back(&w.memory(size));
			EXPECT_EQ(b.receive(*in.back(), size), 0);
			out.push_back(&w.memory(size));
			std::memcpy(out.back()->memory[0].data(), &i, sizeof(i));
		}
		const endpoint_ptr to = a.to(b);
		(void)b.tm.deliver_all();
		const time_point begun = net::clock::now(); // of the time in which a is not polled
		(void)a.tm.deliver_all();
		for (unsigned i = 0; i < all; i++) {
			operation o;
			o.queue = queue_type::msg_send;
			o.length = size;
			o.to = to.get();
			o.priority = i < normal ? priority::normal : priority::high;
			o.handler = &a.record;
			EXPECT_EQ(a.tm.add(*out[i]->buffer, o), 0);
		}
		const bool slow = net::clock::now() - begun > 2ms;
		EXPECT_TRUE(w.until([&] {
			return a.record.count() == all && b.record.messages().size() == all;
		}));
		std::vector<std::size_t> order;
		for (const happened &m : b.record.messages()) {
			unsigned number = all;
			for (unsigned i = 0; i < all; i++)
				if (in[i]->buffer.get() == m.buffer)
					std::memcpy(&number, in[i]->memory[0].data() + m.offset,
						    sizeof(number));
			order.push_back(number);
		}
		w.remove(a);
		w.remove(b);
		return slow ? std::vector<std::size_t>{} : order;
	}
	std::vector<std::size_t> arrivals(unsigned normal, unsigned high, std::size_t size)
	{
		const time_point enough = net::clock::now() + patience / 4;
		for (unsigned tries = 0; tries < 60 && net::clock::now() < enough; tries++)
			if (auto order = attempt(normal, high, size); !order.empty())
				return order;
		return {};
	}
	static std::size_t place(const std::vector<std::size_t> &order, std::size_t number)
	{
		return static_cast<std::size_t>(std::find(order.begin(), order.end(), number) -
						order.begin());
	}
};
COOP_CONFORMANCE(message_priority, synchronous);

} // namespace

TEST_P(message_priority, msg_priority_overtakes)
{
	const std::size_t most = w.home().limits().max_message;
	for (const std::size_t size : {std::size_t{8}, std::min<std::size_t>(most, 40000)}) {
		const auto order = arrivals(backlog, 1, size);
		if (order.empty())
			GTEST_SKIP() << "this machine is too busy";
		EXPECT_LT(place(order, backlog), backlog / 2) << size;
	}
}

// However many there are, others are not left waiting for the last of them.
TEST_P(message_priority, msg_priority_is_bounded)
{
	const auto order = arrivals(2, 3 * backlog, 8);
	if (order.empty())
		GTEST_SKIP() << "this machine is too busy";
	EXPECT_LT(place(order, 1), 2 * backlog);
}

} // namespace conformance
