// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * peers.c - the peers of a machine, and what is to be told about them.
 *
 * A peer is one of rpc/chan, named by its id there; the cookie there is the index
 * here plus 1. The process admits a peer by giving it a cookie of its own.
 * Messages of others are refused in a way that makes the sender try again, and
 * the process is told once. What is to be told is kept as bits, so a peer takes
 * no memory for it, however often it comes and goes.
 */
#include <linux/slab.h>

#include "msg/machine.h"

#define BIT_OF(code) (1u << ((code)-COOP_NET_STRANGER))

static_assert(COOP_NET_PEER_RESTARTED - COOP_NET_STRANGER < 8);

int coop_peers_create(struct coop_machine *m, u32 n)
{
	u32 i;

	INIT_LIST_HEAD(&m->free_peers);
	INIT_LIST_HEAD(&m->news);
	m->peer = kvcalloc(n, sizeof(*m->peer), GFP_KERNEL_ACCOUNT);
	if (!m->peer)
		return -ENOMEM;
	m->n_peers = n;
	for (i = 0; i < n; i++)
		list_add_tail(&m->peer[i].link, &m->free_peers);
	return 0;
}

static struct coop_peer *take(struct coop_machine *m)
{
	struct coop_peer *p = list_first_entry_or_null(&m->free_peers, struct coop_peer, link);

	/* rpc/chan has no more peers than we have. */
	if (WARN_ON_ONCE(!p))
		return NULL;
	list_del(&p->link);
	memset(p, 0, sizeof(*p));
	return p;
}

static void put(struct coop_machine *m, struct coop_peer *p)
{
	if (p->told)
		list_del(&p->link);
	memset(p, 0, sizeof(*p));
	list_add(&p->link, &m->free_peers);
}

static u64 cookie_of(const struct coop_machine *m, const struct coop_peer *p)
{
	return (u64)(p - m->peer) + 1;
}

struct coop_peer *coop_peer_of(struct coop_machine *m, u32 id)
{
	struct coop_chan_peer_info info;
	struct coop_peer *p;

	if (coop_chan_peer_get(m->chan, id, &info))
		return NULL;
	if (info.cookie)
		return coop_peer_at(m, info.cookie);
	p = take(m);
	if (!p)
		return NULL;
	p->id = id;
	(void)coop_chan_set_cookie(m->chan, id, cookie_of(m, p));
	return p;
}

s64 coop_peer_open(struct coop_machine *m, const struct coop_net_peer *what, u64 now)
{
	struct coop_chan_peer_addr addr = {
		.command = {.qpn = what->addr.qpn,
			    .qkey = what->addr.qkey,
			    .lid = what->addr.lid,
			    .sl = what->addr.sl},
		.data_qpn = what->addr.data_qpn,
		.data_qkey = what->addr.data_qkey,
	};
	struct coop_peer *p;
	u32 known;
	s64 id;

	/* A controlled Q_Key is for the kernel's own queue pairs. */
	if (!what->cookie || what->sender >> 56 || what->addr.zero ||
	    (what->addr.qkey | what->addr.data_qkey) & BIT(31))
		return -EINVAL;
	memcpy(addr.command.gid, what->addr.gid, sizeof(addr.command.gid));
	known = coop_chan_find(m->chan, &addr.command);
	p = known == COOP_NONE ? list_first_entry_or_null(&m->free_peers, struct coop_peer, link)
			       : coop_peer_of(m, known);
	if (!p)
		return -ENOSPC;
	id = coop_chan_open(m->chan, &addr, cookie_of(m, p), now);
	if (id < 0)
		return id;
	if (known == COOP_NONE)
		p = take(m); /* the same */
	p->id = (u32)id;
	p->cookie = what->cookie;
	p->sender = what->sender;
	return id;
}

int coop_peer_admit(struct coop_machine *m, const struct coop_net_peer *what)
{
	struct coop_peer *p;

	if (!what->cookie || what->sender >> 56)
		return -EINVAL;
	p = coop_peer_of(m, what->peer);
	if (!p)
		return -ENOENT;
	p->cookie = what->cookie;
	p->sender = what->sender;
	return 0;
}

int coop_peer_close(struct coop_machine *m, u32 id, u64 now)
{
	struct coop_peer *p = coop_peer_of(m, id);

	if (!p)
		return -ENOENT;
	(void)coop_chan_close(m->chan, id, now);
	put(m, p);
	return 0;
}

int coop_peer_info(struct coop_machine *m, struct coop_net_peer *what)
{
	struct coop_chan_peer_info info;
	struct coop_peer *p;

	if (coop_chan_peer_get(m->chan, what->peer, &info))
		return -ENOENT;
	p = coop_peer_at(m, info.cookie);
	what->cookie = p ? p->cookie : 0;
	what->sender = p ? p->sender : 0;
	memcpy(what->addr.gid, info.addr.command.gid, sizeof(what->addr.gid));
	what->addr.qpn = info.addr.command.qpn;
	what->addr.qkey = info.addr.command.qkey;
	what->addr.lid = info.addr.command.lid;
	what->addr.sl = info.addr.command.sl;
	what->addr.zero = 0;
	what->addr.data_qpn = info.addr.data_qpn;
	what->addr.data_qkey = info.addr.data_qkey;
	what->srtt_us = info.srtt_us;
	what->in_flight = info.in_flight;
	what->queued = info.queued;
	what->carried = info.carried;
	what->sessions = info.sessions;
	return 0;
}

u32 coop_peers_open(const struct coop_machine *m)
{
	struct coop_chan_stats s;

	if (!m->chan)
		return 0;
	coop_chan_stats(m->chan, &s);
	return (u32)s.peers;
}

int coop_peer_address(struct coop_machine *m, u32 id, struct coop_addr *addr)
{
	struct coop_chan_peer_info info;

	if (coop_chan_peer_get(m->chan, id, &info))
		return -ENOENT;
	*addr = info.addr.command;
	return 0;
}

bool coop_peer_is(struct coop_machine *m, const struct coop_addr *addr, u64 sender)
{
	const u32 id = coop_chan_find(m->chan, addr);
	struct coop_chan_peer_info info;
	const struct coop_peer *p;

	if (id == COOP_NONE || coop_chan_peer_get(m->chan, id, &info))
		return false;
	p = coop_peer_at(m, info.cookie);
	return p && p->cookie && p->sender == sender;
}

void coop_peer_news(struct coop_machine *m, struct coop_peer *p, u8 code)
{
	p->tell |= BIT_OF(code);
	if (p->told)
		return;
	p->told = true;
	list_add_tail(&p->link, &m->news);
}

static void tell(struct coop_machine *m, struct coop_peer *p, u8 code)
{
	struct coop_net_event ev = {.code = code, .peer = p->id, .cookie = p->cookie};

	if (code == COOP_NET_STRANGER) {
		ev.tag = p->stranger;
	} else if (code != COOP_NET_PEER_NEW) {
		ev.tag = p->why;
		ev.status = code == COOP_NET_PEER_DEAD ? p->err : 0;
	}
	p->tell &= ~BIT_OF(code);
	if (code == COOP_NET_STRANGER && !p->announced) {
		p->announced = true;
		p->told_at = m->figures.events;
	}
	coop_rings_reserve(&m->rings);
	coop_event(m, &ev);
}

bool coop_peer_known(const struct coop_machine *m, const struct coop_peer *p)
{
	/* Those in the ring, if the process tells the truth. */
	const u32 left = m->rings.event_tail - READ_ONCE(m->rings.shared->event_head);

	return p->announced && m->figures.events - left > p->told_at;
}

bool coop_peers_tell(struct coop_machine *m)
{
	static const u8 order[] = {COOP_NET_PEER_NEW, COOP_NET_PEER_DEAD, COOP_NET_PEER_RESTARTED,
				   COOP_NET_STRANGER};
	struct coop_peer *p, *next;
	u32 i;

	list_for_each_entry_safe(p, next, &m->news, link) {
		for (i = 0; i < ARRAY_SIZE(order); i++) {
			if (!(p->tell & BIT_OF(order[i])))
				continue;
			if (coop_rings_room(&m->rings) <= 0)
				return false;
			tell(m, p, order[i]);
		}
		p->told = false;
		list_del(&p->link);
	}
	return true;
}
