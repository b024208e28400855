// SPDX-License-Identifier: MIT
// source.cpp - see source.hpp. All requests send from one queue pair; should it die, what was
// under way counts as lost, and is asked for again.
#include "source.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>

namespace coop::net::ud
{

source::source(coop::ud::endpoint &ep, fetch_host::slab &s, const channels &c, std::uint32_t slots,
	       owner &o) :
	endpoint_(ep),
	slots_(s),
	owner_(o),
	channels_(c),
	slots_n_(slots),
	bounce_at_(s.reserve(slots * COOP_MAX_PAGES * page_bytes)),
	records_(slots)
{
	for (std::uint32_t i = slots; i-- > 0;)
		free_.push_back(i);
}

void source::make(coop_engine *engine)
{
	engine_ = engine;
	const std::uint32_t most =
		std::min<std::uint32_t>(slots_n_ * depth(endpoint_.info().mtu), 8192);
	const int qp = endpoint_.create_qp({most, 1, most_sge, 0x7fffffff});
	if (qp < 0)
		throw std::system_error(-qp, std::generic_category(),
					"ud: cannot create the queue pair that bulk data is sent "
					"from: " +
						endpoint_.refusal());
	qp_ = static_cast<std::uint32_t>(qp);
	for (std::uint32_t slot = 0; slot < slots_n_; slot++)
		coop_engine_set_serve_qp(engine, slot, endpoint_.qpn(qp_));
}

void source::lookup(const coop_ev &ev, std::uint64_t now)
{
	offer what;
	if (free_.empty() ||
	    !owner_.open(ev.fid.hi, ev.version, identity::unpack(ev.fid.lo), ev.from, what)) {
		coop_engine_lookup_done(engine_, ev.id, 0, 0, no_record, now);
		return;
	}
	const std::uint32_t index = free_.back();
	free_.pop_back();
	record &r = records_[index];
	r.what = what;
	r.have = 0;
	r.n_pages = 0;
	const std::uint64_t pages = (what.length + page_bytes - 1) / page_bytes;
	for (std::uint32_t e = 0; e < ev.n_ext; e++)
		for (std::uint32_t i = 0; i < ev.ext[e].count && r.n_pages < COOP_MAX_PAGES; i++) {
			const std::uint64_t page = ev.ext[e].index + i;
			if (page < pages)
				r.have |= 1ull << r.n_pages;
			r.page[r.n_pages++] = static_cast<std::uint32_t>(page);
		}
	coop_engine_lookup_done(engine_, ev.id, r.have, what.length, index, now);
}

void source::recheck(const coop_ev &ev, std::uint64_t now)
{
	if (ev.cookie == no_record) {
		coop_engine_recheck_done(engine_, ev.id, 0, nullptr, now);
		return;
	}
	const record &r = records_[ev.cookie];
	const std::uint64_t still = owner_.holds(r.what) ? r.have : 0;
	std::uint64_t sums[COOP_MAX_PAGES] = {};
	if (ev.sum != COOP_SUM_NONE)
		for (std::uint64_t left = still; left; left &= left - 1) {
			const auto i = static_cast<std::uint32_t>(std::countr_zero(left));
			const std::size_t at = std::size_t{r.page[i]} * page_bytes;
			std::byte page[page_bytes] = {};
			spi::gather(r.what.memory, at, page,
				    std::min(page_bytes, r.what.length - at));
			sums[i] = page_sum(engine_, ev, i, page);
		}
	coop_engine_recheck_done(engine_, ev.id, still, ev.sum != COOP_SUM_NONE ? sums : nullptr,
				 now);
}

void source::end(const coop_ev &ev)
{
	if (ev.cookie == no_record)
		return;
	free_.push_back(static_cast<std::uint32_t>(ev.cookie));
	owner_.close(records_[ev.cookie].what);
}

std::uint32_t source::fill(const record *r, const coop_tx &tx, const coop_seg &s,
			   coop::ud::sge *list)
{
	std::uint32_t n = 0;
	for (std::uint32_t f = 0; f < s.n_frag; f++) {
		const auto &frag = s.frag[f];
		if (!r || frag.absent) {
			list[n++] = {slots_.zeros() + frag.off, frag.len};
			continue;
		}
		const std::size_t at = std::size_t{r->page[frag.page]} * page_bytes + frag.off;
		const std::uint32_t before = n;
		if (channels_.direct(r->what.memory) &&
		    page_pieces(r->what.memory, r->what.length, slots_.zeros(), at, frag.len, list,
				most_sge - 2, n))
			continue;
		// Memory in too many pieces, or not the device's.
		std::byte *hold =
			slots_.at(bounce_at_ +
				  (std::size_t{tx.slot} * COOP_MAX_PAGES + frag.page) * page_bytes +
				  frag.off);
		const std::size_t inside =
			at < r->what.length ? std::min<std::size_t>(frag.len, r->what.length - at)
					    : 0;
		spi::gather(r->what.memory, at, hold, inside);
		std::memset(hold + inside, 0, frag.len - inside);
		n = before;
		list[n++] = {hold, frag.len};
	}
	return n;
}

void source::send(const coop_tx &tx, std::uint64_t now)
{
	if (tx.n_seg == 0)
		return;
	const record *r = tx.cookie != no_record ? &records_[tx.cookie] : nullptr;
	const bool copies = endpoint_.info().sends_copy;
	sges_.resize(std::size_t{tx.n_seg} * most_sge);
	wrs_.resize(tx.n_seg);
	for (std::uint32_t i = 0; i < tx.n_seg; i++) {
		coop::ud::sge *list = &sges_[std::size_t{i} * most_sge];
		wrs_[i] = {};
		wrs_[i].list = list;
		wrs_[i].n_sge = fill(r, tx, tx.seg[i], list);
		wrs_[i].imm = tx.seg[i].imm;
		wrs_[i].has_imm = true;
	}
	// Only the last of a batch tells; the others complete by themselves only when flushed,
	// and then as number 0.
	wrs_.back().wr_id = std::uint64_t{tx.n_seg} << 32 | tx.id;
	wrs_.back().signaled = !copies;
	wrs_.back().more = true; // of a few pages the commit follows at once
	const int posted = endpoint_.post_send(qp_, tx.addr, wrs_);
	if (posted == static_cast<int>(tx.n_seg)) {
		if (copies)
			coop_engine_tx_done(engine_, tx.id, tx.n_seg, 0, now);
		else
			unfinished_++;
		return;
	}
	coop_engine_tx_done(engine_, tx.id, tx.n_seg, -EIO, now);
	if (copies)
		return;
	// The signalled one is not among them, so their end is not told: stopping the queue pair
	// ends them.
	(void)endpoint_.modify_qp(qp_, coop::ud::qp_state::error);
	dead_ = true;
	if (unfinished_ == 0)
		completed({}, now);
}

void source::completed(const coop::ud::completion &c, std::uint64_t now)
{
	if (c.wr_id >> 32 != 0 && !c.is_recv) {
		const bool good = c.status == coop::ud::wc_status::success;
		unfinished_ -= unfinished_ != 0;
		dead_ |= !good;
		coop_engine_tx_done(engine_, static_cast<std::uint32_t>(c.wr_id),
				    static_cast<std::uint32_t>(c.wr_id >> 32), good ? 0 : -EIO,
				    now);
	}
	if (dead_ && unfinished_ == 0) {
		using coop::ud::qp_state;
		(void)endpoint_.modify_qp(qp_, qp_state::error);
		dead_ = endpoint_.modify_qp(qp_, qp_state::reset) != 0 ||
			endpoint_.modify_qp(qp_, qp_state::ready) != 0;
	}
}

} // namespace coop::net::ud
