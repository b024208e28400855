// SPDX-License-Identifier: MIT
// machine_bulk.cpp - large messages and bulk data: request, grant, write.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <iterator>

#include "machine.hpp"

namespace coop::net::fabric
{

int machine::begin_bulk(spi::token t, const spi::transfer &x)
{
	const bool writer = x.queue == queue_type::active_bulk_send;
	local_keys::descriptors local;
	int status = writer ? keys_of(x.memory, local) : 0;
	if (status)
		return status;
	link *l = link_to(x.peer, status);
	if (!l)
		return status;
	work *w = make_work(*l, t);
	if (!w)
		return -ENOBUFS;
	w->active = true;
	w->writer = writer;
	w->local = local;
	w->queue = x.queue;
	w->memory = x.memory;
	w->length = x.length;
	w->remote = x.remote;
	w->remote_key = x.remote_key;
	if (l->ready())
		begin(*w);
	else
		l->bulk.push_back(w->id);
	return 0;
}

// Sends the request of a work.
void machine::begin(work &w)
{
	control c;
	c.id = w.id;
	c.length = w.length;
	c.token = w.remote;
	c.key = w.remote_key;
	if (w.writer) {
		c.verb = w.message ? control::verb::offer : control::verb::put;
		w.stage = work::stage::offered;
		lend(w, c);
	} else {
		c.verb = control::verb::get;
		w.stage = work::stage::landing;
		w.reads = reads(*w.link);
		if (int r = w.reads ? 0 : expose(w, c))
			return finish(w, r);
	}
	send(*w.link, c);
}

// Registers the destination under keys for this one use.
int machine::expose(work &w, control &c)
{
	spi::cursor at(w.memory, w.offset);
	c.count = 0;
	for (std::size_t left = w.length; left;) {
		const auto piece = at.next(left);
		if (piece.empty() || c.count == control::segments_most)
			return -EFBIG;
		fid_mr *mr = nullptr;
		const std::uint64_t key = random_.next();
		if (int r = registered(fi_mr_reg(&port_->domain(), piece.data(), piece.size(),
						 FI_REMOTE_WRITE, 0, key, 0, &mr, nullptr))) {
			w.keys.clear();
			return r;
		}
		w.keys.emplace_back(mr);
		c.regions[c.count++] = {provider_.virtual_addresses()
						? reinterpret_cast<std::uintptr_t>(piece.data())
						: 0,
					piece.size(), provider_.own_keys() ? fi_mr_key(mr) : key};
		left -= piece.size();
	}
	return 0;
}

bool machine::take_regions(work &w, const control &c, std::size_t first)
{
	std::size_t room = 0;
	for (std::size_t n = first; n < c.count; n++)
		room += std::min<std::size_t>(c.regions[n].length, w.length);
	if (room < w.length)
		return false;
	w.regions.assign(c.regions.begin(),
			 c.regions.begin() + static_cast<std::ptrdiff_t>(c.count));
	return true;
}

// If peers can read our memory, tells them where it is.
void machine::lend(work &w, control &c)
{
	if (!lends())
		return;
	w.pledge = random_.next() | 1;
	c.regions[0] = {reinterpret_cast<std::uintptr_t>(&w.pledge), sizeof(w.pledge), w.pledge};
	c.count = 1;
	spi::cursor at(w.memory, w.offset);
	for (std::size_t left = w.length; left;) {
		const auto piece = at.next(left);
		if (piece.empty() || c.count == control::regions_most) {
			c.count = 0;
			return;
		}
		c.regions[c.count++] = {reinterpret_cast<std::uintptr_t>(piece.data()),
					piece.size(), 0};
		left -= piece.size();
	}
}

// Stores the lent regions. False: we cannot read them.
bool machine::borrow(work &w, const control &c)
{
	if (c.count < 2 || !reads(*w.link) || !c.regions[0].key ||
	    c.regions[0].length != sizeof(w.pledge))
		return false;
	return take_regions(w, c, 1); // after the pledge
}

void machine::on_lend(link &l, const control &c)
{
	work *w = find_work(c.peer, l);
	if (!w || !w->active || !w->reads || w->stage != work::stage::landing)
		return; // it was cancelled, and the peer has been told
	w->peer_id = c.id;
	if (!borrow(*w, c))
		return violation(l);
	read_lent(*w);
}

// Reads all lent memory now.
void machine::read_lent(work &w)
{
	link &l = *w.link;
	w.stage = work::stage::landing;
	const int r = copy_lent(w);
	if (r == 0)
		on_landed(l, w.id, 0);
	else if (r != -ENOENT)
		unlinked(l, r);
	else if (w.message)
		drop_landing(w);
	else if (w.active)
		finish(w, -ENOENT);
	else
		release(w); // as if the peer had not asked
}

// @return 0; -ENOENT: the memory is no longer lent, and the copy is invalid; or the link is broken.
int machine::copy_lent(work &w)
{
	link &l = *w.link;
	spi::cursor to(w.memory, w.offset);
	std::size_t left = w.length;
	bool torn = false; // that memory is unmapped: then the pledge should be gone too
	for (std::size_t n = 1; left && !torn; n++) {
		std::uint64_t from = w.regions[n].address;
		std::size_t here = std::min<std::size_t>(w.regions[n].length, left);
		left -= here;
		while (here && !torn) {
			iovec pieces[16];
			std::size_t count = 0, bytes = 0;
			while (bytes < here && count < std::size(pieces)) {
				const auto piece = to.next(here - bytes);
				if (piece.empty())
					return -EIO;
				pieces[count++] = {piece.data(), piece.size()};
				bytes += piece.size();
			}
			const int r = port_->read(l, {pieces, count}, from);
			if (r && r != -EFAULT)
				return r;
			torn = r;
			from += bytes;
			here -= bytes;
		}
	}
	std::atomic_thread_fence(std::memory_order_seq_cst);
	std::uint64_t pledge = 0;
	iovec piece{&pledge, sizeof(pledge)};
	if (int r = port_->read(l, {&piece, 1}, w.regions[0].address))
		return r == -EFAULT ? -ECONNRESET : r;
	if (pledge != w.regions[0].key)
		return -ENOENT;
	return torn ? -ECONNRESET : 0;
}

void machine::refuse(link &l, std::uint32_t peer_id, int status)
{
	control c;
	c.verb = control::verb::done;
	c.peer = peer_id;
	c.status = status;
	answer(l, c);
}

// Finds the operation that a peer names. @return 0 or the error for the peer.
int machine::passive(link &l, const control &c, queue_type q, const spi::transfer *&x)
{
	x = sink_.find(c.token, c.key);
	if (!x || index_.find(c.token))
		return -ENOENT;
	if (x->queue != q || (x->peer != spi::no_peer && x->peer != l.peer))
		return -EPERM;
	if (c.length == 0)
		return -EINVAL;
	return c.length > x->length ? -EFBIG : 0;
}

void machine::on_offer(link &l, const control &c)
{
	if (++l.taken > options_.window || c.length > options_.max_message || c.length == 0)
		return violation(l);
	work *w = make_work(l, 0);
	if (!w) {
		refuse(l, c.id, -ENOBUFS);
		return consumed(l);
	}
	w->message = true;
	w->stage = work::stage::starved;
	w->peer_id = c.id;
	w->length = c.length;
	w->reads = borrow(*w, c);
	const int r = parked_.empty() ? sink_.place(c.length, w->land) : -ENOBUFS;
	if (r == 0)
		return grant(*w);
	if (r == -ENOBUFS) {
		park(l, w, nullptr, w->length);
		return;
	}
	release(*w);
	refuse(l, c.id, r);
	consumed(l);
}

// A place for the message has been found.
void machine::grant(work &w)
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
	if (w.reads)
		return read_lent(w);
	if (w.message) {
		landing_.join(&w, work::landing_place);
		if (landings_at_ == never)
			landings_at_ = sink_.now() + options_.landing;
	}
	w.stage = work::stage::landing;
	if (int r = expose(w, c)) {
		refuse(l, w.peer_id, r);
		if (w.message)
			return drop_landing(w);
		return finish(w, r);
	}
	if (w.message)
		answer(l, c);
	else
		send(l, c);
}

void machine::drop_landing(work &w)
{
	link &l = *w.link;
	const spi::landing to = w.land;
	release(w);
	sink_.abandon(to);
	consumed(l);
}

void machine::on_put(link &l, const control &c)
{
	const spi::transfer *x = nullptr;
	int r = passive(l, c, queue_type::passive_bulk_recv, x);
	work *w = r ? nullptr : make_work(l, c.token);
	if (!w)
		return refuse(l, c.id, r ? r : -ENOBUFS);
	w->queue = x->queue;
	w->peer_id = c.id;
	w->memory = x->memory;
	w->length = c.length;
	w->reads = borrow(*w, c);
	grant(*w);
}

void machine::on_get(link &l, const control &c)
{
	const spi::transfer *x = nullptr;
	local_keys::descriptors local;
	int r = passive(l, c, queue_type::passive_bulk_send, x);
	if (!r)
		r = keys_of(x->memory, local);
	work *w = r ? nullptr : make_work(l, c.token);
	if (!w)
		return refuse(l, c.id, r ? r : -ENOBUFS);
	w->writer = true;
	w->local = local;
	w->queue = x->queue;
	w->peer_id = c.id;
	w->memory = x->memory;
	w->length = c.length;
	if (c.count == 0 && lends()) {
		control to;
		to.verb = control::verb::lend;
		to.id = w->id;
		to.peer = c.id;
		w->stage = work::stage::offered;
		lend(*w, to);
		return answer(l, to);
	}
	w->stage = work::stage::writing;
	if (!take_regions(*w, c)) {
		// The descriptor remains unused.
		release(*w);
		return violation(l);
	}
	write_or_queue(*w);
}

void machine::on_grant(link &l, const control &c)
{
	work *w = find_work(c.peer, l);
	if (!w || w->stage != work::stage::offered)
		return; // it was cancelled, and the peer has been told
	w->peer_id = c.id;
	if (!take_regions(*w, c))
		return violation(l);
	w->stage = work::stage::writing;
	write_or_queue(*w);
}

void machine::write_or_queue(work &w)
{
	link &l = *w.link;
	const int r = l.urgent.empty() ? write_on(w) : -EAGAIN;
	if (r == -EAGAIN) {
		l.urgent.push_back(&w);
		backlog(l);
	} else if (r) {
		unlinked(l, -ECONNRESET);
	}
}

// Posts as many writes as the provider accepts. Each write goes to one region of the peer, from as
// many local pieces as fit. @return 0: all; -EAGAIN; or the link is broken.
int machine::write_on(work &w)
{
	link &l = *w.link;
	spi::cursor from(w.memory, w.offset + w.written);
	while (w.written < w.length) {
		const region &to = w.regions[w.region_at];
		if (w.region_into == to.length) {
			w.region_at++;
			w.region_into = 0;
			continue;
		}
		const std::size_t most = std::min<std::size_t>(
			{to.length - w.region_into, w.length - w.written, provider_.write_most()});
		iovec pieces[16];
		void *descs[16] = {};
		std::size_t count = 0, bytes = 0;
		spi::cursor ahead = from;
		while (bytes < most && count < pieces_) {
			if (!w.local.empty())
				descs[count] = w.local[ahead.index()];
			const auto piece = ahead.next(most - bytes);
			if (piece.empty())
				return -EIO;
			pieces[count++] = {piece.data(), piece.size()};
			bytes += piece.size();
		}
		if (provider_.checks_keys() &&
		    !covered(w.memory, w.local, {pieces, count}, {descs, count}))
			return -EFAULT;
		if (const int r = port_->write(l, {pieces, count}, to.address + w.region_into);
		    r != -EOPNOTSUPP) {
			if (r)
				return r;
			w.written += bytes;
			w.region_into += bytes;
			from = ahead;
			continue;
		}
		const bool last = ordered_ && w.written + bytes == w.length;
		const fi_rma_iov remote{to.address + w.region_into, bytes, to.key};
		fi_msg_rma m{};
		m.msg_iov = pieces;
		m.desc = descs;
		m.iov_count = count;
		m.addr = l.dest;
		m.rma_iov = &remote;
		m.rma_iov_count = 1;
		m.context = static_cast<posted *>(&w);
		m.data = last ? word::landed(l.base, w.peer_id) : 0;
		const ssize_t r =
			fi_writemsg(l.ep, &m, FI_COMPLETION | (last ? FI_REMOTE_CQ_DATA : 0));
		if (r == -FI_EAGAIN)
			return -EAGAIN;
		if (r)
			return static_cast<int>(r);
		put_on(w, l);
		if (!provider_.connected()) {
			unnamed_.push(w, w.unnamed, {});
		}
		w.out++;
		out_++;
		w.written += bytes;
		w.region_into += bytes;
		from = ahead;
	}
	if (w.out == 0) {
		wrote(w); // no completion will report it
		return 0;
	}
	port_->sent(l);
	nudge();
	return 0;
}

// The provider no longer needs the local memory.
void machine::wrote(work &w)
{
	if (!ordered_) {
		control c;
		c.verb = control::verb::landed;
		c.peer = w.peer_id;
		c.length = w.length;
		send(*w.link, c);
	}
	if (w.message || w.done)
		finish(w, 0);
	else if (w.cancelled)
		finish(w, -ECANCELED);
	else
		w.stage = work::stage::written;
}

void machine::on_landed(link &l, std::uint32_t id, std::uint64_t)
{
	work *w = find_work(id, l);
	if (!w || w->writer || w->stage != work::stage::landing) {
		strays_++;
		return;
	}
	if (w->message) {
		const spi::landing to = w->land;
		const std::uint32_t lender = w->reads ? w->peer_id : 0;
		release(*w);
		sink_.received(to, l.peer);
		if (lender)
			refuse(l, lender, 0);
		return consumed(l);
	}
	control c;
	c.verb = control::verb::done;
	c.peer = w->peer_id;
	c.token = w->remote;
	finish(*w, 0);
	send(l, c);
}

void machine::on_done(link &l, const control &c)
{
	// Only this side can report its own deadline.
	if (c.status > 0 || c.status < -4095 || c.status == -ETIMEDOUT)
		return violation(l);
	work *w = c.peer ? find_work(c.peer, l) : index_.find(c.token);
	if (!w || w->link != &l)
		return;
	switch (w->stage) {
	case work::stage::written:
		return finish(*w, c.status);
	case work::stage::writing:
		// The last completion has not been read yet.
		if (w->written == w->length)
			w->done = true;
		return;
	case work::stage::offered:
		if (c.status || w->pledge)
			finish(*w, c.status);
		return;
	case work::stage::landing:
		if (!c.status)
			return;
		if (w->message)
			return drop_landing(*w);
		return finish(*w, w->cancelled ? -ECANCELED : c.status);
	default:
		return;
	}
}

void machine::on_cancel(link &l, const control &c)
{
	work *w = c.peer ? find_work(c.peer, l) : nullptr;
	if (!w && c.token) {
		w = index_.find(c.token);
		if (w && (w->link != &l || w->peer_id != c.id))
			w = nullptr;
	}
	if (!w)
		for (w = l.works; w && (w->writer || w->peer_id != c.id || w->active);)
			w = w->after;
	if (w && w->writer) {
		// Memory lent for a get is released as if no peer had asked; data being written are
		// followed by landed.
		if (w->stage == work::stage::offered && !w->active)
			release(*w);
		return;
	}
	if (!w)
		return refuse(l, c.id, -ECANCELED);
	// The peer withdraws an offer or put. Nothing was written: it ignores a grant that crossed
	// the cancel.
	if (w->stage == work::stage::starved) {
		// Its entry in the queue counts in the peer's window until it is reached.
		release(*w);
	} else if (w->stage == work::stage::landing && w->message) {
		drop_landing(*w);
	} else if (w->stage == work::stage::landing && !w->active) {
		if (w->cancelled)
			finish(*w, -ECANCELED);
		else
			release(*w);
	}
}

} // namespace coop::net::fabric
