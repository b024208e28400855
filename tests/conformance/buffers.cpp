// SPDX-License-Identifier: MIT
// buffers.cpp - registration, deadlines, deletion, reuse, statistics.
//
// Conformance tests buf_*, add_*, timeout_*, del_*, cancel_*, reuse_*, callback_*, stats_*.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>

#include "world.hpp"

namespace conformance
{

namespace
{

class buffers : public suite
{
protected:
	// One operation per queue that never ends by itself. On the sending side that needs a
	// transport that can stall on request.
	struct each {
		queue_type queue;
		piece *memory;
	};
	// `limit` counts from the add of an operation, however long the others take.
	std::vector<each> endless(node *&n, std::chrono::milliseconds limit)
	{
		const auto timed = [&](auto &&add) {
			return limit == 0ms ? add(never) : node::within(limit, add);
		};
		domain &d = t.stall.empty() ? w.home() : w.open(t.stall);
		n = &w.up(&d);
		node &peer = w.up(&d);
		std::vector<each> all;
		piece &in = w.memory(256, 1, &d);
		EXPECT_EQ(timed([&](time_point by) { return n->receive(in, 0, 1, by); }), 0);
		all.push_back({queue_type::msg_recv, &in});
		for (queue_type q :
		     {queue_type::passive_bulk_recv, queue_type::passive_bulk_send}) {
			piece &p = w.memory(256, 1, &d);
			EXPECT_EQ(timed([&](time_point by) { return n->passive(p, q, 0, by); }), 0);
			all.push_back({q, &p});
		}
		if (t.stall.empty())
			return all;
		piece &out = w.memory(256, 1, &d);
		const endpoint_ptr to = n->to(peer);
		EXPECT_EQ(timed([&](time_point by) { return n->send(out, 256, to, by); }), 0);
		all.push_back({queue_type::msg_send, &out});
		const struct {
			queue_type active, passive;
		} pairs[] = {{queue_type::active_bulk_recv, queue_type::passive_bulk_send},
			     {queue_type::active_bulk_send, queue_type::passive_bulk_recv}};
		for (const auto &pair : pairs) {
			piece &there = w.memory(256, 1, &d), &here = w.memory(256, 1, &d);
			EXPECT_EQ(peer.passive(there, pair.passive), 0);
			EXPECT_EQ(timed([&](time_point by) {
					  return n->active(here, pair.active,
							   there.buffer->descriptor(), 0, by);
				  }),
				  0);
			all.push_back({pair.active, &here});
		}
		return all;
	}
	// Deadlines of several operations. `slow`: one of `limit` was too short for this machine;
	// the rest is left out.
	void attempt(std::chrono::milliseconds limit, bool &slow)
	{
		node &a = w.up(), &b = w.up();
		slow = true;
		// A met deadline ends with its operation, and ends nothing else later.
		piece &met = w.memory(64), &first = w.memory(64);
		// On an established connection.
		piece &opener = w.memory(64), &opening = w.memory(64);
		ASSERT_EQ(a.receive(opener), 0);
		ASSERT_EQ(b.send(opening, 64, b.to(a)), 0);
		ASSERT_TRUE(w.ended(a, opener) && w.ended(b, opening));
		a.record.clear();
		ASSERT_EQ(node::within(limit,
				       [&](time_point by) { return a.receive(met, 0, 1, by); }),
			  0);
		ASSERT_EQ(b.send(first, 64, b.to(a)), 0);
		ASSERT_TRUE(w.ended(a, met));
		const int status = a.record.of(*met.buffer)[0].status;
		ASSERT_TRUE(status == 0 || status == -ETIMEDOUT) << status;
		if (status)
			return;
		ASSERT_TRUE(w.ended(b, first));
		// All must be queued, and one deleted, before the first expires. Added out of order
		// of their deadlines; every other one has no deadline.
		const time_point first_end = clock::now() + limit;
		const int order[] = {5, 1, 7, 3, 8, 2, 6, 4};
		std::vector<piece *> timed(9), timeless;
		for (int i : order) {
			timed[i] = &w.memory(64);
			const int r = a.passive(*timed[i], queue_type::passive_bulk_recv, 0,
						first_end + i * 10ms);
			if (r == -ETIME)
				return;
			ASSERT_EQ(r, 0);
			timeless.push_back(&w.memory(64));
			ASSERT_EQ(a.receive(*timeless.back()), 0);
		}
		(void)a.tm.del(*timed[4]->buffer); // deletes its deadline too
		if (clock::now() >= first_end)
			return;
		slow = false;
		ASSERT_TRUE(w.until([&] { return a.record.count() >= 9; }));
		auto events = a.record.all();
		std::erase_if(events,
			      [&](const happened &h) { return h.buffer == met.buffer.get(); });
		ASSERT_EQ(events.size(), 8u);
		EXPECT_EQ(events[0].buffer, timed[4]->buffer.get());
		EXPECT_EQ(events[0].status, -ECANCELED);
		unsigned at = 1;
		for (int i : {1, 2, 3, 5, 6, 7, 8}) {
			EXPECT_EQ(events[at].buffer, timed[i]->buffer.get()) << at;
			EXPECT_EQ(events[at++].status, -ETIMEDOUT);
		}
		EXPECT_EQ(a.record.finals(*met.buffer), 1u);
		// Those without a deadline are unchanged.
		EXPECT_EQ(a.tm.queued(queue_type::msg_recv), timeless.size());
		piece &out = w.memory(64);
		ASSERT_EQ(b.send(out, 64, b.to(a)), 0);
		EXPECT_TRUE(w.ended(a, *timeless[0]));
	}
};
class buffers_once : public buffers
{
};
COOP_CONFORMANCE(buffers, both);
COOP_CONFORMANCE(buffers_once, automatic);

int error_of(domain &d, std::span<const segment> s)
{
	try {
		net::buffer b(d, s);
		return 0;
	} catch (const std::system_error &e) {
		return e.code().value();
	}
}

} // namespace

TEST_P(buffers_once, buf_register_limits)
{
	domain &d = w.home();
	const domain_limits &l = d.limits();
	std::byte memory[16];
	EXPECT_EQ(error_of(d, {}), EINVAL);
	const segment empty[] = {{memory, 0}}, null[] = {{nullptr, 16}};
	EXPECT_EQ(error_of(d, empty), EINVAL);
	EXPECT_EQ(error_of(d, null), EINVAL);
	// Refused by their lengths alone; no code reads the memory.
	const segment large[] = {{memory, l.max_segment + 1}};
	EXPECT_EQ(error_of(d, large), EFBIG);
	std::vector<segment> much(l.max_buffer / l.max_segment + 1, {memory, l.max_segment});
	EXPECT_EQ(error_of(d, much), much.size() > l.max_segments ? E2BIG : EFBIG);
	const std::vector<segment> many(l.max_segments + 1, {memory, 1});
	EXPECT_EQ(error_of(d, many), E2BIG);
}

TEST_P(buffers_once, buf_dereg_after_use)
{
	node &a = w.up(), &b = w.up();
	const std::size_t size = std::min<std::size_t>(16384, w.home().limits().max_message);
	for (int i = 0; i < 10; i++) {
		void *m = ::mmap(nullptr, 16384, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		ASSERT_NE(m, MAP_FAILED);
		piece &out = w.memory(16384);
		{
			net::buffer in(w.home(), m, 16384);
			operation o;
			o.min_receive_size = size;
			o.max_receive_msgs = 1;
			o.handler = &b.record;
			ASSERT_EQ(b.tm.add(in, o), 0);
			ASSERT_EQ(a.send(out, size, a.to(b)), 0);
			ASSERT_TRUE(w.until([&] { return !in.queued(); }));
		}
		ASSERT_EQ(::munmap(m, 16384), 0); // a late write would be a SIGSEGV
		ASSERT_TRUE(w.ended(a, out));
	}
	EXPECT_EQ(b.record.messages().size(), 10u);
}

TEST_P(buffers, add_past_timeout)
{
	node &a = w.up(), &b = w.up();
	piece &p = w.memory(64), &other = w.memory(64), &other2 = w.memory(64);
	const time_point past = clock::now() - 1ms;
	ASSERT_EQ(b.passive(other, queue_type::passive_bulk_send), 0);
	ASSERT_EQ(b.passive(other2, queue_type::passive_bulk_recv), 0);
	EXPECT_EQ(a.receive(p, 0, 1, past), -ETIME);
	EXPECT_EQ(a.send(p, 8, a.to(b), past), -ETIME);
	EXPECT_EQ(a.passive(p, queue_type::passive_bulk_recv, 0, past), -ETIME);
	EXPECT_EQ(a.passive(p, queue_type::passive_bulk_send, 0, past), -ETIME);
	EXPECT_EQ(a.active(p, queue_type::active_bulk_recv, other.buffer->descriptor(), 0, past),
		  -ETIME);
	EXPECT_EQ(a.active(p, queue_type::active_bulk_send, other2.buffer->descriptor(), 0, past),
		  -ETIME);
	EXPECT_FALSE(p.buffer->queued());
	EXPECT_EQ(a.receive(p), 0) << "nothing prevents another add";
	EXPECT_EQ(a.receive(p), -EBUSY);
	EXPECT_TRUE(a.tm.del(*p.buffer));
	EXPECT_TRUE(w.ended(a, p));
	EXPECT_EQ(a.record.count(), 1u);
}

TEST_P(buffers, timeout_each_queue)
{
	node *n = nullptr;
	const time_point start = clock::now();
	const auto all = endless(n, 300ms);
	for (const each &e : all) {
		ASSERT_TRUE(w.ended(*n, *e.memory)) << name(e.queue);
		EXPECT_EQ(n->record.of(*e.memory->buffer)[0].status, -ETIMEDOUT) << name(e.queue);
		EXPECT_FALSE(e.memory->buffer->queued());
	}
	EXPECT_GE(clock::now(), start + 300ms);
	EXPECT_EQ(n->record.count(), all.size());
}

TEST_P(buffers, timeout_mixed)
{
	bool slow = true;
	for (auto limit = 1000ms; slow; limit *= 4) {
		ASSERT_LT(limit, patience);
		attempt(limit, slow);
		ASSERT_FALSE(HasFailure());
	}
}

TEST_P(buffers, del_each_queue)
{
	node *n = nullptr;
	const auto all = endless(n, 0ms);
	piece &idle = w.memory(64);
	EXPECT_FALSE(n->tm.del(*idle.buffer));
	for (const each &e : all) {
		EXPECT_TRUE(e.memory->buffer->queued());
		EXPECT_TRUE(n->tm.del(*e.memory->buffer)) << name(e.queue);
	}
	for (const each &e : all) {
		ASSERT_TRUE(w.ended(*n, *e.memory)) << name(e.queue);
		EXPECT_EQ(n->record.of(*e.memory->buffer)[0].status, -ECANCELED) << name(e.queue);
		EXPECT_FALSE(n->tm.del(*e.memory->buffer)) << "it has already ended";
		EXPECT_FALSE(e.memory->buffer->queued());
	}
	EXPECT_EQ(n->record.count(), all.size());
}

TEST_P(buffers, del_race)
{
	node &a = w.up(), &b = w.up();
	const endpoint_ptr to = a.to(b);
	piece &in = w.memory(64), &out = w.memory(64), &spare = w.memory(64);
	unsigned sent = 0, spares = 0, rounds = scale(200, 5000);
	for (unsigned i = 1; i <= rounds; i++) {
		ASSERT_EQ(b.receive(in), 0);
		// Deletes from two other threads, while a message arrives.
		std::thread one([&] { (void)b.tm.del(*in.buffer); });
		std::thread other([&] { (void)b.tm.del(*in.buffer); });
		if (i % 4) {
			ASSERT_EQ(a.send(out, 64, to), 0);
			sent++;
		}
		one.join();
		other.join();
		ASSERT_TRUE(w.ended(b, in, i));
		ASSERT_EQ(b.record.finals(*in.buffer), i);
		const int status = b.record.of(*in.buffer)[i - 1].status;
		ASSERT_TRUE(status == 0 || status == -ECANCELED) << status;
		if (status && i % 4) {
			// A message that came too late for it would wait until all patience ran
			// out.
			ASSERT_EQ(b.receive(spare), 0);
			ASSERT_TRUE(w.ended(a, out, sent));
			if (!t.told_early)
				(void)b.tm.del(*spare.buffer);
			ASSERT_TRUE(w.ended(b, spare, ++spares));
		}
		ASSERT_TRUE(w.ended(a, out, sent));
	}
	const queue_stats s = b.tm.stats(queue_type::msg_recv);
	EXPECT_EQ(s.adds, rounds + spares);
	EXPECT_EQ(s.ok + s.failed, rounds + spares);
}

// A message whose buffer is deleted under it keeps no other from the buffers that are left.
TEST_P(buffers, del_under_a_message)
{
	node &a = w.up(), &b = w.up();
	const endpoint_ptr to = a.to(b);
	// More than what may be on its way at a time, where that is little.
	const std::size_t most = std::min<std::size_t>(w.home().limits().max_message, 400000);
	piece &large = w.memory(most), &small = w.memory(8);
	piece &first = w.memory(most), &other = w.memory(most + 64);
	for (unsigned i = 1; i <= scale(20, 2000); i++) {
		large.fill(i);
		small.fill(i);
		ASSERT_EQ(b.receive(first), 0);
		ASSERT_EQ(b.receive(other, 8, 2), 0);
		ASSERT_EQ(a.send(large, most, to), 0);
		unsigned turns = i % 20;
		ASSERT_TRUE(w.until([&] { return turns-- == 0; }));
		(void)b.tm.del(*first.buffer);
		ASSERT_EQ(a.send(small, 8, to), 0);
		ASSERT_TRUE(w.ended(a, large));
		ASSERT_TRUE(w.ended(a, small));
		const int status = a.record.of(*small.buffer)[0].status;
		ASSERT_TRUE(status == 0 || t.is_collateral(status)) << status;
		const auto came = [&](std::size_t length) {
			const auto all = b.record.messages();
			return std::any_of(all.begin(), all.end(),
					   [&](const happened &h) { return h.length == length; });
		};
		if (status == 0)
			ASSERT_TRUE(w.until([&] { return came(8); })) << i;
		if (a.record.of(*large.buffer)[0].status == 0)
			ASSERT_TRUE(w.until([&] { return came(most); })) << i;
		for (const happened &h : b.record.messages())
			ASSERT_EQ((h.buffer == first.buffer.get() ? first : other)
					  .copy(h.offset, h.length),
				  patterned(i, h.length))
				<< i;
		(void)b.tm.del(*first.buffer);
		(void)b.tm.del(*other.buffer);
		ASSERT_TRUE(w.ended(b, first));
		ASSERT_TRUE(w.ended(b, other));
		a.record.clear();
		b.record.clear();
	}
}

// A message that its sender gave up while it waited for a buffer takes none for good.
TEST_P(buffers, timeout_of_a_message_that_waits)
{
	const std::size_t length = t.told_early ? t.ordered + 64 : 64;
	node &a = w.up(), &b = w.up();
	const endpoint_ptr to = a.to(b);
	piece &out = w.memory(length), &in = w.memory(length);
	ASSERT_EQ(b.receive(in), 0);
	ASSERT_EQ(a.send(out, length, to), 0);
	ASSERT_TRUE(w.ended(b, in));
	ASSERT_TRUE(w.ended(a, out));
	for (unsigned i = 1; i <= 5; i++) {
		a.record.clear();
		b.record.clear();
		out.fill(0);
		ASSERT_EQ(node::within(200ms,
				       [&](time_point by) { return a.send(out, length, to, by); }),
			  0);
		ASSERT_TRUE(w.ended(a, out));
		EXPECT_TRUE(a.record.of(*out.buffer)[0].status || !t.told_early);
		ASSERT_EQ(b.receive(in), 0);
		out.fill(i);
		ASSERT_EQ(a.send(out, length, to), 0);
		ASSERT_TRUE(w.ended(b, in)) << i;
		if (in.copy(0, length) == patterned(0, length)) {
			// It came nevertheless.
			ASSERT_EQ(b.receive(in), 0);
			ASSERT_TRUE(w.ended(b, in, 2)) << i;
		}
		EXPECT_EQ(in.copy(0, length), patterned(i, length));
		ASSERT_TRUE(w.ended(a, out, 2));
		EXPECT_EQ(a.record.of(*out.buffer)[1].status, 0);
	}
}

TEST_P(buffers, cancel_then_late_completion)
{
	// A transport that reports small sends at the add does not report large ones.
	const std::size_t length = t.told_early ? t.ordered + 64 : 64;
	node &a = w.up(), &b = w.up();
	const endpoint_ptr to = a.to(b);
	const unsigned rounds = scale(300, t.told_early ? 1000 : 5000);
	piece &out = w.memory(length), &other = w.memory(length);
	piece &in = w.memory(std::size_t(rounds + 1) * 2 * length);
	ASSERT_EQ(b.receive(in, length, (rounds + 1) * 2), 0);
	std::vector<int> ends; // status of each message
	const auto numbered = [length](std::uint32_t n) {
		auto text = patterned(n, length);
		std::memcpy(text.data(), &n, sizeof(n));
		return text;
	};
	const auto pass = [&](piece &p, bool deleted) {
		const auto text = numbered(static_cast<std::uint32_t>(ends.size()));
		std::memcpy(p.memory[0].data(), text.data(), length);
		ASSERT_EQ(a.send(p, length, to), 0);
		if (deleted)
			(void)a.tm.del(*p.buffer);
		ASSERT_TRUE(w.ended(a, p));
		ASSERT_EQ(a.record.count(), 1u) << "a foreign operation ended, or this one twice";
		ends.push_back(a.record.all()[0].status);
		ASSERT_TRUE(ends.back() == 0 || (deleted && ends.back() == -ECANCELED) ||
			    t.is_collateral(ends.back()))
			<< ends.size() << " ended with " << ends.back();
		a.record.clear();
	};
	// Each round deletes a message in flight and sends the same buffer again at once: a late
	// completion of the first must not end the second.
	for (unsigned i = 1; i <= rounds && !HasFatalFailure(); i++) {
		pass(out, true);
		if (i % 2) {
			pass(out, false);
			continue;
		}
		// No peer asks for it, so it does not end while other messages do.
		ASSERT_EQ(a.passive(out, queue_type::passive_bulk_send), 0);
		pass(other, false);
		ASSERT_TRUE(a.tm.del(*out.buffer));
		ASSERT_TRUE(w.ended(a, out));
		const happened h = a.record.all()[0];
		ASSERT_EQ(h.queue, queue_type::passive_bulk_send);
		ASSERT_EQ(h.status, -ECANCELED);
		a.record.clear();
	}
	ASSERT_FALSE(HasFatalFailure());
	// A message that ended well arrives with its bytes; a deleted one may; no message arrives
	// twice.
	const auto arrived = [&] {
		std::vector<unsigned> times(ends.size() + 1);
		for (const happened &h : b.record.messages()) {
			const auto got = in.copy(h.offset, h.length);
			std::uint32_t n = 0;
			std::memcpy(&n, got.data(), std::min(got.size(), sizeof(n)));
			times[n < ends.size() && got == numbered(n) ? n : ends.size()]++;
		}
		return times;
	};
	const auto well = static_cast<std::size_t>(std::count(ends.begin(), ends.end(), 0));
	const auto collateral =
		std::count_if(ends.begin(), ends.end(), [&](int s) { return t.is_collateral(s); });
	EXPECT_LE(static_cast<unsigned>(collateral), rounds / 2) << "of " << ends.size();
	EXPECT_TRUE(w.until([&] {
		if (b.record.count() < well)
			return false;
		const auto times = arrived();
		for (std::size_t n = 0; n < ends.size(); n++)
			if (!ends[n] && !times[n])
				return false;
		return true;
	}));
	const auto times = arrived();
	EXPECT_EQ(times.back(), 0u) << "a message that a did not send";
	for (std::size_t n = 0; n < ends.size(); n++)
		EXPECT_LE(times[n], 1u) << n;
	piece &again = w.memory(8), &fresh = w.memory(8);
	ASSERT_EQ(a.receive(again), 0);
	EXPECT_EQ(a.tm.queued(queue_type::msg_recv), 1u);
	ASSERT_EQ(b.send(fresh, 8, b.to(a)), 0);
	ASSERT_TRUE(w.ended(a, again));
	EXPECT_EQ(a.record.count(), 1u);
	const queue_stats s = a.tm.stats(queue_type::msg_send);
	EXPECT_EQ(s.ok, well);
	EXPECT_EQ(s.failed, ends.size() - well) << "each cancelled message counts once";
}

TEST_P(buffers, reuse_token)
{
	node &a = w.up(), &b = w.up();
	const endpoint_ptr to = a.to(b);
	piece &in = w.memory(64), &out = w.memory(64);
	const unsigned rounds = scale(500, 20000);
	for (std::uintptr_t i = 1; i <= rounds; i++) {
		operation o;
		o.queue = queue_type::msg_recv;
		o.min_receive_size = 64;
		o.max_receive_msgs = 1;
		o.handler = &b.record;
		o.context = reinterpret_cast<void *>(i);
		ASSERT_EQ(b.tm.add(*in.buffer, o), 0);
		o.queue = queue_type::msg_send;
		o.length = 64;
		o.to = to.get();
		o.handler = &a.record;
		ASSERT_EQ(a.tm.add(*out.buffer, o), 0);
		ASSERT_TRUE(w.ended(b, in));
		ASSERT_TRUE(w.ended(a, out));
		for (node *n : {&a, &b}) {
			const auto events = n->record.all();
			ASSERT_EQ(events.size(), 1u);
			ASSERT_EQ(events[0].status, 0);
			ASSERT_EQ(events[0].context, o.context);
			n->record.clear();
		}
	}
}

TEST_P(buffers_once, callback_other_thread)
{
	node &a = w.up(), &b = w.up();
	piece &in = w.memory(64), &out = w.memory(64), &deleted = w.memory(64);
	ASSERT_EQ(b.receive(in), 0);
	ASSERT_EQ(b.receive(deleted), 0);
	ASSERT_TRUE(b.tm.del(*deleted.buffer));
	ASSERT_EQ(a.send(out, 64, a.to(b)), 0);
	ASSERT_TRUE(w.ended(a, out));
	ASSERT_TRUE(w.ended(b, in));
	ASSERT_TRUE(w.ended(b, deleted));
	for (node *n : {&a, &b})
		for (const happened &h : n->record.all())
			EXPECT_NE(h.thread, std::this_thread::get_id());
	EXPECT_EQ(b.tm.deliver_all(), 0u);
	EXPECT_FALSE(b.tm.pending());
	channel c;
	EXPECT_EQ(b.tm.notify(c), -EBADFD);
}

TEST_P(buffers, callback_readd)
{
	const unsigned total = scale(1000, 100000);
	node &a = w.up(), &b = w.made();
	piece &in = w.memory(64), &out = w.memory(64);
	endpoint_ptr to;
	std::atomic<unsigned> received{0};
	std::atomic<int> wrong{0};
	operation o;
	o.min_receive_size = 64;
	o.max_receive_msgs = 1;
	o.handler = &b.record;
	b.record.on_event = [&](const buffer_event &e) {
		wrong += e.status != 0;
		wrong += received + 1 < total && b.tm.add(*e.buffer, o) != 0;
		received++; // so that the next message finds the buffer
	};
	ASSERT_TRUE(b.up(w.next_address()));
	to = a.to(b);
	ASSERT_EQ(b.tm.add(*in.buffer, o), 0);
	// One message at a time: the next leaves when the last has arrived.
	for (unsigned i = 1; i <= total; i++) {
		ASSERT_EQ(a.send(out, 64, to), 0);
		ASSERT_TRUE(w.ended(a, out));
		ASSERT_TRUE(w.until([&] { return received >= i; })) << i;
		a.record.clear();
		b.record.clear();
	}
	EXPECT_EQ(wrong, 0);
	EXPECT_EQ(received, total);
}

TEST_P(buffers, stats_exact)
{
	node &a = w.up(), &b = w.up();
	const endpoint_ptr to = a.to(b);
	const std::size_t sizes[] = {10, 300, 64, 1};
	piece &in = w.memory(4096), &out = w.memory(512), &gone = w.memory(64);
	ASSERT_EQ(b.receive(in, 400, 100), 0);
	unsigned n = 0;
	for (std::size_t s : sizes) {
		ASSERT_EQ(a.send(out, s, to), 0);
		ASSERT_TRUE(w.ended(a, out, ++n));
	}
	ASSERT_TRUE(w.until([&] { return b.record.messages().size() == n; }));
	ASSERT_EQ(b.receive(gone, 0, 1, clock::now() + 1h), 0);
	ASSERT_TRUE(b.tm.del(*gone.buffer));
	ASSERT_TRUE(w.ended(b, gone));
	EXPECT_EQ(a.send(out, 513, to), -EFBIG) << "refused, so not counted";
	// Bulk of two lengths each way; the larger active receive is trimmed.
	for (std::size_t size : {200, 70})
		for (bool read : {true, false}) {
			piece &there = w.memory(size), &here = w.memory(read ? size + 9 : size);
			ASSERT_EQ(b.passive(there, read ? queue_type::passive_bulk_send
							: queue_type::passive_bulk_recv),
				  0);
			ASSERT_EQ(a.active(here,
					   read ? queue_type::active_bulk_recv
						: queue_type::active_bulk_send,
					   there.buffer->descriptor()),
				  0);
			ASSERT_TRUE(w.ended(a, here));
			ASSERT_TRUE(w.ended(b, there));
		}
	piece &unasked = w.memory(64);
	for (queue_type q : {queue_type::passive_bulk_send, queue_type::passive_bulk_recv}) {
		ASSERT_EQ(b.passive(unasked, q), 0);
		ASSERT_TRUE(b.tm.del(*unasked.buffer));
		ASSERT_TRUE(w.ended(b, unasked, 1 + (q == queue_type::passive_bulk_recv)));
	}

	queue_stats s = a.tm.stats(queue_type::msg_send);
	EXPECT_EQ(s.adds, 4u);
	EXPECT_EQ(s.dels, 0u);
	EXPECT_EQ(s.ok, 4u);
	EXPECT_EQ(s.failed, 0u);
	EXPECT_EQ(s.total_bytes, 375u);
	EXPECT_EQ(s.largest, 300u);
	EXPECT_GT(s.total_time, 0u);
	s = b.tm.stats(queue_type::msg_recv);
	EXPECT_EQ(s.adds, 2u);
	EXPECT_EQ(s.dels, 1u);
	EXPECT_EQ(s.ok, 4u);
	EXPECT_EQ(s.failed, 1u);
	EXPECT_EQ(s.total_bytes, 375u);
	EXPECT_EQ(s.largest, 300u);
	EXPECT_EQ(b.tm.stats(queue_type::msg_send).adds, 0u);
	const struct {
		node *of;
		queue_type queue;
		std::uint64_t failed;
	} bulk[] = {{&a, queue_type::active_bulk_recv, 0},
		    {&a, queue_type::active_bulk_send, 0},
		    {&b, queue_type::passive_bulk_recv, 1},
		    {&b, queue_type::passive_bulk_send, 1}};
	for (const auto &x : bulk) {
		s = x.of->tm.stats(x.queue);
		EXPECT_EQ(s.adds, 2 + x.failed) << name(x.queue);
		EXPECT_EQ(s.dels, x.failed) << name(x.queue);
		EXPECT_EQ(s.ok, 2u) << name(x.queue);
		EXPECT_EQ(s.failed, x.failed) << name(x.queue);
		EXPECT_EQ(s.total_bytes, 270u) << name(x.queue);
		EXPECT_EQ(s.largest, 200u) << name(x.queue);
		EXPECT_GT(s.total_time, 0u) << name(x.queue);
		EXPECT_EQ((x.of == &a ? b : a).tm.stats(x.queue).adds, 0u) << name(x.queue);
	}
	// Read and reset.
	EXPECT_EQ(b.tm.stats(queue_type::msg_recv, true).ok, 4u);
	EXPECT_EQ(b.tm.stats(queue_type::msg_recv).ok, 0u);
	EXPECT_EQ(b.tm.stats(queue_type::msg_recv).largest, 0u);
}

TEST_P(buffers, stats_reset_atomic)
{
	node &a = w.up(), &b = w.up();
	const endpoint_ptr to = a.to(b);
	const unsigned total = scale(500, 50000);
	piece &in = w.memory(std::size_t(total) * 8), &out = w.memory(8);
	ASSERT_EQ(b.receive(in, 8, total), 0);
	std::atomic<bool> over{false};
	queue_stats sum{};
	std::thread reader([&] {
		for (bool last = false; !last;) {
			last = over;
			const queue_stats s = b.tm.stats(queue_type::msg_recv, true);
			sum.adds += s.adds;
			sum.ok += s.ok;
			sum.total_bytes += s.total_bytes;
		}
	});
	bool good = true;
	for (unsigned i = 1; good && i <= total; i++) {
		good = a.send(out, 8, to) == 0 && w.ended(a, out);
		a.record.clear();
	}
	good = good && w.until([&] { return b.record.messages().size() == total; });
	over = true;
	reader.join();
	ASSERT_TRUE(good);
	EXPECT_EQ(sum.adds, 1u);
	EXPECT_EQ(sum.ok, total);
	EXPECT_EQ(sum.total_bytes, std::uint64_t(total) * 8);
}

} // namespace conformance
