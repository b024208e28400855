// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * end.c - the end of a machine, in works: a process does not wait for its device.
 *
 * A machine ends when its rings are unmapped. That happens under mmap_lock, which threads of the
 * process, readers of its /proc/PID and the OOM killer wait for; and in exit and exec. A device may
 * take long to destroy the queue pairs, or refuse to. So unmapping only queues 'end':
 *
 *   end    sets 'over', destroys the queue pairs, and then, since the network cannot write to the
 *          pages any more, unpins them. Until then they stay pinned, and count for the mm of the
 *          process, for its memory cgroup and for the user's machines, even if the process is gone.
 *   gone   queued by the last close; waits for 'end', and frees the machine.
 *
 * Who waits for whom: 'gone' for 'end', and 'end' for the node's lock and for the device; close(2)
 * for both, in the process that has set the machine up, until a signal kills it; the end of the
 * module for every 'gone'. mmap_lock is not held in any of these.
 */
#include <linux/completion.h>
#include <linux/memcontrol.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/workqueue.h>
#include <net/net_namespace.h>

#include "msg/machine.h"

static struct workqueue_struct *end_wq;

static void machine_end(struct coop_machine *m)
{
	struct coop_pinned *p;
	unsigned long i;
	bool first;

	(void)coop_lines_begin(m->node);
	first = !m->over;
	WRITE_ONCE(m->over, true);
	coop_lines_leave(m->node);
	if (!first)
		return;
	wake_up_all(&m->wait);
	coop_lines_stop(m->node);
	/* Nothing uses the pages any more: the lock has been taken since 'over' was set. */
	xa_for_each(&m->buffers, i, p)
		coop_pinned_release(p);
	WRITE_ONCE(m->pinned, 0);
	complete_all(&m->ended);
}

static void end_work(struct work_struct *work)
{
	machine_end(container_of(work, struct coop_machine, end));
}

static void gone_work(struct work_struct *work)
{
	struct coop_machine *m = container_of(work, struct coop_machine, gone);

	flush_work(&m->end);
	machine_end(m); /* if it was never mapped */
	coop_machine_hide(m);
	coop_machine_free(m);
	mmdrop(m->mm);
	put_pid(m->pid);
	coop_machine_leave(m);
	complete_all(&m->freed);
	coop_machine_put(m);
}

void coop_machine_init(struct coop_machine *m)
{
	refcount_set(&m->refs, 1);
	INIT_WORK(&m->end, end_work);
	INIT_WORK(&m->gone, gone_work);
	init_completion(&m->ended);
	init_completion(&m->freed);
}

void coop_machine_put(struct coop_machine *m)
{
	if (!refcount_dec_and_test(&m->refs))
		return;
	mutex_destroy(&m->setup);
	kfree(m);
}

void coop_machine_unmapped(struct coop_machine *m)
{
	WRITE_ONCE(m->unmapped, true);
	wake_up_all(&m->wait);
	queue_work(end_wq, &m->end);
}

void coop_machine_await_end(struct coop_machine *m)
{
	(void)wait_for_completion_killable(&m->ended);
}

void coop_machine_close(struct coop_machine *m, bool wait)
{
	refcount_inc(&m->refs); /* of the work */
	queue_work(end_wq, &m->gone);
	if (wait)
		(void)wait_for_completion_killable(&m->freed);
	coop_machine_put(m);
}

void coop_machine_free(struct coop_machine *m)
{
	struct coop_pinned *p;
	unsigned long i;

	if (m->node)
		coop_node_destroy(m->node); /* ends what is in use: no callback follows */
	m->node = NULL;
	xa_for_each(&m->buffers, i, p)
		coop_pinned_free(p);
	xa_destroy(&m->buffers);
	kvfree(m->chan);
	m->chan = NULL;
	coop_rings_destroy(&m->rings);
	kvfree(m->arrival);
	kvfree(m->peer);
	kvfree(m->task);
	m->arrival = NULL;
	m->peer = NULL;
	m->task = NULL;
	coop_stats_free(&m->stats);
	mem_cgroup_put(m->memcg);
	m->memcg = NULL;
	put_net(m->net);
	m->net = NULL;
}

int coop_end_init(void)
{
	end_wq = alloc_workqueue("coopfs_end", WQ_UNBOUND, 0);
	return end_wq ? 0 : -ENOMEM;
}

void coop_end_exit(void)
{
	destroy_workqueue(end_wq); /* waits for all machines: their files are closed */
}
