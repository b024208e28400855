// SPDX-License-Identifier: MIT
// rail.cpp - see rail.hpp.
#include "rail.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <system_error>

#include "engine.hpp"
#include "rpc/base/addr.h"

namespace coop::net::kernel
{

namespace
{

// Those of a rail; there are no messages, and no probes.
ring_sizes bulk_sizes(const options &o)
{
	ring_sizes s;
	s.operations = 1024;
	s.handles = std::min(ud::operations::most(o) + ud::reader::requests(o), 65536u);
	s.events = std::clamp(std::bit_ceil(s.handles), 64u, 16384u);
	return s;
}

} // namespace

rail::rail(const options &o, unsigned number, buffers &b) :
	options_(o),
	number_(number),
	buffers_(b)
{
	options_.device.device = o.rails[number - 1];
}

int rail::prepare()
{
	try {
		device_.emplace(options_, bulk_sizes(options_));
	} catch (const std::system_error &e) {
		return -e.code().value();
	}
	return pin(buffers_, *device_);
}

void rail::claim(ud::identity own)
{
	ip_ = ud::ipv4_of(device_->self().command.gid);
	if (!ip_)
		throw std::system_error(EADDRNOTAVAIL, std::generic_category(),
					"kernel: the device of a rail has no IPv4 address");
	if (ip_ == own.ip)
		throw std::system_error(EINVAL, std::generic_category(),
					"kernel: a rail has the address of the machine");
	resolver_.emplace(options_.key, own, ip_);
}

void rail::make(const ud::operations &o, const ud::peers &p, const ud::peer_rails &r)
{
	operations_ = &o;
	peers_ = &p;
	rails_ = &r;
	handles_.emplace(bulk_sizes(options_).handles);
	fetch_pages_ = std::min<std::uint32_t>(device_->setup().fetch_pages, COOP_MAX_PAGES);
	requests_.resize(ud::reader::requests(options_) * r.size());
	offered_.assign(ud::operations::most(options_), handles::none);
}

void rail::close()
{
	if (!device_)
		return;
	buffers_.close(&*device_);
	buffers_.forget(&*device_); // gives them back
	device_.reset();
}

// ---- peers -------------------------------------------------------------------------

void rail::refuse(std::uint32_t session)
{
	device_->close_peer(session);
}

void rail::drop(session &s)
{
	if (s.id && device_)
		device_->close_peer(s.id);
	s = {};
}

void rail::forget(spi::peer_number n)
{
	if (n < sessions_.size())
		drop(sessions_[n]);
}

// Ends the session of some other peer.
bool rail::make_room(spi::peer_number for_this)
{
	for (std::size_t i = 0; i < sessions_.size(); i++) {
		next_victim_ = (next_victim_ + 1) % sessions_.size();
		if (next_victim_ == for_this || !sessions_[next_victim_].id)
			continue;
		drop(sessions_[next_victim_]);
		return true;
	}
	return false;
}

std::uint32_t rail::peer(spi::peer_number n, bool, std::uint64_t)
{
	if (!knows(n))
		return 0;
	const coop_chan_peer_addr &there = *rails_->at(n, number_);
	if (n >= sessions_.size())
		sessions_.resize(n + 1);
	session &s = sessions_[n];
	if (s.id && coop_addr_same(&s.where.command, &there.command) &&
	    s.where.command.lid == there.command.lid)
		return s.id;
	drop(s);
	coop_net_peer p{};
	p.cookie = n + 1;
	p.sender = (*peers_)[n].who.packed();
	p.addr = address_of(there);
	int err;
	do
		err = device_->open_peer(p);
	while (err == -ENOSPC && make_room(n));
	if (err)
		return 0;
	s = {p.peer, there};
	return s.id;
}

bool rail::find(const spi::memory &m, std::uint32_t &buffer)
{
	std::span<const std::uint32_t> keys;
	if (!device_ || !m.registration || buffers_.find(m, &*device_, keys) || keys.empty())
		return false;
	buffer = keys[0];
	return true;
}

// ---- the receiving side ------------------------------------------------------------

int rail::submit(const ud::reading &r, const coop_fetch_req &q, const fetch_host::page_list &pages,
		 std::uint64_t)
{
	std::uint32_t buffer = 0;
	if (!q.hints[0] || !find(r.memory, buffer))
		return -ENOENT;
	const auto number = static_cast<std::uint32_t>(q.cookie);
	const std::uint32_t h = handles_->take(handles::use::fetch, number);
	if (h == handles::none)
		return -EAGAIN;
	requests_[number].handle = h;
	device_->push(fetch_op(r, q, pages, h, buffer, requests_[number].want));
	return 0;
}

void rail::cancel_fetch(std::uint32_t number, std::uint64_t)
{
	if (device_)
		device_->cancel(requests_[number].handle);
}

std::uint64_t rail::ordinals(std::uint32_t number, std::uint64_t pages) const
{
	return ordinals_of(requests_[number].want, pages);
}

// ---- the sending side --------------------------------------------------------------

bool rail::begin(std::uint32_t index)
{
	const ud::op &o = (*operations_)[index];
	const bool named = o.peer != spi::no_peer;
	const std::uint32_t reader = named ? peer(o.peer, false, 0) : 0;
	std::uint32_t buffer = 0;
	if ((named && !reader) || !find(o.memory, buffer))
		return false;
	const std::uint32_t h = handles_->take(handles::use::offer, index);
	if (h == handles::none) // cannot be: there is one for each operation
		return false;
	offered_[index] = h;
	coop_net_op op = offer_op(o, h, buffer);
	if (named) {
		op.u.offer.reader = (*peers_)[o.peer].who.packed();
		op.u.offer.reader_peer = reader;
	}
	device_->push(op);
	return true;
}

void rail::end(std::uint32_t index)
{
	if (device_)
		device_->cancel(offered_[index]);
}

} // namespace coop::net::kernel
