// SPDX-License-Identifier: MIT
// Nodes over soft RoCE on loopback, in one process: no wrong page whatever the wire does, every
// fetch ends, and no reader waits for a dead peer.
#include <gtest/gtest.h>

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <random>

#include "tests/unit/client/fakes.hpp"
#include "tests/unit/ud/pair.hpp"
#include "userland/client/node.hpp"

namespace
{

using namespace client_test;

constexpr std::uint64_t page = 4096;
constexpr std::uint64_t all = ~std::uint64_t{0};
constexpr std::uint64_t long_us = 20000000; // limit for fetches that never end

std::uint64_t now_us()
{
	using namespace std::chrono;
	return static_cast<std::uint64_t>(
		duration_cast<microseconds>(steady_clock::now().time_since_epoch()).count());
}

// A peer's threads may not run for a while on a busy machine. Tests of what time does have less.
node_options patient()
{
	node_options o;
	o.peer_timeout_ms = 4000;
	return o;
}

struct machine {
	std::unique_ptr<page_store> store;
	std::unique_ptr<node> n;

	explicit machine(coop::ud::wire_faults faults = {}, node_options o = patient(),
			 std::uint32_t mtu = COOP_MTU_MAX, unsigned page_shift = 12) :
		store(page_store::create(32 << 20, page_shift))
	{
		coop::ud::soft_roce_options e = ud_test::options();
		e.mtu = mtu;
		e.faults = faults;
		n = std::make_unique<node>(o, coop::ud::make_soft_roce(e), *store);
	}
	// Puts pages of a file into the store, as if read from storage.
	void hold(const content &c, std::uint64_t block, std::uint64_t pages = all)
	{
		const unsigned shift = store->page_shift();
		const block_ref b = store->get(c.key, block, c.size);
		const std::uint64_t mine = b->claim(pages);
		for (std::uint64_t left = mine; left != 0; left &= left - 1) {
			const auto p = static_cast<std::uint32_t>(std::countr_zero(left));
			fill_pattern(b->data(p), std::size_t{1} << shift, c.key.fid.lo,
				     c.key.version, (block * 64 + p) << shift);
		}
		zero_tail(*b, mine, c.size, shift);
		b->publish(mine, origin::storage);
	}
	struct result {
		int err = 0;
		std::uint64_t good = 0;
		bool ended = false;
	};
	// Fetches into a block, waits, checks every delivered page, and drops the block.
	result fetch(const content &c, std::uint64_t block, std::uint64_t pages = all)
	{
		struct shared {
			std::atomic<bool> done{false};
			fetch_outcome outcome{};
		};
		auto s = std::make_shared<shared>();
		const block_ref b = store->get(c.key, block, c.size);
		const std::uint64_t mine = b->claim(pages);
		result r;
		r.err = n->fetch(c.key, c.size, b.clone(), mine, {c.openers},
				 [s](const fetch_outcome &o) {
					 s->outcome = o;
					 s->done = true;
				 });
		if (r.err == 0) {
			n->drive_until([s] { return s->done.load(); }, now_us() + long_us);
			EXPECT_TRUE(s->done) << "a fetch did not end";
			r.ended = s->done;
			r.err = s->outcome.err;
			r.good = s->outcome.good;
		}
		EXPECT_EQ(b->valid() & mine, r.good);
		for (std::uint64_t left = r.good; left != 0; left &= left - 1) {
			const auto p = static_cast<std::uint32_t>(std::countr_zero(left));
			const unsigned shift = store->page_shift();
			const std::uint64_t at = (block * 64 + p) << shift;
			const std::uint64_t length =
				std::min<std::uint64_t>(std::uint64_t{1} << shift, c.size - at);
			EXPECT_TRUE(is_pattern(b->data(p), length, c.key.fid.lo, c.key.version, at))
				<< "WRONG PAGE " << p;
			for (std::uint64_t i = length; i < std::uint64_t{1} << shift; i++)
				EXPECT_EQ(b->data(p)[i], std::byte{0}) << "tail";
		}
		if (r.ended || r.err != 0)
			b->abandon(mine & ~r.good);
		store->drop(c.key);
		return r;
	}
};

void introduce(machine &a, machine &b)
{
	ASSERT_EQ(a.n->add_by_hand(b.n->self()), 0);
}

TEST(Node, APeerWithSmallerDatagramsNeedsMoreReceives)
{
	machine a({}, patient(), 276), b({}, patient(), 272);
	introduce(a, b);
	const content c = make_content(1, 5, 64 * page);
	b.hold(c, 0);
	const std::uint64_t pages = (std::uint64_t{1} << 43) - 1;
	EXPECT_EQ(a.fetch(c, 0, pages).good, pages);
}

TEST(Node, WholeBlocksAndLonePages)
{
	machine a, b;
	introduce(a, b);
	const content c = make_content(1, 5, 300 * page + 123);
	for (std::uint64_t i = 0; i < 5; i++)
		b.hold(c, i);
	for (std::uint64_t i = 0; i < 4; i++) {
		const auto r = a.fetch(c, i);
		EXPECT_EQ(r.good, all);
		EXPECT_EQ(r.err, 0);
	}
	EXPECT_EQ(a.fetch(c, 4).good, (std::uint64_t{1} << 45) - 1) << "to the end of the file";
	EXPECT_EQ(a.fetch(c, 1, 1 << 9).good, 1u << 9);
	EXPECT_EQ(a.fetch(c, 1, 0x00ff00f000f0000f).good, 0x00ff00f000f0000fu);
	const auto peers = a.n->peers();
	ASSERT_EQ(peers.size(), 1u);
	EXPECT_EQ(peers[0].health, std::uint32_t{COOP_PEER_HEALTHY});
	EXPECT_GE(b.n->stats().serve_pages, a.n->stats().pages_ok) << "some may have come twice";
}

TEST(Node, PagesThatThePeerLacks)
{
	machine a, b;
	introduce(a, b);
	const content c = make_content(1, 5, 128 * page);
	b.hold(c, 0, 0x0123456789abcdef);
	EXPECT_EQ(a.fetch(c, 0).good, 0x0123456789abcdefu);
	const auto r = a.fetch(c, 1);
	EXPECT_EQ(r.good, 0u);
	EXPECT_NE(r.err, 0);
	// Another version is another content.
	EXPECT_EQ(a.fetch(make_content(1, 6, 128 * page), 0).good, 0u);
}

TEST(Node, NobodyToAsk)
{
	machine a, b;
	const content c = make_content(1, 5, 64 * page);
	EXPECT_EQ(a.fetch(c, 0).err, -ENOENT);
	content hinted = c;
	hinted.openers = {77};
	EXPECT_EQ(a.fetch(hinted, 0).err, -ENOENT) << "an id without an address";
	b.hold(c, 0);
	a.n->daemon_join(77, b.n->self());
	EXPECT_EQ(a.fetch(hinted, 0).good, all);
	EXPECT_EQ(a.fetch(c, 0).err, -ENOENT) << "the daemon's peers are asked where hinted";
	a.n->daemon_join(78, b.n->self()); // came back with another id
	a.n->daemon_leave(77);
	hinted.openers = {78};
	EXPECT_EQ(a.fetch(hinted, 0).good, all);
	a.n->daemon_forget_all();
	EXPECT_EQ(a.fetch(hinted, 0).err, -ENOENT);
	EXPECT_EQ(a.n->add_by_hand(a.n->self()), -EINVAL);
	EXPECT_EQ(a.n->add_by_hand(coop_addr{}), -EINVAL);
}

TEST(Node, SmallMtuAndLargePages)
{
	struct shape {
		std::uint32_t mtu;
		unsigned page_shift;
	};
	for (const shape s : {shape{256, 12}, shape{1024, 12}, shape{1024, 16}, shape{4096, 16}}) {
		machine a({}, patient(), s.mtu, s.page_shift),
			b({}, patient(), s.mtu, s.page_shift);
		introduce(a, b);
		const content c = make_content(1, 5, std::uint64_t{64} << s.page_shift);
		b.hold(c, 0);
		const std::uint64_t good = a.fetch(c, 0).good;
		EXPECT_EQ(good & 0xffff, 0xffffu) << s.mtu << " " << s.page_shift;
	}
}

TEST(Node, FaultyWire)
{
	for (const std::uint32_t ppm : {10000u, 100000u, 300000u}) {
		coop::ud::wire_faults faults{ppm, ppm, ppm, ppm, ppm + 17};
		node_options o;
		o.peer_timeout_ms = ppm == 10000 ? 2000 : 20;
		o.page_crc = ppm == 100000;
		o.page_mac = ppm == 10000;
		machine a(faults, o), b(faults, o);
		introduce(a, b);
		const content c = make_content(1, 5, 64 * 8 * page);
		for (std::uint64_t i = 0; i < 8; i++)
			b.hold(c, i);
		std::mt19937_64 rng(ppm);
		std::uint64_t delivered = 0;
		for (int i = 0; i < 60; i++) {
			const auto r = a.fetch(c, rng() % 8, rng() % 4 == 0 ? all : rng());
			if (r.err == -ENOENT && !r.ended)
				std::this_thread::sleep_for(std::chrono::milliseconds(5));
			delivered += static_cast<std::uint64_t>(std::popcount(r.good));
		}
		if (ppm == 10000) {
			EXPECT_GT(delivered, 500u);
		}
	}
}

// Many threads fetch at once, in both directions, over a bad wire.
TEST(Node, ManyThreadsBothWays)
{
	coop::ud::wire_faults faults{5000, 5000, 20000, 1000, 3};
	node_options o = patient();
	o.num_srpc = 4;
	o.num_rrpc = 4;
	machine a(faults, o), b(faults, o);
	introduce(a, b);
	introduce(b, a);
	std::vector<std::thread> threads;
	std::atomic<std::uint64_t> delivered{0};
	for (std::uint64_t t = 0; t < 6; t++)
		threads.emplace_back([&, t] {
			machine &mine = t % 2 != 0 ? a : b, &other = t % 2 != 0 ? b : a;
			const content c = make_content(10 + t, 5, 64 * 4 * page);
			for (std::uint64_t i = 0; i < 4; i++)
				other.hold(c, i);
			for (std::uint64_t i = 0; i < 40; i++)
				delivered += static_cast<std::uint64_t>(
					std::popcount(mine.fetch(c, i % 4).good));
		});
	for (std::thread &t : threads)
		t.join();
	EXPECT_GT(delivered, 64u);
	EXPECT_EQ(a.n->in_flight(), 0u);
	EXPECT_TRUE(a.n->requests().empty() || a.n->requests()[0].serve);
}

// The first fetch waits for the deadline; later ones do not, because the circuit is open.
TEST(Node, DeadPeerAndItsReturn)
{
	node_options o;
	o.peer_timeout_ms = 20;
	machine a({}, o);
	const content c = make_content(1, 5, 64 * page);
	auto b = std::make_unique<machine>();
	introduce(a, *b);
	b->hold(c, 0);
	const auto comes = [&] {
		for (const std::uint64_t until = now_us() + long_us; now_us() < until;) {
			if (a.fetch(c, 0).good == all)
				return true;
			std::this_thread::sleep_for(std::chrono::milliseconds(1));
		}
		return false;
	};
	ASSERT_TRUE(comes());
	b.reset();
	int refused = 0;
	for (int i = 0; i < 30; i++) {
		const auto r = a.fetch(c, 0);
		EXPECT_EQ(r.good, 0u);
		EXPECT_NE(r.err, 0);
		refused += !r.ended;
	}
	EXPECT_GT(refused, 20) << "a dead peer must not be asked every time";
	// Another process with another queue pair number.
	machine again;
	introduce(a, again);
	again.hold(c, 0);
	EXPECT_TRUE(comes());
}

TEST(Node, TakesANewKeyWhileItReadsAndServes)
{
	node_options brief;
	brief.peer_timeout_ms = 200;
	machine a({}, brief), b({}, brief);
	introduce(a, b);
	const content c = make_content(1, 5, 64 * page), d = make_content(2, 5, 64 * page);
	b.hold(c, 0);
	b.hold(d, 0);
	std::atomic<std::uint32_t> ended{0};
	std::atomic<bool> stop{false};
	std::thread reader([&] {
		for (; !stop; ended++)
			a.fetch(d, 0); // any part, and all that it gives is right
	});
	const auto another = [&] {
		const std::uint64_t end = now_us() + long_us;
		const std::uint32_t seen = ended;
		while (ended == seen && now_us() < end)
			std::this_thread::yield();
		EXPECT_NE(ended, seen);
	};
	for (std::uint8_t run = 1; run <= 5; run++) {
		std::array<std::uint8_t, 16> key{};
		key.fill(run);
		a.n->rekey(key);
		if (run % 2 != 0)
			another(); // with the peer's old key
		b.n->rekey(key);
		another();
		another();
	}
	stop = true;
	reader.join();
	const std::uint64_t end = now_us() + long_us;
	std::uint64_t good = 0;
	while (good != all && now_us() < end)
		good = a.fetch(c, 0).good;
	EXPECT_EQ(good, all);
	EXPECT_EQ(a.n->stats().crc_bad + a.n->stats().tag_bad, 0u);
}

TEST(Node, CallbacksMayFetchAgainAndTheEndEndsThem)
{
	auto a = std::make_unique<machine>();
	machine b;
	introduce(*a, b);
	const content c = make_content(1, 5, 64 * 64 * page);
	for (std::uint64_t i = 0; i < 64; i++)
		b.hold(c, i);
	std::atomic<int> ended{0}, started{0};
	node *const n = a->n.get(); // its destructor runs callbacks, when a->n is null
	std::function<void(std::uint64_t)> next = [&](std::uint64_t i) {
		block_ref pin = a->store->get(c.key, i, c.size);
		auto keep = std::make_shared<block_ref>(pin.clone());
		const std::uint64_t mine = pin->claim(all);
		const int err = n->fetch(c.key, c.size, std::move(pin), mine, {},
					 [&, i, keep, mine](const fetch_outcome &o) {
						 (*keep)->abandon(mine & ~o.good);
						 *keep = block_ref();
						 ended++;
						 if (o.good == all && i + 1 < 20)
							 next(i + 1);
					 });
		if (err == 0)
			started++;
		else
			(*keep)->abandon(mine);
	};
	next(0);
	a->n->drive_until([&] { return ended >= 10; }, now_us() + long_us);
	EXPECT_GE(ended, 10);
	for (std::uint64_t i = 30; i < 60; i++)
		next(i);
	a->n.reset(); // with fetches in flight
	EXPECT_EQ(ended, started) << "every done callback runs once";
}

// The background thread finishes readahead that no reader waits for.
TEST(Node, BackgroundFinishesWhatNobodyWaitsFor)
{
	machine a, b;
	introduce(a, b);
	const content c = make_content(1, 5, 64 * page);
	b.hold(c, 0);
	block_ref pin = a.store->get(c.key, 0, c.size);
	const std::uint64_t mine = pin->claim(all);
	ASSERT_EQ(a.n->fetch(c.key, c.size, pin.clone(), mine, {}, [](const fetch_outcome &) {}),
		  0);
	a.n->tend();
	EXPECT_EQ(pin->wait(all, std::chrono::steady_clock::now() + std::chrono::seconds(20)), all);
}

TEST(Node, WakeEndsAWait)
{
	machine a;
	std::atomic<bool> flag{false};
	std::vector<std::thread> waiting;
	for (int i = 0; i < 3; i++) // one drives, two follow
		waiting.emplace_back([&] {
			const std::uint64_t until = now_us() + long_us;
			a.n->drive_until([&] { return flag.load(); }, until);
			EXPECT_LT(now_us(), until);
		});
	std::this_thread::sleep_for(std::chrono::milliseconds(5));
	flag = true;
	a.n->wake();
	for (std::thread &t : waiting)
		t.join();
}

// Datagrams of any length and content at UDP port 4791: the node only counts and drops them.
TEST(Node, HostileDatagrams)
{
	machine a, b;
	introduce(a, b);
	const content c = make_content(1, 5, 64 * page);
	b.hold(c, 0);
	const int s = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	ASSERT_GE(s, 0);
	sockaddr_in to{};
	to.sin_family = AF_INET;
	to.sin_port = htons(4791);
	std::memcpy(&to.sin_addr, b.n->self().gid + 12, 4);
	std::mt19937_64 rng(2);
	const std::uint32_t qpn = b.n->self().qpn, qkey = b.n->self().qkey;
	for (int i = 0; i < 3000; i++) {
		std::uint8_t buf[9000];
		for (std::uint8_t &v : buf)
			v = static_cast<std::uint8_t>(rng());
		// Half of them look like a send to the control queue pair, with a random ICRC.
		if (i % 2 != 0) {
			const std::uint8_t head[] = {0x64,
						     0,
						     0xff,
						     0xff,
						     0,
						     std::uint8_t(qpn >> 16),
						     std::uint8_t(qpn >> 8),
						     std::uint8_t(qpn),
						     0,
						     0,
						     0,
						     0,
						     std::uint8_t(qkey >> 24),
						     std::uint8_t(qkey >> 16),
						     std::uint8_t(qkey >> 8),
						     std::uint8_t(qkey)};
			std::memcpy(buf, head, sizeof(head));
		}
		(void)::sendto(s, buf, rng() % sizeof(buf), 0,
			       reinterpret_cast<const sockaddr *>(&to), sizeof(to));
	}
	::close(s);
	EXPECT_EQ(a.fetch(c, 0).good, all);
}

// The same past the ICRC, from an endpoint of the fabric that knows the Q_Key.
TEST(Node, HostileMessages)
{
	machine a, b;
	introduce(a, b);
	const content c = make_content(1, 5, 64 * page);
	b.hold(c, 0);
	auto ep = coop::ud::make_soft_roce(ud_test::options());
	const int qp = ep->create_qp({64, 1, 2, 5});
	ASSERT_GE(qp, 0);
	std::vector<std::uint8_t> buf(COOP_MTU_MAX);
	ASSERT_EQ(ep->register_memory(buf.data(), buf.size()), 0);
	std::mt19937_64 rng(6);
	for (int i = 0; i < 2000; i++) {
		for (std::uint8_t &v : buf)
			v = static_cast<std::uint8_t>(rng());
		const coop::ud::sge list{buf.data(),
					 static_cast<std::uint32_t>(
						 i % 3 != 0 ? rng() % 513 : rng() % COOP_MTU_MAX)};
		coop::ud::send_wr wr{};
		wr.list = &list;
		wr.n_sge = 1;
		wr.imm = static_cast<std::uint32_t>(rng());
		wr.has_imm = i % 5 == 0;
		EXPECT_EQ(ep->post_send(static_cast<std::uint32_t>(qp), b.n->self(), {&wr, 1}), 1);
		coop::ud::completion done[64];
		while (ep->poll(done) != 0) {}
	}
	EXPECT_EQ(a.fetch(c, 0).good, all);
	const auto s = b.n->stats();
	EXPECT_GT(s.ctrl_rx + s.ctrl_short + s.ctrl_mac, 0u);
}

TEST(Node, AnIdleNodeSleeps)
{
	machine a, b;
	introduce(a, b);
	const content c = make_content(1, 5, 64 * page);
	b.hold(c, 0);
	for (int i = 0; i < 100; i++)
		a.fetch(c, 0, 1);
	std::this_thread::sleep_for(std::chrono::milliseconds(50));
	rusage before, after;
	::getrusage(RUSAGE_SELF, &before);
	const std::uint64_t begun = now_us();
	std::this_thread::sleep_for(std::chrono::milliseconds(300));
	::getrusage(RUSAGE_SELF, &after);
	// Voluntary switches count wake-ups; two polling nodes would make thousands.
	EXPECT_LT(after.ru_nvcsw - before.ru_nvcsw, static_cast<long>((now_us() - begun) / 3000));
}

} // namespace
