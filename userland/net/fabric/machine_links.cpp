// SPDX-License-Identifier: MIT
// machine_links.cpp - links from the first message to the end of the last work on them.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "machine.hpp"

namespace coop::net::fabric
{

namespace
{

// Most messages that a peer can make us queue by not receiving.
constexpr std::size_t urgent_most = 1u << 16;
// Most answers to a peer that are not sent yet; one in answers_told reports when it is sent.
constexpr std::uint64_t answers_most = 1024, answers_told = 64;
// Completions read at a time when a link ends.
constexpr unsigned drained_most = 1u << 13;

} // namespace

link *machine::make_link(const net::address &a)
{
	make_room();
	if (live_links_ >= options_.max_links)
		return nullptr;
	std::uint32_t number;
	if (free_links_.empty()) {
		number = static_cast<std::uint32_t>(links_.size());
		links_.emplace_back();
	} else {
		number = free_links_.back();
		free_links_.pop_back();
	}
	const spi::peer_number peer = sink_.peer(a);
	if (peer == spi::no_peer) {
		free_links_.push_back(number);
		return nullptr;
	}
	auto l = std::make_unique<link>();
	l->number = number;
	l->cookie = static_cast<std::uint32_t>(random_.next());
	l->address = a;
	l->peer = peer;
	if (peer >= peers_.size())
		peers_.resize(peer + 1);
	peers_[peer].address = a;
	peers_[peer].links++;
	live_links_++;
	links_[number] = std::move(l);
	watch(*links_[number]);
	return links_[number].get();
}

link *machine::link_to(spi::peer_number n, int &status)
{
	if (n >= peers_.size()) {
		status = -EINVAL;
		return nullptr;
	}
	if (link *l = peers_[n].link) {
		l->used = true;
		return l;
	}
	link *l = make_link(peers_[n].address);
	if (!l) {
		status = -ENOBUFS;
		return nullptr;
	}
	peers_[n].link = l;
	if (int r = port_->connect(*l))
		unlinked(*l, r);
	return l;
}

link *machine::link_of(std::uint64_t w)
{
	const std::uint32_t n = word::link(w);
	link *l = n < links_.size() ? links_[n].get() : nullptr;
	return l && (!wide_ || l->cookie == word::cookie(w)) ? l : nullptr;
}

link *machine::admit(const hello &h)
{
	if (stopping_ || broken_ || h.to != digest(own_))
		return nullptr;
	link *l = make_link(h.from);
	if (l && !accept(*l, h)) {
		unlinked(*l, -EPROTO);
		return nullptr;
	}
	return l;
}

hello machine::greeting(const link &l) const
{
	hello h;
	h.from = own_;
	h.to = digest(l.address);
	h.link = l.number;
	h.cookie = l.cookie;
	h.window = static_cast<std::uint16_t>(options_.window);
	h.eager = static_cast<std::uint32_t>(options_.eager);
	return h;
}

bool machine::accept(link &l, const hello &h)
{
	if (!(h.from == l.address) || h.to != digest(own_))
		return false;
	l.base = word::base(h.link, wide_ ? h.cookie : 0);
	l.credit = l.credit_most = h.window;
	l.eager = std::min<std::size_t>(h.eager, options_.eager);
	return true;
}

void machine::linked(link &l)
{
	if (l.state != link::state::connecting)
		return;
	l.state = link::state::ready;
	l.greeted = true;
	if (!peers_[l.peer].link)
		peers_[l.peer].link = &l;
	send_waiting(l);
}

void machine::unlinked(link &l, int status)
{
	if (l.state == link::state::dying)
		return;
	l.state = link::state::dying;
	l.status = l.greeted || status != -ECONNRESET ? status : -ECONNREFUSED;
	dying_.push_back(&l);
}

// Only if closing links makes memory quiet: the core gets all of it back.
void machine::broken(int status)
{
	if (!broken_ && port_->close_is_quiet())
		broken_ = status;
}

// Reads what is there, but not what peers keep sending in the meantime.
void machine::drain_all()
{
	for (unsigned n = 0, got = 1; got && n < drained_most; n += got)
		got = drain(1024);
}

// Reads the link's completions, closes it, and ends the works on it.
void machine::bury(link &l)
{
	if (l.greeted)
		drain_all();
	port_->close(l);
	drain_all();
	if (provider_.forgets())
		forgotten(l);
	while (l.under_way)
		take_off(*l.under_way);
	if (l.peer < peers_.size() && peers_[l.peer].link == &l)
		peers_[l.peer].link = nullptr;
	while (work *w = l.works) {
		if (w->message && !w->writer && w->stage == work::stage::landing)
			drop_landing(*w);
		else
			finish(*w, w->cancelled ? -ECANCELED : broken_ ? broken_ : l.status);
	}
	for (posted *p : l.urgent)
		if (p->role == role::copy)
			free_copy(static_cast<bounce &>(*p));
	drop_parked_of(l);
	backlog_.leave(&l, link::backlog_place);
	leaving_.leave(&l, link::leaving_place);
	unwatch(l);
	// The core's hold on the peer is for all links with it.
	if (--peers_[l.peer].links == 0)
		sink_.release(l.peer);
	live_links_--;
	free_links_.push_back(l.number);
	links_[l.number].reset();
}

void machine::backlog(link &l)
{
	if (l.backlog_at)
		return;
	backlog_.join(&l, link::backlog_place);
	if (!provider_.connected() && l.ep)
		port_->sent(l); // the peer may have to make room
	nudge();
}

// Sends what is queued, in order of priority.
void machine::send_waiting(link &l)
{
	while (!l.urgent.empty()) {
		const int r = post(l, *l.urgent.front());
		if (r == -EAGAIN)
			return backlog(l);
		if (r)
			return unlinked(l, -ECONNRESET);
		l.urgent.pop_front();
	}
	if (!l.ready())
		return;
	while (!l.bulk.empty()) {
		work *w = find_work(l.bulk.front(), l);
		l.bulk.pop_front();
		if (w)
			begin(*w);
	}
	while (!l.messages.empty() && l.urgent.empty()) {
		work *w = find_work(l.messages.front(), l);
		if (w) {
			if (l.credit == 0)
				return;
			const int r = post_message(*w);
			if (r == -EAGAIN)
				return backlog(l);
			if (r)
				return unlinked(l, -ECONNRESET);
		}
		l.messages.pop_front();
	}
	if (!l.urgent.empty())
		backlog(l);
}

int machine::post(link &l, posted &p)
{
	if (p.role == role::copy)
		return post_copy(l, static_cast<bounce &>(p));
	work &w = static_cast<work &>(p);
	return w.link == &l && w.stage == work::stage::writing ? write_on(w) : 0;
}

// Answers cost the peer nothing, and libfabric queues what the peer does not read: tcp never
// reports a lack of room, nor the end of an injected send. So count them. (What we send for our own
// operations is bounded by those.)
void machine::answer(link &l, const control &c)
{
	if (l.answers - l.answers_gone >= answers_most)
		return unlinked(l, -ENOBUFS);
	send(l, c, ++l.answers % answers_told ? 0 : l.answers);
}

// nth: ordinal of the answer, if we want to know when it has been sent; else 0.
void machine::send(link &l, const control &c, std::uint64_t nth)
{
	if (l.state != link::state::ready && l.state != link::state::closing)
		return;
	std::byte text[control::size_most];
	const std::size_t n = encode(c, text);
	if (n <= inject_ && l.urgent.empty() && !nth) {
		const std::uint64_t w = l.stamp(kind::control);
		const ssize_t r = fi_injectdata(l.ep, text, n, w, l.dest);
		if (r == 0) {
			l.stamped(w);
			return port_->sent(l);
		}
		if (r != -FI_EAGAIN)
			return unlinked(l, -ECONNRESET);
	}
	bounce *b = l.urgent.size() < urgent_most ? make_copy(n) : nullptr;
	if (!b)
		return unlinked(l, -ENOBUFS);
	std::memcpy(b->data, text, n);
	b->what = kind::control;
	b->number = l.number;
	b->cookie = l.cookie;
	b->answer = nth;
	const int r = l.urgent.empty() ? post_copy(l, *b) : -EAGAIN;
	if (r == 0)
		return;
	if (r != -EAGAIN) {
		free_copy(*b);
		return unlinked(l, -ECONNRESET);
	}
	l.urgent.push_back(b);
	backlog(l);
}

void machine::on_control(link &l, const control &c)
{
	switch (c.verb) {
	case control::verb::offer:
		return on_offer(l, c);
	case control::verb::put:
		return on_put(l, c);
	case control::verb::get:
		return on_get(l, c);
	case control::verb::grant:
		return on_grant(l, c);
	case control::verb::landed:
		return on_landed(l, c.peer, c.length);
	case control::verb::done:
		return on_done(l, c);
	case control::verb::cancel:
		return on_cancel(l, c);
	case control::verb::credit:
		return;
	case control::verb::bye:
		if (!std::exchange(l.bade, true))
			on_bye(l, c.length != 0);
		return;
	case control::verb::farewell:
		return on_farewell(l);
	case control::verb::lend:
		return on_lend(l, c);
	}
}

} // namespace coop::net::fabric
