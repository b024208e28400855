// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * roles.c - this node's place in the forests of the files that it has open.
 *
 * A file version that several nodes have open has a forest (rpc/storage/forest.h). The daemon
 * pushes this node's parents in each colour before it answers the OPEN, so the file may not be
 * open here yet; a bundle's inode may not even exist (bundle_fetch.c). Roles are hints: a wrong or
 * missing one costs a request, or a copy from storage, never data.
 *
 * An inode has roles only while the daemon says that other nodes have the file open. They are
 * freed at the last close, replaced by newer ones, and void with the connection.
 */
#include <linux/slab.h>

#include "fs/fs.h"
#include "fs/trace.h"
#include "rpc/storage/forest.h"

struct coop_roles {
	u64 version;
	int connection; /* coop_mount.connection when they came */
	struct coop_st_roles told;
};

/* sign: 1 or -1. Roles of an earlier connection do not count. */
static void count_locked(struct coop_mount *m, const struct coop_roles *roles, int sign)
{
	struct coop_role_counts *n = &m->roles;
	u32 c;

	lockdep_assert_held(&m->roles_lock);
	if (!roles || roles->connection != m->connection)
		return;
	n->files += sign;
	for (c = 0; c < roles->told.n_colours; c++) {
		const enum coop_forest_part part =
			coop_forest_part_of(roles->told.colours[c].level);

		if (part == COOP_PART_LEAF) {
			n->leaf += c ? 0 : sign; /* in all trees of the file */
			continue;
		}
		n->carrier += part == COOP_PART_CARRIER ? sign : 0;
		n->substitute += part == COOP_PART_SUBSTITUTE ? sign : 0;
		n->children +=
			sign * (int)coop_forest_children(roles->told.members, roles->told.index, c);
	}
}

static void replace_locked(struct coop_inode *ci, struct coop_roles *roles)
{
	struct coop_mount *m = coop_sb(ci->vfs.i_sb);

	lockdep_assert_held(&ci->lock);
	spin_lock(&m->roles_lock);
	count_locked(m, ci->roles, -1);
	count_locked(m, roles, 1);
	spin_unlock(&m->roles_lock);
	kfree(ci->roles);
	ci->roles = roles;
}

void coop_roles_learn(struct coop_mount *m, const struct coop_fid *fid, u64 version,
		      const struct coop_st_roles *roles)
{
	struct inode *inode = coop_ilookup(m->sb, fid);
	struct coop_roles *new = NULL;
	struct coop_inode *ci;

	if (!inode) {
		coop_bundles_roles(m, fid, version, roles);
		return;
	}
	ci = coop_i(inode);
	/* The receiver must not wait for memory; without it the node acts as one without a role. */
	if (roles->n_colours == COOP_FOREST_COLOURS)
		new = kmalloc(sizeof(*new), GFP_NOWAIT | __GFP_NOWARN);
	if (new) {
		new->version = version;
		new->connection = READ_ONCE(m->connection);
		new->told = *roles;
	}
	trace_coopfs_roles(inode, version, roles);
	spin_lock(&ci->lock);
	replace_locked(ci, new);
	coop_roles_trim_locked(ci); /* a push may come after the last close */
	spin_unlock(&ci->lock);
	coop_iput_later(inode);
}

void coop_roles_lost(struct coop_mount *m)
{
	spin_lock(&m->roles_lock);
	WRITE_ONCE(m->connection, m->connection + 1);
	memset(&m->roles, 0, sizeof(m->roles));
	spin_unlock(&m->roles_lock);
}

void coop_roles_count(struct coop_mount *m, struct coop_role_counts *out)
{
	spin_lock(&m->roles_lock);
	*out = m->roles;
	spin_unlock(&m->roles_lock);
}

void coop_roles_trim_locked(struct coop_inode *ci)
{
	lockdep_assert_held(&ci->lock);
	if (ci->roles && list_empty(&ci->files) && !ci->opening)
		replace_locked(ci, NULL);
}

void coop_roles_opening_begin(struct coop_inode *ci)
{
	spin_lock(&ci->lock);
	ci->opening++;
	spin_unlock(&ci->lock);
}

void coop_roles_opening_end(struct coop_inode *ci)
{
	spin_lock(&ci->lock);
	ci->opening--;
	coop_roles_trim_locked(ci);
	spin_unlock(&ci->lock);
}

void coop_roles_evict(struct coop_inode *ci)
{
	spin_lock(&ci->lock);
	if (ci->roles)
		replace_locked(ci, NULL);
	spin_unlock(&ci->lock);
}

static bool valid_locked(const struct coop_inode *ci, u64 version)
{
	lockdep_assert_held(&ci->lock);
	return ci->roles && ci->roles->version == version &&
	       ci->roles->connection == READ_ONCE(coop_sb(ci->vfs.i_sb)->connection);
}

bool coop_roles_place(struct coop_inode *ci, u64 version, u64 index, struct coop_place *out)
{
	const struct coop_st_parents *p;
	u32 colour;
	bool any;

	if (!version || !READ_ONCE(ci->roles))
		return false;
	colour = coop_forest_colour(&ci->fid, div_u64(index << PAGE_SHIFT, COOP_FOREST_UNIT));
	spin_lock(&ci->lock);
	any = valid_locked(ci, version);
	if (any) {
		p = &ci->roles->told.colours[colour];
		out->parent = p->parent;
		out->alternate = p->alternate;
		out->level = p->level;
	}
	spin_unlock(&ci->lock);
	return any;
}

static size_t node_text(struct coop_mount *m, u32 node_id, char *text, size_t size)
{
	struct coop_addr addr;

	if (!node_id)
		return scnprintf(text, size, "-");
	if (m->shards && coop_shards_address(m->shards, node_id, &addr))
		return scnprintf(text, size, "%pI6c", addr.gid);
	return scnprintf(text, size, "node-%u", node_id);
}

size_t coop_roles_text(struct inode *inode, char *text)
{
	struct coop_mount *m = coop_sb(inode->i_sb);
	struct coop_inode *ci = coop_i(inode);
	struct coop_st_roles told = {.members = 1};
	const size_t size = PAGE_SIZE;
	size_t n;
	u32 c;

	spin_lock(&ci->lock);
	if (ci->version && valid_locked(ci, ci->version))
		told = ci->roles->told;
	spin_unlock(&ci->lock);
	n = scnprintf(text, size, "forest members %u index %u\n", told.members, told.index);
	for (c = 0; c < told.n_colours; c++) {
		const struct coop_st_parents *p = &told.colours[c];

		n += scnprintf(text + n, size - n, "colour %u level %u parent ", c, p->level);
		n += node_text(m, p->parent, text + n, size - n);
		n += scnprintf(text + n, size - n, " alternate ");
		n += node_text(m, p->alternate, text + n, size - n);
		n += scnprintf(text + n, size - n, "\n");
	}
	return n;
}
