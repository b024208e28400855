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
};

loader::loader(page_store &store, fetcher *f, storage &s) : store_(store), fetcher_(f), storage_(s)
{
}

loader::~loader()
{
	std::unique_lock lock(idle_mutex_);
	idle_.wait(lock, [this] { return under_way_.load() == 0; });
}

void loader::settled(std::uint64_t pages)
{
	// Under the mutex: once the count is zero the destructor may finish.
	const std::lock_guard lock(idle_mutex_);
	if (under_way_.fetch_sub(pages) == pages)
		idle_.notify_all();
}

std::shared_ptr<loader::job> loader::load(const content &c, std::vector<claimed> what,
					  bool ask_peers)
{
	auto j = std::make_shared<job>(c);
	for (const claimed &part : what)
		under_way_.fetch_add(static_cast<std::uint64_t>(std::popcount(part.pages)));
	if (fetcher_ == nullptr || !ask_peers) {
		from_storage(j, std::move(what));
		return j;
	}
	std::vector<claimed> rest;
	for (claimed &part : what) {
		std::uint64_t left = part.pages, refused = 0;
		while (left != 0) {
			const std::uint64_t pages = take_fetch(left);
			auto asked = std::make_shared<claimed>(claimed{part.pin.clone(), pages});
			const int err = fetcher_->fetch(
				c.key, c.size, part.pin.clone(), pages, c.openers,
				[this, j, asked](const fetch_outcome &o) {
					const std::uint64_t good = o.good & asked->pages;
					const std::uint64_t missing = asked->pages & ~good;
					if (missing != 0) {
						fallback_pages_.fetch_add(
							static_cast<std::uint64_t>(
								std::popcount(missing)),
							std::memory_order_relaxed);
						std::vector<claimed> again;
						again.push_back({asked->pin.clone(), missing});
						from_storage(j, std::move(again));
					}
					asked->pin = block_ref();
					settled(static_cast<std::uint64_t>(std::popcount(good)));
				});
			if (err != 0)
				refused |= pages;
		}
		if (refused != 0)
			rest.push_back({std::move(part.pin), refused});
	}
	from_storage(j, std::move(rest));
	return j;
}

void loader::from_storage(const std::shared_ptr<job> &j, std::vector<claimed> what)
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
				if (r && (r->offset + r->length != at ||
					  r->length + page_bytes > max_storage_read)) {
					send(j, std::move(r));
					r = nullptr;
				}
				if (!r) {
					r = std::make_shared<request>();
					r->offset = at;
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
	const std::uint64_t offset = r->offset;
	storage_.read(j->fh, j->open_id, offset, std::move(dest), j->key.version,
		      [this, j, r = std::move(r)](const storage::read_result &result) {
			      finish(*j, *r, result);
		      });
}

void loader::finish(job &j, request &r, const storage::read_result &result)
{
	int err = result.err;
	// A version has one size: if storage returns less, it is at another version.
	if (err == 0 && result.bytes != r.length)
		err = -ESTALE;
	if (err != 0)
		j.fail(err);
	std::uint64_t all = 0;
	for (claimed &part : r.parts) {
		if (err == 0) {
			zero_tail(*part.pin, part.pages, j.size, store_.page_shift());
			part.pin->publish(part.pages, origin::storage);
		} else {
			part.pin->abandon(part.pages);
		}
		part.pin = block_ref();
		all += static_cast<std::uint64_t>(std::popcount(part.pages));
	}
	if (fetcher_ != nullptr)
		fetcher_->wake();
	settled(all); // last: after this the loader may be destroyed
}

} // namespace coop::client
