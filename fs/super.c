// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * super.c - a mount: its parts, and the order of its start and end.
 *
 * The mount starts with storage (whose handshake gives the root and the fabric
 * key), then the node, then /proc. It ends in reverse order, with one rule: all
 * outside holders of an inode (a serve, a read, a CLOSE that no task waits for)
 * must release it before the VFS looks for busy inodes, and storage must stay
 * connected until the VFS has written everything back. coop_kill_sb() is the only
 * exit, also for a mount that failed half-way: it undoes what exists.
 *
 * The daemon's pushes start with the first reply, before there is a node. node_lock
 * orders them and the beginning and end of mount.shards. The receiver of storage waits
 * for it, so nobody holds it while a device creates or destroys the node's objects.
 * (The daemon names members only to nodes that have registered, so none is missed.)
 */
#include <linux/backing-dev.h>
#include <linux/capability.h>
#include <linux/fs_context.h>
#include <linux/module.h>
#include <linux/nsproxy.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/statfs.h>

#include "fs/fs.h"
#include "proc/proc.h"

#define COOP_WHY    160
#define QUIET_TIME  (3 * HZ)  /* for calls that umount waits for */
#define COUNT_AGAIN (10 * HZ) /* cached pages, for users who may not count them themselves */

/* ---- pushes from storage ------------------------------------------------------ */

static void push_join(void *host, u32 node_id, const struct coop_addr *addr)
{
	struct coop_mount *m = host;

	mutex_lock(&m->node_lock);
	if (m->shards)
		coop_shards_join(m->shards, node_id, addr);
	mutex_unlock(&m->node_lock);
}

static void push_leave(void *host, u32 node_id)
{
	struct coop_mount *m = host;

	mutex_lock(&m->node_lock);
	if (m->shards)
		coop_shards_leave(m->shards, node_id);
	mutex_unlock(&m->node_lock);
}

static void push_left(void *host)
{
	struct coop_mount *m = host;
	u8 key[COOP_FABRIC_KEY];

	mutex_lock(&m->node_lock);
	if (m->shards) {
		coop_shards_forget_all(m->shards);
		coop_storage_fabric_key(m->storage, key);
		coop_shards_rekey(m->shards, key);
		memzero_explicit(key, sizeof(key));
	}
	mutex_unlock(&m->node_lock);
	coop_roles_lost(m);
}

static void push_reset(void *host)
{
	struct coop_mount *m = host;

	push_left(m);
	coop_locks_reconnected(m);
	coop_leases_resume(m);
}

static void push_reopen(void *host)
{
	coop_locks_reclaim_begin(host);
	coop_files_reopen(host);
	coop_locks_reclaim_put(host, 0);
}

static void push_roles(void *host, const struct coop_fid *fid, u64 version,
		       const struct coop_st_roles *roles)
{
	coop_roles_learn(host, fid, version, roles);
}

static void push_granted(void *host, u64 cookie)
{
	coop_locks_granted(host, cookie);
}

static void push_recalled(void *host, const struct coop_fid *fid)
{
	coop_lease_recalled(host, fid);
}

static void push_lost(void *host)
{
	coop_leases_lost(host);
}

static void push_leased(void *host)
{
	coop_leases_renew(host);
}

static const struct coop_storage_ops storage_ops = {
	.join = push_join,
	.leave = push_leave,
	.left = push_left,
	.reset = push_reset,
	.reopen = push_reopen,
	.roles = push_roles,
	.granted = push_granted,
	.recalled = push_recalled,
	.leased = push_leased,
	.lost = push_lost,
};

/* ---- contents of /proc files -------------------------------------------------- */

static void proc_options(struct seq_file *seq, void *host)
{
	struct coop_mount *m = host;

	seq_printf(seq, "%s=yes\n", sb_rdonly(m->sb) ? "ro" : "rw");
	coop_options_show(seq, &m->opt, '\n');
}

static void proc_info(struct seq_file *seq, void *host)
{
	struct coop_mount *m = host;
	char text[256];

	coop_storage_describe(m->storage, text, sizeof(text));
	seq_printf(seq, "server %s\n", text);
	seq_printf(seq, "calls %u\n", coop_storage_calls(m->storage, NULL, 0));
	seq_printf(seq, "export %s\n", m->opt.export_name);
	seq_printf(seq, "node %u\n", coop_storage_node_id(m->storage));
	seq_printf(seq, "id %u\n", m->id);
}

/* The number of calls may change after it was counted: allow some more, print those that fit. */
static int proc_requests(struct seq_file *seq, void *host)
{
	struct coop_mount *m = host;
	const u32 room = coop_storage_calls(m->storage, NULL, 0) + 16;
	struct coop_call_info *calls = kvmalloc_array(room, sizeof(*calls), GFP_KERNEL);
	u32 n, i;

	if (!calls)
		return -ENOMEM;
	n = min(coop_storage_calls(m->storage, calls, room), room);
	for (i = 0; i < n; i++)
		seq_printf(seq, "call id=%llu op=%s state=%s age_us=%llu\n", calls[i].id,
			   coop_st_op_name(calls[i].op), calls[i].state, calls[i].age_us);
	kvfree(calls);
	return 0;
}

/* All file systems share the page cache: 'capacity' is all memory, 'used' this mount's part. */
static void count_cache(struct coop_mount *m)
{
	struct inode *inode, *here = NULL;
	u64 pages = 0, inodes = 0;

	spin_lock(&m->sb->s_inode_list_lock);
	list_for_each_entry(inode, &m->sb->s_inodes, i_sb_list) {
		const unsigned long n = READ_ONCE(inode->i_mapping->nrpages);

		pages += n;
		inodes += n != 0;
		/* There may be millions of inodes: pause, with a reference that keeps our place. */
		if (!need_resched() || !igrab(inode))
			continue;
		spin_unlock(&m->sb->s_inode_list_lock);
		cond_resched();
		iput(here);
		here = inode;
		spin_lock(&m->sb->s_inode_list_lock);
	}
	spin_unlock(&m->sb->s_inode_list_lock);
	iput(here);
	WRITE_ONCE(m->cached_pages, pages);
	WRITE_ONCE(m->cached_inodes, inodes);
	WRITE_ONCE(m->counted, jiffies);
}

/* The walk over all inodes is long: only root makes it as often as it likes. */
static void show_cache(struct seq_file *seq, struct coop_mount *m)
{
	if (time_after_eq(jiffies, READ_ONCE(m->counted) + COUNT_AGAIN) ||
	    file_ns_capable(seq->file, &init_user_ns, CAP_SYS_ADMIN))
		count_cache(m);
	seq_printf(seq, "cache capacity %llu used %llu blocks %llu\n",
		   (u64)totalram_pages() << PAGE_SHIFT, READ_ONCE(m->cached_pages) << PAGE_SHIFT,
		   READ_ONCE(m->cached_inodes));
}

static void proc_gauges(struct seq_file *seq, void *host)
{
	struct coop_mount *m = host;
	struct coop_role_counts roles;

	coop_roles_count(m, &roles);
	seq_printf(seq,
		   "forest files %u\nforest leaf %u\nforest carrier %u\nforest substitute %u\n"
		   "forest children %u\n",
		   roles.files, roles.leaf, roles.carrier, roles.substitute, roles.children);
	seq_printf(seq, "storage connected %u\n", coop_storage_connected(m->storage));
	seq_printf(seq, "lease held %u\n", READ_ONCE(m->leases.held));
	show_cache(seq, m);
}

/* ---- super operations ----------------------------------------------------------- */

static int coop_statfs(struct dentry *dentry, struct kstatfs *out)
{
	struct coop_st_statfs st;
	const int err = coop_ask_space(d_inode(dentry), &st);

	if (err)
		return err;
	out->f_type = COOPFS_MAGIC;
	out->f_bsize = st.bsize;
	out->f_frsize = st.frsize;
	out->f_blocks = st.blocks;
	out->f_bfree = st.bfree;
	out->f_bavail = st.bavail;
	out->f_files = st.files;
	out->f_ffree = st.ffree;
	out->f_namelen = st.namelen;
	out->f_fsid = u64_to_fsid(huge_encode_dev(dentry->d_sb->s_dev));
	return 0;
}

static int coop_show_options(struct seq_file *m, struct dentry *root)
{
	coop_options_show(m, &coop_sb(root->d_sb)->opt, ',');
	return 0;
}

/* umount -f: calls no longer wait for the daemon. */
static void coop_umount_begin(struct super_block *sb)
{
	struct coop_mount *m = coop_sb(sb);

	if (m->storage)
		coop_storage_force(m->storage);
}

/*
 * sync(2) calls ->write_inode() without waiting for pages under writeback, so we commit here, after
 * them.
 */
static int coop_sync_fs(struct super_block *sb, int wait)
{
	struct inode *inode, *last = NULL;
	int err = 0, one;

	if (!wait)
		return 0;
	spin_lock(&sb->s_inode_list_lock);
	list_for_each_entry(inode, &sb->s_inodes, i_sb_list) {
		if (!S_ISREG(inode->i_mode) || list_empty_careful(&coop_i(inode)->files))
			continue;
		if (!igrab(inode))
			continue;
		spin_unlock(&sb->s_inode_list_lock);
		one = coop_commit(inode);
		err = err ?: one;
		/* Keep the inode, and our place in the list, until the next one is held. */
		iput(last);
		last = inode;
		cond_resched();
		spin_lock(&sb->s_inode_list_lock);
	}
	spin_unlock(&sb->s_inode_list_lock);
	iput(last);
	one = coop_dirs_sync(sb);
	return err ?: one;
}

static const struct super_operations coop_super_ops = {
	.alloc_inode = coop_alloc_inode,
	.free_inode = coop_free_inode,
	.evict_inode = coop_evict_inode,
	.write_inode = coop_write_inode,
	.sync_fs = coop_sync_fs,
	.statfs = coop_statfs,
	.show_options = coop_show_options,
	.umount_begin = coop_umount_begin,
};

/* ---- start and end ---------------------------------------------------------------- */

static void put_unused_inodes(struct work_struct *work)
{
	struct coop_mount *m = container_of(work, struct coop_mount, iput_work);
	struct llist_node *list = llist_del_all(&m->unused_inodes);
	struct coop_inode *ci, *next;

	llist_for_each_entry_safe(ci, next, list, unused) {
		int refs = atomic_xchg(&ci->unused_refs, 0);

		while (refs--)
			iput(&ci->vfs);
	}
}

static struct coop_mount *mount_alloc(struct super_block *sb, struct coop_options *opt)
{
	struct coop_mount *m = kzalloc(sizeof(*m), GFP_KERNEL);

	if (!m)
		return NULL;
	m->sb = sb;
	m->counted = jiffies - COUNT_AGAIN;
	m->opt = *opt; /* takes over the strings */
	memset(opt, 0, sizeof(*opt));
	init_llist_head(&m->unused_inodes);
	INIT_WORK(&m->iput_work, put_unused_inodes);
	init_waitqueue_head(&m->reads_gone);
	mutex_init(&m->node_lock);
	spin_lock_init(&m->files_lock);
	spin_lock_init(&m->roles_lock);
	INIT_LIST_HEAD(&m->files);
	coop_silence_init(&m->silence);
	coop_locks_init(&m->locks);
	coop_leases_init(m, !m->opt.nolease);
	coop_bundles_init(m, m->opt.bundles && !m->opt.nolease);
	return m;
}

/* Arguments and results of the first connection, too large for the stack. */
struct coop_first {
	struct coop_storage_cfg cfg;
	struct coop_st_attr attr;
	u8 fh[COOP_ST_FH_MAX];
	u32 fh_len;
	char why[COOP_WHY];
};

static int connect_first(struct fs_context *fc, struct coop_mount *m, struct coop_first *f,
			 struct inode **root)
{
	const u64 asked = coop_ticket(m->sb);
	struct coop_storage *storage;

	storage = coop_storage_connect(&f->cfg, &m->stats, &storage_ops, m, f->fh, &f->fh_len,
				       &f->attr, f->why, sizeof(f->why));
	if (IS_ERR(storage)) {
		errorfc(fc, "%s: %s", m->opt.source, f->why);
		return PTR_ERR(storage);
	}
	m->storage = storage;
	*root = coop_iget(m->sb, &f->attr, f->fh, f->fh_len, asked);
	if (IS_ERR(*root))
		return PTR_ERR(*root);
	coop_attr_expire(*root); /* it has no lookup: its first use must ask, to get a lease */
	if (!S_ISDIR((*root)->i_mode)) {
		iput(*root);
		errorfc(fc, "%s: the export is not a directory", m->opt.source);
		return -ENOTDIR;
	}
	return 0;
}

static int connect_storage(struct fs_context *fc, struct coop_mount *m, struct inode **root)
{
	struct coop_first *f = kzalloc(sizeof(*f), GFP_KERNEL);
	int err;

	if (!f)
		return -ENOMEM;
	f->cfg.n_servers = m->opt.n_servers;
	f->cfg.export_name = m->opt.export_name;
	f->cfg.key = m->opt.key;
	f->cfg.key_len = m->opt.key_len;
	f->cfg.soft = m->opt.soft;
	f->cfg.timeo_ms = m->opt.timeo_ds * 100;
	f->cfg.leases = !m->opt.nolease;
	f->cfg.forest = m->opt.ib && m->opt.tree;
	/* A daemon of that version sends roles, too. */
	f->cfg.bundles = m->bundles.sha && (f->cfg.forest || !m->opt.ib);
	f->cfg.leaf = !m->opt.forward;
	f->cfg.net = fc->net_ns;
	memcpy(f->cfg.server, m->opt.server, sizeof(f->cfg.server));
	err = connect_first(fc, m, f, root);
	kfree(f);
	return err;
}

static int start_node(struct fs_context *fc, struct coop_mount *m)
{
	struct coop_node_cfg cfg = m->opt.node;
	struct coop_shards *shards;
	char why[COOP_WHY] = "";

	cfg.net = fc->net_ns;
	coop_storage_fabric_key(m->storage, cfg.fabric_key);
	shards = coop_shards_create(&cfg, m->opt.engines, &m->stats, &coop_serve_ops, m, why,
				    sizeof(why));
	if (!IS_ERR(shards)) {
		mutex_lock(&m->node_lock);
		m->shards = shards;
		/* push_left() may have brought a newer key while there was no node. */
		coop_storage_fabric_key(m->storage, cfg.fabric_key);
		coop_shards_rekey(shards, cfg.fabric_key);
		mutex_unlock(&m->node_lock);
	}
	memzero_explicit(cfg.fabric_key, sizeof(cfg.fabric_key));
	if (IS_ERR(shards)) {
		errorfc(fc, "option 'ib': %s", why);
		return PTR_ERR(shards);
	}
	coop_shards_enter(shards);
	return 0;
}

static int add_proc(struct coop_mount *m)
{
	const struct coop_proc_source source = {
		.id = m->id,
		.stats = &m->stats,
		.shards = m->shards,
		.host = m,
		.options = proc_options,
		.info = proc_info,
		.gauges = proc_gauges,
		.requests = proc_requests,
	};
	struct coop_proc *proc = coop_proc_add(&source);

	if (IS_ERR(proc))
		return PTR_ERR(proc);
	m->proc = proc;
	return 0;
}

static void tune_bdi(struct coop_mount *m)
{
	/* io_pages limits readahead(2) and madvise(). */
	m->sb->s_bdi->ra_pages = m->opt.readahead;
	m->sb->s_bdi->io_pages = m->opt.readahead;
}

static int coop_fill_super(struct super_block *sb, struct fs_context *fc)
{
	struct coop_mount *m = mount_alloc(sb, fc->fs_private);
	struct inode *root;
	int err;

	if (!m)
		return -ENOMEM;
	sb->s_fs_info = m;
	sb->s_magic = COOPFS_MAGIC;
	sb->s_op = &coop_super_ops;
	sb->s_d_op = &coop_dentry_ops;
	sb->s_xattr = coop_xattr_handlers;
	sb->s_export_op = &coop_export_ops;
	sb->s_maxbytes = MAX_LFS_FILESIZE - COOP_ST_IO_MAX; /* the same limit as at storage */
	sb->s_blocksize = PAGE_SIZE;
	sb->s_blocksize_bits = PAGE_SHIFT;
	sb->s_time_gran = 1;
	/* Storage applies the umask, or a default ACL instead. */
	sb->s_flags |= SB_POSIXACL;
	/* User space gets this id from stat(2), to find the mount's files below /proc. */
	m->id = MINOR(sb->s_dev);
	err = coop_stats_init(&m->stats);
	if (err)
		return err;
	m->wq = alloc_workqueue("coopfs-%u", WQ_UNBOUND | WQ_MEM_RECLAIM, 0, m->id);
	m->direct_wq = alloc_workqueue("coopfs-dio-%u", WQ_UNBOUND | WQ_MEM_RECLAIM, 0, m->id);
	if (!m->wq || !m->direct_wq || coop_write_pool_create(m))
		return -ENOMEM;
	err = super_setup_bdi(sb);
	if (err)
		return err;
	tune_bdi(m);
	err = coop_dirs_init(m);
	if (err)
		return err;
	err = connect_storage(fc, m, &root);
	if (err)
		return err;
	sb->s_root = d_make_root(root);
	if (!sb->s_root)
		return -ENOMEM;
	if (m->opt.ib) {
		err = start_node(fc, m);
		if (err)
			return err;
	}
	err = add_proc(m);
	if (err)
		return err;
	coop_space_learn(root);
	sb->s_flags |= SB_ACTIVE | SB_NOATIME;
	return 0;
}

/* Ends reads, serves and CLOSEs under way: afterwards only the VFS holds inodes. */
static void quiesce(struct coop_mount *m)
{
	struct coop_shards *shards;

	if (m->proc)
		coop_proc_remove(m->proc);
	coop_leases_close(m);
	coop_bundles_stop(m);
	WRITE_ONCE(m->ending, true);
	/* Pairs with the barrier in relay.c: a load that misses the mark is counted in 'reads'. */
	smp_mb();
	/*
	 * No task waits for an answer any more: only readahead, relays and CLOSE are under way. A
	 * peer that waits itself must not block the umount, so cancel the fetches; storage is not
	 * asked for their pages (read_storage.c). Nor must an absent server, so abort the calls.
	 * Again, because some that see the mark late begin after that.
	 */
	if (m->shards)
		coop_shards_cancel(m->shards);
	while (!wait_event_timeout(
		m->reads_gone, !atomic_read(&m->reads) && !atomic_read(&m->calls), QUIET_TIME)) {
		if (m->shards)
			coop_shards_cancel(m->shards);
		coop_storage_abort(m->storage);
	}
	coop_leases_stop(m);
	coop_locks_keep_stop(m);
	mutex_lock(&m->node_lock);
	shards = m->shards;
	m->shards = NULL;
	mutex_unlock(&m->node_lock);
	if (shards)
		coop_shards_destroy(shards);
	if (m->wq)
		flush_work(&m->iput_work);
}

static void coop_kill_sb(struct super_block *sb)
{
	struct coop_mount *m = coop_sb(sb);

	if (m && m->storage) {
		/* Write dirty pages; reads and serves still work during this. */
		if (sb->s_root)
			sync_filesystem(sb);
		quiesce(m);
	}
	kill_anon_super(sb);
	if (!m)
		return;
	/* RCU path walks use the mount and its storage without a reference. */
	synchronize_rcu();
	if (m->storage)
		coop_storage_close(m->storage);
	if (m->direct_wq)
		destroy_workqueue(m->direct_wq);
	if (m->wq)
		destroy_workqueue(m->wq);
	coop_write_pool_destroy(m);
	coop_callers_free(m);
	coop_bundles_free(m);
	coop_dirs_free(m);
	if (m->stats.cpu)
		coop_stats_free(&m->stats);
	coop_options_free(&m->opt);
	kfree(m);
}

/* ---- the mount's context ---------------------------------------------------------- */

static int coop_get_tree(struct fs_context *fc)
{
	int err = coop_options_end(fc);

	return err ? err : get_tree_nodev(fc, coop_fill_super);
}

static int coop_reconfigure(struct fs_context *fc)
{
	struct coop_mount *m = coop_sb(fc->root->d_sb);
	const struct coop_options *opt = fc->fs_private;
	int err;

	sync_filesystem(fc->root->d_sb);
	err = coop_options_end(fc);
	if (!err)
		err = coop_options_compare(fc, &m->opt);
	if (err)
		return err;
	m->opt.readahead = opt->readahead;
	WRITE_ONCE(m->opt.ra_async, opt->ra_async);
	m->opt.soft = opt->soft;
	m->opt.timeo_ds = opt->timeo_ds;
	m->opt.node.peer_timeout_ms = opt->node.peer_timeout_ms;
	m->opt.node.serve_mbps = opt->node.serve_mbps;
	tune_bdi(m);
	coop_storage_tune(m->storage, opt->soft, opt->timeo_ds * 100);
	if (m->shards)
		coop_shards_tune(m->shards, opt->node.peer_timeout_ms, opt->node.serve_mbps);
	return 0;
}

static void coop_free_context(struct fs_context *fc)
{
	if (!fc->fs_private)
		return;
	coop_options_free(fc->fs_private);
	kfree(fc->fs_private);
}

static const struct fs_context_operations coop_context_ops = {
	.parse_param = coop_options_parse,
	.get_tree = coop_get_tree,
	.reconfigure = coop_reconfigure,
	.free = coop_free_context,
};

int coop_init_fs_context(struct fs_context *fc)
{
	const bool remount = fc->purpose == FS_CONTEXT_FOR_RECONFIGURE;
	int err;

	fc->ops = &coop_context_ops;
	err = coop_options_begin(fc, remount ? &coop_sb(fc->root->d_sb)->opt : NULL);
	if (err) /* after an error the VFS does not call .free */
		coop_free_context(fc);
	return err;
}

struct file_system_type coop_fs_type = {
	.owner = THIS_MODULE,
	.name = "coopfs",
	.fs_flags = FS_ALLOW_IDMAP,
	.init_fs_context = coop_init_fs_context,
	.kill_sb = coop_kill_sb,
};
