// SPDX-License-Identifier: MIT
// messages.cpp - see messages.hpp.
#include "messages.hpp"

#include <cstring>
#include <iterator>

namespace coop::net::fabric
{

namespace
{

// Memory that a message waiting for a buffer takes besides its bytes.
constexpr std::size_t parked_overhead = 128;

std::size_t memory_of(const parked &p)
{
	return p.work ? 0 : p.length + parked_overhead;
}

} // namespace

int messages::submit(link &l, spi::token t, const spi::transfer &x)
{
	// The path of most messages: one call of libfabric, and the message is done.
	if (x.length <= env_.inject && x.length <= l.eager && l.ready() && l.credit && l.idle() &&
	    x.length <= x.memory.segments[0].length) {
		const std::uint64_t w = l.stamp(kind::message);
		const ssize_t r =
			fi_injectdata(l.ep, x.memory.segments[0].base, x.length, w, l.dest);
		if (r == 0) {
			l.stamped(w);
			l.credit--;
			env_.sink.completed(t, 0, x.length);
			return 0;
		}
		if (r != -FI_EAGAIN)
			env_.endings.fail(l, -ECONNRESET);
	}
	local_keys::descriptors local;
	if (int r = x.length > env_.inject ? env_.memory.descriptors(x.memory, local) : 0)
		return r;
	work *w = works_.make(l, t);
	if (!w)
		return -ENOBUFS;
	w->writer = w->message = w->active = true;
	w->local = local;
	w->memory = x.memory;
	w->length = x.length;
	l.messages.push_back(w->id, x.high);
	if (l.ready() && l.messages.size() == 1)
		send_waiting(l);
	return 0;
}

void messages::send_waiting(link &l)
{
	const auto retry = [&](int r) {
		if (r == -EAGAIN)
			sends_.try_again(l);
		else
			env_.endings.fail(l, -ECONNRESET);
	};
	while (!l.urgent.empty()) {
		if (int r = post(l, *l.urgent.front()))
			return retry(r);
		l.urgent.pop_front();
	}
	if (!l.ready())
		return;
	while (!l.bulk.empty()) {
		work *w = works_.find(l.bulk.front(), l);
		l.bulk.pop_front();
		if (w)
			transfers_.begin(*w);
	}
	while (!l.messages.empty() && l.urgent.empty()) {
		if (work *w = works_.find(l.messages.front(), l)) {
			if (l.credit == 0)
				return;
			if (int r = post(*w))
				return retry(r);
		}
		l.messages.pop_front();
	}
	if (!l.urgent.empty())
		sends_.try_again(l);
}

int messages::post(link &l, posted &p)
{
	if (p.role == role::copy)
		return sends_.post(l, static_cast<bounce &>(p));
	work &w = static_cast<work &>(p);
	return w.link == &l ? transfers_.move(w) : 0;
}

// There is credit. @return -EAGAIN: try later; another error: the link is broken.
int messages::post(work &w)
{
	link &l = *w.link;
	if (w.length > l.eager) {
		l.credit--;
		transfers_.begin(w);
		return 0;
	}
	spi::cursor from(w.memory);
	piece_list some(from, w.length, env_.pieces, w.local);
	const bool injected = w.length <= env_.inject;
	if (some.bytes < w.length || (injected && some.count > 1))
		return post_copy(w);
	const std::uint64_t data = l.stamp(kind::message);
	ssize_t r;
	if (injected) {
		const void *base = some.count ? some.pieces[0].iov_base : w.memory.segments[0].base;
		r = fi_injectdata(l.ep, base, w.length, data, l.dest);
	} else {
		if (env_.provider.checks_keys() && !some.covered(w))
			return -EFAULT;
		const fi_msg m{
			some.pieces, some.descs, some.count, l.dest, static_cast<posted *>(&w),
			data};
		r = fi_sendmsg(l.ep, &m, FI_COMPLETION | FI_REMOTE_CQ_DATA);
	}
	if (r)
		return static_cast<int>(r);
	l.stamped(data);
	l.credit--;
	if (injected) {
		works_.finish(w, 0);
	} else {
		w.out = 1;
		sends_.posted_on(l, w);
		w.stage = work::stage::sending;
	}
	return 0;
}

// Its memory has more pieces than the provider takes.
int messages::post_copy(work &w)
{
	link &l = *w.link;
	bounce *b = sends_.make_copy(w.length, kind::message);
	if (!b)
		return -EAGAIN;
	spi::gather(w.memory, 0, b->data, w.length);
	const int r = sends_.post(l, *b);
	if (r) {
		sends_.free(*b);
		return r;
	}
	l.credit--;
	works_.finish(w, 0);
	return 0;
}

void messages::take(link &l, const std::byte *data, std::size_t length)
{
	if (++l.taken > env_.options.window || length > env_.options.eager)
		return env_.endings.violation(l);
	if (parked_.empty() && env_.sink.receive(data, length, l.peer) != -ENOBUFS)
		return sends_.consumed(l);
	park(l, nullptr, data, length);
	// Each sender has a window, but there may be many senders. Disconnect the one whose waiting
	// messages take the most memory.
	if (parked_bytes_ > env_.options.parked)
		env_.endings.fail(*greed_.rbegin()->second, -ENOBUFS);
}

// A message, or the offer of one, waits for a buffer.
void messages::park(link &l, work *offer, const std::byte *data, std::size_t length)
{
	parked p{&l, 0, ++parkings_, length, nullptr, env_.sink.now() + env_.options.hold};
	if (offer) {
		p.work = offer->id;
		offer->parked = p.number;
	} else {
		p.data = std::make_unique<std::byte[]>(length);
		std::memcpy(p.data.get(), data, length);
		keep(l, l.parked_bytes + memory_of(p));
	}
	parked_.push_back(std::move(p));
	l.parkings.push_back(std::prev(parked_.end()));
}

// Removes the first one.
void messages::pop()
{
	const parked &p = parked_.front();
	keep(*p.link, p.link->parked_bytes - memory_of(p));
	p.link->parkings.pop_front();
	parked_.pop_front();
}

void messages::drop(link &l)
{
	for (const auto &p : l.parkings)
		parked_.erase(p);
	l.parkings.clear();
	keep(l, 0);
}

// Records how many bytes of this link wait.
void messages::keep(link &l, std::size_t bytes)
{
	if (bytes == l.parked_bytes)
		return;
	if (l.parked_bytes)
		greed_.erase({l.parked_bytes, &l});
	parked_bytes_ += bytes - l.parked_bytes;
	l.parked_bytes = bytes;
	if (bytes)
		greed_.emplace(bytes, &l);
}

void messages::on_offer(link &l, const control &c)
{
	if (++l.taken > env_.options.window || c.length > env_.options.max_message || c.length == 0)
		return env_.endings.violation(l);
	work *w = works_.make(l, 0);
	int r = -ENOBUFS;
	if (w) {
		w->message = true;
		w->stage = work::stage::starved;
		w->peer_id = c.id;
		w->length = c.length;
		if (parked_.empty())
			r = env_.sink.place(c.length, w->land);
		if (r == 0)
			return transfers_.grant(*w);
		if (r == -ENOBUFS)
			return park(l, w, nullptr, w->length);
		works_.release(*w);
	}
	sends_.refuse(l, c.id, r);
	sends_.consumed(l);
}

// Null: the bytes are there, or the sender has withdrawn its offer.
work *messages::offer_of(const parked &p)
{
	work *w = p.work ? works_.find(p.work, *p.link) : nullptr;
	return w && w->stage == work::stage::starved && w->parked == p.number ? w : nullptr;
}

// The first one no longer waits, and counts in its sender's window no more.
void messages::unpark()
{
	link &l = *parked_.front().link;
	pop();
	sends_.consumed(l);
}

void messages::receivable()
{
	while (!parked_.empty()) {
		const parked &p = parked_.front();
		work *w = offer_of(p);
		int r = 0;
		if (w) {
			r = env_.sink.place(p.length, w->land);
			if (r == 0) {
				pop();
				transfers_.grant(*w);
				continue;
			}
			if (r != -ENOBUFS) {
				sends_.refuse(*p.link, w->peer_id, r);
				works_.release(*w);
			}
		} else if (!p.work) {
			r = env_.sink.receive(p.data.get(), p.length, p.link->peer);
		}
		if (r == -ENOBUFS)
			return;
		unpark();
	}
}

// Drops messages that waited too long, so that senders to a machine that never receives continue or
// get an error.
void messages::expire(time_point now)
{
	for (; deadline() <= now; unpark())
		if (work *w = offer_of(parked_.front())) {
			sends_.refuse(*w->link, w->peer_id, -ENOBUFS);
			works_.release(*w);
		}
}

} // namespace coop::net::fabric
