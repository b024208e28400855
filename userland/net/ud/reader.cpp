// SPDX-License-Identifier: MIT
// reader.cpp - see reader.hpp.
#include "reader.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <sys/random.h>

#include "userland/ud/fetch_feed.hpp"

namespace coop::net::ud
{

namespace
{

constexpr std::uint64_t pause_us = 5000;           // when the engine leaves the peer alone
constexpr std::uint32_t window_step = 8;           // pages at most, for each window that came whole
constexpr std::uint32_t first_window = 16;         // pages: 64 KiB
constexpr std::uint64_t longest_budget = 10000000; // us; rpc/serve believes no more

} // namespace

reader::reader(coop::ud::endpoint &ep, fetch_host::slab &s, const channels &c,
	       std::uint32_t slots) :
	endpoint_(ep),
	slots_(s),
	channels_(c),
	beyond_at_(s.reserve(slots * page_bytes)),
	bounce_at_(s.reserve(slots * COOP_MAX_PAGES * page_bytes)),
	qps_(slots),
	records_(slots + queued(slots))
{
	const std::uint32_t mtu = ep.info().mtu;
	per_page_ = (page_bytes + mtu - 1) / mtu;
	max_pages_ = std::min({std::uint32_t{COOP_MAX_PAGES}, COOP_MAX_SEGS / per_page_,
			       ep.info().max_recv_wr / per_page_});
	if (max_pages_ == 0)
		throw std::system_error(EINVAL, std::generic_category(),
					"ud: a page does not fit one receive queue of " +
						ep.info().name);
	for (std::uint32_t i = static_cast<std::uint32_t>(records_.size()); i-- > 0;)
		free_.push_back(i);
}

void reader::make(coop_engine *engine, identity own, std::uint32_t budget, std::uint64_t patience,
		  done_function done, renew_function renew)
{
	engine_ = engine;
	own_ = own;
	budget_ = budget;
	patience_ = patience;
	done_ = std::move(done);
	renew_ = std::move(renew);
	// At a small MTU the messages about a request hold fewer pages than its queue pair.
	max_pages_ = std::min(max_pages_, coop_engine_max_pages(engine));
	for (std::uint32_t slot = 0; slot < qps_.size(); slot++) {
		std::uint32_t key;
		// Its own key each: a datagram meant for another queue pair does not get in.
		if (::getrandom(&key, sizeof(key), 0) != sizeof(key))
			key = slot;
		key &= 0x7fffffff;
		const int qp =
			endpoint_.create_qp({1, max_pages_ * per_page_, most_sge, key, true});
		if (qp < 0)
			throw std::system_error(-qp, std::generic_category(),
						"ud: cannot create a queue pair for bulk data; "
						"lower fetches=: " +
							endpoint_.refusal());
		qps_[slot] = static_cast<std::uint32_t>(qp);
		if (slot_by_qp_.size() <= qps_[slot])
			slot_by_qp_.resize(qps_[slot] + 1, -1);
		slot_by_qp_[qps_[slot]] = static_cast<int>(slot);
		coop_engine_set_fetch_qp(engine, slot, endpoint_.qpn(qps_[slot]), key);
	}
}

// ---- what is asked for ---------------------------------------------------------

void reader::begin(reading &r, std::uint64_t now)
{
	r.pages = static_cast<std::uint32_t>((r.length + page_bytes - 1) / page_bytes);
	r.moved_at = now;
	queue(r);
}

void reader::queue(reading &r)
{
	if (r.queued || r.told)
		return;
	r.queued = true;
	waiting_.push_back(&r);
}

// Buffers take turns: who asked stands behind all that did not come to it.
void reader::queue_behind(reading &r)
{
	if (r.queued || r.told)
		return;
	r.queued = true;
	behind_.push_back(&r);
}

void reader::cancel(reading &r, int status, std::uint64_t now)
{
	conclude(r, status, now);
	queue(r);
}

void reader::conclude(reading &r, int status, std::uint64_t now)
{
	if (r.ending)
		return;
	r.ending = true;
	r.status = status;
	if (r.in_flight == 0)
		return;
	for (const record &c : records_)
		if (c.of == &r)
			(void)coop_engine_cancel(engine_, c.id, now);
}

// Of a peer that is another's by now, or begins anew, nothing is known.
void reader::forget(spi::peer_number n)
{
	if (n < paces_.size())
		paces_[n].window = 0;
}

reader::pace &reader::pace_of(const reading &r)
{
	if (paces_.size() <= r.peer)
		paces_.resize(r.peer + 1);
	pace &p = paces_[r.peer];
	if (p.window == 0) {
		p.threshold = static_cast<std::uint32_t>(qps_.size()) * max_pages_;
		p.window = std::min(first_window, p.threshold);
		p.budget = budget_;
	}
	return p;
}

void reader::adapt(pace &p, std::uint32_t n, std::uint32_t good, int err, std::uint64_t since,
		   std::uint64_t now) const
{
	p.in_flight -= n;
	if (good)
		p.came_at = now;
	const std::uint64_t took = now - since;
	if (err == 0 && took < budget_ / 2) {
		// A request waits for the others no longer than it might alone.
		const auto most = static_cast<std::uint32_t>(qps_.size()) * max_pages_;
		const std::uint32_t step = std::min(window_step, p.window / 4) * n / p.window;
		p.window = std::min(most,
				    p.window + (p.window < p.threshold ? n : std::max(1u, step)));
		p.budget = std::max(budget_, p.budget / 2);
	} else if (err == 0 && took > budget_ && since >= p.shrunk_at) {
		shrink(p, p.window / 2, now);
	} else if (err == -ETIMEDOUT && since >= p.shrunk_at) {
		// Those that were under way at the last decrease tell nothing new.
		// What came in that time may be under way, and half of the window in any case: on a
		// wire that loses, most requests end short of some pages, whatever their number.
		const std::uint64_t came = std::uint64_t{p.window} * good / n;
		shrink(p, std::max(p.window / 2, static_cast<std::uint32_t>(came)), now);
		if (!good)
			p.budget = budget_of(2 * std::uint64_t{p.budget});
	}
}

void reader::shrink(pace &p, std::uint32_t to, std::uint64_t now)
{
	p.window = p.threshold = std::max(1u, to);
	p.shrunk_at = now;
}

// Not so long that what waits for it is given up before.
std::uint32_t reader::budget_of(std::uint64_t us) const
{
	const std::uint64_t most = std::min(patience_ / 4, longest_budget);
	return static_cast<std::uint32_t>(
		std::clamp<std::uint64_t>(us, budget_, std::max<std::uint64_t>(budget_, most)));
}

// One request for what is missing. 0 or -errno of the engine; -EAGAIN: when others have ended.
int reader::ask(reading &r, std::uint64_t now)
{
	pace &p = pace_of(r);
	const std::uint32_t room = p.in_flight < p.window ? p.window - p.in_flight : 0;
	// Not in crumbs.
	if (free_.empty() || (p.in_flight && room < std::min(max_pages_, (p.window + 1) / 2)))
		return -EAGAIN;
	const std::uint32_t most = std::min(max_pages_, room);
	const std::uint32_t index = free_.back();
	record &c = records_[index];
	coop_fetch_req q{};
	q.cookie = index;
	q.fid = {r.from, own_.packed()};
	q.version = r.key;
	q.size = r.length;
	q.budget_us = p.budget;
	q.n_hints = 1;
	q.hints[0] = r.engine_peer;
	c.n_pages = 0;
	const auto take = [&](std::uint32_t first, std::uint32_t count) {
		count = std::min(count, most - c.n_pages);
		q.ext[q.n_ext++] = {first, count, 0};
		for (std::uint32_t i = 0; i < count; i++)
			c.page[c.n_pages++] = first + i;
		return count;
	};
	auto again = r.again;
	std::uint32_t next = r.next;
	if (!again.empty()) {
		std::sort(again.begin(), again.end(), std::greater<>());
		while (!again.empty() && q.n_ext < COOP_MAX_EXTENTS && c.n_pages < most) {
			auto &run = again.back();
			const std::uint32_t n = take(run.first, run.second);
			run.first += n;
			run.second -= n;
			if (run.second == 0)
				again.pop_back();
		}
	} else {
		next += take(next, r.pages - next);
	}
	if (const int err = coop_engine_submit(engine_, &q, now, &c.id))
		return err;
	r.again.swap(again);
	r.next = next;
	free_.pop_back();
	c.of = &r;
	c.since = now;
	p.in_flight += c.n_pages;
	c.slot = 0;
	c.bounced = 0;
	c.segs.clear();
	r.in_flight++;
	return 0;
}

void reader::want(reading &r, std::uint64_t now)
{
	if (!r.ending && now < r.pause_until) {
		wake_ = std::min(wake_, r.pause_until);
		queue(r);
		return;
	}
	bool asked = false;
	while (!r.ending && r.in_flight < per_reading && (r.next < r.pages || !r.again.empty())) {
		const int err = ask(r, now);
		if (err == 0) {
			asked = asked_ = true;
			// That it was others' turn is no sign of how the peer is.
			if (const std::uint64_t since = std::exchange(r.waits_since, 0))
				r.moved_at += now - since;
			continue;
		}
		if (err == -EAGAIN && r.in_flight == 0 && !r.waits_since)
			r.waits_since = now;
		if (err != -EAGAIN && now - r.moved_at > patience_) {
			conclude(r, -EHOSTDOWN, now);
			break;
		}
		if (err == -ENOENT)
			r.engine_peer = renew_(r);
		// Places come free with other requests; peers come back with time.
		r.pause_until = err == -EAGAIN ? 0 : now + pause_us;
		wake_ = std::min(wake_, now + pause_us);
		if (asked)
			queue_behind(r);
		else
			queue(r);
		return;
	}
	if (!r.ending && r.good == r.pages)
		r.ending = true;
	if (r.ending && r.in_flight == 0 && !r.told) {
		r.told = true;
		over_.push_back(&r);
	}
}

bool reader::advance(std::uint64_t now)
{
	bool any = false;
	wake_ = ~0ull;
	for (std::size_t n = waiting_.size(); n-- > 0;) {
		reading &r = *waiting_.front();
		waiting_.pop_front();
		r.queued = false;
		want(r, now);
	}
	waiting_.insert(waiting_.end(), behind_.begin(), behind_.end());
	behind_.clear();
	any = std::exchange(asked_, false);
	while (!over_.empty()) {
		reading &r = *over_.back();
		over_.pop_back();
		done_(r);
		any = true;
	}
	return any;
}

void reader::finished(const coop_ev &ev, std::uint64_t now)
{
	const auto index = static_cast<std::uint32_t>(ev.cookie);
	record &c = records_[index];
	reading &r = *c.of;
	if (c.bounced)
		unbounce(c, ev.pages);
	for (std::uint32_t i = 0; i < c.n_pages; i++) {
		if (ev.pages >> i & 1) {
			r.good++;
			continue;
		}
		if (!r.again.empty() && r.again.back().first + r.again.back().second == c.page[i])
			r.again.back().second++;
		else
			r.again.emplace_back(c.page[i], 1);
	}
	adapt(pace_of(r), c.n_pages, static_cast<std::uint32_t>(std::popcount(ev.pages)), ev.err,
	      c.since, now);
	const bool asked = !c.segs.empty();
	if (ev.pages)
		r.moved_at = now;
	c.of = nullptr;
	free_.push_back(index);
	r.in_flight--;
	coop_engine_fetch_release(engine_, ev.id, now);
	if (asked && ev.err == -ENOENT)
		conclude(r, -ENOENT, now);
	else if (ev.err && now - r.moved_at > patience_)
		conclude(r, -EHOSTDOWN, now);
	queue(r);
}

// ---- memory --------------------------------------------------------------------

bool reader::pieces(const record &c, std::uint32_t ordinal, std::size_t off, std::size_t length,
		    coop::ud::sge *out, std::uint32_t most, std::uint32_t &n) const
{
	if (c.bounced >> ordinal & 1) {
		out[n++] = {bounce(c, ordinal) + off, static_cast<std::uint32_t>(length)};
		return true;
	}
	return page_pieces(c.of->memory, c.of->length, slots_.at(beyond_at_ + c.slot * page_bytes),
			   std::size_t{c.page[ordinal]} * page_bytes + off, length, out, most, n);
}

void reader::post_recv(const coop_tx &tx, std::uint64_t now)
{
	record &c = records_[tx.cookie];
	c.slot = tx.slot;
	if (!channels_.direct(c.of->memory))
		c.bounced = ~0ull;
	c.segs.assign(tx.seg, tx.seg + tx.n_seg);
	sges_.resize(std::size_t{tx.n_seg} * most_sge);
	wrs_.resize(tx.n_seg);
	// Entries for the head, for spill, and for a fragment of one other page at least.
	constexpr std::uint32_t most = most_sge - 3;
	for (std::uint32_t i = 0; i < tx.n_seg; i++) {
		const coop_seg &s = tx.seg[i];
		coop::ud::sge *list = &sges_[std::size_t{i} * most_sge];
		std::uint32_t n;
		for (bool fits = false; !fits;) {
			n = 0;
			list[n++] = {slots_.grh(), COOP_GRH};
			fits = true;
			for (std::uint32_t f = 0; f < s.n_frag && fits; f++) {
				const auto &frag = s.frag[f];
				fits = pieces(c, frag.page, frag.off, frag.len, list, most, n);
				if (!fits) // memory in too many pieces
					for (std::uint32_t k = 0; k <= f; k++)
						c.bounced |= 1ull << s.frag[k].page;
			}
		}
		if (s.spill)
			list[n++] = {slots_.scrap(), s.spill};
		wrs_[i] = {i, list, n};
	}
	coop::ud::post_fetch(endpoint_, qps_[tx.slot], wrs_, engine_, tx.slot, now);
}

void reader::stop_qp(std::uint32_t slot)
{
	(void)endpoint_.modify_qp(qps_[slot], coop::ud::qp_state::error);
}

void reader::reset_qp(std::uint32_t slot)
{
	coop::ud::renew_fetch(endpoint_, qps_[slot], engine_, slot);
}

void reader::completed(std::uint32_t slot, const coop::ud::completion &c, std::uint64_t now)
{
	coop::ud::feed_fetch(engine_, slot, c, now);
}

// Between a datagram's place and memory that is contiguous.
void reader::copy(const record &c, const coop_seg &place, std::byte *hold, std::uint32_t length,
		  bool out) const
{
	for (std::uint32_t f = 0; f < place.n_frag && length; f++) {
		const auto &frag = place.frag[f];
		const std::uint32_t len = std::min(length, frag.len);
		std::vector<coop::ud::sge> list(c.of->memory.segments.size() + 2);
		std::uint32_t n = 0;
		(void)pieces(c, frag.page, frag.off, len, list.data(),
			     static_cast<std::uint32_t>(list.size()), n);
		for (std::uint32_t i = 0; i < n; i++) {
			std::memcpy(out ? hold : list[i].addr, out ? list[i].addr : hold,
				    list[i].length);
			hold += list[i].length;
		}
		length -= len;
	}
}

// Datagrams that lie where others belong: gathered first, because cycles occur, then scattered.
void reader::put_right(const record &c, const coop_move *moves, std::uint32_t n)
{
	const coop_seg *by_number[COOP_MAX_SEGS] = {};
	for (const coop_seg &s : c.segs)
		by_number[s.seg % COOP_MAX_SEGS] = &s;
	moving_.resize(std::size_t{n} * COOP_MTU_MAX);
	for (const bool out : {true, false})
		for (std::uint32_t i = 0; i < n; i++) {
			const coop_seg *what = by_number[moves[i].seg % COOP_MAX_SEGS];
			const coop_seg *where = by_number[moves[i].into % COOP_MAX_SEGS];
			if (what && where)
				copy(c, out ? *where : *what,
				     &moving_[std::size_t{i} * COOP_MTU_MAX],
				     std::min<std::uint32_t>(what->len, COOP_MTU_MAX), out);
		}
}

void reader::verify(const coop_ev &ev, std::uint64_t now)
{
	const record &c = records_[ev.cookie];
	if (ev.n_moves)
		put_right(c, ev.moves, ev.n_moves);
	std::uint64_t good = ev.pages;
	if (ev.sums)
		for (std::uint64_t left = good; left; left &= left - 1) {
			const auto i = static_cast<std::uint32_t>(std::countr_zero(left));
			coop_seg all{};
			all.n_frag = 1;
			all.frag[0] = {static_cast<u16>(i), 0, 0, page_bytes};
			std::byte page[page_bytes];
			copy(c, all, page, page_bytes, true);
			if (page_sum(engine_, ev, i, page) != ev.sums[i])
				good &= ~(1ull << i);
		}
	coop_engine_verify_done(engine_, ev.id, good, now);
}

void reader::unbounce(const record &c, std::uint64_t good)
{
	for (std::uint64_t left = c.bounced & good; left; left &= left - 1) {
		const auto i = static_cast<std::uint32_t>(std::countr_zero(left));
		const std::size_t at = std::size_t{c.page[i]} * page_bytes;
		if (i < c.n_pages && at < c.of->length)
			spi::scatter(c.of->memory, at, bounce(c, i),
				     std::min(page_bytes, c.of->length - at));
	}
}

} // namespace coop::net::ud
