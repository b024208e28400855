// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * responder.c - serves: pages of the page cache as sends.
 *
 * Nothing here waits for a folio or for the requester. A page that the lookup
 * found is mapped for its first send and stays mapped until the serve ends. Only
 * the last send of a batch is signalled; its completion stands for all, because
 * sends complete in order. When all batches are complete, we compute any sums and
 * then ask the file system which pages did not change since the lookup.
 *
 * A serve of few pages sends copies. Pages that did not change during the copy
 * are committed at once, and the COMMIT does not wait for a completion. Where the
 * round trip dominates the cost of a page this saves a third of it; for many
 * pages the copies would cost more.
 *
 * A request may wait for pages on their way to this node. Its serve gets them from the file system
 * as they arrive, and sends no copies: those would have to wait for the last page.
 *
 * Serves share queue pairs. What is posted at once is bounded for all together, so every batch
 * that the engine gives out has room on its queue pair. The number of sends also bounds what waits
 * in the completion queue; there those of a queue pair out of service count, too.
 *
 * A failed queue pair is stopped; when all its batches have completed it is
 * renewed. A work does both (qp_change.c), and meanwhile another queue pair sends
 * for its slots of the engine. The requester asks again for what it misses: what
 * had not been sent, and what came from another queue pair than its COMMIT names.
 */
#include "ib/node.h"
#include "ib/trace.h"

#define NO_RECORD    (~0ULL)
#define LAST_OF_TURN BIT(31) /* in a wr_id's number: the signalled send of a batch */

int coop_responder_create(struct coop_rnic *r, struct coop_serve_slot *s)
{
	s->qp.cap.max_send_wr = r->serve_wrs;
	s->qp.cap.max_send_sge = 2;
	s->qp.cap.max_recv_wr = 1; /* some devices refuse a queue of length 0 */
	s->qp.cap.max_recv_sge = 1;
	return coop_qp_create(r, &s->qp);
}

/* ---- pages -------------------------------------------------------------------------------------
 */

static bool worth_copying(const struct coop_rnic *r, const struct coop_serving *v,
			  const struct coop_ev *ev)
{
	u32 e, n = 0;

	if (v - r->serves >= r->n_serve)
		return false; /* it has no room for them */
	for (e = 0; e < ev->n_ext; e++)
		n += ev->ext[e].count;
	return n <= COOP_KEPT_PAGES && n * r->per_page <= COOP_KEPT_SEGS;
}

static u32 kept_of(const struct coop_rnic *r, const struct coop_serving *v, u32 page)
{
	return (u32)(v - r->serves) * COOP_KEPT_PAGES + page;
}

/* Copies the pages. Returns those that did not change during the copy. */
static u64 copy_pages(struct coop_rnic *r, struct coop_serving *v)
{
	u64 left;
	u32 i;

	for (left = v->have; left; left &= left - 1) {
		const u32 page = (u32)__ffs64(left);

		i = kept_of(r, v, page);
		coop_bufs_to_cpu(&r->kept, i);
		memcpy_page(coop_bufs_page(&r->kept, i), 0, v->page[page], 0, PAGE_SIZE);
		coop_bufs_to_device(&r->kept, i);
	}
	v->copied = true;
	coop_count(r->node->stats, COOP_C_SERVE_COPIED_BYTES, hweight64(v->have) * PAGE_SIZE);
	return r->node->ops->recheck(r->node->host, v->cookie, v->page, v->have) & v->have;
}

/* Computes the sums of the bytes to be sent that the event asks for; NULL: it asks for none. */
static const u64 *sum_pages(struct coop_rnic *r, const struct coop_serving *v,
			    const struct coop_ev *ev, u64 sums[COOP_MAX_PAGES])
{
	u64 left;
	u32 i;

	if (ev->sum == COOP_SUM_NONE)
		return NULL;
	memset(sums, 0, COOP_MAX_PAGES * sizeof(*sums));
	for (left = v->have; left; left &= left - 1) {
		i = (u32)__ffs64(left);
		sums[i] = coop_page_sum(r->node, ev, i,
					v->copied ? coop_bufs_page(&r->kept, kept_of(r, v, i))
						  : v->page[i]);
	}
	return sums;
}

void coop_responder_lookup(struct coop_rnic *r, const struct coop_ev *ev, u64 now)
{
	struct coop_node *node = r->node;
	struct coop_serving *v = NULL;
	u64 sums[COOP_MAX_PAGES], kept;
	struct coop_found found = {};
	u32 i;

	for (i = 0; i < r->n_serves; i++) {
		if (!r->serves[i].used) {
			v = &r->serves[i];
			break;
		}
	}
	if (!v || r->closing) {
		coop_engine_lookup_done(node->engine, ev->id, 0, 0, NO_RECORD, now);
		return;
	}
	memset(v, 0, sizeof(*v));
	v->used = true;
	v->id = ev->id;
	found.pages = v->page;
	node->ops->lookup(node->host, ev, &found, now);
	if (found.later) {
		v->used = false;
		coop_engine_lookup_busy(node->engine, ev->id, NO_RECORD);
		return;
	}
	v->have = found.have;
	v->coming = found.coming;
	v->cookie = found.cookie;
	r->n_serving++;
	if (v->coming) {
		coop_engine_lookup_wait(node->engine, ev->id, v->have, v->coming, found.size, i,
					now);
		return;
	}
	if (!worth_copying(r, v, ev)) {
		coop_engine_lookup_done(node->engine, ev->id, v->have, found.size, i, now);
		return;
	}
	kept = copy_pages(r, v);
	coop_engine_lookup_kept(node->engine, ev->id, kept, found.size, i,
				sum_pages(r, v, ev, sums), now);
}

void coop_responder_look_again(struct coop_rnic *r, u64 now)
{
	struct coop_node *node = r->node;
	u32 i;

	for (i = 0; i < r->n_serves; i++) {
		struct coop_serving *v = &r->serves[i];
		u64 arrived = 0, left;

		if (!v->used || !v->coming)
			continue;
		left = node->ops->more(node->host, v->cookie, v->page, v->coming, &arrived);
		if (left == v->coming)
			continue;
		trace_coopfs_serve_more(r, v, arrived, left);
		v->have |= arrived;
		coop_engine_lookup_more(node->engine, v->id, arrived, v->coming & ~(arrived | left),
					now);
		v->coming = left;
	}
}

void coop_responder_wait_no_more(struct coop_rnic *r, u64 now)
{
	u32 i;

	for (i = 0; i < r->n_serves; i++) {
		struct coop_serving *v = &r->serves[i];

		if (!v->used || !v->coming)
			continue;
		coop_engine_lookup_more(r->node->engine, v->id, 0, v->coming, now);
		v->coming = 0;
	}
}

void coop_responder_recheck(struct coop_rnic *r, const struct coop_ev *ev, u64 now)
{
	struct coop_node *node = r->node;
	u64 sums[COOP_MAX_PAGES], still;
	struct coop_serving *v;
	const u64 *taken;

	if (ev->cookie == NO_RECORD) {
		coop_engine_recheck_done(node->engine, ev->id, 0, NULL, now);
		return;
	}
	v = &r->serves[ev->cookie];
	taken = sum_pages(r, v, ev, sums);
	still = node->ops->recheck(node->host, v->cookie, v->page, v->have) & v->have;
	coop_engine_recheck_done(node->engine, ev->id, still, taken, now);
}

void coop_responder_end(struct coop_rnic *r, const struct coop_ev *ev)
{
	struct coop_serving *v;
	u64 left;

	if (ev->cookie == NO_RECORD)
		return;
	v = &r->serves[ev->cookie];
	for (left = v->mapped; left; left &= left - 1)
		ib_dma_unmap_page(r->port.dev, v->dma[__ffs64(left)], PAGE_SIZE, DMA_TO_DEVICE);
	if (v->have || v->cookie)
		r->node->ops->release(r->node->host, v->cookie, v->page, v->have);
	v->used = false;
	r->n_serving--;
}

/* The DMA address to send a page from; false: the page cannot be mapped. */
static bool source(struct coop_rnic *r, struct coop_serving *v, u32 page, bool absent, u64 *at)
{
	u64 bit = 1ULL << page;

	if (!v || absent || !(v->have & bit)) {
		*at = coop_bufs_dma(&r->zeros, 0);
		return true;
	}
	if (v->copied) {
		*at = coop_bufs_dma(&r->kept, kept_of(r, v, page));
		return true;
	}
	if (!(v->mapped & bit)) {
		v->dma[page] =
			ib_dma_map_page(r->port.dev, v->page[page], 0, PAGE_SIZE, DMA_TO_DEVICE);
		if (ib_dma_mapping_error(r->port.dev, v->dma[page]))
			return false;
		v->mapped |= bit;
	}
	*at = v->dma[page];
	return true;
}

/* ---- sends ---------------------------------------------------------------------- */

static bool fill_send(struct coop_rnic *r, struct coop_serve_slot *s, struct coop_serving *v,
		      const struct coop_tx *tx, struct coop_ah *ah, u32 i)
{
	const struct coop_seg *seg = &tx->seg[i];
	struct ib_sge *sge = &r->sge[i * 2];
	struct ib_ud_wr *wr = &r->send_wr[i];
	bool last = i + 1 == tx->n_seg;
	u32 k;

	for (k = 0; k < seg->n_frag; k++) {
		u64 at;

		if (!source(r, v, seg->frag[k].page, seg->frag[k].absent, &at))
			return false;
		sge[k].addr = at + seg->frag[k].off;
		sge[k].length = seg->frag[k].len;
		sge[k].lkey = r->pd->local_dma_lkey;
	}
	memset(wr, 0, sizeof(*wr));
	wr->wr.wr_id = coop_wr_id(&s->qp, (s->tail & ~LAST_OF_TURN) | (last ? LAST_OF_TURN : 0));
	wr->wr.sg_list = sge;
	wr->wr.num_sge = seg->n_frag;
	wr->wr.opcode = IB_WR_SEND_WITH_IMM;
	wr->wr.send_flags = last ? IB_SEND_SIGNALED : 0;
	wr->wr.ex.imm_data = cpu_to_be32(seg->imm);
	wr->wr.next = last ? NULL : &r->send_wr[i + 1].wr;
	wr->ah = ah->ib;
	wr->remote_qpn = tx->addr.qpn;
	wr->remote_qkey = coop_qkey_to(r, &tx->addr);
	return true;
}

/* The queue pair that a slot of the engine sends from: its own, or one that stands in for it. */
static struct coop_serve_slot *sender(const struct coop_rnic *r, u32 slot)
{
	struct coop_serve_slot *own = &r->serve[slot % r->n_serve];

	return own->qp.ready || !r->stand_in ? own : r->stand_in;
}

/* A queue pair went out of use, or is in use again. */
static void senders_changed(struct coop_rnic *r)
{
	const struct coop_serve_slot *s;
	u32 i;

	if (!r->stand_in || !r->stand_in->qp.ready) {
		r->stand_in = NULL;
		for (i = 0; !r->stand_in && i < r->n_serve; i++)
			if (r->serve[i].qp.ready)
				r->stand_in = &r->serve[i];
	}
	r->n_turns = 0;
	r->sending = 0;
	for (i = 0; i < r->n_serve; i++) {
		s = &r->serve[i];
		if (!s->qp.ready)
			continue;
		r->n_turns += s->tail - s->head;
		r->sending += s->bytes;
	}
	for (i = 0; i < r->n_serves; i++)
		coop_engine_set_serve_qp(r->node->engine, i, sender(r, i)->qp.num);
}

/* Its last renewal failed: tries again. */
static void renew_again(struct coop_rnic *r, struct coop_serve_slot *s)
{
	if (s->head == s->tail && !s->qp.wants && !s->qp.taken)
		coop_qp_renew(r, &s->qp);
}

bool coop_responder_has_room(const struct coop_rnic *r)
{
	return !r->n_sending || r->closing ||
	       (r->sending + COOP_BATCH * r->mtu <= COOP_SENDING_MAX &&
		r->n_sending + COOP_BATCH <= r->serve_wrs && r->n_turns < COOP_SERVE_TURNS);
}

/* Posts a batch. On error the device owns nothing of it; without, a turn lasts as long as it may.
 */
static int post(struct coop_rnic *r, const struct coop_tx *tx, u64 now)
{
	struct coop_serving *v = tx->cookie == NO_RECORD ? NULL : &r->serves[tx->cookie];
	struct coop_serve_slot *own = &r->serve[tx->slot % r->n_serve], *s = own;
	const struct ib_send_wr *bad = NULL;
	struct coop_ah *ah;
	u32 i, bytes = 0;
	int err;

	if (r->closing || tx->n_seg > COOP_BATCH)
		return -ESHUTDOWN;
	if (!own->qp.ready) {
		renew_again(r, own);
		s = sender(r, tx->slot);
	}
	if (!s->qp.ready || s->tail - s->head == COOP_SERVE_TURNS ||
	    s->n_posted + tx->n_seg > r->serve_wrs)
		return -EAGAIN;
	/* ctrl.c held the REQUEST back until the handle was resolved, so it is usually there. */
	ah = coop_ah_of_data(r, &tx->addr, s->qp.ib->qp_num, now);
	if (!ah || !ah->ib)
		return -EHOSTUNREACH;
	for (i = 0; i < tx->n_seg; i++) {
		if (!fill_send(r, s, v, tx, ah, i))
			return -ENOMEM;
		bytes += tx->seg[i].len;
	}
	err = ib_post_send(s->qp.ib, &r->send_wr[0].wr, &bad);
	s->turn[s->tail % COOP_SERVE_TURNS].id = tx->id;
	s->turn[s->tail % COOP_SERVE_TURNS].n_seg = tx->n_seg;
	s->turn[s->tail % COOP_SERVE_TURNS].bytes = bytes;
	s->turn[s->tail % COOP_SERVE_TURNS].ah = ah;
	coop_ah_hold(ah);
	s->tail++;
	s->n_posted += tx->n_seg;
	s->bytes += bytes;
	r->n_sending += tx->n_seg;
	r->n_turns++;
	r->sending += bytes;
	coop_count(r->node->stats, COOP_C_SEND_POSTED, tx->n_seg);
	coop_count(r->node->stats, COOP_C_PEER_TX_BYTES, bytes);
	if (!err) {
		coop_rnic_await(r, &s->qp, now + COOP_SENT_US);
		return 0;
	}
	/*
	 * The device accepted a part of the batch without the signalled send, so no completion
	 * would report the end of that part. Destroying the queue pair ends it for certain. The
	 * batch is its last turn until then.
	 */
	coop_qp_discard(r, &s->qp);
	senders_changed(r);
	return 0;
}

void coop_responder_send(struct coop_rnic *r, const struct coop_tx *tx, u64 now)
{
	int err;

	if (!tx->n_seg)
		return;
	err = post(r, tx, now);
	trace_coopfs_serve_send(r, tx, err);
	if (err)
		coop_engine_tx_done(r->node->engine, tx->id, tx->n_seg, err, now);
}

static void end_turn(struct coop_rnic *r, struct coop_serve_slot *s, int err, u64 now)
{
	u32 k = s->head++ % COOP_SERVE_TURNS, n = s->turn[k].n_seg;

	s->n_posted -= n;
	s->bytes -= s->turn[k].bytes;
	r->n_sending -= n;
	if (s->qp.ready) {
		r->n_turns--;
		r->sending -= s->turn[k].bytes;
	}
	coop_ah_put(r, s->turn[k].ah);
	coop_count(r->node->stats, err ? COOP_C_SEND_ERRORS : COOP_C_SEND_COMPLETED, n);
	coop_engine_tx_done(r->node->engine, s->turn[k].id, n, err, now);
}

void coop_responder_completed(struct coop_rnic *r, const struct ib_wc *wc, u64 now)
{
	struct coop_serve_slot *s = &r->serve[coop_wr_slot(wc->wr_id)];
	u32 number = (u32)wc->wr_id;
	const bool good = wc->status == IB_WC_SUCCESS;

	if (!good && s->qp.ready) {
		s->qp.died = true;
		coop_qp_stop(r, &s->qp);
		senders_changed(r);
	}
	if ((number & LAST_OF_TURN) && s->head != s->tail)
		end_turn(r, s, good ? 0 : -EIO, now);
	if (s->qp.ready)
		coop_rnic_await(r, &s->qp, s->head != s->tail ? now + COOP_SENT_US : ~0ULL);
	else if (s->head == s->tail)
		coop_qp_renew(r, &s->qp);
}

static struct coop_serve_slot *slot_of(struct coop_qp *qp)
{
	return container_of(qp, struct coop_serve_slot, qp);
}

static void serve_qp_stopped(struct coop_rnic *r, struct coop_qp *qp, u64 now)
{
	coop_rnic_await(r, qp, now + COOP_QUIET_US);
}

static void serve_qp_lost(struct coop_rnic *r, struct coop_qp *qp, u64 now)
{
	struct coop_serve_slot *s = slot_of(qp);

	while (s->head != s->tail)
		end_turn(r, s, -EIO, now);
	coop_qp_renew(r, qp);
}

/* If it failed, the next send of one of its slots tries again. */
static void serve_qp_renewed(struct coop_rnic *r, struct coop_qp *qp, int err, u64 now)
{
	if (!err)
		senders_changed(r);
}

static void serve_qp_overdue(struct coop_rnic *r, struct coop_qp *qp, u64 now)
{
	coop_qp_discard(r, qp);
	senders_changed(r);
}

const struct coop_qp_ops coop_responder_qp_ops = {
	.stopped = serve_qp_stopped,
	.lost = serve_qp_lost,
	.renewed = serve_qp_renewed,
	.overdue = serve_qp_overdue,
};
