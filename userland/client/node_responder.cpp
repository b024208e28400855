// SPDX-License-Identifier: MIT
// node_responder.cpp - see node_responder.hpp.
#include "userland/client/node_responder.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <system_error>

#include "userland/client/page_sum.hpp"

namespace coop::client
{

namespace
{

constexpr std::uint64_t no_record = ~std::uint64_t{0};

} // namespace

node_responder::node_responder(ud::endpoint &ep, const fetch_host::slab &memory, page_store &store,
			       std::uint32_t slots, std::uint32_t qkey) :
	endpoint_(ep),
	memory_(memory),
	store_(store),
	qkey_(qkey),
	qps_(slots),
	records_(slots)
{
	for (std::uint32_t i = slots; i-- > 0;)
		free_.push_back(i);
}

std::uint32_t node_responder::depth(unsigned page_shift, std::uint32_t mtu)
{
	const std::uint32_t per_page = ((1u << page_shift) + mtu - 1) / mtu;
	return std::min<std::uint32_t>(COOP_MAX_PAGES * per_page, COOP_MAX_SEGS);
}

void node_responder::create_qps(coop_engine *engine)
{
	engine_ = engine;
	for (std::uint32_t slot = 0; slot < qps_.size(); slot++) {
		ud::qp_attr attr{};
		attr.max_send_wr = depth(store_.page_shift(), endpoint_.info().mtu);
		attr.max_recv_wr = 1;
		attr.max_sge = 2;
		attr.qkey = qkey_;
		const int qp = endpoint_.create_qp(attr);
		if (qp < 0)
			throw std::system_error(-qp, std::generic_category(),
						"node: cannot create a queue pair to serve with; "
						"lower ib_num_rrpc=: " +
							endpoint_.refusal());
		qps_[slot].qp = static_cast<std::uint32_t>(qp);
		coop_engine_set_serve_qp(engine, slot, endpoint_.qpn(qps_[slot].qp));
	}
}

void node_responder::lookup(const coop_ev &ev, std::uint64_t now)
{
	lookups_++;
	if (free_.empty()) {
		coop_engine_lookup_done(engine_, ev.id, 0, 0, no_record, now);
		return;
	}
	const std::uint32_t index = free_.back();
	free_.pop_back();
	in_progress_++;
	record &r = records_[index];
	r.used = true;
	r.n_pins = 0;
	r.have = 0;
	const content_key key{ev.fid, ev.version};
	std::uint64_t size = 0;
	std::uint32_t ordinal = 0;
	for (std::uint32_t e = 0; e < ev.n_ext && e < COOP_MAX_EXTENTS; e++) {
		std::uint64_t page = ev.ext[e].index;
		std::uint32_t left = ev.ext[e].count;
		while (left != 0 && ordinal < COOP_MAX_PAGES) {
			const auto in_block = static_cast<std::uint32_t>(page % 64);
			const std::uint32_t n =
				std::min({left, 64 - in_block, COOP_MAX_PAGES - ordinal});
			block_ref b =
				r.n_pins < max_blocks ? store_.find(key, page / 64) : block_ref();
			std::uint64_t valid = b ? b->valid() : 0;
			if (b) {
				size = b->file_size();
				// A local write may have carried the block on to its next
				// version meanwhile, and the size with it.
				if (store_.find(key, page / 64, false).get() != b.get())
					valid = 0;
			}
			for (std::uint32_t i = 0; i < n; i++, ordinal++) {
				const bool here = (valid >> (in_block + i) & 1) != 0;
				r.page[ordinal] = here ? b->data(in_block + i) : nullptr;
				r.have |= std::uint64_t{here} << ordinal;
			}
			if (b)
				r.pins[r.n_pins++] = std::move(b);
			page += n;
			left -= n;
		}
	}
	pages_looked_up_ += ordinal;
	std::fill(r.page + ordinal, r.page + COOP_MAX_PAGES, nullptr);
	// What a block holds as valid never changes, and the pins keep the block.
	page_sums sums;
	coop_engine_lookup_kept(engine_, ev.id, r.have, size, index, sums_of(ev, r, sums), now);
}

const std::uint64_t *node_responder::sums_of(const coop_ev &ev, const record &r,
					     page_sums &sums) const
{
	if (ev.sum == COOP_SUM_NONE)
		return nullptr;
	sums.fill(0);
	for (std::uint64_t left = r.have; left != 0; left &= left - 1) {
		const auto i = static_cast<std::uint32_t>(std::countr_zero(left));
		sums[i] = page_sum(engine_, ev, i, r.page[i], store_.page_shift());
	}
	return sums.data();
}

void node_responder::recheck(const coop_ev &ev, std::uint64_t now)
{
	if (ev.cookie == no_record) {
		coop_engine_recheck_done(engine_, ev.id, 0, nullptr, now);
		return;
	}
	const record &r = records_[ev.cookie];
	page_sums sums;
	coop_engine_recheck_done(engine_, ev.id, r.have, sums_of(ev, r, sums), now);
}

void node_responder::end(const coop_ev &ev)
{
	if (ev.cookie == no_record)
		return;
	record &r = records_[ev.cookie];
	for (std::uint32_t i = 0; i < r.n_pins; i++)
		r.pins[i] = block_ref();
	r.used = false;
	in_progress_--;
	free_.push_back(static_cast<std::uint32_t>(ev.cookie));
}

void node_responder::send(const coop_tx &tx, std::uint64_t now)
{
	if (tx.n_seg == 0)
		return;
	queue_pair &q = qps_[tx.slot];
	const record *r = tx.cookie != no_record ? &records_[tx.cookie] : nullptr;
	sges_.resize(std::size_t{tx.n_seg} * 2);
	wrs_.resize(tx.n_seg);
	for (std::uint32_t i = 0; i < tx.n_seg; i++) {
		const coop_seg &s = tx.seg[i];
		ud::sge *list = &sges_[std::size_t{i} * 2];
		for (std::uint32_t f = 0; f < s.n_frag; f++) {
			const std::byte *page = r != nullptr && s.frag[f].absent == 0
							? r->page[s.frag[f].page]
							: nullptr;
			const std::byte *from =
				(page != nullptr ? page : memory_.zeros()) + s.frag[f].off;
			list[f] = {const_cast<std::byte *>(from), s.frag[f].len};
		}
		ud::send_wr &wr = wrs_[i];
		wr = {};
		wr.list = list;
		wr.n_sge = s.n_frag;
		wr.imm = s.imm;
		wr.has_imm = true;
	}
	// Only the last of a batch tells; the others complete by themselves only when flushed,
	// and then as number 0.
	wrs_.back().wr_id = std::uint64_t{tx.n_seg} << 32 | tx.id;
	wrs_.back().signaled = true;
	wrs_.back().more = true; // of a few pages the commit follows at once
	const int posted = endpoint_.post_send(q.qp, tx.addr, wrs_);
	if (posted == static_cast<int>(tx.n_seg)) {
		q.unfinished++;
		return;
	}
	// The signalled one is not among them, so their end is not told: stopping the queue pair
	// ends them. What the peer misses it asks for again.
	(void)endpoint_.modify_qp(q.qp, ud::qp_state::error);
	q.dead = true;
	coop_engine_tx_done(engine_, tx.id, tx.n_seg, -EIO, now);
	if (q.unfinished == 0)
		completed(tx.slot, {}, now);
}

void node_responder::completed(std::uint32_t slot, const ud::completion &c, std::uint64_t now)
{
	queue_pair &q = qps_[slot];
	if (c.wr_id >> 32 != 0 && !c.is_recv) {
		const bool good = c.status == ud::wc_status::success;
		q.unfinished -= q.unfinished != 0 ? 1 : 0;
		q.dead |= !good;
		coop_engine_tx_done(engine_, static_cast<std::uint32_t>(c.wr_id),
				    static_cast<std::uint32_t>(c.wr_id >> 32), good ? 0 : -EIO,
				    now);
	}
	if (q.dead && q.unfinished == 0) {
		(void)endpoint_.modify_qp(q.qp, ud::qp_state::error);
		q.dead = endpoint_.modify_qp(q.qp, ud::qp_state::reset) != 0 ||
			 endpoint_.modify_qp(q.qp, ud::qp_state::ready) != 0;
	}
}

} // namespace coop::client
