// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Peers: their addresses, and the end of a session.
 *
 * The address index is a chained hash table with a salt, so that an attacker
 * cannot choose colliding addresses. A session ends when the peer is dead, opens
 * a new session, sends RESET, or is closed by the host. Everything under way
 * then ends with an error, and the next send begins a new session.
 */
#include "core.h"

#include "rpc/base/addr.h"

void coop_chan_peers_init(struct coop_chan *c, struct coop_id *ids, u64 now)
{
	u32 i;

	coop_idtab_init(&c->peer_ids, ids, c->cfg.max_peers);
	for (i = 0; i < c->n_buckets; i++) {
		c->bucket[i] = COOP_NONE;
		c->bucket_epoch[i] = 0;
	}
	c->quiet_until = c->cfg.quiet_us == ~0u ? ~0ull : now + c->cfg.quiet_us;
}

u32 coop_chan_bucket(const struct coop_chan *c, const struct coop_addr *a)
{
	return (u32)coop_mix(coop_addr_hash(a) ^ c->salt) & (c->n_buckets - 1);
}

struct coop_chan_peer *coop_chan_by_id(const struct coop_chan *c, u32 id)
{
	u32 slot = coop_idtab_slot(&c->peer_ids, id);

	return slot == COOP_NONE ? NULL : &c->peer[slot];
}

u32 coop_chan_by_address(const struct coop_chan *c, const struct coop_addr *command)
{
	u32 i = c->bucket[coop_chan_bucket(c, command)];

	while (i != COOP_NONE && !coop_addr_same(&c->peer[i].addr.command, command))
		i = c->peer[i].next_hash;
	return i;
}

u32 coop_chan_find(const struct coop_chan *c, const struct coop_addr *command)
{
	u32 slot = coop_chan_by_address(c, command);

	return slot == COOP_NONE ? COOP_NONE : c->peer[slot].id;
}

static void fresh(struct coop_chan *c, struct coop_chan_peer *p)
{
	p->session = 0;
	p->remote = 0;
	p->remote_id = 0;
	p->first = p->next;
	p->rx_next = 0;
	p->rx_high = 0;
	p->heard_at = 0;
	p->cwnd = COOP_CHAN_CWND_FIRST << 8;
	p->ssthresh = (u32)c->cfg.window << 8;
	p->srtt = 0;
	p->rttvar = 0;
	p->racked[0] = false;
	p->racked[1] = false;
	p->poll = false;
	p->undo = false;
	p->window = (u16)c->cfg.window;
	p->carried = (u16)c->tiny;
	p->stuck = 0;
	p->asked = 0;
	p->answered = false;
	p->unacked = 0;
	p->tries = 0;
	p->backoff = 0;
	p->state = COOP_CHAN_IDLE;
	p->ack_due = COOP_ACK_NONE;
	p->synced = false;
	p->confirmed = false;
}

u32 coop_chan_admit(struct coop_chan *c, const struct coop_chan_peer_addr *a, u64 now)
{
	u32 id = coop_idtab_get(&c->peer_ids), slot, *bucket;
	struct coop_chan_peer *p;

	if (id == COOP_NONE)
		return COOP_NONE;
	slot = coop_idtab_slot(&c->peer_ids, id);
	p = &c->peer[slot];
	memset(p, 0, sizeof(*p));
	p->addr = *a;
	p->id = id;
	p->used = true;
	p->table = COOP_NONE;
	p->map = COOP_NONE;
	/* Far enough from 0 that no earlier sequence number is negative. */
	p->next = (1ull << 32) + (c->cfg.flags & COOP_CHAN_F_FIRST_SEQ
					  ? c->cfg.first_seq
					  : (u32)coop_random(&c->random));
	p->una = p->next;
	p->cut_at = now;
	p->timeout_at = now;
	/* Until the peer tells its own; what it told last is the best guess for its next session.
	 */
	p->mtu[0] = (u16)c->cfg.mtu[0];
	p->mtu[1] = (u16)c->cfg.mtu[1];
	coop_list_init(&p->queue[0]);
	coop_list_init(&p->queue[1]);
	coop_list_init(&p->urgent[0]);
	coop_list_init(&p->urgent[1]);
	coop_list_init(&p->all);
	coop_list_init(&p->receiving);
	p->n_receiving = 0;
	coop_list_init(&p->flight[0]);
	coop_list_init(&p->flight[1]);
	coop_list_init(&p->resend);
	fresh(c, p);
	bucket = &c->bucket[coop_chan_bucket(c, &a->command)];
	p->next_hash = *bucket;
	*bucket = slot;
	c->stats.peers++;
	return slot;
}

s64 coop_chan_open(struct coop_chan *c, const struct coop_chan_peer_addr *addr, u64 cookie, u64 now)
{
	u32 slot;

	if (!coop_addr_valid(&addr->command) || coop_addr_same(&addr->command, &c->cfg.self) ||
	    addr->data_qpn > COOP_QPN_MAX)
		return -EINVAL;
	slot = coop_chan_by_address(c, &addr->command);
	if (slot == COOP_NONE)
		slot = coop_chan_admit(c, addr, now);
	if (slot == COOP_NONE)
		return -ENOSPC;
	c->peer[slot].cookie = cookie;
	if (addr->data_qpn) {
		c->peer[slot].addr.data_qpn = addr->data_qpn;
		c->peer[slot].addr.data_qkey = addr->data_qkey;
		coop_chan_wake(c, &c->peer[slot]);
	}
	return c->peer[slot].id;
}

int coop_chan_set_cookie(struct coop_chan *c, u32 peer, u64 cookie)
{
	struct coop_chan_peer *p = coop_chan_by_id(c, peer);

	if (!p)
		return -ENOENT;
	p->cookie = cookie;
	return 0;
}

/* ---- the end of a session ---------------------------------------------------------- */

void coop_chan_news(struct coop_chan *c, struct coop_chan_peer *p, u8 news)
{
	p->news |= news;
	coop_fifo_push(&c->news, coop_chan_slot(c, p));
}

void coop_chan_end_session(struct coop_chan *c, struct coop_chan_peer *p, int err, u64 now)
{
	u32 slot = coop_chan_slot(c, p);

	while (p->all.head != COOP_NONE)
		coop_chan_finish(c, p->all.head, err);
	while (p->receiving.head != COOP_NONE)
		coop_chan_recv_abort(c, p->receiving.head, err);
	coop_chan_window_drop(c, p);
	coop_chan_map_drop(c, p);
	coop_wheel_clear(c->wheel, slot);
	coop_wheel_clear(c->wheel, c->cfg.max_peers + slot);
	fresh(c, p);
	c->bucket_epoch[coop_chan_bucket(c, &p->addr.command)]++;
	if (c->cfg.quiet_us != ~0u)
		c->quiet_until = now + c->cfg.quiet_us;
}

void coop_chan_restarted(struct coop_chan *c, struct coop_chan_peer *p, u32 why, u64 now)
{
	coop_chan_end_session(c, p, -ECONNRESET, now);
	c->stats.peers_restarted++;
	p->restart_why = (u8)why;
	coop_chan_news(c, p, COOP_NEWS_RESTARTED);
}

void coop_chan_dead(struct coop_chan *c, struct coop_chan_peer *p, u32 why, u64 now)
{
	p->why = (u8)why;
	p->err = why == COOP_CHAN_WHY_NO_ANSWER ? -EHOSTUNREACH
		 : why == COOP_CHAN_WHY_VERSION ? -EPROTONOSUPPORT
						: -ETIMEDOUT;
	coop_chan_end_session(c, p, p->err, now);
	c->stats.peers_dead++;
	coop_chan_news(c, p, COOP_NEWS_DEAD);
}

int coop_chan_close(struct coop_chan *c, u32 peer, u64 now)
{
	struct coop_chan_peer *p = coop_chan_by_id(c, peer);
	struct coop_chan_note *n;
	u32 slot, *link;

	if (!p)
		return -ENOENT;
	slot = coop_chan_slot(c, p);
	if (p->remote) {
		n = coop_chan_note(c, COOP_CHAN_T_RESET, &p->addr.command);
		if (n) {
			n->src_session = p->session;
			n->dst_session = p->remote;
			n->session = p->session;
			c->stats.resets_tx++;
		}
	}
	coop_chan_end_session(c, p, -ECANCELED, now);
	link = &c->bucket[coop_chan_bucket(c, &p->addr.command)];
	while (*link != slot)
		link = &c->peer[*link].next_hash;
	*link = p->next_hash;
	p->used = false;
	p->news = 0;
	coop_idtab_put(&c->peer_ids, p->id);
	c->stats.peers--;
	return 0;
}

/* ---- display ----------------------------------------------------------------------- */

static void describe(const struct coop_chan *c, const struct coop_chan_peer *p,
		     struct coop_chan_peer_info *out)
{
	memset(out, 0, sizeof(*out));
	out->id = p->id;
	out->state = p->state;
	out->cookie = p->cookie;
	out->addr = p->addr;
	out->srtt_us = p->srtt;
	out->rttvar_us = p->rttvar;
	out->rto_us = coop_chan_rto(c, p);
	out->cwnd = p->cwnd >> 8;
	out->in_flight = p->in_flight;
	out->window = (u32)(p->next - p->una);
	out->queued = p->queued;
	out->tries = p->tries;
	out->carried = p->carried;
	out->sessions = p->sessions;
	out->tx_messages = p->tx_messages;
	out->rx_messages = p->rx_messages;
	out->tx_segments = p->tx_segments;
	out->retransmits = p->retransmits;
	out->tx_bytes = p->tx_bytes;
	out->rx_bytes = p->rx_bytes;
}

bool coop_chan_peer_next(const struct coop_chan *c, u32 *cursor, struct coop_chan_peer_info *out)
{
	while (*cursor < c->cfg.max_peers) {
		const struct coop_chan_peer *p = &c->peer[(*cursor)++];

		if (!p->used)
			continue;
		describe(c, p, out);
		return true;
	}
	return false;
}

int coop_chan_peer_get(const struct coop_chan *c, u32 peer, struct coop_chan_peer_info *out)
{
	const struct coop_chan_peer *p = coop_chan_by_id(c, peer);

	if (!p)
		return -ENOENT;
	describe(c, p, out);
	return 0;
}
