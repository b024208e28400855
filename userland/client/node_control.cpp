// SPDX-License-Identifier: MIT
// node_control.cpp - see node_control.hpp.
#include "userland/client/node_control.hpp"

#include <algorithm>
#include <cstring>

namespace coop::client
{

node_control::node_control(ud::endpoint &ep, const node_memory &memory, std::uint32_t qkey) :
	endpoint_(ep),
	memory_(memory),
	mtu_(ep.info().mtu)
{
	if (const int err = ep.register_memory(memory.base(), memory.size()); err != 0)
		throw std::system_error(-err, std::generic_category(),
					"node: cannot register memory with " + ep.info().name);
	ud::qp_attr attr{};
	attr.max_send_wr = node_memory::control_sends;
	attr.max_recv_wr = node_memory::control_recvs;
	attr.max_sge = 3;
	attr.qkey = qkey;
	const int qp = ep.create_qp(attr);
	if (qp < 0)
		throw std::system_error(-qp, std::generic_category(),
					"node: cannot create the control queue pair: " +
						ep.refusal());
	qp_ = static_cast<std::uint32_t>(qp);
	for (std::uint32_t i = 0; i < node_memory::control_sends; i++)
		unsent_.push_back(i);
	for (std::uint32_t i = 0; i < node_memory::control_recvs; i++)
		back_.push_back(i);
	repost();
	if (posted_ == 0)
		throw std::system_error(EIO, std::generic_category(),
					"node: the control queue pair takes no receive requests");
}

ud::address node_control::self() const
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

void node_control::send(const ud::address &dst, const void *message, std::uint32_t length)
{
	if (unsent_.empty() || length > COOP_CTRL_MAX)
		return;
	const std::uint32_t buffer = unsent_.back();
	std::memcpy(memory_.control_send(buffer), message, length);
	const ud::sge list{memory_.control_send(buffer), length};
	ud::send_wr wr{};
	wr.wr_id = buffer;
	wr.list = &list;
	wr.n_sge = 1;
	wr.signaled = true;
	wr.more = true;
	if (endpoint_.post_send(qp_, dst, {&wr, 1}) == 1)
		unsent_.pop_back();
}

void node_control::take(const ud::completion &c)
{
	if (!c.is_recv) {
		unsent_.push_back(static_cast<std::uint32_t>(c.wr_id));
		dead_ |= c.status != ud::wc_status::success;
		return;
	}
	posted_--;
	back_.push_back(static_cast<std::uint32_t>(c.wr_id));
	dead_ |= c.status != ud::wc_status::success;
}

void node_control::repost()
{
	if (dead_) {
		// To ERR once more, in case only a send failed; then wait for the rest to flush.
		(void)endpoint_.modify_qp(qp_, ud::qp_state::error);
		if (posted_ != 0 || endpoint_.modify_qp(qp_, ud::qp_state::reset) != 0 ||
		    endpoint_.modify_qp(qp_, ud::qp_state::ready) != 0)
			return;
		dead_ = false;
	}
	if (!back_.empty()) {
		std::vector<std::uint32_t> buffers;
		buffers.swap(back_);
		post(buffers);
	}
}

void node_control::post(const std::vector<std::uint32_t> &buffers)
{
	constexpr std::size_t batch = 64;
	ud::sge list[batch][3];
	ud::recv_wr wr[batch];
	for (std::size_t at = 0; at < buffers.size();) {
		const std::size_t n = std::min(batch, buffers.size() - at);
		for (std::size_t i = 0; i < n; i++) {
			const std::uint32_t own = std::min<std::uint32_t>(mtu_, COOP_CTRL_MAX);
			list[i][0] = {memory_.grh(), COOP_GRH};
			list[i][1] = {memory_.control_recv(buffers[at + i]), own};
			list[i][2] = {memory_.scrap(), mtu_ - own};
			wr[i] = {buffers[at + i], list[i], mtu_ > own ? 3u : 2u};
		}
		const int posted = endpoint_.post_recv(qp_, {wr, n});
		if (posted > 0) {
			posted_ += static_cast<std::uint32_t>(posted);
			at += static_cast<std::size_t>(posted);
		}
		if (posted < static_cast<int>(n)) {
			back_.insert(back_.end(), buffers.begin() + static_cast<long>(at),
				     buffers.end());
			return;
		}
	}
}

} // namespace coop::client
