// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * bundle.c - encoding and decoding of bundles, see bundle.h.
 *
 * The decoder holds no offset that the bundle names, so a bundle cannot make it
 * go back. Every step takes a record's bytes from what is left, so any bundle
 * ends. The first wrong record ends it for good: 'left' is then 0 and a
 * directory or an entry is missing.
 */
#include "bundle.h"

#define DIR_FIELDS (COOP_ST_FH | COOP_ST_COUNT | COOP_ST_FLAGS | COOP_ST_ATTR)
#define ENTRY_FIELDS \
	(COOP_ST_FH | COOP_ST_NAME | COOP_ST_TEXT | COOP_ST_FLAGS | COOP_ST_ATTR | COOP_ST_COOKIE)

#define NODE_BYTES 4u

#define MODE_TYPE   0170000u
#define MODE_LINK   0120000u
#define MODE_FILE   0100000u
#define MODE_DIR    0040000u
#define PROVISIONAL (1ull << 63) /* of a version: see STORAGE.md */

static void put32(u8 *buf, u32 v)
{
	__le32 w = cpu_to_le32(v);

	memcpy(buf, &w, sizeof(w));
}

static u32 get32(const u8 *buf)
{
	__le32 w;

	memcpy(&w, buf, sizeof(w));
	return le32_to_cpu(w);
}

void coop_bundle_put_header(u32 dirs, u32 entries, u8 *buf)
{
	put32(buf, COOP_BUNDLE_MAGIC);
	put32(buf + 4, COOP_BUNDLE_FORMAT);
	put32(buf + 8, dirs);
	put32(buf + 12, entries);
}

int coop_bundle_put(const struct coop_st_body *b, const struct coop_st_bytes *content, u8 *buf,
		    u32 cap)
{
	const bool at_nodes = content && b->flags & COOP_BUNDLE_AT_NODES;
	const u32 data = at_nodes ? b->n_nodes * NODE_BYTES : content ? content->len : 0;
	u32 i;
	int n;

	if (cap < COOP_BUNDLE_RECORD || data > COOP_BUNDLE_CONTENT)
		return -EMSGSIZE;
	cap -= COOP_BUNDLE_RECORD;
	n = coop_st_body_put(b, content ? ENTRY_FIELDS : DIR_FIELDS, buf + COOP_BUNDLE_RECORD,
			     cap < COOP_ST_BODY_MAX ? cap : COOP_ST_BODY_MAX);
	if (n < 0 || data > cap - (u32)n)
		return -EMSGSIZE;
	put32(buf, (u32)n);
	put32(buf + 4, data);
	for (i = 0; at_nodes && i < b->n_nodes; i++)
		put32(buf + COOP_BUNDLE_RECORD + n + i * NODE_BYTES, b->nodes[i]);
	if (data && !at_nodes)
		memcpy(buf + COOP_BUNDLE_RECORD + n, content->p, data);
	return (int)(COOP_BUNDLE_RECORD + (u32)n + data);
}

int coop_bundle_begin(struct coop_bundle *b, const u8 *buf, u32 len)
{
	memset(b, 0, sizeof(*b));
	if (len < COOP_BUNDLE_HEADER || len > COOP_BUNDLE_BYTES ||
	    get32(buf) != COOP_BUNDLE_MAGIC || get32(buf + 4) != COOP_BUNDLE_FORMAT)
		return -EPROTO;
	b->dirs = get32(buf + 8);
	b->entries = get32(buf + 12);
	if (!b->dirs || b->dirs > COOP_BUNDLE_RECORDS ||
	    b->entries > COOP_BUNDLE_RECORDS - b->dirs) {
		memset(b, 0, sizeof(*b));
		return -EPROTO;
	}
	b->p = buf + COOP_BUNDLE_HEADER;
	b->left = len - COOP_BUNDLE_HEADER;
	return 0;
}

static bool bundle_name_good(const struct coop_st_bytes *n)
{
	u32 i;

	if (!n->len || (n->p[0] == '.' && (n->len == 1 || (n->len == 2 && n->p[1] == '.'))))
		return false;
	for (i = 0; i < n->len; i++)
		if (!n->p[i] || n->p[i] == '/')
			return false;
	return true;
}

static bool bundle_dir_good(const struct coop_bundle *b, const struct coop_st_body *d, u32 data)
{
	return !data && d->fh.len && d->count <= b->entries &&
	       !(d->flags & ~(u32)COOP_BUNDLE_DIR_FLAGS) && d->attr.has & COOP_ST_HAS_LEASE &&
	       (d->attr.mode & MODE_TYPE) == MODE_DIR;
}

static bool bundle_entry_good(const struct coop_st_body *e, u32 data)
{
	const u32 type = e->attr.mode & MODE_TYPE;
	const bool leased = e->attr.has & COOP_ST_HAS_LEASE;

	if (!bundle_name_good(&e->name) || e->flags & ~(u32)COOP_BUNDLE_FILE_FLAGS)
		return false;
	if ((leased && !e->fh.len) || (e->text.len && (!leased || type != MODE_LINK)))
		return false;
	if (!e->flags)
		return !data;
	/* Equal versions must mean equal bytes. */
	if (!leased || type != MODE_FILE || !e->attr.version || e->attr.version & PROVISIONAL)
		return false;
	if (e->flags == COOP_BUNDLE_READ)
		return data == e->attr.size;
	return e->flags == COOP_BUNDLE_AT_NODES && data && data % NODE_BYTES == 0 &&
	       data <= COOP_BUNDLE_NODES * NODE_BYTES && e->attr.size &&
	       e->attr.size <= COOP_BUNDLE_CONTENT;
}

/* The ids take the place of the content. */
static void bundle_entry_nodes(struct coop_st_body *e, struct coop_st_bytes *content)
{
	if (!(e->flags & COOP_BUNDLE_AT_NODES))
		return;
	for (e->n_nodes = 0; e->n_nodes < content->len / NODE_BYTES; e->n_nodes++)
		e->nodes[e->n_nodes] = get32(content->p + e->n_nodes * NODE_BYTES);
	content->p = NULL;
	content->len = 0;
}

static int bundle_record(struct coop_bundle *b, u64 fields, struct coop_st_body *out,
			 struct coop_st_bytes *content)
{
	u32 body, data;

	if (b->left < COOP_BUNDLE_RECORD)
		return -EPROTO;
	body = get32(b->p);
	data = get32(b->p + 4);
	if (body > COOP_ST_BODY_MAX || data > COOP_BUNDLE_CONTENT ||
	    body + data > b->left - COOP_BUNDLE_RECORD)
		return -EPROTO;
	if (coop_st_body_get(out, fields, b->p + COOP_BUNDLE_RECORD, body))
		return -EPROTO;
	content->p = b->p + COOP_BUNDLE_RECORD + body;
	content->len = data;
	b->p += COOP_BUNDLE_RECORD + body + data;
	b->left -= COOP_BUNDLE_RECORD + body + data;
	return 0;
}

int coop_bundle_next(struct coop_bundle *b, struct coop_st_body *out, struct coop_st_bytes *content)
{
	content->p = NULL;
	content->len = 0;
	if (b->here) {
		if (bundle_record(b, ENTRY_FIELDS, out, content) ||
		    !bundle_entry_good(out, content->len))
			goto bad;
		bundle_entry_nodes(out, content);
		b->here--;
		b->entries--;
		return COOP_BUNDLE_ENTRY;
	}
	if (b->dirs) {
		if (bundle_record(b, DIR_FIELDS, out, content) ||
		    !bundle_dir_good(b, out, content->len))
			goto bad;
		b->dirs--;
		b->here = out->count;
		return COOP_BUNDLE_DIRECTORY;
	}
	if (b->left || b->entries)
		goto bad;
	return COOP_BUNDLE_END;
bad:
	b->left = 0;
	b->here = 0;
	b->dirs = 1; /* so that the next call fails too */
	return -EPROTO;
}
