// SPDX-License-Identifier: MIT
// faults.cpp - lossy wires, dead peers, crowds, enemies, and all of them for a long time.
//
// Conformance tests of the group Faults. A transport without a wire of its own, or without other
// processes, cannot run some of them and says so in its target.
#include <cerrno>
#include <cstring>
#include <map>
#include <random>

#include "helper.hpp"
#include "soak.hpp"
#include "world.hpp"

namespace conformance
{

namespace
{

class fault : public suite
{
protected:
	// Messages of all sizes and bulk both ways between two machines; all must arrive intact.
	void traffic(node &a, node &b, unsigned messages, std::size_t bulk)
	{
		const endpoint_ptr to = a.to(b);
		const std::size_t most = std::min<std::size_t>(20000, a.of.limits().max_message);
		std::mt19937 random(messages);
		std::vector<piece *> in, out;
		std::vector<std::size_t> lengths;
		for (unsigned i = 0; i < messages; i++) {
			lengths.push_back(1 + random() % (i % 8 ? 200 : most));
			in.push_back(&w.memory(most, 1, &b.of));
			out.push_back(&w.memory(lengths[i], 1, &a.of));
			out[i]->fill(i);
			ASSERT_EQ(b.receive(*in[i]), 0);
		}
		for (unsigned i = 0; i < messages; i++)
			ASSERT_EQ(a.send(*out[i], lengths[i], to), 0);
		ASSERT_TRUE(w.until([&] { return b.record.count() >= messages; }));
		ASSERT_TRUE(w.until([&] { return a.record.count() >= messages; }));
		const auto got = b.record.messages();
		ASSERT_EQ(got.size(), messages);
		std::map<const net::buffer *, piece *> into;
		for (piece *p : in)
			into[p->buffer.get()] = p;
		std::vector<bool> seen(messages);
		for (unsigned i = 0; i < messages; i++) {
			ASSERT_EQ(a.record.of(*out[i]->buffer)[0].status, 0) << i;
			const piece &where = *into.at(got[i].buffer);
			const auto is = [&](unsigned k) {
				return !seen[k] && got[i].length == lengths[k] &&
				       where.copy(0, lengths[k]) == patterned(k, lengths[k]);
			};
			const bool in_turn = got[i].length <= t.ordered;
			unsigned k = 0;
			while (k < messages &&
			       (in_turn ? seen[k] || lengths[k] > t.ordered : !is(k)))
				k++;
			ASSERT_TRUE(k < messages && is(k))
				<< "unknown, repeated or out of order: " << i;
			seen[k] = true;
		}
		a.record.clear();
		b.record.clear();
		for (bool read : {true, false}) {
			piece &there = w.memory(bulk, 3, &b.of), &here = w.memory(bulk, 2, &a.of);
			(read ? there : here).fill(77);
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
			ASSERT_EQ(a.record.of(*here.buffer)[0].status, 0);
			ASSERT_EQ(b.record.of(*there.buffer)[0].status, 0);
			EXPECT_EQ((read ? here : there).copy(0, bulk), patterned(77, bulk));
			a.record.clear();
			b.record.clear();
		}
	}
	// One echo by a helper. @return the status of the send, or 1 if no echo came.
	int echo(node &n, const endpoint_ptr &to, unsigned seed)
	{
		piece &out = w.memory(64), &in = w.memory(65536);
		out.fill(seed);
		EXPECT_EQ(n.receive(in), 0);
		EXPECT_EQ(n.send(out, 64, to, clock::now() + 20s), 0);
		EXPECT_TRUE(w.ended(n, out));
		const int status = n.record.of(*out.buffer)[0].status;
		if (status) {
			EXPECT_TRUE(n.tm.del(*in.buffer));
			EXPECT_TRUE(w.ended(n, in));
			return status;
		}
		if (!w.ended(n, in))
			return 1;
		EXPECT_EQ(in.copy(0, 64), patterned(seed, 64));
		return 0;
	}
};
class fault_once : public fault
{
};
COOP_CONFORMANCE(fault, both);
COOP_CONFORMANCE(fault_once, automatic);

} // namespace

TEST_P(fault, loss_1_10_30pct)
{
	if (!t.wire)
		GTEST_SKIP() << t.label << " has no wire to lose packets";
	for (std::uint32_t percent : {1, 10, 30}) {
		domain &d = w.open(t.wire({percent * 10000, 0, 0, percent}));
		node &a = w.up(&d), &b = w.up(&d);
		traffic(a, b, scale(60, 1000), scale(100000, 4000000));
		w.remove(a);
		w.remove(b);
	}
}

TEST_P(fault, reorder_dup)
{
	if (!t.wire)
		GTEST_SKIP() << t.label << " has no wire to reorder packets";
	domain &d = w.open(t.wire({0, 100000, 100000, 1}));
	node &a = w.up(&d), &b = w.up(&d);
	traffic(a, b, scale(100, 2000), scale(200000, 4000000));
}

// Slower than any fixed time for a part of a buffer allows: the requester must ask for less.
TEST_P(fault, slow_way)
{
	if (!t.wire)
		GTEST_SKIP() << t.label << " has no wire to be slow";
	// The second case sends less in the time of a request than a request may ask for.
	for (const auto &[us, bulk] :
	     {std::pair{2000u, scale(1000000, 4000000)}, {10000u, 100000u}}) {
		domain &d = w.open(t.wire({0, 0, 0, 1, us}));
		node &a = w.up(&d), &b = w.up(&d);
		traffic(a, b, 8, bulk);
		w.remove(a);
		w.remove(b);
	}
}

TEST_P(fault, seq_wrap)
{
	if (t.near_wrap.empty() && !t.come_again)
		GTEST_SKIP() << t.label << " has no numbers that come again soon";
	domain &d = t.near_wrap.empty() ? w.home() : w.open(t.near_wrap);
	node &a = w.up(&d), &b = w.up(&d);
	// Operation after operation uses the same slot on either side.
	constexpr std::size_t size = 24;
	piece &there = w.memory(size, 1, &d), &here = w.memory(size, 1, &d);
	for (unsigned i = 0; t.come_again && i < t.come_again + 200; i++) {
		const bool read = i % 2;
		(read ? there : here).fill(i);
		ASSERT_EQ(b.passive(there, read ? queue_type::passive_bulk_send
						: queue_type::passive_bulk_recv),
			  0);
		ASSERT_EQ(
			a.active(here,
				 read ? queue_type::active_bulk_recv : queue_type::active_bulk_send,
				 there.buffer->descriptor()),
			0);
		ASSERT_TRUE(w.ended(a, here)) << i;
		ASSERT_TRUE(w.ended(b, there)) << i;
		ASSERT_EQ(a.record.of(*here.buffer)[0].status, 0) << i;
		ASSERT_EQ(b.record.of(*there.buffer)[0].status, 0) << i;
		ASSERT_EQ((read ? here : there).copy(0, size), patterned(i, size)) << i;
		ASSERT_EQ(a.record.count() + b.record.count(), 2u) << i;
		a.record.clear();
		b.record.clear();
	}
	for (unsigned round = 0; round < scale(1, 30); round++)
		traffic(a, b, 300, 1 << 20);
}

TEST_P(fault_once, peer_kill9)
{
	if (!w.home().traits().between_processes)
		GTEST_SKIP() << t.label << " has no other processes";
	const std::string where = w.next_address();
	node &a = w.up();
	endpoint_ptr to;
	ASSERT_EQ(a.tm.make_endpoint(where, to), 0);
	helper h(t, where);
	ASSERT_EQ(echo(a, to, 1), 0);
	node &rival = w.made();
	EXPECT_EQ(rival.start(where), -EADDRINUSE) << "the address is in use on this host";
	// There are no deadlines: the machine must notice the dead peer. Of the operations in
	// flight to a frozen peer, only small messages may count as sent, unless it still works.
	h.freeze();
	std::vector<piece *> small, large;
	const auto send_small = [&] {
		for (int i = 0; i < 10; i++) {
			small.push_back(&w.memory(1024));
			ASSERT_EQ(a.send(*small.back(), 1024, to), 0);
		}
	};
	send_small();
	for (queue_type q :
	     {queue_type::msg_send, queue_type::active_bulk_recv, queue_type::active_bulk_send}) {
		large.push_back(&w.memory(q == queue_type::msg_send ? 40000 : helper::bulk));
		piece &p = *large.back();
		ASSERT_EQ(q == queue_type::msg_send
				  ? a.send(p, 40000, to)
				  : a.active(p, q,
					     q == queue_type::active_bulk_recv ? h.readable
									       : h.writable),
			  0)
			<< name(q);
	}
	h.kill();
	send_small();
	const auto is_of_the_dead = [&](int status) {
		return status == -ECONNRESET || status == -ECONNREFUSED ||
		       status == -EHOSTUNREACH || (status == -EHOSTDOWN && t.tires);
	};
	for (piece *p : small) {
		ASSERT_TRUE(w.ended(a, *p));
		const int status = a.record.of(*p->buffer)[0].status;
		EXPECT_TRUE(
			is_of_the_dead(status) ||
			(!status && (t.works_frozen || !w.home().traits().reports_remote_errors)))
			<< status;
	}
	for (piece *p : large) {
		ASSERT_TRUE(w.ended(a, *p));
		const happened end = a.record.of(*p->buffer)[0];
		EXPECT_TRUE(is_of_the_dead(end.status) || (!end.status && t.works_frozen))
			<< name(end.queue) << ": " << end.status;
	}
	EXPECT_EQ(echo(a, to, 3), t.nobody) << "a knows that no machine is there";
	// A new machine at its address is reachable through the same end point.
	helper next(t, where);
	int r = 1;
	for (int i = 0; r && i < 20; i++)
		r = echo(a, to, 2);
	EXPECT_EQ(r, 0);
}

// Not at rest but in mid-transfer: memory shared with us stays as the dead process left it.
TEST_P(fault_once, peer_kill9_as_it_writes)
{
	if (!w.home().traits().between_processes)
		GTEST_SKIP() << t.label << " has no other processes";
	const std::string where = w.next_address();
	node &a = w.up();
	endpoint_ptr to;
	ASSERT_EQ(a.tm.make_endpoint(where, to), 0);
	piece &in = w.memory(helper::bulk);
	for (unsigned i = 0; i < 8; i++) {
		helper h(t, where);
		int r = 1;
		for (int n = 0; r && n < 20; n++)
			r = echo(a, to, i);
		ASSERT_EQ(r, 0);
		ASSERT_EQ(a.active(in, queue_type::active_bulk_recv, h.readable), 0);
		for (const auto until = clock::now() + i * 50us; clock::now() < until;)
			;
		h.kill();
		ASSERT_TRUE(w.ended(a, in)) << i;
		a.record.clear();
	}
}

// What a killed process held is free again: here its address. Machines and queue pairs of the
// module are counted where nobody else has any: coop_net/killed in tests/vm.
TEST_P(fault_once, self_kill9_no_leak)
{
	if (!w.home().traits().between_processes)
		GTEST_SKIP() << t.label << " has no other processes";
	const std::string where = w.next_address();
	node &a = w.up();
	endpoint_ptr to;
	ASSERT_EQ(a.tm.make_endpoint(where, to), 0);
	for (int i = 0; i < 3; i++) {
		helper h(t, where); // throws if the address is still in use
		int r = 1;
		for (int n = 0; r && n < 20; n++)
			r = echo(a, to, 1);
		ASSERT_EQ(r, 0);
		h.kill();
	}
}

TEST_P(fault, peer_restart_stale_packets)
{
	domain &d = t.wire ? w.open(t.wire({0, 200000, 200000, 3})) : w.home();
	const std::string where = w.next_address();
	node &a = w.up(&d);
	endpoint_ptr to;
	ASSERT_EQ(a.tm.make_endpoint(where, to), 0);
	std::vector<std::byte> old;
	for (unsigned round = 1; round <= 4; round++) {
		node &b = w.made(&d);
		ASSERT_TRUE(b.up(where));
		piece &here = w.memory(512, 1, &d);
		if (!old.empty()) {
			ASSERT_EQ(a.active(here, queue_type::active_bulk_recv, old), 0);
			ASSERT_TRUE(w.ended(a, here));
			EXPECT_NE(a.record.of(*here.buffer)[0].status, 0);
			EXPECT_TRUE(here.is(std::byte{0}, 0, 512));
		}
		piece &shown = w.memory(512, 1, &d);
		shown.fill(round);
		ASSERT_EQ(b.passive(shown, queue_type::passive_bulk_send), 0);
		old.assign(shown.buffer->descriptor().begin(), shown.buffer->descriptor().end());
		std::vector<piece *> in;
		for (int i = 0; i < 8; i++) {
			in.push_back(&w.memory(64, 1, &d));
			ASSERT_EQ(b.receive(*in.back()), 0);
		}
		// Messages sent before the restart is known may die with the old machine, but
		// soon one of this round arrives.
		for (unsigned tries = 0; b.record.messages().empty(); tries++) {
			ASSERT_LT(tries, 100u);
			piece &out = w.memory(64, 1, &d);
			out.fill(round);
			ASSERT_EQ(a.send(out, 64, to, clock::now() + 20s), 0);
			ASSERT_TRUE(w.ended(a, out));
			if (a.record.of(*out.buffer)[0].status == 0)
				ASSERT_TRUE(w.until([&] { return !b.record.messages().empty(); }));
		}
		for (const happened &h : b.record.messages())
			for (piece *p : in)
				if (p->buffer.get() == h.buffer)
					EXPECT_EQ(p->copy(0, 64), patterned(round, 64));
		// Leaves messages in flight to the machine that ends.
		for (int i = 0; i < 4; i++) {
			piece &out = w.memory(64, 1, &d);
			ASSERT_EQ(a.send(out, 64, to, clock::now() + 2s), 0);
		}
		w.remove(b);
		ASSERT_TRUE(w.until([&] { return a.tm.queued(queue_type::msg_send) == 0; }));
	}
}

TEST_P(fault, incast_16)
{
	constexpr unsigned senders = 16;
	const unsigned each = scale(40, 2000);
	node &sink = w.up();
	const std::size_t most = std::min<std::size_t>(4096, w.home().limits().max_message);
	piece &in = w.memory(std::size_t(senders) * each * most);
	ASSERT_EQ(sink.receive(in, most, senders * each), 0);
	struct source {
		node *n;
		endpoint_ptr to;
		std::vector<piece *> out;
	};
	std::vector<source> all;
	for (unsigned s = 0; s < senders; s++) {
		node &n = w.up();
		all.push_back({&n, n.to(sink), {}});
		for (unsigned i = 0; i < each; i++) {
			all[s].out.push_back(&w.memory(most));
			all[s].out[i]->fill(s * each + i);
		}
	}
	const auto length = [&](unsigned s, unsigned i) { return 1 + (s * 131 + i * 977) % most; };
	for (unsigned i = 0; i < each; i++)
		for (unsigned s = 0; s < senders; s++)
			ASSERT_EQ(all[s].n->send(*all[s].out[i], length(s, i), all[s].to), 0);
	ASSERT_TRUE(w.until([&] { return sink.record.count() >= senders * each; }));
	std::vector<unsigned> next(senders);
	std::vector<bool> seen(senders * each);
	for (const happened &h : sink.record.messages()) {
		unsigned s = 0;
		while (all[s].n->text() != h.sender->text())
			s++;
		unsigned i = next[s]++;
		if (t.ordered < most)
			for (i = 0; i < each && (seen[s * each + i] || h.length != length(s, i));)
				i++;
		ASSERT_LT(i, each);
		seen[s * each + i] = true;
		ASSERT_EQ(h.length, length(s, i)) << "in order from each";
		ASSERT_EQ(in.copy(h.offset, h.length), patterned(s * each + i, h.length));
	}
	for (source &s : all) {
		ASSERT_TRUE(w.until([&] { return s.n->record.count() == each; }));
		for (const happened &h : s.n->record.all())
			ASSERT_EQ(h.status, 0);
	}
}

TEST_P(fault, hostile_peer)
{
	if (!t.attack)
		GTEST_SKIP() << t.label << ": " << t.unattacked;
	node &a = w.up(), &b = w.up();
	piece &shown = w.memory(4096), &taken = w.memory(4096);
	shown.fill(1);
	ASSERT_EQ(b.passive(shown, queue_type::passive_bulk_send), 0);
	ASSERT_EQ(b.passive(taken, queue_type::passive_bulk_recv), 0);
	const unsigned seeds = scale(20, 2000);
	unsigned got_in = 0;
	for (unsigned seed = 1; seed <= seeds; seed++)
		for (const node *each : {&b, &a})
			got_in += t.attack(each->tm.address(), seed);
	EXPECT_GE(got_in, seeds) << "most greetings are valid";
	EXPECT_EQ(shown.copy(0, 4096), patterned(1, 4096));
	EXPECT_TRUE(taken.is(std::byte{0}, 0, 4096));
	EXPECT_TRUE(shown.buffer->queued());
	EXPECT_TRUE(taken.buffer->queued());
	EXPECT_EQ(a.tm.state(), tm_state::started);
	EXPECT_EQ(b.tm.state(), tm_state::started);
	traffic(a, b, 20, 10000);
}

TEST_P(fault, soak_mixed)
{
	constexpr unsigned nodes = soak::nodes;
	const std::size_t most = std::min(soak::size, w.home().limits().max_message);
	soak &s = w.keep<soak>();
	s.allowed = t.collateral;
	std::vector<node *> n;
	std::vector<std::vector<endpoint_ptr>> to(nodes);
	for (unsigned i = 0; i < nodes; i++) {
		n.push_back(&w.made());
		n[i]->record.on_event = [&s](const buffer_event &e) { s.look(e); };
		for (unsigned j = 0; j < soak::sources + soak::sinks; j++) {
			piece &p = w.memory(soak::size, 1 + j % 3);
			if (j < soak::sources)
				p.fill(soak::seed(i, j));
			s.by_buffer[p.buffer.get()] = &s.items[i].emplace_back(&p);
		}
		for (unsigned j = 0; i < soak::roomy && j < soak::rooms; j++) {
			piece &p = w.memory(soak::messages_a_room * most);
			s.rooms_of[p.buffer.get()] = &s.rooms_here.emplace_back(n[i], &p, most);
		}
	}
	for (unsigned i = 0; i < nodes; i++) {
		ASSERT_TRUE(n[i]->up(w.next_address()));
		s.by_address[n[i]->text()] = i;
	}
	for (unsigned i = 0; i < nodes; i++)
		for (unsigned j = 0; j < nodes; j++)
			to[i].push_back(n[i]->to(*n[j]));
	for (soak::room &r : s.rooms_here)
		r.open();
	std::mt19937 random(1);
	// Descriptors, good or stale, to read and to write; and the sources to read.
	std::vector<std::byte> offers[2];
	unsigned offered = 0;
	const unsigned steps = scale(4000, 400000);
	for (unsigned step = 0; step < steps; step++) {
		const unsigned i = random() % nodes;
		node &me = *n[i];
		const time_point deadline =
			random() % 4 ? never
				     : clock::now() + std::chrono::milliseconds(random() % 20);
		const unsigned what = random() % 9;
		const bool write = random() % 2;
		const bool fills = what < 2 || (what == 4 && write) || (what == 5 && !write);
		const unsigned j = random() % soak::sources;
		soak::item &it = s.items[i][fills ? soak::sources + j : j];
		if (what == 6) {
			const unsigned any = random() % (soak::sources + soak::sinks);
			soak::disturb(s.items[i][any]);
			(void)me.tm.del(*s.items[i][any].p->buffer);
			continue;
		}
		if (what == 8) {
			const unsigned k = random() % nodes, m = random() % soak::sources;
			soak::item &mine = s.items[i][write ? j : soak::sources + j];
			soak::item &theirs = s.items[k][write ? soak::sources + m : m];
			if (mine.adds != mine.finals || theirs.adds != theirs.finals)
				continue;
			mine.partner = &theirs;
			theirs.partner = &mine;
			mine.from = soak::seed(k, m);
			mine.sure = theirs.sure = true;
			mine.waits = theirs.waits = false;
			ASSERT_EQ(n[k]->passive(*theirs.p, write ? queue_type::passive_bulk_recv
								 : queue_type::passive_bulk_send),
				  0);
			theirs.adds++;
			ASSERT_EQ(me.active(*mine.p,
					    write ? queue_type::active_bulk_send
						  : queue_type::active_bulk_recv,
					    theirs.p->buffer->descriptor()),
				  0);
			mine.adds++;
			continue;
		}
		if (what == 7) {
			if (w.how.sync)
				me.tm.deliver_all();
			continue;
		}
		// Not before its last end has been checked.
		const bool idle = it.adds == it.finals;
		if (fills && !idle)
			continue;
		const unsigned whom = random() % nodes;
		const bool sure =
			idle && deadline == never && (what < 2 || (what < 4 && whom < soak::roomy));
		soak::disturb(it);
		it.partner = nullptr;
		it.waits = what < 2;
		it.sure = sure;
		int r = 0;
		if (what < 2) {
			r = me.receive(*it.p, most, 1 + random() % 3, deadline);
		} else if (what < 4) {
			r = me.send(*it.p, random() % most, to[i][whom],
				    deadline == never && !sure ? clock::now() + 5s : deadline);
		} else if (what == 4) {
			r = me.passive(*it.p,
				       write ? queue_type::passive_bulk_recv
					     : queue_type::passive_bulk_send,
				       0, clock::now() + std::chrono::milliseconds(random() % 50));
			if (r == 0) {
				const auto d = it.p->buffer->descriptor();
				offers[write].assign(d.begin(), d.end());
				if (!write)
					offered = soak::seed(i, j);
			}
		} else {
			if (!write)
				it.from = offered;
			r = me.active(
				*it.p,
				write ? queue_type::active_bulk_send : queue_type::active_bulk_recv,
				offers[write], 0, deadline == never ? clock::now() + 5s : deadline);
		}
		if (r == 0)
			it.adds++;
		else
			ASSERT_TRUE(r == -EBUSY || r == -ETIME || r == -EINVAL || r == -ENOBUFS)
				<< r;
		if (step % 32 == 31) { // gives others time
			const time_point next = clock::now() + 1ms;
			ASSERT_TRUE(w.until([&] { return clock::now() >= next; }));
		}
		if (step % 512 == 511) // so that the record stays small
			for (node *each : n)
				each->record.clear();
	}
	for (auto &items : s.items)
		for (soak::item &x : items)
			ASSERT_TRUE(
				w.until([&] { return !x.sure || x.waits || x.finals == x.adds; }));
	unsigned rounds = 0;
	do
		ASSERT_TRUE(soak_calmly(w, s, n, to, most));
	while ((!s.well || s.collateral > s.well || !s.messages || !s.read) && ++rounds < 20);
	for (soak::room &r : s.rooms_here) {
		r.over = true;
		ASSERT_TRUE(w.until([&] {
			(void)r.n->tm.del(*r.p->buffer);
			return r.finals == r.adds;
		}));
	}
	for (unsigned i = 0; i < nodes; i++) {
		std::size_t total = 0, adds = 0;
		for (const soak::room &r : s.rooms_here)
			total += r.n == n[i] ? r.adds.load() : 0;
		for (soak::item &x : s.items[i]) {
			soak::disturb(x);
			(void)n[i]->tm.del(*x.p->buffer);
			ASSERT_TRUE(w.until([&] { return x.finals == x.adds; }))
				<< x.finals << " ends of " << x.adds;
			EXPECT_FALSE(x.p->buffer->queued());
			total += x.adds;
		}
		for (unsigned j = 0; j < soak::sources; j++)
			EXPECT_EQ(s.items[i][j].p->copy(0, soak::size),
				  patterned(soak::seed(i, j), soak::size));
		for (unsigned q = 0; q < queue_types; q++) {
			adds += n[i]->tm.stats(queue_type(q)).adds;
			EXPECT_EQ(n[i]->tm.queued(queue_type(q)), 0u);
		}
		EXPECT_EQ(adds, total);
	}
	EXPECT_EQ(s.wrong, 0u) << "of " << s.messages << " messages, " << s.read << " reads and "
			       << s.written << " writes";
	EXPECT_EQ(s.badly, 0u) << "with " << s.worst << ", and " << s.well << " well";
	EXPECT_LE(s.collateral, s.well);
	EXPECT_GT(s.well, 0u);
	EXPECT_GT(s.messages, 0u);
	EXPECT_GT(s.read, 0u);
}

} // namespace conformance
