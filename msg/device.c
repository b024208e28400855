// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * device.c - /dev/coop-net: files, calls, mappings, quotas, and a line for each
 * machine in /proc/fs/coopfs/net.
 *
 * Arguments are copied from the process before a lock is taken, and to it after.
 * A call finds a machine that runs, in the address space that has set it up, or
 * gives -EBADR. A lock of a machine is not held while user memory is touched: that
 * of its node because a page fault may take long, and the list's because all
 * machines need it. The mutex of SETUP may.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/poll.h>
#include <linux/proc_fs.h>
#include <linux/sched/mm.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "msg/compat.h"
#include "msg/machine.h"
#include "msg/msg.h"

static unsigned int net_machines = 32;
module_param(net_machines, uint, 0644);
MODULE_PARM_DESC(net_machines, "open transfer machines of /dev/coop-net that a user may have");

static unsigned int net_queue_pairs = 1024;
module_param(net_queue_pairs, uint, 0644);
MODULE_PARM_DESC(net_queue_pairs, "queue pairs of these machines that a user may have");

static LIST_HEAD(machines);         /* those that are set up */
static DEFINE_MUTEX(machines_lock); /* outside of every node's lock */

/* ---- a machine for a call ------------------------------------------------------- */

static bool ready(const struct coop_machine *m)
{
	return smp_load_acquire(&m->ready) && m->mm == current->mm; /* set up before 'ready' */
}

/* Polls of aio go on in threads of the kernel, which have no memory. */
static bool pollable(const struct coop_machine *m)
{
	return smp_load_acquire(&m->ready) && /* as in ready() */
	       (m->mm == current->mm || !current->mm);
}

/* Takes the lock of a machine that runs and is mapped. False: -EBADR. */
static bool enter(struct coop_machine *m, u64 *now)
{
	if (!ready(m) || !atomic_read(&m->maps))
		return false;
	*now = coop_lines_begin(m->node);
	if (coop_machine_runs(m))
		return true;
	coop_lines_leave(m->node);
	return false;
}

/* ---- quotas --------------------------------------------------------------------- */

static int join(struct coop_machine *m, struct coop_net_setup *s)
{
	const u32 machines_most = READ_ONCE(net_machines);
	const u32 pairs_most = READ_ONCE(net_queue_pairs);
	u64 pairs = m->queue_pairs;
	struct coop_machine *other;
	u32 n = 0;
	int err = 0;

	mutex_lock(&machines_lock);
	list_for_each_entry(other, &machines, link) {
		if (!uid_eq(other->uid, m->uid))
			continue;
		n++;
		pairs += other->queue_pairs;
	}
	if ((n < machines_most && pairs <= pairs_most) || capable(CAP_SYS_RESOURCE))
		list_add_tail(&m->link, &machines);
	else
		err = -EMFILE;
	mutex_unlock(&machines_lock);
	if (err && n >= machines_most)
		snprintf(s->why, sizeof(s->why),
			 "you have %u transfer machines already (net_machines=%u)", n,
			 machines_most);
	else if (err)
		snprintf(s->why, sizeof(s->why),
			 "your machines would have %llu queue pairs (net_queue_pairs=%u): lower "
			 "fetches and serves",
			 pairs, pairs_most);
	return err;
}

void coop_machine_hide(struct coop_machine *m)
{
	mutex_lock(&machines_lock);
	m->ready = false;
	mutex_unlock(&machines_lock);
}

void coop_machine_leave(struct coop_machine *m)
{
	mutex_lock(&machines_lock);
	list_del(&m->link);
	mutex_unlock(&machines_lock);
}

/* ---- calls ---------------------------------------------------------------------- */

static int set_up(struct coop_machine *m, struct coop_net_setup *s)
{
	int err;

	if (s->abi != COOP_NET_ABI) {
		snprintf(s->why, sizeof(s->why), "this module speaks version %u: update %s",
			 COOP_NET_ABI, s->abi < COOP_NET_ABI ? "the program" : "the module");
		s->abi = COOP_NET_ABI;
		return -EPROTO;
	}
	mutex_lock(&m->setup);
	err = -EBADR;
	if (m->ready)
		goto out;
	err = coop_machine_check(s);
	if (err)
		goto out;
	m->uid = current_uid();
	m->queue_pairs = coop_machine_queue_pairs(s);
	err = join(m, s);
	if (err)
		goto out;
	err = coop_machine_start(m, s);
	if (err) {
		coop_machine_leave(m);
		goto out;
	}
	m->pid = get_task_pid(current, PIDTYPE_TGID);
	m->mm = current->mm;
	mmgrab(m->mm);
	smp_store_release(&m->ready, true); /* all of it is visible */
out:
	mutex_unlock(&m->setup);
	return err;
}

/* The first fields of every version of coop_net_setup. */
struct setup_head {
	u32 size, abi;
};

static_assert(offsetof(struct coop_net_setup, size) == offsetof(struct setup_head, size));
static_assert(offsetof(struct coop_net_setup, abi) == offsetof(struct setup_head, abi));

/* Of a structure of another size we know no other field. */
static long other_version(void __user *arg)
{
	if (put_user((u32)COOP_NET_ABI, (u32 __user *)(arg + offsetof(struct setup_head, abi))))
		return -EFAULT;
	return -EPROTO;
}

static long net_setup(struct coop_machine *m, void __user *arg)
{
	struct coop_net_setup *s;
	struct setup_head h;
	long err;

	if (copy_from_user(&h, arg, sizeof(h)))
		return -EFAULT;
	if (h.size < sizeof(h))
		return -EINVAL;
	if (h.abi != COOP_NET_ABI && h.size != sizeof(*s))
		return other_version(arg);
	if (h.size < sizeof(*s))
		return -EINVAL;
	if (h.size > PAGE_SIZE)
		return -E2BIG; /* all of it is read */
	s = kzalloc(sizeof(*s), GFP_KERNEL);
	if (!s)
		return -ENOMEM;
	err = copy_struct_from_user(s, sizeof(*s), arg, h.size);
	if (!err) {
		err = set_up(m, s);
		/* After -EFAULT here the machine is set up, and ends with its file. */
		if (copy_to_user(arg, s, sizeof(*s)))
			err = -EFAULT;
	}
	kfree_sensitive(s);
	return err;
}

/* Performs what is in the ring. */
static int perform(struct coop_machine *m)
{
	u32 left = m->rings.ops; /* others may add more for ever */
	bool more;
	u64 now;

	do {
		if (!enter(m, &now))
			return -EBADR;
		more = coop_machine_take(m, now);
		coop_lines_end(m->node, now);
		cond_resched();
		left -= min(left, 64u);
	} while (more && left);
	return READ_ONCE(m->failure) ? -EBADR : 0;
}

static bool over(const struct coop_machine *m)
{
	return READ_ONCE(m->over) || READ_ONCE(m->failure) || !atomic_read(&m->maps);
}

/* Waits until there are so many events, and does the pump's work meanwhile. */
static long wait_for(struct coop_machine *m, u32 events, ktime_t until)
{
	ktime_t left;
	long err = 0;

	do {
		coop_lines_sleep(m->node);
		left = until == KTIME_MAX ? KTIME_MAX : ktime_sub(until, ktime_get());
		err = wait_event_interruptible_hrtimeout(m->wait,
							 coop_rings_ready(&m->rings) >= events ||
								 over(m) || coop_lines_due(m->node),
							 max_t(ktime_t, left, 0));
		if (coop_rings_ready(&m->rings) >= events || over(m))
			break;
		if (!err && signal_pending(current))
			err = -ERESTARTSYS;
		else if (!err && left <= 0)
			err = -ETIME; /* datagrams come all the time, and events do not */
	} while (!err);
	coop_lines_wake(m->node);
	return err;
}

static long net_enter(struct coop_machine *m, void __user *arg)
{
	struct coop_net_enter e;
	long err;

	if (copy_from_user(&e, arg, sizeof(e)))
		return -EFAULT;
	if (e.zero)
		return -EINVAL;
	err = perform(m);
	if (err || !e.events)
		return err;
	err = wait_for(m, min(e.events, m->rings.events),
		       ktime_add_safe(ktime_get(), min_t(u64, e.timeout_ns, KTIME_MAX)));
	if (over(m))
		return -EBADR;
	return err == -ERESTARTSYS ? -EINTR : err;
}

static int add_buffer(struct coop_machine *m, struct coop_pinned *p, u32 *id)
{
	int err = -EBADR;
	u64 now;

	if (!enter(m, &now))
		return err;
	err = m->n_buffers < COOP_NET_BUFFERS
		      ? xa_alloc_cyclic(&m->buffers, id, p, XA_LIMIT(1, INT_MAX), &m->next_buffer,
					GFP_KERNEL_ACCOUNT)
		      : -ENOSPC;
	if (err >= 0) {
		err = 0;
		p->id = *id;
		m->n_buffers++;
		m->pinned += (u64)p->n_pages << PAGE_SHIFT;
	}
	coop_lines_leave(m->node);
	return err;
}

static struct coop_pinned *remove_buffer(struct coop_machine *m, u32 id)
{
	struct coop_pinned *p = ERR_PTR(-EBADR);
	u64 now;

	if (!enter(m, &now))
		return p;
	p = xa_load(&m->buffers, id);
	if (!p) {
		p = ERR_PTR(-ENOENT);
	} else if (p->users) {
		p = ERR_PTR(-EBUSY);
	} else {
		xa_erase(&m->buffers, id);
		m->n_buffers--;
		m->pinned -= (u64)p->n_pages << PAGE_SHIFT;
	}
	coop_lines_leave(m->node);
	return p;
}

static long net_buffer_add(struct coop_machine *m, void __user *arg)
{
	struct coop_net_buffer b;
	struct coop_pinned *p;
	long err;

	if (copy_from_user(&b, arg, sizeof(b)))
		return -EFAULT;
	if (!ready(m) || over(m))
		return -EBADR;
	p = coop_pinned_create(&b);
	if (IS_ERR(p))
		return PTR_ERR(p);
	err = add_buffer(m, p, &b.buffer);
	if (err) {
		coop_pinned_free(p);
		return err;
	}
	if (!copy_to_user(arg, &b, sizeof(b)))
		return 0;
	/* The process does not know its id; a guess may have put it to use meanwhile. */
	p = remove_buffer(m, b.buffer);
	if (!IS_ERR(p))
		coop_pinned_free(p);
	return -EFAULT;
}

static long net_buffer_del(struct coop_machine *m, void __user *arg)
{
	struct coop_pinned *p;
	u32 id;

	if (get_user(id, (u32 __user *)arg))
		return -EFAULT;
	p = remove_buffer(m, id);
	if (IS_ERR(p))
		return PTR_ERR(p);
	coop_pinned_free(p);
	return 0;
}

static long net_peer(struct coop_machine *m, unsigned int cmd, void __user *arg)
{
	struct coop_net_peer p;
	long err = 0;
	s64 id;
	u64 now;

	if (copy_from_user(&p, arg, sizeof(p)))
		return -EFAULT;
	if (!enter(m, &now))
		return -EBADR;
	if (p.zero) {
		err = -EINVAL;
	} else if (cmd == COOP_NET_PEER_OPEN) {
		id = coop_peer_open(m, &p, now);
		p.peer = id > 0 ? (u32)id : 0;
		err = id > 0 ? 0 : (long)id;
	} else if (cmd == COOP_NET_PEER_ADMIT) {
		err = coop_peer_admit(m, &p);
	} else {
		err = coop_peer_info(m, &p);
	}
	coop_lines_end(m->node, now);
	if (!err && cmd != COOP_NET_PEER_ADMIT && copy_to_user(arg, &p, sizeof(p)))
		err = -EFAULT;
	return err;
}

static long net_peer_close(struct coop_machine *m, void __user *arg)
{
	u32 id;
	u64 now;
	int err;

	if (get_user(id, (u32 __user *)arg))
		return -EFAULT;
	err = perform(m); /* what was sent before it */
	if (err)
		return err;
	if (!enter(m, &now))
		return -EBADR;
	err = coop_peer_close(m, id, now);
	coop_lines_end(m->node, now);
	return err;
}

static long net_self(struct coop_machine *m, void __user *arg)
{
	struct coop_net_addr self;
	bool good;
	u64 now;

	if (!enter(m, &now))
		return -EBADR;
	good = coop_machine_self(m, &self);
	coop_lines_leave(m->node);
	if (!good)
		return -EBADR;
	return copy_to_user(arg, &self, sizeof(self)) ? -EFAULT : 0;
}

static long net_count(struct coop_machine *m, void __user *arg)
{
	struct coop_net_count c;
	u64 now;

	if (!enter(m, &now))
		return -EBADR;
	c.sent = m->figures.sent_bytes + m->figures.served_bytes;
	c.received = m->figures.received_bytes + m->figures.fetched_bytes;
	coop_lines_leave(m->node);
	return copy_to_user(arg, &c, sizeof(c)) ? -EFAULT : 0;
}

static long net_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct coop_machine *m = file->private_data;
	void __user *at = (void __user *)arg;

	switch (cmd) {
	case COOP_NET_SETUP:
		return net_setup(m, at);
	case COOP_NET_ENTER:
		return net_enter(m, at);
	case COOP_NET_BUFFER_ADD:
		return net_buffer_add(m, at);
	case COOP_NET_BUFFER_DEL:
		return net_buffer_del(m, at);
	case COOP_NET_PEER_OPEN:
	case COOP_NET_PEER_ADMIT:
	case COOP_NET_PEER_INFO:
		return net_peer(m, cmd, at);
	case COOP_NET_PEER_CLOSE:
		return net_peer_close(m, at);
	case COOP_NET_SELF:
		return net_self(m, at);
	case COOP_NET_COUNT:
		return net_count(m, at);
	default:
		return -ENOTTY;
	}
}

static __poll_t net_poll(struct file *file, poll_table *table)
{
	struct coop_machine *m = file->private_data;

	if (!pollable(m) || over(m))
		return EPOLLERR | EPOLLHUP;
	poll_wait(file, &m->wait, table);
	if (over(m))
		return EPOLLERR | EPOLLHUP;
	if (coop_rings_pending(&m->rings) || READ_ONCE(m->waits))
		coop_lines_kick(m->node);
	coop_lines_sleep(m->node);
	if (!coop_rings_ready(&m->rings))
		return over(m) ? EPOLLERR | EPOLLHUP : 0;
	coop_lines_wake(m->node);
	return EPOLLIN | EPOLLRDNORM;
}

/* ---- the mapping ---------------------------------------------------------------- */

static void map_open(struct vm_area_struct *vma)
{
	struct coop_machine *m = vma->vm_private_data;

	atomic_inc(&m->maps);
}

static void map_close(struct vm_area_struct *vma)
{
	struct coop_machine *m = vma->vm_private_data;

	if (atomic_dec_and_test(&m->maps))
		coop_machine_unmapped(m);
}

static int map_may_split(struct vm_area_struct *vma, unsigned long address)
{
	return -EINVAL;
}

static const struct vm_operations_struct map_ops = {
	.open = map_open,
	.close = map_close,
	.may_split = map_may_split,
};

static int net_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct coop_machine *m = file->private_data;
	int err;

	if (!ready(m))
		return -EBADR;
	if (vma->vm_pgoff || !(vma->vm_flags & VM_SHARED) ||
	    vma->vm_end - vma->vm_start != coop_rings_bytes(&m->rings))
		return -EINVAL;
	if (m->mapped)
		return -EBUSY; /* once: its end is the machine's */
	err = coop_rings_map(&m->rings, vma);
	if (err)
		return err;
	/* VM_IO: madvise() cannot take VM_DONTCOPY away. */
	coop_vm_flags_set(vma, VM_IO | VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP);
	vma->vm_private_data = m;
	vma->vm_ops = &map_ops;
	m->mapped = true;
	atomic_inc(&m->maps);
	return 0;
}

/* ---- files ---------------------------------------------------------------------- */

static int net_open(struct inode *inode, struct file *file)
{
	struct coop_machine *m = kzalloc(sizeof(*m), GFP_KERNEL_ACCOUNT);

	if (!m)
		return -ENOMEM;
	coop_machine_init(m);
	mutex_init(&m->setup);
	init_waitqueue_head(&m->wait);
	file->private_data = m;
	return nonseekable_open(inode, file);
}

/*
 * A process that closes the file behind its rings gets its memory back: nothing writes to it any
 * more. Here too, because a child of fork may have the file still; and there is no release then.
 */
static int net_flush(struct file *file, fl_owner_t id)
{
	struct coop_machine *m = file->private_data;

	if (ready(m) && READ_ONCE(m->unmapped))
		coop_machine_await_end(m);
	return 0;
}

static int net_release(struct inode *inode, struct file *file)
{
	struct coop_machine *m = file->private_data;

	if (m->ready)
		coop_machine_close(m, m->mm == current->mm); /* no exit, no other process */
	else
		coop_machine_put(m);
	return 0;
}

static const struct file_operations net_fops = {
	.owner = THIS_MODULE,
	.open = net_open,
	.flush = net_flush,
	.release = net_release,
	.unlocked_ioctl = net_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.poll = net_poll,
	.mmap = net_mmap,
};

static struct miscdevice net_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "coop-net",
	.fops = &net_fops,
	.mode = 0660, /* of root, until an administrator gives it a group */
};

/* ---- /proc ---------------------------------------------------------------------- */

static void show_machine(struct seq_file *out, struct coop_machine *m)
{
	const struct coop_figures *f = &m->figures;
	u32 data_qpn = 0, data_qkey;
	struct coop_addr self = {};
	char device[96];

	if (!smp_load_acquire(&m->ready)) /* as in ready() */
		return;                   /* being set up, or freed */
	if (READ_ONCE(m->over)) {         /* its lock may be held for as long as its device likes */
		seq_printf(out, "pid %d uid %u over pinned %llu\n",
			   pid_nr_ns(m->pid, proc_pid_ns(file_inode(out->file)->i_sb)),
			   from_kuid_munged(seq_user_ns(out), m->uid), READ_ONCE(m->pinned));
		return;
	}
	coop_node_describe(m->node, device, sizeof(device));
	(void)coop_lines_begin(m->node);
	(void)coop_lines_self(m->node, &self, &data_qpn, &data_qkey);
	seq_printf(out, "pid %d uid %u device %s qpn 0x%x data_qpn 0x%x",
		   pid_nr_ns(m->pid, proc_pid_ns(file_inode(out->file)->i_sb)),
		   from_kuid_munged(seq_user_ns(out), m->uid), device, self.qpn, data_qpn);
	seq_printf(out, " peers %u buffers %u pinned %llu", coop_peers_open(m), m->n_buffers,
		   m->pinned);
	seq_printf(out, " ops %llu events %llu sent %llu %llu received %llu %llu", f->ops,
		   f->events, f->sent, f->sent_bytes, f->received, f->received_bytes);
	seq_printf(out, " fetched %llu served %llu refused %llu", f->fetched_bytes, f->served_bytes,
		   f->refused);
	if (m->failure)
		seq_printf(out, " failed %d", m->failure);
	seq_putc(out, '\n');
	coop_lines_leave(m->node);
}

static int show_machines(struct seq_file *out, void *unused)
{
	struct coop_machine *m;

	mutex_lock(&machines_lock);
	list_for_each_entry(m, &machines, link)
		show_machine(out, m);
	mutex_unlock(&machines_lock);
	return 0;
}

/* ---- the module ----------------------------------------------------------------- */

int coop_net_init(void)
{
	int err;

	err = coop_end_init();
	if (err)
		return err;
	err = -ENOMEM;
	if (!proc_create_single("fs/coopfs/net", 0400, NULL, show_machines))
		goto err_end;
	err = misc_register(&net_device);
	if (err)
		goto err_proc;
	return 0;

err_proc:
	remove_proc_entry("fs/coopfs/net", NULL);
err_end:
	coop_end_exit();
	return err;
}

void coop_net_exit(void)
{
	misc_deregister(&net_device);
	coop_end_exit(); /* who wonders what it waits for finds it in /proc */
	remove_proc_entry("fs/coopfs/net", NULL);
}
