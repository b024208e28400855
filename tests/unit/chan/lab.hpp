// SPDX-License-Identifier: MIT
// lab.hpp - two rpc/chan engines and a network that the test drives.
//
// Datagrams from an engine stay in `sent` until the test delivers, drops or repeats them.
// Received messages go into vectors, or are refused as the test says.
#pragma once

#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "rpc/chan/chan.h"
#include "rpc/chan/wire.h"

namespace coop::test
{

inline coop_addr chan_address(u32 node, u32 qpn)
{
	coop_addr a{};
	a.gid[10] = a.gid[11] = 0xff;
	a.gid[12] = 10;
	a.gid[14] = static_cast<u8>((node + 1) >> 8);
	a.gid[15] = static_cast<u8>(node + 1);
	a.qpn = qpn;
	a.qkey = 0x77;
	return a;
}

constexpr u32 lab_command = 0x21, lab_data = 0x22;
constexpr u8 lab_key[16] = {9, 8, 7};

inline coop_chan_cfg lab_cfg(u32 node)
{
	coop_chan_cfg cfg{};
	cfg.seed = 100 + node;
	std::memcpy(cfg.key, lab_key, sizeof(lab_key));
	cfg.self = chan_address(node, lab_command);
	cfg.data_qpn = lab_data;
	cfg.data_qkey = 0x77;
	cfg.mtu[0] = 512;
	cfg.mtu[1] = 1024;
	cfg.credits[0] = cfg.credits[1] = 64;
	cfg.max_peers = 8;
	cfg.max_active = 8;
	cfg.max_reorder = 8;
	cfg.max_sends = 64;
	cfg.max_receives = 16;
	cfg.max_segments = 8192;
	cfg.max_length = 1u << 20;
	cfg.quiet_us = 1000;
	cfg.first_seq = 1000;
	cfg.flags = COOP_CHAN_F_FIRST_SEQ;
	return cfg;
}

struct lab_datagram {
	u32 from, channel, id, to_qpn, to_qkey;
	u16 to_lid;
	u32 to_gid; // the node, as chan_address() numbers it
	coop_chan_packet p;
	std::vector<u8> bytes;
};

struct lab_node {
	explicit lab_node(u32 n, const coop_chan_cfg &c, u64 now) : index(n), cfg(c)
	{
		const std::size_t size = coop_chan_size(&cfg);
		if (!size)
			throw std::invalid_argument("configuration out of range");
		memory = std::make_unique<u64[]>(size / 8);
		e = coop_chan_create(memory.get(), size, &cfg, now);
	}

	u32 index;
	coop_chan_cfg cfg;
	std::unique_ptr<u64[]> memory;
	coop_chan *e = nullptr;
	std::map<u64, std::string> payload; // of sends, by cookie
	std::map<u64, std::string> placed;  // of receives, by cookie
	std::vector<coop_chan_ev> events;
	u64 next_cookie = 1;
	u32 refuse = 0; // enum coop_chan_refusal; 0: place
	bool ignore = false;
	u32 asked = 0;     // number of PLACE verdicts
	u32 receive = 0;   // id of the last placed receive
	bool keep = false; // the network keeps datagrams: the test calls tx_done

	struct coop_chan_stats stats() const
	{
		struct coop_chan_stats s;
		coop_chan_stats(e, &s);
		return s;
	}
	const coop_chan_ev *event(coop_chan_ev_kind kind) const
	{
		for (const auto &ev : events)
			if (ev.kind == kind)
				return &ev;
		return nullptr;
	}
	u32 count(coop_chan_ev_kind kind) const
	{
		u32 n = 0;
		for (const auto &ev : events)
			n += ev.kind == kind;
		return n;
	}
};

class chan_lab
{
public:
	explicit chan_lab(const coop_chan_cfg &a = lab_cfg(0), const coop_chan_cfg &b = lab_cfg(1))
	{
		node.emplace_back(std::make_unique<lab_node>(0, a, now));
		node.emplace_back(std::make_unique<lab_node>(1, b, now));
		now += 10000; // past the quiet time of both engines
	}

	lab_node &a() { return *node[0]; }
	lab_node &b() { return *node[1]; }

	u32 open(u32 from, u32 to, bool data_known = true)
	{
		coop_chan_peer_addr addr{};
		addr.command =
			to < node.size() ? node[to]->cfg.self : chan_address(to, lab_command);
		if (data_known) {
			addr.data_qpn = lab_data;
			addr.data_qkey = to < node.size() ? node[to]->cfg.data_qkey : 0x77;
		}
		return static_cast<u32>(coop_chan_open(node[from]->e, &addr, to, now));
	}

	// Queues a message; returns its id, or 0 and *err if the engine refuses it.
	u32 send(u32 from, u32 to, const std::string &text, u32 flags = 0, u64 tag = 5,
		 int *err = nullptr)
	{
		lab_node &n = *node[from];
		coop_chan_msg m{};
		m.peer = open(from, to, data_known);
		m.flags = flags;
		m.cookie = n.next_cookie++;
		m.tag = tag;
		m.length = static_cast<u32>(text.size());
		n.payload[m.cookie] = text;
		u32 id = 0;
		const int e = coop_chan_send(n.e, &m, now, &id);
		if (err)
			*err = e;
		return e ? 0 : id;
	}

	// Takes an engine's datagrams and events.
	std::vector<lab_datagram> pull(u32 from)
	{
		lab_node &n = *node[from];
		std::vector<lab_datagram> out;
		coop_chan_tx tx;
		take_events(from);
		while (coop_chan_next_tx(n.e, now, &tx)) {
			lab_datagram d{};
			d.from = from;
			d.channel = tx.channel;
			d.id = tx.id;
			d.to_qpn = tx.addr.qpn;
			d.to_qkey = tx.addr.qkey;
			d.to_lid = tx.addr.lid;
			d.to_gid = tx.addr.gid[15] - 1u;
			const u8 *const at = tx.len ? reinterpret_cast<const u8 *>(
							      n.payload.at(tx.cookie).data()) +
							      tx.off
						    : nullptr;
			if (tx.seal) {
				const coop_chan_piece piece{at, tx.len};
				coop_chan_seal(n.e, &tx, &piece, 1);
			}
			d.bytes.assign(tx.hdr, tx.hdr + tx.hdr_len);
			d.bytes.insert(d.bytes.end(), at, at + tx.len);
			if (coop_chan_decode(&d.p, n.cfg.key, d.bytes.data(),
					     static_cast<u32>(d.bytes.size()),
					     false) != COOP_CHAN_D_OK)
				throw std::logic_error("an engine sent an invalid datagram");
			out.push_back(std::move(d));
			if (!n.keep)
				coop_chan_tx_done(n.e, tx.channel, tx.id, 0, now);
		}
		take_events(from);
		return out;
	}

	void take_events(u32 i)
	{
		coop_chan_ev ev;
		while (coop_chan_next_event(node[i]->e, now, &ev))
			node[i]->events.push_back(ev);
	}

	// Where a node's datagrams come from.
	coop_addr source(u32 from, u32 channel) const
	{
		coop_addr a = chan_address(from, channel ? lab_data : lab_command);
		a.lid = node[from]->cfg.self.lid;
		return a;
	}

	// Drops it, as every device does, if the LID (the UDP port of soft RoCE) or the Q_Key is
	// wrong.
	coop_chan_verdict deliver(const lab_datagram &d, u32 to)
	{
		const coop_chan_cfg &cfg = node[to]->cfg;
		if (d.to_lid != cfg.self.lid ||
		    d.to_qkey != (d.to_qpn == lab_data ? cfg.data_qkey : cfg.self.qkey))
			return COOP_CHAN_DONE;
		return deliver(d.bytes, d.channel, source(d.from, d.channel), to);
	}

	coop_chan_verdict deliver(const std::vector<u8> &bytes, u32 channel, const coop_addr &src,
				  u32 to)
	{
		lab_node &n = *node[to];
		coop_chan_dgram rx{};
		rx.channel = channel;
		rx.buf = bytes.data();
		rx.len = static_cast<u32>(bytes.size());
		rx.src = src;
		coop_chan_in in;
		const coop_chan_verdict first = coop_chan_rx(n.e, &rx, now, &in);
		coop_chan_verdict v = first;
		if (v == COOP_CHAN_PLACE) {
			++n.asked;
			if (n.ignore) {
				coop_chan_ignore(n.e);
			} else if (n.refuse) {
				coop_chan_refuse(n.e, static_cast<coop_chan_refusal>(n.refuse),
						 now);
			} else {
				const u64 cookie = n.next_cookie++;
				n.placed[cookie].assign(in.length, '?');
				coop_chan_place(n.e, cookie, now, &in);
				n.receive = in.receive;
				v = COOP_CHAN_COPY;
			}
		}
		if (v == COOP_CHAN_COPY)
			std::memcpy(&n.placed.at(in.cookie)[0] + in.offset, bytes.data() + in.from,
				    in.len);
		take_events(to);
		return first;
	}

	// Delivers all datagrams of both engines until both are silent.
	void settle()
	{
		for (bool more = true; more;) {
			more = false;
			for (u32 i = 0; i < 2; ++i)
				for (const auto &d : pull(i)) {
					deliver(d, 1 - i);
					more = true;
				}
		}
	}

	// Advances the clock in one step.
	void wait(u64 us)
	{
		now += us;
		for (u32 i = 0; i < 2; ++i) {
			coop_chan_expire(node[i]->e, now);
			take_events(i);
		}
	}

	// Settles and advances the clock until neither engine has a deadline within the limit.
	void run(u64 limit)
	{
		const u64 end = now + limit;
		for (;;) {
			settle();
			const u64 at =
				std::min(coop_chan_deadline(a().e), coop_chan_deadline(b().e));
			if (at > end)
				return;
			wait(at > now ? at - now : 0);
		}
	}

	// Establishes a session with one message each way.
	void greet()
	{
		send(0, 1, "hello");
		run(1000);
		send(1, 0, "hello");
		run(1000);
		for (auto &n : node)
			n->events.clear();
	}

	// The node restarts at the same address.
	void restart(u32 i)
	{
		coop_chan_cfg cfg = node[i]->cfg;
		cfg.seed += 1000;
		node[i] = std::make_unique<lab_node>(i, cfg, now);
	}

	u64 now = 1000000;
	bool data_known = true;
	std::vector<std::unique_ptr<lab_node>> node;
};

// A datagram with a changed header and a correct MAC, as a peer with the key may send.
template <class change> std::vector<u8> forged(const lab_datagram &d, const change &how)
{
	coop_chan_packet p = d.p;
	const std::vector<u8> payload(d.bytes.begin() + p.header_len, d.bytes.end());
	how(p);
	std::vector<u8> out(COOP_CHAN_COMMAND_MTU);
	out.resize(coop_chan_encode(&p, lab_key, out.data()));
	out.insert(out.end(), payload.begin(), payload.end());
	return out;
}

} // namespace coop::test
