// SPDX-License-Identifier: MIT
// ud_liar.hpp - an enemy of machines of the ud transport: its session of rpc/chan, and its
// sockets to ask resolvers, or to answer them.
//
// It has the fabric key, which is all zero here, and its own address; the play decides what it
// sends.
#pragma once

#include <arpa/inet.h>
#include <map>
#include <memory>
#include <sys/socket.h>

#include "rpc/chan/chan.h"
#include "rpc/chan/wire.h"
#include "rpc/fetch/wire.h"
#include "tests/fuzz/fake_ud.hpp"
#include "tests/fuzz/net_play.hpp"
#include "userland/net/ud/identity.hpp"

namespace fuzz_net
{

using namespace coop::net;

constexpr u32 liar_qpn = 0x777, liar_qkey = 0x1234;
constexpr u8 key[16] = {};

inline gid gid_of(const std::string &ip)
{
	gid g{};
	g[10] = g[11] = 0xff;
	::inet_pton(AF_INET, ip.c_str(), &g[12]);
	return g;
}

// A party that is not an honest machine.
class liar
{
public:
	liar(fake_network &n, std::chrono::microseconds &clock) :
		network_(n),
		clock_(clock),
		ip_(ip_of(2))
	{
		coop_chan_cfg c{};
		c.seed = 77;
		const gid own = here();
		std::copy(own.begin(), own.end(), c.self.gid);
		c.self.qpn = liar_qpn;
		c.self.qkey = liar_qkey;
		c.data_qpn = liar_qpn + 1;
		c.data_qkey = liar_qkey;
		c.mtu[0] = COOP_CHAN_COMMAND_MTU;
		c.mtu[1] = 1024;
		c.credits[0] = c.credits[1] = 16;
		c.max_peers = 4;
		c.max_active = c.max_reorder = 4;
		c.max_sends = 16;
		c.max_receives = 16;
		c.max_segments = 1024;
		c.max_length = 65536;
		const std::size_t size = coop_chan_size(&c);
		FUZZ_CHECK(size);
		memory_ = std::make_unique<u64[]>(size / 8);
		chan_ = coop_chan_create(memory_.get(), size, &c, now());
		self_ = c.self;
	}

	gid here() const { return gid_of(ip_); }
	const coop_addr &self() const { return self_; }
	u64 now() const { return static_cast<u64>(clock_.count()); }

	void send(const coop_chan_peer_addr &to, u64 tag, std::vector<u8> text, u8 flags)
	{
		const s64 peer = coop_chan_open(chan_, &to, 1, now());
		if (peer <= 0)
			return;
		coop_chan_msg m{};
		m.peer = static_cast<u32>(peer);
		m.flags = flags & COOP_CHAN_BY_DATA;
		m.cookie = next_++;
		m.tag = tag;
		m.length = static_cast<u32>(text.size());
		u32 id;
		if (coop_chan_send(chan_, &m, now(), &id) == 0)
			texts_[m.cookie] = std::move(text);
	}
	void hear(const datagram &d)
	{
		__le32 magic;
		if (d.bytes.size() < 8)
			return;
		std::memcpy(&magic, d.bytes.data(), 4);
		coop_msg m;
		if (le32_to_cpu(magic) == COOP_WIRE_MAGIC) {
			if (coop_wire_decode(&m, key, d.bytes.data(),
					     static_cast<u32>(d.bytes.size())) == COOP_DECODE_OK &&
			    m.command == COOP_CMD_REQUEST)
				request_ = std::make_unique<coop_msg>(m);
			return;
		}
		coop_chan_dgram rx{};
		rx.channel = d.to.qpn - liar_qpn;
		rx.buf = d.bytes.data();
		rx.len = static_cast<u32>(d.bytes.size());
		std::copy(d.from.begin(), d.from.end(), rx.src.gid);
		rx.src.qpn = d.src_qp;
		coop_chan_in in;
		if (coop_chan_rx(chan_, &rx, now(), &in) == COOP_CHAN_PLACE)
			coop_chan_place(chan_, 1, now(), &in);
		pump();
	}
	void pump()
	{
		coop_chan_tx tx;
		coop_chan_expire(chan_, now());
		for (coop_chan_ev ev; coop_chan_next_event(chan_, now(), &ev);)
			if (ev.kind == COOP_CHAN_EV_SENT)
				texts_.erase(ev.cookie);
		for (int n = 64; n && coop_chan_next_tx(chan_, now(), &tx); n--) {
			datagram d{here(), liar_qpn + tx.channel, tx.addr, false, 0, {}};
			d.bytes.assign(tx.hdr, tx.hdr + tx.hdr_len);
			if (tx.len) {
				const auto &t = texts_.at(tx.cookie);
				d.bytes.insert(d.bytes.end(), t.begin() + tx.off,
					       t.begin() + tx.off + tx.len);
			}
			network_.send(std::move(d));
			coop_chan_tx_done(chan_, tx.channel, tx.id, 0, now());
		}
	}
	/// The last request to the enemy.
	const coop_msg *request() const { return request_.get(); }

private:
	fake_network &network_;
	std::chrono::microseconds &clock_;
	const std::string ip_;
	coop_addr self_;
	std::unique_ptr<u64[]> memory_;
	coop_chan *chan_;
	std::map<u64, std::vector<u8>> texts_;
	u64 next_ = 1;
	std::unique_ptr<coop_msg> request_;
};

// A UDP socket to talk to resolvers.
class question_socket
{
public:
	explicit question_socket(unsigned n)
	{
		fd_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		const sockaddr_in a = at(n, 0);
		FUZZ_CHECK(::bind(fd_, reinterpret_cast<const sockaddr *>(&a), sizeof(a)) == 0);
	}
	question_socket(unsigned n, u16 port)
	{
		fd_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		const sockaddr_in a = at(n, port);
		FUZZ_CHECK(::bind(fd_, reinterpret_cast<const sockaddr *>(&a), sizeof(a)) == 0);
	}
	~question_socket() { ::close(fd_); }
	static sockaddr_in at(unsigned n, u16 port)
	{
		sockaddr_in a{};
		a.sin_family = AF_INET;
		a.sin_port = htons(port);
		::inet_pton(AF_INET, ip_of(n).c_str(), &a.sin_addr);
		return a;
	}
	/// The port where a machine looks for a resolver first.
	static u16 port_of(unsigned n)
	{
		return static_cast<u16>(16384 + ud::identity::of(address_of(n)).number % 8192);
	}
	void send(const std::vector<u8> &p, unsigned n)
	{
		const sockaddr_in a = at(n, port_of(n));
		(void)::sendto(fd_, p.data(), p.size(), MSG_DONTWAIT,
			       reinterpret_cast<const sockaddr *>(&a), sizeof(a));
	}
	bool take(std::vector<u8> &p)
	{
		p.resize(128);
		const ssize_t n = ::recv(fd_, p.data(), p.size(), MSG_DONTWAIT);
		p.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
		return n > 0;
	}

private:
	int fd_;
};

} // namespace fuzz_net
