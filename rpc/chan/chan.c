// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * chan.c - memory, results, time and statistics of rpc/chan.
 *
 * One block of the host's memory is cut into arrays; core.h says what each is
 * for and which file owns which part of the protocol. A message's event waits
 * until the network no longer reads its memory, also when the message failed.
 */
#include "core.h"

#define MAX_PEERS    (1u << 18)
#define MAX_MESSAGES (1u << 19)

/* ---- memory ------------------------------------------------------------------------ */

/* Reserves n objects of that size. Returns their offset in the block. */
static size_t carve(size_t *used, size_t n, size_t size)
{
	const size_t at = *used;

	*used += (n * size + 7) & ~(size_t)7;
	return at;
}

static u32 power_of_two(u32 at_least)
{
	return at_least < 2 ? 1 : 2u << coop_ilog2(at_least - 1);
}

/* Offsets of the arrays in the block, which starts with the struct coop_chan. */
struct layout {
	u32 n_buckets, n_recv_buckets, n_blocks;
	size_t line[6], peer, peer_ids, bucket, bucket_epoch, wheel, nodes, send, send_all,
		send_queue, send_ids, sent, seg, seg_link, block, table, table_next, map, map_next,
		recv, recv_link, recv_bucket, received, note, packet, out, hdr;
	size_t size; /* of the block */
};

static void lay_out(const struct coop_chan_cfg *cfg, struct layout *l)
{
	const size_t peers = cfg->max_peers, sends = cfg->max_sends;
	const size_t active = cfg->max_active, reorder = cfg->max_reorder;
	const size_t receives = cfg->max_receives;
	const struct coop_chan *c = NULL; /* only for sizeof of its members */
	size_t used = 0, segs;
	u32 i;

	l->n_buckets = power_of_two(cfg->max_peers);
	l->n_recv_buckets = power_of_two(cfg->max_receives);
	l->n_blocks = (cfg->max_segments + COOP_CHAN_BLOCK - 1) / COOP_CHAN_BLOCK;
	segs = (size_t)l->n_blocks * COOP_CHAN_BLOCK;
	carve(&used, 1, sizeof(*c));
	l->peer = carve(&used, peers, sizeof(*c->peer));
	l->peer_ids = carve(&used, peers, sizeof(struct coop_id));
	l->bucket = carve(&used, l->n_buckets, sizeof(u32));
	l->bucket_epoch = carve(&used, l->n_buckets, sizeof(u32));
	l->wheel = carve(&used, 1, sizeof(*c->wheel));
	l->nodes = carve(&used, 2 * peers + sends, sizeof(struct coop_wheel_node));
	for (i = 0; i < 6; i++)
		l->line[i] = carve(&used, peers, sizeof(u32));
	l->send = carve(&used, sends, sizeof(*c->send));
	l->send_all = carve(&used, sends, sizeof(*c->send_all));
	l->send_queue = carve(&used, sends, sizeof(*c->send_queue));
	l->send_ids = carve(&used, sends, sizeof(struct coop_id));
	l->sent = carve(&used, sends, sizeof(u32));
	l->seg = carve(&used, segs, sizeof(*c->seg));
	l->seg_link = carve(&used, segs, sizeof(*c->seg_link));
	l->block = carve(&used, l->n_blocks, sizeof(*c->block));
	l->table = carve(&used, active, sizeof(*c->table));
	l->table_next = carve(&used, active, sizeof(u32));
	l->map = carve(&used, reorder, sizeof(*c->map));
	l->map_next = carve(&used, reorder, sizeof(u32));
	l->recv = carve(&used, receives, sizeof(*c->recv));
	l->recv_link = carve(&used, receives, sizeof(*c->recv_link));
	l->recv_bucket = carve(&used, l->n_recv_buckets, sizeof(u32));
	l->received = carve(&used, receives, sizeof(u32));
	l->note = carve(&used, COOP_CHAN_NOTES, sizeof(*c->note));
	l->packet = carve(&used, 1, sizeof(*c->packet));
	l->out = carve(&used, 1, sizeof(*c->out));
	l->hdr = carve(&used, 1, COOP_CHAN_COMMAND_MTU);
	l->size = used;
}

/* Sets the array pointers of c, with which the block starts. */
static void arrange(struct coop_chan *c, const struct layout *l)
{
	u8 *base = (u8 *)c;

	c->n_buckets = l->n_buckets;
	c->n_recv_buckets = l->n_recv_buckets;
	c->n_blocks = l->n_blocks;
	c->peer = (void *)(base + l->peer);
	c->bucket = (void *)(base + l->bucket);
	c->bucket_epoch = (void *)(base + l->bucket_epoch);
	c->wheel = (void *)(base + l->wheel);
	c->send = (void *)(base + l->send);
	c->send_all = (void *)(base + l->send_all);
	c->send_queue = (void *)(base + l->send_queue);
	c->seg = (void *)(base + l->seg);
	c->seg_link = (void *)(base + l->seg_link);
	c->block = (void *)(base + l->block);
	c->table = (void *)(base + l->table);
	c->table_next = (void *)(base + l->table_next);
	c->map = (void *)(base + l->map);
	c->map_next = (void *)(base + l->map_next);
	c->recv = (void *)(base + l->recv);
	c->recv_link = (void *)(base + l->recv_link);
	c->recv_bucket = (void *)(base + l->recv_bucket);
	c->note = (void *)(base + l->note);
	c->packet = (void *)(base + l->packet);
	c->out = (void *)(base + l->out);
	c->hdr = (void *)(base + l->hdr);
}

u32 coop_chan_peer_bytes(void)
{
	return (u32)(sizeof(struct coop_chan_peer) + sizeof(struct coop_id) +
		     2 * sizeof(struct coop_wheel_node) + (6 + 2) * sizeof(u32));
}

static bool in_range(u32 v, u32 low, u32 high)
{
	return v >= low && v <= high;
}

/* Payload bytes of a full segment of this MTU. */
static u32 unit_of(u32 mtu)
{
	return (mtu - COOP_CHAN_HEADER_MOST) & ~7u;
}

/* Copies the configuration and fills in the defaults; false: out of range. */
static bool settle(const struct coop_chan_cfg *in, struct coop_chan_cfg *cfg)
{
	u32 segs, ch;

	*cfg = *in;
	if (!cfg->window)
		cfg->window = COOP_CHAN_WINDOW;
	if (!cfg->ack_us)
		cfg->ack_us = 50;
	if (!cfg->rto_first_us)
		cfg->rto_first_us = 100000;
	if (!cfg->rto_min_us)
		cfg->rto_min_us = 4000;
	if (!cfg->rto_max_us)
		cfg->rto_max_us = 1000000;
	if (!cfg->rnr_us)
		cfg->rnr_us = 1000;
	if (!cfg->quiet_us)
		cfg->quiet_us = 1000000;
	if (!cfg->max_tries)
		cfg->max_tries = 16;
	if (!cfg->rnr_tries)
		cfg->rnr_tries = 16;
	for (ch = 0; ch < COOP_CHAN_CHANNELS; ch++)
		if (!in_range(cfg->mtu[ch], COOP_MTU_MIN, COOP_MTU_MAX) || cfg->mtu[ch] % 8 ||
		    !in_range(cfg->credits[ch], 4, 1u << 20))
			return false;
	if (cfg->mtu[COOP_CHAN_COMMAND] > COOP_CHAN_COMMAND_MTU ||
	    cfg->mtu[COOP_CHAN_COMMAND] > cfg->mtu[COOP_CHAN_DATA] ||
	    !in_range(cfg->window, 64, COOP_CHAN_WINDOW) || cfg->window & (cfg->window - 1))
		return false;
	if (cfg->max_length > COOP_CHAN_MSG_SEGS * COOP_MTU_MAX)
		return false;
	segs = cfg->max_length / unit_of(cfg->mtu[COOP_CHAN_DATA]) + 1;
	return in_range(cfg->max_peers, 1, MAX_PEERS) &&
	       in_range(cfg->max_active, 1, cfg->max_peers) && cfg->max_reorder <= cfg->max_peers &&
	       in_range(cfg->max_sends, 1, MAX_MESSAGES) &&
	       in_range(cfg->max_receives, 1, MAX_MESSAGES) && segs <= cfg->window / 2 + 1 &&
	       in_range(cfg->max_segments, segs + 2 * COOP_CHAN_BLOCK,
			COOP_CHAN_BLOCK * (COOP_CHAN_NO_BLOCK - 1)) &&
	       cfg->max_tries >= 2 && cfg->max_tries <= 250 && cfg->rnr_tries <= 250 &&
	       in_range(cfg->rto_min_us, 1, cfg->rto_max_us) && cfg->rto_max_us <= 1u << 30 &&
	       in_range(cfg->rto_first_us, 1, cfg->rto_max_us) && cfg->ack_us <= 1u << 15 &&
	       cfg->rnr_us <= 1u << 24;
}

size_t coop_chan_size(const struct coop_chan_cfg *in)
{
	struct coop_chan_cfg cfg;
	struct layout l;

	if (!settle(in, &cfg))
		return 0;
	lay_out(&cfg, &l);
	return l.size;
}

struct coop_chan *coop_chan_create(void *mem, size_t size, const struct coop_chan_cfg *in, u64 now)
{
	struct coop_chan *c = mem;
	struct coop_chan_cfg cfg;
	u32 i, peers, sends;
	struct layout l;
	u8 *base = mem;
	__le64 word;

	if (!settle(in, &cfg))
		return NULL;
	lay_out(&cfg, &l);
	if (size < l.size)
		return NULL;
	memset(c, 0, sizeof(*c));
	arrange(c, &l);
	c->cfg = cfg;
	peers = cfg.max_peers;
	sends = cfg.max_sends;
	c->random = coop_mix(cfg.seed);
	for (i = 0; i < 2; i++) {
		word = cpu_to_le64(coop_random(&c->random));
		memcpy(c->secret + 8 * i, &word, 8);
	}
	c->salt = coop_random(&c->random);
	memcpy(c->credits, cfg.credits, sizeof(c->credits));
	c->command_reserve = cfg.credits[COOP_CHAN_COMMAND] / 4;
	c->unit = unit_of(cfg.mtu[COOP_CHAN_DATA]);
	c->tiny = unit_of(cfg.mtu[COOP_CHAN_COMMAND]);

	memset(c->peer, 0, peers * sizeof(*c->peer));
	coop_chan_peers_init(c, (void *)(base + l.peer_ids), now);
	coop_wheel_init(c->wheel, (void *)(base + l.nodes), 2 * peers + sends, now);
	coop_fifo_init(&c->resend, (void *)(base + l.line[0]), peers);
	coop_fifo_init(&c->ready[0], (void *)(base + l.line[1]), peers);
	coop_fifo_init(&c->ready[1], (void *)(base + l.line[2]), peers);
	coop_fifo_init(&c->ack, (void *)(base + l.line[3]), peers);
	coop_fifo_init(&c->starved, (void *)(base + l.line[4]), peers);
	coop_fifo_init(&c->news, (void *)(base + l.line[5]), peers);
	memset(c->send, 0, sends * sizeof(*c->send));
	coop_idtab_init(&c->send_ids, (void *)(base + l.send_ids), sends);
	coop_fifo_init(&c->sent, (void *)(base + l.sent), sends);
	c->fed = COOP_NONE;
	coop_chan_windows_init(c);
	coop_chan_recv_init(c);
	coop_fifo_init(&c->received, (void *)(base + l.received), cfg.max_receives);
	memset(c->packet, 0, sizeof(*c->packet));
	memset(c->out, 0, sizeof(*c->out));
	return c;
}

void coop_chan_set_self(struct coop_chan *c, const struct coop_addr *self, u32 data_qpn,
			u32 data_qkey)
{
	c->cfg.self = *self;
	c->cfg.data_qpn = data_qpn;
	c->cfg.data_qkey = data_qkey;
}

u32 coop_chan_tiny(const struct coop_chan *c)
{
	return c->tiny;
}

u32 coop_chan_unit(const struct coop_chan *c)
{
	return c->unit;
}

struct coop_chan_note *coop_chan_note(struct coop_chan *c, u8 type, const struct coop_addr *to)
{
	struct coop_chan_note *n = &c->note[c->note_head % COOP_CHAN_NOTES];

	if (c->note_head - c->note_tail == COOP_CHAN_NOTES) {
		c->stats.notes_dropped++;
		return NULL;
	}
	c->note_head++;
	memset(n, 0, sizeof(*n));
	n->type = type;
	n->to = *to;
	return n;
}

/* ---- results ----------------------------------------------------------------------- */

void coop_chan_finish(struct coop_chan *c, u32 msg, int err)
{
	struct coop_send *s = &c->send[msg];
	struct coop_chan_peer *p = &c->peer[s->peer];

	if (s->state != COOP_MSG_ENDING) {
		coop_chan_dequeue(c, p, msg);
		coop_list_remove(&p->all, c->send_all, msg);
		coop_wheel_clear(c->wheel, 2 * c->cfg.max_peers + msg);
		s->state = COOP_MSG_ENDING;
		s->err = err;
		if (err)
			c->stats.sent_failed++;
		else
			c->stats.sent_ok++;
		if (!err)
			c->stats.sent_bytes += s->length;
	}
	if (s->wire)
		return;
	s->state = COOP_MSG_OVER;
	coop_fifo_push(&c->sent, msg);
}

static void cookie_of(const struct coop_chan *c, struct coop_chan_ev *ev)
{
	const struct coop_chan_peer *p = coop_chan_by_id(c, ev->peer);

	ev->peer_cookie = p ? p->cookie : 0;
}

static bool peer_event(struct coop_chan *c, struct coop_chan_ev *ev)
{
	while (c->news.head != COOP_NONE) {
		struct coop_chan_peer *p = &c->peer[c->news.head];

		ev->peer = p->id;
		if (p->news & COOP_NEWS_NEW) {
			p->news &= ~COOP_NEWS_NEW;
			ev->kind = COOP_CHAN_EV_PEER_NEW;
		} else if (p->news & COOP_NEWS_DEAD) {
			p->news &= ~COOP_NEWS_DEAD;
			ev->kind = COOP_CHAN_EV_PEER_DEAD;
			ev->why = p->why;
			ev->err = p->err;
		} else if (p->news & COOP_NEWS_RESTARTED) {
			p->news &= ~COOP_NEWS_RESTARTED;
			ev->kind = COOP_CHAN_EV_PEER_RESTARTED;
			ev->why = p->restart_why;
		} else {
			coop_fifo_pop(&c->news);
			continue;
		}
		return true;
	}
	return false;
}

bool coop_chan_next_event(struct coop_chan *c, u64 now, struct coop_chan_ev *ev)
{
	u32 i;

	memset(ev, 0, sizeof(*ev));
	if (peer_event(c, ev)) {
		cookie_of(c, ev);
		return true;
	}
	i = coop_fifo_pop(&c->received);
	if (i != COOP_NONE) {
		const struct coop_recv *r = &c->recv[i];

		ev->kind =
			r->state == COOP_RECV_WHOLE ? COOP_CHAN_EV_DELIVERED : COOP_CHAN_EV_ABORTED;
		ev->peer = r->peer_id;
		ev->cookie = r->cookie;
		ev->tag = r->tag;
		ev->length = r->length;
		ev->err = r->err;
		cookie_of(c, ev);
		coop_chan_recv_told(c, i);
		return true;
	}
	i = coop_fifo_pop(&c->sent);
	if (i != COOP_NONE) {
		struct coop_send *s = &c->send[i];

		ev->kind = COOP_CHAN_EV_SENT;
		ev->peer = s->peer_id;
		ev->id = s->id;
		ev->cookie = s->cookie;
		ev->tag = s->tag;
		ev->length = s->length;
		ev->err = s->err;
		ev->elapsed_us = (u32)coop_min_u64(now - s->at, ~0u);
		cookie_of(c, ev);
		s->state = COOP_MSG_FREE;
		coop_idtab_put(&c->send_ids, s->id);
		return true;
	}
	return false;
}

const char *coop_chan_why_text(u32 why)
{
	switch (why) {
	case COOP_CHAN_WHY_NONE:
		return "no reason";
	case COOP_CHAN_WHY_NO_ANSWER:
		return "it never answered: check that it runs, its address and Q_Key, and that "
		       "both sides have the same fabric key";
	case COOP_CHAN_WHY_SILENT:
		return "it does not answer any more";
	case COOP_CHAN_WHY_DATA_PATH:
		return "it answers, but datagrams of the data channel do not get through: check "
		       "the MTU of the path and its data queue pair";
	case COOP_CHAN_WHY_VERSION:
		return "it speaks another version of the message protocol";
	case COOP_CHAN_WHY_RESET:
		return "it knows nothing of the session: it restarted or closed it";
	case COOP_CHAN_WHY_NEW_SESSION:
		return "it began a new session: it restarted";
	default:
		return "unknown";
	}
}

/* ---- time and statistics ----------------------------------------------------------- */

u64 coop_chan_deadline(const struct coop_chan *c)
{
	return coop_wheel_first(c->wheel);
}

void coop_chan_expire(struct coop_chan *c, u64 now)
{
	u32 i, peers = c->cfg.max_peers;

	while ((i = coop_wheel_due(c->wheel, now)) != COOP_NONE) {
		if (i < peers)
			coop_chan_timeout(c, &c->peer[i], now);
		else if (i < 2 * peers)
			coop_chan_ack_late(c, &c->peer[i - peers], now);
		else
			coop_chan_knock(c, i - 2 * peers);
	}
}

void coop_chan_stats(const struct coop_chan *c, struct coop_chan_stats *out)
{
	*out = c->stats;
	out->segments_used = (u64)(c->n_blocks - c->free_blocks) * COOP_CHAN_BLOCK;
	out->sends_used = c->send_ids.used;
}

void coop_chan_stats_reset(struct coop_chan *c)
{
	struct coop_chan_stats old = c->stats;

	memset(&c->stats, 0, sizeof(c->stats));
	c->stats.peers = old.peers;
	c->stats.active_used = old.active_used;
	c->stats.reorder_used = old.reorder_used;
	c->stats.receives_used = old.receives_used;
}
