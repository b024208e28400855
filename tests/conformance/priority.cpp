// SPDX-License-Identifier: MIT
// priority.cpp - messages of high priority, behind a backlog.
//
// Conformance tests msg_priority_*. A transport may have begun to send some of the backlog before a
// message of high priority is added. So all are added in one handler, while the peer is in another
// one: the thread that runs a handler is the only one that makes progress on the machine. The peer
// may still take them in another order, because it may first refuse what comes from a machine that
// it does not know; but not each time.
#include <algorithm>
#include <cstring>
#include <map>
#include <string>

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
	/// @return the order in which they arrived, by their numbers.
	std::vector<std::size_t> arrivals(unsigned normal, unsigned high, std::size_t size)
	{
		const unsigned all = normal + high;
		node &a = w.made(), &b = w.made();
		std::vector<piece *> in, out;
		for (unsigned i = 0; i < all; i++) {
			in.push_back(&w.memory(size));
			out.push_back(&w.memory(size));
			std::memcpy(out.back()->memory[0].data(), &i, sizeof(i));
		}
		endpoint_ptr to;
		a.record.on_change = [&](const tm_event &e) {
			if (e.state != tm_state::started)
				return;
			to = a.to(b);
			for (unsigned i = 0; i < all; i++) {
				operation o;
				o.queue = queue_type::msg_send;
				o.length = size;
				o.to = to.get();
				o.priority = i < normal ? priority::normal : priority::high;
				o.handler = &a.record;
				EXPECT_EQ(a.tm.add(*out[i]->buffer, o), 0);
			}
		};
		b.record.on_change = [&](const tm_event &e) {
			if (e.state != tm_state::started)
				return;
			for (piece *each : in)
				EXPECT_EQ(b.receive(*each, size), 0);
			EXPECT_TRUE(a.up(w.next_address()));
		};
		EXPECT_TRUE(b.up(w.next_address()));
		EXPECT_TRUE(w.until([&] {
			return a.record.count() == all && b.record.messages().size() == all;
		})) << all
		    << " messages: " << ends(a) << " at the sender, " << ends(b)
		    << " at the receiver";
		std::vector<std::size_t> order;
		for (const happened &m : b.record.messages()) {
			unsigned number = all;
			for (unsigned i = 0; i < all; i++)
				if (in[i]->buffer.get() == m.buffer)
					std::memcpy(&number, in[i]->memory[0].data() + m.offset,
						    sizeof(number));
			order.push_back(number);
		}
		to.reset();
		w.remove(a);
		w.remove(b);
		return order;
	}
	/// How many events of each status there were.
	static std::string ends(const node &n)
	{
		std::map<int, unsigned> of;
		for (const happened &h : n.record.all())
			of[h.status]++;
		std::string text;
		for (const auto &[status, times] : of)
			text += (text.empty() ? "" : ", ") + std::to_string(times) + " with " +
				std::to_string(status);
		return text.empty() ? "no event" : text;
	}
	static std::size_t place(const std::vector<std::size_t> &order, std::size_t number)
	{
		return static_cast<std::size_t>(std::find(order.begin(), order.end(), number) -
						order.begin());
	}
};
COOP_CONFORMANCE(message_priority, automatic);

} // namespace

TEST_P(message_priority, msg_priority_overtakes)
{
	if (t.asks_who)
		GTEST_SKIP() << "the first messages come in any order";
	const std::size_t most = w.home().limits().max_message;
	for (const std::size_t size : {std::size_t{8}, std::min<std::size_t>(most, 40000)}) {
		std::size_t found = backlog;
		for (unsigned tries = 0; tries < 10 && found >= backlog / 2; tries++)
			found = place(arrivals(backlog, 1, size), backlog);
		EXPECT_LT(found, backlog / 2) << size;
	}
}

// However many there are, others are not left waiting for the last of them.
TEST_P(message_priority, msg_priority_is_bounded)
{
	const auto order = arrivals(2, 3 * backlog, 8);
	EXPECT_LT(place(order, 1), 2 * backlog);
}

} // namespace conformance
