// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * requester.c - fetches: pages of the page cache as receive work requests.
 *
 * Each receive has the GRH area first, then the fragments of its segment, then
 * scrap up to the port's MTU, so that no datagram is too long for it. Pages are
 * mapped when they are first posted and unmapped before the engine judges. A
 * page that is posted again is mapped for both directions, because a part of it
 * may have arrived already. With ib_copy the datagrams go into private pages of
 * the slot instead, and verified pages are copied once.
 *
 * If the device rejects a receive, the queue pair is stopped and the receives
 * that were not posted count as flushed: the engine continues as after a loss.
 * The engine has the queue pair stopped and renewed, which a work does
 * (qp_change.c); it does not use the slot until it hears of the end.
 */
#include <linux/highmem.h>

#include "ib/node.h"
#include "ib/trace.h"

int coop_requester_create(struct coop_rnic *r, struct coop_fetch_slot *s)
{
	const gfp_t gfp = coop_node_gfp(r->node);
	int err;

	err = coop_bufs_create(&s->grh, r->port.dev, r->fetch_wrs, COOP_GRH_STRIDE, DMA_FROM_DEVICE,
			       gfp);
	if (!err && r->node->cfg.copy)
		err = coop_bufs_create(&s->own, r->port.dev, COOP_MAX_PAGES, PAGE_SIZE,
				       DMA_FROM_DEVICE, gfp);
	if (err)
		return err;
	s->qp.cap.max_recv_wr = r->fetch_wrs;
	s->qp.cap.max_recv_sge = 4;
	s->qp.cap.max_send_wr = 1; /* some devices refuse a queue of length 0 */
	s->qp.cap.max_send_sge = 1;
	return coop_qp_create(r, &s->qp);
}

/* ---- the request ---------------------------------------------------------------- */

/* Names the wanted pages, up to the engine's limits. */
static int describe(struct coop_rnic *r, struct coop_node_fetch *f, struct coop_fetch_req *req)
{
	u32 most = r->node->max_pages, n = 0, i;

	if (!f->n_pages || f->n_pages > COOP_MAX_PAGES ||
	    f->index / COOP_MAX_PAGES != (f->index + f->n_pages - 1) / COOP_MAX_PAGES)
		return -EINVAL;
	f->asked = 0;
	for (i = 0; i < f->n_pages && n < most; i++) {
		if (!(f->want >> i & 1))
			continue;
		if (!f->pages[i])
			return -EINVAL;
		if (!coop_fetch_req_add(req, f->index + i, 1))
			break;
		f->asked |= 1ULL << i;
		n++;
	}
	return n ? 0 : -EINVAL;
}

int coop_requester_submit(struct coop_rnic *r, struct coop_node_fetch *f, u64 now)
{
	struct coop_node *node = r->node;
	struct coop_fetch_req req = {
		.cookie = (uintptr_t)f,
		.fid = f->fid,
		.version = f->version,
		.size = f->size,
	};
	int err;

	err = describe(r, f, &req);
	if (err)
		return err;
	coop_peers_name(node, f, &req);
	err = coop_engine_submit(node->engine, &req, now, &f->id);
	if (err)
		return err;
	f->node = node;
	f->slot = COOP_NONE;
	f->good = 0;
	f->err = 0;
	list_add_tail(&f->link, &node->fetches);
	return 0;
}

/* ---- memory ------------------------------------------------------------------------------------
 */

static void take_slot(struct coop_rnic *r, struct coop_fetch_slot *s, struct coop_node_fetch *f)
{
	u32 i, ordinal = 0;

	s->fetch = f;
	s->mapped = 0;
	s->again = 0;
	f->slot = s->qp.slot;
	for (i = 0; i < f->n_pages; i++)
		if (f->asked >> i & 1)
			s->page[ordinal++] = f->pages[i];
	for (; ordinal < COOP_MAX_PAGES; ordinal++)
		s->page[ordinal] = NULL;
}

/* The page that receives the datagrams of this ordinal. */
static struct page *landing(const struct coop_rnic *r, const struct coop_fetch_slot *s, u32 ordinal)
{
	return r->node->cfg.copy ? coop_bufs_page(&s->own, ordinal) : s->page[ordinal];
}

static bool map_page(struct coop_rnic *r, struct coop_fetch_slot *s, u32 ordinal)
{
	u64 bit = 1ULL << ordinal;

	if (s->mapped & bit)
		return true;
	if (r->node->cfg.copy) {
		coop_bufs_to_device(&s->own, ordinal);
		s->dma[ordinal] = coop_bufs_dma(&s->own, ordinal);
	} else {
		s->dma[ordinal] =
			ib_dma_map_page(r->port.dev, s->page[ordinal], 0, PAGE_SIZE,
					s->again & bit ? DMA_BIDIRECTIONAL : DMA_FROM_DEVICE);
		if (ib_dma_mapping_error(r->port.dev, s->dma[ordinal]))
			return false;
	}
	s->mapped |= bit;
	return true;
}

/* The CPU may access the pages after this. */
static void unmap_pages(struct coop_rnic *r, struct coop_fetch_slot *s)
{
	u64 left;
	u32 i;

	for (left = s->mapped; left; left &= left - 1) {
		i = (u32)__ffs64(left);
		if (r->node->cfg.copy)
			coop_bufs_to_cpu(&s->own, i);
		else
			ib_dma_unmap_page(r->port.dev, s->dma[i], PAGE_SIZE,
					  s->again >> i & 1 ? DMA_BIDIRECTIONAL : DMA_FROM_DEVICE);
	}
	s->again |= s->mapped;
	s->mapped = 0;
}

/* ---- receives ----------------------------------------------------------------------------------
 */

static bool fill_recv(struct coop_rnic *r, struct coop_fetch_slot *s, const struct coop_seg *seg,
		      u32 number, u32 k)
{
	struct ib_recv_wr *wr = &r->recv_wr[k];
	struct ib_sge *sge = &r->sge[k * 4];
	u32 n = 0, total = 0, i;

	coop_bufs_to_device(&s->grh, number);
	sge[n].addr = coop_bufs_dma(&s->grh, number);
	sge[n].length = COOP_GRH;
	sge[n++].lkey = r->pd->local_dma_lkey;
	for (i = 0; i < seg->n_frag; i++) {
		u32 page = seg->frag[i].page;

		if (page >= COOP_MAX_PAGES || !s->page[page] || !map_page(r, s, page))
			return false;
		sge[n].addr = s->dma[page] + seg->frag[i].off;
		sge[n].length = seg->frag[i].len;
		sge[n++].lkey = r->pd->local_dma_lkey;
		total += seg->frag[i].len;
	}
	if (total < r->port.mtu) {
		sge[n].addr = coop_bufs_dma(&r->scrap, 0);
		sge[n].length = r->port.mtu - total;
		sge[n++].lkey = r->pd->local_dma_lkey;
	}
	wr->wr_id = coop_wr_id(&s->qp, number);
	wr->sg_list = sge;
	wr->num_sge = (int)n;
	wr->next = NULL;
	if (k)
		r->recv_wr[k - 1].next = wr;
	return true;
}

static u32 post_batch(struct coop_rnic *r, struct coop_fetch_slot *s, const struct coop_seg *seg,
		      u32 first, u32 n)
{
	const struct ib_recv_wr *bad = NULL;
	u32 k;

	for (k = 0; k < n; k++)
		if (!fill_recv(r, s, &seg[first + k], first + k, k))
			break;
	if (!k)
		return 0;
	if (ib_post_recv(s->qp.ib, r->recv_wr, &bad))
		return bad ? (u32)(bad - r->recv_wr) : 0;
	return k;
}

static void posted_more(struct coop_rnic *r, struct coop_fetch_slot *s, u32 n)
{
	s->n_posted += n;
	if (s->large || s->n_posted <= COOP_KEPT_SEGS)
		return;
	s->large = true;
	r->n_large++;
	coop_pump_watch_data(r);
}

static void none_is_posted(struct coop_rnic *r, struct coop_fetch_slot *s)
{
	s->n_posted = 0;
	if (s->large)
		r->n_large--;
	s->large = false;
}

void coop_requester_post(struct coop_rnic *r, const struct coop_tx *tx, u64 now)
{
	struct coop_node_fetch *f = (struct coop_node_fetch *)(uintptr_t)tx->cookie;
	struct coop_fetch_slot *s = &r->fetch[tx->slot];
	struct coop_engine *engine = r->node->engine;
	const bool again = s->fetch == f;
	u32 posted = 0, n, want = tx->n_seg;

	if (!again)
		take_slot(r, s, f);
	if (!s->qp.ready) /* its last renewal failed; all its receives had completed before */
		none_is_posted(r, s);
	while (posted < want && s->qp.ready && !r->closing && !WARN_ON_ONCE(want > r->fetch_wrs)) {
		u32 batch = min_t(u32, want - posted, COOP_BATCH);

		n = post_batch(r, s, tx->seg, posted, batch);
		posted += n;
		if (n < batch)
			break;
	}
	posted_more(r, s, posted);
	trace_coopfs_fetch_post(r, tx->slot, want, posted, again);
	coop_count(r->node->stats, COOP_C_RECV_POSTED, posted);
	if (posted < want) {
		if (posted)
			coop_requester_stop(r, tx->slot);
		coop_engine_rx_flush(engine, tx->slot, want - posted, now);
	}
}

void coop_requester_stop(struct coop_rnic *r, u32 slot)
{
	struct coop_fetch_slot *s = &r->fetch[slot];

	coop_count(r->node->stats, COOP_C_QP_STOPS, 1);
	coop_qp_stop(r, &s->qp);
}

void coop_requester_reset(struct coop_rnic *r, u32 slot)
{
	struct coop_fetch_slot *s = &r->fetch[slot];

	if (r->closing || WARN_ON_ONCE(s->n_posted))
		return;
	coop_engine_reset_begin(r->node->engine, slot);
	coop_qp_renew(r, &s->qp);
}

void coop_requester_completed(struct coop_rnic *r, const struct ib_wc *wc, u64 now)
{
	struct coop_fetch_slot *s = &r->fetch[coop_wr_slot(wc->wr_id)];
	struct coop_rx rx = {.slot = s->qp.slot, .wr = (u32)wc->wr_id};
	struct coop_addr from;

	if (!--s->n_posted) {
		none_is_posted(r, s);
		s->qp.overdue_at = ~0ULL;
	}
	if (wc->status != IB_WC_SUCCESS) {
		if (s->qp.ready) {
			s->qp.died = true;
			coop_qp_stop(r, &s->qp); /* flushes the rest */
		}
		coop_count(r->node->stats, COOP_C_RECV_FLUSHED, 1);
		coop_engine_rx_flush(r->node->engine, s->qp.slot, 1, now);
		return;
	}
	coop_bufs_to_cpu(&s->grh, rx.wr);
	coop_source_of(r, wc, coop_bufs_at(&s->grh, rx.wr), &from, &rx.has_gid);
	rx.has_imm = wc->wc_flags & IB_WC_WITH_IMM;
	if (rx.has_imm)
		rx.imm = be32_to_cpu(wc->ex.imm_data);
	rx.byte_len = wc->byte_len;
	rx.src_qp = wc->src_qp;
	memcpy(rx.src_gid, from.gid, sizeof(rx.src_gid));
	coop_count(r->node->stats, COOP_C_RECV_COMPLETED, 1);
	if (wc->byte_len > COOP_GRH)
		coop_count(r->node->stats, COOP_C_PEER_RX_BYTES, wc->byte_len - COOP_GRH);
	trace_coopfs_segment(r, &rx);
	coop_engine_rx_data(r->node->engine, &rx, now);
}

static struct coop_fetch_slot *slot_of(struct coop_qp *qp)
{
	return container_of(qp, struct coop_fetch_slot, qp);
}

static void fetch_qp_stopped(struct coop_rnic *r, struct coop_qp *qp, u64 now)
{
	if (slot_of(qp)->n_posted)
		coop_rnic_await(r, qp, now + COOP_QUIET_US);
}

static void fetch_qp_lost(struct coop_rnic *r, struct coop_qp *qp, u64 now)
{
	struct coop_fetch_slot *s = slot_of(qp);
	u32 n = s->n_posted;

	none_is_posted(r, s);
	if (!n)
		return;
	coop_count(r->node->stats, COOP_C_RECV_FLUSHED, n);
	coop_engine_rx_flush(r->node->engine, qp->slot, n, now);
}

/* If it failed, the receives of the next attempt fail, and so the engine wants it again. */
static void fetch_qp_renewed(struct coop_rnic *r, struct coop_qp *qp, int err, u64 now)
{
	struct coop_engine *engine = r->node->engine;

	if (!err)
		coop_engine_set_fetch_qp(engine, qp->slot, qp->num, r->qkey);
	coop_engine_reset_done(engine, qp->slot, now);
}

static void fetch_qp_overdue(struct coop_rnic *r, struct coop_qp *qp, u64 now)
{
	coop_qp_discard(r, qp);
}

const struct coop_qp_ops coop_requester_qp_ops = {
	.stopped = fetch_qp_stopped,
	.lost = fetch_qp_lost,
	.renewed = fetch_qp_renewed,
	.overdue = fetch_qp_overdue,
};

/* ---- the judgement -----------------------------------------------------------------------------
 */

struct landed {
	struct coop_rnic *r;
	const struct coop_fetch_slot *slot;
};

static void copy_segment(void *host, const struct coop_seg *place, u32 len, u32 at, bool gather)
{
	const struct landed *l = host;
	char *buf = (char *)l->r->bounce + at;
	u32 i, n;

	for (i = 0; i < place->n_frag && len; i++) {
		struct page *page = landing(l->r, l->slot, place->frag[i].page);

		n = min(len, place->frag[i].len);
		if (gather)
			memcpy_from_page(buf, page, place->frag[i].off, n);
		else
			memcpy_to_page(page, place->frag[i].off, buf, n);
		buf += n;
		len -= n;
	}
}

void coop_requester_verify(struct coop_rnic *r, const struct coop_ev *ev, u64 now)
{
	struct coop_node_fetch *f = (struct coop_node_fetch *)(uintptr_t)ev->cookie;
	struct coop_fetch_slot *s = &r->fetch[f->slot];
	struct landed l = {r, s};
	u64 good = ev->pages, left;
	u32 i;

	unmap_pages(r, s);
	i = coop_engine_move(r->node->engine, ev, copy_segment, &l);
	coop_count(r->node->stats, COOP_C_COPIED_BYTES, 2 * i);
	for (left = ev->sums ? good : 0; left; left &= left - 1) {
		i = (u32)__ffs64(left);
		if (!s->page[i] || coop_page_sum(r->node, ev, i, landing(r, s, i)) != ev->sums[i])
			good &= ~(1ULL << i);
	}
	trace_coopfs_verify(r, f->slot, ev, good);
	coop_engine_verify_done(r->node->engine, ev->id, good, now);
}

/* Zeroes the bytes past the end of the file. */
static void clear_tail(const struct coop_node_fetch *f, u32 i)
{
	u64 start = (f->index + i) << PAGE_SHIFT;

	if (start >= f->size)
		zero_user(f->pages[i], 0, PAGE_SIZE);
	else if (f->size - start < PAGE_SIZE)
		zero_user_segment(f->pages[i], (u32)(f->size - start), PAGE_SIZE);
}

void coop_requester_finished(struct coop_rnic *r, const struct coop_ev *ev, u64 now)
{
	struct coop_node_fetch *f = (struct coop_node_fetch *)(uintptr_t)ev->cookie;
	struct coop_fetch_slot *s = f->slot != COOP_NONE ? &r->fetch[f->slot] : NULL;
	u32 i, ordinal = 0;

	if (s) {
		WARN_ON_ONCE(s->n_posted);
		unmap_pages(r, s);
	}
	for (i = 0; s && i < f->n_pages; i++) {
		if (!(f->asked >> i & 1))
			continue;
		if (ev->pages >> ordinal & 1) {
			if (r->node->cfg.copy) {
				memcpy_page(f->pages[i], 0, landing(r, s, ordinal), 0, PAGE_SIZE);
				coop_count(r->node->stats, COOP_C_COPIED_BYTES, PAGE_SIZE);
			}
			clear_tail(f, i);
			f->good |= 1ULL << i;
		}
		ordinal++;
	}
	if (s)
		s->fetch = NULL;
	f->err = ev->err ? ev->err : f->good == f->want ? 0 : -ENOENT;
	list_move_tail(&f->link, &r->node->ended);
	coop_engine_fetch_release(r->node->engine, ev->id, now);
}
