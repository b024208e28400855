// SPDX-License-Identifier: MIT
// endpoints.cpp - end points: one object per address, counted, found without a search.
//
// Conformance tests ep_*.
#include <cerrno>
#include <malloc.h>
#include <set>

#include "world.hpp"

namespace conformance
{

namespace
{

class endpoints : public suite
{
};
class endpoints_once : public suite
{
};
COOP_CONFORMANCE(endpoints, both);
COOP_CONFORMANCE(endpoints_once, automatic);

} // namespace

TEST_P(endpoints, ep_same_object)
{
	node &a = w.up(), &b = w.up();
	const endpoint_ptr one = a.to(b), other = a.to(b), self = a.to(a);
	EXPECT_EQ(one, other);
	EXPECT_NE(one, self);
	EXPECT_EQ(one->address(), b.tm.address());
	piece &in = w.memory(64), &out = w.memory(64);
	ASSERT_EQ(a.receive(in), 0);
	ASSERT_EQ(b.send(out, 8, b.to(a)), 0);
	ASSERT_TRUE(w.ended(a, in));
	EXPECT_EQ(a.record.messages()[0].sender, one) << "a sender is the end point of its address";
}

TEST_P(endpoints_once, ep_wildcard_rejected)
{
	node &a = w.up();
	endpoint_ptr e;
	EXPECT_EQ(a.tm.make_endpoint(t.any, e), -EINVAL);
	EXPECT_EQ(a.tm.make_endpoint("nonsense", e), -EINVAL);
	EXPECT_EQ(a.tm.make_endpoint(address{}, e), -EINVAL);
	EXPECT_FALSE(e);
	node &b = w.made();
	EXPECT_EQ(b.tm.make_endpoint(a.text(), e), -EBADFD);
}

TEST_P(endpoints, ep_sender_identity)
{
	node &a = w.up(), &b = w.up(), &c = w.up();
	piece &in = w.memory(64), &in2 = w.memory(64), &out = w.memory(64), &out2 = w.memory(64);
	ASSERT_EQ(b.receive(in), 0);
	ASSERT_EQ(a.receive(in2), 0);
	ASSERT_EQ(a.send(out, 16, a.to(b)), 0);
	ASSERT_TRUE(w.ended(b, in));
	const endpoint_ptr who = b.record.messages()[0].sender;
	EXPECT_EQ(who->text(), a.text());
	// The answer goes only to the machine that asked.
	ASSERT_EQ(b.send(out2, 16, who), 0);
	ASSERT_TRUE(w.ended(a, in2));
	EXPECT_EQ(a.record.messages()[0].sender->text(), b.text());
	EXPECT_EQ(c.record.count(), 0u);
	// An end point belongs to one machine.
	EXPECT_EQ(c.send(w.memory(64), 16, who), -EINVAL);
}

TEST_P(endpoints, ep_release_at_zero)
{
	node &a = w.up(), &b = w.up();
	EXPECT_EQ(a.tm.endpoints(), 0u);
	endpoint_ptr one = a.to(b), copy = one;
	EXPECT_EQ(a.tm.endpoints(), 1u);
	one.reset();
	EXPECT_EQ(a.tm.endpoints(), 1u);
	copy.reset();
	EXPECT_EQ(a.tm.endpoints(), 0u);
	// An operation keeps its end point alive without our reference.
	piece &in = w.memory(64), &out = w.memory(64);
	ASSERT_EQ(b.receive(in), 0);
	ASSERT_EQ(a.send(out, 16, a.to(b)), 0);
	ASSERT_TRUE(w.ended(a, out));
	ASSERT_TRUE(w.ended(b, in));
	EXPECT_TRUE(w.until([&] { return a.tm.endpoints() == 0; }));
	EXPECT_EQ(b.tm.endpoints(), 1u) << "the record holds the sender";
	b.record.clear();
	EXPECT_TRUE(w.until([&] { return b.tm.endpoints() == 0; }));
	// An end point that outlives its machine is still an address.
	endpoint_ptr last = a.to(b);
	const std::string text = b.text();
	w.remove(a);
	EXPECT_EQ(last->text(), text);
}

TEST_P(endpoints_once, ep_many)
{
	node &a = w.up(), &b = w.up();
	address where;
	ASSERT_EQ(parse(w.next_address(), where), 0);
	std::vector<address> all;
	for (unsigned i = 0; i < t.many; i++) {
		address each = where;
		if (where.kind == address::form::lnet) {
			each.portal = static_cast<std::uint8_t>(i / address::machines);
			each.id = i % address::machines;
		} else {
			each.id = 1 + i;
		}
		all.push_back(each);
	}
	std::vector<endpoint_ptr> kept(t.many);
	const std::size_t before = ::mallinfo2().uordblks;
	for (unsigned i = 0; i < t.many; i++)
		ASSERT_EQ(a.tm.make_endpoint(all[i], kept[i]), 0);
	RecordProperty("bytes_per_peer",
		       std::to_string((::mallinfo2().uordblks - before) / t.many));
	EXPECT_EQ(a.tm.endpoints(), t.many);
	std::set<const endpoint *> distinct;
	for (unsigned i = 0; i < t.many; i++) {
		endpoint_ptr again;
		ASSERT_EQ(a.tm.make_endpoint(all[i], again), 0);
		ASSERT_EQ(again, kept[i]);
		ASSERT_EQ(again->address(), all[i]);
		distinct.insert(again.get());
	}
	EXPECT_EQ(distinct.size(), t.many);
	// Among all of them the message reaches the right one.
	piece &in = w.memory(64), &out = w.memory(64);
	ASSERT_EQ(b.receive(in), 0);
	ASSERT_EQ(a.send(out, 16, a.to(b)), 0);
	EXPECT_TRUE(w.ended(b, in));
	kept.clear();
	EXPECT_TRUE(w.until([&] { return a.tm.endpoints() == 0; }));
}

} // namespace conformance
