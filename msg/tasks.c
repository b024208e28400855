// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * tasks.c - operations in use, by handle, and the events that they end with.
 *
 * A handle that is in use or out of range has no event that could report it, so
 * such an operation fails the machine.
 */
#include "msg/machine.h"

struct coop_task *coop_task_begin(struct coop_machine *m, const struct coop_net_op *op)
{
	struct coop_task *t;

	if (op->handle >= m->n_tasks || m->task[op->handle].code) {
		coop_machine_fail(m, -EBADSLT);
		return NULL;
	}
	coop_rings_reserve(&m->rings);
	t = &m->task[op->handle];
	memset(t, 0, sizeof(*t));
	t->code = op->code;
	return t;
}

int coop_task_use(struct coop_machine *m, struct coop_task *t, u32 buffer, u64 offset, u64 length)
{
	struct coop_pinned *p = xa_load(&m->buffers, buffer);

	if (!p)
		return -ENOENT;
	if (!coop_pinned_holds(p, offset, length))
		return -EFAULT;
	p->users++;
	t->buffer = p;
	t->offset = offset;
	t->length = length;
	return 0;
}

void coop_event(struct coop_machine *m, struct coop_net_event *ev)
{
	coop_rings_unreserve(&m->rings);
	if (m->over || m->failure)
		return;
	coop_rings_put(&m->rings, ev);
	m->figures.events++;
	m->wake = true;
}

void coop_task_over(struct coop_machine *m, struct coop_task *t, struct coop_net_event *ev, u8 code,
		    int status)
{
	ev->code = code;
	ev->flags |= COOP_NET_FINAL;
	ev->status = status;
	ev->handle = coop_task_handle(m, t);
	if (t->buffer)
		t->buffer->users--;
	t->buffer = NULL;
	t->code = 0;
	coop_event(m, ev);
}
