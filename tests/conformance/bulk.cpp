// SPDX-License-Identifier: MIT
// bulk.cpp - descriptors, and their effect on memory.
//
// Conformance tests bulk_*. Machines here have no receive buffer unless the test is about one:
// the events of a passive side never depend on messages.
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <sys/time.h>

#include "userland/net/descriptor.hpp"
#include "world.hpp"

namespace conformance
{

namespace
{

using bytes = std::vector<std::byte>;

class bulk : public suite
{
protected:
	static bytes descriptor(const piece &p)
	{
		const auto d = p.buffer->descriptor();
		return {d.begin(), d.end()};
	}
	int status(const node &n, const piece &p)
	{
		EXPECT_TRUE(w.ended(n, p));
		const auto events = n.record.of(*p.buffer);
		return events.empty() ? 1 : events.back().status;
	}
	// b reads `length` bytes that a offers, or writes them.
	void move(node &a, node &b, bool read, std::size_t length, unsigned passive_segments,
		  unsigned active_segments)
	{
		const std::size_t slack = passive_segments + active_segments;
		piece &there = w.memory(length + slack, passive_segments);
		piece &here = w.memory(length + slack, active_segments);
		piece &from = read ? there : here, &to = read ? here : there;
		from.fill(static_cast<unsigned>(length));
		ASSERT_EQ(a.passive(there,
				    read ? queue_type::passive_bulk_send
					 : queue_type::passive_bulk_recv,
				    length),
			  0);
		const bytes d = descriptor(there);
		ASSERT_FALSE(d.empty());
		ASSERT_LE(d.size(), a.of.limits().max_descriptor);
		ASSERT_EQ(
			b.active(here,
				 read ? queue_type::active_bulk_recv : queue_type::active_bulk_send,
				 d, length),
			0);
		ASSERT_EQ(status(b, here), 0) << length;
		ASSERT_EQ(status(a, there), 0) << length;
		EXPECT_EQ(to.copy(0, length), patterned(static_cast<unsigned>(length), length));
		EXPECT_TRUE(to.is(std::byte{0}, length, slack)) << "no byte after it changed";
		for (node *n : {&a, &b}) {
			const auto &p = n == &a ? there : here;
			EXPECT_EQ(n->record.finals(*p.buffer), 1u);
			EXPECT_EQ(n->record.of(*p.buffer)[0].length, length);
			EXPECT_EQ(n->record.of(*p.buffer)[0].offset, 0u);
		}
	}
	const std::size_t sizes[9] = {1, 8, 100, 4095, 4096, 4097, 65536, 100001, 1 << 20};
};
COOP_CONFORMANCE(bulk, both);

} // namespace

TEST_P(bulk, bulk_passive_send)
{
	node &a = w.up(), &b = w.up();
	for (std::size_t n : sizes)
		move(a, b, true, n, 1, 1);
}

TEST_P(bulk, bulk_passive_recv)
{
	node &a = w.up(), &b = w.up();
	for (std::size_t n : sizes)
		move(a, b, false, n, 1, 1);
}

TEST_P(bulk, bulk_unequal_segments)
{
	node &a = w.up(), &b = w.up();
	const unsigned most = std::min(16u, w.home().limits().max_segments);
	const unsigned counts[][2] = {{1, most}, {most, 1}, {3, 7}, {7, 3}, {most, most - 1}};
	for (const auto &c : counts)
		for (std::size_t n : {100, 5000, 70000})
			for (bool read : {true, false})
				move(a, b, read, n, c[0], c[1]);
}

TEST_P(bulk, bulk_trim)
{
	node &a = w.up(), &b = w.up();
	piece &there = w.memory(1000), &here = w.memory(5000);
	there.fill(5);
	ASSERT_EQ(a.passive(there, queue_type::passive_bulk_send, 700), 0);
	ASSERT_EQ(b.active(here, queue_type::active_bulk_recv, descriptor(there)), 0);
	ASSERT_EQ(status(b, here), 0);
	EXPECT_EQ(b.record.of(*here.buffer)[0].length, 700u);
	EXPECT_EQ(here.copy(0, 700), patterned(5, 700));
	EXPECT_TRUE(here.is(std::byte{0}, 700, 4300));
	ASSERT_EQ(status(a, there), 0);
	EXPECT_EQ(a.record.of(*there.buffer)[0].length, 700u);
	// b may write less than there is room for.
	piece &wide = w.memory(1000), &little = w.memory(300);
	little.fill(6);
	ASSERT_EQ(a.passive(wide, queue_type::passive_bulk_recv), 0);
	ASSERT_EQ(b.active(little, queue_type::active_bulk_send, descriptor(wide)), 0);
	ASSERT_EQ(status(a, wide), 0);
	EXPECT_EQ(a.record.of(*wide.buffer)[0].length, 300u);
	EXPECT_EQ(wide.copy(0, 300), patterned(6, 300));
	EXPECT_TRUE(wide.is(std::byte{0}, 300, 700));
	ASSERT_EQ(status(b, little), 0);
}

TEST_P(bulk, bulk_efbig)
{
	node &a = w.up(), &b = w.up();
	piece &source = w.memory(1000), &sink = w.memory(1000), &here = w.memory(999),
	      &large = w.memory(1001);
	ASSERT_EQ(a.passive(source, queue_type::passive_bulk_send), 0);
	ASSERT_EQ(a.passive(sink, queue_type::passive_bulk_recv), 0);
	EXPECT_EQ(b.active(here, queue_type::active_bulk_recv, descriptor(source)), -EFBIG);
	EXPECT_EQ(b.active(large, queue_type::active_bulk_recv, descriptor(source), 999), -EFBIG);
	EXPECT_EQ(b.active(large, queue_type::active_bulk_send, descriptor(sink)), -EFBIG);
	EXPECT_EQ(b.active(here, queue_type::active_bulk_send, descriptor(sink), 1000), -EFBIG);
	EXPECT_EQ(a.passive(here, queue_type::passive_bulk_send, 1000), -EFBIG);
	EXPECT_FALSE(here.buffer->queued());
	// They still work.
	ASSERT_EQ(b.active(large, queue_type::active_bulk_recv, descriptor(source), 1000), 0);
	EXPECT_EQ(status(b, large), 0);
	EXPECT_EQ(status(a, source), 0);
}

TEST_P(bulk, bulk_eperm)
{
	node &a = w.up(), &b = w.up();
	piece &source = w.memory(100), &sink = w.memory(100), &here = w.memory(100);
	ASSERT_EQ(a.passive(source, queue_type::passive_bulk_send), 0);
	ASSERT_EQ(a.passive(sink, queue_type::passive_bulk_recv), 0);
	EXPECT_EQ(b.active(here, queue_type::active_bulk_send, descriptor(source)), -EPERM);
	EXPECT_EQ(b.active(here, queue_type::active_bulk_recv, descriptor(sink)), -EPERM);
	EXPECT_FALSE(here.buffer->queued());
	EXPECT_EQ(a.record.count(), 0u);
}

TEST_P(bulk, bulk_einval)
{
	node &a = w.up(), &b = w.up();
	piece &source = w.memory(100), &here = w.memory(100);
	source.fill(1);
	ASSERT_EQ(a.passive(source, queue_type::passive_bulk_send), 0);
	const bytes good = descriptor(source);
	EXPECT_EQ(b.active(here, queue_type::active_bulk_recv, {}), -EINVAL);
	for (std::size_t i = 0; i < good.size(); i++) {
		for (int bit = 0; bit < 8; bit++) {
			bytes bad = good;
			bad[i] ^= std::byte(1 << bit);
			ASSERT_EQ(b.active(here, queue_type::active_bulk_recv, bad), -EINVAL) << i;
		}
		ASSERT_EQ(b.active(here, queue_type::active_bulk_recv, {good.data(), i}), -EINVAL)
			<< i;
	}
	bytes longer = good;
	longer.push_back(std::byte{0});
	EXPECT_EQ(b.active(here, queue_type::active_bulk_recv, longer), -EINVAL);
	EXPECT_TRUE(here.is(std::byte{0}, 0, 100));
	ASSERT_EQ(b.active(here, queue_type::active_bulk_recv, good), 0);
	EXPECT_EQ(status(b, here), 0);
}

TEST_P(bulk, bulk_stale_desc)
{
	const std::string where = w.next_address();
	node *a = &w.made();
	ASSERT_TRUE(a->up(where));
	node &b = w.up();
	piece &source = w.memory(4096), &sink = w.memory(4096), &here = w.memory(4096),
	      &mine = w.memory(4096);
	source.fill(1);
	mine.fill(2);
	ASSERT_EQ(a->passive(source, queue_type::passive_bulk_send), 0);
	ASSERT_EQ(a->passive(sink, queue_type::passive_bulk_recv), 0);
	const bytes readable = descriptor(source), writable = descriptor(sink);
	// The connection to a machine that ended may break under an operation.
	const auto status = [&](piece &p, queue_type q, const bytes &at, bool restarted) {
		int got = 1;
		for (unsigned again = 0; !again || (restarted && again < 3 && got == -ECONNRESET);
		     again++) {
			const auto before = b.record.of(*p.buffer).size();
			if (b.active(p, q, at) || !w.ended(b, p, static_cast<unsigned>(before + 1)))
				return 1;
			got = b.record.of(*p.buffer).back().status;
		}
		return got;
	};
	const auto stale = [&](const char *why, bool restarted = false) {
		EXPECT_EQ(status(here, queue_type::active_bulk_recv, readable, restarted), -ENOENT)
			<< why;
		EXPECT_EQ(status(mine, queue_type::active_bulk_send, writable, restarted), -ENOENT)
			<< why;
		EXPECT_TRUE(here.is(std::byte{0}, 0, 4096)) << why;
		EXPECT_TRUE(sink.is(std::byte{0}, 0, 4096)) << why;
	};
	ASSERT_TRUE(a->tm.del(*source.buffer));
	ASSERT_TRUE(a->tm.del(*sink.buffer));
	ASSERT_TRUE(w.ended(*a, source));
	ASSERT_TRUE(w.ended(*a, sink));
	stale("after deletion");
	// The same buffers, and perhaps the same slots, in use again.
	ASSERT_EQ(a->passive(sink, queue_type::passive_bulk_recv), 0);
	ASSERT_EQ(a->passive(source, queue_type::passive_bulk_send), 0);
	stale("while the buffers are queued again");
	EXPECT_TRUE(source.buffer->queued());
	EXPECT_TRUE(sink.buffer->queued());
	// The same address, another machine.
	w.remove(*a);
	a = &w.made();
	ASSERT_TRUE(a->up(where));
	ASSERT_EQ(a->passive(source, queue_type::passive_bulk_send), 0);
	ASSERT_EQ(a->passive(sink, queue_type::passive_bulk_recv), 0);
	stale("after a restart", true);
	EXPECT_EQ(status(here, queue_type::active_bulk_recv, descriptor(source), false), 0);
	EXPECT_EQ(here.copy(0, 4096), patterned(1, 4096));
}

TEST_P(bulk, bulk_third_tm)
{
	node &a = w.up(), &b = w.up(), &c = w.up();
	piece &source = w.memory(3000), &note = w.memory(1024), &heard = w.memory(1024),
	      &here = w.memory(3000);
	source.fill(4);
	ASSERT_EQ(a.passive(source, queue_type::passive_bulk_send), 0);
	// a tells b, b tells c, and c, unknown to a, reads.
	const bytes d = descriptor(source);
	std::copy(d.begin(), d.end(), note.memory[0].begin());
	piece &heard_too = w.memory(1024);
	ASSERT_EQ(b.receive(heard), 0);
	ASSERT_EQ(c.receive(heard_too), 0);
	ASSERT_EQ(a.send(note, d.size(), a.to(b)), 0);
	ASSERT_TRUE(w.ended(b, heard));
	ASSERT_EQ(b.send(heard, d.size(), b.to(c)), 0);
	ASSERT_TRUE(w.ended(c, heard_too));
	ASSERT_EQ(c.active(here, queue_type::active_bulk_recv, heard_too.copy(0, d.size())), 0);
	ASSERT_EQ(status(c, here), 0);
	EXPECT_EQ(here.copy(0, 3000), patterned(4, 3000));
	EXPECT_EQ(status(a, source), 0);
}

// A descriptor for one machine is useless to another.
// Readers that use a descriptor at the same time, two of them on one machine: each ends, and has
// all bytes if it ends well.
TEST_P(bulk, bulk_readers_at_once)
{
	node &a = w.up(), &b = w.up(), &c = w.up();
	constexpr std::size_t size = 1 << 20;
	piece &there = w.memory(size);
	node *const by[] = {&b, &c, &c};
	piece *const into[] = {&w.memory(size), &w.memory(size), &w.memory(size)};
	for (unsigned i = 1; i <= scale(8, 500); i++) {
		there.fill(i);
		ASSERT_EQ(a.passive(there, queue_type::passive_bulk_send), 0);
		const bytes d = descriptor(there);
		for (unsigned k = 0; k < 3; k++)
			ASSERT_EQ(by[k]->active(*into[k], queue_type::active_bulk_recv, d), 0);
		unsigned well = 0;
		for (unsigned k = 0; k < 3; k++) {
			if (status(*by[k], *into[k]))
				continue;
			well++;
			EXPECT_EQ(into[k]->copy(0, size), patterned(i, size));
		}
		EXPECT_GE(well, 1u);
		EXPECT_EQ(status(a, there), 0);
		for (node *n : {&a, &b, &c})
			n->record.clear();
		ASSERT_FALSE(HasFailure());
	}
}

TEST_P(bulk, bulk_for_one)
{
	node &a = w.up(), &b = w.up(), &c = w.up();
	const endpoint_ptr to = a.to(c);
	for (const queue_type q : {queue_type::passive_bulk_send, queue_type::passive_bulk_recv}) {
		const bool read = q == queue_type::passive_bulk_send;
		const queue_type active =
			read ? queue_type::active_bulk_recv : queue_type::active_bulk_send;
		piece &there = w.memory(3000), &thief = w.memory(3000), &here = w.memory(3000);
		if (read) {
			there.fill(1);
		} else {
			thief.fill(2);
			here.fill(3);
		}
		operation o;
		o.queue = q;
		o.to = to.get();
		o.handler = &a.record;
		ASSERT_EQ(a.tm.add(*there.buffer, o), 0);
		const bytes d = descriptor(there);
		ASSERT_EQ(b.active(thief, active, d), 0);
		EXPECT_EQ(status(b, thief), t.for_another);
		if (read) {
			EXPECT_TRUE(thief.is(std::byte{0}, 0, 3000));
		} else {
			EXPECT_TRUE(there.is(std::byte{0}, 0, 3000));
		}
		EXPECT_TRUE(there.buffer->queued());
		ASSERT_EQ(c.active(here, active, d), 0);
		EXPECT_EQ(status(c, here), 0);
		EXPECT_EQ(status(a, there), 0);
		EXPECT_EQ((read ? here : there).copy(0, 3000), patterned(read ? 1 : 3, 3000));
	}
}

// A peer with descriptors cannot forge another peer's: neither of neighbouring operations, nor
// the next one of a buffer that it used before.
TEST_P(bulk, bulk_forged)
{
	constexpr unsigned shown = 6, slots = 16;
	node &a = w.up(), &b = w.up();
	piece &secret = w.memory(4096), &target = w.memory(4096), &here = w.memory(4096);
	secret.fill(1);
	here.fill(2);
	const auto read = [](const bytes &text) {
		core::descriptor d;
		EXPECT_EQ(core::decode(text, d), 0);
		return d;
	};
	std::vector<bytes> texts;
	for (unsigned i = 0; i < shown; i++) {
		piece &p = w.memory(4096);
		ASSERT_EQ(a.passive(p, queue_type::passive_bulk_send), 0);
		texts.push_back(descriptor(p));
	}
	ASSERT_EQ(a.passive(secret, queue_type::passive_bulk_send), 0);
	ASSERT_EQ(a.passive(target, queue_type::passive_bulk_recv), 0);
	const core::descriptor first = read(texts[0]), last = read(texts[shown - 1]);
	const std::uint64_t step = last.key - read(texts[shown - 2]).key;
	unsigned tries = 0;
	const auto forge = [&](spi::token token, std::uint64_t key, bool write) {
		core::descriptor d = first;
		d.token = token;
		d.key = key;
		d.writable = write;
		std::array<std::byte, core::descriptor::fixed + 256> text;
		const std::size_t size = core::encode(d, text.data());
		ASSERT_EQ(b.active(here,
				   write ? queue_type::active_bulk_send
					 : queue_type::active_bulk_recv,
				   {text.data(), size}),
			  0);
		ASSERT_TRUE(w.ended(b, here, ++tries));
		EXPECT_EQ(b.record.of(*here.buffer).back().status, -ENOENT)
			<< "operation " << std::hex << token << ", by " << key;
	};
	for (unsigned slot = 0; slot < slots; slot++) {
		const spi::token token = (first.token & ~spi::token{0xfffff}) | slot;
		const bool known = std::any_of(texts.begin(), texts.end(), [&](const bytes &t) {
			return read(t).token == token;
		});
		if (known)
			continue;
		for (const std::uint64_t key :
		     {first.key, first.key ^ first.token ^ token, last.key + step, last.key + 1})
			for (const bool write : {false, true})
				forge(token, key, write);
	}
	ASSERT_TRUE(secret.buffer->queued());
	ASSERT_TRUE(target.buffer->queued());
	EXPECT_EQ(here.copy(0, 4096), patterned(2, 4096));
	EXPECT_TRUE(target.is(std::byte{0}, 0, 4096));
	// A descriptor works once, and does not reveal the next one in its place.
	ASSERT_EQ(b.active(here, queue_type::active_bulk_recv, texts[0]), 0);
	ASSERT_TRUE(w.ended(b, here, ++tries));
	EXPECT_EQ(b.record.of(*here.buffer).back().status, 0);
	piece &next = w.memory(4096);
	ASSERT_TRUE(w.until([&] { return a.tm.queued(queue_type::passive_bulk_send) == shown; }));
	ASSERT_EQ(a.passive(next, queue_type::passive_bulk_send), 0);
	forge(first.token + (1u << 20), first.key, false);
	forge(read(descriptor(next)).token, first.key, false);
	EXPECT_TRUE(next.buffer->queued());
}

TEST_P(bulk, bulk_no_recv_buffer)
{
	node &a = w.up(), &b = w.up();
	ASSERT_EQ(a.tm.queued(queue_type::msg_recv), 0u);
	ASSERT_EQ(b.tm.queued(queue_type::msg_recv), 0u);
	move(a, b, true, 10000, 1, 1);
	move(a, b, false, 10000, 1, 1);
	// If there is a receive buffer, bulk leaves it alone.
	piece &in = w.memory(64);
	ASSERT_EQ(a.receive(in), 0);
	move(a, b, true, 10000, 1, 1);
	move(a, b, false, 10000, 1, 1);
	EXPECT_TRUE(in.buffer->queued());
	EXPECT_EQ(a.record.finals(*in.buffer), 0u);
}

// For instance a profiler's: an interrupted system call has not failed.
TEST_P(bulk, bulk_under_signals)
{
	struct ticking {
		ticking()
		{
			struct sigaction a {
			};
			a.sa_handler = [](int) {};
			a.sa_flags = SA_RESTART;
			::sigaction(SIGALRM, &a, nullptr);
			set(50);
		}
		~ticking()
		{
			set(0);
			::signal(SIGALRM, SIG_IGN);
		}
		static void set(suseconds_t us)
		{
			const itimerval every{{0, us}, {0, us}};
			::setitimer(ITIMER_REAL, &every, nullptr);
		}
	};
	node &a = w.up(), &b = w.up();
	const ticking signals;
	for (unsigned i = 0; i < 500; i++)
		move(a, b, i % 2, 8192, 1, 1);
}

} // namespace conformance
