// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * ctrl.c - the control queue pair: messages of up to 512 bytes, both ways.
 *
 * With lines (lines.h) it carries the host's datagrams as well, and a second
 * queue pair of the same kind those of up to an MTU.
 *
 * As many receives as fit the ring are always posted. Each is long enough for
 * any datagram of the port; the surplus goes to scrap. A message without a
 * buffer or an address handle is dropped and counted: the protocol repeats it.
 *
 * Data are sent in batches right after the lookup of a REQUEST. So the REQUEST
 * of a node without an address handle waits here, in its receive buffer, until
 * the handle is resolved.
 *
 * If the queue pair dies, all its work requests complete, and it is renewed, by a
 * work (qp_change.c); messages that are to be sent meanwhile are dropped. A send
 * without a completion for COOP_SENT_US ends the same way: a device that lost it
 * would not complete later ones either. (Completions may stay in their queue while
 * nothing waits for them; the pump empties it before it checks this deadline.)
 */
#include <linux/log2.h>
#include <rdma/ib_cache.h>

#include "ib/node.h"
#include "ib/trace.h"

/* ---- source addresses ----------------------------------------------------------- */

static u8 network_type(const struct coop_rnic *r, const struct ib_wc *wc,
		       const union rdma_network_hdr *hdr)
{
	if (wc->wc_flags & IB_WC_WITH_NETWORK_HDR_TYPE)
		return wc->network_hdr_type;
	if (!r->port.roce)
		return RDMA_NETWORK_IB;
	if (ib_get_rdma_header_version(hdr) == 4)
		return RDMA_NETWORK_IPV4;
	return hdr->ibgrh.next_hdr == IPPROTO_UDP ? RDMA_NETWORK_IPV6 : RDMA_NETWORK_ROCE_V1;
}

void coop_source_of(const struct coop_rnic *r, const struct ib_wc *wc, const void *grh,
		    struct coop_addr *from, bool *has_gid)
{
	const union rdma_network_hdr *hdr = grh;
	union ib_gid sgid, dgid;

	memset(from, 0, sizeof(*from));
	from->qpn = wc->src_qp;
	from->sl = wc->sl & 0xf;
	from->lid = r->port.roce ? 0 : (u16)wc->slid;
	*has_gid = false;
	if (!r->port.roce && !(wc->wc_flags & IB_WC_GRH))
		return;
	if (ib_get_gids_from_rdma_hdr(hdr, network_type(r, wc, hdr), &sgid, &dgid))
		return;
	memcpy(from->gid, sgid.raw, sizeof(from->gid));
	*has_gid = true;
}

/* ---- sending -------------------------------------------------------------------- */

/* Is the datagram one of rpc/fetch? Every other one is of the host's own protocol. */
static bool of_fetch(const void *buf, u32 len)
{
	__le32 magic;

	if (len < sizeof(magic))
		return false;
	memcpy(&magic, buf, sizeof(magic));
	return le32_to_cpu(magic) == COOP_WIRE_MAGIC;
}

static void give_back(struct coop_ctrl *c, u32 i)
{
	c->tx_free[c->n_free++] = (u16)i;
}

static void dropped(struct coop_rnic *r, bool incoming, enum coop_drop why)
{
	trace_coopfs_ctrl_drop(r, incoming, why);
	coop_count(r->node->stats, COOP_C_CTRL_DROPPED, 1);
}

static void stop(struct coop_rnic *r, struct coop_ctrl *c)
{
	c->qp.died = true;
	coop_qp_stop(r, &c->qp);
}

/*
 * Sends leave in chains, one call into the driver each, and only the last one of a chain is
 * signalled. Sends of a queue pair complete in the order in which they were posted, so its
 * completion stands for those before it too. sent[] has them in that order: from head on those
 * that are posted, and behind them, up to tail, the chain that is being built.
 */

/* Sends that are posted and not complete. */
static u32 in_flight(const struct coop_ctrl *c)
{
	return c->tail - c->head - c->n_chain;
}

/* Takes back the buffer of the oldest send. */
static void take_first(struct coop_rnic *r, struct coop_ctrl *c)
{
	const u32 i = c->sent[c->head++ % COOP_CTRL_SENDS];

	coop_ah_put(r, c->tx_ah[i]);
	c->tx_ah[i] = NULL;
	give_back(c, i);
}

/* Takes back the buffers of the last n sends, which the device does not have. */
static void drop_last(struct coop_rnic *r, struct coop_ctrl *c, u32 n)
{
	for (; n; n--) {
		const u32 i = c->sent[--c->tail % COOP_CTRL_SENDS];

		coop_ah_put(r, c->tx_ah[i]);
		c->tx_ah[i] = NULL;
		give_back(c, i);
		dropped(r, false, COOP_DROP_NOT_POSTED);
	}
}

/* Posts the chain. Returns how many sends of it the device has taken, perhaps. */
static u32 post_chain(struct coop_rnic *r, struct coop_ctrl *c, bool *whole)
{
	const struct ib_send_wr *bad = NULL;
	struct ib_ud_wr *last = &c->wr[c->n_chain - 1];
	u32 n;
	int err;

	*whole = false;
	if (!c->qp.ready)
		return 0;
	last->wr.next = NULL;
	last->wr.send_flags |= IB_SEND_SIGNALED;
	/*
	 * A device in software sends from a softirq. It runs when bottom halves are on again: here
	 * and now, and not when ksoftirqd gets the processor.
	 */
	if (r->node->cfg.lines)
		local_bh_disable();
	err = ib_post_send(c->qp.ib, &c->wr[0].wr, &bad);
	if (r->node->cfg.lines)
		local_bh_enable();
	*whole = !err;
	for (n = 0; err && n < c->n_chain; n++)
		if (bad == &c->wr[n].wr)
			return n;
	return c->n_chain;
}

static void flush(struct coop_rnic *r, struct coop_ctrl *c, u64 now)
{
	const u32 all = c->n_chain, before = in_flight(c);
	u32 n, i, bytes = 0;
	bool whole;

	if (!all)
		return;
	n = post_chain(r, c, &whole);
	c->n_chain = 0;
	drop_last(r, c, all - n);
	if (!n)
		return;
	for (i = 0; i < n; i++)
		bytes += c->sge[i].length;
	if (!before)
		coop_rnic_await(r, &c->qp, now + COOP_SENT_US);
	coop_count(r->node->stats, COOP_C_SEND_POSTED, n);
	coop_count(r->node->stats, COOP_C_PEER_TX_BYTES, bytes);
	if (!whole) {
		c->cut = true;
		stop(r, c);
	}
}

void coop_ctrl_flush(struct coop_rnic *r, u64 now)
{
	flush(r, &r->ctrl, now);
	flush(r, &r->data, now);
}

/* The send of the message in buffer i. */
static void fill_send(struct coop_rnic *r, struct coop_ctrl *c, u32 i, const struct coop_ah *ah,
		      struct ib_ud_wr *wr, struct ib_sge *sge)
{
	sge->addr = coop_bufs_dma(&c->tx, i);
	sge->length = c->tx_len[i];
	sge->lkey = r->pd->local_dma_lkey;
	memset(wr, 0, sizeof(*wr));
	wr->wr.wr_id = coop_wr_id(&c->qp, c->tail);
	wr->wr.sg_list = sge;
	wr->wr.num_sge = 1;
	wr->wr.opcode = IB_WR_SEND;
	wr->wr.send_flags = IB_SEND_SOLICITED;
	wr->ah = ah->ib;
	wr->remote_qpn = c->tx_to[i].qpn;
	wr->remote_qkey = coop_qkey_to(r, &c->tx_to[i]);
}

/*
 * The signalled send of a chain may be missing, and those before it that were sent complete without
 * a word. As in ib_drain_sq(): what is posted to a queue pair in ERR is flushed, behind all others,
 * and stands for them. It is not sent: it names the last of them again. No chain is being built.
 */
static void post_end(struct coop_rnic *r, struct coop_ctrl *c)
{
	const u32 i = c->sent[(c->tail - 1) % COOP_CTRL_SENDS];
	struct ib_ud_wr wr;
	struct ib_sge sge;

	fill_send(r, c, i, c->tx_ah[i], &wr, &sge);
	wr.wr.send_flags = IB_SEND_SIGNALED;
	c->end = c->tail;
	c->ending = !ib_post_send(c->qp.ib, &wr.wr, NULL); /* else its deadline ends it */
}

static void post(struct coop_rnic *r, struct coop_ctrl *c, u32 i, struct coop_ah *ah, u64 now)
{
	struct ib_ud_wr *wr = &c->wr[c->n_chain];

	if (of_fetch(coop_bufs_at(&c->tx, i), c->tx_len[i]))
		trace_coopfs_ctrl_send(r, coop_bufs_at(&c->tx, i), c->tx_len[i], &c->tx_to[i]);
	fill_send(r, c, i, ah, wr, &c->sge[c->n_chain]);
	if (c->n_chain)
		wr[-1].wr.next = &wr->wr;
	c->tx_ah[i] = ah;
	coop_ah_hold(ah);
	c->sent[c->tail++ % COOP_CTRL_SENDS] = (u16)i;
	if (++c->n_chain == COOP_CTRL_CHAIN)
		flush(r, c, now);
}

void coop_ctrl_launch(struct coop_rnic *r, struct coop_ctrl *c, u32 i, u32 len,
		      const struct coop_addr *to, u64 now)
{
	const bool full = c->n_waiting == COOP_CTRL_WAITS;
	struct coop_ah *ah;

	if (c->n_free <= COOP_CTRL_SENDS / 2 && !r->sends_watched)
		coop_node_kick(r->node); /* the pump frees the buffers of completed sends */
	/* Strangers who are answered bring addresses that nobody has: bound how many are resolved.
	 */
	if (full && r->ah.n_making >= COOP_CTRL_WAITS && !r->closing)
		ah = coop_ah_find(r, to);
	else
		ah = coop_ah_get(r, to, now);
	if (!ah || (!ah->ib && (ah->n_send == COOP_AH_WAITING || full))) {
		give_back(c, i);
		dropped(r, false, COOP_DROP_NO_HANDLE);
		return;
	}
	coop_bufs_to_device(&c->tx, i);
	c->tx_len[i] = len;
	c->tx_to[i] = *to;
	if (ah->ib) {
		post(r, c, i, ah, now);
		return;
	}
	ah->send[ah->n_send++] = (u16)(c == &r->data ? i | COOP_AH_DATA : i);
	c->n_waiting++;
	coop_count(r->node->stats, COOP_C_AH_WAITED, 1);
}

void coop_ctrl_send(struct coop_rnic *r, const struct coop_tx *tx, u64 now)
{
	struct coop_ctrl *c = &r->ctrl;
	u32 i;

	if (coop_shards_relay(r->node, tx))
		return;
	if (r->closing || !c->n_free || tx->len > COOP_CTRL_MAX) {
		dropped(r, false, r->closing ? COOP_DROP_CLOSING : COOP_DROP_NO_BUFFER);
		return;
	}
	i = c->tx_free[--c->n_free];
	coop_bufs_to_cpu(&c->tx, i);
	memcpy(coop_bufs_at(&c->tx, i), tx->buf, tx->len);
	coop_ctrl_launch(r, c, i, tx->len, &tx->addr, now);
}

/* ---- receiving ------------------------------------------------------------------ */

static void deliver(struct coop_rnic *r, u32 i, u64 now)
{
	struct coop_ctrl *c = &r->ctrl;

	coop_engine_rx_ctrl(r->node->engine, coop_bufs_at(&c->rx, i), c->rx_len[i], &c->rx_from[i],
			    now);
	c->rx_idle[c->n_idle++] = (u16)i;
}

/*
 * The entry in which the REQUEST waits that the QUERY in r->msg asks about. If the QUERY overtook
 * its REQUEST, we would answer NO_RECORD.
 */
static struct coop_ah *line_of(struct coop_rnic *r, const struct coop_addr *from)
{
	struct coop_ah *ah = coop_ah_line(r, from);
	u32 k;

	for (k = 0; ah && k < ah->n_recv; k++)
		if (coop_wire_id(coop_bufs_at(&r->ctrl.rx, ah->recv[k])) == r->msg.id)
			return ah;
	return NULL;
}

static bool drop_received(struct coop_rnic *r, u32 i)
{
	dropped(r, true, COOP_DROP_NO_HANDLE);
	r->ctrl.rx_idle[r->ctrl.n_idle++] = (u16)i;
	return true;
}

/* Must the message wait for an address handle? A REQUEST with an honest source that we cannot
 * answer yet, or a QUERY behind such a REQUEST. */
static bool must_wait(struct coop_rnic *r, u32 i, u64 now)
{
	const struct coop_addr *from = &r->ctrl.rx_from[i], *to = &r->msg.u.request.data;
	struct coop_ah *ah = coop_ah_find(r, from);
	bool full = r->ctrl.n_waiting == COOP_CTRL_WAITS;

	if (ah && ah->ib)
		return false;
	/* Resolve addresses only for holders of the fabric key. */
	if (coop_wire_decode(&r->msg, r->node->cfg.fabric_key, coop_bufs_at(&r->ctrl.rx, i),
			     r->ctrl.rx_len[i]) != COOP_DECODE_OK)
		return false;
	if (r->msg.command == COOP_CMD_QUERY) {
		ah = line_of(r, from);
		if (!ah)
			return false;
	} else {
		if (r->msg.command != COOP_CMD_REQUEST ||
		    memcmp(to->gid, from->gid, sizeof(to->gid)) ||
		    (!r->port.roce && to->lid != from->lid))
			return false;
		ah = coop_ah_find(r, to);
		if (full && !(ah && ah->ib))
			return drop_received(r, i); /* and do not resolve its address */
		ah = coop_ah_get(r, to, now);
		if (!ah || ah->ib)
			return false;
	}
	if (full || ah->n_recv == COOP_AH_WAITING)
		return drop_received(r, i);
	ah->recv[ah->n_recv++] = (u16)i;
	r->ctrl.n_waiting++;
	coop_count(r->node->stats, COOP_C_AH_WAITED, 1);
	return true;
}

static void arrived(struct coop_rnic *r, struct coop_ctrl *c, u32 i, const struct ib_wc *wc,
		    u64 now)
{
	const struct coop_lines_ops *lines = r->node->cfg.lines;
	bool has_gid;

	coop_count(r->node->stats, COOP_C_RECV_COMPLETED, 1);
	/* The end of a datagram longer than any message went to scrap. */
	if (r->closing || wc->byte_len < COOP_GRH || wc->byte_len > COOP_GRH + c->most) {
		dropped(r, true, r->closing ? COOP_DROP_CLOSING : COOP_DROP_LENGTH);
		c->rx_idle[c->n_idle++] = (u16)i;
		return;
	}
	coop_bufs_to_cpu(&c->grh, i);
	coop_bufs_to_cpu(&c->rx, i);
	c->rx_len[i] = wc->byte_len - COOP_GRH;
	coop_count(r->node->stats, COOP_C_PEER_RX_BYTES, c->rx_len[i]);
	coop_source_of(r, wc, coop_bufs_at(&c->grh, i), &c->rx_from[i], &has_gid);
	if (lines && (c == &r->data || !of_fetch(coop_bufs_at(&c->rx, i), c->rx_len[i]))) {
		lines->rx(r->node->host, c == &r->data ? COOP_LINE_DATA : COOP_LINE_COMMAND,
			  coop_bufs_at(&c->rx, i), c->rx_len[i], &c->rx_from[i], now);
		c->rx_idle[c->n_idle++] = (u16)i;
		return;
	}
	trace_coopfs_ctrl_receive(r, coop_bufs_at(&c->rx, i), c->rx_len[i], &c->rx_from[i]);
	if (coop_shards_route(r->node, &c->rx_from[i], coop_bufs_at(&c->rx, i), c->rx_len[i])) {
		c->rx_idle[c->n_idle++] = (u16)i;
		return;
	}
	if (!must_wait(r, i, now))
		deliver(r, i, now);
}

/* Messages that came to the address of all shards for this one. */
static u32 receive_mail(struct coop_rnic *r, u64 now)
{
	struct coop_ctrl *c = &r->ctrl;
	u32 n, i;

	for (n = 0; n < COOP_BATCH && c->n_idle && !r->closing; n++) {
		if (coop_mail_empty(&r->node->mail))
			break;
		i = c->rx_idle[c->n_idle - 1];
		coop_bufs_to_cpu(&c->rx, i);
		c->rx_len[i] =
			coop_mail_take(&r->node->mail, &c->rx_from[i], coop_bufs_at(&c->rx, i));
		if (!c->rx_len[i])
			break;
		c->n_idle--;
		if (!must_wait(r, i, now))
			deliver(r, i, now);
	}
	return n;
}

/* Messages of the other shards, which this one sends. */
static u32 send_mail(struct coop_rnic *r, u64 now)
{
	struct coop_ctrl *c = &r->ctrl;
	struct coop_addr to;
	u32 n, i, len;

	/* The first's own messages need buffers, too. */
	for (n = 0; n < COOP_BATCH && c->n_free > COOP_CTRL_SENDS / 4 && !r->closing; n++) {
		if (coop_mail_empty(&r->node->shards->out))
			break;
		i = c->tx_free[c->n_free - 1];
		coop_bufs_to_cpu(&c->tx, i);
		len = coop_mail_take(&r->node->shards->out, &to, coop_bufs_at(&c->tx, i));
		if (!len)
			break;
		c->n_free--;
		coop_ctrl_launch(r, c, i, len, &to, now);
	}
	return n;
}

u32 coop_ctrl_mail(struct coop_rnic *r, u64 now)
{
	if (!r->node->shards)
		return 0;
	return r->node->shard ? receive_mail(r, now) : send_mail(r, now);
}

void coop_ctrl_resume(struct coop_rnic *r, struct coop_ah *ah, u64 now)
{
	struct coop_ctrl *c;
	u32 i, k;

	for (i = 0; i < ah->n_send; i++) {
		c = ah->send[i] & COOP_AH_DATA ? &r->data : &r->ctrl;
		k = ah->send[i] & ~COOP_AH_DATA;
		c->n_waiting--;
		if (ah->ib) {
			post(r, c, k, ah, now);
		} else {
			give_back(c, k);
			dropped(r, false, COOP_DROP_NO_HANDLE);
		}
	}
	ah->n_send = 0;
	c = &r->ctrl;
	c->n_waiting -= ah->n_recv;
	for (i = 0; i < ah->n_recv; i++) {
		if (ah->ib) {
			deliver(r, ah->recv[i], now);
		} else {
			c->rx_idle[c->n_idle++] = ah->recv[i];
			dropped(r, true, COOP_DROP_NO_HANDLE);
		}
	}
	ah->n_recv = 0;
}

/* ---- the queue pair ------------------------------------------------------------- */

/* The send with this number is complete, and so are those that were posted before it. */
static void sent(struct coop_rnic *r, struct coop_ctrl *c, u32 number, bool good, u64 now)
{
	const bool end = c->ending && number == c->end;
	const u32 n = end ? in_flight(c) : number - c->head + 1;
	u32 k;

	if (end) {
		c->ending = false;
	} else if (!n || n > in_flight(c)) {
		coop_count(r->node->stats, COOP_C_SEND_ERRORS, 1); /* it has no such send */
		return;
	}
	for (k = 0; k < n; k++)
		take_first(r, c);
	if (c->qp.ready)
		coop_rnic_await(r, &c->qp, in_flight(c) ? now + COOP_SENT_US : ~0ULL);
	coop_count(r->node->stats, COOP_C_SEND_COMPLETED, good || !n ? n : n - 1);
	coop_count(r->node->stats, COOP_C_SEND_ERRORS, good ? 0 : 1);
}

static void received(struct coop_rnic *r, struct coop_ctrl *c, const struct ib_wc *wc, u64 now)
{
	const u32 i = (u32)wc->wr_id;

	c->n_posted--;
	c->rx_posted[i] = false;
	if (wc->status == IB_WC_SUCCESS) {
		arrived(r, c, i, wc, now);
		return;
	}
	coop_count(r->node->stats, COOP_C_RECV_FLUSHED, 1);
	c->rx_idle[c->n_idle++] = (u16)i;
}

static bool is_quiet(const struct coop_ctrl *c)
{
	return !c->n_posted && !in_flight(c) && !c->ending;
}

void coop_ctrl_completed(struct coop_rnic *r, struct coop_ctrl *c, const struct ib_wc *wc,
			 bool recv, u64 now)
{
	const bool good = wc->status == IB_WC_SUCCESS;

	if (!good && c->qp.ready)
		stop(r, c);
	if (recv)
		received(r, c, wc, now);
	else
		sent(r, c, (u32)wc->wr_id, good, now);
	if (!c->qp.ready && is_quiet(c))
		coop_qp_renew(r, &c->qp);
}

static u32 post_batch(struct coop_rnic *r, struct coop_ctrl *c, const u16 *buffer, u32 n)
{
	u32 own = min(r->port.mtu, c->most), i;
	const struct ib_recv_wr *bad = NULL;

	for (i = 0; i < n; i++) {
		struct ib_sge *sge = &r->sge[i * 4];
		u32 k = buffer[i];

		coop_bufs_to_device(&c->grh, k);
		coop_bufs_to_device(&c->rx, k);
		sge[0].addr = coop_bufs_dma(&c->grh, k);
		sge[0].length = COOP_GRH;
		sge[1].addr = coop_bufs_dma(&c->rx, k);
		sge[1].length = own;
		sge[2].addr = coop_bufs_dma(&r->scrap, 0);
		sge[2].length = r->port.mtu - own;
		sge[0].lkey = r->pd->local_dma_lkey;
		sge[1].lkey = r->pd->local_dma_lkey;
		sge[2].lkey = r->pd->local_dma_lkey;
		r->recv_wr[i].wr_id = coop_wr_id(&c->qp, k);
		r->recv_wr[i].sg_list = sge;
		r->recv_wr[i].num_sge = r->port.mtu > own ? 3 : 2;
		r->recv_wr[i].next = i + 1 < n ? &r->recv_wr[i + 1] : NULL;
	}
	if (ib_post_recv(c->qp.ib, r->recv_wr, &bad))
		return bad ? (u32)(bad - r->recv_wr) : 0;
	return n;
}

static void repost(struct coop_rnic *r, struct coop_ctrl *c)
{
	u32 n, posted, i;

	while (c->n_idle > c->n_kept && c->qp.ready && !r->closing) {
		n = min_t(u32, c->n_idle - c->n_kept, COOP_BATCH);
		posted = post_batch(r, c, &c->rx_idle[c->n_idle - n], n);
		coop_count(r->node->stats, COOP_C_RECV_POSTED, posted);
		for (i = 0; i < posted; i++)
			c->rx_posted[c->rx_idle[c->n_idle - n + i]] = true;
		/* The first 'posted' buffers of the batch are posted: keep the rest. */
		memmove(&c->rx_idle[c->n_idle - n], &c->rx_idle[c->n_idle - n + posted],
			(n - posted) * sizeof(c->rx_idle[0]));
		c->n_idle -= posted;
		c->n_posted += posted;
		if (posted < n)
			return; /* the next completion tries again */
	}
}

void coop_ctrl_repost(struct coop_rnic *r)
{
	repost(r, &r->ctrl);
	if (r->node->cfg.lines)
		repost(r, &r->data);
}

static struct coop_ctrl *ctrl_of(struct coop_qp *qp)
{
	return container_of(qp, struct coop_ctrl, qp);
}

static void ctrl_qp_stopped(struct coop_rnic *r, struct coop_qp *qp, u64 now)
{
	struct coop_ctrl *c = ctrl_of(qp);

	if (c->cut && in_flight(c))
		post_end(r, c);
	c->cut = false;
	if (is_quiet(c))
		coop_qp_renew(r, qp);
	else
		coop_rnic_await(r, qp, now + COOP_QUIET_US);
}

static void ctrl_qp_lost(struct coop_rnic *r, struct coop_qp *qp, u64 now)
{
	struct coop_ctrl *c = ctrl_of(qp);
	u32 i;

	c->cut = false;
	c->ending = false;

	c->n_chain = 0;
	while (c->head != c->tail)
		take_first(r, c);
	for (i = 0; i < COOP_CTRL_RECVS; i++) {
		if (!c->rx_posted[i])
			continue;
		c->rx_posted[i] = false;
		c->rx_idle[c->n_idle++] = (u16)i;
	}
	c->n_posted = 0;
	if (!r->closing)
		coop_devices_changed(); /* detaches and attaches again */
}

static void ctrl_qp_renewed(struct coop_rnic *r, struct coop_qp *qp, int err, u64 now)
{
	struct coop_ctrl *c = ctrl_of(qp);

	c->cut = false;
	if (r->closing)
		return;
	if (!err)
		repost(r, c);
	else if (qp->ib) /* the device keeps it as it is: try again to destroy it */
		coop_rnic_await(r, qp, now + COOP_QUIET_US);
	/* Without one: detaches and attaches again. With another one: announces its number. */
	if (!qp->ib || qp->num != (c == &r->data ? r->data_qpn : r->self.qpn))
		coop_devices_changed();
}

/* It is stopped first, so that all its work requests complete. If that was in vain, it must go. */
static void ctrl_qp_overdue(struct coop_rnic *r, struct coop_qp *qp, u64 now)
{
	if (!qp->ready) {
		coop_qp_discard(r, qp);
		return;
	}
	coop_count(r->node->stats, COOP_C_SEND_ERRORS, 1);
	stop(r, ctrl_of(qp));
}

const struct coop_qp_ops coop_ctrl_qp_ops = {
	.stopped = ctrl_qp_stopped,
	.lost = ctrl_qp_lost,
	.renewed = ctrl_qp_renewed,
	.overdue = ctrl_qp_overdue,
};

int coop_ctrl_create(struct coop_rnic *r, struct coop_ctrl *c)
{
	const gfp_t gfp = coop_node_gfp(r->node);
	u32 i, size;
	int err;

	c->most = COOP_CTRL_MAX;
	if (c == &r->data)
		c->most = r->mtu;
	else if (r->node->cfg.lines)
		c->most = min_t(u32, r->mtu, COOP_LINE_COMMAND_MAX);
	size = roundup_pow_of_two(c->most);
	err = coop_bufs_create(&c->grh, r->port.dev, COOP_CTRL_RECVS, COOP_GRH_STRIDE,
			       DMA_FROM_DEVICE, gfp);
	if (!err)
		err = coop_bufs_create(&c->rx, r->port.dev, COOP_CTRL_RECVS, size, DMA_FROM_DEVICE,
				       gfp);
	if (!err)
		err = coop_bufs_create(&c->tx, r->port.dev, COOP_CTRL_SENDS, size, DMA_TO_DEVICE,
				       gfp);
	if (err)
		return err; /* coop_rnic_destroy() frees what was created */
	for (i = 0; i < COOP_CTRL_RECVS; i++)
		c->rx_idle[c->n_idle++] = (u16)i;
	c->n_kept = r->node->shard ? COOP_CTRL_RECVS / 2 : 0;
	for (i = 0; i < COOP_CTRL_SENDS; i++)
		c->tx_free[c->n_free++] = (u16)i;
	c->qp.cap.max_recv_wr = COOP_CTRL_RECVS;
	c->qp.cap.max_send_wr = COOP_CTRL_SENDS;
	c->qp.cap.max_recv_sge = 3;
	c->qp.cap.max_send_sge = 1;
	return coop_qp_create(r, &c->qp);
}
