// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * fetch.c - bulk data on their way in: pages of what a peer offers.
 *
 * The network writes whole pages. Where a page of the buffer is a page of memory
 * it writes there; elsewhere, and at the end of the data, it writes to a page of
 * ours, from which the bytes of a good page are copied. Pages are the peer's: the
 * data may begin anywhere in the buffer, and end within a page that the peer has
 * in full.
 */
#include <linux/highmem.h>
#include <linux/slab.h>

#include "msg/machine.h"

#define PAGE_BYTES COOP_NET_PAGE

static_assert(COOP_NET_RUN == COOP_MAX_PAGES);

struct coop_reading {
	struct coop_node_fetch f;
	struct coop_machine *m;
	struct coop_addr from;
	u32 handle;
	u64 at;     /* in the buffer, of page 'f.index' */
	u64 length; /* from there on */
	u64 bounce; /* pages of ours */
};

/* Bytes of a page that belong to the data. */
static u32 bytes_of(const struct coop_reading *r, u32 i)
{
	return (u32)min_t(u64, PAGE_BYTES, r->length - (u64)i * PAGE_BYTES);
}

/* The peer judges the shift; here it counts for what the peer has behind it. */
static int check(const struct coop_net_op *op)
{
	const u64 most = U64_MAX / PAGE_BYTES - COOP_NET_RUN, want = op->u.fetch.want;
	const u64 index = op->u.fetch.index, shift = op->u.fetch.fid[1] >> COOP_NET_SHIFT_AT;
	const u32 n = fls64(want);
	u64 left;

	if (!n || op->flags || op->zero || op->u.fetch.zero || index > most ||
	    shift >= op->u.fetch.size || !op->length)
		return -EINVAL;
	if (index / COOP_NET_RUN != (index + n - 1) / COOP_NET_RUN)
		return -EINVAL;
	left = op->u.fetch.size - shift;
	if (index > (left - 1) / PAGE_BYTES || op->length > left - index * PAGE_BYTES)
		return -EINVAL;
	if (n - 1 > (op->length - 1) / PAGE_BYTES)
		return -EINVAL;
	if (op->u.fetch.budget_us > COOP_BUDGET_MOST_US)
		return -EINVAL;
	return op->u.fetch.version ? 0 : -ENOENT; /* the key of no offer */
}

static int find_pages(struct coop_reading *r, const struct coop_pinned *buffer)
{
	struct coop_node_fetch *f = &r->f;
	u64 left;

	for (left = f->want; left; left &= left - 1) {
		const u32 i = (u32)__ffs64(left);

		if (bytes_of(r, i) == PAGE_BYTES)
			f->pages[i] = coop_pinned_page(buffer, r->at + (u64)i * PAGE_BYTES);
		if (f->pages[i])
			continue;
		f->pages[i] = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN);
		if (!f->pages[i])
			return -ENOMEM;
		r->bounce |= 1ULL << i;
	}
	return 0;
}

static void free_reading(struct coop_reading *r)
{
	u64 left;

	for (left = r->bounce; left; left &= left - 1)
		__free_page(r->f.pages[__ffs64(left)]);
	kfree(r);
}

static void unbounce(const struct coop_reading *r, const struct coop_pinned *buffer, u64 good)
{
	u64 left;

	for (left = r->bounce & good; left; left &= left - 1) {
		const u32 i = (u32)__ffs64(left);
		void *p = kmap_local_page(r->f.pages[i]);

		coop_pinned_write(buffer, r->at + (u64)i * PAGE_BYTES, p, bytes_of(r, i));
		kunmap_local(p);
	}
}

static void fetch_done(struct coop_node_fetch *f, u64 good, int err)
{
	struct coop_reading *r = container_of(f, struct coop_reading, f);
	struct coop_net_event ev = {.pages = good};
	struct coop_machine *m = r->m;
	struct coop_task *t = &m->task[r->handle];
	const u64 now = coop_lines_begin(m->node);
	u64 left;

	if (!m->over)
		unbounce(r, t->buffer, good);
	for (left = good; left; left &= left - 1)
		ev.length += bytes_of(r, (u32)__ffs64(left));
	m->figures.fetched_bytes += ev.length;
	if (m->failure || m->over)
		err = -ENODEV;
	else if (err == -ENOENT && f->slot == COOP_NONE)
		err = -EHOSTUNREACH; /* it was not asked: the engine had given the peer up */
	coop_task_over(m, t, &ev, COOP_NET_FETCHED, err);
	coop_machine_tell(m);
	coop_lines_end(m->node, now);
	free_reading(r);
}

void coop_fetch_begin(struct coop_machine *m, const struct coop_net_op *op, u64 now)
{
	struct coop_task *t = coop_task_begin(m, op);
	struct coop_net_event ev = {.peer = op->peer};
	struct coop_reading *r = NULL;
	int err;

	if (!t)
		return;
	err = check(op);
	if (!err)
		err = coop_task_use(m, t, op->buffer, op->offset, op->length);
	if (err)
		goto over;
	err = -ENOMEM;
	r = kzalloc(sizeof(*r), GFP_KERNEL_ACCOUNT);
	if (!r)
		goto over;
	r->m = m;
	r->handle = op->handle;
	r->at = op->offset;
	r->length = op->length;
	r->f.fid.hi = op->u.fetch.fid[0];
	r->f.fid.lo = op->u.fetch.fid[1];
	r->f.version = op->u.fetch.version;
	r->f.size = op->u.fetch.size;
	r->f.index = op->u.fetch.index;
	r->f.want = op->u.fetch.want;
	r->f.n_pages = fls64(r->f.want);
	r->f.budget_us = op->u.fetch.budget_us;
	r->f.from = &r->from;
	r->f.done = fetch_done;
	err = coop_peer_address(m, op->peer, &r->from);
	if (!err)
		err = find_pages(r, t->buffer);
	if (!err)
		err = coop_lines_fetch(m->node, &r->f, now);
	if (err == -ENOENT)
		err = -EHOSTUNREACH; /* nobody was asked */
	if (err)
		goto over;
	t->u.reading = r;
	return;

over:
	if (r)
		free_reading(r);
	coop_task_over(m, t, &ev, COOP_NET_FETCHED, err);
}

void coop_fetch_cancel(struct coop_machine *m, struct coop_task *t, u64 now)
{
	coop_lines_cancel(m->node, &t->u.reading->f, now);
}
