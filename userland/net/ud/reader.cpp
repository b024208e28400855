// SPDX-License-Identifier: MIT
// reader.cpp - see reader.hpp.
#include "reader.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>

namespace coop::net::ud
{

namespace
{

constexpr std::uint64_t pause_us = 5000;           // when the engine leaves the peer alone
constexpr std::uint32_t window_step = 8;           // pages at most
constexpr std::uint32_t first_window = 16;         // pages: 64 KiB
constexpr std::uint64_t longest_budget = 10000000; // us; rpc/fetch believes no more

// The entries of a work request for one fragment, besides GRH and spill. If a page is no whole
// number of datagrams, there may be two fragments.
std::uint32_t pieces_of_fragment(std::uint32_t mtu)
{
	return (fetch_host::most_sge - 2) / (page_bytes % mtu ? 2 : 1);
}

} // namespace

reader::reader(const options &o, fetch_host::slab &s, const channels &c, const peers &p,
	       std::uint32_t mtu) :
	slots_(s),
	channels_(c),
	peers_(p),
	budget_(o.fetch_timeout_us),
	patience_(o.patience_us),
	n_slots_(o.fetches),
	most_pieces_(pieces_of_fragment(mtu)),
	beyond_at_(s.reserve(n_slots_ * page_bytes)),
	bounce_at_(s.reserve(n_slots_ * COOP_MAX_PAGES * page_bytes)),
	records_(n_slots_ + queued(n_slots_))
{
	for (std::uint32_t i = static_cast<std::uint32_t>(records_.size()); i-- > 0;)
		free_.push_back(i);
}

void reader::make(const fetch_host::host &host)
{
	engine_ = host.engine();
	max_pages_ = host.max_pages();
}

// The peer at rpc/fetch. Peers with no request in flight give up their places. `renew` forgets what
// the engine has learned: its circuit breaker is for nodes that can ask others, and here rpc/chan
// and the resolver judge whether a silent machine lives.
std::uint32_t reader::engine_peer(spi::peer_number n, bool renew, std::uint64_t now)
{
	const coop_addr &a = peers_[n].addr.command;
	if (renew) // no effect while a request is under way
		(void)coop_engine_peer_del(engine_, &a, COOP_PEER_BY_DAEMON);
	s64 id = coop_engine_peer_add(engine_, &a, COOP_PEER_BY_DAEMON, now);
	std::uint32_t cursor = 0;
	coop_peer_info info;
	while (id == -ENOSPC && coop_engine_peer_next(engine_, &cursor, &info)) {
		if (info.in_flight)
			continue;
		(void)coop_engine_peer_del(engine_, &info.addr, COOP_PEER_BY_DAEMON);
		id = coop_engine_peer_add(engine_, &a, COOP_PEER_BY_DAEMON, now);
	}
	return id > 0 ? static_cast<std::uint32_t>(id) : 0;
}

// ---- what is asked for ---------------------------------------------------------

void reader::begin(reading &r, std::uint64_t now)
{
	r.pages = static_cast<std::uint32_t>((r.length + page_bytes - 1) / page_bytes);
	r.moved_at = now;
	r.engine_peer = engine_peer(r.peer, false, now);
	queue(r);
}

void reader::queue(reading &r)
{
	if (r.queued || r.told)
		return;
	r.queued = true;
	waiting_.push_back(&r);
}

// Buffers take turns: one that asked waits behind all that could not.
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

// The number has been reused, or its machine has restarted.
void reader::forget(spi::peer_number n)
{
	if (n < paces_.size())
		paces_[n].window.size = 0;
}

reader::pace &reader::pace_of(const reading &r)
{
	if (paces_.size() <= r.peer)
		paces_.resize(r.peer + 1);
	pace &p = paces_[r.peer];
	if (p.window.size == 0) {
		const std::uint32_t under_way = p.window.invited;
		coop_window_init(&p.window, first_window, n_slots_ * max_pages_, window_step);
		p.window.invited = under_way;
		p.budget = budget_;
	}
	return p;
}

void reader::adapt(pace &p, std::uint32_t n, std::uint32_t good, int err, std::uint64_t since,
		   std::uint64_t now) const
{
	p.window.invited -= n;
	if (good)
		p.came_at = now;
	const std::uint64_t took = now - since;
	const std::uint32_t half = p.window.size / 2;
	if (err == 0 && took < budget_ / 2) {
		// A request waited for others no longer than it may take alone.
		p.window.step = std::clamp(p.window.size / 4, 1u, window_step);
		coop_window_grow(&p.window, n);
		p.budget = std::max(budget_, p.budget / 2);
	} else if (err == 0 && took > budget_) {
		(void)coop_window_shrink(&p.window, half, since, now);
	} else if (err == -ETIMEDOUT) {
		// The window becomes what came in that time, and at least its half: on a lossy wire
		// most requests miss some pages, whatever their number.
		const auto came =
			static_cast<std::uint32_t>(std::uint64_t{p.window.size} * good / n);
		if (coop_window_shrink(&p.window, std::max(half, came), since, now) && !good)
			p.budget = budget_of(2 * std::uint64_t{p.budget});
	}
}

// Not so long that the buffer is given up first.
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
	const auto [size, under_way] = std::pair{p.window.size, p.window.invited};
	const std::uint32_t room = under_way < size ? size - under_way : 0;
	// Wait for room for a request of some size.
	if (free_.empty() || (under_way && room < std::min(max_pages_, (size + 1) / 2)))
		return -EAGAIN;
	const std::uint32_t most = std::min(max_pages_, room);
	const std::uint32_t index = free_.back();
	record &c = records_[index];
	coop_fetch_req q{};
	q.cookie = index;
	const std::uint64_t first = r.offset / page_bytes; // of the other side's pages
	q.fid = {r.from,
		 asker{peers_.own(), static_cast<std::uint32_t>(r.offset % page_bytes)}.packed()};
	q.version = r.key;
	q.size = r.size;
	q.budget_us = p.budget;
	q.n_hints = 1;
	q.hints[0] = r.engine_peer;
	c.pages.size = 0;
	auto again = r.again;
	std::uint32_t next = r.next;
	if (again.empty()) {
		next += c.pages.add(q, first + next, r.pages - next, most);
	} else {
		std::sort(again.begin(), again.end(), std::greater<>());
		while (!again.empty()) {
			auto &run = again.back();
			const std::uint32_t n = c.pages.add(q, first + run.first, run.second, most);
			run.first += n;
			run.second -= n;
			if (run.second != 0)
				break;
			again.pop_back();
		}
	}
	for (std::uint32_t i = 0; i < c.pages.size; i++)
		c.pages.page[i] -= first; // from here on they are ours
	if (const int err = coop_engine_submit(engine_, &q, now, &c.id))
		return err;
	r.again.swap(again);
	r.next = next;
	free_.pop_back();
	c.of = &r;
	c.since = now;
	p.window.invited += c.pages.size;
	c.slot = no_slot;
	c.bounced = to_bounce(c);
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
			// The wait for its turn says nothing about the peer.
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
			r.engine_peer = engine_peer(r.peer, true, now);
		// Other requests end and leave room; peers come back with time.
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
	wake_ = ~0ull;
	for (std::size_t n = waiting_.size(); n-- > 0;) {
		reading &r = *waiting_.front();
		waiting_.pop_front();
		r.queued = false;
		want(r, now);
	}
	waiting_.insert(waiting_.end(), behind_.begin(), behind_.end());
	behind_.clear();
	return std::exchange(asked_, false);
}

void reader::finished(const coop_ev &ev, std::uint64_t now)
{
	const auto index = static_cast<std::uint32_t>(ev.cookie);
	record &c = records_[index];
	reading &r = *c.of;
	if (c.bounced)
		unbounce(c, ev.pages);
	for (std::uint32_t i = 0; i < c.pages.size; i++) {
		const auto page = static_cast<std::uint32_t>(c.pages.page[i]);
		if (ev.pages >> i & 1) {
			r.good++;
			continue;
		}
		if (!r.again.empty() && r.again.back().first + r.again.back().second == page)
			r.again.back().second++;
		else
			r.again.emplace_back(page, 1);
	}
	adapt(pace_of(r), c.pages.size, static_cast<std::uint32_t>(std::popcount(ev.pages)), ev.err,
	      c.since, now);
	const bool asked = c.slot != no_slot;
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

std::uint32_t reader::pieces(std::uint64_t cookie, std::uint32_t page, std::uint32_t offset,
			     std::uint32_t length, std::span<coop::ud::sge> out)
{
	const record &c = records_[cookie];
	if (c.bounced >> page & 1) {
		out[0] = {bounce(c, page) + offset, length};
		return 1;
	}
	std::uint32_t n = 0;
	(void)page_pieces(c.of->memory, c.of->start, c.of->length, beyond(c),
			  c.pages.page[page] * page_bytes + offset, length, out.data(),
			  static_cast<std::uint32_t>(out.size()), n);
	return n;
}

// The pages without keys, or in too many pieces. All datagrams of a page are received in the same
// way, whichever attempt brings them.
std::uint64_t reader::to_bounce(const record &c) const
{
	const keyed_memory &m = c.of->memory;
	if (!channels_.direct(m))
		return ~0ull;
	std::uint64_t pages = 0;
	for (std::uint32_t i = 0; m.segments.size() >= most_pieces_ && i < c.pages.size; i++) {
		coop::ud::sge list[fetch_host::most_sge];
		std::uint32_t n = 0;
		if (!page_pieces(m, c.of->start, c.of->length, slots_.zeros(),
				 c.pages.page[i] * page_bytes, page_bytes, list, most_pieces_, n))
			pages |= 1ull << i;
	}
	return pages;
}

void reader::unbounce(const record &c, std::uint64_t good)
{
	for (std::uint64_t left = c.bounced & good; left; left &= left - 1) {
		const auto i = static_cast<std::uint32_t>(std::countr_zero(left));
		const std::size_t at = c.pages.page[i] * page_bytes;
		if (i < c.pages.size && at < c.of->length)
			spi::scatter(c.of->memory, c.of->start + at, bounce(c, i),
				     std::min(page_bytes, c.of->length - at));
	}
}

} // namespace coop::net::ud
