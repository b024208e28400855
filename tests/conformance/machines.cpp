// SPDX-License-Identifier: MIT
// machines.cpp - domains, and transfer machines from INITIALIZED to their end.
//
// Conformance tests dom_* and tm_*.
#include <cerrno>
#include <dirent.h>
#include <sched.h>
#include <sys/resource.h>

#include "userland/net/claim.hpp"
#include "world.hpp"

namespace conformance
{

namespace
{

// Tests that are the same with either delivery.
class machines_once : public suite
{
};
class machines : public suite
{
};
COOP_CONFORMANCE(machines_once, automatic);
COOP_CONFORMANCE(machines, both);

std::size_t open_descriptors()
{
	std::size_t n = 0;
	DIR *d = ::opendir("/proc/self/fd");
	while (::readdir(d))
		n++;
	::closedir(d);
	return n;
}

int error_of(const domain_options &o)
{
	try {
		domain d(o);
		return 0;
	} catch (const std::system_error &e) {
		return e.code().value();
	}
}

// Address numbers taken as other programs would take them, until destruction.
struct taken {
	explicit taken(const target &t) :
		transport(t.transport),
		private_(!domain({t.transport, t.options}).traits().between_processes)
	{
		EXPECT_EQ(parse(t.any, any), 0);
		if (transport == "ud" || transport == "kernel") { // their networks have no names
			any.net = network::tcp;
			any.instance = 0;
		}
	}
	int take(std::uint32_t id)
	{
		address a = any;
		a.id = id;
		claims.emplace_back();
		return claims.back().take(transport, a, private_);
	}
	std::string transport;
	bool private_;
	address any;
	std::vector<core::claim> claims;
};

} // namespace

TEST_P(machines_once, dom_init_fini)
{
	w.open(); // the first domain creates what a library keeps forever
	const std::size_t before = open_descriptors();
	for (int i = 0; i < 3; i++) {
		domain d({t.transport, t.options});
		EXPECT_EQ(d.transport(), t.transport);
	}
	EXPECT_EQ(open_descriptors(), before);
	EXPECT_EQ(error_of({"no such transport"}), EPROTONOSUPPORT);
	EXPECT_EQ(error_of({t.transport, {{"no such key", "1"}}}), EINVAL);
	EXPECT_EQ(domain::parameters("no such transport"), "");
}

TEST_P(machines_once, dom_multi)
{
	domain &one = w.open(), &other = w.open();
	node &a = w.up(&one), &b = w.up(&other);
	piece &in = w.memory(64, 1, &other), &out = w.memory(64, 1, &one);
	ASSERT_EQ(b.receive(in), 0);
	ASSERT_EQ(a.send(out, 64, a.to(b)), 0);
	EXPECT_TRUE(w.ended(b, in));
	EXPECT_TRUE(w.ended(a, out));
	// A buffer belongs to its domain.
	EXPECT_EQ(a.receive(in), -EINVAL);
}

TEST_P(machines_once, dom_limits)
{
	const domain_limits &l = w.home().limits();
	EXPECT_GE(l.max_message, 1024u);
	EXPECT_GE(l.max_buffer, l.max_message);
	EXPECT_GE(l.max_segment, 4096u);
	EXPECT_GE(l.max_segments, 2u);
	EXPECT_GE(l.max_queued, 64u);
	EXPECT_GE(l.max_descriptor, 16u);
	EXPECT_LE(l.max_descriptor, 1024u); // it travels in messages
	piece many(w.home(), std::size_t(l.max_segments) * 16, l.max_segments);
	EXPECT_EQ(many.buffer->segments().size(), l.max_segments);
}

TEST_P(machines, tm_fini_unstarted)
{
	node &n = w.made();
	EXPECT_EQ(n.tm.state(), tm_state::initialized);
	EXPECT_EQ(n.tm.fini(), 0);
	EXPECT_EQ(n.tm.state(), tm_state::undefined);
	EXPECT_EQ(n.start(w.next_address()), -EBADFD);
}

TEST_P(machines, tm_reinit)
{
	const std::string where = w.next_address();
	for (int i = 0; i < 3; i++) {
		node &n = w.made();
		ASSERT_TRUE(n.up(where));
		EXPECT_EQ(n.tm.fini(), -EBUSY);
		ASSERT_EQ(n.tm.stop(false), 0);
		EXPECT_EQ(n.tm.wait(tm_state::stopped, clock::now() + patience), 0);
		EXPECT_EQ(n.start(where), -EBADFD);
		EXPECT_EQ(n.tm.stop(true), -EBADFD);
		EXPECT_EQ(n.tm.fini(), 0);
		w.remove(n);
	}
}

TEST_P(machines, tm_start_event)
{
	node &n = w.made();
	piece &p = w.memory(64);
	EXPECT_EQ(n.receive(p), -EBADFD);
	EXPECT_FALSE(p.buffer->queued());
	const std::string where = w.next_address();
	ASSERT_TRUE(n.up(where));
	const auto states = n.record.states();
	ASSERT_EQ(states.size(), 1u);
	EXPECT_EQ(states[0].first.state, tm_state::started);
	EXPECT_EQ(states[0].first.machine, &n.tm);
	EXPECT_EQ(states[0].first.status, 0);
	EXPECT_NE(states[0].second, std::this_thread::get_id());
	EXPECT_EQ(n.text(), where);
	EXPECT_EQ(n.start(where), -EBADFD);
}

TEST_P(machines_once, tm_start_bad_addr)
{
	address good;
	ASSERT_EQ(parse(w.next_address(), good), 0);
	const std::string ip = own_ip(0);
	const std::string bad[] = {
		"",
		"*",
		ip,
		ip + "@tcp",
		ip + "@tcp:12345",
		ip + "@tcp:12345:31",
		ip + "@tcp:12345:31:0:0",
		ip + "@tcp:12345:31:",
		ip + "@tcp:12345:31:-1",
		ip + "@tcp:12345:31:4096",
		ip + "@tcp:12345:31:00",
		ip + "@tcp:12345:31: 0",
		ip + "@tcp:12345:64:0",
		ip + "@tcp:12344:31:0",
		ip + "@tcp65536:12345:31:0",
		ip + "@token:12345:31:0",
		"256.0.0.1@tcp:12345:31:0",
		"1.2.3@tcp:12345:31:0",
		"inet:tcp:" + ip,
		"inet:tcp:" + ip + "@0",
		"inet:tcp:" + ip + "@65536",
		"inet6:tcp:" + ip + "@1",
		std::string(81, '1'),
	};
	for (const std::string &text : bad) {
		node &n = w.made();
		EXPECT_EQ(n.start(text), -EINVAL) << text;
		EXPECT_EQ(n.tm.state(), tm_state::failed) << text;
		EXPECT_EQ(n.start(format(good)), -EBADFD) << "a failed start is final";
		EXPECT_EQ(n.tm.wait(tm_state::failed, clock::now()), 0);
		w.remove(n);
	}
	node &n = w.made();
	EXPECT_EQ(n.start(t.foreign), -ENOENT);
	EXPECT_EQ(n.tm.state(), tm_state::failed);
}

TEST_P(machines_once, tm_addr_in_use)
{
	const std::string where = w.next_address();
	node &a = w.made(), &b = w.made(), &c = w.made(&w.open());
	ASSERT_TRUE(a.up(where));
	EXPECT_EQ(b.start(where), -EADDRINUSE);
	EXPECT_EQ(c.start(where), -EADDRINUSE);
	EXPECT_EQ(b.tm.state(), tm_state::failed);
	w.remove(a);
	node &d = w.made();
	EXPECT_TRUE(d.up(where));
}

TEST_P(machines_once, tm_dyn_descending)
{
	for (std::uint32_t i = 0; i < 3; i++) {
		node &n = w.made();
		ASSERT_TRUE(n.up(t.any));
		EXPECT_EQ(n.tm.address().id, t.highest_id - i);
		EXPECT_FALSE(n.tm.address().wildcard());
	}
}

TEST_P(machines_once, tm_dyn_reuse)
{
	node &a = w.made(), &b = w.made(), &c = w.made();
	for (node *n : {&a, &b, &c})
		ASSERT_TRUE(n->up(t.any));
	// The address is free once the machine has stopped, not when its owner has finished with
	// it.
	ASSERT_EQ(b.tm.stop(true), 0);
	ASSERT_EQ(b.tm.wait(tm_state::stopped, clock::now() + patience), 0);
	node &d = w.made();
	ASSERT_TRUE(d.up(t.any));
	EXPECT_EQ(d.tm.address().id, t.highest_id - 1);
}

TEST_P(machines_once, tm_dyn_exhaust)
{
	if (t.highest_id != address::machines - 1)
		GTEST_SKIP() << "ports are too many to use up";
	rlimit r;
	ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &r), 0);
	const rlimit before = r;
	if (r.rlim_cur < 6000)
		r.rlim_cur = std::min<rlim_t>(r.rlim_max, 6000);
	::setrlimit(RLIMIT_NOFILE, &r);
	if (r.rlim_cur < 6000)
		GTEST_SKIP() << "needs 6000 descriptors; ulimit -Hn allows " << r.rlim_max;
	{
		taken all(t);
		for (std::uint32_t id = 0; id < address::machines; id++)
			ASSERT_EQ(all.take(id), 0) << id;
		node &n = w.made();
		EXPECT_EQ(n.start(t.any), -EADDRNOTAVAIL);
		EXPECT_EQ(n.tm.state(), tm_state::failed);
		all.claims[7].release();
		node &m = w.made();
		ASSERT_TRUE(m.up(t.any));
		EXPECT_EQ(m.tm.address().id, 7u);
	}
	::setrlimit(RLIMIT_NOFILE, &before);
}

TEST_P(machines, tm_stop_drain)
{
	constexpr unsigned n = 20;
	constexpr std::size_t bulk = 200000;
	node &a = w.up(), &b = w.up();
	piece &in = w.memory(n * 64), &unused = w.memory(64), &passive = w.memory(64);
	ASSERT_EQ(b.receive(in, 64, n), 0);
	ASSERT_EQ(a.receive(unused), 0);
	ASSERT_EQ(a.passive(passive, queue_type::passive_bulk_send), 0);
	piece &shown = w.memory(bulk, 3), &read = w.memory(bulk, 2);
	piece &taken = w.memory(bulk, 2), &written = w.memory(bulk, 3);
	shown.fill(100);
	written.fill(101);
	ASSERT_EQ(b.passive(shown, queue_type::passive_bulk_send), 0);
	ASSERT_EQ(b.passive(taken, queue_type::passive_bulk_recv), 0);
	const endpoint_ptr to = a.to(b);
	std::vector<piece *> out;
	for (unsigned i = 0; i < n; i++) {
		out.push_back(&w.memory(64));
		out[i]->fill(i);
		ASSERT_EQ(a.send(*out[i], 64, to), 0);
	}
	ASSERT_EQ(a.active(read, queue_type::active_bulk_recv, shown.buffer->descriptor()), 0);
	ASSERT_EQ(a.active(written, queue_type::active_bulk_send, taken.buffer->descriptor()), 0);
	ASSERT_EQ(a.tm.stop(false), 0);
	EXPECT_EQ(a.receive(w.memory(64)), -EBADFD);
	ASSERT_TRUE(w.until([&] { return a.record.came(tm_state::stopped); }));
	ASSERT_TRUE(w.until([&] { return a.record.count() == n + 4; }));
	for (piece *p : out) {
		ASSERT_EQ(a.record.finals(*p->buffer), 1u);
		EXPECT_EQ(a.record.of(*p->buffer)[0].status, 0);
	}
	for (piece *p : {&read, &written}) {
		ASSERT_EQ(a.record.finals(*p->buffer), 1u);
		EXPECT_EQ(a.record.of(*p->buffer)[0].status, 0);
	}
	EXPECT_EQ(a.record.of(*unused.buffer)[0].status, -ECANCELED);
	EXPECT_EQ(a.record.of(*passive.buffer)[0].status, -ECANCELED);
	// The other side has all of it.
	ASSERT_TRUE(w.until([&] { return b.record.messages().size() == n; }));
	std::vector<bool> seen(n);
	for (const happened &h : b.record.messages()) {
		ASSERT_EQ(h.status, 0);
		unsigned i = 0;
		while (i < n && (seen[i] || in.copy(h.offset, h.length) != patterned(i, 64)))
			i++;
		ASSERT_LT(i, n);
		seen[i] = true;
	}
	for (piece *p : {&shown, &taken}) {
		ASSERT_TRUE(w.ended(b, *p));
		EXPECT_EQ(b.record.of(*p->buffer)[0].status, 0);
	}
	EXPECT_EQ(read.copy(0, bulk), patterned(100, bulk));
	EXPECT_EQ(taken.copy(0, bulk), patterned(101, bulk));
}

TEST_P(machines, tm_stop_abort)
{
	domain &d = t.stall.empty() ? w.home() : w.open(t.stall);
	node &a = w.up(&d), &b = w.up(&d);
	std::vector<piece *> all, active;
	for (int i = 0; i < 4; i++) {
		all.push_back(&w.memory(256, 1, &d));
		ASSERT_EQ(a.receive(*all.back()), 0);
		all.push_back(&w.memory(256, 1, &d));
		ASSERT_EQ(a.passive(*all.back(), queue_type::passive_bulk_recv), 0);
		all.push_back(&w.memory(256, 1, &d));
		ASSERT_EQ(a.passive(*all.back(), queue_type::passive_bulk_send), 0);
	}
	// Without a stall these may end first.
	active.push_back(&w.memory(64, 1, &d));
	ASSERT_EQ(a.send(*active.back(), 64, a.to(b)), 0);
	const struct {
		queue_type active, passive;
	} pairs[] = {{queue_type::active_bulk_recv, queue_type::passive_bulk_send},
		     {queue_type::active_bulk_send, queue_type::passive_bulk_recv}};
	for (const auto &pair : pairs) {
		piece &there = w.memory(256, 1, &d);
		active.push_back(&w.memory(256, 1, &d));
		ASSERT_EQ(b.passive(there, pair.passive), 0);
		ASSERT_EQ(a.active(*active.back(), pair.active, there.buffer->descriptor()), 0);
	}
	ASSERT_EQ(a.tm.stop(true), 0);
	ASSERT_TRUE(w.until([&] {
		return a.record.came(tm_state::stopped) &&
		       a.record.count() >= all.size() + active.size();
	}));
	for (piece *p : all) {
		ASSERT_EQ(a.record.finals(*p->buffer), 1u);
		EXPECT_EQ(a.record.of(*p->buffer)[0].status, -ECANCELED);
		EXPECT_FALSE(p->buffer->queued());
	}
	for (piece *p : active) {
		ASSERT_EQ(a.record.finals(*p->buffer), 1u);
		const happened h = a.record.of(*p->buffer)[0];
		EXPECT_TRUE(h.status == -ECANCELED || (t.stall.empty() && h.status == 0))
			<< name(h.queue) << " ended with " << h.status;
		EXPECT_FALSE(p->buffer->queued());
	}
	EXPECT_EQ(a.record.count(), all.size() + active.size());
	for (unsigned q = 0; q < queue_types; q++)
		EXPECT_EQ(a.tm.queued(queue_type(q)), 0u) << name(queue_type(q));
	EXPECT_EQ(a.tm.state(), tm_state::stopped);
}

TEST_P(machines, tm_stop_while_starting)
{
	domain &usual = w.home();
	node &n = w.made(&w.open(t.slow_start));
	const std::string where = w.next_address();
	ASSERT_EQ(n.start(where), 0);
	if (!t.slow_start.empty())
		EXPECT_EQ(n.tm.state(), tm_state::starting);
	ASSERT_EQ(n.tm.stop(true), 0);
	EXPECT_EQ(n.tm.wait(tm_state::stopped, clock::now() + patience), 0);
	const auto states = n.record.states();
	ASSERT_FALSE(states.empty());
	EXPECT_EQ(states.back().first.state, tm_state::stopped);
	if (!t.slow_start.empty())
		EXPECT_EQ(states.size(), 1u);
	node &again = w.made(&usual);
	EXPECT_TRUE(again.up(where)) << "its address is free";
}

// For a callback of the last state, which always runs while fini() waits, and for one of a
// buffer: on the background thread, or in deliver_all() of a thread that knows nothing of fini().
TEST_P(machines, tm_fini_waits_callbacks)
{
	const bool sync = w.how.sync;
	auto n = std::make_unique<node>(w, w.home(), sync);
	std::atomic<bool> entered{false}, told{false}, finishing{false}, finished{false};
	std::atomic<unsigned> waited_for{0};
	std::atomic<bool> early{false};
	std::atomic<int> from_inside{0};
	// While a callback runs, fini() may begin but not end. linger() gives it time to.
	const auto linger = [&](auto &&begun) {
		const time_point end = clock::now() + patience;
		while (!begun() && clock::now() < end)
			std::this_thread::yield();
		const time_point late = clock::now() + 20ms;
		while (!finished && clock::now() < late)
			std::this_thread::yield();
		early = early || finished;
		waited_for += n->tm.state() == tm_state::undefined;
	};
	n->record.on_event = [&](const buffer_event &) {
		from_inside = n->tm.fini();
		entered = true;
		// If both callbacks run, this one stays longer, so that fini() waits for it
		// alone.
		linger([&] { return sync ? told.load() : finishing.load(); });
	};
	n->record.on_change = [&](const tm_event &e) {
		if (e.state != tm_state::stopped)
			return;
		linger([&] { return n->tm.state() == tm_state::undefined; });
		told = true;
	};
	ASSERT_TRUE(n->up(w.next_address()));
	piece &p = w.memory(64);
	ASSERT_EQ(n->receive(p), 0);
	ASSERT_TRUE(n->tm.del(*p.buffer));
	std::thread deliverer;
	if (sync)
		deliverer = std::thread([&] {
			while (!entered)
				(void)n->tm.deliver_all();
		});
	ASSERT_TRUE(w.until([&] { return entered.load(); }));
	EXPECT_EQ(from_inside, -EDEADLK);
	std::thread other([&] {
		EXPECT_EQ(n->tm.stop(true), 0);
		finishing = true;
		while (n->tm.fini() == -EBUSY)
			std::this_thread::yield();
		finished = true;
	});
	other.join();
	if (sync)
		deliverer.join();
	EXPECT_FALSE(early);
	EXPECT_GE(waited_for, sync ? 2u : 1u);
	EXPECT_EQ(n->record.finals(*p.buffer), 1u);
	EXPECT_TRUE(n->record.came(tm_state::stopped));
}

// Polls for a while, sleeps, and wakes again.
TEST_P(machines, tm_poll_before_block)
{
	node &a = w.made(), &b = w.made();
	for (node *n : {&a, &b}) {
		ASSERT_EQ(n->tm.poll_before_block(2ms), 0);
		ASSERT_TRUE(n->up(w.next_address()));
		EXPECT_EQ(n->tm.poll_before_block(2ms), -EBADFD);
	}
	const endpoint_ptr to = a.to(b);
	for (unsigned round = 0; round < 6; round++) {
		piece &in = w.memory(64), &out = w.memory(64);
		out.fill(round);
		ASSERT_EQ(b.receive(in), 0);
		ASSERT_EQ(a.send(out, 64, to), 0);
		ASSERT_TRUE(w.ended(b, in));
		ASSERT_TRUE(w.ended(a, out));
		EXPECT_EQ(in.copy(0, 64), patterned(round, 64));
		const time_point next = clock::now() + (round % 2 ? 0ms : 10ms);
		ASSERT_TRUE(w.until([&] { return clock::now() >= next; }));
	}
}

TEST_P(machines_once, tm_confine_cpu)
{
	cpu_set_t mine;
	ASSERT_EQ(::sched_getaffinity(0, sizeof(mine), &mine), 0);
	std::vector<unsigned> cpus;
	for (unsigned c = 0; c < CPU_SETSIZE; c++)
		if (CPU_ISSET(c, &mine))
			cpus.push_back(c);
	for (unsigned c : {cpus.front(), cpus.back()}) {
		node &n = w.made(), &peer = w.up();
		const unsigned none[] = {CPU_SETSIZE + 1}, one[] = {c};
		EXPECT_EQ(n.tm.confine({}), -EINVAL);
		EXPECT_EQ(n.tm.confine(none), -EINVAL);
		ASSERT_EQ(n.tm.confine(one), 0);
		// Outlives this scope: the machine stops after it.
		const auto state_cpu = std::make_shared<std::atomic<int>>(-1);
		n.record.on_change = [state_cpu](const tm_event &) {
			*state_cpu = ::sched_getcpu();
		};
		ASSERT_TRUE(n.up(w.next_address()));
		EXPECT_EQ(n.tm.confine(one), -EBADFD);
		EXPECT_EQ(*state_cpu, int(c));
		for (int i = 0; i < 5; i++) {
			piece &in = w.memory(64), &out = w.memory(64);
			ASSERT_EQ(n.receive(in), 0);
			ASSERT_EQ(peer.send(out, 64, peer.to(n)), 0);
			ASSERT_TRUE(w.ended(n, in));
		}
		for (const happened &h : n.record.all())
			EXPECT_EQ(h.cpu, int(c));
	}
}

} // namespace conformance
