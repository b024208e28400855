// SPDX-License-Identifier: MIT
// works.cpp - see works.hpp.
#include "works.hpp"

namespace coop::net::fabric
{

// A peer may use at most as many works as are still free: half if it is the only one, fewer the
// more others use. So even if a peer never ends its works, others get some.
work *works::make(link &l, spi::token t)
{
	if (l.peer >= shares_.size())
		shares_.resize(l.peer + 1);
	if (shares_[l.peer] >= most - (all_.size() - free_.size()))
		return nullptr;
	if (free_.size() <= resting && all_.size() < most) {
		all_.emplace_back();
		all_.back().id = static_cast<std::uint32_t>(all_.size()); // generation 0
		free_.push_front(&all_.back());
	}
	if (free_.empty())
		return nullptr;
	work *w = free_.front();
	free_.pop_front();
	w->id = (w->id + slots) & word::id_mask;
	w->stage = work::stage::queued;
	w->writer = w->message = w->active = w->cancelled = w->late = w->done = false;
	w->reads = w->lent = false;
	w->out = 0;
	w->peer_id = 0;
	w->token = t;
	w->land.token = 0;
	w->local = {};
	w->offset = w->moved = w->region_at = w->region_into = 0;
	w->remote = w->remote_key = 0;
	w->ranged = false;
	w->link = &l;
	shares_[l.peer]++;
	w->before = nullptr;
	w->after = l.works;
	if (l.works)
		l.works->before = w;
	l.works = w;
	if (!t)
		return w;
	const std::size_t slot = t & token_slot_mask;
	if (slot >= by_token_.size())
		by_token_.resize(slot + 1);
	return by_token_[slot] = w;
}

void works::release(work &w)
{
	link &l = *w.link;
	shares_[l.peer]--;
	(w.before ? w.before->after : l.works) = w.after;
	if (w.after)
		w.after->before = w.before;
	w.link = nullptr;
	env_.endings.ended_on(l);
	w.token = 0;
	w.keys.clear();
	if (w.out)
		w.stage = work::stage::zombie;
	else
		free(w);
}

void works::finish(work &w, int status)
{
	const spi::token t = w.token;
	const std::size_t n = w.length;
	release(w);
	if (t)
		env_.sink.completed(t, status, status ? 0 : n);
}

} // namespace coop::net::fabric
