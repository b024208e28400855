// SPDX-License-Identifier: MIT
// channels.cpp - see channels.hpp.
#include "channels.hpp"

#include <algorithm>
#include <cstring>

namespace coop::net::ud
{

message_qp::shape channels::shape(std::uint32_t channel, const coop::ud::endpoint_info &device,
				  std::uint32_t qkey)
{
	message_qp::shape s{device.mtu & ~7u, 2 * recvs, credits + controls, controls, head_room};
	s.attr.max_sge = std::min(most_sge, device.max_sge);
	s.attr.qkey = qkey;
	s.attr.preferred = true;
	if (channel == COOP_CHAN_COMMAND) {
		s.bytes = std::min<std::uint32_t>(s.bytes, COOP_CHAN_COMMAND_MTU);
		s.recvs = recvs;
		s.attr.inline_bytes = inline_bytes;
	}
	return s;
}

static_assert(COOP_CHAN_COMMAND == 0 && COOP_CHAN_DATA == 1 && COOP_CHAN_CHANNELS == 2);

channels::channels(coop::ud::endpoint &ep, fetch_host::slab &s, std::uint32_t qkey, bool direct) :
	endpoint_(ep),
	line_{{{ep, s, shape(COOP_CHAN_COMMAND, ep.info(), qkey)},
	       {ep, s, shape(COOP_CHAN_DATA, ep.info(), qkey)}}},
	entries_(std::min(most_sge, ep.info().max_sge)),
	direct_(direct)
{
}

void channels::make()
{
	for (message_qp &l : line_)
		l.make();
}

coop_chan_peer_addr channels::self() const
{
	const coop_addr data = line_[COOP_CHAN_DATA].self();
	return {line_[COOP_CHAN_COMMAND].self(), data.qpn, data.qkey};
}

void channels::repost()
{
	for (message_qp &l : line_)
		l.repost();
}

bool channels::full(const coop_chan_tx &next) const
{
	return n_ == batch || line_[next.channel].full() ||
	       (n_ && (next.channel != channel_ || std::memcmp(&next.addr, &to_, sizeof(to_))));
}

void channels::add(const coop_chan_tx &tx, const keyed_memory *payload)
{
	message_qp &l = line_[tx.channel];
	if (full(tx))
		post();
	if (l.full()) {
		over_.push_back({tx.channel, tx.id, false});
		return;
	}
	const std::uint32_t slot = l.claim(tx.id);
	channel_ = tx.channel;
	to_ = tx.addr;
	std::byte *head = l.slot(slot);
	std::memcpy(head, tx.hdr, tx.hdr_len);
	auto &list = sges_[n_];
	std::uint32_t n = 1;
	list[0] = {head, tx.hdr_len};
	if (tx.len) {
		spi::cursor c(*payload, tx.off);
		std::size_t left = tx.len;
		while (left && n < entries_ && direct(*payload)) {
			const std::size_t segment = c.index();
			const auto piece = c.next(left);
			list[n++] = {piece.data(), static_cast<std::uint32_t>(piece.size()),
				     payload->key(segment)};
			left -= piece.size();
		}
		if (left) { // more pieces than a work request has entries for, or no keys
			spi::gather(*payload, tx.off, head + tx.hdr_len, tx.len);
			list[0].length += tx.len;
			n = 1;
		}
	}
	what_[n_++] = {slot, tx.id, n};
}

void channels::post()
{
	if (n_ == 0)
		return;
	message_qp &l = line_[channel_];
	std::array<coop::ud::send_wr, batch> wr;
	for (std::uint32_t i = 0; i < n_; i++)
		wr[i] = {what_[i].slot, sges_[i].data(), what_[i].n_sge, 0,
			 false,         !l.copies(),     false};
	wr[n_ - 1].more = n_ == 1;
	const int posted = endpoint_.post_send(l.qp(), to_, {wr.data(), n_});
	for (std::uint32_t i = 0; i < n_; i++) {
		const bool good = static_cast<int>(i) < posted;
		if (good && !l.copies())
			continue; // its completion tells
		l.release(what_[i].slot);
		over_.push_back({channel_, what_[i].id, good});
	}
	n_ = 0;
}

} // namespace coop::net::ud
