// SPDX-License-Identifier: MIT
// machine.cpp - see machine.hpp.
#include "machine.hpp"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <utility>

#include "connected_port.hpp"
#include "datagram_port.hpp"

namespace coop::net::fabric
{

namespace
{

constexpr unsigned batch = 16;
// Polls of the completion queue for each poll of the connections, which costs a system call more.
constexpr unsigned polls = 256;
// Reads of the completion queue in one call if they cost no system call.
constexpr unsigned looks_at_once = 4;
// How long a cancelled operation may continue while the peer uses its memory.
constexpr std::chrono::milliseconds patience{500};
// How long peers have to say farewell.
constexpr std::chrono::milliseconds farewell_time{500};
// Interval of polling for a provider that progresses only when polled, while it has work.
constexpr std::chrono::microseconds tick{50};
constexpr std::uint32_t works_most = 1u << 16;

} // namespace

machine::machine(spi::sink &s, const provider &p, const options &o, local_keys &k) :
	sink_(s),
	provider_(p),
	keys_(k),
	options_(o),
	looks_(p.connected() ? 0 : looks_at_once - 1),
	inject_(p.inject_size()),
	pieces_(p.pieces()),
	buffer_size_(std::max(o.eager, control::size_most)),
	wide_(p.wide()),
	ordered_(p.ordered_writes())
{
	port::events &here = *this;
	if (p.connected())
		port_ = std::make_unique<connected_port>(p, here);
	else
		port_ = std::make_unique<datagram_port>(p, here);
}

machine::~machine()
{
	// Links first, then regions, then the port with its domain.
	for (auto &l : links_)
		if (l)
			port_->close(*l);
	for (work &w : works_)
		w.keys.clear();
	receive_region_.reset();
	for (bounce &b : copies_)
		b.region.reset();
	keys_.forget(this);
	port_.reset();
}

int machine::start(const address &own)
{
	own_ = own;
	if (int r = port_->start(own))
		return r;
	if (int r = start_receiving())
		return r;
	sink_.started();
	return 0;
}

void machine::stop()
{
	stopping_ = true;
	stop_by_ = sink_.now() + farewell_time;
	control c;
	c.verb = control::verb::bye;
	for (auto &l : links_) {
		if (!l || l->state == link::state::dying)
			continue;
		if (l->ready())
			send(*l, c);
		else if (l->state == link::state::connecting)
			unlinked(*l, -ECANCELED);
		if (l->state == link::state::ready)
			l->state = link::state::closing;
	}
	settle();
}

void machine::finish_stop()
{
	if (!stopping_ || over_ || (live_links_ && sink_.now() < stop_by_))
		return;
	over_ = true;
	sink_.stopped();
}

int machine::submit(spi::token t, const spi::transfer &x)
{
	int r = 0;
	switch (x.queue) {
	case queue_type::passive_bulk_recv:
	case queue_type::passive_bulk_send:
		// The core keeps it; peers will ask for it.
		return 0;
	case queue_type::msg_send:
		r = send_message(t, x);
		break;
	case queue_type::active_bulk_recv:
	case queue_type::active_bulk_send:
		r = begin_bulk(t, x);
		break;
	case queue_type::msg_recv:
		return -EINVAL;
	}
	settle();
	return r;
}

void machine::cancel(spi::token t)
{
	work *w = index_.find(t);
	if (!w) {
		const spi::transfer *x = sink_.find(t);
		if (!x)
			return;
		if (x->queue != queue_type::msg_recv) {
			sink_.completed(t, -ECANCELED, 0);
			return;
		}
		for (work *o : landing_)
			if (o->land.token == t && !o->cancelled)
				be_patient(*o);
		settle();
		return;
	}
	if (w->cancelled)
		return;
	switch (w->stage) {
	case work::stage::queued:
	case work::stage::written:
		finish(*w, -ECANCELED);
		break;
	case work::stage::offered: {
		control c;
		c.verb = control::verb::cancel;
		c.id = w->id;
		send(*w->link, c);
		finish(*w, -ECANCELED);
		break;
	}
	case work::stage::landing: {
		const bool ours = w->reads; // only we write there
		control c;
		c.verb = control::verb::cancel;
		c.id = w->id;
		c.peer = w->peer_id;
		c.token = w->active ? w->remote : 0;
		send(*w->link, c);
		if (ours)
			finish(*w, -ECANCELED);
		else
			be_patient(*w);
		break;
	}
	default:
		be_patient(*w);
		break;
	}
	settle();
}

// The peer or the provider uses the memory; close the link if it takes too long.
void machine::be_patient(work &w)
{
	w.cancelled = true;
	patience_.push_back({sink_.now() + patience, w.id});
}

// Null: there are too many works, or too many with this peer. A peer may use at most as many as are
// still free: half if it is the only one, fewer the more others use. So even if a peer never ends
// its works, others get some.
work *machine::make_work(link &l, spi::token t)
{
	peer &with = peers_[l.peer];
	if (with.works >= works_most - (works_.size() - free_works_.size())) {
		crowded_++;
		return nullptr;
	}
	if (free_works_.empty()) {
		if (works_.size() >= works_most)
			return nullptr;
		works_.emplace_back();
		works_.back().id = static_cast<std::uint32_t>(works_.size()); // generation 0
		free_works_.push_back(&works_.back());
	}
	work *w = free_works_.back();
	free_works_.pop_back();
	// 17 bits of slot, where 0 means none, and 13 of generation.
	w->id = (w->id + (1u << 17)) & word::id_mask;
	w->stage = work::stage::queued;
	w->writer = w->message = w->active = w->cancelled = w->late = w->done = w->reads = false;
	w->out = 0;
	w->peer_id = 0;
	w->token = t;
	w->land.token = 0;
	w->local = {};
	w->offset = w->written = w->region_at = w->region_into = 0;
	w->link = &l;
	with.works++;
	w->before = nullptr;
	w->after = l.works;
	if (l.works)
		l.works->before = w;
	l.works = w;
	if (t)
		index_.insert(t, w);
	return w;
}

work *machine::find_work(std::uint32_t id, const link &l)
{
	const std::uint32_t slot = id & ((1u << 17) - 1);
	if (slot == 0 || slot > works_.size())
		return nullptr;
	work &w = works_[slot - 1];
	return w.id == id && w.link == &l && w.stage != work::stage::free ? &w : nullptr;
}

void machine::detach(work &w)
{
	peers_[w.link->peer].works--;
	if (w.before)
		w.before->after = w.after;
	else
		w.link->works = w.after;
	if (w.after)
		w.after->before = w.before;
	w.link = nullptr;
}

// Nothing here refers to it any more; libfabric may.
void machine::release(work &w)
{
	if (w.pledge.exchange(0)) // before its memory is reused
		std::atomic_thread_fence(std::memory_order_seq_cst);
	if (w.link) {
		link &l = *w.link;
		detach(w);
		take_leave(l);
	}
	if (w.token)
		index_.erase(w.token);
	w.token = 0;
	w.keys.clear();
	landing_.leave(&w, work::landing_place);
	if (w.out) {
		w.stage = work::stage::zombie;
		return;
	}
	w.stage = work::stage::free;
	free_works_.push_back(&w);
}

void machine::finish(work &w, int status)
{
	const spi::token t = w.token;
	const std::size_t n = w.length;
	release(w);
	if (t)
		sink_.completed(t, status, status ? 0 : n);
}

// Descriptors of an operation's memory; none if the provider needs none.
int machine::keys_of(const spi::memory &m, local_keys::descriptors &out)
{
	return provider_.local_keys() ? registered(keys_.find(m, this, port_->domain(), out)) : 0;
}

// Checks libfabric's status for a registration, which no peer can influence.
int machine::registered(int status)
{
	if (status == -FI_ENODEV)
		broken(status);
	return status;
}

int machine::peer_open(spi::peer_number n, const address &a)
{
	if (a.kind == address::form::none ||
	    (a.kind != address::form::lnet && !provider_.connected()))
		return -EINVAL;
	if (n >= peers_.size())
		peers_.resize(n + 1);
	peers_[n] = {a, nullptr};
	return 0;
}

void machine::peer_close(spi::peer_number n)
{
	if (n < peers_.size())
		peers_[n] = {};
}

unsigned machine::progress(unsigned budget)
{
	if (over_)
		return 0;
	if (!unposted_.empty())
		post_receives();
	unsigned n = drain(budget);
	for (unsigned more = looks_; !n && more; more--)
		n = drain(budget);
	if (to_poll_-- == 0) {
		to_poll_ = polls;
		n += port_->poll();
	}
	if (!backlog_.empty()) {
		const std::vector<link *> again(backlog_.begin(), backlog_.end());
		for (link *l : again) {
			backlog_.leave(l, link::backlog_place);
			if (l->state != link::state::dying)
				send_waiting(*l);
		}
	}
	settle();
	if (stopping_)
		finish_stop();
	return n;
}

unsigned machine::drain(unsigned budget)
{
	fi_cq_data_entry entries[batch];
	unsigned n = 0;
	do {
		const ssize_t r = fi_cq_read(&port_->queue(), entries, batch);
		if (r > 0) {
			for (ssize_t i = 0; i < r; i++)
				complete(entries[i]);
			n += static_cast<unsigned>(r);
			if (r < static_cast<ssize_t>(batch))
				break;
		} else if (r == -FI_EAVAIL) {
			complete_error();
			n++;
		} else {
			if (r == -FI_ENODEV)
				broken(-FI_ENODEV);
			break;
		}
	} while (n < budget);
	return n;
}

void machine::complete(const fi_cq_data_entry &e)
{
	posted *p = static_cast<posted *>(e.op_context);
	const bool received = p && p->role == role::receive;
	// verbs reports every completion of a shared receive context as a message.
	const bool called = received && provider_.words_take_receives() &&
			    e.flags & FI_REMOTE_CQ_DATA &&
			    word::kind(e.data) == static_cast<unsigned>(kind::landed);
	if (e.flags & FI_REMOTE_WRITE || called) {
		landed(e.data);
		if (!provider_.words_take_receives() || !received)
			return;
		give_back(static_cast<bounce &>(*p));
		return;
	}
	if (!p)
		return;
	if (received)
		arrived(static_cast<bounce &>(*p), e.len,
			e.flags & FI_REMOTE_CQ_DATA ? e.data : ~0ull);
	else
		completed(*p, 0);
}

// A write into our memory is complete; its word names the landing.
void machine::landed(std::uint64_t w)
{
	link *l = nullptr;
	const std::uint32_t id = word::id(w);
	const std::uint32_t slot = id & ((1u << 17) - 1);
	if (slot && slot <= works_.size())
		l = works_[slot - 1].link;
	if (!l || (wide_ && l->cookie != word::cookie(w)))
		strays_++;
	else
		on_landed(*l, id, 0);
}

void machine::complete_error()
{
	fi_cq_err_entry e{};
	if (fi_cq_readerr(&port_->queue(), &e, 0) < 0)
		return;
	posted *p = static_cast<posted *>(e.op_context);
	if (!p) {
		// shm reports this for a write that it tried at once and could not do. It does
		// writes in order, so it is the first one without a completion.
		if (unnamed_.empty())
			strays_++;
		else
			completed(unnamed_.whose(), -ECONNRESET);
		return;
	}
	if (p->role == role::receive) {
		// The message was too long for the buffer, or truncated. The sender is unknown; if
		// the link is broken, its port reports it.
		strays_++;
		give_back(static_cast<bounce &>(*p));
		return;
	}
	completed(*p, -ECONNRESET);
}

void machine::completed(posted &p, int status)
{
	out_--;
	if (p.role == role::copy) {
		bounce &b = static_cast<bounce &>(p);
		take_off(b);
		if (link *l =
			    b.answer && b.number < links_.size() ? links_[b.number].get() : nullptr;
		    l && l->cookie == b.cookie)
			l->answers_gone = std::max(l->answers_gone, b.answer);
		free_copy(b);
		return;
	}
	work &w = static_cast<work &>(p);
	if (w.out && --w.out == 0)
		take_off(w);
	if (!w.unnamed.empty())
		unnamed_.pop(w.unnamed);
	if (w.stage == work::stage::zombie) {
		if (w.out == 0) {
			w.stage = work::stage::free;
			free_works_.push_back(&w);
		}
		return;
	}
	if (status && w.link)
		unlinked(*w.link, status); // which ends the work too
	if (w.out || status || !w.link)
		return;
	if (w.stage == work::stage::sending)
		finish(w, 0);
	else if (w.stage == work::stage::writing && w.written == w.length)
		wrote(w);
}

// A completion for `p` is to come from this link.
void machine::put_on(posted &p, link &l)
{
	if (p.on)
		return;
	p.on = &l;
	p.on_before = nullptr;
	p.on_after = l.under_way;
	if (l.under_way)
		l.under_way->on_before = &p;
	l.under_way = &p;
	posting_.join(&l, link::posting_place);
}

// No completion for `p` is to come.
void machine::take_off(posted &p)
{
	link *l = std::exchange(p.on, nullptr);
	if (!l)
		return; // the link no longer exists
	(p.on_before ? p.on_before->on_after : l->under_way) = p.on_after;
	if (p.on_after)
		p.on_after->on_before = p.on_before;
	if (!l->under_way)
		posting_.leave(l, link::posting_place);
}

// Completes what the provider has dropped with the end point of this link.
void machine::forgotten(link &l)
{
	while (posted *p = l.under_way)
		completed(*p, -ECONNRESET);
}

// The provider has work for which it may not wake a thread: a sleeping thread has to poll soon.
void machine::nudge()
{
	if (tick_ == never)
		tick_ = sink_.now() + tick;
}

// A provider that progresses only when polled may need the peer to poll as well.
void machine::tick_over(time_point now)
{
	tick_ = never;
	if (provider_.connected() || (!out_ && backlog_.empty()))
		return;
	const auto poke = [this](link &l) {
		if (l.state != link::state::dying && l.ep)
			port_->sent(l);
	};
	for (link *l : posting_)
		poke(*l);
	for (link *l : backlog_)
		poke(*l);
	tick_ = now + tick;
}

// A place that a peer never fills is lost to the others. Nothing reports the progress of RMA
// writes, so only time can decide: the interval from one look to the next.
void machine::look_at_landings(time_point now)
{
	landings_at_ = never;
	for (work *w : landing_) {
		landings_at_ = now + options_.landing;
		if (std::exchange(w->late, true) && port_->close_is_quiet())
			unlinked(*w->link, -ECONNRESET);
	}
}

void machine::settle()
{
	if (settling_)
		return;
	settling_ = true;
	while (!dying_.empty() || !leaving_.empty()) {
		take_leaves();
		if (dying_.empty())
			continue;
		link *l = dying_.back();
		dying_.pop_back();
		bury(*l);
	}
	settling_ = false;
	if (broken_ && !over_)
		give_up();
}

// The device was removed. Close the links first, so that all their works end and memory is quiet;
// the core ends the rest. A machine that was stopping has stopped.
void machine::give_up()
{
	settling_ = true;
	for (auto &l : links_)
		if (l) {
			unlinked(*l, broken_);
			bury(*l);
		}
	dying_.clear();
	settling_ = false;
	if (stopping_)
		return finish_stop();
	over_ = true;
	sink_.failed(broken_);
}

bool machine::arm()
{
	to_poll_ = 0;
	if ((!unposted_.empty() && !over_) || !dying_.empty() || !port_->arm())
		return false;
	if (provider_.connected())
		return true;
	// What arrived before the peers could see that they have to ring.
	if (drain(1)) {
		settle();
		return false;
	}
	return true;
}

time_point machine::deadline() const
{
	time_point t = std::min({port_->deadline(), stop_by_, tick_, landings_at_});
	if (first_link_)
		t = std::min(t, first_link_->look_at);
	if (!parked_.empty())
		t = std::min(t, parked_.front().until);
	if (!patience_.empty())
		t = std::min(t, patience_.front().first);
	return over_ ? never : t;
}

void machine::expire(time_point now)
{
	if (over_)
		return;
	if (tick_ <= now)
		tick_over(now);
	port_->expire(now);
	drop_parked(now);
	look_at_links(now);
	if (landings_at_ <= now)
		look_at_landings(now);
	// All wait equally long, so they are in order.
	std::size_t n = 0;
	for (; n < patience_.size() && patience_[n].first <= now; n++) {
		const std::uint32_t slot = patience_[n].second & ((1u << 17) - 1);
		work &w = works_[slot - 1];
		if (w.id == patience_[n].second && w.link && w.cancelled && port_->close_is_quiet())
			unlinked(*w.link, -ECONNRESET);
	}
	patience_.erase(patience_.begin(), patience_.begin() + static_cast<std::ptrdiff_t>(n));
	settle();
	finish_stop();
}

} // namespace coop::net::fabric
