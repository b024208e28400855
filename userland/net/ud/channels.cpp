// SPDX-License-Identifier: MIT
// channels.cpp - see channels.hpp. A queue pair that has died all the same recycles itself:
// all its WRs flushed, then reset, ready and posted anew under the same number. What was lost
// meanwhile rpc/chan sends again.
#include "channels.hpp"

#include <algorithm>
#include <cstring>

namespace coop::net::ud
{

channels::channels(coop::ud::endpoint &ep, slab &s, std::uint32_t qkey, bool direct) :
	endpoint_(ep),
	slots_(s),
	qkey_(qkey),
	direct_(direct)
{
	const std::uint32_t mtu = ep.info().mtu & ~7u;
	copies_ = ep.info().sends_copy;
	grh_at_ = s.reserve(COOP_GRH);
	scrap_at_ = s.reserve(ep.info().mtu);
	for (std::uint32_t c = 0; c < COOP_CHAN_CHANNELS; c++) {
		line &l = line_[c];
		l.mtu = c == COOP_CHAN_COMMAND ? std::min<std::uint32_t>(mtu, COOP_CHAN_COMMAND_MTU)
					       : mtu;
		l.slot = (l.mtu + 63) & ~63u;
		l.n_recv = c == COOP_CHAN_COMMAND ? recvs : 2 * recvs;
		l.recv_at = s.reserve(std::size_t{l.n_recv} * l.slot);
		l.send_slot = head_room + l.slot;
		l.send_at = s.reserve(std::size_t{sends} * l.send_slot);
		l.id.resize(sends);
		for (std::uint32_t i = sends; i-- > 0;)
			l.free.push_back(i);
		for (std::uint32_t i = 0; i < l.n_recv; i++)
			l.back.push_back(i);
	}
}

void channels::make()
{
	for (line &l : line_)
		create(l);
	repost();
	for (const line &l : line_)
		if (l.posted == 0)
			throw std::system_error(EIO, std::generic_category(),
						"ud: a queue pair takes no receive requests");
}

void channels::create(line &l)
{
	coop::ud::qp_attr attr{};
	attr.max_send_wr = sends;
	attr.max_recv_wr = l.n_recv;
	attr.max_sge = most_sge;
	attr.qkey = qkey_;
	attr.preferred = true;
	if (&l == &line_[COOP_CHAN_COMMAND])
		attr.inline_bytes = inline_bytes;
	const int qp = endpoint_.create_qp(attr);
	if (qp < 0)
		throw std::system_error(-qp, std::generic_category(),
					"ud: cannot create a queue pair on " +
						endpoint_.info().name + ' ' + endpoint_.refusal());
	l.qp = static_cast<std::uint32_t>(qp);
}

coop_chan_peer_addr channels::self() const
{
	const coop::ud::endpoint_info &info = endpoint_.info();
	coop_chan_peer_addr a{};
	std::copy(info.gid.begin(), info.gid.end(), a.command.gid);
	a.command.lid = info.lid;
	a.command.sl = info.sl;
	a.command.qpn = endpoint_.qpn(line_[COOP_CHAN_COMMAND].qp);
	a.command.qkey = endpoint_.qkey(line_[COOP_CHAN_COMMAND].qp);
	a.data_qpn = endpoint_.qpn(line_[COOP_CHAN_DATA].qp);
	a.data_qkey = endpoint_.qkey(line_[COOP_CHAN_DATA].qp);
	return a;
}

bool channels::take(std::uint32_t channel, const coop::ud::completion &c, std::uint32_t &id,
		    bool &good)
{
	line &l = line_[channel];
	good = c.status == coop::ud::wc_status::success;
	l.dead |= !good;
	const auto slot = static_cast<std::uint32_t>(c.wr_id);
	if (c.is_recv) {
		l.posted--;
		l.back.push_back(slot);
		return false;
	}
	if (copies_)
		return false; // it was over when it was posted
	l.free.push_back(slot);
	id = l.id[slot];
	controls_ -= id == control;
	return id != control;
}

void channels::repost()
{
	for (line &l : line_) {
		if (l.dead)
			recycle(l);
		// A few at a time cost more than all of them.
		if (!l.dead && l.back.size() >= l.n_recv / 8)
			post_recvs(l);
	}
}

void channels::recycle(line &l)
{
	using coop::ud::qp_state;
	// To the error state once more, in case only a send failed; then wait for the rest.
	(void)endpoint_.modify_qp(l.qp, qp_state::error);
	if (l.posted == 0 && endpoint_.modify_qp(l.qp, qp_state::reset) == 0 &&
	    endpoint_.modify_qp(l.qp, qp_state::ready) == 0)
		l.dead = false;
}

void channels::post_recvs(line &l)
{
	std::array<std::array<coop::ud::sge, 3>, batch> list;
	std::array<coop::ud::recv_wr, batch> wr;
	const std::uint32_t rest = endpoint_.info().mtu - l.mtu;
	while (!l.back.empty()) {
		const std::size_t n = std::min<std::size_t>(batch, l.back.size());
		const std::size_t from = l.back.size() - n;
		for (std::size_t i = 0; i < n; i++) {
			const std::uint32_t slot = l.back[from + i];
			list[i] = {{{grh(), COOP_GRH},
				    {slots_.at(l.recv_at + std::size_t{slot} * l.slot), l.mtu},
				    {scrap(), rest}}};
			wr[i] = {slot, list[i].data(), rest ? 3u : 2u};
		}
		const int posted = endpoint_.post_recv(l.qp, {wr.data(), n});
		if (posted <= 0)
			return;
		l.posted += static_cast<std::uint32_t>(posted);
		l.back.erase(l.back.begin() + static_cast<std::ptrdiff_t>(from),
			     l.back.begin() + static_cast<std::ptrdiff_t>(from) + posted);
	}
}

bool channels::full(const coop_chan_tx &next) const
{
	return n_ == batch || line_[next.channel].free.empty() ||
	       (n_ && (next.channel != channel_ || std::memcmp(&next.addr, &to_, sizeof(to_))));
}

void channels::add(const coop_chan_tx &tx, const keyed_memory *payload)
{
	line &l = line_[tx.channel];
	if (full(tx))
		post();
	if (l.free.empty()) {
		over_.push_back({tx.channel, tx.id, false});
		return;
	}
	const std::uint32_t slot = l.free.back();
	l.free.pop_back();
	channel_ = tx.channel;
	to_ = tx.addr;
	std::byte *head = slots_.at(l.send_at + slot * l.send_slot);
	std::memcpy(head, tx.hdr, tx.hdr_len);
	auto &list = sges_[n_];
	std::uint32_t n = 1;
	list[0] = {head, tx.hdr_len};
	if (tx.len) {
		spi::cursor c(*payload, tx.off);
		std::size_t left = tx.len;
		while (left && n < most_sge && direct(*payload)) {
			const std::size_t segment = c.index();
			const auto piece = c.next(left);
			list[n++] = {piece.data(), static_cast<std::uint32_t>(piece.size()),
				     payload->key(segment)};
			left -= piece.size();
		}
		if (left) { // more pieces than a WR has entries for, or not the device's memory
			spi::gather(*payload, tx.off, head + tx.hdr_len, tx.len);
			list[0].length += tx.len;
			n = 1;
		}
	}
	l.id[slot] = tx.id;
	what_[n_++] = {slot, tx.id, n};
}

void channels::post()
{
	if (n_ == 0)
		return;
	std::array<coop::ud::send_wr, batch> wr;
	for (std::uint32_t i = 0; i < n_; i++)
		wr[i] = {what_[i].slot, sges_[i].data(), what_[i].n_sge, 0, false, !copies_, false};
	wr[n_ - 1].more = n_ == 1;
	const int posted = endpoint_.post_send(line_[channel_].qp, to_, {wr.data(), n_});
	line &l = line_[channel_];
	for (std::uint32_t i = 0; i < n_; i++) {
		const bool good = static_cast<int>(i) < posted;
		if (good && !copies_)
			continue; // its completion tells
		l.free.push_back(what_[i].slot);
		over_.push_back({channel_, what_[i].id, good});
	}
	n_ = 0;
}

void channels::send_control(const coop_addr &to, const void *data, std::uint32_t length)
{
	line &l = line_[COOP_CHAN_COMMAND];
	if (controls_ == controls || l.free.empty() || length > l.send_slot)
		return;
	const std::uint32_t slot = l.free.back();
	std::byte *at = slots_.at(l.send_at + slot * l.send_slot);
	std::memcpy(at, data, length);
	const coop::ud::sge one{at, length};
	const coop::ud::send_wr wr{slot, &one, 1, 0, false, !copies_, true};
	l.id[slot] = control;
	if (endpoint_.post_send(l.qp, to, {&wr, 1}) == 1 && !copies_) {
		l.free.pop_back();
		controls_++;
	}
}

} // namespace coop::net::ud
