// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * message.c - encoding and decoding of the storage protocol.
 *
 * All access goes through one cursor that turns "bad" at the first violation
 * and stays bad; callers check it once, at the end. Nothing here keeps state, so
 * there is nothing to recover: the caller refuses a bad message or ends the
 * connection.
 */
#include "message.h"

/* ---- the cursor ----------------------------------------------------------- */

struct cursor {
	u8 *out;      /* encoding */
	const u8 *in; /* decoding */
	u32 left;
	u32 used;
	bool bad;
};

static void put(struct cursor *c, const void *p, u32 len)
{
	if (c->bad || len > c->left) {
		c->bad = true;
		return;
	}
	if (len)
		memcpy(c->out + c->used, p, len);
	c->used += len;
	c->left -= len;
}

static void put16(struct cursor *c, u16 v)
{
	__le16 w = cpu_to_le16(v);

	put(c, &w, sizeof(w));
}

static void put32(struct cursor *c, u32 v)
{
	__le32 w = cpu_to_le32(v);

	put(c, &w, sizeof(w));
}

static void put64(struct cursor *c, u64 v)
{
	__le64 w = cpu_to_le64(v);

	put(c, &w, sizeof(w));
}

static void put_bytes(struct cursor *c, const struct coop_st_bytes *b, u32 max)
{
	if (b->len > max) {
		c->bad = true;
		return;
	}
	put16(c, (u16)b->len);
	put(c, b->p, b->len);
}

static void put_time(struct cursor *c, const struct coop_st_time *t)
{
	put64(c, (u64)t->sec);
	put32(c, t->nsec);
}

static void get(struct cursor *c, void *p, u32 len)
{
	if (c->bad || len > c->left) {
		c->bad = true;
		memset(p, 0, len);
		return;
	}
	if (len)
		memcpy(p, c->in + c->used, len);
	c->used += len;
	c->left -= len;
}

static u16 get16(struct cursor *c)
{
	__le16 w;

	get(c, &w, sizeof(w));
	return le16_to_cpu(w);
}

static u32 get32(struct cursor *c)
{
	__le32 w;

	get(c, &w, sizeof(w));
	return le32_to_cpu(w);
}

static u64 get64(struct cursor *c)
{
	__le64 w;

	get(c, &w, sizeof(w));
	return le64_to_cpu(w);
}

static void get_bytes(struct cursor *c, struct coop_st_bytes *b, u32 max)
{
	u32 len = get16(c);

	if (c->bad || len > max || len > c->left) {
		c->bad = true;
		return;
	}
	b->p = c->in + c->used;
	b->len = len;
	c->used += len;
	c->left -= len;
}

static void get_time(struct cursor *c, struct coop_st_time *t)
{
	t->sec = (s64)get64(c);
	t->nsec = get32(c);
	if (t->nsec >= 1000000000u)
		c->bad = true;
}

/* ---- compound fields ------------------------------------------------------ */

static void put_cred(struct cursor *c, const struct coop_st_cred *cred)
{
	u32 i;

	if (cred->n_groups > COOP_ST_GROUPS_MAX) {
		c->bad = true;
		return;
	}
	put32(c, cred->uid);
	put32(c, cred->gid);
	put32(c, cred->n_groups);
	for (i = 0; i < cred->n_groups; i++)
		put32(c, cred->groups[i]);
}

static void get_cred(struct cursor *c, struct coop_st_cred *cred)
{
	u32 i;

	cred->uid = get32(c);
	cred->gid = get32(c);
	cred->n_groups = get32(c);
	/* System calls that set ids read -1 as "do not change". */
	if (cred->n_groups > COOP_ST_GROUPS_MAX || cred->uid == ~0u || cred->gid == ~0u) {
		cred->n_groups = 0;
		c->bad = true;
		return;
	}
	for (i = 0; i < cred->n_groups; i++)
		cred->groups[i] = get32(c);
}

static void put_attr(struct cursor *c, const struct coop_st_attr *a)
{
	put64(c, a->fid.hi);
	put64(c, a->fid.lo);
	put64(c, a->version);
	put64(c, a->ino);
	put64(c, a->size);
	put64(c, a->blocks);
	put64(c, a->rdev);
	put32(c, (a->mode & 0xffff) | a->has << 16);
	put32(c, a->nlink);
	put32(c, a->uid);
	put32(c, a->gid);
	put32(c, a->blksize);
	put_time(c, &a->atime);
	put_time(c, &a->mtime);
	put_time(c, &a->ctime);
	put_time(c, &a->btime);
	put32(c, a->traits);
	put32(c, a->traits_known);
}

static void get_attr(struct cursor *c, struct coop_st_attr *a)
{
	a->fid.hi = get64(c);
	a->fid.lo = get64(c);
	a->version = get64(c);
	a->ino = get64(c);
	a->size = get64(c);
	a->blocks = get64(c);
	a->rdev = get64(c);
	a->mode = get32(c);
	a->has = a->mode >> 16;
	a->mode &= 0xffff;
	a->nlink = get32(c);
	a->uid = get32(c);
	a->gid = get32(c);
	a->blksize = get32(c);
	get_time(c, &a->atime);
	get_time(c, &a->mtime);
	get_time(c, &a->ctime);
	get_time(c, &a->btime);
	a->traits = get32(c);
	a->traits_known = get32(c);
	/* First condition: a size that would be negative as loff_t. */
	if (a->size >> 63 || a->has & ~(u32)COOP_ST_HAS_ALL || a->traits & ~a->traits_known ||
	    a->traits_known & ~(u32)COOP_ST_TRAIT_ALL ||
	    (!(a->has & COOP_ST_HAS_BTIME) && (a->btime.sec || a->btime.nsec)))
		c->bad = true;
}

static void put_set(struct cursor *c, const struct coop_st_setattr *s)
{
	put32(c, s->valid);
	put32(c, s->mode);
	put32(c, s->uid);
	put32(c, s->gid);
	put64(c, s->size);
	put_time(c, &s->atime);
	put_time(c, &s->mtime);
}

static void get_set(struct cursor *c, struct coop_st_setattr *s)
{
	s->valid = get32(c);
	s->mode = get32(c);
	s->uid = get32(c);
	s->gid = get32(c);
	s->size = get64(c);
	get_time(c, &s->atime);
	get_time(c, &s->mtime);
	if (s->valid & ~(u32)COOP_ST_SET_ALL || s->size >> 63)
		c->bad = true;
}

static void put_addr(struct cursor *c, const struct coop_addr *a)
{
	put(c, a->gid, sizeof(a->gid));
	put32(c, a->qpn);
	put32(c, a->qkey);
	put16(c, a->lid);
	put16(c, a->sl);
}

static void get_addr(struct cursor *c, struct coop_addr *a)
{
	u16 sl;

	get(c, a->gid, sizeof(a->gid));
	a->qpn = get32(c);
	a->qkey = get32(c);
	a->lid = get16(c);
	sl = get16(c);
	a->sl = (u8)sl;
	if (a->qpn >> 24 || sl > 15)
		c->bad = true;
}

static void put_lock(struct cursor *c, const struct coop_st_lock *l)
{
	put64(c, l->owner);
	put64(c, l->start);
	put64(c, l->end);
	put32(c, l->kind);
	put32(c, l->type);
	put32(c, l->pid);
}

static void get_lock(struct cursor *c, struct coop_st_lock *l)
{
	l->owner = get64(c);
	l->start = get64(c);
	l->end = get64(c);
	l->kind = get32(c);
	l->type = get32(c);
	l->pid = get32(c);
	if (l->kind >= COOP_ST_LOCK_KINDS || l->type >= COOP_ST_LOCK_TYPES || l->start >> 63 ||
	    l->end < l->start || (l->end >> 63 && l->end != ~(u64)0))
		c->bad = true;
}

static void put_roles(struct cursor *c, const struct coop_st_roles *r)
{
	u32 i;

	put32(c, r->members);
	put32(c, r->index);
	put32(c, r->n_colours);
	if (r->n_colours && r->n_colours != COOP_FOREST_COLOURS) {
		c->bad = true;
		return;
	}
	for (i = 0; i < r->n_colours; i++) {
		put32(c, r->colours[i].parent);
		put32(c, r->colours[i].alternate);
		put32(c, r->colours[i].level);
	}
}

/* A level below that of a root would let a load wait for one that waits for it. */
static void get_roles(struct cursor *c, struct coop_st_roles *r)
{
	u32 i;

	r->members = get32(c);
	r->index = get32(c);
	r->n_colours = get32(c);
	if (r->index >= r->members || r->n_colours != (r->members > 1 ? COOP_FOREST_COLOURS : 0u)) {
		c->bad = true;
		r->n_colours = 0;
	}
	for (i = 0; i < r->n_colours; i++) {
		struct coop_st_parents *p = &r->colours[i];

		p->parent = get32(c);
		p->alternate = get32(c);
		p->level = get32(c);
		if (p->level < COOP_LEVEL_ROOT || p->level >= COOP_LEVEL_NO_ROLE ||
		    (p->alternate && (!p->parent || p->alternate == p->parent)))
			c->bad = true;
	}
}

static void put_statfs(struct cursor *c, const struct coop_st_statfs *s)
{
	put64(c, s->blocks);
	put64(c, s->bfree);
	put64(c, s->bavail);
	put64(c, s->files);
	put64(c, s->ffree);
	put32(c, s->bsize);
	put32(c, s->frsize);
	put32(c, s->namelen);
}

static void get_statfs(struct cursor *c, struct coop_st_statfs *s)
{
	s->blocks = get64(c);
	s->bfree = get64(c);
	s->bavail = get64(c);
	s->files = get64(c);
	s->ffree = get64(c);
	s->bsize = get32(c);
	s->frsize = get32(c);
	s->namelen = get32(c);
}

/* ---- bodies ---------------------------------------------------------------- */

int coop_st_body_put(const struct coop_st_body *b, u64 f, u8 *buf, u32 cap)
{
	struct cursor c = {.out = buf, .left = cap};
	u32 i;

	if (f & COOP_ST_NONCE_F)
		put(&c, b->nonce, sizeof(b->nonce));
	if (f & COOP_ST_PROOF_F)
		put(&c, b->proof, sizeof(b->proof));
	if (f & COOP_ST_SESSION_F)
		put(&c, b->session, sizeof(b->session));
	if (f & COOP_ST_VERSIONS) {
		put16(&c, b->version_min);
		put16(&c, b->version_max);
	}
	if (f & COOP_ST_CRED)
		put_cred(&c, &b->cred);
	if (f & COOP_ST_FH)
		put_bytes(&c, &b->fh, COOP_ST_FH_MAX);
	if (f & COOP_ST_FH2)
		put_bytes(&c, &b->fh2, COOP_ST_FH_MAX);
	if (f & COOP_ST_NAME)
		put_bytes(&c, &b->name, COOP_ST_NAME_MAX);
	if (f & COOP_ST_NAME2)
		put_bytes(&c, &b->name2, COOP_ST_NAME_MAX);
	if (f & COOP_ST_TEXT)
		put_bytes(&c, &b->text, COOP_ST_TEXT_MAX);
	if (f & COOP_ST_OPEN_ID)
		put64(&c, b->open_id);
	if (f & COOP_ST_OFFSET)
		put64(&c, b->offset);
	if (f & COOP_ST_COUNT)
		put32(&c, b->count);
	if (f & COOP_ST_DATA_VERSION)
		put64(&c, b->version);
	if (f & COOP_ST_BEFORE)
		put64(&c, b->before);
	if (f & COOP_ST_FLAGS)
		put32(&c, b->flags);
	if (f & COOP_ST_MODE)
		put32(&c, b->mode);
	if (f & COOP_ST_SETATTR_F)
		put_set(&c, &b->set);
	if (f & COOP_ST_ATTR)
		put_attr(&c, &b->attr);
	if (f & COOP_ST_NODES) {
		if (b->n_nodes > COOP_MAX_HINTS)
			return -EMSGSIZE;
		put32(&c, b->n_nodes);
		for (i = 0; i < b->n_nodes; i++)
			put32(&c, b->nodes[i]);
	}
	if (f & COOP_ST_ADDR)
		put_addr(&c, &b->addr);
	if (f & COOP_ST_NODE_ID)
		put32(&c, b->node_id);
	if (f & COOP_ST_COOKIE)
		put64(&c, b->cookie);
	if (f & COOP_ST_STATFS_F)
		put_statfs(&c, &b->statfs);
	if (f & COOP_ST_SIZE)
		put64(&c, b->size);
	if (f & COOP_ST_VERIFIER)
		put64(&c, b->verifier);
	if (f & COOP_ST_LENGTH)
		put64(&c, b->length);
	if (f & COOP_ST_OPEN_ID2)
		put64(&c, b->open_id2);
	if (f & COOP_ST_OFFSET2)
		put64(&c, b->offset2);
	if (f & COOP_ST_RDEV)
		put64(&c, b->rdev);
	if (f & COOP_ST_LOCK_F)
		put_lock(&c, &b->lock);
	if (f & COOP_ST_FID_F) {
		put64(&c, b->fid.hi);
		put64(&c, b->fid.lo);
	}
	if (f & COOP_ST_DIR_ATTR)
		put_attr(&c, &b->dir);
	if (f & COOP_ST_ROLES_F)
		put_roles(&c, &b->roles);
	return c.bad ? -EMSGSIZE : (int)c.used;
}

int coop_st_body_get(struct coop_st_body *b, u64 f, const u8 *buf, u32 len)
{
	struct cursor c = {.in = buf, .left = len};
	u32 i;

	memset(b, 0, sizeof(*b));
	if (f & COOP_ST_NONCE_F)
		get(&c, b->nonce, sizeof(b->nonce));
	if (f & COOP_ST_PROOF_F)
		get(&c, b->proof, sizeof(b->proof));
	if (f & COOP_ST_SESSION_F)
		get(&c, b->session, sizeof(b->session));
	if (f & COOP_ST_VERSIONS) {
		b->version_min = get16(&c);
		b->version_max = get16(&c);
	}
	if (f & COOP_ST_CRED)
		get_cred(&c, &b->cred);
	if (f & COOP_ST_FH)
		get_bytes(&c, &b->fh, COOP_ST_FH_MAX);
	if (f & COOP_ST_FH2)
		get_bytes(&c, &b->fh2, COOP_ST_FH_MAX);
	if (f & COOP_ST_NAME)
		get_bytes(&c, &b->name, COOP_ST_NAME_MAX);
	if (f & COOP_ST_NAME2)
		get_bytes(&c, &b->name2, COOP_ST_NAME_MAX);
	if (f & COOP_ST_TEXT)
		get_bytes(&c, &b->text, COOP_ST_TEXT_MAX);
	if (f & COOP_ST_OPEN_ID)
		b->open_id = get64(&c);
	if (f & COOP_ST_OFFSET)
		b->offset = get64(&c);
	if (f & COOP_ST_COUNT)
		b->count = get32(&c);
	if (f & COOP_ST_DATA_VERSION)
		b->version = get64(&c);
	if (f & COOP_ST_BEFORE)
		b->before = get64(&c);
	if (f & COOP_ST_FLAGS)
		b->flags = get32(&c);
	if (f & COOP_ST_MODE)
		b->mode = get32(&c);
	if (f & COOP_ST_SETATTR_F)
		get_set(&c, &b->set);
	if (f & COOP_ST_ATTR)
		get_attr(&c, &b->attr);
	if (f & COOP_ST_NODES) {
		b->n_nodes = get32(&c);
		if (b->n_nodes > COOP_MAX_HINTS)
			return -EPROTO;
		for (i = 0; i < b->n_nodes; i++)
			b->nodes[i] = get32(&c);
	}
	if (f & COOP_ST_ADDR)
		get_addr(&c, &b->addr);
	if (f & COOP_ST_NODE_ID)
		b->node_id = get32(&c);
	if (f & COOP_ST_COOKIE)
		b->cookie = get64(&c);
	if (f & COOP_ST_STATFS_F)
		get_statfs(&c, &b->statfs);
	if (f & COOP_ST_SIZE)
		b->size = get64(&c);
	if (f & COOP_ST_VERIFIER)
		b->verifier = get64(&c);
	if (f & COOP_ST_LENGTH)
		b->length = get64(&c);
	if (f & COOP_ST_OPEN_ID2)
		b->open_id2 = get64(&c);
	if (f & COOP_ST_OFFSET2)
		b->offset2 = get64(&c);
	if (f & COOP_ST_RDEV)
		b->rdev = get64(&c);
	if (f & COOP_ST_LOCK_F)
		get_lock(&c, &b->lock);
	if (f & COOP_ST_FID_F) {
		b->fid.hi = get64(&c);
		b->fid.lo = get64(&c);
	}
	if (f & COOP_ST_DIR_ATTR)
		get_attr(&c, &b->dir);
	if (f & COOP_ST_ROLES_F)
		get_roles(&c, &b->roles);
	return c.bad || c.left ? -EPROTO : 0;
}

int coop_st_dirent_put(const struct coop_st_body *b, u8 *buf, u32 cap)
{
	struct cursor c = {.out = buf, .left = cap};
	int len;

	if (cap < 4)
		return -EMSGSIZE;
	len = coop_st_body_put(b, COOP_ST_DIRENT_FIELDS, buf + 4, cap - 4);
	if (len < 0)
		return len;
	put32(&c, (u32)len);
	return len + 4;
}

int coop_st_dirent_get(struct coop_st_body *b, const u8 *buf, u32 len)
{
	struct cursor c = {.in = buf, .left = len};
	u32 body;
	int err;

	if (!len)
		return 0;
	body = get32(&c);
	if (c.bad || body > COOP_ST_BODY_MAX || body > c.left)
		return -EPROTO;
	err = coop_st_body_get(b, COOP_ST_DIRENT_FIELDS, buf + 4, body);
	return err ? err : (int)body + 4;
}

/* ---- header and tail -------------------------------------------------------- */

void coop_st_header_put(const struct coop_st_header *h, u8 *buf)
{
	struct cursor c = {.out = buf, .left = COOP_ST_HEADER};

	put32(&c, COOP_ST_MAGIC);
	put16(&c, h->op);
	put16(&c, h->flags);
	put32(&c, h->body_len);
	put32(&c, h->data_len);
	put64(&c, h->id);
	put32(&c, h->status);
	put32(&c, 0);
}

int coop_st_header_get(struct coop_st_header *h, const u8 *buf)
{
	struct cursor c = {.in = buf, .left = COOP_ST_HEADER};
	const u16 known = COOP_ST_F_REPLY | COOP_ST_F_STREAM | COOP_ST_F_REPEAT | COOP_ST_F_LEASE |
			  COOP_ST_F_SHARED_DIR;

	if (get32(&c) != COOP_ST_MAGIC)
		return -EPROTO;
	h->op = get16(&c);
	h->flags = get16(&c);
	h->body_len = get32(&c);
	h->data_len = get32(&c);
	h->id = get64(&c);
	h->status = get32(&c);
	if (get32(&c) || h->flags & ~known)
		return -EPROTO;
	if (h->body_len > COOP_ST_BODY_MAX || h->data_len > COOP_ST_IO_MAX)
		return -EMSGSIZE;
	return 0;
}

void coop_st_tail_put(u32 status, u64 version, u8 *buf)
{
	struct cursor c = {.out = buf, .left = COOP_ST_TAIL};

	put32(&c, COOP_ST_MAGIC);
	put32(&c, status);
	put64(&c, version);
}

int coop_st_tail_get(u32 *status, u64 *version, const u8 *buf)
{
	struct cursor c = {.in = buf, .left = COOP_ST_TAIL};

	if (get32(&c) != COOP_ST_MAGIC)
		return -EPROTO;
	*status = get32(&c);
	*version = get64(&c);
	return 0;
}
