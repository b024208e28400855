// SPDX-License-Identifier: MIT
// rail.cpp - see rail.hpp.
#include "rail.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <system_error>

#include "reader.hpp"
#include "rpc/base/addr.h"

namespace coop::net::ud
{

namespace
{

constexpr std::uint32_t first_index_room = 64; // QP numbers of a machine

std::string text_of(std::uint32_t ip)
{
	return std::to_string(ip >> 24) + '.' + std::to_string(ip >> 16 & 255) + '.' +
	       std::to_string(ip >> 8 & 255) + '.' + std::to_string(ip & 255);
}

fetch_host::shape bulk_shape(const options &o, const coop::ud::endpoint_info &device)
{
	return {.page_shift = page_shift,
		.fetches = o.fetches,
		.queued = reader::queued(o.fetches),
		.serves = o.serves,
		.serve_qps = 1,
		.serve_qkey = 0x7fffffff,
		.max_sge = bulk_entries(device),
		.fetches_option = "fetches=",
		.serves_option = "serves="};
}

} // namespace

rail::rail(const options &o, unsigned number, memory_keys &k) :
	options_(o),
	number_(number),
	keys_(k)
{
}

int rail::prepare()
{
	if (!options_.verbs)
		return 0;
	coop::ud::verbs_options o = options_.device;
	if (number_)
		o.device = options_.rails[number_ - 1];
	try {
		endpoint_ = coop::ud::make_verbs(o);
	} catch (const std::system_error &e) {
		return -e.code().value();
	}
	coop::ud::endpoint &device = *endpoint_;
	return keys_.open(this, [&device](const segment &s, auto &region, std::uint32_t &key) {
		return device.lend_memory(s.base, s.length, region, key);
	});
}

void rail::claim(identity own)
{
	ip_ = own.ip;
	if (number_ && options_.verbs) {
		ip_ = ipv4_of(endpoint_->info().gid);
	} else if (number_) {
		ip_ = ntohl(::inet_addr(options_.rails[number_ - 1].c_str()));
	}
	if (!ip_)
		throw std::system_error(EADDRNOTAVAIL, std::generic_category(),
					"ud: the device of a rail has no IPv4 address");
	if (number_ && ip_ == own.ip)
		throw std::system_error(EINVAL, std::generic_category(),
					"ud: a rail has the address of the machine");
	resolver_.emplace(options_.key, own, ip_);
}

std::unique_ptr<coop::ud::endpoint> rail::make_soft_roce(identity own) const
{
	coop::ud::soft_roce_options s;
	s.ip = text_of(ip_);
	s.mtu = options_.mtu;
	s.socket_buffer = options_.socket_buffer;
	s.faults = options_.faults;
	s.faults.seed += own.number;
	if (number_ == options_.cut_rail)
		s.faults.cut_after = options_.cut_after;
	// Numbers of its own on this IP; the first two of all belong to fabric management.
	s.first_qpn = own.number * first_index_room + 2;
	s.any_memory = true;
	s.port = options_.udp_port ? options_.udp_port : resolver_->companion_port();
	try {
		return coop::ud::make_soft_roce(s);
	} catch (const std::system_error &e) {
		if (e.code().value() != EADDRINUSE || options_.udp_port)
			throw;
	}
	s.port = 0; // it is told to peers, so any will do
	return coop::ud::make_soft_roce(s);
}

void rail::begin(identity own)
{
	if (!options_.verbs)
		endpoint_ = make_soft_roce(own);
	slab_.emplace(endpoint_->info().mtu, page_bytes);
	channels_.emplace(*endpoint_, *slab_, options_.qkey(), !options_.verbs);
	memory_.emplace(options_, keys_, this, *channels_);
}

void rail::fetch_by(const peers &p, const peer_rails &r)
{
	fetcher_.emplace(options_, *slab_, *channels_, p, r, *memory_, number_, endpoint_->info());
}

void rail::serve(bulk &b)
{
	source_.emplace(*slab_, *channels_, options_.serves, b, *memory_, number_);
	host_.emplace(*endpoint_, *slab_, *fetcher_, *source_, channels_->line(COOP_CHAN_COMMAND),
		      bulk_shape(options_, endpoint_->info()));
}

void rail::make(reader &r, std::uint64_t now)
{
	slab_->make(*endpoint_);
	channels_->make();
	self_ = channels_->self();
	coop_engine_cfg e = host_->config(options_.key);
	e.max_peers = std::min<std::uint32_t>(options_.peers, 1024);
	e.peer_timeout_us = options_.fetch_timeout_us;
	e.silence_us = options_.silence_us();
	e.chunk_pages = 1u << 31; // no placement: the peer to ask is given
	e.policy = coop_policy_sole_source();
	if (options_.page_crc)
		e.flags |= COOP_F_PAGE_CRC;
	host_->make(e, now);
	fetcher_->make(*host_, r);
}

void rail::close()
{
	keys_.close(this);
	endpoint_.reset();
	resolver_.reset();
}

// The work requests have come back, and what waits to be posted is refused.
void rail::lose(reader &r, std::uint64_t now)
{
	channels_->post();
	keys_.close(this);
	endpoint_.reset();
	forget();
	source_->lose();
	r.lose(number_, now);
}

bool rail::changed()
{
	if (!endpoint_)
		return false;
	const auto s = endpoint_->state();
	lost_ = s.lost;
	return std::exchange(changes_, s.changes) != s.changes;
}

bool rail::moved()
{
	const coop_chan_peer_addr now = channels_->self(), before = std::exchange(self_, now);
	if (coop_addr_same(&now.command, &before.command) && now.command.lid == before.command.lid)
		return false;
	coop_engine_set_self(engine(), &now.command);
	return true;
}

} // namespace coop::net::ud
