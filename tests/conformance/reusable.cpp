// SPDX-License-Identifier: MIT
// reusable.cpp - descriptors for any number of uses, each of a range.
//
// Conformance tests bulk_reusable_*. What one use of a descriptor does to memory is in bulk.cpp.
#include <algorithm>
#include <array>
#include <cerrno>

#include "userland/net/descriptor.hpp"
#include "world.hpp"

namespace conformance
{

namespace
{

using bytes = std::vector<std::byte>;

struct range {
	std::size_t offset, length;
};

struct use_of {
	node *by;
	piece *memory;
	range r;
};

class reusable : public suite
{
protected:
	static constexpr std::size_t size = 100001;
	// At page boundaries and beside them, of no page and of many, with the first and last byte.
	static constexpr range ranges[] = {
		{0, 1},       {0, size},     {4096, 4096},   {4095, 2},      {1, 4096},
		{4097, 8190}, {99999, 2},    {size - 1, 1},  {8192, 30000},  {12345, 54321},
		{4096, 1},    {8191, 65536}, {65536, 34465}, {50001, 50000}, {40960, 4095}};

	bytes offer(node &a, piece &p, queue_type q, endpoint *to = nullptr,
		    std::chrono::milliseconds limit = 0ms, std::size_t length = 0)
	{
		operation o;
		o.queue = q;
		o.to = to;
		o.length = length;
		o.reusable = true;
		o.handler = &a.record;
		const auto add = [&](time_point deadline) {
			o.deadline = deadline;
			return a.tm.add(*p.buffer, o);
		};
		EXPECT_EQ(limit == 0ms ? add(never) : node::within(limit, add), 0);
		const auto d = p.buffer->descriptor();
		EXPECT_FALSE(d.empty());
		return {d.begin(), d.end()};
	}
	static int use(node &b, piece &p, queue_type q, const bytes &d, std::size_t offset,
		       std::size_t length)
	{
		operation o;
		o.queue = q;
		o.descriptor = d;
		o.offset = offset;
		o.length = length;
		o.handler = &b.record;
		return b.tm.add(*p.buffer, o);
	}
	static int read(node &b, piece &p, const bytes &d, std::size_t offset, std::size_t length)
	{
		return use(b, p, queue_type::active_bulk_recv, d, offset, length);
	}
	static int write(node &b, piece &p, const bytes &d, std::size_t offset, std::size_t length)
	{
		return use(b, p, queue_type::active_bulk_send, d, offset, length);
	}
	int status(const node &n, const piece &p, std::size_t times = 1)
	{
		EXPECT_TRUE(w.ended(n, p, times));
		const auto events = n.record.of(*p.buffer);
		return events.empty() ? 1 : events.back().status;
	}
	static bytes part(unsigned seed, std::size_t offset, std::size_t length)
	{
		const bytes all = patterned(seed, size);
		return {all.begin() + static_cast<std::ptrdiff_t>(offset),
			all.begin() + static_cast<std::ptrdiff_t>(offset + length)};
	}
	// The owner withdraws it and gets its only event.
	void withdraw(node &a, piece &p)
	{
		EXPECT_EQ(a.record.of(*p.buffer, false).size(), 0u) << "no event of uses";
		EXPECT_TRUE(p.buffer->queued());
		EXPECT_TRUE(a.tm.del(*p.buffer));
		EXPECT_EQ(status(a, p), -ECANCELED);
		EXPECT_EQ(a.record.finals(*p.buffer), 1u);
	}
	// The same bytes with another size or other flags.
	static bytes forged(const bytes &d, const std::function<void(core::descriptor &)> &change)
	{
		core::descriptor x;
		EXPECT_EQ(core::decode(d, x), 0);
		change(x);
		std::array<std::byte, core::descriptor::fixed + 256> text;
		const std::size_t n = core::encode(x, text.data());
		return {text.begin(), text.begin() + static_cast<std::ptrdiff_t>(n)};
	}
};
COOP_CONFORMANCE(reusable, both);

class reusable_often : public reusable
{
};
COOP_CONFORMANCE(reusable_often, synchronous);

} // namespace

// Two machines read all ranges at the same time, and again.
TEST_P(reusable, bulk_reusable_reads)
{
	node &a = w.up(), &b = w.up(), &c = w.up();
	piece &there = w.memory(size, 3);
	there.fill(1);
	const bytes d = offer(a, there, queue_type::passive_bulk_send);
	for (unsigned turn = 0; turn < 2; turn++) {
		std::vector<use_of> all;
		for (const range &r : ranges) {
			for (node *n : {&b, &c}) {
				piece &here = w.memory(r.length + 10, n == &b ? 1 : 2);
				ASSERT_EQ(read(*n, here, d, r.offset, r.length), 0) << r.offset;
				all.push_back({n, &here, r});
			}
		}
		for (const auto &[n, here, r] : all) {
			ASSERT_EQ(status(*n, *here), 0) << r.offset << '+' << r.length;
			EXPECT_EQ(n->record.of(*here->buffer)[0].length, r.length);
			EXPECT_EQ(here->copy(0, r.length), part(1, r.offset, r.length));
			EXPECT_TRUE(here->is(std::byte{0}, r.length, 10));
		}
	}
	// Length 0: all the rest.
	piece &rest = w.memory(1000);
	ASSERT_EQ(read(b, rest, d, size - 700, 0), 0);
	EXPECT_EQ(status(b, rest), 0);
	EXPECT_EQ(rest.copy(0, 700), part(1, size - 700, 700));
	EXPECT_TRUE(rest.is(std::byte{0}, 700, 300));
	withdraw(a, there);
}

// Two machines write parts that do not overlap; the bytes between keep their value.
TEST_P(reusable, bulk_reusable_writes)
{
	node &a = w.up(), &b = w.up(), &c = w.up();
	piece &there = w.memory(size, 2);
	const bytes d = offer(a, there, queue_type::passive_bulk_recv);
	const std::size_t lengths[] = {1, 100, 4096, 4097, 8191, 20000};
	for (unsigned turn = 1; turn <= 2; turn++) {
		std::vector<use_of> all;
		std::size_t at = 3;
		for (const std::size_t n : lengths) {
			for (node *from : {&b, &c}) {
				piece &here = w.memory(n, n > 1000 ? 3 : 1);
				here.fill(static_cast<unsigned>(at + turn));
				ASSERT_EQ(write(*from, here, d, at, turn == 1 ? n : 0), 0);
				all.push_back({from, &here, range{at, n}});
				at += n + 7;
			}
		}
		ASSERT_LT(at, size);
		EXPECT_TRUE(there.is(std::byte{0}, 0, 3));
		for (const auto &[from, here, r] : all) {
			ASSERT_EQ(status(*from, *here), 0) << r.offset << '+' << r.length;
			EXPECT_EQ(from->record.of(*here->buffer)[0].length, r.length);
			EXPECT_EQ(there.copy(r.offset, r.length),
				  patterned(static_cast<unsigned>(r.offset + turn), r.length));
			EXPECT_TRUE(there.is(std::byte{0}, r.offset + r.length, 7));
		}
		EXPECT_TRUE(there.is(std::byte{0}, at, size - at));
	}
	withdraw(a, there);
}

// What leaves the memory is refused before a byte moves, also if the descriptor claims more.
TEST_P(reusable, bulk_reusable_bounds)
{
	node &a = w.up(), &b = w.up();
	piece &source = w.memory(10000), &sink = w.memory(10000), &here = w.memory(20000),
	      &once = w.memory(100);
	source.fill(1);
	const bytes readable = offer(a, source, queue_type::passive_bulk_send, nullptr, 0ms, 9000),
		    writable = offer(a, sink, queue_type::passive_bulk_recv, nullptr, 0ms, 9000);
	const range bad[] = {{0, 9001}, {8999, 2},  {9000, 1},  {9001, 1},
			     {9001, 0}, {~0ull, 1}, {~0ull, 2}, {1, ~0ull}};
	for (const range &r : bad) {
		EXPECT_EQ(read(b, here, readable, r.offset, r.length), -EFBIG) << r.offset;
		EXPECT_EQ(write(b, here, writable, r.offset, r.length), -EFBIG) << r.offset;
	}
	EXPECT_EQ(read(b, here, readable, 9000, 0), -EINVAL) << "empty";
	EXPECT_EQ(read(b, once, readable, 0, 0), -EFBIG) << "the rest is longer than the buffer";
	EXPECT_EQ(write(b, here, readable, 0, 1), -EPERM);
	EXPECT_EQ(read(b, here, writable, 0, 1), -EPERM);
	EXPECT_FALSE(here.buffer->queued());
	// The owner does not believe the other side's descriptor.
	const auto grown = [](core::descriptor &d) { d.size = 16000; };
	unsigned tries = 0;
	here.fill(9);
	const bytes tail = here.copy(9001, 10999);
	for (const range &r :
	     {range{8999, 2}, range{9000, 4096}, range{12288, 1000}, range{0, 9001}}) {
		// ud, kernel: a wrong size is noticed, but only its time limit ends the reader's
		// attempts.
		const bool fetched = t.transport == "ud" || t.transport == "kernel";
		if (!fetched || r.offset >= 9000) {
			ASSERT_EQ(read(b, here, forged(readable, grown), r.offset, r.length), 0);
			const int got = status(b, here, ++tries);
			EXPECT_TRUE(got == -EFBIG || got == -ENOENT) << got;
			EXPECT_TRUE(here.copy(9001, 10999) == tail) << "no byte after the range";
		}
		ASSERT_EQ(write(b, here, forged(writable, grown), r.offset, r.length), 0);
		const int put = status(b, here, ++tries);
		EXPECT_TRUE(put == -EFBIG || put == -ENOENT) << put;
		EXPECT_TRUE(sink.is(std::byte{0}, 0, 10000));
	}
	// Nor is one kind written as the other.
	const auto turned = [](core::descriptor &d) { d.reusable = !d.reusable; };
	ASSERT_EQ(b.active(here, queue_type::active_bulk_send, forged(writable, turned), 100), 0);
	EXPECT_EQ(status(b, here, ++tries), -ENOENT);
	once.fill(2);
	ASSERT_EQ(a.passive(once, queue_type::passive_bulk_send), 0);
	const auto text = once.buffer->descriptor();
	const bytes plain(text.begin(), text.end());
	EXPECT_EQ(read(b, here, plain, 1, 10), -EINVAL) << "no ranges of such a one";
	EXPECT_TRUE(sink.is(std::byte{0}, 0, 10000));
	// All still work.
	ASSERT_EQ(read(b, here, readable, 8000, 1000), 0);
	EXPECT_EQ(status(b, here, ++tries), 0);
	withdraw(a, source);
	withdraw(a, sink);
}

// After the end of an offer, its descriptor is of no use, also while the buffer is offered again.
TEST_P(reusable, bulk_reusable_stale)
{
	node &a = w.up(), &b = w.up();
	piece &source = w.memory(8192), &sink = w.memory(8192), &here = w.memory(8192);
	source.fill(1);
	const bytes readable = offer(a, source, queue_type::passive_bulk_send),
		    writable = offer(a, sink, queue_type::passive_bulk_recv);
	ASSERT_EQ(read(b, here, readable, 0, 100), 0);
	ASSERT_EQ(status(b, here), 0);
	withdraw(a, source);
	withdraw(a, sink);
	here.fill(2);
	const bytes tail = here.copy(5000, 3192);
	unsigned tries = 1;
	for (unsigned i = 0; i < 2; i++) {
		ASSERT_EQ(read(b, here, readable, 100, 5000), 0);
		EXPECT_EQ(status(b, here, ++tries), -ENOENT);
		EXPECT_TRUE(here.copy(5000, 3192) == tail) << "no byte after the range";
		ASSERT_EQ(write(b, here, writable, 100, 5000), 0);
		EXPECT_EQ(status(b, here, ++tries), -ENOENT);
		EXPECT_TRUE(sink.is(std::byte{0}, 0, 8192));
		if (i)
			break;
		(void)offer(a, source, queue_type::passive_bulk_send);
		(void)offer(a, sink, queue_type::passive_bulk_recv);
	}
	// At its deadline an offer ends in the same way.
	piece &soon = w.memory(100);
	const bytes brief = offer(a, soon, queue_type::passive_bulk_send, nullptr, 200ms);
	EXPECT_EQ(status(a, soon), -ETIMEDOUT);
	ASSERT_EQ(read(b, here, brief, 0, 100), 0);
	EXPECT_EQ(status(b, here, ++tries), -ENOENT);
}

TEST_P(reusable, bulk_reusable_for_one)
{
	node &a = w.up(), &b = w.up(), &c = w.up();
	piece &there = w.memory(5000), &here = w.memory(5000), &thief = w.memory(5000);
	there.fill(1);
	const endpoint_ptr to = a.to(c);
	const bytes d = offer(a, there, queue_type::passive_bulk_send, to.get());
	for (unsigned i = 1; i <= 2; i++) {
		ASSERT_EQ(read(b, thief, d, 1000, 2000), 0);
		EXPECT_EQ(status(b, thief, i), t.for_another);
		EXPECT_TRUE(thief.is(std::byte{0}, 0, 5000));
		ASSERT_EQ(read(c, here, d, 1000, 2000), 0);
		EXPECT_EQ(status(c, here, i), 0);
		EXPECT_EQ(here.copy(0, 2000), part(1, 1000, 2000));
	}
	withdraw(a, there);
}

// The owner withdraws offers while peers read and write: its events come when the memory is quiet.
TEST_P(reusable, bulk_reusable_cancel_under_way)
{
	node &a = w.up(), &b = w.up(), &c = w.up();
	constexpr std::size_t large = 1 << 19, each = 8;
	piece &source = w.memory(large), &sink = w.memory(large);
	std::vector<std::pair<node *, piece *>> reads, writes;
	for (unsigned i = 0; i < each; i++) {
		reads.emplace_back(i % 2 ? &b : &c, &w.memory(large));
		writes.emplace_back(i % 2 ? &c : &b, &w.memory(large / each));
	}
	for (unsigned round = 0; round < scale(4, 200); round++) {
		source.fill(round);
		sink.fill(255);
		const bytes readable = offer(a, source, queue_type::passive_bulk_send),
			    writable = offer(a, sink, queue_type::passive_bulk_recv);
		for (unsigned i = 0; i < each; i++) {
			auto &[reader, into] = reads[i];
			ASSERT_EQ(read(*reader, *into, readable, i * 1000, large - 9000), 0);
			auto &[writer, from] = writes[i];
			from->fill(round + i);
			ASSERT_EQ(write(*writer, *from, writable, i * (large / each), 0), 0);
		}
		// Somewhere within: after as many of them have ended.
		ASSERT_TRUE(w.until([&] { return b.record.count() >= round % 5; }));
		ASSERT_TRUE(a.tm.del(*source.buffer));
		ASSERT_TRUE(a.tm.del(*sink.buffer));
		EXPECT_EQ(status(a, source), -ECANCELED);
		EXPECT_EQ(status(a, sink), -ECANCELED);
		source.fill(round + 100); // seen by no reader that succeeds
		const bytes quiet = sink.copy(0, large);
		for (unsigned i = 0; i < each; i++) {
			auto &[reader, into] = reads[i];
			if (status(*reader, *into) == 0) {
				const bytes all = patterned(round, large);
				EXPECT_TRUE(into->copy(0, large - 9000) ==
					    bytes(all.begin() + i * 1000,
						  all.begin() + i * 1000 + (large - 9000)));
			}
			auto &[writer, from] = writes[i];
			if (status(*writer, *from) == 0) {
				const std::size_t at = i * (large / each);
				EXPECT_TRUE(bytes(quiet.begin() + static_cast<std::ptrdiff_t>(at),
						  quiet.begin() + static_cast<std::ptrdiff_t>(
									  at + large / each)) ==
					    patterned(round + i, large / each));
			}
		}
		EXPECT_TRUE(sink.copy(0, large) == quiet) << "no byte after the final event";
		EXPECT_EQ(a.record.count(), 2u);
		for (node *n : {&a, &b, &c})
			n->record.clear();
		ASSERT_FALSE(HasFailure());
	}
}

// Uses that have ended, or that their peer gave up, leave nothing behind.
TEST_P(reusable_often, bulk_reusable_often)
{
	const bool all = t.label == "ntrdma" || scale(0, 1);
	const unsigned times = all ? w.home().limits().max_queued * 9 / 4 : 200;
	node &a = w.up(), &b = w.up();
	piece &source = w.memory(size), &sink = w.memory(size), &here = w.memory(size);
	const bytes readable = offer(a, source, queue_type::passive_bulk_send),
		    writable = offer(a, sink, queue_type::passive_bulk_recv);
	unsigned collateral = 0;
	for (unsigned i = 0; i < times; i++) {
		const bool large = i % 16 == 0, given_up = i % 8 < 2;
		ASSERT_EQ(i % 4 < 3 ? read(b, here, readable, i % 64, large ? 50000 : 10)
				    : write(b, here, writable, i % 64, large ? 50000 : 10),
			  0);
		if (given_up)
			(void)b.tm.del(*here.buffer);
		const int got = status(b, here);
		collateral += t.is_collateral(got);
		ASSERT_TRUE(got == 0 || (given_up && got == -ECANCELED) || t.is_collateral(got))
			<< i << ": " << got;
		b.record.clear();
	}
	EXPECT_LE(collateral, times / 4);
	withdraw(a, source);
	withdraw(a, sink);
}

// Each of two transports uses what the other offers.
TEST_P(reusable, bulk_reusable_between_transports)
{
	if (t.kin.empty())
		GTEST_SKIP() << "no other transport here speaks like " << t.label;
	node &a = w.up(), &b = w.up(&w.open({}, t.kin));
	for (const auto &[owner, user] : {std::pair(&a, &b), std::pair(&b, &a)}) {
		piece &source = w.memory(size, 3, &owner->of),
		      &sink = w.memory(size, 2, &owner->of);
		source.fill(1);
		const bytes readable = offer(*owner, source, queue_type::passive_bulk_send),
			    writable = offer(*owner, sink, queue_type::passive_bulk_recv);
		bytes wanted = sink.copy(0, size);
		unsigned seed = 1;
		for (const range &r : ranges) {
			piece &here = w.memory(r.length + 10, 2, &user->of);
			ASSERT_EQ(read(*user, here, readable, r.offset, r.length), 0);
			ASSERT_EQ(status(*user, here), 0) << r.offset << '+' << r.length;
			EXPECT_TRUE(here.copy(0, r.length) == part(1, r.offset, r.length));
			EXPECT_TRUE(here.is(std::byte{0}, r.length, 10));
			here.fill(++seed);
			ASSERT_EQ(write(*user, here, writable, r.offset, r.length), 0);
			ASSERT_EQ(status(*user, here, 2), 0) << r.offset << '+' << r.length;
			const bytes written = patterned(seed, r.length);
			std::copy(written.begin(), written.end(),
				  wanted.begin() + static_cast<std::ptrdiff_t>(r.offset));
			EXPECT_TRUE(sink.copy(0, size) == wanted);
		}
		withdraw(*owner, source);
		withdraw(*owner, sink);
	}
}

// A peer that ends takes its uses with it, not the offer.
TEST_P(reusable, bulk_reusable_survives_peers)
{
	node &a = w.up();
	constexpr std::size_t large = 1 << 20;
	piece &source = w.memory(large), &sink = w.memory(large);
	source.fill(1);
	const bytes readable = offer(a, source, queue_type::passive_bulk_send),
		    writable = offer(a, sink, queue_type::passive_bulk_recv);
	for (unsigned i = 0; i < 3; i++) {
		node &b = w.up();
		piece &here = w.memory(large), &mine = w.memory(large);
		ASSERT_EQ(read(b, here, readable, 0, 0), 0);
		ASSERT_EQ(write(b, mine, writable, 0, 0), 0);
		w.remove(b);
	}
	node &c = w.up();
	piece &here = w.memory(5000);
	ASSERT_EQ(read(c, here, readable, 77, 5000), 0);
	EXPECT_EQ(status(c, here), 0);
	EXPECT_EQ(here.copy(0, 5000), part(1, 77, 5000));
	withdraw(a, source);
	withdraw(a, sink);
}

} // namespace conformance
