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

constexpr std::uint64_t pause_us = 5000;           // when a request fails at once
constexpr std::uint32_t window_step = 8;           // pages at most
constexpr std::uint32_t first_window = 16;         // pages: 64 KiB
constexpr std::uint64_t longest_budget = 10000000; // us; rpc/fetch believes no more

} // namespace

reader::reader(const options &o, fetch_engine &first, const peers &p) :
	peers_(p),
	budget_(o.fetch_timeout_us),
	patience_(o.patience_us),
	n_slots_(o.fetches),
	per_rail_(requests(o))
{
	add_engine(first);
}

void reader::add_rail(fetch_engine &e, peer_rails &known)
{
	known_ = &known;
	add_engine(e);
}

void reader::add_engine(fetch_engine &e)
{
	rail_of_reader &r = rails_.emplace_back();
	r.engine = &e;
	const auto first = static_cast<std::uint32_t>(records_.size());
	records_.resize(first + per_rail_);
	for (std::uint32_t i = per_rail_; i-- > 0;)
		r.free.push_back(first + i);
}

// ---- what is asked for ---------------------------------------------------------

void reader::begin(reading &r, std::uint64_t now)
{
	r.pages = static_cast<std::uint32_t>((r.length + page_bytes - 1) / page_bytes);
	r.moved_at = now;
	r.engine_peer = rails_[0].engine->peer(r.peer, false, now);
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
	for (std::uint32_t i = 0; i < records_.size(); i++)
		if (records_[i].of == &r)
			rails_[rail_of(i)].engine->cancel_fetch(i, now);
}

// The number has been reused, or its machine has restarted.
void reader::forget(spi::peer_number n)
{
	for (rail_of_reader &r : rails_)
		if (n < r.paces.size())
			r.paces[n].window.size = 0;
}

reader::pace &reader::pace_of(const reading &r, unsigned rail)
{
	auto &paces = rails_[rail].paces;
	if (paces.size() <= r.peer)
		paces.resize(r.peer + 1);
	pace &p = paces[r.peer];
	if (p.window.size == 0) {
		const std::uint32_t under_way = p.window.invited;
		coop_window_init(&p.window, first_window,
				 n_slots_ * rails_[rail].engine->max_pages(), window_step);
		p.window.invited = under_way;
		p.budget = budget_;
	}
	return p;
}

void reader::adapt(pace &p, bool patient, std::uint32_t n, std::uint32_t good, int err,
		   std::uint64_t since, std::uint64_t now) const
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
		if (coop_window_shrink(&p.window, std::max(half, came), since, now) && !good &&
		    patient)
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

// One request for what is missing, on the next rail that has room. As below.
int reader::ask(reading &r, std::uint64_t now)
{
	int result = -EHOSTUNREACH; // on rails that are lost
	const auto n = static_cast<unsigned>(rails_.size());
	for (unsigned i = 0; i < n; i++) {
		const unsigned rail = (r.rail + i) % n;
		if (!usable(r, rail, now))
			continue;
		const int err = ask(r, rail, now);
		if (err == 0) {
			r.rail = (rail + 1) % n;
			return 0;
		}
		if (result != -EAGAIN)
			result = err;
	}
	return result;
}

// 0 or -errno of the engine; -EAGAIN: when others have ended.
int reader::ask(reading &r, unsigned rail, std::uint64_t now)
{
	rail_of_reader &by = rails_[rail];
	fetch_engine &engine = *by.engine;
	pace &p = pace_of(r, rail);
	const auto [size, under_way] = std::pair{p.window.size, p.window.invited};
	const std::uint32_t room = under_way < size ? size - under_way : 0;
	// Wait for room for a request of some size.
	if (by.free.empty() || (under_way && room < std::min(engine.max_pages(), (size + 1) / 2)))
		return -EAGAIN;
	const std::uint32_t most = std::min(engine.max_pages(), room);
	const std::uint32_t index = by.free.back();
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
	q.hints[0] = rail ? engine.peer(r.peer, false, now) : r.engine_peer;
	c.pages.size = 0;
	auto again = r.again;
	std::uint32_t next = r.next;
	if (again.empty()) {
		const std::uint64_t at = first + next;
		next += c.pages.add(q, at,
				    static_cast<std::uint32_t>(std::min<std::uint64_t>(
					    r.pages - next, end_of_run(engine, at) - at)),
				    most);
	} else {
		std::sort(again.begin(), again.end(), std::greater<>());
		while (!again.empty()) {
			auto &run = again.back();
			const std::uint64_t at = first + run.first;
			const std::uint64_t end =
				end_of_run(engine, c.pages.size ? c.pages.page[0] : at);
			if (at >= end)
				break;
			const std::uint32_t n =
				c.pages.add(q, at,
					    static_cast<std::uint32_t>(
						    std::min<std::uint64_t>(run.second, end - at)),
					    most);
			run.first += n;
			run.second -= n;
			if (run.second != 0)
				break;
			again.pop_back();
		}
	}
	for (std::uint32_t i = 0; i < c.pages.size; i++)
		c.pages.page[i] -= first; // from here on they are ours
	if (const int err = engine.submit(r, q, c.pages, now)) {
		if (err == -ENOENT)
			renew(r, rail, now);
		return err;
	}
	r.again.swap(again);
	r.next = next;
	by.free.pop_back();
	c.of = &r;
	c.since = now;
	p.window.invited += c.pages.size;
	r.in_flight++;
	return 0;
}

// The engine has given the peer up.
void reader::renew(reading &r, unsigned rail, std::uint64_t now)
{
	const std::uint32_t peer = rails_[rail].engine->peer(r.peer, true, now);
	if (rail == 0)
		r.engine_peer = peer;
}

// What the end of a request says about its rail.
void reader::judge(const reading &r, unsigned rail, std::uint64_t pages, int err, std::uint64_t now)
{
	counters &c = rails_[rail].count;
	c.requests++;
	c.bytes += static_cast<std::uint64_t>(std::popcount(pages)) * page_bytes;
	const bool nothing = err && !pages && err != -ECANCELED && err != -EBUSY;
	c.failed += nothing;
	if (!known_ || r.ending)
		return;
	if (pages)
		known_->worked(r.peer, rail);
	else if (nothing)
		known_->failed(r.peer, rail, now);
}

void reader::want(reading &r, std::uint64_t now)
{
	if (!r.ending && now < r.pause_until) {
		wake_ = std::min(wake_, r.pause_until);
		queue(r);
		return;
	}
	bool asked = false;
	const std::size_t most = per_reading * rails_.size();
	while (!r.ending && r.in_flight < most && (r.next < r.pages || !r.again.empty())) {
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

void reader::lose(unsigned rail, std::uint64_t now)
{
	rails_[rail].lost = true;
	for (std::uint32_t i = rail * per_rail_; i < (rail + 1) * per_rail_; i++)
		if (records_[i].of)
			finished(i, 0, -ENODEV, false, now);
}

void reader::finished(std::uint32_t number, std::uint64_t pages, int err, bool asked,
		      std::uint64_t now)
{
	record &c = records_[number];
	reading &r = *c.of;
	for (std::uint32_t i = 0; i < c.pages.size; i++) {
		const auto page = static_cast<std::uint32_t>(c.pages.page[i]);
		if (pages >> i & 1) {
			r.good++;
			continue;
		}
		if (!r.again.empty() && r.again.back().first + r.again.back().second == page)
			r.again.back().second++;
		else
			r.again.emplace_back(page, 1);
	}
	const unsigned rail = rail_of(number);
	// With several rails this one may be dead, and another can take its pages.
	const bool alone = !(known_ && known_->several(r.peer));
	adapt(pace_of(r, rail), rail == 0 && alone, c.pages.size,
	      static_cast<std::uint32_t>(std::popcount(pages)), err, c.since, now);
	if (pages)
		r.moved_at = now;
	else if (alone && err && err != -ETIMEDOUT && now - c.since < pause_us)
		r.pause_until = c.since + pause_us; // it failed at once, and may do so again
	c.of = nullptr;
	rails_[rail].free.push_back(number);
	r.in_flight--;
	// On another rail the peer may not know yet that we are there.
	if (asked && err == -ENOENT && rail == 0)
		conclude(r, -ENOENT, now);
	else if (err && now - r.moved_at > patience_)
		conclude(r, -EHOSTDOWN, now);
	judge(r, rail, pages, err, now);
	queue(r);
}

} // namespace coop::net::ud
