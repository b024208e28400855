// SPDX-License-Identifier: MIT
// queues.cpp - completion queues and shared receive queues of the stand-in libibverbs.
#include <algorithm>
#include <cerrno>

#include "userland/ntrdma/verbs/objects.hpp"

using namespace coop::ntrdma;
using coop::ntrdma::verbs::of;

COOP_VERB ibv_cq *ibv_create_cq(ibv_context *c, int cqe, void *cq_context, ibv_comp_channel *ch,
				int vector)
{
	if (cqe < 1 || cqe > 1 << 22 || vector) {
		errno = EINVAL;
		return nullptr;
	}
	auto *q = new verbs::queue_of_completions{};
	q->cq.context = c;
	q->cq.channel = ch;
	q->cq.cq_context = cq_context;
	q->cq.cqe = cqe;
	pthread_mutex_init(&q->cq.mutex, nullptr);
	pthread_cond_init(&q->cq.cond, nullptr);
	q->core = std::make_unique<completion_queue>(verbs::events());
	q->core->owner = q;
	auto held = of(c)->device->hold();
	if (ch)
		ch->refcnt++;
	return &q->cq;
}

/// Completions wait in the queue pairs, so any size is the same.
COOP_VERB int ibv_resize_cq(ibv_cq *cq, int cqe)
{
	if (cqe < 1 || cqe > 1 << 22)
		return EINVAL;
	auto held = of(cq->context)->device->hold();
	// They would not fit on a device, which refuses.
	if (of(cq)->core->waiting() + of(cq)->datagrams.size() > static_cast<std::size_t>(cqe))
		return EINVAL;
	cq->cqe = cqe;
	return 0;
}

COOP_VERB int ibv_destroy_cq(ibv_cq *cq)
{
	verbs::queue_of_completions *q = of(cq);
	auto held = of(cq->context)->device->hold();
	if (q->core->in_use())
		return EBUSY;
	if (cq->channel) {
		for (std::size_t n = std::erase(of(cq->channel)->ready, cq); n; n--)
			of(cq->channel)->unread.erase(cq->channel->fd);
		cq->channel->refcnt--;
	}
	verbs::acknowledged().wait(held, [&] { return !q->given; });
	held.unlock();
	delete q;
	return 0;
}

COOP_VERB ibv_srq *ibv_create_srq(ibv_pd *pd, ibv_srq_init_attr *attr)
{
	if (attr->attr.max_wr < 1 || attr->attr.max_wr > max_depth ||
	    attr->attr.max_sge > max_segments) {
		errno = EINVAL;
		return nullptr;
	}
	auto *s = new verbs::shared_queue{};
	s->srq.context = pd->context;
	s->srq.srq_context = attr->srq_context;
	s->srq.pd = pd;
	pthread_mutex_init(&s->srq.mutex, nullptr);
	pthread_cond_init(&s->srq.cond, nullptr);
	auto held = of(pd->context)->device->hold();
	s->core = std::make_unique<shared_receives>(verbs::events(), of(pd)->number,
						    attr->attr.max_wr);
	s->core->owner = s;
	attr->attr.max_wr = s->core->depth();
	attr->attr.max_sge = max_segments;
	of(pd)->users++;
	return &s->srq;
}

COOP_VERB int ibv_modify_srq(ibv_srq *srq, ibv_srq_attr *attr, int mask)
{
	if (mask & IBV_SRQ_MAX_WR)
		return EOPNOTSUPP;
	auto held = of(srq->context)->device->hold();
	if (mask & IBV_SRQ_LIMIT) {
		if (attr->srq_limit > of(srq)->core->depth())
			return EINVAL;
		of(srq)->core->set_limit(attr->srq_limit);
	}
	return 0;
}

COOP_VERB int ibv_query_srq(ibv_srq *srq, ibv_srq_attr *attr)
{
	auto held = of(srq->context)->device->hold();
	attr->max_wr = of(srq)->core->depth();
	attr->max_sge = max_segments;
	attr->srq_limit = of(srq)->core->limit();
	return 0;
}

COOP_VERB int ibv_destroy_srq(ibv_srq *srq)
{
	verbs::shared_queue *s = of(srq);
	auto held = of(srq->context)->device->hold();
	if (!s->core->pairs.empty())
		return EBUSY;
	verbs::settle_events(of(srq->context), srq, s->given, held);
	of(srq->pd)->users--;
	s->core.reset();
	held.unlock();
	delete s;
	return 0;
}
