// SPDX-License-Identifier: MIT
// Nodes in a file's forest: they wait for each other's loads, and load what others wait for.
#include <gtest/gtest.h>

#include "tests/unit/client/fakes.hpp"
#include "tests/unit/ud/pair.hpp"
#include "userland/client/loader.hpp"
#include "userland/client/membership.hpp"
#include "userland/client/node.hpp"

namespace
{

using namespace client_test;

constexpr std::uint64_t page = 4096;
constexpr std::uint64_t all = ~std::uint64_t{0};
constexpr std::uint64_t long_us = 20000000;

std::uint64_t now_us()
{
	using namespace std::chrono;
	return static_cast<std::uint64_t>(
		duration_cast<microseconds>(steady_clock::now().time_since_epoch()).count());
}

// ---- a block's levels ------------------------------------------------------------------

TEST(Levels, OnlyASmallerOneIsWaitedFor)
{
	const auto store = page_store::create(4 << 20, 12);
	const content c = make_content(1, 5, 64 * page);
	const block_ref b = store->get(c.key, 0, c.size);
	EXPECT_EQ(b->awaitable(COOP_LEVEL_NO_ROLE), 0u);
	ASSERT_EQ(b->claim(0xf, 9), 0xfu);
	EXPECT_EQ(b->awaitable(10), 0xfu);
	EXPECT_EQ(b->awaitable(9), 0u);
	ASSERT_EQ(b->claim(0xf0, 12), 0xf0u);
	EXPECT_EQ(b->awaitable(10), 0u) << "the greatest level of the block counts";
	EXPECT_EQ(b->awaitable(13), 0xffu);
	b->at_storage(0x3c, true);
	EXPECT_EQ(b->awaitable(10), 0x3cu);
	EXPECT_EQ(b->awaitable(COOP_LEVEL_REDIRECTED), 0x3cu);
	EXPECT_EQ(b->awaitable(COOP_LEVEL_STORAGE), 0u);
	b->publish(0x04, origin::storage);
	b->abandon(0x08);
	EXPECT_EQ(b->awaitable(10), 0x30u);
	b->at_storage(0x30, false);
	EXPECT_EQ(b->awaitable(10), 0u);
	b->abandon(0xff & ~0x0cu);
	ASSERT_EQ(b->claim(0x08, 9), 0x08u);
	EXPECT_EQ(b->awaitable(COOP_LEVEL_REDIRECTED), 0u) << "it is not at storage any more";
	b->abandon(0x08);
}

TEST(Levels, TheWatcherIsCalledOnceAWatch)
{
	const auto store = page_store::create(4 << 20, 12);
	int calls = 0;
	store->set_watcher([&] { calls++; });
	const content c = make_content(1, 5, 64 * page);
	const block_ref b = store->get(c.key, 0, c.size);
	ASSERT_EQ(b->claim(all), all);
	b->publish(1, origin::peer);
	EXPECT_EQ(calls, 0);
	b->watch();
	b->publish(2, origin::peer);
	b->publish(4, origin::peer);
	EXPECT_EQ(calls, 1);
	b->watch();
	b->abandon(all & ~7u);
	EXPECT_EQ(calls, 2);
}

// ---- two nodes --------------------------------------------------------------------------

// A parent's threads may not run for a while on a busy machine.
node_options patient()
{
	node_options o;
	o.peer_timeout_ms = 4000;
	return o;
}

struct machine {
	std::unique_ptr<page_store> store = page_store::create(32 << 20, 12);
	std::unique_ptr<node> n;
	explicit machine(node_options o = patient())
	{
		n = std::make_unique<node>(o, coop::ud::make_soft_roce(ud_test::options()), *store);
	}
	void fill(block &b, const content &c, std::uint64_t pages)
	{
		for (std::uint64_t left = pages; left != 0; left &= left - 1) {
			const auto p = static_cast<std::uint32_t>(std::countr_zero(left));
			fill_pattern(b.data(p), page, c.key.fid.lo, c.key.version,
				     (b.index() * 64 + p) * page);
		}
		b.publish(pages, origin::storage);
	}
};

struct asked {
	std::atomic<bool> done{false};
	fetch_outcome outcome{};
};

// a asks b, its parent, for the whole block 0 with a level of 9.
struct child_and_parent {
	machine b;
	machine a;
	content c = make_content(1, 5, 64 * page);
	block_ref mine;
	std::shared_ptr<asked> result = std::make_shared<asked>();

	explicit child_and_parent(node_options at_b = patient()) : b(at_b)
	{
		a.n->daemon_join(2, b.n->self());
		b.n->daemon_join(1, a.n->self());
	}
	void ask(std::uint32_t level = 9)
	{
		mine = a.store->get(c.key, 0, c.size);
		const std::uint64_t pages = mine->claim(all, level);
		fetch_sources from;
		from.parents[0] = 2;
		from.level = level;
		from.load = true;
		from.budget_us = 10000000;
		ASSERT_EQ(a.n->fetch(c.key, c.size, mine.clone(), pages, from,
				     [r = result](const fetch_outcome &o) {
					     r->outcome = o;
					     r->done = true;
				     }),
			  0);
	}
	bool until(const std::function<bool()> &ready)
	{
		a.n->drive_until(ready, now_us() + long_us);
		return ready();
	}
	bool waits()
	{
		return until([this] { return a.n->stats().waits == 1; });
	}
	// The bytes are right, and the block is no longer in use.
	void check(std::uint64_t good)
	{
		ASSERT_TRUE(until([this] { return result->done.load(); }));
		EXPECT_EQ(result->outcome.good, good);
		for (std::uint64_t left = good; left != 0; left &= left - 1) {
			const auto p = static_cast<std::uint32_t>(std::countr_zero(left));
			EXPECT_TRUE(is_pattern(mine->data(p), page, 1, 5, p * page)) << p;
		}
		mine->abandon(all & ~good);
	}
};

TEST(Forest, AChildWaitsForItsParentsLoad)
{
	child_and_parent t;
	const block_ref b = t.b.store->get(t.c.key, 0, t.c.size);
	ASSERT_EQ(b->claim(all, 8), all);
	t.ask();
	ASSERT_TRUE(t.waits());
	t.b.fill(*b, t.c, 0xffff);
	t.b.fill(*b, t.c, all & ~0xffffull);
	t.check(all);
	EXPECT_EQ(t.b.n->stats().serve_wait_pages, 64u);
}

TEST(Forest, WhatTheParentCouldNotLoadIsMissing)
{
	child_and_parent t;
	const block_ref b = t.b.store->get(t.c.key, 0, t.c.size);
	ASSERT_EQ(b->claim(all, 8), all);
	t.ask();
	ASSERT_TRUE(t.waits());
	t.b.fill(*b, t.c, 0xff);
	b->abandon(all & ~0xffull);
	t.check(0xff);
}

TEST(Forest, ALoadOfTheSameLevelIsNotWaitedFor)
{
	child_and_parent t;
	const block_ref b = t.b.store->get(t.c.key, 0, t.c.size);
	ASSERT_EQ(b->claim(all, 9), all);
	t.ask(9);
	t.check(0);
	b->abandon(all);
}

void parent_loads(std::uint64_t held)
{
	std::vector<wanted_pages> wanted;
	child_and_parent *test = nullptr;
	node_options o = patient();
	o.on_wanted = [&](const wanted_pages &w) {
		wanted.push_back(w);
		const block_ref b = test->b.store->get(w.key, w.block, test->c.size);
		const std::uint64_t pages = b->claim(w.pages, 8);
		test->b.fill(*b, test->c, pages);
	};
	child_and_parent t(o);
	test = &t;
	if (held != 0) {
		const block_ref b = t.b.store->get(t.c.key, 0, t.c.size);
		ASSERT_EQ(b->claim(held), held);
		t.b.fill(*b, t.c, held);
	}
	t.ask();
	t.check(all);
	ASSERT_EQ(wanted.size(), 1u);
	EXPECT_EQ(wanted[0].pages, held == 0 ? all : all & ~0xfull);
	EXPECT_EQ(wanted[0].level, 9u);
	EXPECT_LE(wanted[0].budget_us, 10000000u);
	EXPECT_GT(wanted[0].budget_us, 5000000u);
}

TEST(Forest, AParentLoadsWhatItLacks)
{
	parent_loads(0xf);
}

TEST(Forest, AParentLoadsAllOfABlock)
{
	parent_loads(0);
}

TEST(Forest, AParentThatCannotLoadSaysSoAtOnce)
{
	node_options o = patient();
	o.on_wanted = [](const wanted_pages &) {};
	child_and_parent t(o);
	const std::uint64_t begun = now_us();
	t.ask();
	t.check(0);
	EXPECT_LT(now_us() - begun, 8000000u) << "before the wait runs out";
	EXPECT_EQ(t.b.n->stats().serve_wait_timeouts, 0u);
}

// ---- membership ----------------------------------------------------------------------------

file_roles roles_of(const content &c, std::uint32_t parent, std::uint32_t level)
{
	file_roles r{};
	r.fid = c.key.fid;
	r.version = c.key.version;
	r.roles.members = 2;
	r.roles.n_colours = COOP_FOREST_COLOURS;
	for (coop_st_parents &p : r.roles.colours)
		p = {parent, 0, level};
	return r;
}

TEST(Membership, LastsFromTheRolesToTheLastClose)
{
	membership m;
	auto c = std::make_shared<content>(make_content(1, 5, 640 * page));
	m.on_roles(roles_of(*c, 3, 8));
	EXPECT_FALSE(m.place(c->key, 0).member) << "the file is not open";
	{
		const membership::opening opening(m, c->key.fid);
		m.on_roles(roles_of(*c, 3, 8)); // before the open's reply
		m.opened(c);
	}
	const forest_place p = m.place(c->key, 0);
	EXPECT_TRUE(p.member);
	EXPECT_FALSE(p.root());
	EXPECT_EQ(p.parents[0], 3u);
	EXPECT_EQ(p.level, 8u);
	EXPECT_FALSE(m.place(make_content(1, 6, 640 * page).key, 0).member) << "another version";
	EXPECT_EQ(m.open_content(c->key), c);
	auto second = std::make_shared<content>(*c);
	second->open_id = 8;
	{
		const membership::opening opening(m, c->key.fid);
		m.closed(c->key.fid, 7);
		EXPECT_TRUE(m.place(c->key, 0).member) << "it is being opened again";
		m.opened(second);
	}
	EXPECT_EQ(m.open_content(c->key), second);
	m.on_lost();
	EXPECT_FALSE(m.place(c->key, 0).member);
	EXPECT_EQ(m.open_content(c->key), second);
	m.on_roles(roles_of(*c, 0, 8));
	EXPECT_TRUE(m.place(c->key, 0).root());
	m.closed(c->key.fid, 8);
	EXPECT_FALSE(m.place(c->key, 0).member);
	EXPECT_EQ(m.open_content(c->key), nullptr);
	m.on_roles(roles_of(*c, 0, 8)); // the daemon had not heard of the close
	EXPECT_FALSE(m.place(c->key, 0).member);
}

// ---- the loader ---------------------------------------------------------------------------

struct loading {
	std::unique_ptr<page_store> store = page_store::create(32 << 20, 12);
	fake_node peers;
	fake_storage disk;
	membership members;
	loader l{*store, &peers, disk, &members, 2000000};
	std::shared_ptr<content> c = std::make_shared<content>(make_content(1, 5, 640 * page));

	loading()
	{
		disk.add(1, 5, c->size);
		c->openers = {11, 12, 13, 14};
		peers.deliver = [](const content_key &, std::uint64_t, std::uint64_t) {
			return std::uint64_t{0};
		};
	}
	void become(std::uint32_t parent, std::uint32_t level)
	{
		const membership::opening opening(members, c->key.fid);
		members.on_roles(roles_of(*c, parent, level));
		members.opened(c);
	}
	fetch_sources read(std::uint64_t index = 0)
	{
		const block_ref b = store->get(c->key, index, c->size);
		std::vector<claimed> what;
		what.push_back(l.claim(*c, b, all));
		l.load(*c, std::move(what), true);
		settle(*b);
		return peers.last;
	}
	void settle(block &b)
	{
		peers.tend();
		b.wait(all, std::chrono::steady_clock::now() + std::chrono::seconds(20));
		EXPECT_EQ(b.loading(), 0u);
	}
	wanted_pages wanted(std::uint32_t level) const
	{
		return {c->key, 1, 0xff, level, 800000, 0, 0};
	}
};

TEST(Loader, AsksAsBeforeWithoutRoles)
{
	loading t;
	const fetch_sources from = t.read();
	EXPECT_EQ(from.openers, t.c->openers);
	EXPECT_EQ(from.parents[0], 0u);
	EXPECT_EQ(from.level, 0u);
}

TEST(Loader, AsksParentsFirst)
{
	loading t;
	t.become(3, 10);
	const fetch_sources from = t.read();
	EXPECT_EQ(from.parents[0], 3u);
	EXPECT_EQ(from.level, 10u);
	EXPECT_TRUE(from.load);
	EXPECT_FALSE(from.relay);
	EXPECT_EQ(from.budget_us, 2000000u);
	EXPECT_EQ(from.openers, (std::vector<std::uint32_t>{14, 11}));
}

TEST(Loader, RelaysWithASmallerLevelThanItsPeer)
{
	loading t;
	t.l.relay(t.wanted(10));
	EXPECT_EQ(t.peers.fetches, 0u) << "no open file to read through";
	t.become(3, 10);
	t.l.relay(t.wanted(10));
	EXPECT_EQ(t.peers.last.level, 9u);
	EXPECT_TRUE(t.peers.last.relay);
	EXPECT_EQ(t.peers.last.parents[0], 3u);
	EXPECT_EQ(t.peers.last.budget_us, 700000u);
	const block_ref b = t.store->find(t.c->key, 1);
	ASSERT_TRUE(b);
	EXPECT_EQ(b->loading(), 0xffu);
	EXPECT_EQ(b->awaitable(10), 0xffu);
	t.settle(*b);
	EXPECT_EQ(b->valid(), 0xffu) << "from storage: the parent had nothing";
	EXPECT_EQ(t.l.relayed_pages(), 8u);
	t.l.relay({t.c->key, 2, 0xff, COOP_LEVEL_REDIRECTED + 1, 800000, 0, 0});
	EXPECT_FALSE(t.store->find(t.c->key, 2)) << "no level is left";
}

TEST(Loader, AsksTheNodesThatStorageNamesAndThenInsists)
{
	loading t;
	t.become(0, 8); // a root
	t.disk.holders = {21, 22};
	const block_ref b = t.store->get(t.c->key, 0, t.c->size);
	std::vector<claimed> what;
	what.push_back(t.l.claim(*t.c, b, all));
	t.l.load(*t.c, std::move(what), true);
	std::uint64_t good = 0xff;
	t.peers.deliver = [&](const content_key &, std::uint64_t, std::uint64_t p) {
		if (t.peers.last.parents[0] != 21)
			return std::uint64_t{0};
		EXPECT_EQ(b->awaitable(COOP_LEVEL_REDIRECTED), 0u);
		return p & good;
	};
	const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
	while (b->loading() != 0 && std::chrono::steady_clock::now() < until)
		t.peers.tend();
	EXPECT_EQ(b->valid(), all);
	EXPECT_EQ(t.peers.last.parents[1], 22u);
	EXPECT_EQ(t.peers.last.level, std::uint32_t{COOP_LEVEL_REDIRECTED});
	EXPECT_FALSE(t.peers.last.load);
	EXPECT_EQ(t.l.redirected_pages(), 64u);
	EXPECT_EQ(t.disk.bytes, 56 * page) << "what they did not have";
}

TEST(Loader, KeepsTheLevelOfItsClaim)
{
	loading t;
	t.become(3, 10);
	const block_ref b = t.store->get(t.c->key, 0, t.c->size);
	std::vector<claimed> what;
	what.push_back(t.l.claim(*t.c, b, all));
	t.become(3, 14); // a node joined meanwhile
	t.l.load(*t.c, std::move(what), true);
	t.settle(*b);
	EXPECT_EQ(t.peers.last.level, 10u);
}

TEST(Loader, BoundsWhatItLoadsForOthers)
{
	loading t;
	t.become(3, 10);
	for (std::uint64_t i = 0; i < 100; i++)
		t.l.relay({t.c->key, i % 10, std::uint64_t{1} << i / 10, 10, 800000, 0, 0});
	EXPECT_EQ(t.peers.fetches, 100u);
	t.peers.tend();
	t.l.relay({t.c->key, 0, all, 10, 60000000, 0, 0});
	EXPECT_EQ(t.peers.last.budget_us, 2000000u) << "no longer than this node's own loads";
	t.settle(*t.store->find(t.c->key, 0));
}

TEST(Loader, TellsWhenItIsAtStorage)
{
	loading t;
	t.become(3, 10);
	t.disk.hold();
	const block_ref b = t.store->get(t.c->key, 0, t.c->size);
	std::vector<claimed> what;
	what.push_back(t.l.claim(*t.c, b, all));
	t.l.load(*t.c, std::move(what), true);
	EXPECT_EQ(b->awaitable(10), 0u) << "still at its parent";
	t.peers.tend();
	EXPECT_EQ(b->awaitable(10), all);
	t.disk.release();
	t.settle(*b);
	EXPECT_EQ(b->valid(), all);
}

} // namespace
