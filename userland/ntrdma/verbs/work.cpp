// SPDX-License-Identifier: MIT
// work.cpp - posting and polling: the calls that verbs.h makes through the context.
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "userland/ntrdma/verbs/datagrams.hpp"

namespace coop::ntrdma::verbs
{

namespace
{

static_assert(static_cast<int>(operation::write) == IBV_WR_RDMA_WRITE &&
	      static_cast<int>(operation::write_imm) == IBV_WR_RDMA_WRITE_WITH_IMM &&
	      static_cast<int>(operation::send) == IBV_WR_SEND &&
	      static_cast<int>(operation::send_imm) == IBV_WR_SEND_WITH_IMM &&
	      static_cast<int>(operation::read) == IBV_WR_RDMA_READ &&
	      static_cast<int>(operation::cmp_swap) == IBV_WR_ATOMIC_CMP_AND_SWP &&
	      static_cast<int>(operation::fetch_add) == IBV_WR_ATOMIC_FETCH_AND_ADD);
static_assert(static_cast<int>(fenced) == IBV_SEND_FENCE &&
	      static_cast<int>(signalled) == IBV_SEND_SIGNALED &&
	      static_cast<int>(solicited) == IBV_SEND_SOLICITED &&
	      static_cast<int>(inlined) == IBV_SEND_INLINE);
static_assert(static_cast<int>(status::local_protection) == IBV_WC_LOC_PROT_ERR &&
	      static_cast<int>(status::flushed) == IBV_WC_WR_FLUSH_ERR &&
	      static_cast<int>(status::bad_response) == IBV_WC_BAD_RESP_ERR &&
	      static_cast<int>(status::remote_invalid) == IBV_WC_REM_INV_REQ_ERR &&
	      static_cast<int>(status::remote_access) == IBV_WC_REM_ACCESS_ERR &&
	      static_cast<int>(status::remote_operation) == IBV_WC_REM_OP_ERR &&
	      static_cast<int>(status::retry_exceeded) == IBV_WC_RETRY_EXC_ERR);
static_assert(static_cast<int>(local_write) == IBV_ACCESS_LOCAL_WRITE &&
	      static_cast<int>(remote_write) == IBV_ACCESS_REMOTE_WRITE &&
	      static_cast<int>(remote_read) == IBV_ACCESS_REMOTE_READ &&
	      static_cast<int>(remote_atomic) == IBV_ACCESS_REMOTE_ATOMIC);
static_assert(sizeof(segment) == sizeof(ibv_sge));

// A program that keeps as many sends outstanding as it polls at once always finds completions; it
// gets its datagrams all the same, since the sockets are looked at once for so many of them.
constexpr std::uint32_t looks_least = 16;

ibv_wc_opcode opcode_of(const completion &c)
{
	if (c.receive)
		return c.op == operation::write_imm ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
	constexpr ibv_wc_opcode codes[] = {IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_SEND,
					   IBV_WC_SEND,       IBV_WC_RDMA_READ,  IBV_WC_COMP_SWAP,
					   IBV_WC_FETCH_ADD};
	return codes[static_cast<unsigned>(c.op)];
}

int post_one(queue_pair &core, const ibv_send_wr &wr)
{
	if (wr.opcode > IBV_WR_ATOMIC_FETCH_AND_ADD || wr.num_sge < 0 ||
	    wr.num_sge > static_cast<int>(max_segments))
		return EINVAL;
	send_request r;
	r.id = wr.wr_id;
	r.op = static_cast<operation>(wr.opcode);
	r.flags = wr.send_flags & 15;
	r.imm = wr.imm_data;
	r.segments = static_cast<std::uint32_t>(wr.num_sge);
	std::memcpy(r.at.data(), wr.sg_list, r.segments * sizeof(segment));
	if (is_atomic(r.op)) {
		r.remote = wr.wr.atomic.remote_addr;
		r.rkey = wr.wr.atomic.rkey;
		r.compare_add = wr.wr.atomic.compare_add;
		r.swap = wr.wr.atomic.swap;
	} else {
		r.remote = wr.wr.rdma.remote_addr;
		r.rkey = wr.wr.rdma.rkey;
		r.compare_add = r.swap = 0;
	}
	if (!(r.flags & inlined))
		return -core.post_send(r);
	std::array<std::uint8_t, max_inline> bytes;
	std::size_t n = 0;
	for (int i = 0; i < wr.num_sge; i++) {
		const ibv_sge &s = wr.sg_list[i];
		if (s.length > bytes.size() - n)
			return EINVAL;
		std::memcpy(bytes.data() + n, reinterpret_cast<const void *>(s.addr), s.length);
		n += s.length;
	}
	return -core.post_send(r, bytes.data());
}

bool translate(const ibv_recv_wr &wr, recv_request *r)
{
	if (wr.num_sge < 0 || wr.num_sge > static_cast<int>(max_segments))
		return false;
	r->id = wr.wr_id;
	r->segments = static_cast<std::uint32_t>(wr.num_sge);
	std::memcpy(r->at.data(), wr.sg_list, r->segments * sizeof(segment));
	return true;
}

} // namespace

int post_send(ibv_qp *qp, ibv_send_wr *wr, ibv_send_wr **bad)
{
	node *device = of(qp->context)->device;
	auto held = device->hold();
	queue_pair &core = *of(qp)->core->pair;
	datagram_pair *ud = of(qp)->ud.get();
	int rc = 0;
	for (; wr; wr = wr->next)
		if ((rc = ud ? find_datagrams(device)->send(*ud, *wr) : post_one(core, *wr))) {
			*bad = wr;
			break;
		}
	core.flush_posts();
	if (core.unfinished())
		device->take_over();
	return rc;
}

int post_recv(ibv_qp *qp, ibv_recv_wr *wr, ibv_recv_wr **bad)
{
	node *device = of(qp->context)->device;
	auto held = device->hold();
	queue_pair &core = *of(qp)->core->pair;
	datagram_pair *ud = of(qp)->ud.get();
	int rc = 0;
	for (; wr; wr = wr->next) {
		recv_request r;
		rc = !translate(*wr, &r) ? EINVAL
		     : ud                ? post_datagram_recv(*ud, r)
					 : -core.post_recv(r);
		if (rc) {
			*bad = wr;
			break;
		}
	}
	core.flush_receive_posts();
	if (core.unfinished())
		device->take_over();
	return rc;
}

int post_srq_recv(ibv_srq *srq, ibv_recv_wr *wr, ibv_recv_wr **bad)
{
	node *device = of(srq->context)->device;
	auto held = device->hold();
	shared_receives &core = *of(srq)->core;
	int rc = 0;
	for (; wr; wr = wr->next) {
		recv_request r;
		rc = translate(*wr, &r) ? -core.post(r) : EINVAL;
		if (rc) {
			*bad = wr;
			break;
		}
	}
	for (queue_pair *p : core.pairs)
		if (p->starved()) {
			p->flush_posts();
			if (p->unfinished())
				device->take_over();
		}
	return rc;
}

int poll_cq(ibv_cq *cq, int count, ibv_wc *out)
{
	node *device = of(cq->context)->device;
	auto held = device->hold();
	device->polled();
	queue_of_completions &q = *of(cq);
	if (!q.datagram_users && !q.core->stirs())
		return 0;
	std::array<completion, 32> got;
	if (q.datagram_users &&
	    (std::cmp_less(q.datagrams.size(), count) || q.polled_unseen >= looks_least)) {
		find_datagrams(device)->receive();
		q.polled_unseen = 0;
	}
	int n = q.datagrams.empty() ? 0 : poll_datagrams(q, count, out);
	q.polled_unseen += static_cast<std::uint32_t>(n);
	while (n < count) {
		std::size_t most = std::min<std::size_t>(got.size(), count - n);
		std::size_t k = of(cq)->core->poll({got.data(), most});
		for (std::size_t i = 0; i < k; i++) {
			const completion &c = got[i];
			ibv_wc &wc = out[n++];
			wc = {};
			wc.wr_id = c.id;
			wc.status = static_cast<ibv_wc_status>(c.result);
			wc.opcode = opcode_of(c);
			wc.byte_len = c.bytes;
			wc.qp_num = c.qp;
			wc.src_qp = c.peer;
			if (c.receive && has_imm(c.op)) {
				wc.imm_data = c.imm;
				wc.wc_flags = IBV_WC_WITH_IMM;
			}
		}
		if (k < most)
			break;
	}
	if (of(cq)->core->unfinished())
		device->take_over();
	return n;
}

int req_notify_cq(ibv_cq *cq, int solicited_only)
{
	auto held = of(cq->context)->device->hold();
	of(cq)->core->request_notice(solicited_only ? completion_queue::arm::solicited
						    : completion_queue::arm::any);
	of(cq->context)->device->will_wait();
	for (const auto &o : of(cq)->datagram_origins)
		if (o.solicited || !solicited_only) {
			of(cq)->core->note(o.solicited);
			break;
		}
	if (of(cq)->datagram_users)
		find_datagrams(of(cq->context)->device)->wake();
	return 0;
}

} // namespace coop::ntrdma::verbs
