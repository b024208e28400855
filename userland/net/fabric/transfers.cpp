// SPDX-License-Identifier: MIT
// transfers.cpp - see transfers.hpp.
#include "transfers.hpp"

#include <algorithm>
#include <utility>

namespace coop::net::fabric
{

namespace
{

// How long a cancelled operation may continue while the peer uses its memory.
constexpr std::chrono::milliseconds patience{500};

} // namespace

int transfers::submit(link &l, spi::token t, const spi::transfer &x)
{
	const bool writer = x.queue == queue_type::active_bulk_send;
	local_keys::descriptors local;
	if (int r = writer || env_.provider.reads() ? env_.memory.descriptors(x.memory, local) : 0)
		return r;
	work *w = works_.make(l, t);
	if (!w)
		return -ENOBUFS;
	w->active = true;
	w->writer = writer;
	w->local = local;
	w->memory = x.memory;
	w->length = x.length;
	w->remote = x.remote;
	w->remote_key = x.remote_key;
	w->ranged = x.reusable;
	w->remote_offset = x.remote_offset;
	if (l.ready())
		begin(*w);
	else
		l.bulk.push_back(w->id);
	return 0;
}

void transfers::begin(work &w)
{
	control c;
	c.id = w.id;
	c.length = w.length;
	c.token = w.remote;
	c.key = w.remote_key;
	c.offset = w.remote_offset;
	if (w.writer) {
		c.verb = w.message  ? control::verb::offer
			 : w.ranged ? control::verb::put_at
				    : control::verb::put;
		w.stage = work::stage::offered;
	} else {
		c.verb = w.ranged ? control::verb::get_at : control::verb::get;
		w.stage = work::stage::landing;
		w.reads = mover_.reads(*w.link);
		if (int r = w.reads ? 0 : mover_.expose(w, FI_REMOTE_WRITE, c))
			return works_.finish(w, r);
	}
	sends_.send(*w.link, c);
}

// A work for the operation that a peer names. Null: the peer has been refused.
work *transfers::make(link &l, const control &c, queue_type q)
{
	const spi::transfer *x = env_.sink.find(c.token, c.key);
	local_keys::descriptors local;
	work *w = nullptr;
	spi::token t = c.token;
	int r = 0;
	if (!x || x->reusable != c.ranged() || works_.of_token(t))
		r = -ENOENT;
	else if (x->queue != q || (x->peer != spi::no_peer && x->peer != l.peer))
		r = -EPERM;
	else if (c.length == 0)
		r = -EINVAL;
	else if (!(r = spi::check_range(*x, c.offset, c.length)) &&
		 q == queue_type::passive_bulk_send)
		r = env_.memory.descriptors(x->memory, local);
	if (!r && c.ranged() && !(t = env_.sink.use(t, c.offset, c.length, l.peer)))
		r = -ENOBUFS;
	if (!r && !(w = works_.make(l, t))) {
		env_.sink.given_up(t);
		r = -ENOBUFS;
	}
	if (r) {
		sends_.refuse(l, c.id, r);
		return nullptr;
	}
	w->local = local;
	w->peer_id = c.id;
	w->memory = x->memory;
	w->offset = c.offset;
	w->length = c.length;
	return w;
}

void transfers::on_put(link &l, const control &c)
{
	if (work *w = make(l, c, queue_type::passive_bulk_recv))
		grant(*w);
}

void transfers::on_get(link &l, const control &c)
{
	work *w = make(l, c, queue_type::passive_bulk_send);
	if (!w)
		return;
	w->writer = true;
	if (c.count == 0 && env_.provider.reads())
		return lend(*w);
	w->stage = work::stage::writing;
	if (!mover_.take_regions(*w, c)) {
		// The descriptor remains unused.
		works_.give_up(*w);
		return env_.endings.violation(l);
	}
	move_or_queue(*w);
}

void transfers::lend(work &w)
{
	link &l = *w.link;
	control c;
	c.verb = control::verb::lend;
	c.id = w.id;
	c.peer = w.peer_id;
	w.stage = work::stage::offered;
	w.lent = true;
	if (int r = mover_.expose(w, FI_REMOTE_READ, c)) {
		sends_.refuse(l, w.peer_id, r);
		return works_.give_up(w); // as if the peer had not asked
	}
	sends_.answer(l, c);
}

void transfers::grant(work &w)
{
	link &l = *w.link;
	control c;
	c.verb = control::verb::grant;
	c.id = w.id;
	c.peer = w.peer_id;
	if (w.message) {
		w.memory = w.land.memory;
		w.offset = w.land.offset;
	}
	w.stage = work::stage::landing;
	if (w.message) {
		landing_.join(&w, work::landing_place);
		if (landings_at_ == never)
			landings_at_ = env_.sink.now() + env_.options.landing;
	}
	if (int r = mover_.expose(w, FI_REMOTE_WRITE, c)) {
		sends_.refuse(l, w.peer_id, r);
		if (w.message)
			return drop_landing(w);
		return works_.finish(w, r);
	}
	// The peer may take back what it offers or puts, and ask again, for nothing.
	sends_.answer(l, c);
}

void transfers::on_grant(link &l, const control &c)
{
	work *w = works_.find(c.peer, l);
	if (!w || w->stage != work::stage::offered || w->lent)
		return; // it was cancelled, and the peer has been told; or the peer is to read
	w->peer_id = c.id;
	if (!mover_.take_regions(*w, c))
		return env_.endings.violation(l);
	w->stage = work::stage::writing;
	move_or_queue(*w);
}

void transfers::on_lend(link &l, const control &c)
{
	work *w = works_.find(c.peer, l);
	if (!w || !w->active || !w->reads || w->stage != work::stage::landing)
		return; // it was cancelled, and the peer has been told
	w->peer_id = c.id;
	if (!mover_.take_regions(*w, c))
		return env_.endings.violation(l);
	w->stage = work::stage::reading;
	move_or_queue(*w);
}

int transfers::move(work &w)
{
	if (w.stage == work::stage::writing)
		return mover_.move(w);
	if (w.stage != work::stage::reading)
		return 0;
	if (!w.cancelled)
		return mover_.move(w);
	if (!w.out)
		moved(w);
	return 0;
}

void transfers::move_or_queue(work &w)
{
	link &l = *w.link;
	const int r = l.urgent.empty() ? move(w) : -EAGAIN;
	if (r == -EAGAIN)
		sends_.queue(l, w);
	else if (r)
		env_.endings.fail(l, -ECONNRESET);
}

void transfers::completed(work &w)
{
	const bool all = w.moved == w.length;
	if ((w.stage == work::stage::writing && all) ||
	    (w.stage == work::stage::reading && (all || w.cancelled)))
		moved(w);
}

// The provider no longer needs the memory of this work.
void transfers::moved(work &w)
{
	if (!w.writer)
		return has_read(w);
	if (!env_.ordered) {
		control c;
		c.verb = control::verb::landed;
		c.peer = w.peer_id;
		c.length = w.length;
		sends_.send(*w.link, c);
	}
	if (w.message || w.done)
		works_.finish(w, 0);
	else if (w.cancelled)
		works_.finish(w, -ECANCELED);
	else
		w.stage = work::stage::written;
}

// All of it, or it was cancelled in the middle.
void transfers::has_read(work &w)
{
	link &l = *w.link;
	const bool all = w.moved == w.length;
	control c;
	c.verb = all ? control::verb::done : control::verb::cancel;
	c.id = w.id;
	c.peer = w.peer_id;
	c.token = w.remote;
	works_.finish(w, all ? 0 : -ECANCELED);
	sends_.send(l, c);
}

void transfers::drop_landing(work &w)
{
	link &l = *w.link;
	const spi::landing to = w.land;
	landing_.leave(&w, work::landing_place);
	works_.release(w);
	env_.sink.abandon(to);
	sends_.consumed(l);
}

// w: what the peer has named; may be null.
void transfers::on_landed(work *w)
{
	if (!w || w->writer || w->stage != work::stage::landing)
		return;
	link &l = *w->link;
	if (w->message) {
		const spi::landing to = w->land;
		landing_.leave(w, work::landing_place);
		works_.release(*w);
		env_.sink.received(to, l.peer);
		return sends_.consumed(l);
	}
	control c;
	c.verb = control::verb::done;
	c.peer = w->peer_id;
	c.token = w->remote;
	c.id = w->id;
	works_.finish(*w, 0);
	sends_.send(l, c);
}

void transfers::on_done(link &l, const control &c)
{
	// Only this side can report its own deadline.
	if (c.status > 0 || c.status < -4095 || c.status == -ETIMEDOUT)
		return env_.endings.violation(l);
	work *w = c.peer ? works_.find(c.peer, l) : works_.of_token(c.token);
	if (!w && !c.peer && c.id)
		w = use_of(l, c.id);
	if (!w || w->link != &l)
		return;
	switch (w->stage) {
	case work::stage::written:
		return works_.finish(*w, c.status);
	case work::stage::writing:
		// The last completion has not been read yet.
		if (w->moved == w->length)
			w->done = true;
		return;
	case work::stage::offered:
		if (c.status || w->lent)
			works_.finish(*w, c.status);
		return;
	case work::stage::landing:
		if (!c.status)
			return;
		if (w->message)
			return drop_landing(*w);
		return works_.finish(*w, w->cancelled ? -ECANCELED : c.status);
	default:
		return;
	}
}

// The use of a reusable operation that this get of the peer has made: its token is not the peer's
// to know, and before all data are there it may not know our id.
work *transfers::use_of(link &l, std::uint32_t id)
{
	work *w = l.works;
	while (w && (!w->writer || w->active || w->message || w->peer_id != id))
		w = w->after;
	return w;
}

// The work that a peer wants to cancel: by our id, by its token, or by the peer's id.
work *transfers::named(link &l, const control &c)
{
	work *w = c.peer ? works_.find(c.peer, l) : nullptr;
	if (!w && c.token) {
		w = works_.of_token(c.token);
		if (w && (w->link != &l || w->peer_id != c.id))
			w = nullptr;
		if (!w)
			w = use_of(l, c.id);
	}
	if (!w)
		for (w = l.works; w && (w->writer || w->peer_id != c.id || w->active);)
			w = w->after;
	return w;
}

void transfers::on_cancel(link &l, const control &c)
{
	work *w = named(l, c);
	if (!w)
		return sends_.refuse(l, c.id, -ECANCELED);
	if (w->writer) {
		// Memory lent for a get is released as if no peer had asked; data being written are
		// followed by landed.
		if (w->stage == work::stage::offered && w->cancelled)
			works_.finish(*w, -ECANCELED);
		else if (w->stage == work::stage::offered && !w->active)
			works_.give_up(*w);
		return;
	}
	// The peer withdraws an offer or put. Nothing was written: it ignores a grant that crossed
	// the cancel.
	if (w->stage == work::stage::starved) {
		// Its entry in the queue counts in the peer's window until it is reached.
		works_.release(*w);
	} else if (w->stage == work::stage::landing && w->message) {
		drop_landing(*w);
	} else if (w->stage == work::stage::landing && !w->active) {
		if (w->cancelled)
			works_.finish(*w, -ECANCELED);
		else
			works_.give_up(*w);
	}
}

void transfers::cancel(work &w)
{
	if (w.cancelled)
		return;
	control c;
	c.verb = control::verb::cancel;
	c.id = w.id;
	switch (w.stage) {
	case work::stage::queued:
	case work::stage::written:
		return works_.finish(w, -ECANCELED);
	case work::stage::offered:
		if (w.lent)
			break;
		sends_.send(*w.link, c);
		return works_.finish(w, -ECANCELED);
	case work::stage::landing:
		c.peer = w.peer_id;
		c.token = w.active ? w.remote : 0;
		sends_.send(*w.link, c);
		if (w.reads) // nothing is posted
			return works_.finish(w, -ECANCELED);
		break;
	default:
		break;
	}
	be_patient(w);
}

void transfers::cancel_landings(spi::token t)
{
	for (work *w : landing_)
		if (w->land.token == t && !w->cancelled)
			be_patient(*w);
}

// The peer or the provider uses the memory; close the link if it takes too long.
void transfers::be_patient(work &w)
{
	w.cancelled = true;
	patience_.push_back({env_.sink.now() + patience, w.id});
}

time_point transfers::deadline() const
{
	return patience_.empty() ? landings_at_ : std::min(landings_at_, patience_.front().first);
}

void transfers::expire(time_point now)
{
	// A place that a peer never fills is lost to the others. Nothing reports the progress of
	// RMA writes, so only time can decide: the interval from one look to the next.
	if (landings_at_ <= now) {
		landings_at_ = landing_.empty() ? never : now + env_.options.landing;
		for (work *w : landing_)
			if (std::exchange(w->late, true))
				env_.endings.fail(*w->link, -ECONNRESET);
	}
	// All wait equally long, so they are in order.
	std::size_t n = 0;
	for (; n < patience_.size() && patience_[n].first <= now; n++) {
		work *w = works_.find(patience_[n].second);
		if (w && w->cancelled)
			env_.endings.fail(*w->link, -ECONNRESET);
	}
	patience_.erase(patience_.begin(), patience_.begin() + static_cast<std::ptrdiff_t>(n));
}

} // namespace coop::net::fabric
