// SPDX-License-Identifier: MIT
// events.cpp - completion channels and asynchronous events of the stand-in libibverbs.
//
// A channel is a list in memory and the count of its events: programs poll the descriptor and read
// through the functions here. A read of an event whose object is gone by then waits on.
#include <algorithm>
#include <cerrno>
#include <utility>

#include <unistd.h>

#include "userland/ntrdma/verbs/datagrams.hpp"

using namespace coop::ntrdma;
using coop::ntrdma::verbs::of;

namespace coop::ntrdma::verbs
{

namespace
{

class program_watcher final : public watcher
{
public:
	void completed(completion_queue &core) override
	{
		auto *q = static_cast<queue_of_completions *>(core.owner);
		if (!q->cq.channel)
			return;
		of(q->cq.channel)->ready.push_back(&q->cq);
		event_count::add(q->cq.channel->fd);
	}

	void happened(queue_pair &core, event what) override
	{
		auto *p = static_cast<pair *>(core.owner);
		if (!p)
			return;
		ibv_async_event e{};
		e.element.qp = &p->qp;
		switch (what) {
		case event::lost:
			e.event_type = IBV_EVENT_QP_FATAL;
			break;
		case event::refused_access:
			e.event_type = IBV_EVENT_QP_ACCESS_ERR;
			break;
		case event::established:
			e.event_type = IBV_EVENT_COMM_EST;
			break;
		case event::last_receive:
			e.event_type = IBV_EVENT_QP_LAST_WQE_REACHED;
			break;
		}
		// A program that moves to RTS by itself needs no word that the peer is there.
		if (what != event::established)
			push(of(p->qp.context), e);
	}

	void few_receives(shared_receives &core) override
	{
		auto *s = static_cast<shared_queue *>(core.owner);
		ibv_async_event e{};
		e.element.srq = &s->srq;
		e.event_type = IBV_EVENT_SRQ_LIMIT_REACHED;
		push(of(s->srq.context), e);
	}
};

/// The contexts that are open, and the GIDs of which they were told.
struct readers {
	std::unordered_set<context *> all;
	std::vector<gid_bytes> told;
	readers *of_parent; // its thread may have been changing them when it forked
};

// Made before the node, and destroyed after it, by the process that made them.
readers *the_readers;

} // namespace

watcher &events()
{
	static program_watcher the_watcher;
	return the_watcher;
}

void push(context *c, const ibv_async_event &e)
{
	c->events.push_back(e);
	event_count::add(c->handle()->async_fd);
}

void forget_all_news()
{
	the_readers = new readers{{}, {}, the_readers};
}

void end_all_news()
{
	delete std::exchange(the_readers, the_readers->of_parent);
}

void begin_all_news()
{
	the_readers->told = own_addresses();
}

void begin_news(context *c)
{
	the_readers->all.insert(c);
}

void end_news(context *c)
{
	the_readers->all.erase(c);
}

void addresses_changed(node *n)
{
	if (datagrams *d = find_datagrams(n))
		d->addresses_changed();
	std::vector<gid_bytes> now = own_addresses();
	if (now == the_readers->told)
		return; // something else of an interface changed
	the_readers->told = std::move(now);
	ibv_async_event e{};
	e.event_type = IBV_EVENT_GID_CHANGE;
	e.element.port_num = 1;
	for (context *c : the_readers->all) {
		// One that is unread stands for all: a program that reads none would gather them.
		bool waits = std::any_of(c->events.begin(), c->events.end(), [](const auto &u) {
			return u.event_type == IBV_EVENT_GID_CHANGE;
		});
		if (!waits)
			push(c, e);
	}
}

std::condition_variable_any &acknowledged()
{
	// Never destroyed: threads may still wait while the program ends.
	static auto *changed = new std::condition_variable_any;
	return *changed;
}

void settle_events(context *c, const void *object, const std::uint32_t &given, node_hold &held)
{
	std::size_t erased = std::erase_if(
		c->events, [&](const ibv_async_event &e) { return e.element.qp == object; });
	for (; erased; erased--)
		c->unread.erase(c->handle()->async_fd);
	acknowledged().wait(held, [&] { return !given; });
}

} // namespace coop::ntrdma::verbs

COOP_VERB ibv_comp_channel *ibv_create_comp_channel(ibv_context *c)
{
	int fd = coop::event_count::open();
	if (fd < 0)
		return nullptr;
	auto *ch = new verbs::channel{};
	ch->c.context = c;
	ch->c.fd = fd;
	return &ch->c;
}

COOP_VERB int ibv_destroy_comp_channel(ibv_comp_channel *ch)
{
	auto held = of(ch->context)->device->hold();
	if (ch->refcnt)
		return EBUSY;
	held.unlock();
	close(ch->fd);
	delete of(ch);
	return 0;
}

COOP_VERB int ibv_get_cq_event(ibv_comp_channel *ch, ibv_cq **cq, void **cq_context)
{
	for (;;) {
		if (!coop::event_count::wait(ch->fd))
			return -1;
		auto held = of(ch->context)->device->hold();
		auto &ready = of(ch)->ready;
		if (!of(ch)->unread.claim() || ready.empty())
			continue;
		*cq = ready.front();
		ready.pop_front();
		*cq_context = (*cq)->cq_context;
		of(*cq)->given++;
		return 0;
	}
}

COOP_VERB void ibv_ack_cq_events(ibv_cq *cq, unsigned count)
{
	auto held = of(cq->context)->device->hold();
	of(cq)->given -= std::min(of(cq)->given, count);
	verbs::acknowledged().notify_all();
}

namespace
{

/// The counter of events that the event's object has given out; null if none waits for them.
std::uint32_t *given_of(const ibv_async_event &e)
{
	switch (e.event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		return &of(e.element.qp)->given;
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		return &of(e.element.srq)->given;
	default:
		return nullptr;
	}
}

} // namespace

COOP_VERB int ibv_get_async_event(ibv_context *c, ibv_async_event *e)
{
	for (;;) {
		if (!coop::event_count::wait(c->async_fd))
			return -1;
		auto held = of(c)->device->hold();
		if (!of(c)->unread.claim() || of(c)->events.empty())
			continue;
		*e = of(c)->events.front();
		of(c)->events.pop_front();
		if (auto *given = given_of(*e))
			++*given;
		return 0;
	}
}

COOP_VERB void ibv_ack_async_event(ibv_async_event *e)
{
	auto *given = given_of(*e);
	if (!given)
		return;
	ibv_context *c = e->event_type == IBV_EVENT_SRQ_LIMIT_REACHED ? e->element.srq->context
								      : e->element.qp->context;
	auto held = of(c)->device->hold();
	*given -= *given != 0;
	verbs::acknowledged().notify_all();
}
