// SPDX-License-Identifier: MIT
// redirects.cpp - shared reads: a member that reads what another one was sent is told to ask there,
// and every read that insists gets bytes.
#include "members_rig.hpp"

#include <condition_variable>
#include <functional>
#include <map>
#include <random>

#include "userland/daemon/holders.hpp"

using namespace rig;
using coop::daemon::file_version;
using coop::daemon::holder_table;
using coop::daemon::page_range;

namespace
{

constexpr std::uint64_t unit = COOP_FOREST_UNIT_PAGES;
using nodes = std::vector<std::uint32_t>;

// Nodes 10, 11, ... read one version of a file.
class shared_units : public testing::Test
{
protected:
	static constexpr file_version f = {{1, 2}, 3};

	void join(std::uint32_t n)
	{
		while (n--)
			table_.joined(10 + count_++, true);
	}
	// The nodes that are named to node 10 + i; none: it is sent the bytes.
	nodes ask(std::uint32_t i, page_range pages, const file_version &file = f,
		  bool may_redirect = true, bool insists = false, bool chained = false)
	{
		holder_table::answer out;
		const bool named = table_.redirect(
			10 + i, file, {pages, pages, may_redirect, insists, chained}, out);
		EXPECT_EQ(named, !out.nodes.empty());
		level_ = out.level;
		return out.nodes;
	}
	nodes insist(std::uint32_t i, page_range pages) { return ask(i, pages, f, true, true); }
	nodes chained(std::uint32_t i, page_range pages = {0, unit})
	{
		return ask(i, pages, f, true, false, true);
	}

	holder_table table_{unit * 4, 8};
	std::uint32_t count_ = 0, level_ = 0;
};

} // namespace

TEST_F(shared_units, the_next_node_is_told_of_the_one_that_was_sent_the_pages)
{
	join(3);
	EXPECT_EQ(ask(0, {0, unit}), nodes{});
	EXPECT_EQ(ask(1, {0, unit}), nodes{10});
	EXPECT_EQ(level_, COOP_LEVEL_REDIRECTED + 0u);
	EXPECT_EQ(ask(2, {3, 4}), nodes{10});
	EXPECT_EQ(ask(0, {0, unit}), nodes{}) << "never of itself";
	EXPECT_EQ(ask(1, {unit, 2 * unit}), nodes{}) << "another unit";
	EXPECT_EQ(ask(2, {0, 2 * unit}), (nodes{10, 11}));
	EXPECT_EQ(ask(2, {0, 3 * unit}), nodes{}) << "a unit that no node was sent";
	EXPECT_EQ(ask(1, {0, unit}), nodes{12}) << "it was sent the same, and named less often";
}

TEST_F(shared_units, who_insists_is_sent_the_bytes_and_named_from_then_on)
{
	join(3);
	EXPECT_EQ(ask(0, {0, unit}), nodes{});
	EXPECT_EQ(insist(1, {0, unit}), nodes{});
	EXPECT_EQ(ask(2, {0, unit}), nodes{11});
}

TEST_F(shared_units, who_lacks_some_pages_is_still_named_for_the_others)
{
	join(3);
	EXPECT_EQ(ask(0, {0, unit}), nodes{});
	EXPECT_EQ(insist(1, {5, 6}), nodes{});
	EXPECT_EQ(ask(2, {5, 6}), nodes{11}) << "not of the one that lacks the page";
	EXPECT_EQ(ask(2, {6, unit}), nodes{10});
	EXPECT_EQ(insist(1, {6, unit}), nodes{});
	EXPECT_EQ(insist(1, {0, 5}), nodes{});
	EXPECT_EQ(ask(2, {0, unit}), nodes{11}) << "nothing is left of it";
}

TEST_F(shared_units, a_read_that_cannot_be_redirected_is_sent_and_changes_no_holder)
{
	join(3);
	EXPECT_EQ(ask(0, {0, unit}), nodes{});
	EXPECT_EQ(ask(1, {0, unit}, f, false), nodes{});
	EXPECT_EQ(ask(2, {0, unit}), nodes{10});
}

TEST_F(shared_units, parts_of_units_are_known_apart)
{
	join(3);
	EXPECT_EQ(ask(0, {0, 16}), nodes{});
	EXPECT_EQ(ask(1, {4, 16}), nodes{10});
	EXPECT_EQ(ask(0, {16, unit}), nodes{}) << "the rest";
	EXPECT_EQ(ask(1, {0, unit}), nodes{10});
	EXPECT_EQ(ask(0, {2 * unit, 2 * unit + 8}), nodes{});
	EXPECT_EQ(ask(1, {2 * unit, 3 * unit}), nodes{}) << "more than 10 was sent";
	EXPECT_EQ(ask(2, {2 * unit, 3 * unit}), nodes{11});
	// Two ends of a unit are no range: only the latest is noted.
	EXPECT_EQ(ask(0, {5 * unit, 5 * unit + 1}), nodes{});
	EXPECT_EQ(ask(0, {5 * unit + 9, 5 * unit + 10}), nodes{});
	EXPECT_EQ(ask(1, {5 * unit + 1, 5 * unit + 2}), nodes{});
}

TEST_F(shared_units, pages_that_are_not_sent_whole_are_not_noted)
{
	join(2);
	holder_table::answer out;
	EXPECT_FALSE(table_.redirect(10, f, {{3, 5}, {4, 4}, true, false, false}, out));
	EXPECT_EQ(table_.noted(), 0u);
	EXPECT_FALSE(table_.redirect(10, f, {{3, 6}, {4, 5}, true, false, false}, out));
	EXPECT_EQ(ask(1, {3, 6}), nodes{});
	EXPECT_EQ(table_.noted(), 2u);
}

TEST_F(shared_units, a_reply_names_four_nodes_at_most)
{
	join(6);
	for (std::uint32_t u = 0; u < 5; u++)
		EXPECT_EQ(ask(u, {u * unit, (u + 1) * unit}), nodes{});
	EXPECT_EQ(ask(5, {0, 4 * unit}), (nodes{10, 11, 12, 13}));
	EXPECT_EQ(ask(5, {0, 5 * unit}), nodes{});
}

TEST_F(shared_units, only_registered_nodes_are_named)
{
	join(3);
	EXPECT_EQ(ask(0, {0, unit}), nodes{});
	table_.left(10);
	EXPECT_EQ(ask(1, {0, unit}), nodes{});
	EXPECT_EQ(ask(2, {0, unit}), nodes{11});
	EXPECT_EQ(ask(0, {0, unit}), nodes{}) << "who is no node is sent the bytes";
	EXPECT_EQ(ask(2, {0, unit}), nodes{11}) << "and not named";
	EXPECT_EQ(table_.noted(), 1u);
}

TEST_F(shared_units, who_does_not_forward_is_named_last)
{
	table_.joined(10, false);
	table_.joined(11, true);
	table_.joined(12, true);
	EXPECT_EQ(ask(0, {0, unit}), nodes{});
	EXPECT_EQ(ask(1, {0, unit}), nodes{10}) << "there is no other";
	EXPECT_EQ(ask(1, {0, unit}, f, false), nodes{});
	EXPECT_EQ(ask(2, {0, unit}), nodes{11});
}

TEST_F(shared_units, versions_are_known_apart)
{
	join(2);
	const file_version next = {f.fid, 4};
	EXPECT_EQ(ask(0, {0, unit}), nodes{});
	EXPECT_EQ(ask(1, {0, unit}, next), nodes{});
	EXPECT_EQ(ask(0, {0, unit}, next), nodes{11});
	EXPECT_EQ(ask(1, {0, unit}), nodes{10});
}

TEST_F(shared_units, the_version_that_was_not_read_for_longest_is_forgotten)
{
	join(2);
	const file_version other = {{1, 9}, 3};
	const std::uint64_t most = unit * 4; // holders that this table notes
	EXPECT_EQ(ask(0, {0, 2 * unit}), nodes{});
	for (std::uint64_t u = 0; u < most - 2; u++)
		EXPECT_EQ(ask(0, {u * unit, (u + 1) * unit}, other), nodes{});
	EXPECT_EQ(table_.noted(), most);
	EXPECT_EQ(ask(1, {0, unit}), nodes{10});
	EXPECT_EQ(ask(0, {most * unit, (most + 1) * unit}, other), nodes{});
	EXPECT_EQ(table_.noted(), most - 1) << "all units of the first version, together";
	EXPECT_EQ(ask(1, {0, unit}, other), nodes{10});
	EXPECT_EQ(ask(1, {0, unit}), nodes{});
	for (std::uint64_t v = 100; v < 120; v++)
		EXPECT_EQ(ask(1, {0, 1}, {{1, v}, 3}), nodes{});
	EXPECT_EQ(table_.versions(), 8u);
	EXPECT_EQ(table_.noted(), 8u);
}

TEST_F(shared_units, in_a_chain_those_that_are_about_to_have_the_bytes_are_named_too)
{
	join(200);
	EXPECT_EQ(chained(0), nodes{});
	EXPECT_EQ(chained(1), nodes{10});
	EXPECT_EQ(level_, 2u);
	std::map<std::uint32_t, std::uint32_t> level{{10, 0}, {11, 2}}, first;
	for (std::uint32_t i = 2; i < 200; i++) {
		const nodes named = chained(i);
		ASSERT_EQ(named.size(), 2u);
		ASSERT_LT(level_, COOP_LEVEL_ROOT + 0u);
		for (std::uint32_t n : named) {
			ASSERT_TRUE(level.contains(n));
			ASSERT_LT(level[n], level_) << "it would wait for one that waits for it";
		}
		level[10 + i] = level_;
		first[named[0]]++;
	}
	EXPECT_GT(first.size(), 16u) << "few nodes serve all others";
	EXPECT_LE(table_.noted(), 16u);
	EXPECT_EQ(ask(1, {0, unit}).size(), 0u) << "who cannot wait for any is sent the bytes: "
						   "10 may be noted no more";
}

TEST_F(shared_units, a_holder_that_asks_again_is_told_only_of_those_nearer_to_storage)
{
	join(8);
	EXPECT_EQ(chained(0), nodes{});
	EXPECT_EQ(chained(1), nodes{10});
	EXPECT_EQ(chained(2), (nodes{10, 11}));
	EXPECT_EQ(level_, 3u);
	EXPECT_EQ(chained(1), nodes{10}) << "12 may wait for it";
	EXPECT_EQ(chained(0), nodes{}) << "all may wait for it";
	table_.left(10);
	EXPECT_EQ(chained(1), nodes{});
	EXPECT_EQ(chained(3)[0], 11u);
}

TEST_F(shared_units, no_chain_of_named_nodes_leads_back)
{
	std::mt19937 dice(5);
	join(16); // all are noted
	// What each node was told last, until it was sent the bytes.
	std::map<std::uint32_t, nodes> waits;
	for (unsigned i = 0; i < 20000; i++) {
		const std::uint32_t who = dice() % 16;
		const bool insists = dice() % 10 == 0;
		nodes named = ask(who, {0, unit}, f, true, insists, true);
		waits[10 + who] = std::move(named);
		std::map<std::uint32_t, int> state;
		std::function<bool(std::uint32_t)> circle = [&](std::uint32_t n) {
			if (state[n])
				return state[n] == 1;
			state[n] = 1;
			for (std::uint32_t next : waits[n])
				if (circle(next))
					return true;
			state[n] = 2;
			return false;
		};
		ASSERT_FALSE(circle(10 + who)) << i;
	}
}

TEST_F(shared_units, what_is_named_was_sent_or_named_before)
{
	std::mt19937 dice(3);
	constexpr std::uint64_t pages = 6 * unit;
	join(5);
	// By page: the nodes that were sent it, or told of one that was.
	std::vector<std::vector<bool>> sent(pages, std::vector<bool>(5));
	unsigned named = 0;
	std::uint64_t missing = 0, all = 0;
	for (unsigned i = 0; i < 20000; i++) {
		const std::uint32_t who = dice() % 5;
		const std::uint64_t first = dice() % pages;
		const page_range r = {first, std::min(pages, first + 1 + dice() % (2 * unit))};
		const nodes out = ask(who, r, f, dice() % 4, dice() % 8 == 0, dice() % 2);
		for (std::uint64_t p = r.first; p < r.end; p++) {
			bool found = out.empty();
			for (std::uint32_t n : out)
				found |= sent[p][n - 10];
			ASSERT_TRUE(found || p != r.first) << "page " << p;
			missing += !found;
			sent[p][who] = true;
		}
		ASSERT_EQ(std::count(out.begin(), out.end(), who + 10), 0);
		named += !out.empty();
		all += out.empty() ? 0 : r.end - r.first;
	}
	EXPECT_GT(named, 1000u);
	EXPECT_LT(2 * missing, all) << "at least half of each part was sent before";
}

// ---- a daemon and its clients ------------------------------------------------

namespace
{

class daemon_redirects : public members_test
{
protected:
	struct answer : storage::read_result {
		std::string text;
	};
	static answer shared(storage &s, const entry &e, std::uint64_t open_id,
			     std::uint64_t offset, std::size_t length, std::uint64_t version,
			     bool insist = false)
	{
		std::mutex mutex;
		std::condition_variable ready;
		bool done = false;
		answer a{};
		a.text.assign(length, '?');
		s.read_shared(e.fh, open_id, offset, {{a.text.data(), length}}, version, insist,
			      [&](const storage::read_result &r) {
				      std::lock_guard lock(mutex);
				      static_cast<storage::read_result &>(a) = r;
				      done = true;
				      ready.notify_one();
			      });
		std::unique_lock lock(mutex);
		ready.wait(lock, [&] { return done; });
		a.text.resize(a.err ? 0 : a.bytes);
		return a;
	}
	answer read(reader &r, const open_result &o, std::uint64_t offset, std::size_t length,
		    bool insist = false)
	{
		return shared(*r.link, file_, o.open_id, offset, length, o.attr.version, insist);
	}
	std::uint64_t calls(std::uint16_t op) { return server_->files().stats.calls[op]; }
	std::uint64_t stat(const std::string &key)
	{
		const std::string text = server_->stats_text();
		const auto at = text.find("\n" + key + " ");
		EXPECT_NE(at, text.npos) << key;
		return std::stoull(text.substr(at + key.size() + 2));
	}
};

constexpr std::size_t unit_bytes = COOP_FOREST_UNIT;

} // namespace

TEST_F(daemon_redirects, the_second_reader_is_redirected_and_gets_bytes_if_it_insists)
{
	serve();
	auto a = come(1), b = come(2), c = come(3);
	const open_result oa = open_by(*a, file_), ob = open_by(*b, file_), oc = open_by(*c, file_);
	const std::string all(unit_bytes, 'x');
	answer r = read(*a, oa, 0, unit_bytes);
	EXPECT_EQ(r.err, 0);
	EXPECT_EQ(r.text, all);
	EXPECT_TRUE(r.holders.empty());
	r = read(*b, ob, 0, unit_bytes);
	EXPECT_EQ(r.err, 0);
	EXPECT_EQ(r.bytes, 0u);
	EXPECT_EQ(r.holders, nodes{a->node});
	EXPECT_EQ(r.version, oa.attr.version);
	EXPECT_EQ(r.size, big);
	EXPECT_EQ(stat("redirected"), 1u);
	EXPECT_EQ(stat("egress_saved_bytes"), unit_bytes);
	EXPECT_EQ(stat("served_bytes"), unit_bytes);
	r = read(*b, ob, 0, unit_bytes, true);
	EXPECT_EQ(r.text, all);
	EXPECT_TRUE(r.holders.empty());
	EXPECT_EQ(stat("egress_saved_bytes"), 0u) << "it was sent after all";
	EXPECT_EQ(read(*c, oc, 0, unit_bytes).holders, nodes{b->node});
	EXPECT_EQ(stat("redirected"), 2u);
	EXPECT_EQ(stat("egress_saved_bytes"), unit_bytes);
	EXPECT_EQ(calls(COOP_ST_READ), 0u);
}

TEST_F(daemon_redirects, the_end_of_the_file_is_redirected_too)
{
	serve();
	auto a = come(1), b = come(2);
	const open_result oa = open_by(*a, file_), ob = open_by(*b, file_);
	EXPECT_EQ(read(*a, oa, unit_bytes, unit_bytes).text, "xxxxx");
	EXPECT_EQ(read(*b, ob, unit_bytes, unit_bytes).holders, nodes{a->node});
	EXPECT_EQ(stat("egress_saved_bytes"), 5u);
	const answer r = read(*b, ob, 2 * unit_bytes, unit_bytes);
	EXPECT_EQ(r.bytes, 0u);
	EXPECT_TRUE(r.holders.empty()) << "nothing to ask for";
}

TEST_F(daemon_redirects, a_long_read_is_streamed_or_redirected_as_a_whole)
{
	serve("long", 4 * unit_bytes);
	auto a = come(1), b = come(2);
	const open_result oa = open_by(*a, file_), ob = open_by(*b, file_);
	const std::size_t most = COOP_ST_IO_MAX;
	EXPECT_EQ(read(*a, oa, 0, most).text, std::string(most, 'x'));
	EXPECT_EQ(read(*b, ob, 0, most).holders, nodes{a->node});
	EXPECT_EQ(read(*b, ob, 4096, 3 * unit_bytes).holders, nodes{a->node});
	EXPECT_EQ(read(*b, ob, 0, most, true).text, std::string(most, 'x'));
	EXPECT_GE(calls(COOP_ST_CHECK), 2u);
}

TEST_F(daemon_redirects, a_plain_read_is_never_redirected)
{
	serve();
	auto a = come(1), b = come(2);
	const open_result oa = open_by(*a, file_), ob = open_by(*b, file_);
	read(*a, oa, 0, unit_bytes);
	EXPECT_EQ(read_text(*b->link, file_, ob.open_id, 0, 10, nullptr, ob.attr.version),
		  "xxxxxxxxxx");
	EXPECT_EQ(shared(*b->link, file_, ob.open_id, 0, 10, 0).text, "xxxxxxxxxx")
		<< "nor one of any version";
	EXPECT_EQ(stat("redirected"), 0u);
}

TEST_F(daemon_redirects, who_has_closed_the_file_is_named_until_it_leaves)
{
	serve();
	auto a = come(1), b = come(2), c = come(3);
	const open_result oa = open_by(*a, file_), ob = open_by(*b, file_), oc = open_by(*c, file_);
	write_result w{};
	read(*a, oa, 0, unit_bytes);
	ASSERT_EQ(a->link->close(file_.fh, oa.open_id, w), 0);
	EXPECT_EQ(read(*b, ob, 0, unit_bytes).holders, nodes{a->node});
	a->link.reset();
	EXPECT_TRUE(eventually([&] { return read(*b, ob, 0, unit_bytes, true).bytes != 0; }));
	EXPECT_EQ(read(*c, oc, 0, unit_bytes).holders, nodes{b->node});
	b->link.reset();
	EXPECT_TRUE(eventually([&] { return read(*c, oc, 0, unit_bytes).bytes == unit_bytes; }));
}

TEST_F(daemon_redirects, a_small_file_is_redirected_too_after_its_first_bytes_came_with_the_open)
{
	serve("small", 5000);
	auto a = come(1), b = come(2);
	open_result oa{};
	ASSERT_EQ(a->link->open(me(), file_.fh, O_RDONLY, 65536, oa), 0);
	ASSERT_EQ(oa.inline_data.size(), 5000u);
	const open_result ob = open_by(*b, file_);
	const answer r = read(*b, ob, 0, 8192);
	EXPECT_EQ(r.err, 0);
	EXPECT_EQ(r.holders, nodes{a->node});
	EXPECT_EQ(r.level, COOP_LEVEL_REDIRECTED + 0u);
	EXPECT_EQ(read(*b, ob, 0, 8192, true).text, std::string(5000, 'x'));
}

TEST_F(daemon_redirects, a_changed_file_is_stale_and_not_redirected)
{
	serve();
	auto a = come(1), b = come(2);
	const open_result oa = open_by(*a, file_), ob = open_by(*b, file_);
	read(*a, oa, 0, unit_bytes);
	make("big", big);
	const answer r = read(*b, ob, 0, unit_bytes);
	EXPECT_EQ(r.err, -ESTALE);
	EXPECT_TRUE(r.holders.empty());
	EXPECT_EQ(stat("redirected"), 0u);
}

TEST_F(daemon_redirects, readers_that_start_together_cost_storage_one_copy)
{
	serve("long", 4 * unit_bytes);
	std::vector<std::unique_ptr<reader>> all;
	std::vector<open_result> opens;
	std::vector<std::thread> threads;
	for (std::uint32_t n = 0; n < 12; n++) {
		all.push_back(come(n + 1));
		opens.push_back(open_by(*all.back(), file_));
	}
	std::atomic<unsigned> sent{0}, named{0};
	for (std::size_t n = 0; n < all.size(); n++)
		threads.emplace_back([&, n] {
			for (std::uint64_t u = 0; u < 4; u++) {
				const answer r =
					read(*all[n], opens[n], u * unit_bytes, unit_bytes);
				EXPECT_EQ(r.err, 0);
				EXPECT_EQ(r.bytes == 0, !r.holders.empty());
				(r.bytes ? sent : named)++;
			}
		});
	for (std::thread &t : threads)
		t.join();
	EXPECT_EQ(sent, 4u);
	EXPECT_EQ(named, 4u * 11);
	EXPECT_EQ(stat("served_bytes"), 4 * unit_bytes);
}

TEST_F(daemon_redirects, a_client_without_roles_reads_plainly)
{
	serve(); // client_ is such a client
	auto a = come(1);
	const open_result oa = open_by(*a, file_), o = open(file_, O_RDONLY);
	read(*a, oa, 0, unit_bytes);
	EXPECT_EQ(shared(*client_, file_, o.open_id, 0, 3, o.attr.version).text, "xxx");
	EXPECT_EQ(calls(COOP_ST_READ), 1u);
}

TEST_F(daemon_redirects, a_file_opened_under_a_lease_is_read_after_its_open)
{
	serve();
	storage_options o = client_options();
	o.leases = true;
	o.on_roles = [](const file_roles &) {};
	const auto leasing = storage::connect(o);
	entry e;
	ASSERT_EQ(leasing->lookup(me(), leasing->root().fh, "big", e), 0);
	open_result first{}, second{};
	ASSERT_EQ(leasing->open(me(), e.fh, O_RDONLY, 0, first), 0);
	leasing->close_reader(e.fh, first.open_id);
	ASSERT_EQ(leasing->open(me(), e.fh, O_RDONLY, 0, second), 0);
	EXPECT_EQ(leasing->leases().opens, 1u) << "the second open was not answered by the lease";
	EXPECT_EQ(shared(*leasing, e, second.open_id, 0, 3, e.attr.version).text, "xxx");
	EXPECT_EQ(calls(COOP_ST_READ_CHAINED), 1u);
}

TEST_F(daemon_redirects, a_read_that_meets_an_older_daemon_is_sent_again_plainly)
{
	serve();
	auto a = come(1);
	const open_result oa = open_by(*a, file_);
	server_.reset();
	answer r;
	std::thread reading([&] { r = read(*a, oa, 0, 4); });
	EXPECT_TRUE(eventually([&] { return !a->link->calls().empty(); }));
	settings_.newest_version = 7;
	restart();
	reading.join();
	EXPECT_EQ(r.err, 0);
	EXPECT_EQ(r.text, "xxxx");
	EXPECT_EQ(calls(COOP_ST_READ_CHAINED), 0u);
	EXPECT_EQ(calls(COOP_ST_READ), 1u);
}

TEST_F(daemon_redirects, unknown_flags_are_refused)
{
	serve();
	plain_client c(port_, 8, 8, 'f');
	ASSERT_EQ(c.open(file_, 1), 0);
	coop_st_body b{};
	b.fh = {reinterpret_cast<const u8 *>(file_.fh.data()), static_cast<u32>(file_.fh.size())};
	b.open_id = 1;
	b.count = 4;
	b.flags = COOP_ST_READ_ALL + 1;
	EXPECT_EQ(c.ask(COOP_ST_READ_SHARED, b), EINVAL);
	b.flags = COOP_ST_READ_ALL;
	EXPECT_EQ(c.ask(COOP_ST_READ_SHARED, b), 0);
	EXPECT_EQ(c.got.n_nodes, 0u);
	b.offset = ~0ull;
	EXPECT_EQ(c.ask(COOP_ST_READ_SHARED, b), EINVAL);
}
