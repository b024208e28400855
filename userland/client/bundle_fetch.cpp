// SPDX-License-Identifier: MIT
// bundle_fetch.cpp - see bundle_fetch.hpp.
#include "userland/client/bundle_fetch.hpp"

#include <cerrno>

namespace coop::client
{

namespace
{

// All blocks of a bundle are pinned at once, so a bundle may take this part of the page store.
constexpr std::uint64_t store_part = 4;

} // namespace

void bundle_fetch::start(reader &r, page_store &store)
{
	store_ = &store;
	reader_ = &r;
}

void bundle_fetch::stop()
{
	reader_ = nullptr;
}

int bundle_fetch::read(const handle &dir, const std::function<int(open_bundle &)> &open,
		       open_bundle &out, std::string &bytes)
{
	reader *const through = reader_;
	if (!through)
		return -ESHUTDOWN;
	const membership::opening_any opening(membership_);
	if (const int err = open(out))
		return err;
	if (out.size > store_->stats().capacity / store_part)
		return -ENOSPC;
	const auto c = std::make_shared<const content>(
		content{{out.fid, out.version}, out.size, dir, out.open_id, out.openers});
	membership_.opened(c); // peers may want pages from now on
	std::vector<piece> pieces;
	source from;
	if (const int err = through->read_whole(*c, pieces, from))
		return err;
	out.from_peers = from == source::peer;
	bytes.clear();
	bytes.reserve(out.size);
	for (const piece &p : pieces)
		bytes.append(reinterpret_cast<const char *>(store_->base()) + p.arena_offset,
			     p.length);
	return 0;
}

void bundle_fetch::closed(const open_bundle &b)
{
	membership_.closed(b.fid, b.open_id);
}

void bundle_fetch::keep(const open_bundle &b, const coop_fid &fid, std::uint64_t version,
			std::string_view bytes)
{
	if (reader *const through = reader_)
		through->put_inline(content{{fid, version}, bytes.size(), {}, 0, {}}, bytes,
				    b.from_peers ? origin::peer : origin::storage);
}

void bundle_fetch::at_nodes(std::vector<held_content> files)
{
	if (reader *const through = reader_)
		through->fetch_ahead(std::move(files));
}

} // namespace coop::client
