// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * mount.c - the directory of one mount below /proc/fs/coopfs, and its files.
 *
 * A file is rendered completely at its first read. Each part shows about one moment,
 * but different parts may differ. A write takes one line and accepts or refuses it as a
 * whole. Removal waits until no task is inside a handler, so a handler may use the
 * mount without a reference.
 */
#include "proc/proc.h"

#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "proc/text.h"
#include "rpc/base/addr.h"

struct coop_proc {
	struct coop_proc_source source;
	struct proc_dir_entry *dir;
};

static struct proc_dir_entry *coop_proc_root;

static int show_ibaddr(struct seq_file *m, void *unused)
{
	const struct coop_proc *proc = m->private;

	coop_show_addresses(m, proc->source.shards);
	return 0;
}

static int show_peers(struct seq_file *m, void *unused)
{
	const struct coop_proc *proc = m->private;

	coop_show_peers(m, proc->source.shards);
	return 0;
}

static int show_requests(struct seq_file *m, void *unused)
{
	const struct coop_proc *proc = m->private;

	coop_show_requests(m, proc->source.shards);
	return proc->source.requests(m, proc->source.host);
}

static int show_stats(struct seq_file *m, void *unused)
{
	const struct coop_proc *proc = m->private;
	const int err = coop_show_stats(m, proc->source.stats, proc->source.shards);

	if (!err)
		proc->source.gauges(m, proc->source.host);
	return err;
}

static int show_options(struct seq_file *m, void *unused)
{
	const struct coop_proc *proc = m->private;

	proc->source.options(m, proc->source.host);
	return 0;
}

static int show_info(struct seq_file *m, void *unused)
{
	const struct coop_proc *proc = m->private;

	proc->source.info(m, proc->source.host);
	coop_show_device(m, proc->source.shards);
	return 0;
}

static ssize_t write_ibaddr(struct file *file, const char __user *text, size_t len, loff_t *pos)
{
	const struct coop_proc *proc = pde_data(file_inode(file));
	char line[2 * COOP_ADDR_TEXT];
	struct coop_addr addr;
	int err;

	if (!proc->source.shards)
		return -EOPNOTSUPP;
	if (len > sizeof(line))
		return -EINVAL;
	if (copy_from_user(line, text, len))
		return -EFAULT;
	err = coop_addr_parse(line, len, &addr);
	if (!err)
		err = coop_shards_add_by_hand(proc->source.shards, &addr);
	return err ? err : (ssize_t)len;
}

static ssize_t write_stats(struct file *file, const char __user *text, size_t len, loff_t *pos)
{
	const struct coop_proc *proc = pde_data(file_inode(file));

	coop_stats_reset(proc->source.stats);
	if (proc->source.shards)
		coop_shards_reset_stats(proc->source.shards);
	return len;
}

#define COOP_PROC_FILE(name, write)                                     \
	static int open_##name(struct inode *inode, struct file *file)  \
	{                                                               \
		return single_open(file, show_##name, pde_data(inode)); \
	}                                                               \
	static const struct proc_ops name##_ops = {                     \
		.proc_open = open_##name,                               \
		.proc_read = seq_read,                                  \
		.proc_lseek = seq_lseek,                                \
		.proc_release = single_release,                         \
		.proc_write = write,                                    \
	}

COOP_PROC_FILE(ibaddr, write_ibaddr);
COOP_PROC_FILE(peers, NULL);
COOP_PROC_FILE(stats, write_stats);
COOP_PROC_FILE(options, NULL);
COOP_PROC_FILE(requests, NULL);
COOP_PROC_FILE(info, NULL);

static const struct {
	const char *name;
	umode_t mode;
	const struct proc_ops *ops;
} proc_files[] = {
	{"ibaddr", 0600, &ibaddr_ops}, /* Q_Keys are for root only */
	/* Of each peer and each request: they take the lock that readers wait for once for each. */
	{"peers", 0400, &peers_ops},
	{"requests", 0400, &requests_ops},
	{"stats", 0644, &stats_ops},
	{"options", 0400, &options_ops},
	{"info", 0444, &info_ops},
};

struct coop_proc *coop_proc_add(const struct coop_proc_source *source)
{
	struct coop_proc *proc;
	char name[16];
	size_t i;

	proc = kzalloc(sizeof(*proc), GFP_KERNEL);
	if (!proc)
		return ERR_PTR(-ENOMEM);
	proc->source = *source;
	snprintf(name, sizeof(name), "%u", source->id);
	proc->dir = proc_mkdir(name, coop_proc_root);
	if (!proc->dir) { /* out of memory: the name is unique, as ids are device numbers */
		kfree(proc);
		return ERR_PTR(-ENOMEM);
	}
	for (i = 0; i < ARRAY_SIZE(proc_files); i++)
		if (!proc_create_data(proc_files[i].name, proc_files[i].mode, proc->dir,
				      proc_files[i].ops, proc)) {
			coop_proc_remove(proc);
			return ERR_PTR(-ENOMEM);
		}
	return proc;
}

void coop_proc_remove(struct coop_proc *proc)
{
	if (IS_ERR_OR_NULL(proc))
		return;
	proc_remove(proc->dir);
	kfree(proc);
}

int coop_proc_init(void)
{
	coop_proc_root = proc_mkdir("fs/coopfs", NULL);
	return coop_proc_root ? 0 : -ENOMEM;
}

void coop_proc_exit(void)
{
	proc_remove(coop_proc_root);
	coop_proc_root = NULL;
}
