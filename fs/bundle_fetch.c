// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * bundle_fetch.c - fetches bundles: opens one at storage, reads it as any file that other nodes
 * have open, and compares its SHA-256 with the one from storage.
 *
 * A bundle has an inode, by its file id, but no name: peers find its pages, and its windows wait
 * for parents in its forest, as those of other files do. Its open file differs from others in one
 * point: it ends with the connection, so it is not opened again after a restart of the daemon.
 * It stays open for some seconds, because peers read a bundle from the nodes that have it open.
 *
 * The leases of what is in a bundle come with the reply to BUNDLE. So its ticket is from before
 * that request: a recall that overtakes the reply, or comes while the bundle is read, prevails. A
 * bundle that is wrong or missing costs requests, never data: the task then goes on as without
 * bundles. If leases came that no inode knows of, all are returned.
 */
#include <crypto/hash.h>
#include <linux/cred.h>
#include <linux/dcache.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/slab.h>

#include "fs/fs.h"
#include "fs/trace.h"
#include "rpc/storage/bundle.h"

#define STAYS_OPEN (10 * HZ)
#define OPEN_MOST  16         /* kept open: at most 128 MiB of pages, which can be reclaimed */
#define CHUNK_MOST 512        /* pages that are asked for at once */
#define HASH_STEP  (64 << 10) /* bytes, then other tasks may run */

/* An open bundle that a task fetches. */
struct bundle {
	struct coop_mount *mount;
	struct coop_file *file; /* references to the file and to its inode */
	struct inode *inode;
	u64 asked; /* ticket */
	u64 version;
	u32 size;
	bool answered; /* storage has opened it, and given leases */
	bool more;
	u8 sha[COOP_ST_PROOF];
	u8 *bytes; /* kvmalloc() */
};

/* A bundle that stays open for peers. */
struct bundle_open {
	struct list_head link; /* coop_bundles.open */
	struct coop_file *file;
	struct inode *inode;
	unsigned long until; /* jiffies */
};

/* ---- one at a time ---------------------------------------------------------------- */

static bool asking_begin(struct coop_bundles *b)
{
	bool first;

	spin_lock(&b->lock);
	first = !b->asking;
	b->asking = true;
	b->roles_came = b->roles_came && !first;
	spin_unlock(&b->lock);
	return first;
}

static void asking_end(struct coop_bundles *b)
{
	spin_lock(&b->lock);
	b->asking = false;
	spin_unlock(&b->lock);
}

void coop_bundles_roles(struct coop_mount *m, const struct coop_fid *fid, u64 version,
			const struct coop_st_roles *roles)
{
	struct coop_bundles *b = &m->bundles;

	spin_lock(&b->lock);
	if (b->asking) {
		b->roles_fid = *fid;
		b->roles_version = version;
		b->roles = *roles;
		b->roles_came = true;
	}
	spin_unlock(&b->lock);
}

/* Takes the roles that storage sent just before its reply. They are 200 bytes. */
static noinline_for_stack void take_roles(struct coop_mount *m, const struct coop_fid *fid,
					  u64 version)
{
	struct coop_bundles *b = &m->bundles;
	struct coop_st_roles roles;
	bool ours;

	spin_lock(&b->lock);
	ours = b->roles_came && b->roles_version == version && b->roles_fid.hi == fid->hi &&
	       b->roles_fid.lo == fid->lo;
	if (ours)
		roles = b->roles;
	spin_unlock(&b->lock);
	if (ours)
		coop_roles_learn(m, fid, version, &roles);
}

/* ---- opening and closing ---------------------------------------------------------- */

/* READ names the directory's handle: only the open id counts. */
static noinline_for_stack struct inode *bundle_inode(struct coop_mount *m,
						     const struct coop_inode *dir,
						     const struct coop_st_body *res, u64 asked)
{
	const struct coop_st_attr attr = {.fid = res->fid,
					  .version = res->version,
					  .ino = res->fid.lo,
					  .size = res->size,
					  .mode = S_IFREG | 0400,
					  .nlink = 1};
	struct inode *inode;

	if (res->size < COOP_BUNDLE_HEADER || res->size > COOP_BUNDLE_BYTES || !res->version ||
	    res->version >> 63)
		return ERR_PTR(-EPROTO);
	inode = coop_iget(m->sb, &attr, dir->fh, dir->fh_len, asked);
	if (IS_ERR(inode))
		return inode;
	spin_lock(&inode->i_lock);
	inode->i_state |= I_DONTCACHE; /* no name leads to it */
	spin_unlock(&inode->i_lock);
	/* An earlier bundle of that directory may still be open: its pages go. */
	coop_content_settle(inode);
	if (READ_ONCE(coop_i(inode)->version) == res->version)
		return inode;
	iput(inode);
	return ERR_PTR(-ESTALE);
}

static void bundle_attach(struct bundle *b, struct coop_file *f, const struct coop_st_body *res)
{
	struct coop_inode *ci = coop_i(b->inode);

	f->inode = b->inode;
	b->file = f;
	spin_lock(&ci->lock);
	list_add(&f->link, &ci->files);
	spin_unlock(&ci->lock);
	take_roles(b->mount, &res->fid, res->version);
	coop_content_openers(ci, res->version, res->nodes, res->n_nodes);
}

static int bundle_open(struct bundle *b, const struct coop_bundle_want *want,
		       const struct cred *who)
{
	struct coop_mount *m = b->mount;
	struct inode *dir = d_inode(want->dir);
	struct coop_file *f = coop_file_alloc(m, COOP_ST_O_READ, who);
	struct coop_call *call = coop_call_alloc(m->storage, COOP_ST_BUNDLE);
	int err = -ENOMEM;

	if (!f || !call)
		goto out;
	b->asked = coop_ticket(m->sb);
	coop_call_cred(call, who);
	call->arg.fh.p = coop_i(dir)->fh;
	call->arg.fh.len = coop_i(dir)->fh_len;
	call->arg.open_id = f->open_id;
	call->arg.count = want->part;
	call->arg.flags = want->subtree ? COOP_ST_B_SUBTREE : 0;
	err = coop_call_run(call);
	b->answered = !err; /* a reply that comes later returns its leases, see finish() */
	if (err)
		goto out;
	b->more = call->res.flags & COOP_ST_B_MORE;
	b->version = call->res.version;
	b->size = call->res.size;
	memcpy(b->sha, call->res.proof, sizeof(b->sha));
	b->inode = bundle_inode(m, coop_i(dir), &call->res, b->asked);
	if (IS_ERR(b->inode)) {
		err = PTR_ERR(b->inode);
		b->inode = NULL;
		coop_close_send(dir, f->open_id);
		goto out;
	}
	bundle_attach(b, f, &call->res);
	f = NULL;
out:
	if (f)
		coop_file_free(f);
	if (call)
		coop_call_put(call);
	return err;
}

static void bundle_close(struct coop_file *file, struct inode *inode)
{
	coop_file_put(file);
	iput(inode);
}

/* Takes the oldest one off the list, if its time is over, or with 'any' in any case. */
static struct bundle_open *take_open(struct coop_bundles *b, bool any)
{
	struct bundle_open *o;

	spin_lock(&b->lock);
	o = list_first_entry_or_null(&b->open, struct bundle_open, link);
	if (o && (any || time_after_eq(jiffies, o->until))) {
		list_del(&o->link);
		b->n_open--;
	} else {
		o = NULL;
	}
	spin_unlock(&b->lock);
	return o;
}

static bool close_one(struct coop_bundles *b, bool any)
{
	struct bundle_open *o = take_open(b, any);

	if (!o)
		return false;
	bundle_close(o->file, o->inode);
	kfree(o);
	return true;
}

static void close_work(struct work_struct *work)
{
	struct coop_mount *m =
		container_of(to_delayed_work(work), struct coop_mount, bundles.close_work);
	struct coop_bundles *b = &m->bundles;

	while (close_one(b, false))
		;
	spin_lock(&b->lock);
	if (!list_empty(&b->open) && !b->ended)
		queue_delayed_work(m->wq, &b->close_work, HZ);
	spin_unlock(&b->lock);
}

/* Peers may read it for a while. */
static void stay_open(struct bundle *bundle)
{
	struct bundle_open *o = kmalloc(sizeof(*o), GFP_KERNEL);
	struct coop_bundles *b = &bundle->mount->bundles;
	bool many = false;

	if (o) {
		o->file = bundle->file;
		o->inode = bundle->inode;
		o->until = jiffies + STAYS_OPEN;
		spin_lock(&b->lock);
		list_add_tail(&o->link, &b->open);
		many = ++b->n_open > OPEN_MOST;
		queue_delayed_work(bundle->mount->wq, &b->close_work, STAYS_OPEN);
		spin_unlock(&b->lock);
		bundle->file = NULL;
		bundle->inode = NULL;
	}
	if (many)
		close_one(b, true);
}

/* ---- reading ---------------------------------------------------------------------- */

/* Waits for a page that is being read; one that nobody could fill is read on its own. */
static int take_page(struct bundle *b, u32 index)
{
	struct address_space *mapping = b->inode->i_mapping;
	const u32 at = index << PAGE_SHIFT;
	struct folio *folio = coop_filemap_peek(mapping, index);
	int err = 0;

	if (folio) {
		err = folio_wait_locked_killable(folio);
		folio_put(folio);
	}
	if (err || fatal_signal_pending(current))
		return -EINTR;
	folio = read_mapping_folio(mapping, index, NULL);
	if (IS_ERR(folio))
		return PTR_ERR(folio);
	memcpy_from_page(b->bytes + at, folio_file_page(folio, index), 0,
			 min_t(u32, PAGE_SIZE, b->size - at));
	folio_put(folio);
	cond_resched();
	return 0;
}

static noinline_for_stack int bundle_read(struct bundle *b)
{
	const u32 pages = DIV_ROUND_UP(b->size, PAGE_SIZE);
	const u32 chunk =
		clamp_t(u32, READ_ONCE(b->mount->opt.readahead), COOP_MAX_PAGES, CHUNK_MOST);
	u32 i;
	int err = 0;

	b->bytes = kvmalloc(b->size, GFP_KERNEL | __GFP_NOWARN);
	if (!b->bytes)
		return -ENOMEM;
	for (i = 0; i < pages && !err; i++) {
		if (!(i % chunk)) {
			/* Readahead that leaves folios over takes them off its size. */
			struct file_ra_state ra = {};
			DEFINE_READAHEAD(rac, NULL, &ra, b->inode->i_mapping, i);

			page_cache_ra_unbounded(&rac, min(chunk, pages - i), 0);
		}
		err = take_page(b, i);
	}
	return err;
}

static noinline_for_stack int bundle_check(const struct bundle *b)
{
	SHASH_DESC_ON_STACK(desc, b->mount->bundles.sha);
	u8 sha[COOP_ST_PROOF];
	u32 at, n;
	int err;

	desc->tfm = b->mount->bundles.sha;
	err = crypto_shash_init(desc);
	for (at = 0; !err && at < b->size; at += n) {
		n = min_t(u32, HASH_STEP, b->size - at);
		err = crypto_shash_update(desc, b->bytes + at, n);
		cond_resched();
	}
	if (!err)
		err = crypto_shash_final(desc, sha);
	if (!err && memcmp(sha, b->sha, sizeof(sha)))
		err = -EBADMSG;
	shash_desc_zero(desc);
	return err;
}

static int bundle_take(struct bundle *b, const struct coop_bundle_want *want,
		       const struct cred *who, struct coop_bundle_bytes *got)
{
	int err = bundle_open(b, want, who);

	if (err)
		return err;
	err = bundle_read(b);
	if (!err)
		err = bundle_check(b);
	if (err == -EBADMSG)
		coop_content_unproved(coop_i(b->inode)); /* peers must not get these pages */
	if (err)
		return err;
	got->bytes = b->bytes;
	got->size = b->size;
	got->asked = b->asked;
	got->who = who;
	got->sought = want->sought;
	return coop_bundle_learn(b->mount, got);
}

static void bundle_fetch(struct coop_mount *m, const struct coop_bundle_want *want,
			 const struct cred *caller)
{
	const struct cred *who = get_cred(caller); /* it is valid until the next call of caller.c */
	struct coop_bundle_bytes got = {};
	struct bundle b = {.mount = m};
	int err;

	coop_count(&m->stats, COOP_C_BUNDLES_ASKED, 1);
	err = bundle_take(&b, want, who, &got);
	trace_coopfs_bundle(d_inode(want->dir), want->subtree, want->part, b.size, got.files, err);
	coop_bundle_came(want, !err, b.more, got.had);
	if (!err) {
		coop_count(&m->stats, COOP_C_BUNDLES, 1);
		coop_count(&m->stats, COOP_C_BUNDLED_FILES, got.files);
		stay_open(&b);
	} else if (b.answered && !got.taken) {
		coop_leases_renew(m); /* we do not know which leases came */
	}
	if (b.file)
		bundle_close(b.file, b.inode);
	kvfree(b.bytes);
	put_cred(who);
}

void coop_bundle_noticed(struct dentry *dir, const struct cred *who)
{
	struct coop_mount *m = coop_sb(dir->d_sb);
	struct coop_bundle_want want;

	if (IS_ERR(who) || !coop_storage_bundles(m->storage) || !asking_begin(&m->bundles))
		return;
	if (coop_bundle_wanted(dir, &want)) {
		bundle_fetch(m, &want, who);
		dput(want.dir);
	}
	asking_end(&m->bundles);
}

/* ---- a mount's -------------------------------------------------------------------- */

void coop_bundles_init(struct coop_mount *m, bool wanted)
{
	struct coop_bundles *b = &m->bundles;
	struct crypto_shash *sha = wanted ? crypto_alloc_shash("sha256", 0, 0) : NULL;

	b->sha = IS_ERR(sha) ? NULL : sha;
	spin_lock_init(&b->lock);
	INIT_LIST_HEAD(&b->open);
	INIT_DELAYED_WORK(&b->close_work, close_work);
}

void coop_bundles_stop(struct coop_mount *m)
{
	struct coop_bundles *b = &m->bundles;

	spin_lock(&b->lock);
	b->ended = true; /* the work does not queue itself again */
	spin_unlock(&b->lock);
	cancel_delayed_work_sync(&b->close_work);
	while (close_one(b, true))
		;
}

void coop_bundles_free(struct coop_mount *m)
{
	if (m->bundles.sha)
		crypto_free_shash(m->bundles.sha);
}
