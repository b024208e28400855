// SPDX-License-Identifier: MIT
// The reader: exact bytes whatever fails, one request per page, and no readahead on random
// reads.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "tests/unit/client/fakes.hpp"
#include "userland/client/files_ahead.hpp"
#include "userland/client/text.hpp"

namespace
{

using namespace client_test;

constexpr std::uint64_t page = 4096;

struct world {
	std::unique_ptr<page_store> store;
	fake_node peers;
	fake_storage disk;
	std::unique_ptr<reader> r;

	explicit world(bool with_node, reader_options o = {0, true}, std::size_t bytes = 32 << 20) :
		store(page_store::create(bytes, 12)),
		r(reader::create(o, *store, with_node ? &peers : nullptr, disk))
	{
	}
	source_stats by(source s) const { return r->stats().by[static_cast<int>(s)]; }
};

// Reads and checks the bytes, the length at the end of the file, and the zeros past it.
int check(world &w, const content &c, reader::stream &s, std::uint64_t offset, std::uint32_t length)
{
	std::vector<piece> out;
	const int err = w.r->read(c, s, offset, length, out);
	if (err != 0) {
		EXPECT_TRUE(out.empty());
		return err;
	}
	std::uint64_t at = offset;
	for (const piece &p : out) {
		EXPECT_TRUE(is_pattern(w.store->base() + p.arena_offset, p.length, c.key.fid.lo,
				       c.key.version, at))
			<< "wrong bytes at " << at << "+" << p.length;
		at += p.length;
	}
	const std::uint64_t end = std::min<std::uint64_t>(offset + length, c.size);
	EXPECT_EQ(at, std::max(end, offset));
	if (at == c.size && !out.empty()) {
		const auto *tail = w.store->base() + out.back().arena_offset + out.back().length;
		for (std::uint64_t i = 0; i < (page - c.size % page) % page; i++)
			EXPECT_EQ(tail[i], std::byte{0}) << "a leak past the end of the file";
	}
	return 0;
}

TEST(Reader, ExactBytesUnderRandomReads)
{
	for (const bool with_node : {false, true}) {
		world w(with_node, {16, true}, 2 << 20);
		std::mt19937_64 rng(5);
		w.peers.deliver = [&rng](const content_key &, std::uint64_t, std::uint64_t p) {
			static std::mutex m;
			const std::lock_guard lock(m);
			return rng() % 3 == 0 ? p : p & rng();
		};
		std::vector<content> files;
		for (std::uint64_t f = 1; f <= 5; f++) {
			files.push_back(make_content(f, 100 + f, f * f * 50000 + f));
			w.disk.add(f, 100 + f, files.back().size);
		}
		std::mt19937_64 own(9);
		reader::stream streams[5];
		for (int i = 0; i < 3000; i++) {
			const std::size_t f = own() % 5;
			const std::uint64_t offset = own() % (files[f].size + 100);
			const auto length =
				static_cast<std::uint32_t>(own() % (1 << own() % 20) + 1);
			ASSERT_EQ(check(w, files[f], streams[f], offset, length), 0);
		}
		w.r.reset();
		w.store->drop_all();
		EXPECT_EQ(w.store->stats().used, 0u) << "a pin leaked";
	}
}

TEST(Reader, EndOfFile)
{
	world w(false);
	w.disk.add(1, 1, 10000);
	const content c = make_content(1, 1, 10000);
	reader::stream s;
	EXPECT_EQ(check(w, c, s, 0, 65536), 0);
	EXPECT_EQ(check(w, c, s, 9999, 10), 0);
	std::vector<piece> out;
	EXPECT_EQ(w.r->read(c, s, 10000, 10, out), 0);
	EXPECT_TRUE(out.empty());
	EXPECT_EQ(w.r->read(c, s, UINT64_MAX, 10, out), 0);
	EXPECT_TRUE(out.empty());
	EXPECT_EQ(w.r->read(make_content(2, 0, 10), s, 0, 10, out), -EINVAL);
}

TEST(Reader, EachPageComesFromStorageOnce)
{
	world w(false, {64, true});
	const std::uint64_t size = 5 << 20;
	w.disk.add(1, 1, size);
	const content c = make_content(1, 1, size);
	std::vector<std::thread> threads;
	std::atomic<int> errors{0};
	reader::stream shared;
	for (unsigned t = 0; t < 4; t++)
		threads.emplace_back([&, t] {
			std::mt19937_64 rng(t);
			reader::stream own;
			for (int i = 0; i < 400; i++) {
				const bool sequential = i % 2 == 0;
				errors += check(w, c, sequential ? shared : own,
						sequential ? std::uint64_t(i) / 2 * 32768
							   : rng() % size,
						32768) != 0;
			}
		});
	for (std::thread &t : threads)
		t.join();
	EXPECT_EQ(errors, 0);
	for (const auto &[where, times] : w.disk.pages_read())
		ASSERT_EQ(times, 1) << "page " << where.second;
}

TEST(Reader, PeersFirstThenStorageForTheRest)
{
	world w(true);
	w.disk.add(1, 1, 64 * page);
	const content c = make_content(1, 1, 64 * page);
	w.peers.deliver = [](const content_key &, std::uint64_t, std::uint64_t p) {
		return p & 0x5555555555555555u;
	};
	reader::stream s;
	ASSERT_EQ(check(w, c, s, 0, 64 * page), 0);
	EXPECT_EQ(w.peers.pages, 32u);
	EXPECT_EQ(w.disk.bytes, 32 * page);
	EXPECT_EQ(w.by(source::peer).pages, 32u);
	EXPECT_EQ(w.by(source::storage).pages, 32u);
	EXPECT_EQ(w.by(source::storage).requests, 1u) << "a request counts at its slowest source";
	EXPECT_EQ(w.by(source::peer).requests, 0u);
	EXPECT_EQ(w.r->stats().peer_fallback_pages, 32u);
	ASSERT_EQ(check(w, c, s, 100, 5000), 0);
	EXPECT_EQ(w.by(source::buffer).requests, 1u);
	EXPECT_EQ(w.by(source::buffer).pages, 2u);
	EXPECT_EQ(w.by(source::buffer).bytes, 5000u);
}

TEST(Reader, NoPeerWorthAsking)
{
	world w(true);
	w.peers.refuse = -ENOENT;
	w.disk.add(1, 1, 100 * page);
	reader::stream s;
	ASSERT_EQ(check(w, make_content(1, 1, 100 * page), s, 0, 100 * page), 0);
	EXPECT_EQ(w.disk.bytes, 100 * page);
	EXPECT_EQ(w.disk.reads, 1u) << "contiguous pages of two blocks are one request";
	EXPECT_EQ(w.r->stats().peer_fallback_pages, 0u);
}

// More holes than one fetch can name.
TEST(Reader, ManyHolesAreSeveralFetches)
{
	world w(true);
	w.disk.add(1, 1, 64 * page);
	const content c = make_content(1, 1, 64 * page);
	{
		const block_ref b = w.store->get(c.key, 0, c.size);
		const std::uint64_t mine = b->claim(0x3333333333333333u);
		for (std::uint64_t left = mine; left != 0; left &= left - 1) {
			const auto p = static_cast<std::uint32_t>(std::countr_zero(left));
			fill_pattern(b->data(p), page, 1, 1, p * page);
		}
		b->publish(mine, origin::storage);
	}
	reader::stream s;
	ASSERT_EQ(check(w, c, s, 0, 64 * page), 0);
	EXPECT_EQ(w.peers.pages, 32u);
	EXPECT_LE(w.peers.runs, std::uint64_t{COOP_MAX_EXTENTS});
	EXPECT_EQ(w.disk.bytes, 0u);
}

TEST(Reader, StorageErrorsReachTheirReaderAndNoneOther)
{
	world w(true);
	w.disk.add(1, 1, 64 * page);
	const content c = make_content(1, 1, 64 * page);
	w.peers.refuse = -ENOENT;
	reader::stream s;
	w.disk.fail = -EIO;
	EXPECT_EQ(check(w, c, s, 0, 8192), -EIO);
	EXPECT_EQ(w.r->stats().errors, 1u);
	w.disk.fail = 0;
	EXPECT_EQ(check(w, c, s, 0, 8192), 0) << "the error leaves no trace";
	w.disk.add(1, 2, 64 * page);
	EXPECT_EQ(check(w, c, s, 32 * page, 8192), -ESTALE);
	EXPECT_EQ(w.r->stats().stale_reads, 1u);
	EXPECT_EQ(check(w, c, s, 0, 8192), 0)
		<< "the cached pages still have the requested version";
	EXPECT_EQ(check(w, make_content(1, 2, 64 * page), s, 0, 8192), 0);
	EXPECT_EQ(check(w, make_content(9, 1, page), s, 0, 1), -ENOENT);
}

// A second reader waits for pages of a first reader's failing request.
TEST(Reader, AnothersErrorIsMended)
{
	world w(false);
	w.disk.add(1, 1, 64 * page);
	const content c = make_content(1, 1, 64 * page);
	w.disk.hold();
	w.disk.fail_next = 1;
	int first = 1, second = 1;
	std::thread a([&] {
		reader::stream s;
		first = check(w, c, s, 0, 8192);
	});
	while (w.disk.held != 1)
		std::this_thread::yield();
	std::thread b([&] {
		reader::stream s;
		second = check(w, c, s, 4096, 4096);
	});
	// It has nothing to request: its page is loading.
	while (w.store->find(c.key, 0)->loading() == 0)
		std::this_thread::yield();
	w.disk.release();
	a.join();
	b.join();
	// The reader whose request failed reports the error; the second must have recovered.
	EXPECT_EQ(first, -EIO);
	EXPECT_EQ(second, 0);
}

TEST(Reader, FileShorterThanItsVersionSays)
{
	world w(false);
	w.disk.add(1, 1, 10 * page);
	reader::stream s;
	EXPECT_EQ(check(w, make_content(1, 1, 20 * page), s, 8 * page, 8 * page), -ESTALE);
	EXPECT_EQ(w.store->find({{1, 1}, 1}, 0)->valid(), 0u);
}

TEST(Reader, RandomReadsFetchWhatTheyAskForAndNoMore)
{
	for (const bool async : {false, true}) {
		world w(false, {256, async});
		const std::uint64_t size = 16 << 20;
		w.disk.add(1, 1, size);
		const content c = make_content(1, 1, size);
		reader::stream s;
		std::mt19937_64 rng(4);
		std::set<std::uint64_t> pages;
		for (int i = 0; i < 200; i++) {
			const std::uint64_t p = rng() % (size / page);
			pages.insert(p);
			ASSERT_EQ(check(w, c, s, p * page, page), 0);
		}
		EXPECT_EQ(w.disk.bytes, pages.size() * page);
		EXPECT_EQ(w.r->stats().readahead_pages, 0u);
	}
}

TEST(Reader, SequentialReadsAreReadAheadUpToTheWindow)
{
	for (const bool async : {false, true}) {
		world w(false, {256, async});
		const std::uint64_t size = 8 << 20;
		w.disk.add(1, 1, size);
		const content c = make_content(1, 1, size);
		reader::stream s;
		std::uint64_t furthest = 0;
		for (std::uint64_t at = 0; at < size; at += 65536) {
			ASSERT_EQ(check(w, c, s, at, 65536), 0);
			{
				const std::lock_guard lock(s.mutex);
				// Readahead takes whole blocks: up to one more than the window.
				EXPECT_LE(s.ahead, at + 65536 + (256 + 64) * page);
				furthest = std::max(furthest, s.ahead - std::min(s.ahead, at));
			}
			if (!async && at != 0 && s.ahead > at + 65536) { // it has ended
				EXPECT_TRUE(w.store->find(c.key, (s.ahead - 1) / (64 * page)));
			}
		}
		EXPECT_GE(furthest, 256 * page) << "the window opened";
		EXPECT_EQ(w.disk.bytes, size) << "every byte once";
		const reader_stats st = w.r->stats();
		EXPECT_GT(st.readahead_pages, size / page * 9 / 10);
		EXPECT_EQ(st.by[0].bytes + st.by[1].bytes + st.by[2].bytes, size);
		EXPECT_EQ(w.by(source::storage).bytes, size)
			<< "the first use counts at the page's source";
	}
}

// Kernel readahead sends pieces of one sequential read at once, in any order.
TEST(Reader, OutOfOrderPiecesAreStillSequential)
{
	world w(false, {256, true});
	const std::uint64_t size = 16 << 20, unit = 131072;
	w.disk.add(1, 1, size);
	const content c = make_content(1, 1, size);
	reader::stream s;
	std::mt19937 rng(8);
	std::vector<std::uint64_t> batch;
	for (std::uint64_t at = 0; at < size; at += unit) {
		batch.push_back(at);
		if (batch.size() == 4) {
			std::shuffle(batch.begin(), batch.end(), rng);
			for (const std::uint64_t b : batch)
				ASSERT_EQ(check(w, c, s, b, unit), 0);
			batch.clear();
		}
	}
	EXPECT_GT(w.r->stats().readahead_pages, size / page / 2);
	EXPECT_EQ(w.disk.bytes, size);
}

TEST(Reader, ReadaheadErrorIsNobodysError)
{
	world w(false, {256, false});
	const std::uint64_t size = 4 << 20;
	w.disk.add(1, 1, size);
	const content c = make_content(1, 1, size);
	reader::stream s;
	for (std::uint64_t at = 0; at < size; at += 65536) {
		// Every other readahead fails; by then the read itself is in the store, or the
		// reader asks again.
		w.disk.fail_next = 0;
		std::vector<piece> out;
		int err = w.r->read(c, s, at, 65536, out);
		w.disk.fail_next = 1;
		if (err == -EIO) { // the injected error hit the requested pages
			w.disk.fail_next = 0;
			err = w.r->read(c, s, at, 65536, out);
		}
		ASSERT_EQ(err, 0);
	}
}

TEST(Reader, InlineBytes)
{
	world w(false);
	const content small = make_content(1, 1, 5000), large = make_content(2, 1, 100000);
	w.disk.add(2, 1, 100000);
	std::string bytes(10000, '\0');
	fill_pattern(bytes.data(), 5000, 1, 1, 0);
	w.r->put_inline(small, {bytes.data(), 5000});
	reader::stream s;
	EXPECT_EQ(check(w, small, s, 0, 5000), 0);
	EXPECT_EQ(w.disk.reads, 0u);
	EXPECT_EQ(w.by(source::storage).bytes, 5000u);
	fill_pattern(bytes.data(), 10000, 2, 1, 0);
	w.r->put_inline(large, bytes); // two whole pages
	EXPECT_EQ(w.store->find(large.key, 0)->valid(), 3u);
	EXPECT_EQ(check(w, large, s, 0, 100000), 0);
	EXPECT_EQ(w.disk.bytes, 100000 - 2 * page);
	w.r->put_inline(make_content(3, 0, 10), "0123456789");
	EXPECT_FALSE(w.store->find({{3, 3}, 0}, 0));
}

TEST(Reader, GoesOnWhenTheStoreIsPinned)
{
	world w(false, {0, true}, 1 << 20);
	const std::uint64_t size = 16 << 20;
	w.disk.add(1, 1, size);
	const content c = make_content(1, 1, size);
	reader::stream s;
	std::vector<piece> keep, out;
	ASSERT_EQ(w.r->read(c, s, 0, 1 << 20, keep), 0);
	for (std::uint64_t at = 0; at < size; at += 1 << 20)
		ASSERT_EQ(check(w, c, s, at, 1 << 20), 0);
	EXPECT_GT(w.store->stats().no_room, 0u);
}

TEST(Reader, LatencyIsCountedPerRequest)
{
	world w(false);
	w.disk.add(1, 1, 10 * page);
	const content c = make_content(1, 1, 10 * page);
	reader::stream s;
	for (int i = 0; i < 10; i++)
		ASSERT_EQ(check(w, c, s, 0, 10 * page), 0);
	std::uint64_t total = 0;
	for (const std::uint64_t n : w.by(source::buffer).latency)
		total += n;
	EXPECT_EQ(total, 9u);
	const std::string text = stats_text(*w.r, nullptr, *w.store, w.disk, {});
	EXPECT_EQ(text.rfind("coopfs-stats 1\n", 0), 0u);
	EXPECT_NE(text.find("source storage requests 1 pages 10 bytes 40960\n"), std::string::npos);
	EXPECT_NE(text.find("source buffer requests 9 pages 90 bytes 368640\n"), std::string::npos);
	stats_reset(*w.r, nullptr);
	EXPECT_NE(stats_text(*w.r, nullptr, *w.store, w.disk, {})
			  .find("source buffer requests 0 pages 0 bytes 0\n"),
		  std::string::npos);
}

} // namespace

// ---- small files that nodes have, fetched before they are read -----------------

namespace
{

std::vector<held_content> held(std::uint64_t first, std::uint64_t files, std::uint64_t size)
{
	std::vector<held_content> out;
	for (std::uint64_t i = first; i < first + files; i++)
		out.push_back({{i, i}, 1, size, {5, 6}});
	return out;
}

} // namespace

TEST(Reader, FilesFetchedAheadAreReadWithoutAsking)
{
	world w(true);
	w.r->fetch_ahead(held(1, 100, 5000));
	w.peers.tend();
	EXPECT_EQ(w.peers.pages, 200u);
	EXPECT_EQ(w.peers.last.openers, (std::vector<std::uint32_t>{5, 6}));
	EXPECT_TRUE(w.peers.last.background);
	EXPECT_LE(w.peers.most_in_flight, files_ahead::files_most);
	EXPECT_LE(w.peers.flushes, 100u / 8) << "many requests go out together";
	for (std::uint64_t i = 1; i <= 100; i++) {
		reader::stream s;
		ASSERT_EQ(check(w, make_content(i, 1, 5000), s, 0, 5000), 0);
	}
	EXPECT_EQ(w.peers.fetches, 100u);
	EXPECT_EQ(w.by(source::peer).bytes, 100 * 5000u);
	EXPECT_EQ(w.disk.reads, 0u);
}

TEST(Reader, WhatNodesDoNotSendAheadIsLoadedWhenItIsRead)
{
	world w(true);
	for (std::uint64_t i = 1; i <= 20; i++)
		w.disk.add(i, 1, 3 * page);
	w.peers.deliver = [](const content_key &k, std::uint64_t, std::uint64_t p) {
		return k.fid.lo % 2 ? p & 5 : 0;
	};
	w.r->fetch_ahead(held(1, 20, 3 * page));
	w.peers.tend();
	EXPECT_EQ(w.disk.reads, 0u) << "nobody has asked for it";
	w.peers.deliver = [](const content_key &, std::uint64_t, std::uint64_t) {
		return std::uint64_t{0};
	};
	for (std::uint64_t i = 1; i <= 20; i++) {
		reader::stream s;
		ASSERT_EQ(check(w, make_content(i, 1, 3 * page), s, 0, 3 * page), 0);
	}
	EXPECT_EQ(w.disk.bytes, (10 + 30) * page);
	w.peers.refuse = -ENOENT;
	w.r->fetch_ahead(held(30, 20, page));
	EXPECT_EQ(w.r->stats().errors, 0u);
}

TEST(Reader, FetchesAheadNoMoreThanAWindowBeforeFilesAreRead)
{
	constexpr std::uint64_t size = 32 * 1024, all = 3 * files_ahead::window_most / size;
	world w(true, {0, true}, 256u << 20);
	w.r->fetch_ahead(held(1, all, size));
	w.peers.tend();
	EXPECT_EQ(w.peers.fetches, files_ahead::window_most / size);
	std::uint64_t most = 0;
	for (std::uint64_t i = 1; i <= all; i++) {
		reader::stream s;
		ASSERT_EQ(check(w, make_content(i, 1, size), s, 0, size), 0);
		w.peers.tend();
		most = std::max<std::uint64_t>(most, w.peers.fetches * size - i * size);
	}
	EXPECT_EQ(w.peers.fetches, all) << "none was asked for twice";
	EXPECT_LE(most, files_ahead::window_most);
	EXPECT_EQ(w.disk.reads, 0u);

	world little(true, {0, true}, 4 << 20);
	little.r->fetch_ahead(held(1, all, size));
	little.peers.tend();
	EXPECT_EQ(little.peers.fetches, (1u << 20) / size) << "a quarter of the store";
}

TEST(Reader, OnlyFilesThatPeersSentMoveTheWindow)
{
	constexpr std::uint64_t size = 32 * 1024;
	world w(true, {0, true}, 256u << 20);
	w.disk.add(100000, 1, size);
	w.r->fetch_ahead(held(1, 1000, size));
	for (int i = 0; i < 2000; i++) {
		reader::stream s;
		ASSERT_EQ(check(w, make_content(i % 2 ? 1 : 100000, 1, size), s, 0, size), 0);
	}
	w.peers.tend();
	EXPECT_LE(w.peers.fetches, files_ahead::window_most / size + 2);
}

// What is read while nothing is left to fetch counts for the next bundle.
TEST(Reader, ABundleThatWasReadLeavesTheNextItsWindow)
{
	constexpr std::uint64_t size = 32 * 1024, files = files_ahead::window_most / size;
	world w(true, {0, true}, 256u << 20);
	for (std::uint64_t bundle = 0; bundle < 3; bundle++) {
		const std::uint64_t first = 1 + bundle * files;
		w.r->fetch_ahead(held(first, files, size));
		w.peers.tend();
		EXPECT_EQ(w.peers.fetches, (bundle + 1) * files) << bundle;
		for (std::uint64_t i = first; i < first + files; i++) {
			reader::stream s;
			ASSERT_EQ(check(w, make_content(i, 1, size), s, 0, size), 0);
		}
	}
}

// A node that is not known, or has just failed.
TEST(Reader, FilesOfNodesThatCannotBeAskedCostTheStoreNothing)
{
	world w(true, {0, true}, 4 << 20);
	for (std::uint64_t i = 1; i <= 500; i++) {
		w.disk.add(i, 1, page);
		reader::stream s;
		ASSERT_EQ(check(w, make_content(i, 1, page), s, 0, page), 0);
	}
	w.peers.refuse = -ENOENT;
	const auto used = w.store->stats().used;
	w.r->fetch_ahead(held(1000, 4000, page));
	EXPECT_EQ(w.store->stats().used, used);
	w.disk.reads = 0;
	for (std::uint64_t i = 1; i <= 500; i++) {
		reader::stream s;
		ASSERT_EQ(check(w, make_content(i, 1, page), s, 0, page), 0);
	}
	EXPECT_EQ(w.disk.reads, 0u);
}

TEST(Reader, FilesAheadWaitForAFreeFetch)
{
	world w(true);
	w.peers.refuse = -EAGAIN;
	w.r->fetch_ahead(held(1, 100, page));
	w.r->fetch_ahead(held(101, 1, page)); // asks again
	EXPECT_EQ(w.peers.fetches, 0u);
	w.peers.refuse = 0;
	w.r->fetch_ahead(held(102, 1, page));
	w.peers.tend();
	EXPECT_EQ(w.peers.fetches, 102u) << "none was forgotten";
}

TEST(Reader, EndsWhileFilesAreFetchedAhead)
{
	world w(true);
	w.r->fetch_ahead(held(1, 1000, page));
	std::thread driver([&] { w.peers.tend(); });
	w.r.reset();
	driver.join();
	EXPECT_LE(w.peers.fetches, 1000u);
}
