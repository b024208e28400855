// SPDX-License-Identifier: MIT
// chan_world.cpp - the nodes, the fabric between them and the oracle; see chan_world.hpp.
#include "tests/sim/chan_world.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <queue>

namespace coop::sim
{
namespace
{

constexpr u32 command_qpn = 0x11, data_qpn = 0x12, qkey = 0x1234;
constexpr u32 mtu = 1024;
constexpr u32 credits = 64;
constexpr u32 max_wrong_told = 8;
constexpr u8 key[16] = {'c', 'h', 'a', 'n', ' ', 's', 'i', 'm'};

coop_addr address(u32 node, u32 qpn)
{
	coop_addr a{};
	a.gid[10] = a.gid[11] = 0xff;
	a.gid[12] = 10;
	a.gid[14] = static_cast<u8>(node >> 8);
	a.gid[15] = static_cast<u8>(node + 1);
	a.qpn = qpn;
	a.qkey = qkey;
	return a;
}

u8 byte_of(u64 id, u32 offset)
{
	return static_cast<u8>(mix(id, offset / 8) >> (offset % 8 * 8));
}

// The oracle's record of a message; its tag is its index.
struct message {
	u32 from = 0, to = 0, length = 0;
	u32 life = 0; // of the sender
	std::vector<u8> memory;
	u32 id = 0;
	u32 wire = 0; // datagrams in the adapter
	u32 delivered = 0, told = 0;
	int err = 0;
	bool orphan = false; // its sender restarted, or no peer slot was free
};

struct packet {
	u32 from = 0, to = 0, channel = 0;
	std::vector<u8> bytes;
};

// A datagram in the send queue of an adapter.
struct posted {
	u32 channel = 0, id = 0, to = 0, off = 0, len = 0;
	u64 message = 0; // tag + 1; 0: none
	bool seal = false;
	std::vector<u8> header;
	std::vector<u8> sealed_hdr;
};

struct node {
	u32 index = 0, life = 0;
	std::unique_ptr<u64[]> memory;
	coop_chan *c = nullptr;
	u64 timer_at = ~u64{0}, timer_seq = 0;
	u64 egress_free = 0, ingress_free = 0; // nanoseconds
	u32 ingress_queue = 0;
	std::deque<posted> sends;
	bool sending = false;
	u32 outstanding = 0;
	u64 no_buffers_until = 0;
	std::vector<u32> peer;                 // ids by node
	std::map<u64, std::vector<u8>> placed; // by cookie
	std::map<u64, u64> placed_message;
	u64 next_cookie = 1;
};

enum class what : u8 { arrive, take, departed, timer, issue, fault };

struct event {
	u64 at, seq;
	what kind;
	u32 node, life;
	u64 arg;
	bool operator>(const event &o) const { return at != o.at ? at > o.at : seq > o.seq; }
};

class world
{
public:
	world(const chan_scenario &s, u64 seed, u32 flags) : s_(s), rng_(seed), flags_(flags)
	{
		nodes_.resize(s.nodes);
		for (u32 i = 0; i < s.nodes; ++i) {
			nodes_[i].index = i;
			boot(nodes_[i]);
		}
	}

	chan_result run()
	{
		for (auto &n : nodes_)
			if (!s_.incast || n.index)
				for (u32 i = 0; i < s_.outstanding; ++i)
					after(s_.settled_us + rng_.below(100), what::issue, n, 0);
		if (s_.restart_us || s_.cut_us || s_.refuse_for_us)
			after(1000, what::fault, nodes_[0], 0);
		const u64 limit = now_ + s_.limit_us;
		r_.first_us = now_;
		while (!heap_.empty() && unfinished_ + (to_issue() ? 1 : 0)) {
			const event e = heap_.top();
			heap_.pop();
			now_ = e.at / 1000;
			now_ns_ = e.at;
			if (now_ > limit) {
				wrong("liveness: %llu messages without an end after %llu us",
				      static_cast<unsigned long long>(unfinished_),
				      static_cast<unsigned long long>(s_.limit_us));
				break;
			}
			++r_.events;
			dispatch(e);
			if (r_.violations.size() == max_wrong_told)
				return r_; // the report would not show more
		}
		r_.last_us = now_;
		if (unfinished_ && heap_.empty())
			wrong("deadlock: %llu messages, nothing will ever happen",
			      static_cast<unsigned long long>(unfinished_));
		settle();
		judge();
		return r_;
	}

private:
	bool to_issue() const { return issued_ < s_.messages; }

	void wrong(const char *format, ...) __attribute__((format(printf, 2, 3)))
	{
		char text[200];
		va_list args;
		va_start(args, format);
		std::vsnprintf(text, sizeof(text), format, args);
		va_end(args);
		++r_.wrong;
		if (r_.violations.size() < max_wrong_told)
			r_.violations.emplace_back(text);
	}

	void after_ns(u64 ns, what kind, const node &n, u64 arg)
	{
		heap_.push({now_ns_ + ns, seq_++, kind, n.index, n.life, arg});
	}
	void after(u64 us, what kind, const node &n, u64 arg) { after_ns(us * 1000, kind, n, arg); }

	// ---- a node ------------------------------------------------------------------

	u32 mtu_of(const node &n, u32 channel) const
	{
		const u32 most = channel == COOP_CHAN_DATA ? mtu : 512;
		return s_.narrow && (n.index + n.life) % 2 ? most / 2 : most;
	}

	void boot(node &n)
	{
		coop_chan_cfg cfg{};
		cfg.seed = rng_.next();
		std::memcpy(cfg.key, key, sizeof(key));
		cfg.self = address(n.index, command_qpn);
		cfg.data_qpn = data_qpn;
		cfg.data_qkey = qkey;
		cfg.mtu[0] = mtu_of(n, COOP_CHAN_COMMAND);
		cfg.mtu[1] = mtu_of(n, COOP_CHAN_DATA);
		cfg.credits[0] = cfg.credits[1] = credits;
		cfg.max_peers = s_.nodes;
		cfg.max_active = s_.max_active ? s_.max_active : s_.nodes;
		cfg.max_reorder = std::min(s_.max_reorder, s_.nodes);
		cfg.max_sends = 1024;
		cfg.max_receives = s_.max_receives;
		cfg.max_segments = s_.max_segments;
		cfg.max_length = s_.max_length;
		cfg.first_seq = s_.first_seq;
		cfg.max_tries = s_.max_tries;
		cfg.rnr_tries = s_.rnr_tries;
		cfg.quiet_us = s_.quiet_us;
		cfg.flags = flags_ | (s_.fixed_seq ? u32{COOP_CHAN_F_FIRST_SEQ} : 0u) |
			    (s_.sealed ? u32{COOP_CHAN_F_SEAL} : 0u);
		const std::size_t size = coop_chan_size(&cfg);
		n.memory = std::make_unique<u64[]>(size / 8 + 1);
		n.c = coop_chan_create(n.memory.get(), size, &cfg, now_);
		if (!n.c)
			throw std::runtime_error("scenario out of range");
		n.peer.assign(s_.nodes, 0);
		n.timer_at = ~u64{0};
		n.sends.clear();
		n.sending = false;
		n.placed.clear();
		n.placed_message.clear();
		n.outstanding = 0;
	}

	u32 peer_of(node &n, u32 to)
	{
		coop_chan_peer_addr a{};
		a.command = address(to, command_qpn);
		if (s_.data_known) {
			a.data_qpn = data_qpn;
			a.data_qkey = qkey;
		}
		const s64 id = coop_chan_open(n.c, &a, to, now_);
		return id > 0 ? static_cast<u32>(id) : 0;
	}

	void issue(node &n)
	{
		if (!to_issue() || n.outstanding >= s_.outstanding)
			return;
		u32 to = s_.incast ? 0 : rng_.below(s_.nodes - 1);
		if (!s_.incast && to >= n.index)
			++to;
		const u64 tag = messages_.size();
		messages_.emplace_back();
		message &m = messages_.back();
		m.from = n.index;
		m.to = to;
		m.life = n.life;
		m.length = rng_.below(100) < s_.tiny_percent ? rng_.below(200)
							     : rng_.below(s_.max_length + 1);
		m.memory.resize(m.length);
		for (u32 i = 0; i < m.length; ++i)
			m.memory[i] = byte_of(tag, i);
		coop_chan_msg req{};
		req.peer = peer_of(n, to);
		req.cookie = tag + 1;
		req.tag = tag;
		req.length = m.length;
		const int err = coop_chan_send(n.c, &req, now_, &m.id);
		++issued_;
		if (err) {
			wrong("send: %d", err);
			m.orphan = true;
			return;
		}
		++unfinished_;
		++n.outstanding;
		if (rng_.chance(s_.cancel_ppm))
			coop_chan_cancel(n.c, m.id, now_);
		if (rng_.chance(s_.close_ppm))
			coop_chan_close(n.c, req.peer, now_);
		pump(n);
	}

	void pump(node &n)
	{
		bool more = true;
		while (more) {
			more = false;
			coop_chan_ev ev;
			while (coop_chan_next_event(n.c, now_, &ev)) {
				on_event(n, ev);
				more = true;
			}
			coop_chan_tx tx;
			while (coop_chan_next_tx(n.c, now_, &tx)) {
				post(n, tx);
				more = true;
			}
		}
		const u64 at = coop_chan_deadline(n.c);
		if (at < n.timer_at) {
			n.timer_at = at;
			const u64 in = at > now_ ? at * 1000 - now_ns_ : 0;
			after_ns(in, what::timer, n, at);
		}
		struct coop_chan_stats st;
		coop_chan_stats(n.c, &st);
		r_.most_segments = std::max(r_.most_segments, static_cast<u32>(st.segments_used));
		if (st.receives_used > s_.max_receives || st.segments_used > s_.max_segments + 64)
			wrong("memory: a pool is overdrawn");
	}

	void post(node &n, const coop_chan_tx &tx)
	{
		posted p;
		p.channel = tx.channel;
		p.id = tx.id;
		p.to = tx.addr.gid[15] - 1u;
		p.off = tx.off;
		p.len = tx.len;
		if (tx.id) {
			p.message = tx.cookie;
			message &m = messages_.at(tx.cookie - 1);
			if (m.told)
				wrong("memory: a datagram of message %llu after its end",
				      static_cast<unsigned long long>(tx.cookie - 1));
			if (std::size_t{tx.off} + tx.len > m.memory.size())
				wrong("memory: a datagram outside of message %llu",
				      static_cast<unsigned long long>(tx.cookie - 1));
			++m.wire;
			if (tx.seal) {
				coop_chan_tx copy = tx;
				const coop_chan_piece piece[2] = {
					{m.memory.data() + tx.off, tx.len / 3},
					{m.memory.data() + tx.off + tx.len / 3,
					 tx.len - tx.len / 3}};
				coop_chan_seal(n.c, &copy, piece, 2);
			}
		}
		p.header.assign(tx.hdr, tx.hdr + tx.hdr_len);
		if (p.header.size() + p.len > mtu_of(n, p.channel))
			wrong("a datagram of %zu bytes on channel %u", p.header.size() + p.len,
			      p.channel);
		n.sends.push_back(std::move(p));
		if (!n.sending) {
			n.sending = true;
			after_ns(200 + rng_.below(1000), what::departed, n, 0);
		}
	}

	// The adapter reads the memory now, not at the post.
	void departed(node &n)
	{
		posted p = std::move(n.sends.front());
		n.sends.pop_front();
		packet k;
		k.from = n.index;
		k.to = p.to;
		k.channel = p.channel;
		k.bytes = std::move(p.header);
		if (p.message) {
			message &m = messages_.at(p.message - 1);
			k.bytes.insert(k.bytes.end(), m.memory.begin() + p.off,
				       m.memory.begin() + p.off + p.len);
			--m.wire;
		}
		transmit(std::move(k));
		n.sending = !n.sends.empty();
		if (n.sending)
			after_ns(200 + rng_.below(1000), what::departed, n, 0);
		coop_chan_tx_done(n.c, p.channel, p.id, 0, now_);
		pump(n);
	}

	void on_event(node &n, const coop_chan_ev &ev)
	{
		switch (ev.kind) {
		case COOP_CHAN_EV_DELIVERED: {
			const auto it = n.placed.find(ev.cookie);
			if (it == n.placed.end())
				return wrong("delivered into memory that was not placed");
			if (ev.tag >= messages_.size()) {
				n.placed.erase(it);
				return wrong("delivered a message that no node sent");
			}
			message &m = messages_.at(ev.tag);
			++r_.delivered;
			r_.bytes += ev.length;
			if (++m.delivered > 1)
				wrong("message %llu delivered twice",
				      static_cast<unsigned long long>(ev.tag));
			if (it->second.size() != m.length || m.to != n.index)
				wrong("message %llu: %zu bytes to node %u, not %u to %u",
				      static_cast<unsigned long long>(ev.tag), it->second.size(),
				      n.index, m.length, m.to);
			else
				for (u32 i = 0; i < m.length; ++i)
					if (it->second[i] != byte_of(ev.tag, i)) {
						wrong("message %llu: byte %u is wrong",
						      static_cast<unsigned long long>(ev.tag), i);
						break;
					}
			n.placed.erase(it);
			return;
		}
		case COOP_CHAN_EV_ABORTED:
			if (!n.placed.erase(ev.cookie))
				wrong("aborted a receive that was not placed");
			return;
		case COOP_CHAN_EV_SENT: {
			message &m = messages_.at(ev.cookie - 1); // what we gave to send
			if (m.life != n.life || m.from != n.index || ++m.told > 1)
				return wrong("message %llu: its sender learns of its end twice",
					     static_cast<unsigned long long>(ev.cookie - 1));
			if (m.wire)
				wrong("memory: message %llu ends while the adapter reads it",
				      static_cast<unsigned long long>(ev.cookie - 1));
			m.err = ev.err;
			std::fill(m.memory.begin(), m.memory.end(), 0xdd);
			--unfinished_;
			--n.outstanding;
			if (ev.err)
				++r_.failed;
			after(rng_.below(s_.think_us), what::issue, n, 0);
			return;
		}
		case COOP_CHAN_EV_PEER_NEW:
			return;
		case COOP_CHAN_EV_PEER_DEAD:
			++r_.told_dead;
			return;
		case COOP_CHAN_EV_PEER_RESTARTED:
			++r_.told_restarted;
			return;
		}
	}

	// ---- the fabric --------------------------------------------------------------

	void transmit(packet k)
	{
		++r_.packets;
		if (cut_.count({k.from, k.to})) {
			++r_.lost;
			return;
		}
		const u32 copies = rng_.chance(s_.duplicate_ppm) ? 2 : 1;
		r_.duplicated += copies - 1;
		for (u32 i = 0; i < copies; ++i) {
			if (rng_.chance(s_.loss_ppm)) {
				++r_.lost;
				continue;
			}
			packet copy = k;
			if (rng_.chance(s_.corrupt_ppm)) {
				++r_.corrupted;
				for (u32 bits = rng_.between(1, 3); bits; --bits)
					copy.bytes[rng_.below(
						static_cast<u32>(copy.bytes.size()))] ^=
						static_cast<u8>(1u << rng_.below(8));
			}
			u64 ns = s_.delay_us * 1000ull + rng_.below(s_.jitter_us * 1000 + 1);
			if (rng_.chance(s_.late_ppm)) {
				++r_.late;
				ns += rng_.below(s_.late_us) * 1000ull;
			}
			u64 handle;
			if (free_.empty()) {
				handle = packets_.size();
				packets_.push_back(std::move(copy));
			} else {
				handle = free_.back();
				free_.pop_back();
				packets_[handle] = std::move(copy);
			}
			after_ns(ns, what::arrive, nodes_[k.to], handle);
		}
	}

	// Arrives at the receiver's queue, whatever life the node is in.
	void arrive(node &n, u64 handle)
	{
		if (n.ingress_queue >= s_.queue) {
			++r_.dropped;
			free_.push_back(handle);
			return;
		}
		++n.ingress_queue;
		n.ingress_free = std::max(n.ingress_free, now_ns_) + s_.packet_ns;
		after_ns(n.ingress_free - now_ns_, what::take, n, handle);
	}

	void take(node &n, u64 handle)
	{
		packet k = std::move(packets_[handle]);
		free_.push_back(handle);
		--n.ingress_queue;
		coop_chan_dgram rx{};
		rx.channel = k.channel;
		rx.buf = k.bytes.data();
		rx.len = static_cast<u32>(k.bytes.size());
		rx.src = address(k.from, k.channel ? data_qpn : command_qpn);
		rx.src.qkey = 0;
		coop_chan_in in;
		coop_chan_verdict v = coop_chan_rx(n.c, &rx, now_, &in);
		if (v == COOP_CHAN_PLACE) {
			const bool none = now_ < n.no_buffers_until || rng_.chance(s_.refuse_ppm);
			if (none) {
				++r_.refused;
				coop_chan_refuse(n.c, COOP_CHAN_NO_BUFFER, now_);
				v = COOP_CHAN_DONE;
			} else {
				const u64 cookie = n.next_cookie++;
				n.placed[cookie].assign(in.length, 0xee);
				coop_chan_place(n.c, cookie, now_, &in);
				v = COOP_CHAN_COPY;
			}
		}
		if (v == COOP_CHAN_COPY) {
			auto &to = n.placed[in.cookie];
			if (std::size_t{in.offset} + in.len > to.size() ||
			    std::size_t{in.from} + in.len > k.bytes.size())
				wrong("a copy outside of its memory");
			else
				std::copy_n(k.bytes.begin() + in.from, in.len,
					    to.begin() + in.offset);
		}
		pump(n);
	}

	// ---- faults ------------------------------------------------------------------

	void restart(node &n)
	{
		++r_.restarts;
		for (auto &m : messages_)
			if (m.from == n.index && m.life == n.life && !m.told && !m.orphan) {
				m.orphan = true;
				++r_.orphans;
				--unfinished_;
			}
		tally(n);
		++n.life;
		boot(n);
		for (u32 i = 0; i < s_.outstanding; ++i)
			after(rng_.below(1000), what::issue, n, 0);
	}

	void fault()
	{
		if (s_.restart_us && rng_.below(s_.restart_us) < 1000)
			restart(nodes_[rng_.below(s_.nodes)]);
		if (s_.refuse_for_us && rng_.below(20) == 0)
			nodes_[rng_.below(s_.nodes)].no_buffers_until =
				now_ + rng_.below(s_.refuse_for_us);
		for (auto it = cut_.begin(); it != cut_.end();)
			it = it->second <= now_ ? cut_.erase(it) : std::next(it);
		if (s_.cut_us && rng_.below(s_.cut_us) < 1000 && to_issue()) {
			const u32 a = rng_.below(s_.nodes), b = rng_.below(s_.nodes);
			cut_[{a, b}] = now_ + rng_.below(s_.cut_for_us);
			if (rng_.coin())
				cut_[{b, a}] = now_ + rng_.below(s_.cut_for_us);
			++r_.cuts;
		}
		if (to_issue() || !cut_.empty())
			after(1000, what::fault, nodes_[0], 0);
	}

	void dispatch(const event &e)
	{
		node &n = nodes_[e.node];
		switch (e.kind) {
		case what::arrive:
			return arrive(n, e.arg);
		case what::take:
			return take(n, e.arg);
		case what::fault:
			return fault();
		case what::departed:
			if (e.life == n.life)
				departed(n);
			return;
		case what::timer:
			if (e.life != n.life || e.arg != n.timer_at)
				return;
			n.timer_at = ~u64{0};
			coop_chan_expire(n.c, now_);
			pump(n);
			return;
		case what::issue:
			if (e.life == n.life)
				issue(n);
			return;
		}
	}

	// ---- the end -----------------------------------------------------------------

	// All sends have ended; the last datagrams arrive, and nodes send what they owe.
	void settle()
	{
		const u64 limit = now_ + 120000000;
		while (!heap_.empty() && heap_.top().at / 1000 < limit) {
			const event e = heap_.top();
			heap_.pop();
			now_ = e.at / 1000;
			now_ns_ = e.at;
			dispatch(e);
		}
	}

	void tally(node &n)
	{
		struct coop_chan_stats st;
		coop_chan_stats(n.c, &st);
		r_.retransmits += st.retransmits;
		r_.segments += st.tx_segments;
		r_.stale += st.rx_stale_sender + st.rx_stale_receiver;
		r_.duplicates_rx += st.rx_duplicate;
	}

	void judge()
	{
		for (u64 i = 0; i < messages_.size(); ++i) {
			const message &m = messages_[i];
			const auto number = static_cast<unsigned long long>(i);
			if (m.orphan)
				continue;
			if (m.told != 1)
				wrong("message %llu: its sender learned of its end %u times",
				      number, m.told);
			else if (!m.err && m.delivered != 1)
				wrong("message %llu: sent, but delivered %u times", number,
				      m.delivered);
			else if (m.err && !s_.may_fail)
				wrong("message %llu failed: %d", number, m.err);
		}
		for (auto &n : nodes_)
			tally(n);
		if (s_.most_repeats_percent != 100 &&
		    r_.retransmits * 100 > r_.segments * s_.most_repeats_percent)
			wrong("%llu of %llu segments were retransmitted",
			      static_cast<unsigned long long>(r_.retransmits),
			      static_cast<unsigned long long>(r_.segments));
		for (auto &n : nodes_) {
			struct coop_chan_stats st;
			coop_chan_stats(n.c, &st);
			if (st.sends_used || st.segments_used || st.active_used)
				wrong("node %u: at rest, but %llu sends, %llu segments in use",
				      n.index, static_cast<unsigned long long>(st.sends_used),
				      static_cast<unsigned long long>(st.segments_used));
			if (st.receives_used || !n.placed.empty())
				wrong("node %u: at rest, but %llu receives are open", n.index,
				      static_cast<unsigned long long>(st.receives_used));
		}
	}

	const chan_scenario &s_;
	dice rng_;
	u32 flags_;
	std::vector<node> nodes_;
	std::deque<message> messages_;
	std::vector<packet> packets_;
	std::vector<u64> free_;
	std::map<std::pair<u32, u32>, u64> cut_; // until
	std::priority_queue<event, std::vector<event>, std::greater<>> heap_;
	u64 now_ = 1000000, now_ns_ = 1000000000, seq_ = 0;
	u64 unfinished_ = 0, issued_ = 0;
	chan_result r_;
};

} // namespace

chan_result chan_run(const chan_scenario &s, u64 seed, u32 test_flags)
{
	world w(s, seed, test_flags);
	return w.run();
}

} // namespace coop::sim
