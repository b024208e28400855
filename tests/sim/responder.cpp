// SPDX-License-Identifier: MIT
// responder.cpp - the host's half of a serve: pins, sends, the recheck.
//
// LOOKUP pins blocks and notes the sequence number of every page. Segments are read from memory
// when they depart, in small bursts, so that an edit in between really goes out; RECHECK names
// the pages whose number did not move. Half of the serves keep copies instead; the engine may
// send their COMMIT at once.
#include "tests/sim/node.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tests/sim/world.hpp"

namespace coop::sim
{

namespace
{

constexpr u32 burst_segments = 8;
constexpr u32 bytes_a_us = 12000; // 100 Gbit/s
constexpr u64 bit(u32 i)
{
	return u64{1} << i;
}

} // namespace

node::serve *node::serve_of(u32 id, u64 *key)
{
	for (auto &[k, s] : serves_) {
		if (s.id == id) {
			if (key)
				*key = k;
			return &s;
		}
	}
	return nullptr;
}

void node::lookup(const coop_ev &ev)
{
	if (serve_of(ev.id) || serves_.size() >= w_.shape().max_serves)
		return w_.broken(who() + "LOOKUP for a serve that exists, or one too many");
	const u64 key = next_serve_++;
	serve &s = serves_[key];
	s.id = ev.id;
	s.asked = ev;
	s.known = w_.truth().find(ev.fid, ev.version, s.of);
	if (s.known)
		s.size = w_.truth().size(s.of);
	// The size stays as requested: an edit need not change it.
	if (s.known && liar_ && !store_->blocks().empty() && liar_->serves_other()) {
		const auto &blocks = store_->blocks();
		const content of = blocks[w_.rng().below(static_cast<u32>(blocks.size()))]->of;
		s.other = !(of == s.of);
		s.of = of;
	}
	for (u32 x = 0; x < ev.n_ext; ++x) {
		for (u32 i = 0; i < ev.ext[x].count; ++i, ++s.n) {
			if (x >= COOP_MAX_EXTENTS || s.n >= COOP_MAX_PAGES)
				return w_.broken(who() + "LOOKUP of more pages than a fetch has");
			const u64 page = ev.ext[x].index + i;
			s.in[s.n] = s.known ? store_->find(s.of, page / store_->block_pages())
					    : nullptr;
			s.page[s.n] = static_cast<u8>(page % store_->block_pages());
			if (s.in[s.n])
				++s.in[s.n]->pins;
		}
	}
	w_.time().after(latency(w_.shape().lookup_us), what::answer, number_, life_, key);
}

void node::keep(serve &s)
{
	const std::size_t size = w_.truth().page_size();
	s.copies.resize(s.n * size);
	for (u32 i = 0; i < s.n; ++i) {
		if (s.have >> i & 1)
			std::memcpy(&s.copies[i * size], store_->page(*s.in[i], s.page[i]), size);
	}
}

// To any peer: whether it has the pages, or is alive, is for the engines to find out.
bool node::pass_on(const serve &s, u64 key)
{
	if (!s.asked.may_pass || w_.rng().coin())
		return false;
	const u32 to = peer_ids_[w_.rng().below(std::size(peer_ids_))];
	return to && coop_engine_lookup_pass(engine_, s.id, to, key, w_.time().now()) == 0;
}

void node::answer(u64 key)
{
	const auto it = serves_.find(key);
	if (it == serves_.end())
		return; // the serve ended first
	serve &s = it->second;
	const u64 now = w_.time().now();
	if (s.rechecking) {
		u64 still = s.lacks;
		u64 sums[COOP_MAX_PAGES] = {};
		for (u32 i = 0; i < s.n; ++i) {
			if (!(s.have >> i & 1) || s.in[i]->seq[s.page[i]] != s.seq[i])
				continue;
			still |= bit(i);
			if (s.asked.sum)
				sums[i] = sum_of(s.asked, i, store_->page(*s.in[i], s.page[i]));
		}
		coop_engine_recheck_done(engine_, s.id, still, s.asked.sum ? sums : nullptr, now);
		return pump();
	}
	s.answered = true;
	for (u32 i = 0; i < s.n; ++i) {
		if (!s.in[i])
			continue;
		s.seq[i] = s.in[i]->seq[s.page[i]];
		if (s.in[i]->valid >> s.page[i] & 1)
			s.have |= bit(i);
	}
	if (!liar_ && !s.have && pass_on(s, key))
		return pump();
	if (liar_ && liar_->claims_all())
		s.lacks = (s.n == 64 ? ~u64{0} : bit(s.n) - 1) & ~s.have;
	if (!liar_ && w_.rng().coin()) {
		if (!(w_.test_flags() & break_copies))
			keep(s);
		u64 sums[COOP_MAX_PAGES] = {};
		for (u32 i = 0; i < s.n && s.asked.sum; ++i) {
			if (s.have >> i & 1)
				sums[i] = sum_of(s.asked, i, store_->page(*s.in[i], s.page[i]));
		}
		coop_engine_lookup_kept(engine_, s.id, s.have, s.size, key,
					s.asked.sum && w_.rng().below(4) ? sums : nullptr, now);
	} else {
		coop_engine_lookup_done(engine_, s.id, s.have | s.lacks, s.size, key, now);
	}
	pump();
}

void node::queue_data(const coop_tx &tx)
{
	const auto it = serves_.find(tx.cookie);
	if (it == serves_.end() || it->second.id != tx.id || !it->second.answered)
		return w_.broken(who() + "data of a serve that is not there");
	serve &s = it->second;
	s.slot = tx.slot;
	const bool idle = s.batches.empty();
	s.batches.push_back({tx.addr, {tx.seg, tx.seg + tx.n_seg}});
	if (idle)
		w_.time().after(latency(2), what::burst, number_, life_, tx.cookie);
}

// A writer changes a page that is being sent.
void node::change_under_way(const serve &s)
{
	const u32 i = w_.rng().below(s.n);
	if (!(s.have >> i & 1) || !(s.in[i]->valid >> s.page[i] & 1))
		return;
	if (w_.truth().latest(s.of.file) == s.of) {
		w_.truth().edit(s.of.file);
		++w_.counts().edits;
	}
	store_->overwrite(*s.in[i], s.page[i], w_.truth().latest(s.of.file));
}

void node::burst(u64 key)
{
	const auto it = serves_.find(key);
	if (it == serves_.end() || it->second.batches.empty())
		return w_.broken(who() + "a serve ended while its segments were being sent");
	serve &s = it->second;
	if (w_.rng().chance(w_.shape().edit_ppm / 4))
		change_under_way(s);
	batch &b = s.batches.front();
	const u32 total = static_cast<u32>(b.segs.size());
	int err = 0;
	if (w_.rng().chance(w_.shape().qp_death_ppm / 50)) {
		b.sent = total;
		err = -EIO;
	} else {
		const u32 end = std::min(total, b.sent + burst_segments);
		u64 bytes = 0;
		for (; b.sent < end; ++b.sent) {
			send_segment(s, b, b.segs[b.sent], bytes / bytes_a_us);
			bytes += 100 + b.segs[b.sent].len;
		}
	}
	// Completions arrive one burst at a time, or all at the end of the batch.
	u32 done = 0;
	if (b.sent == total || w_.rng().coin()) {
		done = b.sent - b.told;
		b.told = b.sent;
	}
	const u32 id = s.id;
	if (b.sent == total)
		s.batches.erase(s.batches.begin());
	if (!s.batches.empty())
		w_.time().after(1 + latency(burst_segments * w_.shape().mtu / bytes_a_us + 2),
				what::burst, number_, life_, key);
	if (done)
		coop_engine_tx_done(engine_, id, done, err, w_.time().now());
	pump();
}

void node::send_segment(serve &s, const batch &b, const coop_seg &g, u64 in)
{
	packet &p = w_.net().fresh();
	p.len = 0;
	if (g.len > w_.shape().mtu || g.n_frag > 2)
		return w_.broken(who() + "a segment is longer than the MTU");
	for (u32 f = 0; f < g.n_frag; ++f) {
		const auto &frag = g.frag[f];
		if (frag.page >= s.n || p.len + u64{frag.len} > g.len ||
		    u64{frag.off} + frag.len > w_.truth().page_size())
			return w_.broken(who() + "a segment names memory outside the request");
		if (frag.absent) {
			std::memset(p.bytes + p.len, 0, frag.len);
		} else if (s.lacks >> frag.page & 1) {
			++w_.counts().lies;
			return; // claimed but lacking: nothing to send
		} else if (!(s.have >> frag.page & 1)) {
			return w_.broken(who() + "a segment holds a page that the host lacks");
		} else {
			const u8 *page = s.copies.empty()
						 ? store_->page(*s.in[frag.page], s.page[frag.page])
						 : &s.copies[frag.page * w_.truth().page_size()];
			std::memcpy(p.bytes + p.len, page + frag.off, frag.len);
		}
		p.len += frag.len;
	}
	if (p.len != g.len)
		return w_.broken(who() + "a segment's length is not that of its fragments");
	p.imm = g.imm;
	p.has_imm = true;
	p.control = false;
	p.src = number_;
	p.src_qpn = serve_qpn(s.slot);
	if (liar_ && !liar_->send(p))
		return;
	w_.net().send(b.to, in);
}

void node::recheck(const coop_ev &ev)
{
	u64 key;
	serve *s = serve_of(ev.id, &key);
	if (!s || !s->answered || s->rechecking)
		return w_.broken(who() + "RECHECK of a serve that was not sent");
	if (!s->batches.empty())
		w_.broken(who() + "RECHECK before everything was sent");
	s->rechecking = true;
	s->asked = ev;
	w_.time().after(latency(w_.shape().lookup_us / 8), what::answer, number_, life_, key);
}

void node::serve_end(const coop_ev &ev)
{
	u64 key;
	serve *s = serve_of(ev.id, &key);
	if (!s)
		return w_.broken(who() + "the end of a serve that is not there");
	if (!s->batches.empty())
		w_.broken(who() + "a serve ended while the network read its memory");
	for (u32 i = 0; i < s->n; ++i) {
		if (s->in[i])
			--s->in[i]->pins;
	}
	serves_.erase(key);
}

void node::rewrite(content old)
{
	if (!engine_)
		return;
	const content fresh = w_.truth().latest(old.file);
	for (auto &b : store_->blocks()) {
		if (!(b->of == old) || w_.rng().below(3) == 0)
			continue;
		for (u32 i = 0; i < store_->block_pages(); ++i) {
			if (b->valid >> i & 1 && w_.rng().coin())
				store_->overwrite(*b, i, fresh);
		}
	}
}

} // namespace coop::sim
