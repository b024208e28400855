// SPDX-License-Identifier: MIT
// messages.cpp - messages arrive as they were sent, at the right place.
//
// Conformance tests msg_*.
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "world.hpp"

namespace conformance
{

namespace
{

class messages : public suite
{
protected:
	// Sends one message from a to b in its own buffers, waits and compares.
	void pass(node &a, node &b, const endpoint_ptr &to, std::size_t length, unsigned seed,
		  unsigned out_segments = 1, unsigned in_segments = 1)
	{
		const std::size_t room = length ? length : 1;
		piece &out = w.memory(room + out_segments, out_segments);
		piece &in = w.memory(room + in_segments, in_segments);
		out.fill(seed);
		ASSERT_EQ(b.receive(in), 0);
		ASSERT_EQ(a.send(out, length, to), 0);
		ASSERT_TRUE(w.ended(b, in)) << length;
		ASSERT_TRUE(w.ended(a, out)) << length;
		const happened h = b.record.of(*in.buffer)[0];
		EXPECT_EQ(h.status, 0);
		EXPECT_EQ(h.length, length);
		EXPECT_EQ(h.offset, 0u);
		EXPECT_FALSE(h.queued);
		EXPECT_TRUE(h.sender);
		EXPECT_EQ(in.copy(0, length), patterned(seed, length)) << length;
		EXPECT_EQ(a.record.of(*out.buffer)[0].status, 0);
		a.record.clear();
		b.record.clear();
	}
};
class messages_once : public messages
{
};
COOP_CONFORMANCE(messages, both);
COOP_CONFORMANCE(messages_once, automatic);

} // namespace

TEST_P(messages, msg_sizes)
{
	node &a = w.up(), &b = w.up();
	const endpoint_ptr to = a.to(b);
	const std::size_t most = w.home().limits().max_message;
	unsigned seed = 1;
	for (std::size_t n : {0,    1,    2,    7,     8,     63,    64,    65,    255,  256,
			      511,  512,  767,  768,   769,   1023,  1024,  1500,  2047, 4095,
			      4096, 4097, 8192, 12288, 40000, 65535, 65536, 100000})
		if (n <= most)
			pass(a, b, to, n, seed++);
	pass(a, b, to, most - 1, seed++);
	pass(a, b, to, most, seed++);
}

TEST_P(messages, msg_max_plus_one)
{
	node &a = w.up(), &b = w.up();
	const std::size_t most = w.home().limits().max_message;
	piece &out = w.memory(most + 1);
	EXPECT_EQ(a.send(out, most + 1, a.to(b)), -EMSGSIZE);
	EXPECT_EQ(a.send(out, most + 2, a.to(b)), -EFBIG);
	EXPECT_FALSE(out.buffer->queued());
	EXPECT_EQ(a.record.count(), 0u);
	pass(a, b, a.to(b), most, 1);
}

TEST_P(messages, msg_length_only)
{
	node &a = w.up(), &b = w.up();
	piece &out = w.memory(4096), &in = w.memory(4096);
	out.fill(3);
	ASSERT_EQ(b.receive(in), 0);
	ASSERT_EQ(a.send(out, 100, a.to(b)), 0);
	ASSERT_TRUE(w.ended(b, in));
	EXPECT_EQ(b.record.of(*in.buffer)[0].length, 100u);
	EXPECT_EQ(in.copy(0, 100), patterned(3, 100));
	EXPECT_TRUE(in.is(std::byte{0}, 100, 3996)) << "no byte after the message changed";
	ASSERT_TRUE(w.ended(a, out));
	EXPECT_EQ(a.record.of(*out.buffer)[0].length, 100u);
}

TEST_P(messages, msg_magic_payload)
{
	node &a = w.up(), &b = w.up();
	const endpoint_ptr to = a.to(b);
	piece &shown = w.memory(64);
	ASSERT_EQ(a.passive(shown, queue_type::passive_bulk_send), 0);
	const auto d = shown.buffer->descriptor();
	std::vector<std::vector<std::byte>> payloads;
	for (int value : {0x00, 0xff, 0x55, 0xaa, 0x42})
		for (std::size_t n : {4, 8, 16, 64, 512})
			payloads.push_back(std::vector<std::byte>(n, std::byte(value)));
	payloads.push_back({d.begin(), d.end()});
	for (const char *text :
	     {"\xde\xad\xbe\xef", "\0\0\0\1", "NACK", "\xff\xff\xff\xff\0\0\0\0"})
		payloads.push_back({reinterpret_cast<const std::byte *>(text),
				    reinterpret_cast<const std::byte *>(text) + 4});
	for (const auto &bytes : payloads) {
		piece &out = w.memory(bytes.size()), &in = w.memory(bytes.size());
		std::memcpy(out.memory[0].data(), bytes.data(), bytes.size());
		ASSERT_EQ(b.receive(in), 0);
		ASSERT_EQ(a.send(out, bytes.size(), to), 0);
		ASSERT_TRUE(w.ended(b, in));
		EXPECT_EQ(b.record.of(*in.buffer)[0].length, bytes.size());
		EXPECT_EQ(in.copy(0, bytes.size()), bytes);
	}
	EXPECT_EQ(b.record.count(), payloads.size());
}

TEST_P(messages, msg_no_receiver)
{
	node &a = w.up(), &b = w.up();
	const endpoint_ptr to = a.to(b);
	piece &lost = w.memory(64);
	lost.fill(1);
	ASSERT_EQ(a.send(lost, 64, to), 0);
	ASSERT_TRUE(w.ended(a, lost));
	EXPECT_EQ(a.record.of(*lost.buffer)[0].status, t.no_buffer);
	EXPECT_EQ(b.record.count(), 0u);
	// The machine still works: the next message arrives, or the first one, if its sender got
	// no report of a loss.
	piece &in = w.memory(64), &out = w.memory(64);
	out.fill(2);
	ASSERT_EQ(b.receive(in), 0);
	ASSERT_EQ(a.send(out, 64, to), 0);
	ASSERT_TRUE(w.ended(a, out));
	EXPECT_EQ(a.record.of(*out.buffer)[0].status, 0);
	ASSERT_TRUE(w.ended(b, in));
	ASSERT_EQ(b.record.messages().size(), 1u);
	const happened h = b.record.messages()[0];
	EXPECT_EQ(h.status, 0);
	EXPECT_EQ(h.length, 64u);
	const auto got = in.copy(0, 64);
	EXPECT_TRUE(got == patterned(2, 64) || (!t.no_buffer && got == patterned(1, 64)));
}

// A message sent at the moment when an idle connection ends goes by the next connection.
TEST_P(messages, msg_meets_an_idle_end)
{
	if (t.brief.empty())
		GTEST_SKIP() << t.label << " has no connections that end";
	domain &d = w.open(t.brief);
	node &a = w.up(&d), &b = w.up(&d);
	const auto open = [] {
		const auto all = std::filesystem::directory_iterator("/proc/self/fd");
		return std::distance(begin(all), end(all));
	};
	const auto before = open();
	const endpoint_ptr there = a.to(b), back = b.to(a);
	pass(a, b, there, 64, 1);
	if (t.descriptors) {
		// On a busy machine it may have ended already.
		bool seen = open() > before;
		for (const auto end = clock::now() + patience; !seen && clock::now() < end;) {
			pass(a, b, there, 64, 1);
			seen = open() > before;
		}
		EXPECT_TRUE(seen);
		EXPECT_TRUE(w.until([&] { return open() <= before; }));
	}
	for (unsigned round = 1; round < scale(20, 400); round++) {
		pass(a, b, there, 64, round);
		pass(b, a, back, round % 4 ? 64 : 20000, round);
		if (HasFatalFailure())
			return;
		const auto pause = clock::now() + t.idle * (80 + round % 40) / 100;
		ASSERT_TRUE(w.until([&] { return clock::now() >= pause; }));
	}
}

TEST_P(messages, msg_no_tm)
{
	node &a = w.up(), &b = w.up();
	endpoint_ptr nobody;
	ASSERT_EQ(a.tm.make_endpoint(w.next_address(), nobody), 0);
	piece &out = w.memory(64);
	for (unsigned round = 1; round <= 2; round++) {
		ASSERT_EQ(a.send(out, 64, nobody), 0);
		ASSERT_TRUE(w.ended(a, out, round));
		EXPECT_EQ(a.record.of(*out.buffer)[round - 1].status, t.nobody);
	}
	a.record.clear();
	pass(a, b, a.to(b), 64, 1);
}

// At a machine's address another service accepts connections and does not answer.
TEST_P(messages_once, msg_mute_service)
{
	if (!t.mute)
		GTEST_SKIP() << t.label << " has no ports that others may hold";
	const std::string where = w.next_address();
	net::address there;
	ASSERT_EQ(parse(where, there), 0);
	const std::shared_ptr<void> service = t.mute(there);
	node &a = w.up(), &b = w.up();
	endpoint_ptr nobody;
	ASSERT_EQ(a.tm.make_endpoint(where, nobody), 0);
	std::vector<piece *> out;
	for (int i = 0; i < 3; i++) {
		out.push_back(&w.memory(64));
		ASSERT_EQ(a.send(*out.back(), 64, nobody), 0);
	}
	// It does not disturb others.
	piece &in = w.memory(64), &other = w.memory(64);
	ASSERT_EQ(b.receive(in), 0);
	ASSERT_EQ(a.send(other, 64, a.to(b)), 0);
	ASSERT_TRUE(w.ended(b, in) && w.ended(a, other));
	EXPECT_EQ(a.record.of(*other.buffer)[0].status, 0);
	for (piece *p : out) {
		ASSERT_TRUE(w.ended(a, *p));
		EXPECT_EQ(a.record.of(*p->buffer)[0].status, t.muteness);
	}
}

TEST_P(messages, msg_retain_max_msgs)
{
	node &a = w.up(), &b = w.up();
	const endpoint_ptr to = a.to(b);
	piece &in = w.memory(4096), &next = w.memory(4096), &out = w.memory(64);
	ASSERT_EQ(b.receive(in, 64, 0), -EINVAL);
	operation o;
	o.handler = &b.record;
	o.max_receive_msgs = 1;
	ASSERT_EQ(b.tm.add(*in.buffer, o), -EINVAL) << "min_receive_size is 0";
	ASSERT_EQ(b.receive(in, 64, 3), 0);
	ASSERT_EQ(b.receive(next, 64, 3), 0);
	for (unsigned i = 1; i <= 4; i++) {
		ASSERT_EQ(a.send(out, 10, to), 0);
		ASSERT_TRUE(w.ended(a, out, i));
	}
	ASSERT_TRUE(w.until([&] { return b.record.count() == 4; }));
	const auto events = b.record.all();
	for (unsigned i = 0; i < 4; i++) {
		EXPECT_EQ(events[i].buffer, i < 3 ? in.buffer.get() : next.buffer.get());
		EXPECT_EQ(events[i].queued, i != 2) << i;
		EXPECT_EQ(events[i].status, 0);
	}
	EXPECT_FALSE(in.buffer->queued());
	EXPECT_TRUE(next.buffer->queued());
	EXPECT_EQ(b.receive(next), -EBUSY);
}

TEST_P(messages, msg_retain_space)
{
	node &a = w.up(), &b = w.up();
	const endpoint_ptr to = a.to(b);
	piece &in = w.memory(1000), &next = w.memory(1000), &out = w.memory(1000);
	ASSERT_EQ(b.receive(in, 300, 100), 0);
	ASSERT_EQ(b.receive(next, 300, 100), 0);
	// 1000, 750, 500 are enough room for another message, 250 is not.
	for (unsigned i = 1; i <= 3; i++) {
		ASSERT_EQ(a.send(out, 250, to), 0);
		ASSERT_TRUE(w.ended(a, out, i));
	}
	ASSERT_TRUE(w.until([&] { return b.record.count() == 3; }));
	const auto events = b.record.of(*in.buffer, false);
	ASSERT_EQ(events.size(), 3u);
	EXPECT_TRUE(events[0].queued);
	EXPECT_TRUE(events[1].queued);
	EXPECT_FALSE(events[2].queued);
	// Exactly the minimum left: still queued.
	ASSERT_EQ(a.send(out, 700, to), 0);
	ASSERT_TRUE(w.until([&] { return b.record.count() == 4; }));
	EXPECT_TRUE(b.record.of(*next.buffer, false)[0].queued);
	ASSERT_TRUE(w.ended(a, out, 4));
	ASSERT_EQ(a.send(out, 1, to), 0);
	ASSERT_TRUE(w.ended(b, next));
}

TEST_P(messages, msg_offset_correct)
{
	node &a = w.up(), &b = w.up();
	const endpoint_ptr to = a.to(b);
	const std::size_t sizes[] = {1, 100, 33, 512, 7, 64, 255};
	constexpr unsigned n = std::size(sizes);
	piece &in = w.memory(4096, 3);
	ASSERT_EQ(b.receive(in, 512, n), 0);
	for (unsigned i = 0; i < n; i++) {
		piece &out = w.memory(512);
		out.fill(i);
		ASSERT_EQ(a.send(out, sizes[i], to), 0);
		ASSERT_TRUE(w.ended(a, out));
		ASSERT_TRUE(w.until([&] { return b.record.count() == i + 1; }));
	}
	std::size_t end = 0;
	const auto events = b.record.of(*in.buffer, false);
	ASSERT_EQ(events.size(), n);
	for (unsigned i = 0; i < n; i++) {
		EXPECT_GE(events[i].offset, end) << "messages do not overlap";
		EXPECT_EQ(events[i].length, sizes[i]);
		EXPECT_EQ(in.copy(events[i].offset, sizes[i]), patterned(i, sizes[i]));
		end = events[i].offset + events[i].length;
	}
	EXPECT_EQ(events[0].offset, 0u);
}

TEST_P(messages, msg_multi_segment)
{
	node &a = w.up(), &b = w.up();
	const endpoint_ptr to = a.to(b);
	const unsigned most = std::min(5u, w.home().limits().max_segments);
	for (std::size_t n : {10, 100, 1000, 4000})
		for (unsigned out = 1; out <= most; out += 2)
			for (unsigned in = 1; in <= most; in++)
				pass(a, b, to, n, in, out, in);
}

TEST_P(messages, msg_self)
{
	node &a = w.up();
	const endpoint_ptr me = a.to(a);
	for (std::size_t n : {1, 64, 1000}) {
		piece &out = w.memory(n), &in = w.memory(n);
		out.fill(9);
		ASSERT_EQ(a.receive(in), 0);
		ASSERT_EQ(a.send(out, n, me), 0);
		ASSERT_TRUE(w.ended(a, in));
		ASSERT_TRUE(w.ended(a, out));
		EXPECT_EQ(in.copy(0, n), patterned(9, n));
		EXPECT_EQ(a.record.of(*in.buffer)[0].sender, me);
	}
}

// A message to oneself leaves a peer's message alone that has arrived in part.
TEST_P(messages, msg_self_beside_another)
{
	node &a = w.up(), &b = w.up();
	const std::size_t most = w.home().limits().max_message;
	piece &in = w.memory(most + 64), &out = w.memory(most), &own = w.memory(64);
	out.fill(1);
	own.fill(2);
	ASSERT_NE(pattern(1, 0), std::byte{0});
	const endpoint_ptr there = a.to(b), me = b.to(b);
	for (unsigned round = 1; round <= 3; round++) {
		b.record.clear();
		in.memory[0][0] = std::byte{0};
		ASSERT_EQ(b.receive(in, 64, 2), 0);
		ASSERT_EQ(a.send(out, most, there), 0);
		ASSERT_TRUE(w.until([&] {
			return b.record.count() != 0 ||
			       std::atomic_ref(in.memory[0][0]).load() != std::byte{0};
		}));
		ASSERT_EQ(b.send(own, 64, me), 0);
		ASSERT_TRUE(w.ended(a, out, round));
		EXPECT_EQ(a.record.of(*out.buffer)[round - 1].status, 0);
		ASSERT_TRUE(w.ended(b, own));
		EXPECT_EQ(b.record.of(*own.buffer)[0].status, 0);
		ASSERT_TRUE(w.ended(b, in));
		const auto got = b.record.messages();
		ASSERT_EQ(got.size(), 2u);
		for (const happened &h : got) {
			EXPECT_EQ(h.status, 0);
			EXPECT_EQ(h.sender, h.length == most ? b.to(a) : me);
			EXPECT_EQ(in.copy(h.offset, h.length),
				  patterned(h.length == most ? 1 : 2, h.length));
		}
	}
}

// Messages to oneself count as others do when the next one is too long for what is left.
TEST_P(messages, msg_self_then_longer)
{
	node &a = w.up(), &b = w.up();
	piece &first = w.memory(100), &second = w.memory(100), &out = w.memory(80),
	      &own = w.memory(50);
	ASSERT_EQ(b.receive(first, 10, 5), 0);
	ASSERT_EQ(b.receive(second, 10, 5), 0);
	ASSERT_EQ(b.send(own, 50, b.to(b)), 0);
	ASSERT_TRUE(w.ended(b, own));
	EXPECT_EQ(b.record.of(*own.buffer)[0].status, 0);
	ASSERT_EQ(a.send(out, 80, a.to(b)), 0);
	ASSERT_TRUE(w.ended(a, out));
	EXPECT_EQ(a.record.of(*out.buffer)[0].status, 0);
	ASSERT_TRUE(w.until([&] { return b.record.messages().size() == 2; }));
}

// They arrive in the order in which they were sent, however late there are buffers for them.
TEST_P(messages, msg_self_in_order)
{
	node &a = w.up();
	const endpoint_ptr me = a.to(a);
	constexpr unsigned n = 40;
	piece &early = w.memory(10), &late = w.memory(n * n);
	ASSERT_EQ(a.receive(early, 1, 4), 0);
	std::vector<piece *> out;
	for (unsigned i = 1; i <= n; i++) {
		out.push_back(&w.memory(i));
		ASSERT_EQ(a.send(*out.back(), i, me), 0);
		if (i == n / 2) {
			ASSERT_EQ(a.receive(late, 1, n), 0);
		}
	}
	for (piece *p : out) {
		ASSERT_TRUE(w.ended(a, *p));
		EXPECT_EQ(a.record.of(*p->buffer)[0].status, 0);
	}
	ASSERT_TRUE(w.until([&] { return a.record.messages().size() == n; }));
	const auto got = a.record.messages();
	for (unsigned i = 0; i < n; i++)
		EXPECT_EQ(got[i].length, i + 1);
}

} // namespace conformance
