/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * trace.h - tracepoints of the fabric: perf trace -e 'coopfs:*'.
 *
 * A fetch is coopfs_fetch_post (again: a retry), coopfs_ctrl_send of a REQUEST,
 * coopfs_segment for each datagram, coopfs_ctrl_receive of a COMMIT, and
 * coopfs_verify if segments were displaced or pages have sums. At the responder
 * it is coopfs_ctrl_receive, coopfs_serve_send for each batch, coopfs_ctrl_send.
 * coopfs_qp reports state changes of queue pairs; coopfs_ctrl_drop a dropped
 * control message and the reason. 'node' is the QPN of the node's control queue
 * pair.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM coopfs

#if !defined(COOP_IB_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define COOP_IB_TRACE_H

#include <linux/tracepoint.h>

#include "ib/rnic.h"

#ifndef COOP_IB_TRACE_ENUMS
#define COOP_IB_TRACE_ENUMS

enum coop_drop {
	COOP_DROP_NO_BUFFER,  /* all buffers are in use */
	COOP_DROP_NO_HANDLE,  /* no address handle, or too many messages wait for it */
	COOP_DROP_NOT_POSTED, /* the queue pair is not ready, or rejected the send */
	COOP_DROP_LENGTH,     /* too long or too short for a message */
	COOP_DROP_CLOSING,
};

enum coop_qp_event { COOP_QP_STOPPED, COOP_QP_RECYCLED, COOP_QP_REPLACED };

#endif

/* clang-format cannot format tracepoint macros. */
/* clang-format off */

#define coop_show_command(c) __print_symbolic(c, \
	{ COOP_CMD_REQUEST, "REQUEST" }, { COOP_CMD_QUERY, "QUERY" }, \
	{ COOP_CMD_PING, "PING" }, { COOP_CMD_COMMIT, "COMMIT" }, { COOP_CMD_BUSY, "BUSY" }, \
	{ COOP_CMD_AGAIN, "AGAIN" }, { COOP_CMD_REFUSED, "REFUSED" }, { COOP_CMD_PONG, "PONG" }, \
	{ COOP_CMD_FORWARD, "FORWARD" }, { COOP_CMD_OFFER, "OFFER" }, \
	{ COOP_CMD_PASSED, "PASSED" })

#define coop_show_kind(k) __print_symbolic(k, \
	{ COOP_QP_CTRL, "control" }, { COOP_QP_FETCH, "fetch" }, { COOP_QP_SERVE, "serve" })

#define coop_show_drop(d) __print_symbolic(d, \
	{ COOP_DROP_NO_BUFFER, "no buffer" }, { COOP_DROP_NO_HANDLE, "no address handle" }, \
	{ COOP_DROP_NOT_POSTED, "not posted" }, { COOP_DROP_LENGTH, "length" }, \
	{ COOP_DROP_CLOSING, "closing" })

#define coop_show_qp_event(e) __print_symbolic(e, \
	{ COOP_QP_STOPPED, "stopped" }, { COOP_QP_RECYCLED, "recycled" }, \
	{ COOP_QP_REPLACED, "replaced" })

DECLARE_EVENT_CLASS(coopfs_ctrl,
	TP_PROTO(const struct coop_rnic *r, const u8 *buf, u32 len, const struct coop_addr *peer),
	TP_ARGS(r, buf, len, peer),
	TP_STRUCT__entry(
		__field(u32, node)
		__field(u8, command)
		__field(u32, len)
		__array(u8, gid, 16)
		__field(u16, lid)
		__field(u32, qpn)
	),
	TP_fast_assign(
		__entry->node = r->self.qpn;
		__entry->command = coop_wire_command(buf, len);
		__entry->len = len;
		memcpy(__entry->gid, peer->gid, 16);
		__entry->lid = peer->lid;
		__entry->qpn = peer->qpn;
	),
	TP_printk("node=0x%x %s len=%u peer gid=%pI6c lid=%u qpn=0x%x", __entry->node,
		  coop_show_command(__entry->command), __entry->len, __entry->gid, __entry->lid,
		  __entry->qpn)
);

DEFINE_EVENT(coopfs_ctrl, coopfs_ctrl_send,
	TP_PROTO(const struct coop_rnic *r, const u8 *buf, u32 len, const struct coop_addr *peer),
	TP_ARGS(r, buf, len, peer)
);

DEFINE_EVENT(coopfs_ctrl, coopfs_ctrl_receive,
	TP_PROTO(const struct coop_rnic *r, const u8 *buf, u32 len, const struct coop_addr *peer),
	TP_ARGS(r, buf, len, peer)
);

TRACE_EVENT(coopfs_ctrl_drop,
	TP_PROTO(const struct coop_rnic *r, bool incoming, enum coop_drop why),
	TP_ARGS(r, incoming, why),
	TP_STRUCT__entry(
		__field(u32, node)
		__field(bool, incoming)
		__field(u32, why)
	),
	TP_fast_assign(
		__entry->node = r->self.qpn;
		__entry->incoming = incoming;
		__entry->why = why;
	),
	TP_printk("node=0x%x %s: %s", __entry->node, __entry->incoming ? "received" : "to send",
		  coop_show_drop(__entry->why))
);

TRACE_EVENT(coopfs_fetch_post,
	TP_PROTO(const struct coop_rnic *r, u32 slot, u32 segs, u32 posted, bool again),
	TP_ARGS(r, slot, segs, posted, again),
	TP_STRUCT__entry(
		__field(u32, node)
		__field(u32, slot)
		__field(u32, segs)
		__field(u32, posted)
		__field(bool, again)
	),
	TP_fast_assign(
		__entry->node = r->self.qpn;
		__entry->slot = slot;
		__entry->segs = segs;
		__entry->posted = posted;
		__entry->again = again;
	),
	TP_printk("node=0x%x slot=%u segments=%u posted=%u again=%d", __entry->node,
		  __entry->slot, __entry->segs, __entry->posted, __entry->again)
);

TRACE_EVENT(coopfs_segment,
	TP_PROTO(const struct coop_rnic *r, const struct coop_rx *rx),
	TP_ARGS(r, rx),
	TP_STRUCT__entry(
		__field(u32, node)
		__field(u32, slot)
		__field(u32, wr)
		__field(u32, imm)
		__field(u32, bytes)
		__field(u32, qpn)
	),
	TP_fast_assign(
		__entry->node = r->self.qpn;
		__entry->slot = rx->slot;
		__entry->wr = rx->wr;
		__entry->imm = rx->imm;
		__entry->bytes = rx->byte_len;
		__entry->qpn = rx->src_qp;
	),
	TP_printk("node=0x%x slot=%u wr=%u imm=0x%x bytes=%u from qpn=0x%x", __entry->node,
		  __entry->slot, __entry->wr, __entry->imm, __entry->bytes, __entry->qpn)
);

TRACE_EVENT(coopfs_verify,
	TP_PROTO(const struct coop_rnic *r, u32 slot, const struct coop_ev *ev, u64 good),
	TP_ARGS(r, slot, ev, good),
	TP_STRUCT__entry(
		__field(u32, node)
		__field(u32, slot)
		__field(u32, moves)
		__field(u64, pages)
		__field(u64, good)
	),
	TP_fast_assign(
		__entry->node = r->self.qpn;
		__entry->slot = slot;
		__entry->moves = ev->n_moves;
		__entry->pages = ev->pages;
		__entry->good = good;
	),
	TP_printk("node=0x%x slot=%u pages=0x%llx moved=%u good=0x%llx", __entry->node,
		  __entry->slot, __entry->pages, __entry->moves, __entry->good)
);

TRACE_EVENT(coopfs_serve_more,
	TP_PROTO(const struct coop_rnic *r, const struct coop_serving *v, u64 arrived, u64 left),
	TP_ARGS(r, v, arrived, left),
	TP_STRUCT__entry(
		__field(u32, node)
		__field(u32, id)
		__field(u64, arrived)
		__field(u64, lost)
		__field(u64, left)
	),
	TP_fast_assign(
		__entry->node = r->self.qpn;
		__entry->id = v->id;
		__entry->arrived = arrived;
		__entry->lost = v->coming & ~(arrived | left);
		__entry->left = left;
	),
	TP_printk("node=0x%x serve=0x%x arrived=0x%llx lost=0x%llx left=0x%llx", __entry->node,
		  __entry->id, __entry->arrived, __entry->lost, __entry->left)
);

TRACE_EVENT(coopfs_serve_send,
	TP_PROTO(const struct coop_rnic *r, const struct coop_tx *tx, int err),
	TP_ARGS(r, tx, err),
	TP_STRUCT__entry(
		__field(u32, node)
		__field(u32, id)
		__field(u32, slot)
		__field(u32, segs)
		__field(u32, qpn)
		__field(int, err)
	),
	TP_fast_assign(
		__entry->node = r->self.qpn;
		__entry->id = tx->id;
		__entry->slot = tx->slot;
		__entry->segs = tx->n_seg;
		__entry->qpn = tx->addr.qpn;
		__entry->err = err;
	),
	TP_printk("node=0x%x serve=0x%x slot=%u segments=%u to qpn=0x%x err=%d", __entry->node,
		  __entry->id, __entry->slot, __entry->segs, __entry->qpn, __entry->err)
);

TRACE_EVENT(coopfs_qp,
	TP_PROTO(const struct coop_rnic *r, const struct coop_qp *qp, enum coop_qp_event event),
	TP_ARGS(r, qp, event),
	TP_STRUCT__entry(
		__field(u32, node)
		__field(u32, kind)
		__field(u32, slot)
		__field(u32, qpn)
		__field(u32, event)
		__field(bool, died)
	),
	TP_fast_assign(
		__entry->node = r->self.qpn;
		__entry->kind = qp->kind;
		__entry->slot = qp->slot;
		__entry->qpn = qp->num;
		__entry->event = event;
		__entry->died = qp->died;
	),
	TP_printk("node=0x%x %s slot=%u qpn=0x%x %s%s", __entry->node,
		  coop_show_kind(__entry->kind), __entry->slot, __entry->qpn,
		  coop_show_qp_event(__entry->event), __entry->died ? ", it died by itself" : "")
);

/* clang-format on */

#endif /* COOP_IB_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
