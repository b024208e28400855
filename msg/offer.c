// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * offer.c - bulk data on their way out: parts of buffers that peers may read.
 *
 * A request names an offer by token and key, and its sender by an identity, all
 * under the MAC of the fabric. All its pages begin within the offer, or it finds
 * nothing: page 0 is at the shift of the request, which is 0 unless the offer is
 * for ranges. A page of the offer that is a page of memory is sent from there;
 * others are sent from copies, in which the bytes past the end of the offer are
 * zero, so no byte of the process outside of it ever leaves.
 *
 * An offer that ends takes no further request, and is over when those that it
 * serves are. Their readers believe no page that the device may have read since:
 * the recheck finds none good. A request for few pages has no recheck, but gets
 * copies, which were made before. Of the
 * readers of ranges the process hears nothing: one that dies does not end the
 * offer, and its requests end by themselves.
 */
#include <linux/highmem.h>
#include <linux/jhash.h>
#include <linux/slab.h>

#include "msg/machine.h"
#include "rpc/base/addr.h"

#define PAGE_BYTES COOP_NET_PAGE
#define IDENTITY   ((1ULL << COOP_NET_SHIFT_AT) - 1)

/* A request that is being served. */
struct coop_serve {
	struct coop_task *task;
	u32 shift;  /* where page 0 is in the offer */
	u64 copies; /* pages of ours, by ordinal */
};

/* ---- offers --------------------------------------------------------------------- */

static u32 key_of(const struct coop_machine *m, u64 token, u64 key)
{
	const u64 both[] = {token, key};

	return jhash(both, sizeof(both), m->salt);
}

static struct coop_task *find(struct coop_machine *m, u64 token, u64 key)
{
	struct coop_task *t;

	hash_for_each_possible(m->offers, t, u.offer.hash, key_of(m, token, key))
		if (t->u.offer.token == token && t->u.offer.key == key)
			return t;
	return NULL;
}

void coop_offer_begin(struct coop_machine *m, const struct coop_net_op *op)
{
	struct coop_task *t = coop_task_begin(m, op);
	struct coop_net_event ev = {};
	int err = 0;

	if (!t)
		return;
	if (op->flags & ~COOP_NET_RANGES || op->zero || op->u.offer.zero || !op->u.offer.key ||
	    op->u.offer.reader & ~IDENTITY || !op->length)
		err = -EINVAL;
	else if (find(m, op->u.offer.token, op->u.offer.key))
		err = -EEXIST;
	else if (op->u.offer.reader_peer)
		err = coop_peer_address(m, op->u.offer.reader_peer, &t->u.offer.reader_at);
	if (!err)
		err = coop_task_use(m, t, op->buffer, op->offset, op->length);
	if (err) {
		coop_task_over(m, t, &ev, COOP_NET_OFFER_OVER, err);
		return;
	}
	t->u.offer.token = op->u.offer.token;
	t->u.offer.key = op->u.offer.key;
	t->u.offer.reader = op->u.offer.reader;
	t->u.offer.placed = op->u.offer.reader_peer;
	t->u.offer.ranges = op->flags & COOP_NET_RANGES;
	hash_add(m->offers, &t->u.offer.hash, key_of(m, t->u.offer.token, t->u.offer.key));
}

static void conclude(struct coop_machine *m, struct coop_task *t)
{
	struct coop_net_event ev = {.tag = t->u.offer.last_reader};

	if (!t->ending || t->u.offer.serving)
		return;
	if (t->u.offer.tell)
		list_del(&t->u.offer.link);
	coop_task_over(m, t, &ev, COOP_NET_OFFER_OVER, -ECANCELED);
}

void coop_offer_cancel(struct coop_machine *m, struct coop_task *t)
{
	if (t->ending)
		return;
	t->ending = true;
	hash_del(&t->u.offer.hash);
	conclude(m, t);
}

void coop_offer_place(struct coop_machine *m, struct coop_task *t, u32 peer)
{
	struct coop_addr addr;

	if (t->code != COOP_NET_OFFER || coop_peer_address(m, peer, &addr))
		return;
	t->u.offer.reader_at = addr;
	t->u.offer.placed = true;
}

/* ---- readers -------------------------------------------------------------------- */

static void news(struct coop_machine *m, struct coop_task *t)
{
	if (t->u.offer.tell || t->u.offer.ranges)
		return;
	t->u.offer.tell = true;
	list_add_tail(&t->u.offer.link, &m->readers);
}

bool coop_offers_tell(struct coop_machine *m)
{
	struct coop_task *t, *next;

	list_for_each_entry_safe(t, next, &m->readers, u.offer.link) {
		struct coop_net_event ev = {
			.code = COOP_NET_READER,
			.flags = t->u.offer.serving ? COOP_NET_READING : 0,
			.handle = coop_task_handle(m, t),
			.tag = t->u.offer.last_reader,
		};

		if (coop_rings_room(&m->rings) <= 0)
			return false;
		t->u.offer.tell = false;
		list_del(&t->u.offer.link);
		coop_rings_reserve(&m->rings);
		coop_event(m, &ev);
	}
	return true;
}

/* ---- requests ------------------------------------------------------------------- */

static bool may_read(const struct coop_task *t, const struct coop_ev *ev)
{
	return !t->u.offer.reader || (ev->fid.lo & IDENTITY) == t->u.offer.reader;
}

/* Whether the reader is known to be where the request comes from. */
static bool is_there(struct coop_machine *m, const struct coop_task *t, const struct coop_ev *ev)
{
	/* Its queue pairs may be others since, and it need not have spoken with them. */
	return !t->u.offer.reader || !t->u.offer.placed ||
	       coop_addr_same_port(&t->u.offer.reader_at, &ev->from) ||
	       coop_peer_is(m, &ev->from, t->u.offer.reader);
}

/* All pages begin within the offer, and so does page 0. */
static bool within(const struct coop_task *t, u64 shift, const struct coop_ev *ev)
{
	u64 last;
	u32 e;

	if (shift && (!t->u.offer.ranges || shift >= PAGE_BYTES || shift >= t->length))
		return false;
	last = (t->length - shift - 1) / PAGE_BYTES;
	for (e = 0; e < ev->n_ext; e++)
		if (ev->ext[e].index > last || ev->ext[e].count - 1 > last - ev->ext[e].index)
			return false;
	return true;
}

/*
 * A page of ours with the bytes of the offer at 'at', zeros behind its end; or NULL. It counts for
 * the memory cgroup of our process: a reader must not bring the OOM killer upon that.
 */
static struct page *own_page(const struct coop_task *t, u64 at)
{
	struct page *page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_NORETRY | __GFP_NOWARN);
	const size_t n = min_t(u64, PAGE_BYTES, t->length - at);
	void *p;

	if (!page)
		return NULL;
	p = kmap_local_page(page);
	coop_pinned_read(t->buffer, t->offset + at, p, n);
	memset(p + n, 0, PAGE_BYTES - n);
	kunmap_local(p);
	return page;
}

/* A page that begins within the offer. False: there is no memory for a copy. */
static bool find_page(struct coop_serve *s, u64 index, u32 ordinal, struct coop_found *found)
{
	const struct coop_task *t = s->task;
	const u64 at = s->shift + index * PAGE_BYTES;
	struct page *page = NULL;

	if (t->length - at >= PAGE_BYTES)
		page = coop_pinned_page(t->buffer, t->offset + at);
	if (!page) {
		page = own_page(t, at);
		if (!page)
			return false;
		s->copies |= 1ULL << ordinal;
	}
	found->pages[ordinal] = page;
	found->have |= 1ULL << ordinal;
	return true;
}

static bool find_pages(struct coop_serve *s, const struct coop_ev *ev, struct coop_found *found)
{
	u32 e, i, n = 0;

	for (e = 0; e < ev->n_ext; e++)
		for (i = 0; i < ev->ext[e].count && n < COOP_MAX_PAGES; i++, n++)
			if (!find_page(s, ev->ext[e].index + i, n, found))
				return false;
	return true;
}

static void free_copies(const struct coop_serve *s, struct page *const *pages)
{
	u64 left;

	for (left = s->copies; left; left &= left - 1)
		__free_page(pages[__ffs64(left)]);
}

/* later: it is the reader's, but the reader is known to be elsewhere. */
static struct coop_task *find_offer(struct coop_machine *m, const struct coop_ev *ev, u64 shift,
				    bool *later)
{
	struct coop_task *t = find(m, ev->fid.hi, ev->version);

	*later = false;
	if (!t || !may_read(t, ev) || !within(t, shift, ev))
		return NULL;
	*later = !is_there(m, t, ev);
	return *later ? NULL : t;
}

/*
 * The process may have made the offer, or placed its reader, before it told the reader of it, and
 * the pump may have taken neither from the ring yet. So a request finds nothing only in a machine
 * that has taken what was in the ring; if that has to wait for room, so has the request. A reader
 * whose port has got another address has to ask again until the process has found it there.
 */
void coop_offer_lookup(void *host, const struct coop_ev *ev, struct coop_found *found, u64 now)
{
	const u64 shift = ev->fid.lo >> COOP_NET_SHIFT_AT;
	struct coop_machine *m = host;
	struct coop_task *t;
	struct coop_serve *s;
	bool later;

	if (!coop_machine_runs(m))
		return;
	t = find_offer(m, ev, shift, &later);
	if (!t) {
		const bool all = coop_machine_catch_up(m, now);

		if (!coop_machine_runs(m))
			return;
		t = find_offer(m, ev, shift, &later);
		found->later = later || (!t && !all);
	}
	if (!t)
		return;
	s = kzalloc(sizeof(*s), GFP_KERNEL_ACCOUNT | __GFP_NORETRY | __GFP_NOWARN);
	if (!s) {
		found->later = true;
		return;
	}
	s->task = t;
	s->shift = (u32)shift;
	if (!find_pages(s, ev, found)) {
		free_copies(s, found->pages);
		kfree(s);
		found->later = true;
		return;
	}
	found->size = t->length;
	found->cookie = s;
	t->u.offer.last_reader = ev->fid.lo & IDENTITY;
	t->u.offer.serving++;
	news(m, t);
}

u64 coop_offer_recheck(void *host, void *cookie, struct page *const *pages, u64 have)
{
	const struct coop_serve *s = cookie;

	return s && !s->task->ending ? have : 0;
}

void coop_offer_release(void *host, void *cookie, struct page **pages, u64 have)
{
	struct coop_machine *m = host;
	struct coop_serve *s = cookie;
	struct coop_task *t;

	if (!s)
		return;
	t = s->task;
	free_copies(s, pages);
	m->figures.served_bytes += hweight64(have) * PAGE_BYTES;
	kfree(s);
	t->u.offer.serving--;
	news(m, t);
	conclude(m, t);
}
