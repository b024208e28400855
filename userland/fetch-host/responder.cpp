// SPDX-License-Identifier: MIT
// responder.cpp - see responder.hpp.
#include "userland/fetch-host/responder.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <string>
#include <utility>

namespace coop::fetch_host
{

namespace
{

constexpr std::uint64_t no_record = ~std::uint64_t{0}; // cookie: lookup() found nothing
constexpr std::uint32_t most_sends = 8192;             // of a queue pair

} // namespace

responder::responder(ud::endpoint &ep, const slab &s, served_pages &pages, const shape &what) :
	endpoint_(ep),
	slab_(s),
	pages_(pages),
	shape_(what),
	qps_(what.serve_qps)
{
	for (std::uint32_t i = what.serves; i-- > 0;)
		free_.push_back(i);
}

std::uint32_t responder::depth() const
{
	return std::min({COOP_MAX_PAGES * shape_.datagrams(endpoint_.info().mtu),
			 std::uint32_t{COOP_MAX_SEGS},
			 shape_.bounded ? most_at_once() : most_sends / serves_a_qp()});
}

void responder::make(coop_engine *engine)
{
	engine_ = engine;
	const std::uint32_t sends = shape_.bounded ? most_at_once() : depth() * serves_a_qp();
	for (queue_pair &q : qps_) {
		const int qp =
			endpoint_.create_qp({sends, 1, shape_.max_sge - 2, shape_.serve_qkey});
		if (qp < 0)
			throw std::system_error(
				-qp, std::generic_category(),
				std::string("cannot create a queue pair to serve with; lower ") +
					shape_.serves_option + ": " + endpoint_.refusal());
		q.qp = static_cast<std::uint32_t>(qp);
	}
	for (std::uint32_t slot = 0; slot < shape_.serves; slot++)
		coop_engine_set_serve_qp(engine, slot, endpoint_.qpn(qp(slot % n_qps())));
}

void responder::lookup(const coop_ev &ev, std::uint64_t now)
{
	served_pages::found found;
	if (free_.empty() || !pages_.lookup(free_.back(), ev, found)) {
		if (found.busy)
			coop_engine_lookup_busy(engine_, ev.id, no_record);
		else
			coop_engine_lookup_done(engine_, ev.id, 0, 0, no_record, now);
		return;
	}
	const std::uint64_t cookie = free_.back();
	free_.pop_back();
	if (!found.passed && !found.later)
		looked_up(ev, cookie, found, now);
}

void responder::looked_up(const coop_ev &ev, std::uint64_t cookie, const served_pages::found &found,
			  std::uint64_t now)
{
	if (found.coming != 0) {
		coop_engine_lookup_wait(engine_, ev.id, found.have, found.coming, found.size,
					cookie, now);
		return;
	}
	if (!found.kept) {
		coop_engine_lookup_done(engine_, ev.id, found.have, found.size, cookie, now);
		return;
	}
	page_sums room;
	coop_engine_lookup_kept(engine_, ev.id, found.have, found.size, cookie,
				sums(ev, cookie, found.have, room), now);
}

void responder::recheck(const coop_ev &ev, std::uint64_t now)
{
	if (ev.cookie == no_record) {
		coop_engine_recheck_done(engine_, ev.id, 0, nullptr, now);
		return;
	}
	const std::uint64_t still = pages_.unchanged(ev.cookie);
	page_sums room;
	coop_engine_recheck_done(engine_, ev.id, still, sums(ev, ev.cookie, still, room), now);
}

// As the event asks for; null if it asks for none.
const std::uint64_t *responder::sums(const coop_ev &ev, std::uint64_t cookie, std::uint64_t pages,
				     page_sums &room) const
{
	if (ev.sum == COOP_SUM_NONE)
		return nullptr;
	for (; pages != 0; pages &= pages - 1) {
		const auto i = static_cast<std::uint32_t>(std::countr_zero(pages));
		room.of[i] = page_sum(engine_, ev, pages_, cookie, i, shape_.page_shift);
	}
	return room.of;
}

void responder::end(const coop_ev &ev)
{
	if (ev.cookie == no_record)
		return;
	free_.push_back(static_cast<std::uint32_t>(ev.cookie));
	pages_.end(ev.cookie, ev.pages);
}

std::uint32_t responder::fill(const coop_tx &tx, const coop_seg &s, ud::sge *list)
{
	std::uint32_t n = 0;
	for (std::uint32_t f = 0; f < s.n_frag; f++) {
		const auto &frag = s.frag[f];
		if (frag.absent != 0 || tx.cookie == no_record)
			list[n++] = {slab_.zeros() + frag.off, frag.len};
		else
			n += pages_.pieces(tx.cookie, frag.page, frag.off, frag.len,
					   {list + n, (shape_.max_sge - 2) / s.n_frag});
	}
	return n;
}

void responder::send(const coop_tx &tx, std::uint64_t now)
{
	if (tx.n_seg == 0)
		return;
	const bool copies = endpoint_.info().sends_copy; // then a send ends as it is posted
	sges_.resize(std::size_t{tx.n_seg} * shape_.max_sge);
	wrs_.resize(tx.n_seg);
	std::uint32_t bytes = 0;
	for (std::uint32_t i = 0; i < tx.n_seg; i++) {
		bytes += tx.seg[i].len;
		ud::sge *list = &sges_[std::size_t{i} * shape_.max_sge];
		wrs_[i] = {0, list, fill(tx, tx.seg[i], list), tx.seg[i].imm, true, false};
	}
	// Only the last of a batch tells; the others complete by themselves only when flushed,
	// and then as number 0.
	wrs_.back().wr_id = std::uint64_t{tx.n_seg} << 32 | tx.id;
	wrs_.back().signaled = !copies;
	wrs_.back().more = true; // of a few pages the COMMIT follows at once
	queue_pair &q = qps_[tx.slot % n_qps()];
	recycle(q, now);
	const int posted = q.dead ? -EIO : endpoint_.post_send(q.qp, tx.addr, wrs_);
	if (posted == static_cast<int>(tx.n_seg) && !copies) {
		q.unfinished.push_back({tx.n_seg, bytes});
		n_sending_ += tx.n_seg;
		sending_ += bytes;
	} else if (posted <= 0 || copies) { // the device owns nothing of it
		const int err = posted == static_cast<int>(tx.n_seg) ? 0 : -EIO;
		coop_engine_tx_done(engine_, tx.id, tx.n_seg, err, now);
	} else {
		q.cut = tx.n_seg;
		q.cut_id = tx.id;
		stop(q);
		recycle(q, now);
	}
}

void responder::completed(std::uint32_t i, const ud::completion &c, std::uint64_t now)
{
	queue_pair &q = qps_[i];
	if (c.wr_id >> 32 != 0 && !c.is_recv) {
		const bool good = c.status == ud::wc_status::success;
		const auto n = static_cast<std::uint32_t>(c.wr_id >> 32);
		assert(!q.unfinished.empty());
		if (!q.dead) {
			sending_ -= q.unfinished.front().bytes;
			n_sending_ -= q.unfinished.front().sends;
		}
		q.unfinished.pop_front();
		if (!good)
			stop(q);
		coop_engine_tx_done(engine_, static_cast<std::uint32_t>(c.wr_id), n,
				    good ? 0 : -EIO, now);
	}
	recycle(q, now);
}

// Flushes all sends under way. They no longer count: a device that does not report their end must
// not keep the other queue pairs from sending.
void responder::stop(queue_pair &q)
{
	if (std::exchange(q.dead, true))
		return;
	for (const batch &b : q.unfinished) {
		sending_ -= b.bytes;
		n_sending_ -= b.sends;
	}
	(void)endpoint_.modify_qp(q.qp, ud::qp_state::error);
}

// Once all sends of a stopped queue pair have completed, it works again.
void responder::recycle(queue_pair &q, std::uint64_t now)
{
	if (!q.dead || !q.unfinished.empty())
		return;
	const bool empty = endpoint_.modify_qp(q.qp, ud::qp_state::reset) == 0;
	q.dead = !empty || endpoint_.modify_qp(q.qp, ud::qp_state::ready) != 0;
	// A device that is lost has flushed all and resets nothing.
	if (q.cut != 0 && (empty || endpoint_.state().lost))
		coop_engine_tx_done(engine_, q.cut_id, std::exchange(q.cut, 0), -EIO, now);
}

} // namespace coop::fetch_host
