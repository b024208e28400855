// SPDX-License-Identifier: MIT
// fuzz_soft_roce.cpp - any bytes from the network into soft RoCE's receive path.
//
// The input is a small program: it posts WRs of odd shapes, delivers packets one by one or in
// batches, stops and resets queue pairs. It may correct a packet (queue pair, Q_Key, ICRC) to
// reach the code behind the checks. Each WR has memory of its exact size, so the sanitizer sees
// a byte too far; also, WRs must complete once each and in order.
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "tests/fuzz/check.hpp"
#include "userland/ud/soft_roce_rx.hpp"

namespace
{

using namespace coop::ud;

constexpr std::uint32_t n_qps = 3;
constexpr std::uint32_t max_recv = 8;
constexpr std::uint32_t mtu = 1024;
constexpr std::uint32_t tag = 0x123;

struct input {
	const std::uint8_t *at, *end;

	std::uint32_t number(std::size_t bytes)
	{
		std::uint32_t v = 0;
		for (; bytes && at < end; bytes--)
			v = v << 8 | *at++;
		return v;
	}
	std::vector<std::uint8_t> bytes(std::size_t n)
	{
		n = std::min(n, static_cast<std::size_t>(end - at));
		std::vector<std::uint8_t> out(at, at + n);
		at += n;
		return out;
	}
	bool empty() const { return at == end; }
};

struct owner {
	std::uint64_t wr_id;
	std::vector<std::unique_ptr<std::uint8_t[]>> memory;
};

struct machine {
	soft_roce_core core;
	receiver rx{core};
	std::array<std::deque<owner>, n_qps> posted;
	std::uint64_t next_id = 0;
	flow from{};

	machine()
	{
		core.v6 = false;
		core.mtu = mtu;
		core.first_qpn = tag << soft_roce_core::index_bits;
		for (std::uint32_t i = 0; i < n_qps; i++) {
			const qp_attr attr{1, max_recv, 4, 100 + i};
			core.done.reserve_more(max_recv + 1);
			core.qps.push_back(std::make_unique<queue_pair>(
				i, tag << soft_roce_core::index_bits | i, attr));
		}
		from.src_port = roce_port;
	}

	void post(input &in)
	{
		queue_pair &qp = *core.qps[in.number(1) % n_qps];
		const std::uint32_t n = in.number(1) % 4 + 1;
		owner o{next_id, {}};
		std::array<sge, 4> list;
		for (std::uint32_t i = 0; i < n; i++) {
			const std::uint32_t length = in.number(2) % 1500 + (i ? 0 : 30);
			o.memory.push_back(std::make_unique<std::uint8_t[]>(length));
			list[i] = {o.memory.back().get(), length};
		}
		const std::uint32_t owed = qp.recvs_owed();
		const int error =
			qp.state == qp_state::reset ? -EINVAL : qp.push({next_id, list.data(), n});
		FUZZ_CHECK(owed < max_recv || error);
		if (error)
			return;
		posted[qp.index].push_back(std::move(o));
		next_id++;
		if (qp.state == qp_state::error)
			core.kill(qp);
		else
			rx.posted(qp);
	}

	void make_good(std::uint8_t *p, std::size_t length, std::uint32_t choice, std::uint16_t id)
	{
		if (length < head_imm + icrc_bytes)
			return;
		const std::size_t payload = length - head_imm - icrc_bytes;
		datagram_head h{};
		h.dest_qp = tag << soft_roce_core::index_bits | choice % n_qps;
		h.qkey = 100 + choice % n_qps;
		h.src_qp = 77;
		h.has_imm = choice & 8;
		h.pad = static_cast<std::uint8_t>(payload ? choice >> 4 & 3 : 0);
		encode_head(p, h);
		const std::uint32_t crc = icrc_begin(from, length, id, p, length - icrc_bytes);
		put_icrc(p + length - icrc_bytes, crc);
	}

	void arrive(input &in)
	{
		const std::uint32_t how = in.number(1);
		const std::uint32_t choice = in.number(1);
		const std::size_t segment = in.number(2) % 2200;
		const std::size_t copies = in.number(1) % 40 + 1;
		auto seed = in.bytes(segment ? segment : in.number(2));
		if (seed.empty())
			return;
		seed.resize(segment ? std::max<std::size_t>(segment & ~3u, 4) : seed.size());
		from.v6 = how & 4;

		std::vector<std::uint8_t> packet;
		for (std::size_t k = 0; k < copies && packet.size() + seed.size() <= 65535; k++) {
			packet.insert(packet.end(), seed.begin(), seed.end());
			if (how & 1)
				make_good(packet.data() + packet.size() - seed.size(), seed.size(),
					  choice + (how & 8 && k % 5 == 4),
					  static_cast<std::uint16_t>(k));
		}
		if (how & 16)
			packet.resize(packet.size() -
				      std::min<std::size_t>(choice, packet.size() - 1));

		const auto into =
			how & 2 ? rx.lay_out(packet.data(), std::min(packet.size(), head_imm),
					     packet.size(), seed.size())
				: rx.lay_out();
		// As recvmsg() does.
		std::size_t at = 0;
		for (const iovec &v : into) {
			const std::size_t n = std::min(v.iov_len, packet.size() - at);
			if (n)
				std::memcpy(v.iov_base, packet.data() + at, n);
			at += n;
		}
		FUZZ_CHECK(at == packet.size());
		rx.deliver(from, packet.size(), seed.size());
	}

	void poll()
	{
		for (; !core.done.empty(); core.done.pop()) {
			const completion &c = core.done.front();
			FUZZ_CHECK(c.is_recv && c.qp < n_qps);
			auto &queue = posted[c.qp];
			FUZZ_CHECK(!queue.empty() && queue.front().wr_id == c.wr_id);
			if (c.status == wc_status::success)
				FUZZ_CHECK(c.byte_len >= COOP_GRH && c.byte_len <= COOP_GRH + mtu);
			queue.pop_front();
			core.qps[c.qp]->polled_recv();
		}
	}

	void modify(input &in)
	{
		queue_pair &qp = *core.qps[in.number(1) % n_qps];
		if (in.number(1) & 1)
			core.kill(qp);
		else if (!qp.recvs_owed())
			qp.state = qp_state::ready;
	}
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
	auto m = std::make_unique<machine>();
	input in{data, data + size};
	for (int steps = 0; steps < 200 && !in.empty(); steps++) {
		switch (in.number(1) % 6) {
		case 0:
		case 1:
			m->post(in);
			break;
		case 2:
		case 3:
			m->arrive(in);
			break;
		case 4:
			m->poll();
			break;
		case 5:
			m->modify(in);
			break;
		}
	}
	for (auto &qp : m->core.qps)
		m->core.kill(*qp);
	m->poll();
	for (const auto &queue : m->posted)
		FUZZ_CHECK(queue.empty());
	const auto &s = m->core.stats;
	FUZZ_CHECK(s.rx_packets <= m->next_id);
	return 0;
}
