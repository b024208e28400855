// SPDX-License-Identifier: MIT
// engine.cpp - see engine.hpp.
#include "engine.hpp"

#include <bit>
#include <cerrno>

namespace coop::net::kernel
{

static_assert(COOP_NET_KIND_TEXT == static_cast<unsigned>(ud::tag_kind::bulk));
static_assert(COOP_NET_TEXT == ud::bulk_message::bytes);
static_assert(COOP_NET_PAGE == ud::page_bytes);
static_assert(COOP_NET_SHIFT_AT == ud::asker::shift_at);

coop_net_op fetch_op(const ud::reading &r, const coop_fetch_req &q,
		     const fetch_host::page_list &pages, std::uint32_t handle, std::uint32_t buffer,
		     std::uint64_t &want)
{
	const std::uint64_t first = pages.page[0];
	want = 0;
	for (std::uint32_t i = 0; i < pages.size; i++)
		want |= 1ull << (pages.page[i] - first);
	coop_net_op op{};
	op.code = COOP_NET_FETCH;
	op.handle = handle;
	op.peer = q.hints[0];
	op.buffer = buffer;
	op.offset = r.start + first * COOP_NET_PAGE;
	op.length = r.length - first * COOP_NET_PAGE;
	op.u.fetch.fid[0] = q.fid.hi;
	op.u.fetch.fid[1] = q.fid.lo;
	op.u.fetch.version = q.version;
	op.u.fetch.size = q.size;
	op.u.fetch.index = r.offset / COOP_NET_PAGE + first;
	op.u.fetch.want = want;
	op.u.fetch.budget_us = q.budget_us;
	return op;
}

std::uint64_t ordinals_of(std::uint64_t want, std::uint64_t pages)
{
	std::uint64_t out = 0;
	unsigned i = 0;
	for (std::uint64_t left = want; left; left &= left - 1)
		out |= (pages >> std::countr_zero(left) & 1) << i++;
	return out;
}

coop_net_op offer_op(const ud::op &o, std::uint32_t handle, std::uint32_t buffer)
{
	coop_net_op op{};
	op.code = COOP_NET_OFFER;
	op.flags = o.reusable && o.queue == queue_type::passive_bulk_send ? COOP_NET_RANGES : 0;
	op.handle = handle;
	op.buffer = buffer;
	op.length = o.length;
	op.u.offer.token = o.token;
	op.u.offer.key = o.key;
	return op;
}

namespace
{

// Short messages travel in the operation itself.
void name_bytes(coop_net_op &op, const ud::op &o)
{
	if (op.length <= COOP_NET_TEXT) {
		op.flags |= COOP_NET_IN_TEXT;
		spi::gather(o.memory, 0, op.u.send.text, op.length);
	} else {
		op.buffer = o.memory.key(0);
	}
}

} // namespace

engine::engine(const options &o, device &d, handles &h) :
	device_(d),
	handles_(h),
	fetch_pages_(std::min<std::uint32_t>(d.setup().fetch_pages, COOP_MAX_PAGES)),
	texts_(ud::operations::most(o)),
	requests_(ud::reader::requests(o)),
	offered_(ud::operations::most(o), handles::none)
{
}

// ---- messages --------------------------------------------------------------------

std::int64_t engine::open(const coop_chan_peer_addr &where, spi::peer_number n, ud::identity who,
			  std::uint64_t)
{
	coop_net_peer p{};
	p.cookie = n + 1;
	p.sender = who.packed();
	p.addr = address_of(where);
	if (const int err = device_.open_peer(p))
		return err;
	sessions_.insert(p.peer);
	return p.peer;
}

void engine::admit(std::uint32_t session, spi::peer_number n, ud::identity who)
{
	coop_net_peer p{};
	p.peer = session;
	p.cookie = n + 1;
	p.sender = who.packed();
	(void)device_.admit_peer(p);
}

void engine::close(std::uint32_t session, std::uint64_t)
{
	sessions_.erase(session);
	device_.close_peer(session);
}

bool engine::info(std::uint32_t session, coop_chan_peer_info &out) const
{
	coop_net_peer p{};
	p.peer = session;
	if (device_.peer_info(p))
		return false;
	out = {};
	out.id = session;
	out.cookie = p.cookie;
	out.addr = address_of(p.addr);
	out.srtt_us = p.srtt_us;
	out.in_flight = p.in_flight;
	out.queued = p.queued;
	out.carried = p.carried;
	out.sessions = p.sessions;
	out.tries = p.in_flight ? 2 : 0; // unknown, so any peer that owes an answer may be silent
	return true;
}

int engine::send(const coop_chan_msg &m, std::uint64_t, std::uint32_t &id)
{
	const bool probe = m.flags & COOP_CHAN_PROBE;
	const auto index = static_cast<std::uint32_t>(m.cookie);
	const std::uint32_t h =
		handles_.take(probe ? handles::use::probe : handles::use::send, index);
	if (h == handles::none)
		return -EAGAIN;
	coop_net_op op{};
	op.code = COOP_NET_SEND;
	op.flags = (probe ? COOP_NET_PROBE : 0) |
		   (m.flags & COOP_CHAN_BY_DATA ? COOP_NET_BY_DATA : 0) |
		   (m.flags & COOP_CHAN_URGENT ? COOP_NET_URGENT : 0);
	op.handle = h;
	op.peer = m.peer;
	op.length = m.length;
	op.u.send.tag = m.tag;
	if (!probe && m.tag >> 56 == COOP_NET_KIND_TEXT) {
		op.flags |= COOP_NET_IN_TEXT;
		std::memcpy(op.u.send.text, texts_[index].data(), COOP_NET_TEXT);
	} else if (!probe) {
		name_bytes(op, (*operations_)[index]);
	}
	device_.push(op);
	id = handles_.id(h);
	return 0;
}

void engine::cancel(std::uint32_t id, std::uint64_t)
{
	if (const std::uint32_t h = handles_.of(id); h != handles::none)
		device_.cancel(h);
}

std::uint32_t engine::unit() const
{
	return (device_.setup().data_mtu & ~7u) - COOP_CHAN_HEADER_MOST;
}

// The module has the buffers, and may be about to fill them.
int engine::deliver_here(std::uint32_t index, ud::op &o)
{
	const std::uint32_t h = handles_.take(handles::use::send, index);
	if (h == handles::none)
		return -ENOBUFS;
	coop_net_op op{};
	op.code = COOP_NET_SEND;
	op.flags = COOP_NET_HERE;
	op.handle = h;
	op.length = o.length;
	op.u.send.tag = ud::make_tag(ud::tag_kind::message, peers_->own());
	name_bytes(op, o);
	device_.push(op);
	o.id = handles_.id(h);
	return -EINPROGRESS;
}

// ---- bulk, the receiving side ----------------------------------------------------

std::uint32_t engine::peer(spi::peer_number n, bool, std::uint64_t)
{
	return (*peers_)[n].chan;
}

int engine::submit(const ud::reading &r, const coop_fetch_req &q,
		   const fetch_host::page_list &pages, std::uint64_t)
{
	// Not the hint: the session may be another than when the reading began.
	const std::uint32_t session = (*peers_)[r.peer].chan;
	if (!session)
		return -ENOENT;
	const auto number = static_cast<std::uint32_t>(q.cookie);
	const std::uint32_t h = handles_.take(handles::use::fetch, number);
	if (h == handles::none)
		return -EAGAIN;
	request &c = requests_[number];
	c.handle = h;
	coop_net_op op = fetch_op(r, q, pages, h, r.memory.key(0), c.want);
	op.peer = session;
	device_.push(op);
	return 0;
}

void engine::cancel_fetch(std::uint32_t number, std::uint64_t)
{
	device_.cancel(requests_[number].handle);
}

std::uint64_t engine::ordinals(std::uint32_t number, std::uint64_t pages) const
{
	return ordinals_of(requests_[number].want, pages);
}

// ---- bulk, the sending side ------------------------------------------------------

void engine::begin(std::uint32_t index)
{
	ud::op &o = (*operations_)[index];
	const std::uint32_t h = handles_.take(handles::use::offer, index);
	if (h == handles::none) { // cannot be: there are two for each operation
		o.lent = false;
		return;
	}
	offered_[index] = h;
	coop_net_op op = offer_op(o, h, o.memory.key(0));
	if (o.peer != spi::no_peer) {
		const ud::peer &p = (*peers_)[o.peer];
		op.u.offer.reader = p.who.packed();
		op.u.offer.reader_peer = p.resolved ? p.chan : 0;
		if (!p.resolved)
			placeless_.insert(index);
	}
	device_.push(op);
}

void engine::place(spi::peer_number n)
{
	for (auto i = placeless_.begin(); i != placeless_.end();) {
		const std::uint32_t index = *i;
		if ((*operations_)[index].peer != n) {
			++i;
			continue;
		}
		coop_net_op op{};
		op.code = COOP_NET_PLACE;
		op.handle = offered_[index];
		op.peer = (*peers_)[n].chan;
		device_.push(op);
		i = placeless_.erase(i);
	}
}

void engine::end(std::uint32_t index)
{
	device_.cancel(offered_[index]);
}

} // namespace coop::net::kernel
