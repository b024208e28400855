// SPDX-License-Identifier: MIT
// loader.cpp - loading pages that are not in the store.
//
// A block is one fetch (several if it has many holes). The fetch's callback runs on the thread that
// drives the node; it requests the missing pages from storage and returns. A request to storage
// joins contiguous pages of the file, across blocks, up to 1 MiB, and receives directly into the
// blocks' memory.
#include "userland/client/loader.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

namespace coop::client
{

namespace
{

constexpr std::uint64_t max_storage_read = 1u << 20;
// A relay has the time that its peer has, less this part: to send, and to ask elsewhere.
constexpr std::uint32_t relay_keeps = 8;
// Pages under way for peers that wait. Beyond that a child asks elsewhere.
constexpr std::uint64_t relays_most = 64 * 64;
// Pages under way that peers are about to drop.
constexpr std::uint64_t taken_most = 8 * 64;
// Nodes that a member of a forest asks beside its parents.
constexpr std::size_t openers_asked = 2;

struct run {
	unsigned first, count;
};

// Removes and returns the lowest run of set bits of 'mask'.
run take_run(std::uint64_t &mask)
{
	const auto first = static_cast<unsigned>(std::countr_zero(mask));
	const auto count = static_cast<unsigned>(std::countr_one(mask >> first));
	const std::uint64_t bits =
		(count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1) << first;
	mask &= ~bits;
	return {first, count};
}

// Removes and returns as many runs as one fetch can name.
std::uint64_t take_fetch(std::uint64_t &mask)
{
	const std::uint64_t all = mask;
	for (unsigned i = 0; i < COOP_MAX_EXTENTS && mask != 0; i++)
		take_run(mask);
	return all & ~mask;
}

} // namespace

// One read request to storage: [offset, offset + length) of the file. These are the pages of
// 'parts' in order; the last one ends at the end of the file.
struct loader::request {
	std::vector<claimed> parts;
	std::vector<iovec> dest;
	std::uint64_t offset = 0, length = 0;
	bool insist = false;
};

loader::loader(page_store &store, fetcher *f, storage &s, const membership *m,
	       std::uint32_t wait_us) :
	store_(store),
	fetcher_(f),
	storage_(s),
	membership_(m),
	wait_us_(wait_us)
{
}

loader::~loader()
{
	std::unique_lock lock(idle_mutex_);
	idle_.wait(lock, [this] { return under_way_.load() == 0; });
}

void loader::settled(const job &j, std::uint64_t pages)
{
	if (j.relay)
		relaying_.fetch_sub(pages, std::memory_order_relaxed);
	// Under the mutex: once the count is zero the destructor may finish.
	const std::lock_guard lock(idle_mutex_);
	if (under_way_.fetch_sub(pages) == pages)
		idle_.notify_all();
}

std::shared_ptr<loader::job> loader::load(const content &c, std::vector<claimed> what,
					  bool ask_peers)
{
	auto j = std::make_shared<job>(c, in_company(c));
	for (const claimed &part : what)
		under_way_.fetch_add(static_cast<std::uint64_t>(std::popcount(part.pages)));
	if (fetcher_ == nullptr || !ask_peers)
		from_storage(j, std::move(what));
	else
		load(j, c, std::move(what), {});
	return j;
}

// Others have the file open, or had it: storage is asked for one unit at a time, because it names
// nodes for a request as a whole. A lone reader of a large file asks for as much as it can.
bool loader::in_company(const content &c) const
{
	return !c.openers.empty() ||
	       (membership_ != nullptr && membership_->place(c.key, 0).member);
}

void loader::load(const std::shared_ptr<job> &j, const content &c, std::vector<claimed> what,
		  const limits &most)
{
	std::vector<claimed> rest;
	for (claimed &part : what) {
		fetch_sources from = sources(c, part.pin->index(), most);
		from.level = std::min(from.level, part.level);
		if (const std::uint64_t refused = ask(j, part, from, false); refused != 0)
			rest.push_back({std::move(part.pin), refused});
	}
	from_storage(j, std::move(rest));
}

// Returns the pages for which no fetch has begun.
std::uint64_t loader::ask(const std::shared_ptr<job> &j, const claimed &part,
			  const fetch_sources &from, bool redirected)
{
	std::uint64_t left = part.pages, refused = 0;
	while (left != 0) {
		const std::uint64_t pages = take_fetch(left);
		auto asked = std::make_shared<claimed>(claimed{part.pin.clone(), pages});
		const int err =
			fetcher_->fetch(j->key, j->size, part.pin.clone(), pages, from,
					[this, j, asked, redirected](const fetch_outcome &o) {
						fetched(j, *asked, o, redirected);
					});
		if (err != 0)
			refused |= pages;
	}
	return refused;
}

void loader::fetched(const std::shared_ptr<job> &j, claimed &asked, const fetch_outcome &o,
		     bool redirected)
{
	const std::uint64_t good = o.good & asked.pages, missing = asked.pages & ~good;
	if (missing != 0) {
		fallback_pages_.fetch_add(static_cast<std::uint64_t>(std::popcount(missing)),
					  std::memory_order_relaxed);
		std::vector<claimed> again;
		again.push_back({asked.pin.clone(), missing});
		from_storage(j, std::move(again), redirected);
	}
	asked.pin = block_ref();
	settled(*j, static_cast<std::uint64_t>(std::popcount(good)));
}

// Storage has sent the bytes to these nodes before, and has sent none now.
void loader::redirected(const std::shared_ptr<job> &j, request &r,
			const storage::read_result &result)
{
	fetch_sources from;
	std::copy_n(result.holders.begin(),
		    std::min(result.holders.size(), std::size(from.parents)), from.parents);
	from.level = result.level;
	from.relay = true; // peers may wait for it
	from.budget_us = wait_us_;
	std::vector<claimed> rest;
	for (claimed &part : r.parts) {
		// Before it asks: only loads of greater levels wait for this one from here on. A
		// serve that waits with another one ends when it is looked at again.
		part.pin->redirected(part.pages, result.level);
		redirected_pages_.fetch_add(static_cast<std::uint64_t>(std::popcount(part.pages)),
					    std::memory_order_relaxed);
		if (const std::uint64_t refused = ask(j, part, from, true); refused != 0)
			rest.push_back({std::move(part.pin), refused});
	}
	from_storage(j, std::move(rest), true);
}

fetch_sources loader::sources(const content &c, std::uint64_t block, const limits &most) const
{
	fetch_sources from;
	from.openers = c.openers;
	const forest_place place =
		membership_ != nullptr ? membership_->place(c.key, block) : forest_place{};
	if (!place.member && !most.relay)
		return from;
	if (from.openers.size() > openers_asked) {
		// The last one opened the file first, so it has probably read most of it.
		from.openers = {from.openers.back(), from.openers.front()};
	}
	if (most.holder != 0)
		from.openers.insert(from.openers.begin(), most.holder);
	std::copy_n(place.parents, std::size(place.parents), from.parents);
	from.level = std::min(place.level, most.level);
	from.load = true;
	from.relay = most.relay;
	from.budget_us = most.relay ? most.budget_us : wait_us_;
	return from;
}

claimed loader::claim(const content &c, const block_ref &pin, std::uint64_t want) const
{
	claimed out;
	if (membership_ != nullptr)
		out.level = membership_->place(c.key, pin->index()).level;
	out.pages = pin->claim(want, out.level);
	if (out.pages != 0)
		out.pin = pin.clone();
	return out;
}

void loader::relay(const wanted_pages &w)
{
	const std::shared_ptr<const content> c =
		membership_ != nullptr ? membership_->open_content(w.key) : nullptr;
	// The level of the load must be above those of loads that storage redirects: it may become
	// one.
	if (!c || w.level <= COOP_LEVEL_ROOT || fetcher_ == nullptr ||
	    relaying_.load(std::memory_order_relaxed) >= relays_most)
		return;
	block_ref pin = store_.get(w.key, w.block, c->size);
	// A private block of the reserve would not be found by the serve that waits.
	if (!pin || store_.find(w.key, w.block, false).get() != pin.get())
		return;
	limits most;
	most.level = std::min(w.level - 1, membership_->place(w.key, w.block).level);
	// The peer chose its budget: it must not keep our slots for longer than we would.
	most.budget_us = std::min(w.budget_us - w.budget_us / relay_keeps, wait_us_);
	most.relay = true;
	most.holder = w.holder;
	if (most.budget_us == 0)
		return;
	const std::uint64_t pages = pin->claim(w.pages, most.level);
	if (pages == 0)
		return;
	const auto n = static_cast<std::uint64_t>(std::popcount(pages));
	relayed_pages_.fetch_add(n, std::memory_order_relaxed);
	under_way_.fetch_add(n);
	relaying_.fetch_add(n, std::memory_order_relaxed);
	std::vector<claimed> what;
	what.push_back({std::move(pin), pages, most.level});
	load(std::make_shared<job>(*c, in_company(*c), true), *c, std::move(what), most);
}

void loader::take(const offered_pages &o)
{
	const std::shared_ptr<const content> c =
		membership_ != nullptr ? membership_->open_content(o.key) : nullptr;
	if (!c || c->size != o.size || fetcher_ == nullptr ||
	    taking_.load(std::memory_order_relaxed) >= taken_most ||
	    !store_.takes_offer(o.key, o.block, c->size))
		return;
	block_ref pin = store_.get(o.key, o.block, c->size);
	if (!pin || store_.find(o.key, o.block, false).get() != pin.get())
		return;
	const std::uint64_t pages = pin->claim(o.pages, membership_->place(o.key, o.block).level);
	if (pages == 0)
		return;
	pin->set_chances(o.chances == 0 ? 0 : static_cast<std::uint8_t>(o.chances - 1));
	const auto n = static_cast<std::uint64_t>(std::popcount(pages));
	under_way_.fetch_add(n);
	taking_.fetch_add(n, std::memory_order_relaxed);
	const auto j = std::make_shared<job>(*c, true);
	fetch_sources from;
	from.openers = {o.node};
	from.background = true;
	for (std::uint64_t left = pages; left != 0;) {
		const std::uint64_t part = take_fetch(left);
		// What the peer does not send is nobody's need: it is not asked of storage.
		auto done = [this, j, part, held = std::make_shared<block_ref>(pin.clone())](
				    const fetch_outcome &out) {
			(*held)->abandon(part & ~out.good);
			(*held)->held_here_only(out.good & part); // the peer drops them now
			taken_pages_.fetch_add(
				static_cast<std::uint64_t>(std::popcount(out.good & part)),
				std::memory_order_relaxed);
			*held = block_ref();
			taking_.fetch_sub(static_cast<std::uint64_t>(std::popcount(part)),
					  std::memory_order_relaxed);
			settled(*j, static_cast<std::uint64_t>(std::popcount(part)));
		};
		if (fetcher_->fetch(o.key, c->size, pin.clone(), part, from, done) != 0)
			done({0, COOP_NONE, -ENOENT});
	}
}

void loader::from_storage(const std::shared_ptr<job> &j, std::vector<claimed> what, bool insist)
{
	const unsigned shift = store_.page_shift();
	const std::uint64_t page_bytes = std::uint64_t{1} << shift;
	std::shared_ptr<request> r;
	for (claimed &part : what) {
		std::uint64_t left = part.pages;
		while (left != 0) {
			run piece = take_run(left);
			while (piece.count != 0) {
				const std::uint64_t at = (part.pin->index() * 64 + piece.first)
							 << shift;
				// Storage names nodes for a request as a whole.
				const bool other = j->by_unit && r &&
						   r->parts.back().pin.get() != part.pin.get();
				if (r && (r->offset + r->length != at || other ||
					  r->length + page_bytes > max_storage_read)) {
					send(j, std::move(r));
					r = nullptr;
				}
				if (!r) {
					r = std::make_shared<request>();
					r->offset = at;
					r->insist = insist;
				}
				const auto room = static_cast<unsigned>(std::max<std::uint64_t>(
					(max_storage_read - r->length) >> shift, 1));
				const unsigned n = std::min(room, piece.count);
				const std::uint64_t length =
					std::min<std::uint64_t>(n * page_bytes, j->size - at);
				const std::uint64_t bits =
					(n == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1)
					<< piece.first;
				r->dest.push_back({part.pin->data(piece.first), length});
				r->length += length;
				r->parts.push_back({part.pin.clone(), bits});
				piece.first += n;
				piece.count -= n;
			}
		}
	}
	if (r)
		send(j, std::move(r));
}

void loader::send(const std::shared_ptr<job> &j, std::shared_ptr<request> r)
{
	auto dest = r->dest;
	for (const claimed &part : r->parts)
		part.pin->at_storage(part.pages, true);
	const std::uint64_t offset = r->offset;
	const bool insist = r->insist;
	auto done = [this, j, r = std::move(r)](const storage::read_result &result) {
		if (result.err == 0 && !result.holders.empty())
			redirected(j, *r, result);
		else
			finish(j, *r, result);
	};
	if (fetcher_ != nullptr && membership_ != nullptr)
		storage_.read_shared(j->fh, j->open_id, offset, std::move(dest), j->key.version,
				     insist, std::move(done));
	else
		storage_.read(j->fh, j->open_id, offset, std::move(dest), j->key.version,
			      std::move(done));
}

void loader::finish(const std::shared_ptr<job> &j, request &r, const storage::read_result &result)
{
	int err = result.err;
	// A version has one size: if storage returns less, it is at another version.
	if (err == 0 && result.bytes != r.length)
		err = -ESTALE;
	if (err != 0)
		j->fail(err);
	std::uint64_t all = 0;
	for (claimed &part : r.parts) {
		if (err == 0) {
			zero_tail(*part.pin, part.pages, j->size, store_.page_shift());
			part.pin->publish(part.pages, origin::storage);
		} else {
			part.pin->abandon(part.pages);
		}
		part.pin = block_ref();
		all += static_cast<std::uint64_t>(std::popcount(part.pages));
	}
	if (fetcher_ != nullptr)
		fetcher_->wake();
	settled(*j, all); // last: after this the loader may be destroyed
}

} // namespace coop::client
