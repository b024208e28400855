// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Sessions: which session does a datagram belong to, and is its sender alive?
 *
 * Each side names the session with a 64-bit id of its own. Until a side knows
 * that the peer has its id, all its datagrams carry an OPEN block with
 * everything that the peer needs, so the first message needs no round trip
 * before it. A datagram that carries both ids belongs to that session or to
 * none.
 *
 * An OPEN from an unknown sender may be older than its or our restart. We accept
 * it at once only if no datagram can be that old (quiet_us) and there is no
 * session with its address. Otherwise we send a CHALLENGE with an id derived for
 * the sender (a PRF of its address and its id; we store nothing). A sender that
 * answers to that id is alive, and a session with its earlier incarnation ends.
 *
 * GID and QPN identify a peer. Its LID (on soft RoCE: its UDP port), SL and
 * Q_Keys may be others after a restart. So an OPEN is answered where it came
 * from, with the Q_Key that it names. The MAC does not cover the LID: a peer is at
 * another one only when it has answered from there.
 */
#include "core.h"

#include "rpc/base/addr.h"
#include "rpc/base/mac.h"

u64 coop_chan_session_id(const struct coop_chan *c, const struct coop_addr *command, u64 theirs)
{
	u32 epoch = c->bucket_epoch[coop_chan_bucket(c, command)];
	struct coop_mac_state s;
	u64 id;

	coop_mac_begin(&s, c->secret);
	coop_mac_add(&s, command->gid, sizeof(command->gid));
	coop_mac_add(&s, &command->lid, sizeof(command->lid));
	coop_mac_add(&s, &command->qpn, sizeof(command->qpn));
	coop_mac_add(&s, &theirs, sizeof(theirs));
	coop_mac_add(&s, &epoch, sizeof(epoch));
	id = coop_mac_end(&s);
	return id ? id : 1;
}

void coop_chan_begin(struct coop_chan *c, struct coop_chan_peer *p)
{
	c->bucket_epoch[coop_chan_bucket(c, &p->addr.command)]++;
	p->session = coop_chan_session_id(c, &p->addr.command, 0);
	p->state = COOP_CHAN_OPENING;
}

static void challenge(struct coop_chan *c, const struct coop_addr *to, u64 ours, u64 theirs)
{
	struct coop_chan_note *n = coop_chan_note(c, COOP_CHAN_T_CHALLENGE, to);

	if (!n)
		return;
	n->src_session = ours;
	n->dst_session = theirs;
	c->stats.challenges_tx++;
}

/* Answers a datagram for a session that does not exist with RESET. */
static void refuse(struct coop_chan *c, const struct coop_addr *to,
		   const struct coop_chan_packet *m)
{
	struct coop_chan_note *n;

	c->stats.rx_stale_receiver++;
	if (!m->dst_session)
		return;
	n = coop_chan_note(c, COOP_CHAN_T_RESET, to);
	if (!n)
		return;
	n->src_session = m->dst_session;
	n->dst_session = m->src_session;
	n->session = m->dst_session;
	c->stats.resets_tx++;
}

/* Did the datagram come from a QP of this peer? */
static bool from_peer(const struct coop_chan_peer *p, const struct coop_addr *src)
{
	struct coop_addr a = *src;

	a.qpn = p->addr.command.qpn;
	return (src->qpn == p->addr.command.qpn || src->qpn == p->addr.data_qpn) &&
	       coop_addr_same(&a, &p->addr.command);
}

static void learn(struct coop_chan *c, struct coop_chan_peer *p, const struct coop_chan_packet *m,
		  const struct coop_chan_peer_addr *a)
{
	const struct coop_chan_hello *h = &m->hello;

	p->remote = m->src_session;
	p->remote_id = h->id;
	p->addr = *a; /* GID and QPN, by which the peer was found, are the same */
	p->mtu[0] = h->mtu[0];
	p->mtu[1] = h->mtu[1];
	p->window = (u16)coop_min_u32(c->cfg.window, h->window);
	p->rx_next = (1ull << 32) + h->first_seq;
	p->rx_high = p->rx_next;
	p->synced = true;
	p->state = COOP_CHAN_OPEN;
	p->sessions++;
	coop_chan_recut(c, p);
	coop_chan_wake(c, p);
}

/* A CHALLENGE or RESET: the source, a command QP, identifies the peer. */
static void control(struct coop_chan *c, const struct coop_chan_dgram *rx,
		    const struct coop_chan_packet *m, u64 now)
{
	u32 slot = coop_chan_by_address(c, &rx->src);
	struct coop_chan_peer *p = &c->peer[slot == COOP_NONE ? 0 : slot];

	if (slot == COOP_NONE || !p->session || m->dst_session != p->session) {
		c->stats.rx_stale_receiver++;
		return;
	}
	if (m->type == COOP_CHAN_T_RESET) {
		if (!p->remote || m->session != p->remote) {
			c->stats.rx_stale_sender++;
			return;
		}
		c->stats.resets_rx++;
		coop_chan_restarted(c, p, COOP_CHAN_WHY_RESET, now);
		return;
	}
	c->stats.challenges_rx++;
	if (p->synced) {
		/* Ask with an ACK whether the peer still has our session: if not, it answers
		 * with RESET. */
		if (m->src_session != p->remote)
			coop_chan_owe_ack(c, p);
		else if (!p->confirmed) /* the peer dropped the datagram that it challenged */
			coop_chan_all_lost(c, p, now);
		return;
	}
	if (p->remote == m->src_session)
		return;
	p->remote = m->src_session;
	p->remote_id = 0;
	coop_chan_all_lost(c, p, now);
}

static bool answer(struct coop_chan *c, const struct coop_addr *to,
		   const struct coop_chan_packet *m, u64 ours)
{
	/* With the ACK flag the sender believes in a session: tell it that there is none. */
	if (m->dst_session && (m->flags & COOP_CHAN_W_ACK))
		refuse(c, to, m);
	else
		challenge(c, to, ours, m->src_session);
	return false;
}

/* May this OPEN of a known peer, which came from there, start or continue a session? */
static bool admissible(struct coop_chan *c, struct coop_chan_peer *p, const struct coop_addr *from,
		       const struct coop_chan_packet *m, u64 id, u64 now)
{
	bool moved = from->lid != p->addr.command.lid;
	u64 dst = m->dst_session;

	if (p->remote == m->src_session && (dst ? dst == p->session : p->synced || !moved))
		return true;
	if (c->cfg.flags & COOP_CHAN_F_TEST_NO_SESSION)
		return true;
	if (!p->synced) {
		bool fresh = !dst && !moved && now >= c->quiet_until;

		if (!p->session && (dst == id || fresh)) {
			p->session = id;
			return true;
		}
		if (p->session && (dst == p->session || fresh))
			return true;
		return answer(c, from, m, p->session ? p->session : id);
	}
	if (p->remote == m->src_session) {
		c->stats.rx_stale_receiver++;
		return false;
	}
	if (dst == id) {
		coop_chan_restarted(c, p, COOP_CHAN_WHY_NEW_SESSION, now);
		p->session = id;
		return true;
	}
	if (!dst)
		challenge(c, from, id, m->src_session);
	c->stats.rx_stale_sender++;
	return false;
}

static struct coop_chan_peer *opened(struct coop_chan *c, const struct coop_chan_dgram *rx,
				     const struct coop_chan_packet *m, u64 now)
{
	struct coop_chan_peer_addr a = {
		.command = rx->src,
		.data_qpn = m->hello.data_qpn,
		.data_qkey = m->hello.data_qkey,
	};
	struct coop_chan_peer *p;
	u32 slot;
	u64 id;

	a.command.qpn = m->hello.command_qpn;
	a.command.qkey = m->hello.command_qkey;
	a.command.sl = m->hello.sl;
	if (!coop_addr_valid(&a.command) || a.data_qpn > COOP_QPN_MAX || !a.data_qpn ||
	    coop_addr_same(&a.command, &c->cfg.self) ||
	    (rx->src.qpn != a.command.qpn && rx->src.qpn != a.data_qpn)) {
		c->stats.rx_address++;
		return NULL;
	}
	slot = coop_chan_by_address(c, &a.command);
	id = coop_chan_session_id(c, &a.command, m->src_session);
	if (slot == COOP_NONE) {
		if (c->cfg.flags & COOP_CHAN_F_NO_ACCEPT) {
			c->stats.rx_not_accepted++;
			return NULL;
		}
		if (m->dst_session ? m->dst_session != id : now < c->quiet_until) {
			answer(c, &a.command, m, id);
			return NULL;
		}
		slot = coop_chan_admit(c, &a, now);
		if (slot == COOP_NONE) {
			c->stats.rx_not_accepted++;
			return NULL;
		}
		p = &c->peer[slot];
		p->session = id;
		c->stats.peers_new++;
		coop_chan_news(c, p, COOP_NEWS_NEW);
	} else {
		p = &c->peer[slot];
		if (!admissible(c, p, &a.command, m, id, now))
			return NULL;
	}
	if (!p->synced)
		learn(c, p, m, &a);
	return p;
}

static struct coop_chan_peer *known(struct coop_chan *c, const struct coop_chan_dgram *rx,
				    const struct coop_chan_packet *m, u64 now)
{
	struct coop_chan_peer *p = coop_chan_by_id(c, m->dst_id);

	if (p && !from_peer(p, &rx->src)) {
		c->stats.rx_address++;
		return NULL;
	}
	if (p && (c->cfg.flags & COOP_CHAN_F_TEST_NO_SESSION))
		return p;
	if (!p || !p->session || m->dst_session != p->session) {
		struct coop_addr to = rx->src;

		/* The sender's Q_Key is unknown; assume that it is ours. */
		to.qkey = rx->channel == COOP_CHAN_DATA ? c->cfg.data_qkey : c->cfg.self.qkey;
		if (p)
			to = p->addr.command;
		refuse(c, &to, m);
		return NULL;
	}
	if (!p->synced || m->src_session != p->remote) {
		c->stats.rx_stale_sender++;
		return NULL;
	}
	return p;
}

struct coop_chan_peer *coop_chan_session(struct coop_chan *c, const struct coop_chan_dgram *rx,
					 const struct coop_chan_packet *m, u64 now)
{
	struct coop_chan_peer *p;

	if (m->type == COOP_CHAN_T_CHALLENGE || m->type == COOP_CHAN_T_RESET) {
		control(c, rx, m, now);
		return NULL;
	}
	p = m->flags & COOP_CHAN_W_OPEN ? opened(c, rx, m, now) : known(c, rx, m, now);
	if (!p)
		return NULL;
	if (m->flags & COOP_CHAN_W_ACK) {
		if (m->dst_session != p->session && !(c->cfg.flags & COOP_CHAN_F_TEST_NO_SESSION)) {
			c->stats.rx_malformed++;
			return NULL;
		}
		p->confirmed = true;
	}
	p->heard_at = now;
	p->tries = 0;
	return p;
}
