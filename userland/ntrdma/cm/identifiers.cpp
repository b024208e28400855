// SPDX-License-Identifier: MIT
// identifiers.cpp - identifiers, event channels, and the events that programs take from them.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include <unistd.h>

#include "userland/ntrdma/cm/manager.hpp"
#include "userland/ntrdma/window/greeting.hpp"

using namespace coop::ntrdma;
using namespace coop::ntrdma::cm;
using coop::ntrdma::cm::of;

namespace coop::ntrdma::cm
{

int fail_with(int error)
{
	errno = error;
	return -1;
}

int complete(identifier *i, rdma_cm_event_type wanted)
{
	if (!i->synchronous)
		return 0;
	if (i->id.event) {
		rdma_ack_cm_event(i->id.event);
		i->id.event = nullptr;
	}
	if (rdma_get_cm_event(i->id.channel, &i->id.event))
		return -1;
	if (i->id.event->event == wanted)
		return 0;
	int status = i->id.event->status;
	return fail_with(i->id.event->event == RDMA_CM_EVENT_REJECTED ? ECONNREFUSED
			 : status < 0                                 ? -status
								      : ECONNABORTED);
}

} // namespace coop::ntrdma::cm

COOP_CM rdma_event_channel *rdma_create_event_channel()
{
	int fd = coop::event_count::open();
	if (fd < 0)
		return nullptr;
	auto *c = new channel{};
	c->c.fd = fd;
	return &c->c;
}

COOP_CM void rdma_destroy_event_channel(rdma_event_channel *c)
{
	close(c->fd);
	delete of(c);
}

COOP_CM int rdma_create_id(rdma_event_channel *c, rdma_cm_id **out, void *context,
			   rdma_port_space ps)
{
	if (ps != RDMA_PS_TCP && ps != RDMA_PS_IB && ps != RDMA_PS_UDP)
		return fail_with(EPROTONOSUPPORT);
	bool synchronous = !c;
	if (synchronous && !(c = rdma_create_event_channel()))
		return -1;
	auto *i = new identifier{};
	i->id.channel = c;
	i->id.context = context;
	i->id.ps = ps;
	i->id.qp_type = ps == RDMA_PS_UDP ? IBV_QPT_UD : IBV_QPT_RC;
	i->synchronous = synchronous;
	manager &m = manager::instance();
	std::scoped_lock held{m.lock};
	m.add(i);
	*out = &i->id;
	return 0;
}

COOP_CM int rdma_destroy_id(rdma_cm_id *id)
{
	identifier *i = of(id);
	manager &m = manager::instance();
	std::unique_lock held{m.lock};
	std::vector<identifier *> gone = m.unknown_of(i);
	gone.push_back(i);
	for (event *e : manager::take_unread(id->channel, gone))
		delete e;
	for (identifier *g : gone)
		m.remove(g);
	// Callers whose requests were not taken are hung up on.
	gone.pop_back();
	for (identifier *child : gone)
		delete child;
	i->socket = unique_fd{};
	i->far_listener = unique_fd{};
	if (i->synchronous && id->event) {
		auto *last = reinterpret_cast<event *>(id->event);
		last->about->unacknowledged--;
		delete last;
		m.acknowledged.notify_all();
	}
	m.acknowledged.wait(held, [&] { return !i->unacknowledged; });
	held.unlock();
	if (i->synchronous)
		rdma_destroy_event_channel(id->channel);
	delete i;
	return 0;
}

COOP_CM int rdma_migrate_id(rdma_cm_id *id, rdma_event_channel *to)
{
	identifier *i = of(id);
	if (!to)
		return fail_with(EOPNOTSUPP);
	manager &m = manager::instance();
	std::unique_lock held{m.lock};
	rdma_event_channel *from = id->channel;
	std::vector<identifier *> with = m.unknown_of(i);
	with.push_back(i);
	std::vector<event *> moved = manager::take_unread(from, with);
	for (identifier *w : with)
		w->id.channel = to;
	for (event *e : moved)
		m.push(e);
	bool was_own = std::exchange(i->synchronous, false);
	held.unlock();
	if (was_own) {
		if (id->event)
			rdma_ack_cm_event(std::exchange(id->event, nullptr));
		rdma_destroy_event_channel(from);
	}
	return 0;
}

COOP_CM int rdma_get_cm_event(rdma_event_channel *c, rdma_cm_event **out)
{
	manager &m = manager::instance();
	for (;;) {
		if (!coop::event_count::wait(c->fd))
			return -1;
		std::unique_lock held{m.lock};
		auto &ready = of(c)->ready;
		if (!of(c)->unread.claim() || ready.empty())
			continue; // its identifier was destroyed
		event *e = ready.front();
		ready.pop_front();
		identifier *i = e->about;
		if (e->replies) {
			// The program may have destroyed its queue pair since.
			bool moved = i->id.qp && !move_pair(i, IBV_QPS_RTR) &&
				     !move_pair(i, IBV_QPS_RTS);
			if (moved && manager::send(i, kind::rtu, nullptr)) {
				i->at = stage::established;
			} else {
				e->e.event = RDMA_CM_EVENT_CONNECT_ERROR;
				e->e.status = -ECONNABORTED;
			}
		}
		i->unacknowledged++;
		*out = &e->e;
		return 0;
	}
}

COOP_CM int rdma_ack_cm_event(rdma_cm_event *e)
{
	if (!e)
		return fail_with(EINVAL);
	manager &m = manager::instance();
	std::scoped_lock held{m.lock};
	auto *own = reinterpret_cast<event *>(e);
	own->about->unacknowledged--;
	delete own;
	m.acknowledged.notify_all();
	return 0;
}

COOP_CM ibv_context **rdma_get_devices(int *count)
{
	manager &m = manager::instance();
	std::scoped_lock held{m.lock};
	ibv_context *device = m.device();
	if (!device)
		return nullptr;
	auto **list = static_cast<ibv_context **>(std::calloc(2, sizeof(ibv_context *)));
	list[0] = device;
	if (count)
		*count = 1;
	return list;
}

COOP_CM void rdma_free_devices(ibv_context **list)
{
	std::free(list);
}

COOP_CM __be16 rdma_get_src_port(rdma_cm_id *id)
{
	return htobe16(port_of(&id->route.addr.src_addr));
}

COOP_CM __be16 rdma_get_dst_port(rdma_cm_id *id)
{
	return htobe16(port_of(&id->route.addr.dst_addr));
}

COOP_CM const char *rdma_event_str(rdma_cm_event_type e)
{
	static const char *const names[] = {
		"RDMA_CM_EVENT_ADDR_RESOLVED",   "RDMA_CM_EVENT_ADDR_ERROR",
		"RDMA_CM_EVENT_ROUTE_RESOLVED",  "RDMA_CM_EVENT_ROUTE_ERROR",
		"RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
		"RDMA_CM_EVENT_CONNECT_ERROR",   "RDMA_CM_EVENT_UNREACHABLE",
		"RDMA_CM_EVENT_REJECTED",        "RDMA_CM_EVENT_ESTABLISHED",
		"RDMA_CM_EVENT_DISCONNECTED",    "RDMA_CM_EVENT_DEVICE_REMOVAL",
		"RDMA_CM_EVENT_MULTICAST_JOIN",  "RDMA_CM_EVENT_MULTICAST_ERROR",
		"RDMA_CM_EVENT_ADDR_CHANGE",     "RDMA_CM_EVENT_TIMEWAIT_EXIT",
	};
	return e <= RDMA_CM_EVENT_TIMEWAIT_EXIT ? names[e] : "UNKNOWN EVENT";
}
