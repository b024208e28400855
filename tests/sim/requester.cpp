// SPDX-License-Identifier: MIT
// requester.cpp - the host's half of a fetch: readers, WRs, verification.
//
// A reader claims absent pages of one block, lets the engine fetch them into the block's
// memory, and has storage deliver the rest. From the claim to FETCH_DONE the pages carry the
// read's token: only its WRs may write them.
#include "tests/sim/node.hpp"

#include <isa-l/crc.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "tests/sim/world.hpp"

namespace coop::sim
{

namespace
{

constexpr u32 flush_us = 200; // most time from ERR to the flush completions
constexpr u64 bit(u32 i)
{
	return u64{1} << i;
}

} // namespace

void node::think(u32 reader)
{
	w_.time().after(1 + latency(w_.shape().think_us), what::think, number_, life_, reader);
}

u64 node::sum_of(const coop_ev &ev, u32 ordinal, const u8 *bytes) const
{
	if (ev.sum == COOP_SUM_TAG)
		return coop_engine_tag(engine_, &ev, ordinal, bytes);
	return crc32_iscsi(const_cast<u8 *>(bytes), static_cast<int>(w_.truth().page_size()), ~0u);
}

u8 *node::bytes_of(const read &r, u32 ordinal) const
{
	return store_->page(*r.into, r.page_of[ordinal]);
}

u64 node::block_pages_of(const read &r, u64 ordinals) const
{
	u64 out = 0;
	for (u32 i = 0; i < r.n; ++i) {
		if (ordinals >> i & 1)
			out |= bit(r.page_of[i]);
	}
	return out;
}

void node::kill_a_qp()
{
	const u32 slot = w_.rng().below(static_cast<u32>(qps_.size()));
	if (!qps_[slot].qp.posted() || qps_[slot].qp.now_in() == queue_pair::state::error)
		return;
	++w_.counts().qp_deaths;
	fail_qp(slot);
}

void node::judge_evicted(const std::vector<std::string> &wrong)
{
	for (const std::string &text : wrong) {
		if (honest())
			w_.wrong(who() + "found at eviction: " + text);
	}
}

void node::read_some(u32 reader)
{
	const scenario &s = w_.shape();
	dice &rng = w_.rng();
	oracle &truth = w_.truth();
	if (!w_.may_read())
		return;
	++w_.counts().reads;
	if (rng.chance(s.edit_ppm))
		w_.edit();
	if (rng.chance(s.qp_death_ppm))
		kill_a_qp();

	const content c = truth.latest(rng.below(truth.files()));
	const u32 total = truth.pages(c), blocks = (total + s.block_pages - 1) / s.block_pages;
	const u32 index = rng.below(blocks);
	std::vector<std::string> wrong;
	block *b = store_->get(c, index, rng, wrong);
	judge_evicted(wrong);
	if (!b)
		return think(reader);
	const u32 here = std::min(s.block_pages, total - index * s.block_pages);
	u64 want = here == 64 ? ~u64{0} : bit(here) - 1;
	if (rng.below(4) == 0)
		want &= rng.next() | rng.next(); // readahead around present pages
	want &= ~b->loading;
	const std::vector<u16> openers = w_.openers(c);
	w_.opened(c, number_);
	if (!(want & ~b->valid)) {
		w_.counts().pages_buffer += std::popcount(want);
		if (rng.coin()) // memory is short
			judge_evicted(store_->evict(*b));
		return think(reader);
	}
	want &= ~b->valid;

	u32 number = 0;
	while (number < reads_.size() && reads_[number].active)
		++number;
	if (number == reads_.size())
		reads_.emplace_back();
	read &r = reads_[number];
	r = read{};
	r.active = true;
	r.reader = reader;
	r.token = next_token_++;
	r.into = b;
	r.since = w_.time().now();
	coop_fetch_req req{};
	req.cookie = u64{r.token} << 32 | number;
	req.fid = truth.fid(c.file);
	req.version = truth.version(c);
	req.size = truth.size(c);
	for (u32 i = 0; i < here; ++i) {
		if (!(want >> i & 1))
			continue;
		const u64 page = store_->first_page(*b) + i;
		if (!coop_fetch_req_add(&req, page, 1))
			break;
		r.pages |= bit(i);
		r.page_of[r.n++] = static_cast<u8>(i);
		++b->seq[i];
		b->owner[i] = r.token;
		oracle::poison(store_->page(*b, i), truth.page_size());
	}
	b->loading |= r.pages;
	++b->users;
	for (u16 o : openers) {
		if (o != number_ && peer_ids_[o] && req.n_hints < COOP_MAX_HINTS)
			req.hints[req.n_hints++] = peer_ids_[o];
	}
	const int err = coop_engine_submit(engine_, &req, w_.time().now(), &r.id);
	if (err) {
		if (err != -EAGAIN && err != -ENOENT)
			w_.broken(who() + "submit returned " + std::to_string(err));
		++w_.counts().refused;
		for (u32 i = 0; i < r.n; ++i)
			b->owner[r.page_of[i]] = 0;
		w_.time().after(latency(500), what::stored, number_, life_, req.cookie);
		return pump();
	}
	r.submitted = true;
	++w_.counts().fetches;
	if (rng.chance(s.cancel_ppm)) {
		if (rng.coin())
			pump();
		read &victim = reads_[rng.coin() ? number : rng.below(reads_.size())];
		if (victim.active && victim.submitted && !victim.done) {
			++w_.counts().cancelled;
			if (coop_engine_cancel(engine_, victim.id, w_.time().now()))
				w_.broken(who() + "cancel does not know a fetch that runs");
		}
	}
	pump();
}

u8 *node::scrap_of(const fetch_qp &q, u32 wr) const
{
	return q.scrap.back().get() + std::size_t{wr} * (COOP_GRH + 2 * COOP_MTU_MAX);
}

void node::post(const coop_tx &tx)
{
	fetch_qp &q = qps_[tx.slot];
	const u32 number = static_cast<u32>(tx.cookie), token = static_cast<u32>(tx.cookie >> 32);
	if (number >= reads_.size() || !reads_[number].active || reads_[number].token != token ||
	    reads_[number].done)
		return w_.broken(who() + "WRs for a fetch that is not running");
	read &r = reads_[number];
	if (!w_.test_flags()) {
		if (q.stopped)
			w_.broken(who() + "WRs posted on a queue pair that the engine stopped");
		if (q.owed || q.qp.posted())
			w_.broken(who() + "WRs posted before the old ones completed");
	}
	if (q.scrap_wrs < tx.n_seg) {
		q.scrap_wrs = std::max(tx.n_seg, 2 * q.scrap_wrs);
		q.scrap.emplace_back(
			new u8[std::size_t{q.scrap_wrs} * (COOP_GRH + 2 * COOP_MTU_MAX)]);
	}
	r.slot = tx.slot;
	q.posted.assign(tx.seg, tx.seg + tx.n_seg);
	q.of_seg.assign(COOP_MAX_SEGS, COOP_NONE);
	q.invited = 0;
	for (u32 i = 0; i < tx.n_seg; ++i) {
		const coop_seg &g = tx.seg[i];
		work_request wr{i, 0, {}};
		u32 room = 0;
		u8 *scrap = scrap_of(q, i);
		wr.list[wr.n_sge++] = {scrap, COOP_GRH, nullptr, 0};
		for (u32 f = 0; f < g.n_frag && f < 2; ++f) {
			if (g.frag[f].page >= r.n ||
			    u64{g.frag[f].off} + g.frag[f].len > w_.truth().page_size())
				return w_.broken(who() + "a WR names memory outside its pages");
			wr.list[wr.n_sge++] = {bytes_of(r, g.frag[f].page) + g.frag[f].off,
					       g.frag[f].len,
					       &r.into->owner[r.page_of[g.frag[f].page]], token};
			room += g.frag[f].len;
		}
		if (g.seg >= COOP_MAX_SEGS || g.spill > COOP_MTU_MAX || room != g.len)
			return w_.broken(who() + "a malformed WR");
		if (g.spill)
			wr.list[wr.n_sge++] = {scrap + COOP_GRH, g.spill, nullptr, 0};
		if (room + g.spill < w_.shape().mtu)
			w_.broken(who() + "a WR is shorter than the MTU");
		q.of_seg[g.seg] = i;
		q.invited += g.len;
		q.qp.post(wr);
		++q.owed;
	}
	// The queue pair died during its last WR, before the host could know: its WRs are
	// flushed.
	if (q.qp.now_in() == queue_pair::state::error)
		w_.time().after(1 + latency(flush_us), what::flushed, number_, life_, tx.slot);
}

void node::stop_qp(u32 slot)
{
	qps_[slot].stopped = true;
	fail_qp(slot);
}

void node::fail_qp(u32 slot)
{
	fetch_qp &q = qps_[slot];
	if (q.qp.now_in() == queue_pair::state::error)
		return; // it died before; its flush completions will come
	q.qp.stop(w_.time().now());
	w_.time().after(1 + latency(flush_us), what::flushed, number_, life_, slot);
}

void node::flush_appears(u32 slot)
{
	u32 n = qps_[slot].qp.flush();
	if (!n)
		return;
	if (w_.rng().coin()) {
		done_.push_back({slot, n, 0, 0, 0, 0, false, true});
	} else {
		for (; n; --n)
			done_.push_back({slot, 1, 0, 0, 0, 0, false, true});
	}
	wake();
}

void node::reset_qp(u32 slot)
{
	fetch_qp &q = qps_[slot];
	if ((q.qp.posted() || q.owed) && !w_.test_flags())
		w_.broken(who() + "RESET while WRs are posted");
	q.stopped = false;
	q.owed -= std::min<u32>(q.owed, q.qp.reset(w_.time().now()));
}

void node::copy_segment(read &r, const coop_seg &place, u32 len, u8 *hold, bool gather)
{
	if (qps_[r.slot].of_seg[place.seg] == COOP_NONE)
		return w_.broken(who() + "a move between unposted segments");
	for (u32 f = 0; f < place.n_frag && len; ++f) {
		const u32 n = std::min(len, place.frag[f].len);
		u8 *const page = bytes_of(r, place.frag[f].page) + place.frag[f].off;
		std::memcpy(gather ? hold : page, gather ? page : hold, n);
		hold += n;
		len -= n;
	}
}

void node::verify(const coop_ev &ev)
{
	const u32 number = static_cast<u32>(ev.cookie);
	if (number >= reads_.size() || !reads_[number].active || reads_[number].done ||
	    reads_[number].token != ev.cookie >> 32)
		return w_.broken(who() + "VERIFY of a fetch that is not running");
	read &r = reads_[number];
	struct context {
		node &self;
		read &r;
		std::vector<u8> hold;
	} c{*this, r, std::vector<u8>(std::size_t{ev.n_moves} * COOP_MTU_MAX)};
	const auto copy = [](void *host, const coop_seg *place, u32 len, u32 at, bool gather) {
		auto &to = *static_cast<context *>(host);
		to.self.copy_segment(to.r, *place, len, &to.hold[at], gather);
	};
	(void)coop_engine_move(engine_, &ev, copy, &c);
	r.verified = 0;
	r.verify_id = ev.id;
	for (u32 i = 0; i < r.n; ++i) {
		if (!(ev.pages >> i & 1))
			continue;
		if (!ev.sums || sum_of(ev, i, bytes_of(r, i)) == ev.sums[i])
			r.verified |= bit(i);
	}
	w_.time().after(latency(20), what::verified, number_, life_, ev.cookie);
}

void node::verified(u64 cookie)
{
	const read &r = reads_[static_cast<u32>(cookie)];
	coop_engine_verify_done(engine_, r.verify_id, r.verified, w_.time().now());
	pump();
}

void node::fetch_done(const coop_ev &ev)
{
	const u32 number = static_cast<u32>(ev.cookie);
	if (number >= reads_.size() || !reads_[number].active || reads_[number].done ||
	    reads_[number].token != ev.cookie >> 32 || reads_[number].id != ev.id)
		return w_.broken(who() + "FETCH_DONE of a fetch that is not running");
	read &r = reads_[number];
	r.done = true;
	if (r.n < 64 && ev.pages >> r.n)
		w_.broken(who() + "FETCH_DONE names pages that were not asked for");
	if (!ev.err != (std::popcount(ev.pages) == static_cast<int>(r.n)))
		w_.broken(who() + "FETCH_DONE's error and pages disagree");
	r.good = block_pages_of(r, ev.pages);
	for (u32 i = 0; i < r.n; ++i)
		r.into->owner[r.page_of[i]] = 0;

	const scenario &s = w_.shape();
	const u64 took = w_.time().now() - r.since;
	const u64 host = 6 * u64{poll_us_} + 4 * u64{flush_us} + 200; // flush, timers, VERIFY
	if (took > s.peer_timeout_us + host)
		w_.stuck(who() + "a fetch took " + std::to_string(took) + " us; its budget is " +
			 std::to_string(s.peer_timeout_us) + " and the host's delays " +
			 std::to_string(host));
	if (w_.rng().coin())
		take(ev.cookie);
	else
		w_.time().after(latency(50), what::released, number_, life_, ev.cookie);
}

void node::take(u64 cookie)
{
	read &r = reads_[static_cast<u32>(cookie)];
	coop_engine_fetch_release(engine_, r.id, w_.time().now());
	std::vector<std::string> wrong;
	const u64 right = honest() ? store_->judge(*r.into, r.good, wrong) : r.good;
	for (const std::string &text : wrong)
		w_.wrong(who() + "accepted from a peer: " + text);
	r.into->valid |= right;
	r.into->loading &= ~r.good;
	w_.counts().pages_peer += std::popcount(r.good);
	if (r.good == r.pages)
		finish(cookie);
	else
		w_.time().after(latency(500), what::stored, number_, life_, cookie);
}

void node::from_storage(u64 cookie)
{
	read &r = reads_[static_cast<u32>(cookie)];
	block &b = *r.into;
	const u64 missing = r.pages & ~r.good;
	for (u32 i = 0; i < store_->block_pages(); ++i) {
		if (missing >> i & 1)
			w_.truth().fill(store_->page(b, i), b.of, store_->first_page(b) + i);
	}
	b.valid |= missing;
	b.loading &= ~missing;
	w_.counts().pages_storage += std::popcount(missing);
	finish(cookie);
}

void node::finish(u64 cookie)
{
	read &r = reads_[static_cast<u32>(cookie)];
	r.active = false;
	--r.into->users;
	think(r.reader);
}

} // namespace coop::sim
