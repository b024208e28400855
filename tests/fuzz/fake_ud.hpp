// SPDX-License-Identifier: MIT
// fake_ud.hpp - UD end points whose network is a list of datagrams.
//
// They behave as endpoint.hpp says hardware does, and are stricter: they read memory of a send
// as late as allowed, write memory of a receive until its WR has completed, and an end point
// that needs registered memory refuses all other.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "tests/fuzz/check.hpp"
#include "userland/ud/endpoint.hpp"

namespace fuzz_net
{

using gid = std::array<u8, 16>;

struct datagram {
	gid from;
	u32 src_qp;
	coop_addr to;
	bool has_imm;
	u32 imm;
	std::vector<u8> bytes;
};

/// The network between the end points.
struct fake_network {
	static constexpr std::size_t most = 2048;

	std::deque<datagram> under_way;
	/// Sees every datagram that an end point sends.
	std::function<void(const datagram &)> tap;

	void send(datagram d)
	{
		if (tap)
			tap(d);
		if (under_way.size() < most)
			under_way.push_back(std::move(d));
	}
};

class fake_endpoint : public coop::ud::endpoint
{
public:
	struct shape {
		gid where;
		u32 mtu, first_qpn;
		bool any_memory, copies;
	};

	fake_endpoint(fake_network &n, const shape &s) : network_(n), shape_(s)
	{
		info_.gid = s.where;
		info_.sends_copy = s.copies;
		info_.mtu = s.mtu;
		info_.max_qps = 256;
		info_.max_recv_wr = 4096;
		info_.max_sge = 16;
		info_.receive_window = 256u << 10;
		info_.name = "fake";
		fd_ = ::eventfd(0, EFD_CLOEXEC);
	}
	~fake_endpoint() override { ::close(fd_); }

	const coop::ud::endpoint_info &info() const override { return info_; }
	int register_memory(void *base, std::size_t length) override
	{
		base_ = static_cast<u8 *>(base);
		length_ = length;
		return 0;
	}
	int create_qp(const coop::ud::qp_attr &a) override
	{
		qps_.push_back({a, {}, {}, 0, coop::ud::qp_state::ready});
		return static_cast<int>(qps_.size() - 1);
	}
	u32 qpn(u32 qp) const override { return shape_.first_qpn + qp; }
	u32 qkey(u32 qp) const override { return qps_[qp].attr.qkey; }
	u32 n_qps() const { return static_cast<u32>(qps_.size()); }

	int modify_qp(u32 index, coop::ud::qp_state to) override
	{
		using coop::ud::qp_state;
		pair &q = qps_.at(index);
		if (to == qp_state::error) {
			q.state = to;
			drain(index);
			return 0;
		}
		if (q.owed || !q.recvs.empty() || !q.sends.empty())
			return -EBUSY;
		q.state = to;
		return 0;
	}
	int post_recv(u32 index, std::span<const coop::ud::recv_wr> wrs) override
	{
		pair &q = qps_.at(index);
		if (q.state == coop::ud::qp_state::reset)
			return -EINVAL;
		int n = 0;
		for (const coop::ud::recv_wr &w : wrs) {
			if (q.recvs.size() >= q.attr.max_recv_wr)
				break;
			FUZZ_CHECK(w.n_sge && w.n_sge <= q.attr.max_sge);
			FUZZ_CHECK(w.list[0].length >= COOP_GRH);
			if (!known(w.list, w.n_sge))
				return n ? n : -EFAULT;
			q.recvs.push_back({w.wr_id, {w.list, w.n_sge}});
			n++;
		}
		if (q.state == coop::ud::qp_state::error)
			drain(index);
		return n ? n : -ENOMEM;
	}
	int post_send(u32 index, const coop::ud::address &to,
		      std::span<const coop::ud::send_wr> wrs) override
	{
		pair &q = qps_.at(index);
		if (q.state == coop::ud::qp_state::reset)
			return -EINVAL;
		int n = 0;
		for (const coop::ud::send_wr &w : wrs) {
			if (q.sends.size() >= q.attr.max_send_wr)
				break;
			FUZZ_CHECK(w.n_sge <= q.attr.max_sge);
			if (!known(w.list, w.n_sge))
				return n ? n : -EFAULT;
			q.sends.push_back(
				{w.wr_id, {w.list, w.n_sge}, to, w.imm, w.has_imm, w.signaled});
			n++;
		}
		if (q.state == coop::ud::qp_state::error)
			drain(index);
		else if (shape_.copies)
			transmit();
		return n ? n : -ENOMEM;
	}
	std::size_t poll(std::span<coop::ud::completion> out) override
	{
		transmit();
		const std::size_t n = std::min(out.size(), done_.size());
		for (std::size_t i = 0; i < n; i++) {
			out[i] = done_.front();
			done_.pop_front();
			qps_[out[i].qp].owed--;
		}
		return n;
	}
	int fd() const override { return fd_; }
	bool arm() override
	{
		transmit();
		return done_.empty();
	}
	coop::ud::endpoint_stats stats() const override { return {}; }
	void reset_stats() override {}

	/// Receives a datagram as a device does.
	void arrive(const datagram &d)
	{
		const u32 index = d.to.qpn - shape_.first_qpn;
		if (index >= qps_.size())
			return;
		pair &q = qps_[index];
		if (q.state != coop::ud::qp_state::ready || d.to.qkey != q.attr.qkey ||
		    q.recvs.empty() || d.bytes.size() > shape_.mtu)
			return;
		const receive r = q.recvs.front();
		q.recvs.pop_front();
		coop::ud::completion c{};
		c.wr_id = r.wr_id;
		c.qp = index;
		c.is_recv = true;
		std::size_t room = 0;
		for (const coop::ud::sge &s : r.list)
			room += s.length;
		if (COOP_GRH + d.bytes.size() > room) {
			c.status = coop::ud::wc_status::length_error;
			push(c);
			q.state = coop::ud::qp_state::error;
			drain(index);
			return;
		}
		std::size_t skip = COOP_GRH, at = 0;
		for (const coop::ud::sge &s : r.list) {
			const std::size_t off = std::min<std::size_t>(skip, s.length);
			skip -= off;
			const std::size_t n = std::min(s.length - off, d.bytes.size() - at);
			if (n)
				std::memcpy(static_cast<u8 *>(s.addr) + off, d.bytes.data() + at,
					    n);
			at += n;
		}
		c.byte_len = static_cast<u32>(COOP_GRH + d.bytes.size());
		c.has_imm = d.has_imm;
		c.imm = d.imm;
		c.has_gid = true;
		c.src_gid = d.from;
		c.src_qp = d.src_qp;
		push(c);
	}

private:
	/// As many entries as any queue pair here needs.
	struct pieces {
		std::array<coop::ud::sge, 16> at;
		u32 n;
		pieces(const coop::ud::sge *list, u32 count) : n(count)
		{
			FUZZ_CHECK(n <= at.size());
			std::copy(list, list + n, at.begin());
		}
		const coop::ud::sge *begin() const { return at.data(); }
		const coop::ud::sge *end() const { return at.data() + n; }
	};
	struct receive {
		std::uint64_t wr_id;
		pieces list;
	};
	struct send {
		std::uint64_t wr_id;
		pieces list;
		coop_addr to;
		u32 imm;
		bool has_imm, signaled;
	};
	struct pair {
		coop::ud::qp_attr attr;
		std::deque<receive> recvs;
		std::deque<send> sends;
		u32 owed; // completions not yet polled
		coop::ud::qp_state state;
	};

	bool known(const coop::ud::sge *list, u32 n) const
	{
		for (u32 i = 0; i < n && !shape_.any_memory; i++) {
			const auto *p = static_cast<const u8 *>(list[i].addr);
			if (p < base_ || p + list[i].length > base_ + length_)
				return false;
		}
		return true;
	}
	void push(const coop::ud::completion &c)
	{
		done_.push_back(c);
		qps_[c.qp].owed++;
	}
	void transmit()
	{
		for (u32 i = 0; i < qps_.size(); i++) {
			while (!qps_[i].sends.empty()) {
				const send s = qps_[i].sends.front();
				qps_[i].sends.pop_front();
				datagram d{shape_.where, qpn(i), s.to, s.has_imm, s.imm, {}};
				for (const coop::ud::sge &g : s.list) {
					const auto *p = static_cast<const u8 *>(g.addr);
					d.bytes.insert(d.bytes.end(), p, p + g.length);
				}
				if (d.bytes.size() <= shape_.mtu)
					network_.send(std::move(d));
				coop::ud::completion c{};
				c.wr_id = s.wr_id;
				c.qp = i;
				if (s.signaled)
					push(c);
			}
		}
	}
	void drain(u32 index)
	{
		pair &q = qps_[index];
		coop::ud::completion c{};
		c.qp = index;
		c.status = coop::ud::wc_status::flushed;
		for (const send &s : std::exchange(q.sends, {})) {
			c.wr_id = s.wr_id;
			push(c);
		}
		c.is_recv = true;
		for (const receive &r : std::exchange(q.recvs, {})) {
			c.wr_id = r.wr_id;
			push(c);
		}
	}

	fake_network &network_;
	const shape shape_;
	coop::ud::endpoint_info info_{};
	int fd_;
	u8 *base_ = nullptr;
	std::size_t length_ = 0;
	std::vector<pair> qps_;
	std::deque<coop::ud::completion> done_;
};

} // namespace fuzz_net
