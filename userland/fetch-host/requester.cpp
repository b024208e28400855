// SPDX-License-Identifier: MIT
// requester.cpp - see requester.hpp.
#include "userland/fetch-host/requester.hpp"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>

namespace coop::fetch_host
{

requester::requester(ud::endpoint &ep, const slab &s, fetched_pages &pages, const shape &what) :
	endpoint_(ep),
	slab_(s),
	pages_(pages),
	shape_(what),
	per_page_(what.datagrams(ep.info().mtu)),
	max_pages_(std::min({std::uint32_t{COOP_MAX_PAGES}, COOP_MAX_SEGS / per_page_,
			     ep.info().max_recv_wr / per_page_})),
	depth_(max_pages_ * per_page_),
	qps_(what.fetches)
{
	if (max_pages_ == 0)
		throw std::system_error(EINVAL, std::generic_category(),
					"a page does not fit one receive queue of " +
						ep.info().name);
}

void requester::make(coop_engine *engine)
{
	engine_ = engine;
	// At a small MTU the messages about a fetch hold fewer pages than its queue pair.
	max_pages_ = std::min(max_pages_, coop_engine_max_pages(engine));
	for (std::uint32_t slot = 0; slot < qps_.size(); slot++) {
		ud::qp_attr attr{1, depth(), shape_.max_sge, slot, true};
		// A Q_Key of its own: a datagram for another queue pair does not get in.
		(void)!::getrandom(&attr.qkey, sizeof(attr.qkey), 0);
		attr.qkey &= 0x7fffffff; // the top bit is for privileged consumers
		const int qp = endpoint_.create_qp(attr);
		if (qp < 0)
			throw std::system_error(
				-qp, std::generic_category(),
				std::string("cannot create a queue pair to fetch with; lower ") +
					shape_.fetches_option + ": " + endpoint_.refusal());
		qps_[slot] = static_cast<std::uint32_t>(qp);
		coop_engine_set_fetch_qp(engine, slot, endpoint_.qpn(qps_[slot]), attr.qkey);
	}
}

void requester::post(const coop_tx &tx, std::uint64_t now)
{
	pages_.posting(tx.cookie, tx.slot);
	sges_.resize(std::size_t{tx.n_seg} * shape_.max_sge);
	wrs_.resize(tx.n_seg);
	for (std::uint32_t i = 0; i < tx.n_seg; i++) {
		const coop_seg &s = tx.seg[i];
		ud::sge *list = &sges_[std::size_t{i} * shape_.max_sge];
		std::uint32_t n = 0;
		list[n++] = {slab_.grh(), COOP_GRH};
		for (std::uint32_t f = 0; f < s.n_frag; f++)
			n += pages_.pieces(tx.cookie, s.frag[f].page, s.frag[f].off, s.frag[f].len,
					   {list + n, (shape_.max_sge - 2) / s.n_frag});
		if (s.spill != 0)
			list[n++] = {slab_.scrap(), s.spill};
		wrs_[i] = {i, list, n};
	}
	std::span<const ud::recv_wr> left = wrs_;
	for (int n = 1; !left.empty() && n > 0;) {
		n = endpoint_.post_recv(qps_[tx.slot], left);
		left = left.subspan(static_cast<std::size_t>(std::max(n, 0)));
	}
	if (left.empty())
		return;
	// The engine counts on all of them: those that found no room are flushed at once.
	stop(tx.slot);
	coop_engine_rx_flush(engine_, tx.slot, static_cast<std::uint32_t>(left.size()), now);
}

void requester::stop(std::uint32_t slot)
{
	(void)endpoint_.modify_qp(qps_[slot], ud::qp_state::error);
}

// Every work request has completed.
void requester::reset(std::uint32_t slot)
{
	const std::uint32_t qp = qps_[slot];
	(void)endpoint_.modify_qp(qp, ud::qp_state::ready);
	coop_engine_set_fetch_qp(engine_, slot, endpoint_.qpn(qp), endpoint_.qkey(qp));
}

void requester::completed(std::uint32_t slot, const ud::completion &c, std::uint64_t now)
{
	if (!c.is_recv)
		return;
	if (c.status != ud::wc_status::success) {
		coop_engine_rx_flush(engine_, slot, 1, now);
		return;
	}
	coop_rx rx{};
	rx.slot = slot;
	rx.wr = static_cast<std::uint32_t>(c.wr_id);
	rx.imm = c.imm;
	rx.byte_len = c.byte_len;
	rx.src_qp = c.src_qp;
	rx.has_imm = c.has_imm;
	rx.has_gid = c.has_gid;
	std::copy(c.src_gid.begin(), c.src_gid.end(), rx.src_gid);
	coop_engine_rx_data(engine_, &rx, now);
}

// Moves segments that landed where others belong.
void requester::put_right(const coop_ev &ev)
{
	struct context {
		fetched_pages &pages;
		std::uint64_t cookie;
		std::byte *hold;
	};
	const auto copy = [](void *host, const coop_seg *place, std::uint32_t length,
			     std::uint32_t at, bool gather) {
		const auto &c = *static_cast<context *>(host);
		std::byte *hold = c.hold + at;
		ud::sge list[most_sge];
		for (std::uint32_t f = 0; f < place->n_frag && length != 0; f++) {
			const auto &frag = place->frag[f];
			const std::uint32_t n = c.pages.pieces(c.cookie, frag.page, frag.off,
							       std::min(length, frag.len), list);
			for (std::uint32_t i = 0; i < n; i++) {
				const std::uint32_t part = list[i].length;
				std::memcpy(gather ? hold : list[i].addr,
					    gather ? list[i].addr : hold, part);
				hold += part;
				length -= part;
			}
		}
	};
	hold_.resize(std::size_t{COOP_MAX_PAGES} << shape_.page_shift);
	context c{pages_, ev.cookie, hold_.data()};
	(void)coop_engine_move(engine_, &ev, copy, &c);
}

void requester::verify(const coop_ev &ev, std::uint64_t now)
{
	if (ev.n_moves != 0)
		put_right(ev);
	std::uint64_t good = ev.pages;
	for (std::uint64_t left = ev.sums != nullptr ? good : 0; left != 0; left &= left - 1) {
		const auto i = static_cast<std::uint32_t>(std::countr_zero(left));
		if (page_sum(engine_, ev, pages_, ev.cookie, i, shape_.page_shift) != ev.sums[i])
			good &= ~(std::uint64_t{1} << i);
	}
	coop_engine_verify_done(engine_, ev.id, good, now);
}

} // namespace coop::fetch_host
