// SPDX-License-Identifier: MIT
// attack_ud.cpp - an enemy on the fabric of the ud transport.
//
// It has the key (there is none here, so MACs are checksums), asks for the queue pairs as any
// peer may, and sends: noise; headers of both protocols with numbers out of range under a correct
// MAC; requests for guessed operations. The seed decides all of it.
#include "attack_ud.hpp"

#include <arpa/inet.h>
#include <cstring>
#include <random>

#include "rpc/chan/wire.h"
#include "rpc/fetch/wire.h"
#include "userland/net/ud/resolver.hpp"
#include "userland/ud/endpoint.hpp"

namespace conformance
{

namespace
{

using namespace coop::net;
using namespace std::chrono_literals;

class enemy
{
public:
	enemy(std::uint64_t seed, const std::string &from) : random_(seed), from_(from)
	{
		coop::ud::soft_roce_options o;
		o.ip = from;
		o.port = 0;
		o.any_memory = true;
		ep_ = coop::ud::make_soft_roce(o);
		qp_ = static_cast<std::uint32_t>(ep_->create_qp({16, 0, 2, 1}));
	}
	bool find(const net::address &a)
	{
		in_addr own;
		::inet_pton(AF_INET, from_.c_str(), &own);
		ud::resolver r({}, {ntohl(own.s_addr), 5});
		const auto begin = clock::now();
		r.ask(0, ud::identity::of(a), 1);
		for (ud::resolver::result found; clock::now() - begin < 5s;) {
			const auto us = static_cast<std::uint64_t>(
				std::chrono::duration_cast<std::chrono::microseconds>(clock::now() -
										      begin)
					.count());
			r.progress(us);
			r.expire(us);
			if (r.next(found)) {
				to_ = found.where;
				return found.status == 0;
			}
		}
		return false;
	}
	void strike()
	{
		std::array<std::uint8_t, 4096> b;
		std::uint32_t n = 0;
		const std::array<std::uint8_t, 16> key{};
		switch (pick(4)) {
		case 0:
			n = pick(4097);
			scramble(b.data(), n);
			break;
		case 1: {
			coop_chan_packet m;
			scramble(&m, sizeof(m));
			m.version = COOP_CHAN_VERSION;
			m.type = pick(2) ? 1 + pick(4) : 0x81 + pick(5);
			m.flags &= COOP_CHAN_W_KNOWN & ~COOP_CHAN_W_SEALED;
			m.n_map = pick(COOP_CHAN_MAP_WORDS);
			m.payload_len = pick(256);
			m.hello.command_qpn = ep_->qpn(qp_);
			m.hello.data_qpn = ep_->qpn(qp_);
			if (pick(2)) {
				m.dst_session = 0;
				m.flags = COOP_CHAN_W_OPEN;
				m.length = m.payload_len;
				m.hello.mtu[0] = 768;
				m.hello.mtu[1] = 4096;
				m.hello.window = 4096;
			}
			n = coop_chan_encode(&m, key.data(), b.data());
			scramble(b.data() + n, m.payload_len);
			n += m.payload_len;
			break;
		}
		default: {
			static coop_msg m;
			scramble(&m, sizeof(m));
			constexpr std::uint8_t commands[] = {1, 2, 3, 0x81, 0x82, 0x83, 0x84, 0x85};
			m.version = COOP_WIRE_VERSION;
			m.command = commands[pick(8)];
			m.hops = COOP_WIRE_HOPS;
			m.flags = 0;
			m.n_segs = pick(COOP_MAX_SEGS);
			if (m.command == COOP_CMD_REQUEST) {
				auto &q = m.u.request;
				std::memcpy(q.reply.gid, ep_->info().gid.data(), 16);
				q.reply.qpn = ep_->qpn(qp_);
				q.data = q.reply;
				q.page_shift = 12;
				q.mtu = 4096;
				q.options &= COOP_OPT_KNOWN;
				q.n_ext = 1 + pick(2);
				for (auto &e : q.ext)
					e = {pick(100), 1 + pick(64), 0};
			} else if (m.command == COOP_CMD_COMMIT) {
				m.u.commit.n_sums = pick(COOP_MAX_PAGES);
				m.u.commit.tags = pick(2);
			}
			n = coop_wire_encode(&m, key.data(), b.data(), COOP_CTRL_MAX);
			break;
		}
		}
		if (n && pick(4) == 0)
			b[pick(n)] ^= static_cast<std::uint8_t>(1u << pick(8));
		coop_addr to = to_.command;
		if (pick(2)) {
			to.qpn = to_.data_qpn;
			to.qkey = to_.data_qkey;
		} else if (pick(16) == 0) {
			to.qpn += pick(16); // another queue pair of this machine
		}
		const coop::ud::sge one{b.data(), n};
		const coop::ud::send_wr wr{0,    &one, n ? 1u : 0u, pick(1u << 31), pick(2) != 0,
					   false};
		(void)ep_->post_send(qp_, to, {&wr, 1});
	}

private:
	std::uint32_t pick(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }
	void scramble(void *p, std::size_t n)
	{
		auto *b = static_cast<std::uint8_t *>(p);
		for (std::size_t i = 0; i < n; i++)
			b[i] = static_cast<std::uint8_t>(random_());
	}

	std::mt19937_64 random_;
	const std::string from_;
	std::unique_ptr<coop::ud::endpoint> ep_;
	std::uint32_t qp_;
	coop_chan_peer_addr to_{};
};

} // namespace

bool attack_ud(const net::address &a, std::uint64_t seed, const std::string &from)
{
	enemy e(seed, from);
	if (!e.find(a))
		return false;
	for (int i = 0; i < 64; i++)
		e.strike();
	return true;
}

} // namespace conformance
