// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * machine.c - the start of a machine, and its progress under the node's lock.
 *
 * The pump of the node and the process in COOP_NET_ENTER take operations from the
 * ring, some at a time, so that no process can hold the lock by filling it. Before
 * the pump sleeps it stores that it does, with a full fence, and then looks at the
 * ring once more; the process stores its operations first and then looks at what
 * the pump has stored. So one of them sees the other.
 */
#include "msg/machine.h"

#include <linux/log2.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/nsproxy.h>
#include <linux/poll.h>
#include <linux/random.h>
#include <linux/sched.h>
#include <linux/sched/stat.h>
#include <linux/slab.h>
#include <net/net_namespace.h>

#define TAKE_MOST       64      /* operations at a time */
#define SPIN_US         100     /* the pump stays awake for a process that polls */
#define MESSAGE_MOST    1048576 /* bytes */
#define CHAN_CREDITS    192
#define CHAN_ACTIVE     1024
#define CHAN_REORDER    256
#define CHAN_SEGMENTS   (4 * COOP_CHAN_WINDOW)
#define CHAN_RNR_TRIES  8 /* about 0.2 s */
#define DEFAULT_TIMEOUT 200000

/* ---- progress ------------------------------------------------------------------- */

void coop_machine_fail(struct coop_machine *m, int err)
{
	if (m->failure)
		return;
	m->failure = err;
	m->rings.shared->failure = err;
	smp_store_release(&m->rings.shared->state, COOP_NET_FAILED); /* behind 'failure' */
	wake_up_all(&m->wait);
}

/* The operation that another one is about. NULL: the process broke the rules. */
static struct coop_task *named(struct coop_machine *m, const struct coop_net_op *op)
{
	if (op->handle < m->n_tasks)
		return &m->task[op->handle];
	coop_machine_fail(m, -EBADSLT);
	return NULL;
}

static void cancel(struct coop_machine *m, const struct coop_net_op *op, u64 now)
{
	struct coop_task *t = named(m, op);

	switch (t ? t->code : 0) { /* 0: it is over */
	case COOP_NET_SEND:
		coop_send_cancel(m, t, now);
		break;
	case COOP_NET_RECV:
		coop_receive_cancel(m, t, now);
		break;
	case COOP_NET_OFFER:
		coop_offer_cancel(m, t);
		break;
	case COOP_NET_FETCH:
		coop_fetch_cancel(m, t, now);
		break;
	}
}

static void place(struct coop_machine *m, const struct coop_net_op *op)
{
	struct coop_task *t = named(m, op);

	if (t)
		coop_offer_place(m, t, op->peer);
}

static void perform(struct coop_machine *m, const struct coop_net_op *op, u64 now)
{
	m->figures.ops++;
	switch (op->code) {
	case COOP_NET_SEND:
		coop_send_begin(m, op, now);
		break;
	case COOP_NET_RECV:
		coop_receive_begin(m, op);
		break;
	case COOP_NET_OFFER:
		coop_offer_begin(m, op);
		break;
	case COOP_NET_FETCH:
		coop_fetch_begin(m, op, now);
		break;
	case COOP_NET_CANCEL:
		cancel(m, op, now);
		break;
	case COOP_NET_PLACE:
		place(m, op);
		break;
	default:
		coop_machine_fail(m, -EPROTO);
	}
}

/*
 * The events of an operation for which there must be room. What ends or changes an operation has
 * none: it may be what makes room.
 */
static s64 events_of(const struct coop_net_op *op)
{
	switch (op->code) {
	case COOP_NET_CANCEL:
	case COOP_NET_PLACE:
		return 0;
	case COOP_NET_SEND:
		return op->flags & COOP_NET_HERE ? 2 : 1;
	default:
		return 1;
	}
}

/*
 * Copies the operation that can be taken next. 0: there is none, or no room for its events;
 * -EPROTO: an index is impossible.
 */
static int next_op(struct coop_machine *m, struct coop_net_op *op)
{
	const s64 room = coop_rings_room(&m->rings);
	int got;

	if (room < 0)
		return -EPROTO;
	got = coop_rings_peek(&m->rings, op);
	if (got > 0 && room < events_of(op))
		return 0;
	return got;
}

bool coop_machine_take(struct coop_machine *m, u64 now)
{
	struct coop_net_op op;
	int n, got;

	for (n = 0; n < TAKE_MOST && coop_machine_runs(m); n++) {
		got = next_op(m, &op);
		if (got < 0)
			coop_machine_fail(m, -EPROTO);
		if (got <= 0)
			return false;
		perform(m, &op, now);
		coop_rings_take(&m->rings);
		m->busy_at = now;
	}
	return coop_machine_runs(m);
}

bool coop_machine_catch_up(struct coop_machine *m, u64 now)
{
	u32 left = m->rings.ops; /* no more were there before the call */

	while (left && coop_machine_take(m, now)) {
		left -= min_t(u32, left, TAKE_MOST);
		cond_resched();
	}
	return !left || !coop_rings_pending(&m->rings);
}

void coop_machine_tell(struct coop_machine *m)
{
	struct coop_net_event ev = {.code = COOP_NET_ADDRESS};

	if (!coop_machine_runs(m))
		return;
	if (m->address_changed && coop_rings_room(&m->rings) > 0) {
		m->address_changed = false;
		coop_rings_reserve(&m->rings);
		coop_event(m, &ev);
	}
	m->waits = !coop_peers_tell(m) || !coop_offers_tell(m) || m->address_changed;
	if (!m->wake)
		return;
	m->wake = false;
	if (wq_has_sleeper(&m->wait))
		wake_up_interruptible_poll(&m->wait, EPOLLIN | EPOLLRDNORM);
}

static void handle(struct coop_machine *m, const struct coop_chan_ev *ev)
{
	struct coop_peer *p;

	switch (ev->kind) {
	case COOP_CHAN_EV_DELIVERED:
	case COOP_CHAN_EV_ABORTED:
		coop_receive_over(m, ev);
		break;
	case COOP_CHAN_EV_SENT:
		coop_send_over(m, ev);
		break;
	case COOP_CHAN_EV_PEER_NEW:
		p = coop_peer_of(m, ev->peer);
		if (p)
			coop_peer_news(m, p, COOP_NET_PEER_NEW);
		break;
	case COOP_CHAN_EV_PEER_DEAD:
	case COOP_CHAN_EV_PEER_RESTARTED:
		p = coop_peer_of(m, ev->peer);
		if (!p)
			break;
		p->why = (u8)ev->why;
		p->err = ev->err;
		coop_peer_news(m, p,
			       ev->kind == COOP_CHAN_EV_PEER_DEAD ? COOP_NET_PEER_DEAD
								  : COOP_NET_PEER_RESTARTED);
		(void)coop_peers_tell(m); /* before the ends of its messages */
		break;
	}
}

/* ---- what the node calls -------------------------------------------------------- */

static void machine_rx(void *host, enum coop_line line, const void *buf, u32 len,
		       const struct coop_addr *from, u64 now)
{
	struct coop_machine *m = host;
	const struct coop_chan_dgram d = {
		.channel = line == COOP_LINE_DATA ? COOP_CHAN_DATA : COOP_CHAN_COMMAND,
		.len = len,
		.buf = buf,
		.src = *from,
	};

	if (!coop_machine_runs(m))
		return;
	m->busy_at = now;
	coop_receive_datagram(m, &d, now);
}

static bool machine_drain(void *host, u64 now)
{
	struct coop_machine *m = host;
	struct coop_chan_ev ev;
	bool again = true;

	while (again && coop_machine_runs(m)) {
		again = coop_send_datagrams(m, now);
		for (; coop_chan_next_event(m->chan, now, &ev); again = true)
			handle(m, &ev);
	}
	coop_machine_tell(m);
	return false;
}

static u64 machine_deadline(void *host)
{
	struct coop_machine *m = host;

	return coop_machine_runs(m) ? coop_chan_deadline(m->chan) : ~0ULL;
}

static void machine_expire(void *host, u64 now)
{
	struct coop_machine *m = host;

	if (coop_machine_runs(m))
		coop_chan_expire(m->chan, now);
}

static bool machine_awake(void *host, u64 now)
{
	struct coop_machine *m = host;

	if (!coop_machine_runs(m))
		return false;
	WRITE_ONCE(m->rings.shared->state, COOP_NET_AWAKE);
	return coop_machine_take(m, now);
}

static bool machine_asleep(void *host)
{
	struct coop_machine *m = host;
	struct coop_net_op op;

	if (!coop_machine_runs(m))
		return true;
	WRITE_ONCE(m->rings.shared->state, 0);
	/* Pairs with the process's fence between its operations and its look at the state. */
	smp_mb();
	if (!next_op(m, &op))
		return true;
	WRITE_ONCE(m->rings.shared->state, COOP_NET_AWAKE);
	return false;
}

static bool machine_spin(void *host, u64 now)
{
	struct coop_machine *m = host;

	/* Not in the way of others: one of them may be the process that polls. */
	return coop_machine_runs(m) && READ_ONCE(m->rings.shared->polls) &&
	       now - m->busy_at < SPIN_US && single_task_running();
}

static void machine_rouse(void *host)
{
	struct coop_machine *m = host;

	wake_up_interruptible(&m->wait);
}

static void machine_moved(void *host, u64 now)
{
	struct coop_machine *m = host;
	struct coop_net_addr now_at;
	u32 data_qpn, data_qkey;
	struct coop_addr self;

	if (!coop_machine_runs(m) || !coop_machine_self(m, &now_at) ||
	    !memcmp(&now_at, &m->self, sizeof(now_at)))
		return;
	(void)coop_lines_self(m->node, &self, &data_qpn, &data_qkey);
	coop_chan_set_self(m->chan, &self, data_qpn, data_qkey);
	m->self = now_at;
	m->address_changed = true;
	coop_machine_tell(m);
}

static void machine_lost(void *host)
{
	struct coop_machine *m = host;

	if (!m->over)
		coop_machine_fail(m, -ENODEV);
}

static const struct coop_lines_ops machine_lines = {
	.rx = machine_rx,
	.drain = machine_drain,
	.deadline = machine_deadline,
	.expire = machine_expire,
	.awake = machine_awake,
	.asleep = machine_asleep,
	.spin = machine_spin,
	.rouse = machine_rouse,
	.moved = machine_moved,
	.lost = machine_lost,
};

static const struct coop_node_ops machine_ops = {
	.lookup = coop_offer_lookup,
	.recheck = coop_offer_recheck,
	.release = coop_offer_release,
};

/* ---- the start ------------------------------------------------------------------ */

static bool set_default(u32 *value, u32 otherwise, u32 least, u32 most)
{
	if (!*value)
		*value = otherwise;
	return *value >= least && *value <= most;
}

int coop_machine_check(struct coop_net_setup *s)
{
	bool good = true;

	s->why[0] = 0;
	good &= set_default(&s->ops, 1024, 64, 16384) && is_power_of_2(s->ops);
	good &= set_default(&s->events, 4096, 64, 16384) && is_power_of_2(s->events);
	good &= set_default(&s->handles, 4096, 1, 65536);
	good &= set_default(&s->peers, 1024, 1, 65536);
	good &= set_default(&s->fetches, 16, 1, 256);
	good &= set_default(&s->serves, 16, 1, 256);
	good &= set_default(&s->window, COOP_CHAN_WINDOW, 64, COOP_CHAN_WINDOW);
	good &= is_power_of_2(s->window);
	good &= set_default(&s->tries, 16, 2, 250);
	good &= set_default(&s->fetch_timeout_us, DEFAULT_TIMEOUT, 1000, 60000000);
	good &= set_default(&s->silence_us, s->fetch_timeout_us, 1000, 600000000);
	good &= s->gid_index >= -1 && !s->zero;
	good &= !(s->flags & ~(COOP_NET_SEAL | COOP_NET_FIRST_SEQ | COOP_NET_PAGE_CRC));
	good &= strnlen(s->device, sizeof(s->device)) < sizeof(s->device);
	if (!good) {
		strscpy(s->why, "a number is out of its range, or a flag unknown: see abi.h",
			sizeof(s->why));
		return -EINVAL;
	}
	if (PAGE_SIZE != COOP_NET_PAGE) {
		strscpy(s->why, "this kernel's pages are not of 4096 bytes", sizeof(s->why));
		return -EOPNOTSUPP;
	}
	return 0;
}

/* Queue pairs to serve with. */
static u32 serving(const struct coop_net_setup *s)
{
	return DIV_ROUND_UP(s->serves, 4); /* COOP_SERVES_A_QP */
}

u32 coop_machine_queue_pairs(const struct coop_net_setup *s)
{
	return 2 + s->fetches + serving(s); /* two for messages */
}

static void node_config(const struct coop_machine *m, const struct coop_net_setup *s,
			struct coop_node_cfg *cfg)
{
	memset(cfg, 0, sizeof(*cfg));
	BUILD_BUG_ON(sizeof(cfg->devname) != sizeof(s->device));
	memcpy(cfg->devname, s->device, sizeof(cfg->devname));
	cfg->port = s->port;
	cfg->gid_index = s->gid_index;
	memcpy(cfg->addr, s->addr, sizeof(cfg->addr));
	cfg->qkey = s->qkey;
	cfg->num_srpc = s->fetches;
	cfg->num_rrpc = serving(s);
	cfg->peer_timeout_ms = DIV_ROUND_UP(s->fetch_timeout_us, 1000);
	cfg->silence_us = s->silence_us;
	cfg->page_crc = s->flags & COOP_NET_PAGE_CRC;
	memcpy(cfg->fabric_key, s->key, sizeof(cfg->fabric_key));
	cfg->net = m->net;
	cfg->memcg = m->memcg;
	cfg->lines = &machine_lines;
}

/* rpc/chan on the lines of the node. The lock is held. */
static int chan_config(struct coop_machine *m, struct coop_net_setup *s, struct coop_chan_cfg *c)
{
	u32 i;

	memset(c, 0, sizeof(*c));
	c->seed = get_random_u64();
	memcpy(c->key, s->key, sizeof(c->key));
	if (!coop_lines_self(m->node, &c->self, &c->data_qpn, &c->data_qkey))
		return -ENODEV;
	s->command_mtu = coop_lines_mtu(m->node, COOP_LINE_COMMAND) & ~7u;
	s->data_mtu = coop_lines_mtu(m->node, COOP_LINE_DATA) & ~7u;
	c->mtu[COOP_CHAN_COMMAND] = s->command_mtu;
	c->mtu[COOP_CHAN_DATA] = s->data_mtu;
	for (i = 0; i < COOP_CHAN_CHANNELS; i++)
		c->credits[i] = CHAN_CREDITS;
	c->max_peers = s->peers;
	c->max_active = min_t(u32, s->peers, CHAN_ACTIVE);
	c->max_reorder = min_t(u32, s->peers, CHAN_REORDER);
	c->max_sends = s->handles;
	c->max_receives = COOP_NET_RECEIVES;
	c->max_segments = CHAN_SEGMENTS;
	c->window = s->window;
	c->max_length =
		min_t(u32, MESSAGE_MOST, s->window / 2 * (s->data_mtu - COOP_CHAN_HEADER_MOST));
	c->max_tries = s->tries;
	c->rnr_tries = CHAN_RNR_TRIES;
	if (s->flags & COOP_NET_SEAL)
		c->flags |= COOP_CHAN_F_SEAL;
	if (s->flags & COOP_NET_FIRST_SEQ)
		c->flags |= COOP_CHAN_F_FIRST_SEQ;
	c->first_seq = s->first_seq;
	m->max_message = s->max_message = c->max_length;
	return 0;
}

static int create_chan(struct coop_machine *m, struct coop_net_setup *s)
{
	u64 now = coop_lines_begin(m->node);
	struct coop_chan *chan;
	struct coop_chan_cfg c;
	size_t size;
	void *mem;
	int err;

	err = chan_config(m, s, &c);
	coop_lines_leave(m->node);
	if (err)
		return err;
	size = coop_chan_size(&c);
	if (!size)
		return -EINVAL;
	mem = kvzalloc(size, GFP_KERNEL_ACCOUNT);
	if (!mem)
		return -ENOMEM;
	now = coop_lines_begin(m->node);
	/* The port may have moved meanwhile; datagrams have been dropped so far. */
	err = chan_config(m, s, &c);
	chan = err ? NULL : coop_chan_create(mem, size, &c, now);
	if (!err && !chan)
		err = -EINVAL;
	if (!err && !coop_machine_self(m, &m->self))
		err = -ENODEV;
	if (!err) {
		m->chan = chan;
		s->self = m->self;
	}
	coop_lines_end(m->node, now);
	if (err)
		kvfree(mem);
	return err;
}

static int create_parts(struct coop_machine *m, const struct coop_net_setup *s)
{
	int err;

	m->n_tasks = s->handles;
	m->task = kvcalloc(m->n_tasks, sizeof(*m->task), GFP_KERNEL_ACCOUNT);
	if (!m->task)
		return -ENOMEM;
	err = coop_peers_create(m, s->peers);
	if (!err)
		err = coop_receive_create(m);
	if (!err)
		err = coop_rings_create(&m->rings, s->ops, s->events);
	if (!err)
		err = coop_stats_init(&m->stats);
	return err;
}

int coop_machine_start(struct coop_machine *m, struct coop_net_setup *s)
{
	struct coop_node_cfg cfg;
	struct coop_node *node;
	int err;

	INIT_LIST_HEAD(&m->readers);
	hash_init(m->offers);
	xa_init_flags(&m->buffers, XA_FLAGS_ALLOC1);
	m->salt = get_random_u32();
	m->over = false;
	m->failure = 0;
	m->net = get_net(current->nsproxy->net_ns);
	m->memcg = get_mem_cgroup_from_mm(current->mm);
	err = create_parts(m, s);
	if (err)
		goto no_memory;
	node_config(m, s, &cfg);
	node = coop_node_create(&cfg, &m->stats, &machine_ops, m, s->why, sizeof(s->why));
	if (IS_ERR(node)) {
		err = PTR_ERR(node);
		goto err;
	}
	m->node = node;
	err = create_chan(m, s);
	if (err)
		goto no_memory;
	s->why[0] = 0;
	s->fetch_pages = coop_node_max_pages(node);
	s->map_bytes = coop_rings_bytes(&m->rings);
	s->ops_at = (u64)((void *)m->rings.op - (void *)m->rings.shared);
	s->events_at = (u64)((void *)m->rings.event - (void *)m->rings.shared);
	coop_lines_kick(node);
	return 0;

no_memory:
	strscpy(s->why,
		err == -ENOMEM   ? "out of memory"
		: err == -ENODEV ? "the device has been removed"
				 : "a parameter is out of range",
		sizeof(s->why));
err:
	coop_machine_free(m);
	return err;
}

bool coop_machine_self(struct coop_machine *m, struct coop_net_addr *self)
{
	struct coop_addr a;

	memset(self, 0, sizeof(*self));
	if (!coop_lines_self(m->node, &a, &self->data_qpn, &self->data_qkey))
		return false;
	memcpy(self->gid, a.gid, sizeof(self->gid));
	self->qpn = a.qpn;
	self->qkey = a.qkey;
	self->lid = a.lid;
	self->sl = a.sl;
	return true;
}
