// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * lines.c - what the host of a node with lines calls; see lines.h.
 *
 * Some send slots of the command line stay free for control messages of the
 * engine, which would be lost otherwise whenever the host has much to send.
 */
#include <linux/delay.h>
#include <linux/sched/mm.h>

#include "ib/node.h"

#define CONTROLS 64 /* send slots of the command line that the host leaves free */

u64 coop_lines_begin(struct coop_node *node)
{
	const unsigned int flags = memalloc_noio_save();
	struct mem_cgroup *outer = set_active_memcg(node->cfg.memcg);

	mutex_lock(&node->lock);
	node->lines_flags = flags;
	node->lines_outer = outer;
	return coop_now_us();
}

void coop_lines_end(struct coop_node *node, u64 now)
{
	bool ended;

	lockdep_assert_held(&node->lock);
	if (node->rnic && !node->rnic->closing) {
		coop_pump_drain(node, now);
		coop_pump_arm(node, now);
	}
	ended = !list_empty(&node->ended);
	coop_lines_leave(node);
	if (ended)
		coop_node_kick(node);
}

void coop_lines_leave(struct coop_node *node)
{
	const unsigned int flags = node->lines_flags;
	struct mem_cgroup *outer = node->lines_outer;

	mutex_unlock(&node->lock);
	set_active_memcg(outer);
	memalloc_noio_restore(flags);
}

void coop_lines_kick(struct coop_node *node)
{
	coop_node_kick(node);
}

static struct coop_ctrl *line_of(struct coop_rnic *r, enum coop_line line)
{
	return line == COOP_LINE_DATA ? &r->data : &r->ctrl;
}

bool coop_lines_self(struct coop_node *node, struct coop_addr *command, u32 *data_qpn,
		     u32 *data_qkey)
{
	const struct coop_rnic *r = node->rnic;

	lockdep_assert_held(&node->lock);
	if (!r)
		return false;
	*command = r->self;
	*data_qpn = r->data_qpn;
	*data_qkey = r->qkey;
	return true;
}

u32 coop_lines_mtu(struct coop_node *node, enum coop_line line)
{
	lockdep_assert_held(&node->lock);
	return node->rnic ? line_of(node->rnic, line)->most : 0;
}

static bool has_room(struct coop_rnic *r, enum coop_line line)
{
	return line_of(r, line)->n_free > (line == COOP_LINE_COMMAND ? CONTROLS : 0);
}

bool coop_lines_room(struct coop_node *node)
{
	struct coop_rnic *r = node->rnic;

	lockdep_assert_held(&node->lock);
	return r && !r->closing && has_room(r, COOP_LINE_COMMAND) && has_room(r, COOP_LINE_DATA);
}

void *coop_lines_claim(struct coop_node *node, enum coop_line line, u32 *slot)
{
	struct coop_ctrl *c;

	lockdep_assert_held(&node->lock);
	if (!node->rnic || node->rnic->closing || !has_room(node->rnic, line))
		return NULL;
	c = line_of(node->rnic, line);
	*slot = c->tx_free[--c->n_free];
	coop_bufs_to_cpu(&c->tx, *slot);
	return coop_bufs_at(&c->tx, *slot);
}

void coop_lines_send(struct coop_node *node, enum coop_line line, u32 slot, u32 len,
		     const struct coop_addr *to, u64 now)
{
	lockdep_assert_held(&node->lock);
	coop_ctrl_launch(node->rnic, line_of(node->rnic, line), slot, len, to, now);
}

int coop_lines_fetch(struct coop_node *node, struct coop_node_fetch *f, u64 now)
{
	int err;

	lockdep_assert_held(&node->lock);
	if (!node->up)
		return -ENODEV;
	err = coop_requester_submit(node->rnic, f, now);
	if (err != -ENOENT)
		return err;
	/* The engine leaves it alone for a while; it is the only source, so forget why. */
	(void)coop_engine_peer_del(node->engine, f->from, COOP_PEER_BY_DAEMON);
	return coop_requester_submit(node->rnic, f, now);
}

void coop_lines_cancel(struct coop_node *node, struct coop_node_fetch *f, u64 now)
{
	lockdep_assert_held(&node->lock);
	(void)coop_engine_cancel(node->engine, f->id, now); /* a stale id: it is over */
}

/* Ends all requests. False: the device refused to destroy a queue pair; the lock held, but not
 * always. */
static bool stop(struct coop_node *node, u64 now)
{
	struct coop_rnic *r = node->rnic;
	struct coop_node_fetch *f;
	bool stopped;

	if (!r)
		return true;
	node->up = false;
	r->closing = true;
	list_for_each_entry(f, &node->fetches, link)
		(void)coop_engine_cancel(node->engine, f->id, now);
	stopped = coop_rnic_silence(r, now);
	coop_pump_drain(node, now);
	if (!list_empty(&node->ended))
		coop_node_kick(node); /* the worker calls done() */
	if (!stopped)
		return false;
	WARN_ON_ONCE(!list_empty(&node->fetches) || r->n_serving);
	wake_up(&node->idle); /* a detach that waits for them */
	return true;
}

/* Also while a detach waits for completions: the host unpins its pages next. */
void coop_lines_stop(struct coop_node *node)
{
	/* Not coop_lines_begin(), whose state is of one holder of the lock. */
	const unsigned int flags = memalloc_noio_save();
	struct mem_cgroup *outer = set_active_memcg(node->cfg.memcg);
	bool stopped = false;
	u32 tries;

	for (tries = 0; !stopped; tries++) {
		if (tries)
			msleep(coop_rnic_pause_ms(tries - 1));
		mutex_lock(&node->lock);
		stopped = stop(node, coop_now_us());
		mutex_unlock(&node->lock);
	}
	set_active_memcg(outer);
	memalloc_noio_restore(flags);
}
