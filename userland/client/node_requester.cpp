// SPDX-License-Identifier: MIT
// node_requester.cpp - see node_requester.hpp.
#include "userland/client/node_requester.hpp"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <system_error>

#include "userland/client/page_sum.hpp"
#include "userland/ud/fetch_feed.hpp"

namespace coop::client
{

namespace
{

constexpr std::uint32_t sge_per_wr = 4; // GRH, two fragments, spill

std::uint32_t datagrams_per_page(const ud::endpoint_info &info, unsigned page_shift)
{
	return ((1u << page_shift) + info.mtu - 1) / info.mtu;
}

} // namespace

node_requester::node_requester(ud::endpoint &ep, const fetch_host::slab &memory,
			       unsigned page_shift, std::uint32_t slots, std::uint32_t queued) :
	endpoint_(ep),
	memory_(memory),
	page_shift_(page_shift),
	qps_(slots),
	records_(slots + queued)
{
	max_pages_ = depth(ep.info(), page_shift) / datagrams_per_page(ep.info(), page_shift);
	if (max_pages_ == 0)
		throw std::system_error(EINVAL, std::generic_category(),
					"node: a page does not fit one receive queue of " +
						ep.info().name);
	for (std::uint32_t i = static_cast<std::uint32_t>(records_.size()); i-- > 0;)
		free_.push_back(i);
}

std::uint32_t node_requester::depth(const ud::endpoint_info &info, unsigned page_shift)
{
	const std::uint32_t per_page = datagrams_per_page(info, page_shift);
	return per_page * std::min({std::uint32_t{COOP_MAX_PAGES}, COOP_MAX_SEGS / per_page,
				    info.max_recv_wr / per_page});
}

void node_requester::create_qps(coop_engine *engine)
{
	engine_ = engine;
	// At a small MTU the messages about a fetch hold fewer pages than its queue pair.
	max_pages_ = std::min(max_pages_, coop_engine_max_pages(engine));
	for (std::uint32_t slot = 0; slot < qps_.size(); slot++) {
		ud::qp_attr attr{};
		attr.max_send_wr = 1;
		attr.max_recv_wr = depth(endpoint_.info(), page_shift_);
		attr.max_sge = sge_per_wr;
		attr.renumber = true;
		// Its own key each: a datagram meant for another queue pair does not get in.
		if (::getrandom(&attr.qkey, sizeof(attr.qkey), 0) != sizeof(attr.qkey))
			attr.qkey = slot;
		attr.qkey &= 0x7fffffff; // the top bit is for privileged consumers
		const int qp = endpoint_.create_qp(attr);
		if (qp < 0)
			throw std::system_error(-qp, std::generic_category(),
						"node: cannot create a queue pair to fetch with; "
						"lower ib_num_srpc=: " +
							endpoint_.refusal());
		qps_[slot] = static_cast<std::uint32_t>(qp);
		coop_engine_set_fetch_qp(engine, slot, endpoint_.qpn(qps_[slot]), attr.qkey);
	}
}

int node_requester::submit(const content_key &key, std::uint64_t file_size, block_ref &&pin,
			   std::uint64_t pages, std::span<const std::uint32_t> hints,
			   std::function<void(const fetch_outcome &)> &&done, std::uint64_t now)
{
	if (free_.empty())
		return -EAGAIN;
	const std::uint32_t index = free_.back();
	record &r = records_[index];
	coop_fetch_req req{};
	req.cookie = index;
	req.fid = key.fid;
	req.version = key.version;
	req.size = file_size;
	r.n_pages = 0;
	std::uint64_t taken = 0;
	const std::uint64_t base = pin->index() * 64;
	for (std::uint64_t left = pages; left != 0 && r.n_pages < max_pages_; left &= left - 1) {
		const auto page = static_cast<std::uint32_t>(std::countr_zero(left));
		coop_extent *last = req.n_ext != 0 ? &req.ext[req.n_ext - 1] : nullptr;
		if (last != nullptr && last->index + last->count == base + page) {
			last->count++;
		} else if (req.n_ext < COOP_MAX_EXTENTS) {
			req.ext[req.n_ext++] = {base + page, 1, 0};
		} else {
			break; // the rest is reported missing
		}
		r.page_of[r.n_pages++] = static_cast<std::uint8_t>(page);
		taken |= std::uint64_t{1} << page;
	}
	req.n_hints =
		static_cast<std::uint32_t>(std::min<std::size_t>(hints.size(), COOP_MAX_HINTS));
	std::copy_n(hints.begin(), req.n_hints, req.hints);
	const int err = coop_engine_submit(engine_, &req, now, &r.id);
	if (err != 0)
		return err;
	free_.pop_back();
	r.used = true;
	r.key = key;
	r.file_size = file_size;
	r.pin = std::move(pin);
	r.pages = taken;
	r.done = std::move(done);
	in_flight_++;
	pages_in_flight_ += r.n_pages;
	return 0;
}

void node_requester::post_recv(const coop_tx &tx, std::uint64_t now)
{
	record &r = records_[tx.cookie];
	r.segs.assign(tx.seg, tx.seg + tx.n_seg);
	sges_.resize(std::size_t{tx.n_seg} * sge_per_wr);
	wrs_.resize(tx.n_seg);
	for (std::uint32_t i = 0; i < tx.n_seg; i++) {
		const coop_seg &s = tx.seg[i];
		ud::sge *list = &sges_[std::size_t{i} * sge_per_wr];
		std::uint32_t n = 0;
		list[n++] = {memory_.grh(), COOP_GRH};
		for (std::uint32_t f = 0; f < s.n_frag; f++)
			list[n++] = {at(r, s.frag[f].page, s.frag[f].off), s.frag[f].len};
		if (s.spill != 0)
			list[n++] = {memory_.scrap(), s.spill};
		wrs_[i] = {i, list, n};
	}
	ud::post_fetch(endpoint_, qps_[tx.slot], wrs_, engine_, tx.slot, now);
}

void node_requester::stop_qp(std::uint32_t slot)
{
	(void)endpoint_.modify_qp(qps_[slot], ud::qp_state::error);
}

void node_requester::reset_qp(std::uint32_t slot)
{
	ud::renew_fetch(endpoint_, qps_[slot], engine_, slot);
}

void node_requester::completed(std::uint32_t slot, const ud::completion &c, std::uint64_t now)
{
	ud::feed_fetch(engine_, slot, c, now);
}

std::uint64_t node_requester::to_block(const record &r, std::uint64_t ordinals) const
{
	std::uint64_t pages = 0;
	for (; ordinals != 0; ordinals &= ordinals - 1) {
		const auto i = static_cast<std::uint32_t>(std::countr_zero(ordinals));
		if (i < r.n_pages)
			pages |= std::uint64_t{1} << r.page_of[i];
	}
	return pages;
}

// Segments that lie where others belong: gathered first, because cycles occur, then scattered.
void node_requester::put_right(const record &r, const coop_move *moves, std::uint32_t n)
{
	const coop_seg *by_number[COOP_MAX_SEGS] = {};
	for (const coop_seg &s : r.segs)
		by_number[s.seg % COOP_MAX_SEGS] = &s;
	bounce_.resize(std::size_t{n} * COOP_MTU_MAX);
	for (const bool gather : {true, false}) {
		for (std::uint32_t i = 0; i < n; i++) {
			const coop_seg *what = by_number[moves[i].seg % COOP_MAX_SEGS];
			const coop_seg *where = by_number[moves[i].into % COOP_MAX_SEGS];
			if (what == nullptr || where == nullptr)
				continue;
			std::byte *hold = &bounce_[std::size_t{i} * COOP_MTU_MAX];
			std::uint32_t left = std::min(what->len, std::uint32_t{COOP_MTU_MAX});
			const coop_seg *place = gather ? where : what;
			for (std::uint32_t f = 0; f < place->n_frag && left != 0; f++) {
				std::byte *p = at(r, place->frag[f].page, place->frag[f].off);
				const std::uint32_t len = std::min(left, place->frag[f].len);
				std::memcpy(gather ? hold : p, gather ? p : hold, len);
				hold += len;
				left -= len;
			}
		}
	}
}

void node_requester::verify(const coop_ev &ev, std::uint64_t now)
{
	const record &r = records_[ev.cookie];
	if (ev.n_moves != 0)
		put_right(r, ev.moves, ev.n_moves);
	std::uint64_t good = ev.pages;
	if (ev.sums != nullptr) {
		for (std::uint64_t left = good; left != 0; left &= left - 1) {
			const auto i = static_cast<std::uint32_t>(std::countr_zero(left));
			if (i >= r.n_pages ||
			    page_sum(engine_, ev, i, at(r, i, 0), page_shift_) != ev.sums[i])
				good &= ~(std::uint64_t{1} << i);
		}
	}
	coop_engine_verify_done(engine_, ev.id, good, now);
}

void node_requester::finished(const coop_ev &ev, std::uint64_t now)
{
	const auto index = static_cast<std::uint32_t>(ev.cookie);
	record &r = records_[index];
	const std::uint64_t good = to_block(r, ev.pages) & r.pages;
	const fetch_outcome outcome{good, ev.peer, ev.err};
	const std::uint32_t id = ev.id;
	if (good != 0) {
		// Peers send whole pages; what lies past the end of the file is ours to clear.
		zero_tail(*r.pin, good, r.file_size, page_shift_);
		r.pin->publish(good, origin::peer);
	}
	release(index, outcome);
	coop_engine_fetch_release(engine_, id, now);
}

void node_requester::release(std::uint32_t index, const fetch_outcome &outcome)
{
	record &r = records_[index];
	ended_.push_back({std::move(r.done), outcome, std::move(r.pin)});
	r.done = nullptr;
	r.used = false;
	in_flight_--;
	pages_in_flight_ -= r.n_pages;
	free_.push_back(index);
}

void node_requester::cancel_all(std::uint64_t now)
{
	for (const record &r : records_)
		if (r.used)
			(void)coop_engine_cancel(engine_, r.id, now);
}

void node_requester::abandon_all()
{
	for (std::uint32_t i = 0; i < records_.size(); i++)
		if (records_[i].used)
			release(i, {0, COOP_NONE, -ECANCELED});
}

std::vector<node_requester::ended> node_requester::take_ended()
{
	std::vector<ended> out;
	out.swap(ended_);
	return out;
}

} // namespace coop::client
