// SPDX-License-Identifier: MIT
// message_qp.cpp - see message_qp.hpp.
#include "userland/fetch-host/message_qp.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace coop::fetch_host
{

message_qp::message_qp(ud::endpoint &ep, slab &s, const shape &what) :
	endpoint_(ep),
	slab_(s),
	shape_(what),
	copies_(ep.info().sends_copy),
	recv_bytes_((what.bytes + 63) & ~63u),
	send_bytes_(what.head_room + recv_bytes_),
	recv_at_(s.reserve(what.recvs * recv_bytes_)),
	send_at_(s.reserve(what.sends * send_bytes_)),
	tag_(what.sends)
{
	shape_.attr.max_send_wr = what.sends;
	shape_.attr.max_recv_wr = what.recvs;
	for (std::uint32_t i = what.sends; i-- > 0;)
		free_.push_back(i);
	for (std::uint32_t i = 0; i < what.recvs; i++)
		back_.push_back(i);
}

void message_qp::make()
{
	const int qp = endpoint_.create_qp(shape_.attr);
	if (qp < 0)
		throw std::system_error(-qp, std::generic_category(),
					"cannot create a queue pair for messages on " +
						endpoint_.info().name + ' ' + endpoint_.refusal());
	qp_ = static_cast<std::uint32_t>(qp);
	repost();
	if (posted_ == 0)
		throw std::system_error(EIO, std::generic_category(),
					"the queue pair for messages takes no receive requests");
}

ud::address message_qp::self() const
{
	const ud::endpoint_info &info = endpoint_.info();
	ud::address a{};
	std::copy(info.gid.begin(), info.gid.end(), a.gid);
	a.lid = info.lid;
	a.sl = info.sl;
	a.qpn = endpoint_.qpn(qp_);
	a.qkey = endpoint_.qkey(qp_);
	return a;
}

ud::address message_qp::sender(const ud::completion &c)
{
	ud::address a{};
	std::copy(c.src_gid.begin(), c.src_gid.end(), a.gid);
	a.lid = c.src_lid;
	a.sl = c.sl;
	a.qpn = c.src_qp;
	return a;
}

void message_qp::send(const ud::address &to, const void *message, std::uint32_t length)
{
	if (full() || own_ == shape_.own_sends || length > send_bytes_)
		return;
	const std::uint32_t i = claim(no_tag);
	own_++;
	std::memcpy(slot(i), message, length);
	const ud::sge one{slot(i), length};
	const ud::send_wr wr{i, &one, 1, 0, false, !copies_, true};
	if (endpoint_.post_send(qp_, to, {&wr, 1}) != 1 || copies_)
		release(i);
}

void message_qp::recycle()
{
	// To the error state once more, in case only a send failed; then wait for the rest.
	(void)endpoint_.modify_qp(qp_, ud::qp_state::error);
	if (posted_ == 0 && endpoint_.modify_qp(qp_, ud::qp_state::reset) == 0 &&
	    endpoint_.modify_qp(qp_, ud::qp_state::ready) == 0)
		dead_ = false;
}

void message_qp::post_recvs()
{
	constexpr std::size_t batch = 32;
	std::array<std::array<ud::sge, 3>, batch> list;
	std::array<ud::recv_wr, batch> wr;
	const std::uint32_t rest = endpoint_.info().mtu - shape_.bytes;
	while (!back_.empty()) {
		const std::size_t n = std::min(batch, back_.size());
		const std::size_t from = back_.size() - n;
		for (std::size_t i = 0; i < n; i++) {
			const std::uint32_t slot = back_[from + i];
			list[i] = {{{slab_.grh(), COOP_GRH},
				    {receive_slot(slot), shape_.bytes},
				    {slab_.scrap(), rest}}};
			wr[i] = {slot, list[i].data(), rest != 0 ? 3u : 2u};
		}
		const int posted = endpoint_.post_recv(qp_, {wr.data(), n});
		if (posted <= 0)
			return;
		posted_ += static_cast<std::uint32_t>(posted);
		const auto first = back_.begin() + static_cast<std::ptrdiff_t>(from);
		back_.erase(first, first + posted);
	}
}

} // namespace coop::fetch_host
