// SPDX-License-Identifier: GPL-2.0 OR MIT
/* rings.c - see rings.h. */
#include "msg/rings.h"

#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

static_assert(sizeof(struct coop_net_rings) == 256);
static_assert(sizeof(struct coop_net_op) == 128);
static_assert(sizeof(struct coop_net_event) == 128);

int coop_rings_create(struct coop_rings *r, u32 ops, u32 events)
{
	const size_t op_bytes = PAGE_ALIGN((size_t)ops * sizeof(*r->op));
	const size_t event_bytes = PAGE_ALIGN((size_t)events * sizeof(*r->event));
	const u32 n = 1 + (u32)((op_bytes + event_bytes) >> PAGE_SHIFT);

	r->page = kvcalloc(n, sizeof(*r->page), GFP_KERNEL_ACCOUNT);
	if (!r->page)
		return -ENOMEM;
	for (; r->n_pages < n; r->n_pages++) {
		r->page[r->n_pages] = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
		if (!r->page[r->n_pages])
			goto err;
	}
	r->shared = vmap(r->page, n, VM_MAP, PAGE_KERNEL);
	if (!r->shared)
		goto err;
	r->op = (void *)r->shared + PAGE_SIZE;
	r->event = (void *)r->op + op_bytes;
	r->ops = ops;
	r->events = events;
	return 0;

err:
	coop_rings_destroy(r);
	return -ENOMEM;
}

void coop_rings_destroy(struct coop_rings *r)
{
	u32 i;

	vunmap(r->shared);
	for (i = 0; i < r->n_pages; i++)
		put_page(r->page[i]);
	kvfree(r->page);
	memset(r, 0, sizeof(*r));
}

int coop_rings_map(const struct coop_rings *r, struct vm_area_struct *vma)
{
	return vm_map_pages(vma, r->page, r->n_pages);
}

s64 coop_rings_room(struct coop_rings *r)
{
	/* Pairs with the process's release: it has read the events before. */
	const u32 head = smp_load_acquire(&r->shared->event_head);

	if (head - r->event_head > r->event_tail - r->event_head)
		return -EPROTO;
	r->event_head = head;
	return (s64)r->events - (r->event_tail - head) - r->reserved;
}

void coop_rings_put(struct coop_rings *r, const struct coop_net_event *ev)
{
	r->event[r->event_tail & (r->events - 1)] = *ev;
	WRITE_ONCE(r->event_tail, r->event_tail + 1);
	smp_store_release(&r->shared->event_tail, r->event_tail); /* behind the event */
}

int coop_rings_peek(const struct coop_rings *r, struct coop_net_op *op)
{
	/* Pairs with the process's release: it has stored the operation before. */
	const u32 n = smp_load_acquire(&r->shared->op_tail) - r->op_head;

	if (n > r->ops)
		return -EPROTO;
	if (!n)
		return 0;
	memcpy(op, &r->op[r->op_head & (r->ops - 1)], sizeof(*op));
	barrier(); /* the copy is what we check and what we use */
	return 1;
}

void coop_rings_take(struct coop_rings *r)
{
	r->op_head++;
	smp_store_release(&r->shared->op_head, r->op_head); /* behind the copy */
}
