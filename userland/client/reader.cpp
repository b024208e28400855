// SPDX-License-Identifier: MIT
// reader.cpp - one read: page store, then peers, then storage.
//
// A read claims the missing pages, starts to load them, starts readahead after them, and waits
// until none of its pages is loading. A page that is still missing was abandoned: by our own load,
// whose error we return, or by another reader's, and then we load it ourselves from storage. So one
// reader's error never becomes another's, and no page is requested twice at a time.
#include "userland/client/reader.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <thread>

#include "rpc/storage/bundle.h"
#include "userland/client/asker.hpp"
#include "userland/client/files_ahead.hpp"
#include "userland/client/loader.hpp"

namespace coop::client
{

namespace
{

using clock = std::chrono::steady_clock;

// Waiting is event driven; this only limits the cost of a lost wake-up.
constexpr auto recheck = std::chrono::milliseconds(100);
// How long a reader waits for a free block when even the store's reserve is used up.
constexpr auto room_timeout = std::chrono::seconds(30);

std::uint64_t page_mask(std::uint64_t first, std::uint64_t last) // of one block, inclusive
{
	const std::uint64_t n = last - first + 1;
	return (n == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1) << first;
}

struct alignas(64) source_counters {
	std::atomic<std::uint64_t> requests{0}, pages{0}, bytes{0};
	std::atomic<std::uint64_t> latency[32]{};
};

class reader_impl final : public reader
{
public:
	reader_impl(const reader_options &o, page_store &store, fetcher *f, storage &s,
		    const membership *m) :
		store_(store),
		fetcher_(f),
		shift_(store.page_shift()),
		readahead_limit_((store.stats().capacity >> shift_) / 4),
		readahead_pages_(o.readahead_pages),
		ra_async_(o.ra_async),
		loader_(store, f, s, m, o.wait_timeout_ms * 1000u),
		ahead_(f != nullptr ? std::make_unique<files_ahead>(store, *f, m) : nullptr)
	{
	}

	int read(const content &, stream &, std::uint64_t offset, std::uint32_t length,
		 std::vector<piece> &out) override;
	int read_whole(const content &, std::vector<piece> &out, source &from) override;
	void put_inline(const content &, std::string_view bytes, origin from) override;
	void relay(const wanted_pages &w) override { loader_.relay(w); }
	void take(const offered_pages &o) override { loader_.take(o); }
	void fetch_ahead(std::vector<held_content> files) override
	{
		if (ahead_)
			ahead_->add(std::move(files));
	}
	reader_stats stats() const override;
	void reset_stats() override;

private:
	// A block, and those of its pages that the read wants.
	struct part {
		block_ref pin;
		std::uint64_t want;
		bool missing() const { return (pin->valid() & want) != want; }
	};

	int make_valid(const content &, stream &, std::uint64_t offset, std::uint64_t end,
		       std::vector<part> &);
	void pieces_of(std::vector<part> &, std::uint64_t offset, std::uint64_t end,
		       std::vector<piece> &out) const;
	static source sources_of(const part &, std::uint64_t (&mask)[3]);
	int gather(const content &, std::uint64_t offset, std::uint64_t end, std::vector<part> &);
	std::vector<claimed> claim_missing(const content &, std::vector<part> &,
					   bool *kernel_dropped);
	bool wait_settled(const std::vector<part> &);
	bool plan_readahead(stream &, std::uint64_t offset, std::uint64_t end, std::uint64_t size,
			    std::uint64_t &from, std::uint64_t &to);
	void start_readahead(const content &, std::uint64_t from, std::uint64_t to,
			     bool kernel_dropped, std::vector<part> *keep);
	source account(std::vector<part> &, std::uint64_t offset, std::uint64_t end,
		       std::uint64_t &from_peers);

	page_store &store_;
	fetcher *const fetcher_;
	const unsigned shift_;
	const std::uint64_t readahead_limit_; // pages under way: a quarter of the store
	const std::uint32_t readahead_pages_;
	const bool ra_async_;
	source_counters by_[3];
	std::atomic<std::uint64_t> readahead_started_{0}, stale_{0}, errors_{0};
	loader loader_; // its destructor, and the next, wait for loads that use the rest
	std::unique_ptr<files_ahead> ahead_; // null: no peers
};

int reader_impl::gather(const content &c, std::uint64_t offset, std::uint64_t end,
			std::vector<part> &parts)
{
	const std::uint64_t first = offset >> shift_, last = (end - 1) >> shift_;
	clock::time_point give_up{};
	for (std::uint64_t b = first / 64; b <= last / 64;) {
		const std::uint64_t from = std::max(first, b * 64) - b * 64;
		const std::uint64_t to = std::min(last, b * 64 + 63) - b * 64;
		block_ref pin = store_.get(c.key, b, c.size);
		if (pin) {
			parts.push_back({std::move(pin), page_mask(from, to)});
			b++;
			continue;
		}
		// Everything is pinned, including the reserve: pins are short, so one is released
		// soon. Release ours first: readers that each hold a block would wait for each
		// other.
		parts.clear();
		b = first / 64;
		const auto now = clock::now();
		if (give_up == clock::time_point{})
			give_up = now + room_timeout;
		if (now >= give_up)
			return -ENOMEM;
		std::this_thread::sleep_for(std::chrono::microseconds(200));
	}
	return 0;
}

std::vector<claimed> reader_impl::claim_missing(const content &c, std::vector<part> &parts,
						bool *kernel_dropped)
{
	std::vector<claimed> mine;
	for (part &p : parts) {
		if (!p.missing())
			continue;
		claimed got = loader_.claim(c, p.pin, p.want);
		if (got.pages == 0)
			continue;
		if (store_.in_kernel().take_back(c.key, p.pin->index(), got.pages) != 0) {
			p.pin->stay();
			*kernel_dropped = true;
		}
		mine.push_back(std::move(got));
	}
	return mine;
}

// False: the asker has gone. Its loads continue.
bool reader_impl::wait_settled(const std::vector<part> &parts)
{
	const auto settled = [&parts] {
		for (const part &p : parts)
			if ((p.pin->loading() & p.want) != 0)
				return false;
		return true;
	};
	while (!settled()) {
		if (asker::has_gone())
			return false;
		const auto until = clock::now() + recheck;
		if (fetcher_ != nullptr && fetcher_->in_flight() != 0) {
			const auto us = std::chrono::duration_cast<std::chrono::microseconds>(
				until.time_since_epoch());
			fetcher_->drive_until(settled, static_cast<std::uint64_t>(us.count()));
			continue;
		}
		for (const part &p : parts)
			if ((p.pin->loading() & p.want) != 0) {
				p.pin->wait(p.want, until);
				break;
			}
	}
	return true;
}

// A read is sequential if it continues within reach of the stream's position, by no more than the
// kernel has in flight at once: kernel readahead comes in large pieces and in any order.
bool reader_impl::plan_readahead(stream &s, std::uint64_t offset, std::uint64_t end,
				 std::uint64_t size, std::uint64_t &from, std::uint64_t &to)
{
	const std::uint64_t most = std::uint64_t{readahead_pages_} << shift_;
	const std::uint64_t length = end - offset;
	const std::uint64_t slack = length >= 65536 ? 8 * length : length;
	const std::uint64_t block = std::uint64_t{64} << shift_;

	const std::lock_guard lock(s.mutex);
	if (offset > s.next + slack || offset + slack < s.next) {
		s.run = 1;
		s.next = end;
		s.ahead = s.window = 0;
		return false;
	}
	if (end <= s.next)
		return false; // a late piece, or a repeat
	s.next = end;
	if (++s.run < 2 || most == 0 || end >= size)
		return false;
	s.ahead = std::max(s.ahead, end);
	const std::uint64_t window = s.window == 0 ? std::min(most, 2 * length) : s.window;
	if (s.ahead - end > window / 2) {
		s.window = window;
		return false; // enough is under way
	}
	from = s.ahead;
	// Whole blocks, so that the next fetch begins at a block boundary.
	to = end + window;
	if (window >= block)
		to = (to + block - 1) / block * block;
	to = std::min(to, size);
	s.window = std::min(most, 2 * window);
	if (to <= from)
		return false;
	s.ahead = to;
	return true;
}

// kernel_dropped: the read asked for pages that the kernel had had. If not, the reader will not ask
// for what the kernel has.
void reader_impl::start_readahead(const content &c, std::uint64_t from, std::uint64_t to,
				  bool kernel_dropped, std::vector<part> *keep)
{
	std::vector<claimed> mine;
	std::uint64_t claimed_pages = 0;
	const std::uint64_t first = from >> shift_, last = (to - 1) >> shift_;
	for (std::uint64_t b = first / 64; b <= last / 64; b++) {
		if (loader_.pages_under_way() + claimed_pages + 64 > readahead_limit_)
			break;
		std::uint64_t want = page_mask(std::max(first, b * 64) - b * 64,
					       std::min(last, b * 64 + 63) - b * 64);
		if (!kernel_dropped)
			want &= ~store_.in_kernel().noted(c.key, b);
		if (want == 0)
			continue;
		block_ref pin = store_.get(c.key, b, c.size);
		if (!pin)
			break;
		claimed got = loader_.claim(c, pin, want);
		if (kernel_dropped && got.pages != 0 &&
		    store_.in_kernel().take_back(c.key, b, got.pages) != 0)
			pin->stay();
		if (keep != nullptr)
			keep->push_back({std::move(pin), want});
		if (got.pages == 0)
			continue;
		claimed_pages += static_cast<std::uint64_t>(std::popcount(got.pages));
		mine.push_back(std::move(got));
	}
	if (mine.empty())
		return;
	readahead_started_.fetch_add(claimed_pages, std::memory_order_relaxed);
	loader_.load(c, std::move(mine), true);
}

// Pages of the part by their source, which is not reported again. Returns the slowest.
source reader_impl::sources_of(const part &p, std::uint64_t (&mask)[3])
{
	constexpr auto peer = static_cast<int>(source::peer),
		       storage = static_cast<int>(source::storage);
	p.pin->take_fresh(p.want, mask[peer], mask[storage]);
	mask[0] = p.want & ~(mask[peer] | mask[storage]);
	return mask[storage] ? source::storage : mask[peer] ? source::peer : source::buffer;
}

source reader_impl::account(std::vector<part> &parts, std::uint64_t offset, std::uint64_t end,
			    std::uint64_t &from_peers)
{
	const std::uint64_t page_bytes = std::uint64_t{1} << shift_;
	source slowest = source::buffer;
	for (part &p : parts) {
		std::uint64_t mask[3];
		slowest = std::max(slowest, sources_of(p, mask));
		for (int s = 0; s < 3; s++) {
			if (mask[s] == 0)
				continue;
			const auto pages = static_cast<std::uint64_t>(std::popcount(mask[s]));
			std::uint64_t bytes = pages * page_bytes;
			// Of the first and the last page only a part may be used.
			const std::uint64_t base = p.pin->index() * 64;
			const auto has = [&](std::uint64_t byte) {
				const std::uint64_t page = byte >> shift_;
				return page >= base && page - base < 64 &&
				       (mask[s] >> (page - base) & 1) != 0;
			};
			if (has(offset))
				bytes -= offset & (page_bytes - 1);
			if (has(end - 1))
				bytes -= page_bytes - 1 - ((end - 1) & (page_bytes - 1));
			by_[s].pages.fetch_add(pages, std::memory_order_relaxed);
			by_[s].bytes.fetch_add(bytes, std::memory_order_relaxed);
			from_peers += s == static_cast<int>(source::peer) ? bytes : 0;
		}
	}
	return slowest;
}

int reader_impl::make_valid(const content &c, stream &s, std::uint64_t offset, std::uint64_t end,
			    std::vector<part> &parts)
{
	if (c.key.version == 0)
		return -EINVAL;
	std::vector<part> ahead;
	parts.reserve(8);
	if (const int err = gather(c, offset, end, parts); err != 0) {
		errors_.fetch_add(1, std::memory_order_relaxed);
		return err;
	}
	std::shared_ptr<loader::job> job;
	bool kernel_dropped = false;
	if (auto mine = claim_missing(c, parts, &kernel_dropped); !mine.empty())
		job = loader_.load(c, std::move(mine), true);

	std::uint64_t from = 0, to = 0;
	const bool readahead = plan_readahead(s, offset, end, c.size, from, to);
	if (readahead)
		start_readahead(c, from, to, kernel_dropped, ra_async_ ? nullptr : &ahead);

	for (;;) {
		if (!wait_settled(parts))
			return -EINTR;
		if (std::none_of(parts.begin(), parts.end(),
				 [](const part &p) { return p.missing(); }))
			break;
		const int err = job ? job->error() : 0;
		if (err != 0) {
			(err == -ESTALE ? stale_ : errors_).fetch_add(1, std::memory_order_relaxed);
			return err;
		}
		if (auto mine = claim_missing(c, parts, &kernel_dropped); !mine.empty())
			job = loader_.load(c, std::move(mine), false);
	}
	if (!wait_settled(ahead))
		return -EINTR;
	if (readahead && fetcher_ != nullptr)
		fetcher_->tend();
	return 0;
}

void reader_impl::pieces_of(std::vector<part> &parts, std::uint64_t offset, std::uint64_t end,
			    std::vector<piece> &out) const
{
	out.reserve(parts.size());
	const std::uint64_t page_bytes = std::uint64_t{1} << shift_;
	for (part &p : parts) {
		const std::uint64_t base = (p.pin->index() * 64) << shift_;
		const std::uint64_t at = std::max(offset, base) - base;
		const std::uint64_t until = std::min(end - base, page_bytes * 64);
		const auto page = static_cast<std::uint32_t>(at >> shift_);
		const std::uint64_t arena = p.pin->arena_offset(page) + (at & (page_bytes - 1));
		out.push_back({std::move(p.pin), arena, static_cast<std::uint32_t>(until - at)});
	}
}

int reader_impl::read(const content &c, stream &s, std::uint64_t offset, std::uint32_t length,
		      std::vector<piece> &out)
{
	out.clear();
	if (length == 0 || offset >= c.size)
		return 0;
	const auto begun = clock::now();
	const std::uint64_t end = offset + std::min<std::uint64_t>(length, c.size - offset);
	std::vector<part> parts;
	if (const int err = make_valid(c, s, offset, end, parts))
		return err;
	std::uint64_t from_peers = 0;
	const source slowest = account(parts, offset, end, from_peers);
	pieces_of(parts, offset, end, out);
	if (ahead_ && c.size <= COOP_BUNDLE_CONTENT)
		ahead_->used(from_peers);

	const auto us = static_cast<std::uint64_t>(
		std::chrono::duration_cast<std::chrono::microseconds>(clock::now() - begun)
			.count());
	source_counters &by = by_[static_cast<int>(slowest)];
	by.requests.fetch_add(1, std::memory_order_relaxed);
	by.latency[std::min<int>(std::bit_width(us), 31)].fetch_add(1, std::memory_order_relaxed);
	return 0;
}

int reader_impl::read_whole(const content &c, std::vector<piece> &out, source &from)
{
	out.clear();
	from = source::buffer;
	if (c.size == 0)
		return 0;
	stream once;
	std::vector<part> parts;
	if (const int err = make_valid(c, once, 0, c.size, parts))
		return err;
	for (const part &p : parts) {
		std::uint64_t mask[3];
		from = std::max(from, sources_of(p, mask));
	}
	pieces_of(parts, 0, c.size, out);
	return 0;
}

void reader_impl::put_inline(const content &c, std::string_view bytes, origin from)
{
	const std::uint64_t have = std::min<std::uint64_t>(bytes.size(), c.size);
	if (c.key.version == 0 || have == 0)
		return;
	const std::uint64_t page_bytes = std::uint64_t{1} << shift_;
	const std::uint64_t pages =
		have == c.size ? (have + page_bytes - 1) >> shift_ : have >> shift_;
	for (std::uint64_t b = 0; b * 64 < pages; b++) {
		block_ref pin = store_.get(c.key, b, c.size);
		if (!pin)
			return;
		const std::uint64_t mine =
			pin->claim(page_mask(0, std::min<std::uint64_t>(pages - b * 64, 64) - 1),
				   COOP_LEVEL_SENDING);
		for (std::uint64_t left = mine; left != 0; left &= left - 1) {
			const auto page = static_cast<std::uint32_t>(std::countr_zero(left));
			const std::uint64_t at = (b * 64 + page) << shift_;
			std::memcpy(pin->data(page), bytes.data() + at,
				    std::min(page_bytes, have - at));
		}
		zero_tail(*pin, mine, c.size, shift_);
		pin->publish(mine, from);
	}
	if (fetcher_ != nullptr)
		fetcher_->wake();
}

reader_stats reader_impl::stats() const
{
	reader_stats s{};
	for (int i = 0; i < 3; i++) {
		s.by[i].requests = by_[i].requests.load(std::memory_order_relaxed);
		s.by[i].pages = by_[i].pages.load(std::memory_order_relaxed);
		s.by[i].bytes = by_[i].bytes.load(std::memory_order_relaxed);
		for (int l = 0; l < 32; l++)
			s.by[i].latency[l] = by_[i].latency[l].load(std::memory_order_relaxed);
	}
	s.peer_fallback_pages = loader_.fallback_pages();
	s.relayed_pages = loader_.relayed_pages();
	s.taken_pages = loader_.taken_pages();
	s.redirected_pages = loader_.redirected_pages();
	s.readahead_pages =
		readahead_started_.load(std::memory_order_relaxed) + (ahead_ ? ahead_->pages() : 0);
	s.stale_reads = stale_.load(std::memory_order_relaxed);
	s.errors = errors_.load(std::memory_order_relaxed);
	return s;
}

void reader_impl::reset_stats()
{
	for (source_counters &by : by_) {
		for (auto *counter : {&by.requests, &by.pages, &by.bytes})
			counter->store(0, std::memory_order_relaxed);
		for (auto &bucket : by.latency)
			bucket.store(0, std::memory_order_relaxed);
	}
	if (ahead_)
		ahead_->reset_stats();
	for (auto *counter : {&readahead_started_, &stale_, &errors_})
		counter->store(0, std::memory_order_relaxed);
	loader_.reset_stats();
}

} // namespace

std::unique_ptr<reader> reader::create(const reader_options &o, page_store &store, fetcher *f,
				       storage &s, const membership *m)
{
	return std::make_unique<reader_impl>(o, store, f, s, m);
}

} // namespace coop::client
