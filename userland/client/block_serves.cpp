// SPDX-License-Identifier: MIT
// block_serves.cpp - see block_serves.hpp.
#include "userland/client/block_serves.hpp"

#include <algorithm>
#include <utility>

#include "rpc/base/bits.h"
#include "userland/client/clock.hpp"

namespace coop::client
{

namespace
{

std::uint64_t mask(std::uint32_t first, std::uint32_t count)
{
	return coop_mask(count) << first;
}

} // namespace

std::uint64_t block_serves::run::bits(std::uint64_t pages) const
{
	return ((pages >> first) & mask(0, count)) << ordinal;
}

bool block_serves::lookup(std::uint64_t cookie, const coop_ev &ev, found &out)
{
	record &r = records_[cookie];
	r.key = {ev.fid, ev.version};
	r.n_runs = r.n_pages = 0;
	r.have = r.coming = 0;
	r.serve = ev.id;
	r.level = ev.level;
	r.peer = ev.peer;
	lookups_++;
	in_progress_++;
	if (pass_on(r, cookie, ev)) {
		out.passed = true;
		return true;
	}
	name_runs(r, ev);
	pages_looked_up_ += r.n_pages;
	if (from_kernel(r, cookie)) {
		const std::uint64_t now = clock_us();
		delayed_.push_back(
			{ev, cookie, now, now + std::min(ev.budget_us / 4, delay_most_us)});
		out.later = true;
	} else {
		look_up(r, cookie, ev, out);
	}
	return true;
}

void block_serves::name_runs(record &r, const coop_ev &ev)
{
	for (std::uint32_t e = 0; e < ev.n_ext && e < COOP_MAX_EXTENTS; e++) {
		std::uint64_t page = ev.ext[e].index;
		std::uint32_t left = ev.ext[e].count;
		while (left != 0 && r.n_pages < COOP_MAX_PAGES && r.n_runs < max_blocks) {
			run &n = r.runs[r.n_runs++];
			n.block = page / 64;
			n.first = static_cast<std::uint32_t>(page % 64);
			n.count = std::min({left, 64 - n.first, COOP_MAX_PAGES - r.n_pages});
			n.ordinal = r.n_pages;
			n.asked = false;
			n.pin = store_.find(r.key, n.block);
			r.n_pages += n.count;
			page += n.count;
			left -= n.count;
		}
	}
}

void block_serves::look_up(record &r, std::uint64_t cookie, const coop_ev &ev, found &out)
{
	for (std::uint32_t i = 0; i < r.n_runs; i++) {
		run &n = r.runs[i];
		if (n.pin)
			out.size = n.pin->file_size();
		// What comes first: a page that arrives in between is valid below.
		const std::uint64_t coming = ev.level != 0 ? coming_in(r, n, ev, cookie) : 0;
		take(r, n, valid_in(r, n));
		r.coming |= coming & ~r.have;
	}
	if (r.coming != 0)
		waiting_.push_back(cookie);
	out.have = r.have;
	out.coming = r.coming;
	out.kept = true;
}

// Are pages of it to be taken from the kernel first?
bool block_serves::from_kernel(record &r, std::uint64_t cookie)
{
	bool any = false;
	for (std::uint32_t i = 0; retrieves_ && i < r.n_runs; i++) {
		run &n = r.runs[i];
		const std::uint64_t absent =
			mask(n.first, n.count) & ~(n.pin ? n.pin->loading() | n.pin->valid() : 0);
		if (absent == 0)
			continue;
		any |= store_.in_kernel().under_way(r.key, n.block);
		const std::uint64_t pages = store_.in_kernel().provable(r.key, n.block, absent);
		if (pages == 0)
			continue;
		any = n.asked = true;
		wanted_.push_back({.key = r.key,
				   .block = n.block,
				   .pages = pages,
				   .cookie = cookie,
				   .serve = r.serve,
				   .kernel = true});
	}
	return any;
}

// Those whose pages have come out of the kernel, or will not.
void block_serves::answer_delayed(std::uint64_t now)
{
	std::vector<delayed> ready;
	std::erase_if(delayed_, [&](const delayed &d) {
		const record &r = records_[d.cookie];
		for (std::uint32_t i = 0; i < r.n_runs; i++) {
			const run &n = r.runs[i];
			if ((n.asked || store_.in_kernel().under_way(r.key, n.block)) &&
			    now < d.until)
				return false;
		}
		ready.push_back(d);
		return true;
	});
	for (const delayed &d : ready) {
		record &r = records_[d.cookie];
		for (std::uint32_t i = 0; i < r.n_runs; i++) {
			r.runs[i].asked = false;
			if (!r.runs[i].pin)
				r.runs[i].pin = store_.find(r.key, r.runs[i].block);
		}
		coop_ev ev = d.ev;
		ev.budget_us -= static_cast<std::uint32_t>(
			std::min<std::uint64_t>(ev.budget_us, now - std::min(now, d.since)));
		found out;
		look_up(r, d.cookie, ev, out);
		host_->looked_up(ev, d.cookie, out, now);
	}
}

std::uint64_t block_serves::next_deadline() const
{
	std::uint64_t first = ~std::uint64_t{0};
	for (const delayed &d : delayed_)
		first = std::min(first, d.until);
	return first;
}

bool block_serves::pass_on(const record &r, std::uint64_t cookie, const coop_ev &ev)
{
	// What a child lacks is loaded here, for all children.
	if (!ev.may_pass || (ev.load && relays_) || ev.n_ext != 1)
		return false;
	const auto first = static_cast<std::uint32_t>(ev.ext[0].index % 64);
	const std::uint64_t block = ev.ext[0].index / 64;
	if (first + ev.ext[0].count > 64)
		return false;
	const std::uint32_t holder = gone_.holder(r.key, block, mask(first, ev.ext[0].count));
	return holder != COOP_NONE && holder != ev.peer && !store_.find(r.key, block, false) &&
	       coop_engine_lookup_pass(engine_, ev.id, holder, cookie, clock_us()) == 0;
}

// Those of the run that are valid, as pages of the block.
std::uint64_t block_serves::valid_in(record &r, run &n)
{
	if (!n.pin)
		return 0;
	const std::uint64_t valid = n.pin->valid() & mask(n.first, n.count);
	// A local write may have carried the block on to its next version since find(), and the
	// size with it. A block that has left the store meanwhile is as good as before.
	return store_.is_of(*n.pin, r.key) ? valid : 0;
}

void block_serves::take(record &r, const run &n, std::uint64_t pages)
{
	for (std::uint32_t i = n.first; i < n.first + n.count; i++)
		if ((pages >> i & 1) != 0)
			r.page[n.ordinal + i - n.first] = n.pin->data(i);
	r.have |= n.bits(pages);
}

// Which of the run's missing pages are worth waiting for, as ordinals.
std::uint64_t block_serves::coming_in(record &r, run &n, const coop_ev &ev, std::uint64_t cookie)
{
	const std::uint64_t all = mask(n.first, n.count);
	std::uint64_t loading = 0, absent = all;
	if (n.pin) {
		// Watched first: what settles after this is looked at again.
		n.pin->watch();
		loading = n.pin->loading() & all;
		absent = all & ~(loading | n.pin->valid());
	}
	std::uint64_t coming = n.pin ? n.pin->awaitable(ev.level) & loading : 0;
	if (ev.load && relays_ && absent != 0) {
		n.asked = true;
		wanted_.push_back(
			{r.key, n.block, absent, ev.level, ev.budget_us, 0, cookie, ev.id});
		coming |= absent;
	}
	return n.bits(coming);
}

void block_serves::asked_for(const std::vector<wanted_pages> &wanted)
{
	for (const wanted_pages &w : wanted) {
		record &r = records_[w.cookie];
		if (r.serve != w.serve)
			continue; // it has ended
		for (std::uint32_t i = 0; i < r.n_runs; i++)
			if (r.runs[i].block == w.block)
				r.runs[i].asked = false;
	}
}

void block_serves::look_again(std::uint64_t now)
{
	answer_delayed(now);
	std::erase_if(waiting_, [&](std::uint64_t cookie) {
		record &r = records_[cookie];
		if (r.coming != 0)
			look_at(r, now);
		return r.coming == 0;
	});
}

void block_serves::look_at(record &r, std::uint64_t now)
{
	std::uint64_t arrived = 0, lost = 0;
	for (std::uint32_t i = 0; i < r.n_runs; i++) {
		run &n = r.runs[i];
		const std::uint64_t waited = r.coming & mask(n.ordinal, n.count);
		if (waited == 0 || n.asked)
			continue;
		if (!n.pin)
			n.pin = store_.find(r.key, n.block, false);
		if (n.pin) {
			n.pin->watch();
			if (r.have == 0) // at the lookup no block was here to tell
				coop_engine_lookup_size(engine_, r.serve, n.pin->file_size());
		}
		const std::uint64_t coming =
			n.pin ? n.bits(n.pin->awaitable(r.level)) : 0; // before valid()
		const std::uint64_t valid = valid_in(r, n);
		const std::uint64_t here = n.bits(valid) & waited;
		take(r, n, valid);
		arrived |= here;
		lost |= waited & ~here & ~coming;
	}
	r.coming &= ~(arrived | lost);
	if ((arrived | lost) != 0)
		coop_engine_lookup_more(engine_, r.serve, arrived, lost, now);
}

void block_serves::end(std::uint64_t cookie, std::uint64_t sent)
{
	record &r = records_[cookie];
	for (std::uint32_t i = 0; i < r.n_runs; i++) {
		const run &n = r.runs[i];
		if (n.pin && r.peer != COOP_NONE)
			n.pin->held_by(r.peer, (sent >> n.ordinal & mask(0, n.count)) << n.first);
		r.runs[i].pin = block_ref();
	}
	r.n_runs = 0;
	std::erase_if(wanted_, [&](const wanted_pages &w) { return w.serve == r.serve; });
	std::erase_if(delayed_, [&](const delayed &d) { return d.cookie == cookie; });
	r.serve = COOP_NONE;
	if (std::exchange(r.coming, 0) != 0)
		std::erase(waiting_, cookie);
	in_progress_--;
}

std::uint32_t block_serves::pieces(std::uint64_t cookie, std::uint32_t page, std::uint32_t offset,
				   std::uint32_t length, std::span<ud::sge> out)
{
	out[0] = {records_[cookie].page[page] + offset, length};
	return 1;
}

} // namespace coop::client
