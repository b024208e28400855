// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Sequence numbers in use, for sending and for receiving.
 *
 * A window of 4096 segments for each of 10,000 peers would be a gigabyte, mostly
 * idle. So segments come in blocks of 64 from a pool for all peers. A peer with
 * unacknowledged segments holds a table of its blocks, which finds the segment
 * of a sequence number in two steps. A block returns to the pool when its last
 * segment is acknowledged, and the table with the last block. Receiving needs
 * memory only for segments out of order: a bitmap, until the gap is closed.
 */
#include "core.h"

void coop_chan_windows_init(struct coop_chan *c)
{
	u32 i;

	for (i = 0; i < c->n_blocks; i++)
		c->block[i].next = i + 1 < c->n_blocks ? i + 1 : COOP_NONE;
	c->block_head = 0;
	c->free_blocks = c->n_blocks;
	c->table_head = COOP_NONE;
	c->tables_made = 0;
	for (i = 0; i < c->cfg.max_reorder; i++)
		c->map_next[i] = i + 1 < c->cfg.max_reorder ? i + 1 : COOP_NONE;
	c->map_head = c->cfg.max_reorder ? 0 : COOP_NONE;
}

/* ---- sending ----------------------------------------------------------------------- */

static u16 *entry(const struct coop_chan *c, const struct coop_chan_peer *p, u64 number)
{
	return &c->table[p->table].block[number % COOP_CHAN_TABLE];
}

u32 coop_chan_seg(const struct coop_chan *c, const struct coop_chan_peer *p, u64 seq)
{
	return *entry(c, p, seq / COOP_CHAN_BLOCK) * COOP_CHAN_BLOCK + (u32)(seq % COOP_CHAN_BLOCK);
}

u64 coop_chan_seg_seq(const struct coop_chan *c, u32 seg)
{
	return c->block[seg / COOP_CHAN_BLOCK].base + seg % COOP_CHAN_BLOCK;
}

static void take_block(struct coop_chan *c, struct coop_chan_peer *p, u64 number)
{
	u32 b = c->block_head;

	c->block_head = c->block[b].next;
	c->free_blocks--;
	c->block[b].base = number * COOP_CHAN_BLOCK;
	c->block[b].peer = coop_chan_slot(c, p);
	*entry(c, p, number) = (u16)b;
}

static void free_block(struct coop_chan *c, struct coop_chan_peer *p, u64 number)
{
	u16 *at = entry(c, p, number);

	if (*at == COOP_CHAN_NO_BLOCK)
		return;
	c->block[*at].next = c->block_head;
	c->block_head = *at;
	c->free_blocks++;
	*at = COOP_CHAN_NO_BLOCK;
	c->freed = true;
}

static bool table_left(const struct coop_chan *c)
{
	return c->table_head != COOP_NONE || c->tables_made < c->cfg.max_active;
}

/* A table without blocks. A returned table is empty: its peer freed all blocks before. */
static u32 take_table(struct coop_chan *c)
{
	u32 t = c->table_head, i;

	if (t != COOP_NONE) {
		c->table_head = c->table_next[t];
		return t;
	}
	t = c->tables_made++;
	for (i = 0; i < COOP_CHAN_TABLE; i++)
		c->table[t].block[i] = COOP_CHAN_NO_BLOCK;
	return t;
}

static u32 blocks_held(const struct coop_chan_peer *p)
{
	if (p->una == p->next)
		return 0;
	return (u32)((p->next - 1) / COOP_CHAN_BLOCK - p->una / COOP_CHAN_BLOCK) + 1;
}

/*
 * A peer that holds blocks gets more only while it holds fewer than are free. So one that never
 * acknowledges its oldest segments leaves blocks to others. It is not for the queue of those that
 * find the pool empty, which it would block: its own ACKs wake it.
 */
int coop_chan_reserve(struct coop_chan *c, struct coop_chan_peer *p, u32 n)
{
	u64 from = p->next / COOP_CHAN_BLOCK, to = (p->next + n - 1) / COOP_CHAN_BLOCK, b, seq;
	u32 need = (u32)(to - from) + 1;

	if (p->next - p->una + n > p->window)
		return -EAGAIN;
	if (p->table == COOP_NONE && !table_left(c)) {
		c->stats.no_active++;
		return -ENOSPC;
	}
	if (p->table != COOP_NONE && *entry(c, p, from) != COOP_CHAN_NO_BLOCK)
		need--;
	if (need && blocks_held(p) && blocks_held(p) >= c->free_blocks) {
		c->stats.no_segments++;
		return -EAGAIN;
	}
	if (need > c->free_blocks) {
		c->stats.no_segments++;
		return -ENOSPC;
	}
	if (p->table == COOP_NONE) {
		p->table = take_table(c);
		c->stats.active_used++;
	}
	for (b = from; b <= to; b++)
		if (*entry(c, p, b) == COOP_CHAN_NO_BLOCK)
			take_block(c, p, b);
	for (seq = p->next; seq < p->next + n; seq++) {
		struct coop_seg_tx *s = &c->seg[coop_chan_seg(c, p, seq)];

		memset(s, 0, sizeof(*s));
		s->msg = COOP_NONE;
		s->state = COOP_SEG_TO_SEND;
	}
	p->next += n;
	return 0;
}

void coop_chan_advance(struct coop_chan *c, struct coop_chan_peer *p, u64 seq)
{
	u64 b = p->una / COOP_CHAN_BLOCK;

	for (; b < seq / COOP_CHAN_BLOCK; b++)
		free_block(c, p, b);
	p->una = seq;
	if (seq != p->next || p->table == COOP_NONE)
		return;
	free_block(c, p, b);
	c->table_next[p->table] = c->table_head;
	c->table_head = p->table;
	p->table = COOP_NONE;
	c->stats.active_used--;
	c->freed = true;
}

void coop_chan_window_drop(struct coop_chan *c, struct coop_chan_peer *p)
{
	coop_list_init(&p->flight[0]);
	coop_list_init(&p->flight[1]);
	coop_list_init(&p->resend);
	p->in_flight = 0;
	coop_chan_advance(c, p, p->next);
}

/* ---- receiving --------------------------------------------------------------------- */

#define MAP_BITS (COOP_CHAN_MAP_WORDS * 64)

bool coop_chan_has(const struct coop_chan *c, const struct coop_chan_peer *p, u64 seq)
{
	return p->map != COOP_NONE && coop_bit(c->map[p->map].bits, (u32)seq & (MAP_BITS - 1));
}

bool coop_chan_may_mark(const struct coop_chan *c, const struct coop_chan_peer *p, u64 seq)
{
	return seq == p->rx_next || p->map != COOP_NONE || c->map_head != COOP_NONE;
}

void coop_chan_mark(struct coop_chan *c, struct coop_chan_peer *p, u64 seq)
{
	if (seq > p->rx_high)
		p->rx_high = seq;
	if (seq != p->rx_next) {
		if (p->map == COOP_NONE) {
			p->map = c->map_head;
			c->map_head = c->map_next[p->map];
			c->stats.reorder_used++;
			memset(&c->map[p->map], 0, sizeof(c->map[p->map]));
		}
		coop_bit_set(c->map[p->map].bits, (u32)seq & (MAP_BITS - 1));
		p->reordered++;
		return;
	}
	p->rx_next++;
	while (p->reordered && coop_chan_has(c, p, p->rx_next)) {
		coop_bit_clear(c->map[p->map].bits, (u32)p->rx_next & (MAP_BITS - 1));
		p->reordered--;
		p->rx_next++;
	}
	if (!p->reordered)
		coop_chan_map_drop(c, p);
}

void coop_chan_map_drop(struct coop_chan *c, struct coop_chan_peer *p)
{
	p->reordered = 0;
	if (p->map == COOP_NONE)
		return;
	c->map_next[p->map] = c->map_head;
	c->map_head = p->map;
	p->map = COOP_NONE;
	c->stats.reorder_used--;
}

u64 coop_chan_map_word(const struct coop_chan *c, const struct coop_chan_peer *p, u64 seq)
{
	u32 at = (u32)seq & (MAP_BITS - 1), word = at / 64, shift = at % 64;
	const u64 *bits;
	u64 v;

	if (p->map == COOP_NONE)
		return 0;
	bits = c->map[p->map].bits;
	v = bits[word] >> shift;
	if (shift)
		v |= bits[(word + 1) % COOP_CHAN_MAP_WORDS] << (64 - shift);
	/* The window is at most as long as the ring. Mask the bits past it, which belong to earlier
	 * numbers. */
	if (seq + 63 >= p->rx_next + MAP_BITS)
		v &= coop_mask((u32)(p->rx_next + MAP_BITS - seq));
	return v;
}
