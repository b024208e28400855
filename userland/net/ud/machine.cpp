// SPDX-License-Identifier: MIT
// machine.cpp - progress and time of a transfer machine; see machine.hpp.
#include "machine.hpp"

#include <algorithm>
#include <cerrno>
#include <sys/epoll.h>

#include "rpc/fetch/wire.h"

namespace coop::net::ud
{

namespace
{

// Bulk data is sent for data_turn at a time. Then it rests until so many arrivals were handled, or
// for longest_rest, or for as long as the data took.
constexpr std::uint32_t arrivals_most = 64;
constexpr std::chrono::milliseconds longest_rest{2};
constexpr std::chrono::milliseconds data_turn{1};
constexpr std::uint32_t unarmed_most = 256; // polls in a row: then no thread sleeps
static_assert(unarmed_most >= spi::armed_calls);
constexpr std::uint32_t resolver_turns = 64; // a polling program looks for questions that often
constexpr std::uint32_t polls_a_look = 8192; // one that polls, at its device
constexpr std::uint32_t held_back_most = 32; // messages

} // namespace

// ---- what the core calls -----------------------------------------------------------

int machine::submit(spi::token t, const spi::transfer &x)
{
	if (x.queue == queue_type::msg_recv)
		return -EINVAL; // the core chooses places
	const bool message = x.queue == queue_type::msg_send;
	// The device's MTU may leave room for less than the domain could promise.
	if (message && x.length > chan_.max_length())
		return -EMSGSIZE;
	const std::uint32_t index = operations_->add(t, x);
	if (index == operations::none)
		return -ENOBUFS;
	const std::uint64_t time = now();
	if (message)
		outbox_->submit(index, time);
	else
		bulk_->submit(index, time);
	// The end point sends those that are alike in one system call.
	if (!x.more || ++held_back_ == held_back_most)
		drain(time);
	return 0;
}

void machine::flush()
{
	if (chan_)
		drain(now());
}

void machine::cancel(spi::token t)
{
	const std::uint64_t time = now();
	const std::uint32_t index = operations_->find(t);
	if (index == operations::none)
		inbox_->give_back(t, time); // a receive buffer
	else if (!outbox_->cancel(index, time))
		bulk_->cancel(index, -ECANCELED, time);
	drain(time);
}

void machine::peer_close(spi::peer_number n)
{
	if (!peers_->used(n))
		return;
	const std::uint64_t t = now();
	forget_reads(n);
	bulk_->forget(n);
	peers_->close(n, t);
	outbox_->forget(n);
	drain(t);
}

// ---- progress --------------------------------------------------------------------

unsigned machine::progress(unsigned budget)
{
	if (!chan_)
		return 0;
	if (owed_)
		settle(now());
	if (armed_ || asking() || ++turns_ % resolver_turns == 0) {
		armed_ = false;
		const std::uint64_t t = now();
		if (question(t)) {
			resolve(t);
			drain(t);
		}
	}
	if (options_.verbs && !look_at_devices())
		return 1;
	if (watching_ && ++unarmed_ == unarmed_most)
		(void)watch_endpoints(false);
	std::uint64_t t = 0;
	const std::size_t n = poll(budget, t);
	dry_ = n == 0;
	const bool waits = rest_;
	if (rest_) {
		arrived_ += static_cast<std::uint32_t>(n);
		rest_ = !dry_ && arrived_ < arrivals_most && clock::now() < rest_until_;
	}
	if (dry_) {
		if (waits)
			settle(now());
		return waits;
	}
	// The program gets its message first; the rest waits for the next call.
	if (n > 1 || !owed_)
		settle(t);
	return static_cast<unsigned>(n);
}

// Hands out what has arrived, on all rails. `t`: the time, if there was something.
std::size_t machine::poll(unsigned budget, std::uint64_t &t)
{
	std::size_t n = 0;
	for (const auto &r : rails_) {
		if (!r->open())
			continue;
		const std::size_t some = r->endpoint().poll(
			{completions_.data(),
			 std::min<std::size_t>(std::max(budget, 1u), completions_.size())});
		if (some && n == 0)
			linger_.heard(t = now());
		for (std::size_t i = 0; i < some; i++)
			dispatch(*r, completions_[i], t);
		n += some;
	}
	return n;
}

bool machine::asking() const
{
	return std::any_of(rails_.begin(), rails_.end(),
			   [](const auto &r) { return r->resolver().asking(); });
}

bool machine::question(std::uint64_t now)
{
	bool any = false;
	for (const auto &r : rails_)
		any |= r->resolver().progress(now);
	return any;
}

// False: the last device is gone.
bool machine::look_at_devices()
{
	// arm() notices changes, and a program that polls never arms.
	const bool look = ++polls_ % polls_a_look == 0;
	bool any = false, left = false;
	for (const auto &r : rails_) {
		if (look && r->open())
			(void)r->endpoint().arm();
		any |= r->changed();
		left |= !r->lost();
	}
	if (!left) {
		chan_.abandon();
		sink_.failed(-ENODEV);
	} else if (any) {
		lose_rails(now());
		follow(now());
	}
	return left;
}

// Those whose device is gone.
void machine::lose_rails(std::uint64_t now)
{
	for (const auto &r : rails_) {
		if (!r->lost() || !r->open())
			continue;
		for (std::size_t n; (n = r->endpoint().poll(completions_)) != 0;)
			for (std::size_t i = 0; i < n; i++)
				dispatch(*r, completions_[i], now);
		if (watching_)
			(void)::epoll_ctl(epoll_, EPOLL_CTL_DEL, r->endpoint().fd(), nullptr);
		peer_rails_->lost(r->number());
		r->lose(*reader_, now);
	}
	(void)sends_over(now);
	drain(now);
}

void machine::dispatch(rail &r, const coop::ud::completion &c, std::uint64_t now)
{
	for (std::uint32_t channel = 0; channel < COOP_CHAN_CHANNELS; channel++) {
		message_qp &line = r.channels().line(channel);
		if (c.qp != line.qp())
			continue;
		received(r, channel, line.message(c), c, now);
		if (const std::uint32_t id = line.take(c); id != message_qp::no_tag)
			coop_chan_tx_done(chan_, channel, id,
					  c.status == coop::ud::wc_status::success ? 0 : -EIO, now);
		return;
	}
	r.host().completed(c, now);
}

void machine::received(rail &r, std::uint32_t channel, std::span<const std::byte> datagram,
		       const coop::ud::completion &c, std::uint64_t now)
{
	__le32 magic;
	if (datagram.size() < sizeof(magic))
		return; // no message, or none of ours
	const std::byte *data = datagram.data();
	const auto length = static_cast<std::uint32_t>(datagram.size());
	coop_addr from = message_qp::sender(c);
	std::memcpy(&magic, data, sizeof(magic));
	if (le32_to_cpu(magic) == COOP_WIRE_MAGIC) {
		if (length <= COOP_CTRL_MAX)
			coop_engine_rx_ctrl(r.engine(), data, length, &from, now);
		return;
	}
	if ((&r != &first() || peer_rails_->redirects()) &&
	    !peer_rails_->arrived(r.number(), from, now))
		return;
	const coop_chan_dgram rx{channel, length, data, from};
	coop_chan_in in;
	const coop_chan_verdict v = coop_chan_rx(chan_, &rx, now, &in);
	bool copy = v == COOP_CHAN_COPY;
	if (v == COOP_CHAN_PLACE && linger_.stopping())
		coop_chan_refuse(chan_, COOP_CHAN_NO_LISTENER, now);
	else if (v == COOP_CHAN_PLACE)
		copy = accept(in, data, from, now);
	if (copy)
		owed_ |= inbox_->copy(in, data, now);
}

bool machine::accept(coop_chan_in &in, const std::byte *datagram, const coop_addr &from,
		     std::uint64_t now)
{
	const std::uint32_t session = in.peer;
	const bool copy = inbox_->accept(in, datagram, from, now);
	coop_chan_peer_info info;
	if (rails_.size() > 1 && chan_.info(session, info) && info.cookie)
		peer_rails_->want(static_cast<spi::peer_number>(info.cookie - 1), now);
	return copy;
}

// All that there is to do, except to look at the network.
void machine::settle(std::uint64_t now)
{
	owed_ = false;
	for (const auto &r : rails_)
		if (r->open())
			r->channels().repost();
	drain(now);
}

void machine::drain(std::uint64_t now)
{
	// Messages about bulk data feed the other engine, which may want to send some in turn.
	for (bool again = true; again;) {
		drain_chan(now);
		again = drain_reports(now);
		again |= drain_fetch(now);
	}
	for (const auto &r : rails_)
		if (r->open())
			r->endpoint().flush();
	held_back_ = 0;
	if (linger_.over(bulk_->telling(), now))
		sink_.stopped();
}

void machine::drain_chan(std::uint64_t now)
{
	for (bool again = true; again;) {
		for (coop_chan_tx tx; coop_chan_next_tx(chan_, now, &tx);)
			transmit(tx, now);
		// Before any other work: the peer waits for it.
		for (const auto &r : rails_) {
			if (!r->open())
				continue;
			r->channels().post();
			r->endpoint().flush();
		}
		again = sends_over(now);
		// An end may let other messages begin.
		for (coop_chan_ev ev; coop_chan_next_event(chan_, now, &ev); again = true)
			event(ev, now);
	}
}

// Collects a datagram of rpc/chan.
void machine::transmit(coop_chan_tx &tx, std::uint64_t now)
{
	const auto index = static_cast<std::uint32_t>(tx.cookie);
	keyed_memory of_slab;
	segment piece;
	const keyed_memory *payload = &of_slab;
	if (tx.len && index != operations::none && !(*operations_)[index].sending) {
		payload = &(*operations_)[index].memory;
	} else if (tx.len) {
		if (index == operations::none)
			piece = {first().slab().at(blank_at_), blank_bytes_};
		else
			piece = {chan_.text(index), bulk_message::bytes};
		of_slab.segments = {&piece, 1};
		of_slab.size = piece.length;
	}
	if (tx.seal) {
		pieces_.clear();
		spi::cursor c(*payload, tx.off);
		std::size_t left = tx.len;
		for (auto p = c.next(left); !p.empty(); p = c.next(left)) {
			pieces_.push_back({p.data(), static_cast<u32>(p.size())});
			left -= p.size();
		}
		coop_chan_seal(chan_, &tx, pieces_.data(), static_cast<u32>(pieces_.size()));
	}
	add(tx, payload, now);
	(void)sends_over(now);
}

// To the rail that is the peer's path.
void machine::add(coop_chan_tx &tx, const keyed_memory *payload, std::uint64_t now)
{
	const unsigned path = peer_rails_->redirects() ? peer_rails_->redirect(tx.addr) : 0;
	keyed_memory there;
	if (path && payload) {
		there = *payload;
		rails_[path]->memory().know(there);
		payload = &there;
	}
	if (rails_[path]->open())
		rails_[path]->channels().add(tx, payload);
	else
		coop_chan_tx_done(chan_, tx.channel, tx.id, -EIO, now);
}

// Tells rpc/chan which sends are over. @return whether there are any.
bool machine::sends_over(std::uint64_t now)
{
	bool any = false;
	for (const auto &r : rails_) {
		if (!r->channels().take_over(over_))
			continue;
		any = true;
		for (const channels::over &o : over_)
			coop_chan_tx_done(chan_, o.channel, o.id, o.good ? 0 : -EIO, now);
	}
	return any;
}

bool machine::drain_reports(std::uint64_t now)
{
	bool any = false;
	for (outbox::report r; outbox_->next(r); any = true)
		bulk_->reported(r, now);
	return any;
}

bool machine::drain_fetch(std::uint64_t now)
{
	bool any = false;
	std::optional<time_point> began;
	const auto n = static_cast<unsigned>(rails_.size());
	const unsigned turn = turn_;
	for (unsigned i = 0; i < n; i++)
		any |= drain_rail(*rails_[(turn + i) % n], began, now);
	if (rest_ && began)
		turn_ = (turn + 1) % n;
	any |= reader_->advance(now);
	for (reading *r; (r = reader_->next_over()); any = true)
		bulk_->read_over(*r, now);
	return any;
}

bool machine::drain_rail(rail &r, std::optional<time_point> &began, std::uint64_t now)
{
	if (!r.open())
		return false;
	bool any = false;
	coop_engine *const engine = r.engine();
	for (coop_tx tx; rest_ ? coop_engine_next_urgent_tx(engine, now, &tx)
			       : coop_engine_next_tx(engine, now, &tx);
	     any = true) {
		const bool data = tx.kind == COOP_TX_DATA;
		if (data && !began)
			began = clock::now();
		r.host().perform(tx, now);
		if (!data)
			continue;
		// A machine that serves much must still hear, or its peers take it for dead.
		if (const auto t = clock::now(); t - *began >= data_turn) {
			rest_ = true;
			rest_until_ = t + std::max<clock::duration>(longest_rest, t - *began);
			arrived_ = 0;
		}
	}
	for (coop_ev ev; coop_engine_next_event(engine, now, &ev); any = true)
		r.host().handle(ev, now);
	return any;
}

void machine::event(const coop_chan_ev &ev, std::uint64_t now)
{
	const auto n = static_cast<spi::peer_number>(ev.peer_cookie - 1);
	switch (ev.kind) {
	case COOP_CHAN_EV_DELIVERED:
	case COOP_CHAN_EV_ABORTED: {
		spi::peer_number from;
		if (const std::uint8_t *text =
			    inbox_->over(static_cast<std::uint32_t>(ev.cookie),
					 ev.kind == COOP_CHAN_EV_DELIVERED, from))
			bulk_->heard(bulk_message::read(text), from, now);
		break;
	}
	case COOP_CHAN_EV_SENT:
		outbox_->sent(ev, now);
		break;
	case COOP_CHAN_EV_PEER_NEW: // its first message names the machine
		peers_->appeared(ev, now);
		break;
	case COOP_CHAN_EV_PEER_DEAD:
		if (ev.peer_cookie) {
			bulk_->lost(n, peers_->died(n, ev), now);
			peer_rails_->forget(n);
		}
		break;
	case COOP_CHAN_EV_PEER_RESTARTED: // its messages at rpc/chan end by themselves
		if (ev.peer_cookie) {
			peers_->restarted(n, now);
			peer_rails_->restarted(n);
			bulk_->restarted(n, now);
		}
		break;
	}
}

// Handles the answers of the resolvers.
void machine::resolve(std::uint64_t now)
{
	for (unsigned i = 1; i < rails_.size(); i++)
		for (resolver::result r; rails_[i]->resolver().next(r);)
			peer_rails_->heard(i, r, now);
	for (resolver::result r; first().resolver().next(r);) {
		if (r.list) {
			peer_rails_->heard(0, r, now);
			continue;
		}
		const peers::change c = peers_->resolved(r, now);
		if (c.lost) {
			forget_reads(r.number);
			bulk_->lost(r.number, c.lost, now);
		}
		if (c.settled)
			outbox_->wake(r.number, c.status, now);
		if (c.settled && !c.status)
			peer_rails_->want(r.number, now);
	}
}

// What was learned of the paths to a machine that is gone.
void machine::forget_reads(spi::peer_number n)
{
	reader_->forget(n);
	peer_rails_->forget(n);
}

bool machine::arm()
{
	if (!chan_)
		return true;
	if (owed_ || rest_)
		settle(now());
	if (rest_)
		return false;
	armed_ = true;
	unarmed_ = 0;
	if (!watching_ && watch_endpoints(true))
		return false;
	bool idle = true;
	for (const auto &r : rails_)
		idle &= !r->open() || r->endpoint().arm();
	return idle;
}

// An epoll instance with a descriptor costs its peers a call-back with every datagram, so a machine
// that is only polled removes the descriptors.
int machine::watch_endpoints(bool on)
{
	epoll_event ev{};
	ev.events = EPOLLIN;
	for (const auto &r : rails_)
		if (r->open() &&
		    ::epoll_ctl(epoll_, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, r->endpoint().fd(),
				&ev) &&
		    errno != EEXIST && errno != ENOENT)
			return -errno;
	watching_ = on;
	return 0;
}

// ---- time ------------------------------------------------------------------------

std::uint64_t machine::next_time() const
{
	if (rest_)
		return 0;
	std::uint64_t t =
		std::min({coop_chan_deadline(chan_), reader_->deadline(), peers_->deadline(),
			  bulk_->deadline(), outbox_->deadline(), linger_.deadline(), starts_at_});
	for (const auto &r : rails_)
		t = std::min({t,
			      std::uint64_t{r->open() ? coop_engine_deadline(r->engine()) : ~0ull},
			      r->resolver().deadline()});
	return t;
}

time_point machine::deadline() const
{
	if (!chan_)
		return never;
	return time_of(next_time());
}

void machine::expire(time_point)
{
	if (!chan_)
		return;
	const std::uint64_t t = now();
	if (t >= starts_at_)
		begin();
	coop_chan_expire(chan_, t);
	for (const auto &r : rails_) {
		if (r->open() && coop_engine_overdue(r->engine(), dry_, t))
			coop_engine_expire(r->engine(), t);
		r->resolver().expire(t);
	}
	resolve(t);
	outbox_->loop(t);
	if (t >= peers_->deadline()) {
		peers_->watch(t);
		watch_paths();
		bulk_->watch(t);
	}
	if (t >= bulk_->deadline())
		bulk_->ask_readers(t);
	settle(t);
}

// A peer that owes acknowledgements may be reached by another rail.
void machine::watch_paths()
{
	if (rails_.size() == 1)
		return;
	for (const spi::peer_number n : peers_->watched()) {
		coop_chan_peer_info info;
		if ((*peers_)[n].resolved && chan_.info((*peers_)[n].chan, info))
			peer_rails_->silent(n, info.tries);
	}
}

// The port of a device has another GID or LID. Peers know the old one, and those that send there
// ask for the new one before long. Sessions, which are on the first rail, know it as well: each
// begins again.
void machine::follow(std::uint64_t now)
{
	bool sessions = false, any = false;
	for (const auto &r : rails_) {
		if (!r->open() || !r->moved())
			continue;
		any = true;
		if (r != rails_.front())
			continue;
		sessions = true;
		const coop_chan_peer_addr self = r->channels().self();
		coop_chan_set_self(chan_, &self.command, self.data_qpn, self.data_qkey);
	}
	if (any && instance_)
		answer();
	if (sessions)
		peers_->reconnect(now);
}

} // namespace coop::net::ud
