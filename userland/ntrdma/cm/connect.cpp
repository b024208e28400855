// SPDX-License-Identifier: MIT
// connect.cpp - binding, resolving, listening, and both sides of a connection.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include <sys/random.h>
#include <sys/socket.h>

#include "userland/ntrdma/cm/manager.hpp"
#include "userland/ntrdma/window/greeting.hpp"

using namespace coop::ntrdma;
using namespace coop::ntrdma::cm;
using coop::ntrdma::cm::of;

namespace
{

constexpr int rej_by_consumer = 28;
constexpr std::uint16_t first_free = 32768;
constexpr std::uint32_t free_ports = 28232;

bool known(const sockaddr *a)
{
	return a->sa_family == AF_INET || a->sa_family == AF_INET6;
}

/// True if other hosts can reach the address.
bool is_public(const sockaddr *a)
{
	return manager::instance().reaches() != backend::window && !is_loopback(a);
}

/// A port that is free for listening at the address, where it is stored. False and errno.
bool bind_port(rdma_port_space ps, sockaddr *a, unique_fd *here, unique_fd *far)
{
	int error = EADDRINUSE;
	std::uint32_t start = 0;
	[[maybe_unused]] ssize_t n = getrandom(&start, sizeof(start), 0);
	bool given = port_of(a);
	for (std::uint32_t k = 0; k < (given ? 1 : free_ports); k++) {
		if (!given)
			set_port(a,
				 static_cast<std::uint16_t>(first_free + (start + k) % free_ports));
		unique_fd fd = listen_at(listener_name(ps, a, is_any(a)));
		if (!fd)
			continue;
		int r = is_public(a) ? listen_tcp(ip_of(a), port_of(a), *far) : 0;
		if (!r) {
			*here = std::move(fd);
			return true;
		}
		error = -r;
		if (given)
			std::fprintf(stderr,
				     "coop-verbs: listening for other hosts at TCP port %u: %s\n",
				     port_of(a), std::strerror(error));
	}
	errno = error;
	return false;
}

/// Where a client that is to reach another host is: its route. 0 or -errno.
int find_route(identifier *i, const sockaddr *src, const sockaddr *dst)
{
	manager &m = manager::instance();
	sockaddr_storage own{};
	if (m.reaches() == backend::window) {
		std::fprintf(stderr, "coop-verbs: an address of another host needs "
				     "COOP_NTRDMA_BACKEND=auto, there and here\n");
		return -ENETUNREACH;
	}
	if (is_link_local(dst))
		return -EADDRNOTAVAIL;
	if (src && known(src) && !is_any(src)) {
		if (src->sa_family != dst->sa_family)
			return -EAFNOSUPPORT;
		copy_address(&own, src);
	} else if (int r = source_of(dst, &own)) {
		return r;
	}
	route by{ip_of(reinterpret_cast<sockaddr *>(&own)), ip_of(dst)};
	ibv_context *device = m.device();
	if (!device)
		return -errno;
	if (gid_index(device, by.own) < 0)
		return -EADDRNOTAVAIL;
	if (!m.give_device(i))
		return -errno;
	std::uint16_t port =
		known(&i->id.route.addr.src_addr) ? port_of(&i->id.route.addr.src_addr) : 0;
	i->id.route.addr.src_storage = own;
	set_port(&i->id.route.addr.src_addr, port);
	i->by_tcp = by;
	return 0;
}

/// Gives a client its addresses and its device. 0, or -errno: it is as before then, and one that is
/// bound may yet listen.
int resolve(identifier *i, bool here, const sockaddr *src, const sockaddr *dst)
{
	auto &a = i->id.route.addr;
	sockaddr *own = &a.src_addr;
	const sockaddr_storage source = a.src_storage, target = a.dst_storage;
	copy_address(&a.dst_storage, dst);
	if (src && known(src) && i->at == stage::idle)
		copy_address(&a.src_storage, src);
	if (int r = here ? 0 : find_route(i, known(own) ? own : src, dst)) {
		a.src_storage = source;
		a.dst_storage = target;
		return r;
	}
	if (here)
		manager::instance().give_device(i);
	if (!known(own) || is_any(own)) {
		std::uint16_t port = known(own) ? port_of(own) : 0;
		copy_address(&a.src_storage, dst);
		set_port(own, port);
	}
	if (!port_of(own)) {
		std::uint16_t port = 0;
		[[maybe_unused]] ssize_t n = getrandom(&port, sizeof(port), 0);
		set_port(own, static_cast<std::uint16_t>(first_free + port % free_ports));
	}
	i->id.port_num = 1;
	return 0;
}

} // namespace

namespace coop::ntrdma::cm
{

int move_pair(identifier *i, ibv_qp_state to)
{
	ibv_qp_attr a{};
	int mask;
	a.qp_state = to;
	if (rdma_init_qp_attr(&i->id, &a, &mask))
		return -1;
	int rc = ibv_modify_qp(i->id.qp, &a, mask);
	return rc ? fail_with(rc) : 0;
}

int address_peer(identifier *i, ibv_ah_attr *a)
{
	ibv_port_attr port;
	if (int rc = ibv_query_port(i->id.verbs, 1, &port))
		return fail_with(rc);
	*a = {};
	a->dlid = port.lid;
	a->port_num = 1;
	if (!i->by_tcp)
		return 0;
	int index = gid_index(i->id.verbs, i->by_tcp->own);
	if (index < 0)
		return fail_with(EADDRNOTAVAIL);
	a->is_global = 1;
	a->grh.sgid_index = static_cast<std::uint8_t>(index);
	a->grh.hop_limit = 64;
	std::memcpy(&a->grh.dgid, i->by_tcp->to.data(), 16);
	return 0;
}

} // namespace coop::ntrdma::cm

COOP_CM int rdma_bind_addr(rdma_cm_id *id, sockaddr *a)
{
	identifier *i = of(id);
	manager &m = manager::instance();
	std::scoped_lock held{m.lock};
	if (i->at != stage::idle || !known(a))
		return fail_with(EINVAL);
	if (!is_any(a) && !is_own(a))
		return fail_with(EADDRNOTAVAIL);
	copy_address(&id->route.addr.src_storage, a);
	if (!bind_port(id->ps, &id->route.addr.src_addr, &i->socket, &i->far_listener))
		return -1;
	if (!is_any(a)) {
		if (!m.give_device(i))
			return -1;
		id->port_num = 1;
	}
	i->at = stage::bound;
	return 0;
}

COOP_CM int rdma_listen(rdma_cm_id *id, int)
{
	identifier *i = of(id);
	manager &m = manager::instance();
	std::unique_lock held{m.lock};
	if (i->at == stage::idle) {
		sockaddr_in any{};
		any.sin_family = AF_INET;
		held.unlock();
		if (rdma_bind_addr(id, reinterpret_cast<sockaddr *>(&any)))
			return -1;
		held.lock();
	}
	if (i->at != stage::bound)
		return fail_with(EINVAL);
	i->at = stage::listening;
	m.watch(i);
	return 0;
}

COOP_CM int rdma_resolve_addr(rdma_cm_id *id, sockaddr *src, sockaddr *dst, int)
{
	identifier *i = of(id);
	manager &m = manager::instance();
	{
		std::scoped_lock held{m.lock};
		if ((i->at != stage::idle && i->at != stage::bound) || !known(dst))
			return fail_with(EINVAL);
		bool here = is_any(dst) || is_own(dst);
		if (here && !m.device())
			return -1;
		int status = resolve(i, here, src, dst);
		if (!status) {
			i->socket = unique_fd{}; // a client's port is but a number
			i->far_listener = unique_fd{};
			i->at = stage::resolved;
		}
		m.push(i, status ? RDMA_CM_EVENT_ADDR_ERROR : RDMA_CM_EVENT_ADDR_RESOLVED, status);
	}
	return complete(i, RDMA_CM_EVENT_ADDR_RESOLVED);
}

COOP_CM int rdma_resolve_route(rdma_cm_id *id, int)
{
	identifier *i = of(id);
	manager &m = manager::instance();
	{
		std::scoped_lock held{m.lock};
		if (i->at != stage::resolved)
			return fail_with(EINVAL);
		m.push(i, RDMA_CM_EVENT_ROUTE_RESOLVED);
	}
	return complete(i, RDMA_CM_EVENT_ROUTE_RESOLVED);
}

COOP_CM int rdma_init_qp_attr(rdma_cm_id *id, ibv_qp_attr *a, int *mask)
{
	identifier *i = of(id);
	switch (a->qp_state) {
	case IBV_QPS_INIT:
		a->port_num = 1;
		a->pkey_index = 0;
		a->qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				     IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
		a->qkey = RDMA_UDP_QKEY;
		*mask = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX |
			(is_unconnected(i) ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
		return 0;
	case IBV_QPS_RTR:
		*mask = IBV_QP_STATE;
		if (is_unconnected(i))
			return 0;
		if (address_peer(i, &a->ah_attr))
			return -1;
		a->path_mtu = IBV_MTU_4096;
		a->dest_qp_num = i->peer_qpn;
		a->rq_psn = 0;
		a->max_dest_rd_atomic = i->responder_resources;
		a->min_rnr_timer = 12;
		*mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		return 0;
	case IBV_QPS_RTS:
		a->sq_psn = 0;
		*mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
		if (is_unconnected(i))
			return 0;
		a->timeout = 14;
		a->retry_cnt = 7;
		a->rnr_retry = 7;
		a->max_rd_atomic = i->initiator_depth;
		*mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			 IBV_QP_MAX_QP_RD_ATOMIC;
		return 0;
	default:
		return fail_with(EINVAL);
	}
}

COOP_CM int rdma_connect(rdma_cm_id *id, rdma_conn_param *p)
{
	identifier *i = of(id);
	manager &m = manager::instance();
	rdma_conn_param usual{};
	if (!p)
		p = &usual;
	{
		std::scoped_lock held{m.lock};
		if (i->at != stage::resolved)
			return fail_with(EINVAL);
		i->responder_resources = p->responder_resources;
		i->initiator_depth = p->initiator_depth;
		i->at = stage::connecting;
		i->replied = false;
		kind what = is_unconnected(i) ? kind::find : kind::req;
		i->request = manager::compose(i, what, p, 0);
		m.connect(i);
	}
	return complete(i, RDMA_CM_EVENT_ESTABLISHED);
}

COOP_CM int rdma_establish(rdma_cm_id *id)
{
	identifier *i = of(id);
	std::scoped_lock held{manager::instance().lock};
	if (id->qp || i->at != stage::connecting)
		return fail_with(EINVAL);
	if (!i->socket || !manager::send(i, kind::rtu, nullptr))
		return fail_with(ENOTCONN);
	i->at = stage::established;
	return 0;
}

COOP_CM int rdma_accept(rdma_cm_id *id, rdma_conn_param *p)
{
	identifier *i = of(id);
	manager &m = manager::instance();
	rdma_conn_param usual{};
	if (!p)
		p = &usual;
	{
		std::scoped_lock held{m.lock};
		if (i->at != stage::requested || !i->socket)
			return fail_with(i->at == stage::ended ? ENOTCONN : EINVAL);
		if (is_unconnected(i)) {
			// The peer needs no word of this side again.
			if (!manager::send(i, kind::found, p))
				return fail_with(ENOTCONN);
			i->at = stage::established;
			return 0;
		}
		i->responder_resources = p->responder_resources;
		i->initiator_depth = p->initiator_depth;
		if (id->qp && (move_pair(i, IBV_QPS_RTR) || move_pair(i, IBV_QPS_RTS)))
			return -1;
		if (!manager::send(i, kind::rep, p))
			return fail_with(ENOTCONN);
		i->at = stage::accepted;
	}
	return complete(i, RDMA_CM_EVENT_ESTABLISHED);
}

COOP_CM int rdma_reject(rdma_cm_id *id, const void *data, std::uint8_t length)
{
	identifier *i = of(id);
	std::scoped_lock held{manager::instance().lock};
	if (i->at != stage::requested || !i->socket)
		return fail_with(EINVAL);
	rdma_conn_param p{};
	p.private_data = data;
	p.private_data_len = length;
	manager::send(i, kind::rej, &p, rej_by_consumer);
	i->at = stage::ended;
	i->told_end = true;
	return 0;
}

COOP_CM int rdma_disconnect(rdma_cm_id *id)
{
	identifier *i = of(id);
	manager &m = manager::instance();
	{
		std::scoped_lock held{m.lock};
		if (is_unconnected(i) || (i->at != stage::established && i->at != stage::accepted &&
					  i->at != stage::ended))
			return fail_with(EINVAL);
		if (id->qp) {
			ibv_qp_attr a{};
			a.qp_state = IBV_QPS_ERR;
			ibv_modify_qp(id->qp, &a, IBV_QP_STATE);
		}
		if (i->socket)
			manager::send(i, kind::dreq, nullptr);
		i->at = stage::ended;
		if (!i->told_end)
			m.push(i, RDMA_CM_EVENT_DISCONNECTED);
		i->told_end = true;
	}
	return complete(i, RDMA_CM_EVENT_DISCONNECTED);
}

COOP_CM int rdma_get_request(rdma_cm_id *listener, rdma_cm_id **out)
{
	identifier *l = of(listener);
	if (!l->synchronous)
		return fail_with(EINVAL);
	rdma_cm_event *e;
	if (rdma_get_cm_event(listener->channel, &e))
		return -1;
	if (e->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
		rdma_ack_cm_event(e);
		return fail_with(ECONNABORTED);
	}
	identifier *i = of(e->id);
	// A synchronous identifier of its own.
	rdma_event_channel *c = rdma_create_event_channel();
	if (!c || rdma_migrate_id(&i->id, c)) {
		rdma_ack_cm_event(e);
		return -1;
	}
	i->synchronous = true;
	i->id.event = e;
	if (l->wishes) {
		ibv_qp_init_attr wish = l->wish;
		if (rdma_create_qp(&i->id, l->wish_pd, &wish)) {
			rdma_reject(&i->id, nullptr, 0);
			rdma_destroy_id(&i->id);
			return -1;
		}
	}
	*out = &i->id;
	return 0;
}
