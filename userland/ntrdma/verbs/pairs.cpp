// SPDX-License-Identifier: MIT
// pairs.cpp - queue pairs of the stand-in libibverbs: creation, states, attributes.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <system_error>

#include "userland/ntrdma/verbs/datagrams.hpp"
#include "userland/ntrdma/verbs/unpolled.hpp"

using namespace coop::ntrdma;
using coop::ntrdma::verbs::of;

namespace
{

/// Transitions of a queue pair, and the attributes that each needs and allows.
struct transition {
	ibv_qp_state from, to;
	int needs, allows;
};
constexpr transition transitions[] = {
	{IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
	{IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
	{IBV_QPS_INIT, IBV_QPS_RTR,
	 IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
		 IBV_QP_MIN_RNR_TIMER,
	 IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS},
	{IBV_QPS_RTR, IBV_QPS_RTS,
	 IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		 IBV_QP_MAX_QP_RD_ATOMIC,
	 IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
	{IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
};

/// Of a UD queue pair.
constexpr transition datagram_transitions[] = {
	{IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0},
	{IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY},
	{IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
	{IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, IBV_QP_QKEY},
	{IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_QKEY},
};

const transition *find(std::span<const transition> all, ibv_qp_state from, ibv_qp_state to)
{
	auto t = std::find_if(all.begin(), all.end(),
			      [&](const transition &t) { return t.from == from && t.to == to; });
	return t == all.end() ? nullptr : &*t;
}

ibv_qp_state state_of(const queue_pair &p)
{
	constexpr ibv_qp_state states[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS,
					   IBV_QPS_ERR};
	return states[static_cast<unsigned>(p.state())];
}

/// Errors of ibv_create_qp: 0 if the device offers it.
int judge(const ibv_qp_init_attr *a)
{
	if (a->qp_type != IBV_QPT_RC && a->qp_type != IBV_QPT_UD)
		return EOPNOTSUPP;
	if (!a->send_cq || !a->recv_cq)
		return EINVAL;
	const ibv_qp_cap &c = a->cap;
	bool fits = c.max_send_wr <= max_depth && c.max_recv_wr <= max_depth &&
		    c.max_send_sge <= max_segments && c.max_recv_sge <= max_segments &&
		    c.max_inline_data <= max_inline;
	return fits ? 0 : EINVAL;
}

/// True if the address leads to this machine, where the peers of the device are.
bool is_here(ibv_context *c, const ibv_ah_attr &a)
{
	if (a.port_num > 1)
		return false;
	if (!a.is_global)
		return a.dlid == verbs::own_lid;
	verbs::gid_bytes to;
	std::memcpy(to.data(), &a.grh.dgid, sizeof(to));
	if (verbs::is_empty(to))
		return false;
	ibv_gid own;
	for (int i = 0; !ibv_query_gid(c, 1, i, &own); i++)
		if (!std::memcmp(&own, &a.grh.dgid, sizeof(own)))
			return true;
	return false;
}

/// False if the address leads nowhere that the device reaches. `out`: none for a peer by a window.
bool find_route(ibv_context *c, const ibv_ah_attr &a, std::optional<route> *out)
{
	backend reaches = of(c)->device->reaches();
	bool here = is_here(c, a);
	out->reset();
	if (reaches == backend::window || (reaches == backend::both && here))
		return here;
	auto own = verbs::own_addresses();
	ibv_gid local;
	ibv_query_gid(c, 1, 0, &local);
	if (here && (!a.is_global || !std::memcmp(&local, &a.grh.dgid, sizeof(local)))) {
		*out = route{own[0], own[0]};
		return true;
	}
	if (a.port_num > 1 || !a.is_global || a.grh.sgid_index >= own.size() ||
	    verbs::is_empty(own[a.grh.sgid_index]))
		return false;
	route r;
	r.own = own[a.grh.sgid_index];
	std::memcpy(r.to.data(), &a.grh.dgid, 16);
	bool from_loopback = a.grh.sgid_index == 0; // whence no other host is reached
	if (verbs::is_v4(r.own) != verbs::is_v4(r.to) || (from_loopback && !here))
		return false;
	*out = r;
	return true;
}

void store(ibv_qp_attr *to, const ibv_qp_attr &a, int mask)
{
	auto set = [&](int bit, auto ibv_qp_attr::*field) {
		if (mask & bit)
			to->*field = a.*field;
	};
	set(IBV_QP_ACCESS_FLAGS, &ibv_qp_attr::qp_access_flags);
	set(IBV_QP_PKEY_INDEX, &ibv_qp_attr::pkey_index);
	set(IBV_QP_QKEY, &ibv_qp_attr::qkey);
	set(IBV_QP_PORT, &ibv_qp_attr::port_num);
	set(IBV_QP_AV, &ibv_qp_attr::ah_attr);
	set(IBV_QP_PATH_MTU, &ibv_qp_attr::path_mtu);
	set(IBV_QP_TIMEOUT, &ibv_qp_attr::timeout);
	set(IBV_QP_RETRY_CNT, &ibv_qp_attr::retry_cnt);
	set(IBV_QP_RNR_RETRY, &ibv_qp_attr::rnr_retry);
	set(IBV_QP_RQ_PSN, &ibv_qp_attr::rq_psn);
	set(IBV_QP_SQ_PSN, &ibv_qp_attr::sq_psn);
	set(IBV_QP_MAX_QP_RD_ATOMIC, &ibv_qp_attr::max_rd_atomic);
	set(IBV_QP_MAX_DEST_RD_ATOMIC, &ibv_qp_attr::max_dest_rd_atomic);
	set(IBV_QP_MIN_RNR_TIMER, &ibv_qp_attr::min_rnr_timer);
	set(IBV_QP_DEST_QPN, &ibv_qp_attr::dest_qp_num);
}

/// Datagrams of this process, and the queue pair's part in them. 0 or an error number.
int begin_datagrams(verbs::pair *p)
{
	p->ud = std::make_shared<verbs::datagram_pair>();
	p->ud->of = p;
	node *device = of(p->qp.context)->device;
	try {
		verbs::datagrams_of(device, p->qp.qp_num >> slot_shift).add(*p->ud);
	} catch (const std::system_error &e) {
		std::fprintf(stderr, "coop-verbs: %s\n", e.what());
		return e.code().value();
	}
	p->core->datagrams = &p->ud->figures;
	of(p->qp.send_cq)->datagram_users++;
	of(p->qp.recv_cq)->datagram_users++;
	return 0;
}

void leave_datagrams(verbs::pair *p)
{
	verbs::forget_datagrams(*p->ud);
	verbs::find_datagrams(of(p->qp.context)->device)->remove(*p->ud);
	of(p->qp.send_cq)->datagram_users--;
	of(p->qp.recv_cq)->datagram_users--;
}

int modify_datagrams(verbs::pair *p, const ibv_qp_attr &a, int mask, ibv_qp_state to)
{
	verbs::datagram_pair &ud = *p->ud;
	if (mask & IBV_QP_QKEY)
		ud.qkey = a.qkey;
	if (mask & IBV_QP_SQ_PSN)
		ud.psn = a.sq_psn;
	store(&p->attr, a, mask);
	if (to == ud.state)
		return 0;
	return verbs::find_datagrams(of(p->qp.context)->device)->set_state(ud, to);
}

} // namespace

void verbs::end_pair(pair *p)
{
	context *c = of(p->qp.context);
	p->core->pair->owner = nullptr;
	if (p->ud)
		leave_datagrams(p);
	c->device->destroy(p->core);
	c->pairs.erase(p);
}

COOP_VERB ibv_qp *ibv_create_qp(ibv_pd *pd, ibv_qp_init_attr *a)
{
	if (int error = judge(a)) {
		errno = error;
		return nullptr;
	}
	auto *p = new verbs::pair{};
	auto held = of(pd->context)->device->hold();
	pair_options o;
	o.domain = of(pd)->number;
	o.send_depth = std::max(a->cap.max_send_wr, 1u);
	o.recv_depth = std::max(a->cap.max_recv_wr, 1u);
	o.inline_bytes = std::max(a->cap.max_inline_data, body_bytes);
	o.all_signalled = a->sq_sig_all;
	o.send_queue = of(a->send_cq)->core.get();
	o.recv_queue = of(a->recv_cq)->core.get();
	o.shared = a->srq ? of(a->srq)->core.get() : nullptr;
	p->core = of(pd->context)->device->create(o);
	if (!p->core) {
		held.unlock();
		delete p;
		errno = ENOMEM;
		return nullptr;
	}
	p->core->pair->owner = p;
	a->cap.max_inline_data = o.inline_bytes;
	a->cap.max_send_sge = a->cap.max_recv_sge = max_segments;
	p->made = *a;
	p->attr.cap = a->cap;
	ibv_qp &qp = p->qp;
	qp.context = pd->context;
	qp.qp_context = a->qp_context;
	qp.pd = pd;
	qp.send_cq = a->send_cq;
	qp.recv_cq = a->recv_cq;
	qp.srq = a->srq;
	qp.qp_num = p->core->pair->options().number;
	qp.qp_type = a->qp_type;
	qp.state = IBV_QPS_RESET;
	pthread_mutex_init(&qp.mutex, nullptr);
	pthread_cond_init(&qp.cond, nullptr);
	if (int error = qp.qp_type == IBV_QPT_UD ? begin_datagrams(p) : 0) {
		of(pd->context)->device->destroy(p->core);
		held.unlock();
		delete p;
		errno = error;
		return nullptr;
	}
	of(pd)->users++;
	of(pd->context)->pairs.insert(p);
	return &qp;
}

COOP_VERB int ibv_modify_qp(ibv_qp *qp, ibv_qp_attr *a, int mask)
{
	verbs::pair *p = of(qp);
	node *device = of(qp->context)->device;
	auto held = device->hold();
	queue_pair &core = *p->core->pair;
	ibv_qp_state from = p->ud ? p->ud->state : state_of(core);
	ibv_qp_state to = mask & IBV_QP_STATE ? a->qp_state : from;
	if ((mask & IBV_QP_CUR_STATE) && a->cur_qp_state != from)
		return EINVAL;
	if (p->ud && (to == IBV_QPS_RESET || to == IBV_QPS_ERR))
		return modify_datagrams(p, *a, 0, to);
	if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) {
		core.set_state(to == IBV_QPS_RESET ? pair_state::reset : pair_state::error);
		device->changed(p->core);
		qp->state = to;
		return 0;
	}
	std::span<const transition> known = transitions;
	if (p->ud)
		known = datagram_transitions;
	const transition *t = find(known, from, to);
	int given = mask & ~(IBV_QP_STATE | IBV_QP_CUR_STATE);
	if (!t || (given & t->needs) != t->needs || (given & ~(t->needs | t->allows)))
		return EINVAL;
	if ((given & IBV_QP_PORT) && a->port_num != 1)
		return EINVAL;
	if (p->ud)
		return modify_datagrams(p, *a, given, to);
	if (given & IBV_QP_AV) {
		std::optional<route> by_tcp;
		if (!find_route(qp->context, a->ah_attr, &by_tcp))
			return EINVAL;
		// By whichever way: a queue pair that is its own peer needs none.
		if (a->dest_qp_num == qp->qp_num && is_here(qp->context, a->ah_attr))
			by_tcp.reset();
		p->core->by_tcp = by_tcp;
		core.peer = a->dest_qp_num;
	}
	if (given & IBV_QP_ACCESS_FLAGS)
		core.set_rights(a->qp_access_flags & 15);
	store(&p->attr, *a, given);
	if (to != from) {
		constexpr pair_state states[] = {pair_state::reset, pair_state::init,
						 pair_state::ready, pair_state::sends};
		core.set_state(states[to]);
		device->changed(p->core);
	}
	qp->state = to;
	return 0;
}

// The stand-in librdmacm asks by another thread than the program's, which may have destroyed it.
int coop_verbs_unpolled(ibv_context *c, const ibv_qp *qp)
{
	verbs::context *known = of(c);
	auto held = known->device->hold();
	const auto at = std::find_if(known->pairs.begin(), known->pairs.end(),
				     [&](const verbs::pair *p) { return &p->qp == qp; });
	if (at == known->pairs.end() || (*at)->ud)
		return 0;
	queue_pair &core = *(*at)->core->pair;
	core.take_all();
	return core.unpolled() != 0;
}

COOP_VERB int ibv_query_qp(ibv_qp *qp, ibv_qp_attr *a, int, ibv_qp_init_attr *init)
{
	verbs::pair *p = of(qp);
	auto held = of(qp->context)->device->hold();
	*a = p->attr;
	a->qp_state = a->cur_qp_state = qp->state = p->ud ? p->ud->state : state_of(*p->core->pair);
	*init = p->made;
	return 0;
}

COOP_VERB int ibv_destroy_qp(ibv_qp *qp)
{
	verbs::pair *p = of(qp);
	verbs::context *c = of(qp->context);
	auto held = c->device->hold();
	verbs::end_pair(p);
	verbs::settle_events(c, qp, p->given, held);
	of(qp->pd)->users--;
	held.unlock();
	delete p;
	return 0;
}
