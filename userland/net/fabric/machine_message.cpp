// SPDX-License-Identifier: MIT
// machine_message.cpp - small messages, and the window that limits them.
#include <cerrno>
#include <cstring>

#include "machine.hpp"

namespace coop::net::fabric
{

namespace
{

// Added to the size, so that the starts of the buffers do not share a few cache sets.
constexpr std::size_t stagger = 192;
// Enough for most control messages: a peer can make us keep many of those.
constexpr std::size_t small_copy = 128;
// Memory that a message waiting for a buffer takes besides its bytes.
constexpr std::size_t parked_overhead = 128;

int posted_well(ssize_t r)
{
	return r == -FI_EAGAIN ? -EAGAIN : static_cast<int>(r);
}

} // namespace

int machine::start_receiving()
{
	const std::size_t stride = (buffer_size_ + 63) / 64 * 64 + stagger;
	// Not cleared: pages that no message touches cost nothing.
	receive_memory_.reset(new std::byte[stride * options_.receives]);
	void *desc = nullptr;
	if (provider_.local_keys()) {
		fid_mr *mr = nullptr;
		if (int r = fi_mr_reg(&port_->domain(), receive_memory_.get(),
				      stride * options_.receives, FI_RECV, 0, random_.next(), 0,
				      &mr, nullptr))
			return r;
		receive_region_.reset(mr);
		desc = fi_mr_desc(mr);
	}
	for (unsigned n = 0; n < options_.receives; n++) {
		bounce &b = receives_.emplace_back(role::receive);
		b.data = receive_memory_.get() + n * stride;
		b.length = buffer_size_;
		b.desc = desc;
		if (int r = post_receive(b))
			return r;
	}
	return 0;
}

int machine::post_receive(bounce &b)
{
	return posted_well(fi_recv(&port_->receiver(), b.data, b.length, b.desc, FI_ADDR_UNSPEC,
				   static_cast<posted *>(&b)));
}

void machine::arrived(bounce &b, std::size_t length, std::uint64_t w)
{
	link *l = link_of(w);
	if (!l || length > b.length || !audible(*l))
		strays_++;
	else
		heard(*l, b, length, w);
	give_back(b);
}

// Post it later: first the receiver of its message has its turn.
void machine::give_back(bounce &b)
{
	unposted_.push_back(&b);
	if (unposted_.size() > options_.receives / 4)
		post_receives();
}

void machine::post_receives()
{
	while (!unposted_.empty() && post_receive(*unposted_.back()) == 0)
		unposted_.pop_back();
}

// A message may arrive before the event that the link is made. True: the link has an end point to
// answer on.
bool machine::audible(link &l)
{
	if (l.state == link::state::connecting && !l.ep)
		port_->catch_up(l);
	if (l.state == link::state::connecting && l.ep)
		linked(l);
	if (l.state == link::state::connecting)
		violation(l); // a message before the greeting
	return l.state != link::state::dying;
}

void machine::heard(link &l, const bounce &b, std::size_t length, std::uint64_t w)
{
	l.used = true;
	if (const unsigned n = word::credits(w)) {
		l.credit += n;
		if (l.credit > l.credit_most)
			violation(l);
		else if (!l.messages.empty())
			send_waiting(l);
	}
	if (word::kind(w) == static_cast<unsigned>(kind::message))
		return take(l, b.data, length);
	control c;
	if (word::kind(w) == static_cast<unsigned>(kind::control) && decode({b.data, length}, c))
		on_control(l, c);
	else
		violation(l);
}

// Takes a small message.
void machine::take(link &l, const std::byte *data, std::size_t length)
{
	if (++l.taken > options_.window || length > options_.eager)
		return violation(l);
	if (parked_.empty()) {
		const int r = sink_.receive(data, length, l.peer);
		if (r != -ENOBUFS) {
			strays_ += r != 0;
			return consumed(l);
		}
	}
	park(l, nullptr, data, length);
}

// A message, or the offer of one, waits for a buffer.
void machine::park(link &l, work *offer, const std::byte *data, std::size_t length)
{
	parked p;
	p.link = &l;
	p.number = ++parkings_;
	p.length = length;
	p.until = sink_.now() + options_.hold;
	if (offer) {
		p.work = offer->id;
		offer->parked = p.number;
	} else {
		p.data = std::make_unique<std::byte[]>(length);
		std::memcpy(p.data.get(), data, length);
		keep(l, l.parked + bytes_of(p));
	}
	parked_.push(l, l.parkings, std::move(p));
	if (!offer && parked_bytes_ > options_.parked)
		leave_greediest();
}

// Records how many bytes of this link wait.
void machine::keep(link &l, std::size_t bytes)
{
	if (bytes == l.parked)
		return;
	if (l.parked)
		greed_.erase({l.parked, &l});
	parked_bytes_ += bytes - l.parked;
	l.parked = bytes;
	if (bytes)
		greed_.emplace(bytes, &l);
}

// Each sender has a window, but there may be many senders. Disconnect the one whose waiting
// messages take the most memory, and drop them.
void machine::leave_greediest()
{
	strays_++;
	unlinked(*greed_.rbegin()->second, -ENOBUFS);
}

// Null: its sender has withdrawn it.
work *machine::offer_of(const parked &p)
{
	work *w = find_work(p.work, *p.link);
	return w && w->stage == work::stage::starved && w->parked == p.number ? w : nullptr;
}

// Drops messages that waited too long, so that senders to a machine that never receives continue or
// get an error.
void machine::drop_parked(time_point now)
{
	while (!parked_.empty() && parked_.front().until <= now) {
		const parked p = next_parked();
		if (work *w = p.work ? offer_of(p) : nullptr) {
			refuse(*p.link, w->peer_id, -ENOBUFS);
			release(*w);
		} else if (!p.work) {
			strays_++;
		}
		unparked(p);
	}
}

machine::parked machine::next_parked()
{
	return parked_.pop(parked_.whose().parkings);
}

// Drop a link's waiting messages with it: after a protocol violation none may be delivered.
void machine::drop_parked_of(link &l)
{
	while (!l.parkings.empty())
		(void)parked_.pop(l.parkings);
	keep(l, 0);
}

std::size_t machine::bytes_of(const parked &p)
{
	return p.work ? 0 : p.length + parked_overhead;
}

void machine::unparked(const parked &p)
{
	keep(*p.link, p.link->parked - bytes_of(p));
	consumed(*p.link);
}

// There is room for another message of this peer. The peer learns it from our next word, or early
// enough to continue without a pause.
void machine::consumed(link &l)
{
	l.taken--;
	take_leave(l);
	if (++l.owed >= options_.window / 2) {
		control c;
		c.verb = control::verb::credit;
		answer(l, c);
	}
}

void machine::receivable()
{
	while (!parked_.empty()) {
		parked &p = parked_.front();
		work *w = p.work ? offer_of(p) : nullptr;
		if (p.work && !w) {
			unparked(next_parked());
			continue;
		}
		spi::landing to;
		const int r = w ? sink_.place(p.length, to)
				: sink_.receive(p.data.get(), p.length, p.link->peer);
		if (r == -ENOBUFS)
			break;
		if (w && r == 0) {
			w->land = to;
			grant(*w);
		} else if (w) {
			refuse(*p.link, w->peer_id, r);
			release(*w);
			consumed(*p.link);
		} else {
			strays_ += r != 0;
			unparked(p);
		}
		(void)next_parked();
	}
	settle();
}

int machine::send_message(spi::token t, const spi::transfer &x)
{
	int status = 0;
	link *l = link_to(x.peer, status);
	if (!l)
		return status;
	// The path of most messages: one call of libfabric, and the message is done.
	if (x.length <= inject_ && x.length <= l->eager && l->ready() && l->credit && l->idle() &&
	    x.length <= x.memory.segments[0].length) {
		const std::uint64_t w = l->stamp(kind::message);
		const ssize_t r =
			fi_injectdata(l->ep, x.memory.segments[0].base, x.length, w, l->dest);
		if (r == 0) {
			l->stamped(w);
			l->credit--;
			port_->sent(*l);
			sink_.completed(t, 0, x.length);
			return 0;
		}
		if (r != -FI_EAGAIN)
			unlinked(*l, -ECONNRESET);
	}
	local_keys::descriptors local;
	if (int r = x.length > inject_ ? keys_of(x.memory, local) : 0)
		return r;
	work *w = make_work(*l, t);
	if (!w)
		return -ENOBUFS;
	w->writer = w->message = w->active = true;
	w->local = local;
	w->queue = x.queue;
	w->memory = x.memory;
	w->length = x.length;
	l->messages.push_back(w->id);
	if (l->ready() && l->messages.size() == 1)
		send_waiting(*l);
	return 0;
}

// There is credit. @return -EAGAIN: try later; another error: the link is broken.
int machine::post_message(work &w)
{
	link &l = *w.link;
	if (w.length > l.eager) {
		l.credit--;
		begin(w);
		return 0;
	}
	const std::uint64_t data = l.stamp(kind::message);
	ssize_t r;
	bool over = true;
	iovec pieces[16];
	void *descs[16] = {};
	std::size_t count = 0, bytes = 0;
	spi::cursor c(w.memory);
	while (bytes < w.length && count < pieces_) {
		if (!w.local.empty())
			descs[count] = w.local[c.index()];
		const auto piece = c.next(w.length - bytes);
		pieces[count++] = {piece.data(), piece.size()};
		bytes += piece.size();
	}
	if (w.length <= inject_ && count <= 1) {
		const void *from = count ? pieces[0].iov_base : w.memory.segments[0].base;
		r = fi_injectdata(l.ep, from, w.length, data, l.dest);
	} else if (w.length <= inject_ || bytes < w.length) {
		bounce *b = make_copy(w.length);
		if (!b)
			return -EAGAIN;
		spi::gather(w.memory, 0, b->data, w.length);
		b->what = kind::message;
		const int s = post_copy(l, *b);
		if (s)
			free_copy(*b);
		else
			l.credit--, finish(w, 0);
		return s;
	} else {
		if (provider_.checks_keys() &&
		    !covered(w.memory, w.local, {pieces, count}, {descs, count}))
			return -EFAULT;
		fi_msg m{pieces, descs, count, l.dest, static_cast<posted *>(&w), data};
		r = fi_sendmsg(l.ep, &m, FI_COMPLETION | FI_REMOTE_CQ_DATA);
		over = false;
	}
	if (r)
		return posted_well(r);
	l.stamped(data);
	l.credit--;
	port_->sent(l);
	if (over) {
		finish(w, 0);
	} else {
		put_on(w, l);
		w.out = 1;
		out_++;
		nudge();
		w.stage = work::stage::sending;
	}
	return 0;
}

int machine::post_copy(link &l, bounce &b)
{
	const std::uint64_t data = l.stamp(b.what);
	const bool injected = b.length <= inject_ && !b.answer;
	ssize_t r;
	if (injected) {
		r = fi_injectdata(l.ep, b.data, b.length, data, l.dest);
	} else {
		const iovec piece{b.data, b.length};
		fi_msg m{&piece, &b.desc, 1, l.dest, static_cast<posted *>(&b), data};
		r = fi_sendmsg(l.ep, &m, FI_COMPLETION | FI_REMOTE_CQ_DATA);
	}
	if (r)
		return posted_well(r);
	l.stamped(data);
	if (injected)
		free_copy(b);
	else
		put_on(b, l), out_++, nudge();
	port_->sent(l);
	return 0;
}

bounce *machine::make_copy(std::size_t length)
{
	const bool small = length <= small_copy;
	std::vector<bounce *> &unused = small ? free_small_ : free_copies_;
	if (unused.empty()) {
		const std::size_t size = small ? small_copy : buffer_size_;
		bounce &b = copies_.emplace_back(role::copy);
		b.small = small;
		b.own.reset(new std::byte[size]);
		b.data = b.own.get();
		if (provider_.local_keys()) {
			fid_mr *mr = nullptr;
			if (registered(fi_mr_reg(&port_->domain(), b.data, size, FI_SEND, 0,
						 random_.next(), 0, &mr, nullptr))) {
				copies_.pop_back();
				return nullptr;
			}
			b.region.reset(mr);
			b.desc = fi_mr_desc(mr);
		}
		unused.push_back(&b);
	}
	bounce *b = unused.back();
	unused.pop_back();
	b->length = length;
	b->answer = 0;
	return b;
}

void machine::free_copy(bounce &b)
{
	(b.small ? free_small_ : free_copies_).push_back(&b);
}

} // namespace coop::net::fabric
