// SPDX-License-Identifier: MIT
// fake_fabric.cpp - see fake_fabric.hpp, and fake_objects.hpp for the objects behind the pointers.
#include "tests/fuzz/fake_fabric.hpp"

#include <arpa/inet.h>
#include <cstring>
#include <utility>

#include "tests/fuzz/check.hpp"
#include "tests/fuzz/fake_objects.hpp"

namespace fuzz_net
{

fake_network *the_fabric;

namespace
{

constexpr std::size_t out_most = 64;

int not_done(fid *, fid *, uint64_t)
{
	return 0;
}

int control(fid *f, int command, void *arg)
{
	if (command == FI_ENABLE)
		return 0;
	FUZZ_CHECK(command == FI_GETWAIT);
	*static_cast<int *>(arg) =
		f->fclass == FI_CLASS_CQ ? whole<fake_cq>(f)->wait.fd : whole<fake_eq>(f)->wait.fd;
	return 0;
}

fi_ops plain_ops(int (*close)(fid *))
{
	fi_ops o{};
	o.size = sizeof(o);
	o.close = close;
	o.bind = not_done;
	o.control = control;
	return o;
}

// ---- completion and event queues ------------------------------------------------------

ssize_t cq_read(fid_cq *f, void *buf, size_t count)
{
	auto &done = whole<fake_cq>(f)->done;
	auto *out = static_cast<fi_cq_data_entry *>(buf);
	size_t n = 0;
	for (; n < count && !done.empty() && !done.front().error; n++) {
		out[n] = done.front().good;
		done.pop_front();
	}
	if (n)
		return static_cast<ssize_t>(n);
	return done.empty() ? -FI_EAGAIN : -FI_EAVAIL;
}

ssize_t cq_readerr(fid_cq *f, fi_cq_err_entry *e, uint64_t)
{
	auto &done = whole<fake_cq>(f)->done;
	if (done.empty() || !done.front().error)
		return -FI_EAGAIN;
	e->op_context = done.front().good.op_context;
	e->flags = done.front().good.flags;
	e->err = done.front().error;
	done.pop_front();
	return 1;
}

int cq_close(fid *f)
{
	whole<fake_cq>(f)->node->cq = nullptr;
	delete whole<fake_cq>(f);
	return 0;
}

ssize_t eq_read(fid_eq *f, uint32_t *what, void *buf, size_t size, uint64_t)
{
	auto &events = whole<fake_eq>(f)->events;
	fake_node &node = *whole<fake_eq>(f)->node;
	if (the_fabric->tell_gone && node.pep) {
		the_fabric->tell_gone--;
		node.tell_error(&node.pep->pep.fid, FI_ENODEV);
	}
	if (events.empty())
		return -FI_EAGAIN;
	if (events.front().error)
		return -FI_EAVAIL;
	const event e = std::move(events.front());
	events.pop_front();
	auto *out = static_cast<fi_eq_cm_entry *>(buf);
	*what = e.what;
	out->fid = e.of;
	out->info = e.info;
	const size_t n = std::min(e.text.size(), size - sizeof(*out));
	if (n)
		std::memcpy(out->data, e.text.data(), n);
	return static_cast<ssize_t>(sizeof(*out) + n);
}

ssize_t eq_readerr(fid_eq *f, fi_eq_err_entry *e, uint64_t)
{
	auto &events = whole<fake_eq>(f)->events;
	if (events.empty() || !events.front().error)
		return -FI_EAGAIN;
	e->fid = events.front().of;
	e->err = events.front().error;
	events.pop_front();
	return sizeof(*e);
}

int eq_close(fid *f)
{
	auto *q = whole<fake_eq>(f);
	q->node->eq = nullptr;
	for (event &e : q->events)
		if (e.info)
			fi_freeinfo(e.info);
	delete q;
	return 0;
}

// ---- end points -------------------------------------------------------------------------

void forget(fake_node &n, const fid *f)
{
	if (n.eq)
		std::erase_if(n.eq->events, [f](const event &e) { return e.of == f; });
}

int ep_close(fid *f)
{
	auto *e = whole<fake_ep>(f);
	if (e->link) {
		the_fabric->hang_up(*e->link, e->side);
		e->link->ends[e->side].ep = nullptr;
	}
	forget(*e->node, f);
	delete e;
	return 0;
}

int srx_close(fid *f)
{
	auto *s = whole<fake_srx>(f);
	s->node->receives.clear();
	delete s;
	return 0;
}

ssize_t ep_recv(fid_ep *f, void *buf, size_t length, void *, fi_addr_t, void *context)
{
	whole<fake_srx>(f)->node->receives.push_back({buf, length, context});
	return 0;
}

ssize_t put(fid_ep *f, passage p)
{
	auto *e = whole<fake_ep>(f);
	if (the_fabric->refuse) {
		the_fabric->refuse--;
		return -FI_EAGAIN;
	}
	if (!e->link || !e->link->ends[e->side].open)
		return -FI_ENOTCONN;
	auto &out = e->link->ends[e->side].out;
	if (out.size() >= out_most)
		return -FI_EAGAIN;
	out.push_back(std::move(p));
	return 0;
}

ssize_t ep_injectdata(fid_ep *f, const void *buf, size_t length, uint64_t data, fi_addr_t)
{
	passage p;
	const auto *b = static_cast<const u8 *>(buf);
	p.bytes.assign(b, b + length);
	p.has_word = true;
	p.word = data;
	return put(f, std::move(p));
}

ssize_t ep_sendmsg(fid_ep *f, const fi_msg *m, uint64_t flags)
{
	passage p;
	p.pieces.assign(m->msg_iov, m->msg_iov + m->iov_count);
	p.has_word = flags & FI_REMOTE_CQ_DATA;
	p.word = m->data;
	p.context = m->context;
	return put(f, std::move(p));
}

passage remote(const fi_msg_rma *m)
{
	passage p;
	std::size_t bytes = 0;
	for (std::size_t i = 0; i < m->iov_count; i++)
		bytes += m->msg_iov[i].iov_len;
	FUZZ_CHECK(m->rma_iov_count == 1 && m->rma_iov[0].len == bytes);
	p.pieces.assign(m->msg_iov, m->msg_iov + m->iov_count);
	p.address = m->rma_iov[0].addr;
	p.key = m->rma_iov[0].key;
	p.context = m->context;
	return p;
}

ssize_t ep_writemsg(fid_ep *f, const fi_msg_rma *m, uint64_t flags)
{
	passage p = remote(m);
	p.write = true;
	p.has_word = flags & FI_REMOTE_CQ_DATA;
	p.word = m->data;
	return put(f, std::move(p));
}

ssize_t ep_readmsg(fid_ep *f, const fi_msg_rma *m, uint64_t flags)
{
	FUZZ_CHECK(the_fabric->reads && flags == FI_COMPLETION);
	passage p = remote(m);
	p.read = true;
	return put(f, std::move(p));
}

int ep_connect(fid_ep *f, const void *addr, const void *param, size_t size)
{
	auto *e = whole<fake_ep>(f);
	const auto *t = static_cast<const u8 *>(param);
	const auto &to = *static_cast<const sockaddr_in *>(addr);
	if (the_fabric->gone || ntohl(to.sin_addr.s_addr) == the_fabric->out_of_reach)
		return -FI_ENODEV;
	sockaddr_in from{};
	std::memcpy(&from, e->node->info->src_addr, sizeof(from));
	e->link = the_fabric->connect(from, to, {t, t + size}, e);
	e->side = 0;
	if (!e->link)
		e->node->tell_error(&e->ep.fid, FI_ECONNREFUSED);
	return 0;
}

int ep_accept(fid_ep *f, const void *param, size_t size)
{
	auto *e = whole<fake_ep>(f);
	connection &c = *e->link;
	c.queued = false;
	const auto *t = static_cast<const u8 *>(param);
	if (!c.pending)
		return -FI_ECONNABORTED;
	the_fabric->take_up(c, {t, t + size});
	e->node->tell(FI_CONNECTED, &f->fid);
	return 0;
}

int ep_getpeer(fid_ep *f, void *addr, size_t *size)
{
	const auto *e = whole<fake_ep>(f);
	std::memcpy(addr, e->side ? &e->link->from : &e->link->to, sizeof(sockaddr_in));
	*size = sizeof(sockaddr_in);
	return 0;
}

int pep_reject(fid_pep *, fid *handle, const void *, size_t)
{
	auto &c = *static_cast<connection *>(handle->context);
	c.queued = false;
	the_fabric->turn_down(c);
	return 0;
}

int pep_listen(fid_pep *f)
{
	auto *p = whole<fake_pep>(f);
	p->listens = the_fabric->listeners.emplace(p->where, p->node).second;
	if (p->listens)
		p->node->pep = p;
	return p->listens ? 0 : -FI_EADDRINUSE;
}

int pep_close(fid *f)
{
	auto *p = whole<fake_pep>(f);
	if (p->listens)
		the_fabric->listeners.erase(p->where);
	delete p;
	return 0;
}

// ---- domains ------------------------------------------------------------------------------

int mr_close(fid *f)
{
	auto *m = whole<fake_mr>(f);
	m->node->regions.erase(m->mr.key);
	delete m;
	return 0;
}

int mr_reg(fid *f, const void *buf, size_t length, uint64_t access, uint64_t, uint64_t key,
	   uint64_t, fid_mr **out, void *)
{
	static fi_ops ops = plain_ops(mr_close);
	fake_node *n = fake_node::of(whole<fid_domain>(f));
	if (the_fabric->gone)
		return -FI_ENODEV;
	if (n->regions.count(key))
		return -FI_ENOKEY;
	if (length > the_fabric->lockable)
		return -FI_ENOMEM;
	the_fabric->registered++;
	auto *m = new fake_mr;
	m->mr.fid = {FI_CLASS_MR, nullptr, &ops};
	m->mr.key = key;
	m->node = n;
	m->base = static_cast<u8 *>(const_cast<void *>(buf));
	m->length = length;
	m->access = access;
	n->regions[key] = m;
	*out = &m->mr;
	return 0;
}

int open_ep(fid_domain *d, fi_info *info, fid_ep **out, void *context)
{
	static fi_ops ops = plain_ops(ep_close);
	static fi_ops_cm cm{};
	cm.size = sizeof(cm);
	cm.connect = ep_connect;
	cm.accept = ep_accept;
	cm.getpeer = ep_getpeer;
	static fi_ops_msg msg{};
	msg.size = sizeof(msg);
	msg.injectdata = ep_injectdata;
	msg.sendmsg = ep_sendmsg;
	static fi_ops_rma rma{};
	rma.size = sizeof(rma);
	rma.writemsg = ep_writemsg;
	rma.readmsg = ep_readmsg;
	auto *e = new fake_ep;
	e->ep.fid = {FI_CLASS_EP, context, &ops};
	e->ep.cm = &cm;
	e->ep.msg = &msg;
	e->ep.rma = &rma;
	e->node = fake_node::of(d);
	if (info->handle) {
		auto *c = static_cast<connection *>(info->handle->context);
		for (const auto &each : the_fabric->connections)
			if (each.get() == c)
				e->link = each;
		FUZZ_CHECK(e->link);
		e->side = 1;
		c->ends[1].ep = e;
	}
	*out = &e->ep;
	return 0;
}

int open_srx(fid_domain *d, fi_rx_attr *, fid_ep **out, void *)
{
	static fi_ops ops = plain_ops(srx_close);
	static fi_ops_msg msg{};
	msg.size = sizeof(msg);
	msg.recv = ep_recv;
	auto *s = new fake_srx;
	s->ep.fid = {FI_CLASS_SRX_CTX, nullptr, &ops};
	s->ep.msg = &msg;
	s->node = fake_node::of(d);
	*out = &s->ep;
	return 0;
}

int open_cq(fid_domain *d, fi_cq_attr *, fid_cq **out, void *)
{
	static fi_ops ops = plain_ops(cq_close);
	static fi_ops_cq cq_ops{};
	cq_ops.size = sizeof(cq_ops);
	cq_ops.read = cq_read;
	cq_ops.readerr = cq_readerr;
	auto *q = new fake_cq;
	q->cq.fid = {FI_CLASS_CQ, nullptr, &ops};
	q->cq.ops = &cq_ops;
	q->node = fake_node::of(d);
	q->node->cq = q;
	*out = &q->cq;
	return 0;
}

int domain_close(fid *)
{
	return 0;
}

int open_eq(fid_fabric *f, fi_eq_attr *, fid_eq **out, void *)
{
	static fi_ops ops = plain_ops(eq_close);
	static fi_ops_eq eq_ops{};
	eq_ops.size = sizeof(eq_ops);
	eq_ops.read = eq_read;
	eq_ops.readerr = eq_readerr;
	auto *q = new fake_eq;
	q->eq.fid = {FI_CLASS_EQ, nullptr, &ops};
	q->eq.ops = &eq_ops;
	q->node = whole<fake_node>(f);
	q->node->eq = q;
	*out = &q->eq;
	return 0;
}

int open_domain(fid_fabric *f, fi_info *info, fid_domain **out, void *)
{
	static fi_ops ops = plain_ops(domain_close);
	static fi_ops_domain domain_ops{};
	domain_ops.size = sizeof(domain_ops);
	domain_ops.cq_open = open_cq;
	domain_ops.endpoint = open_ep;
	domain_ops.srx_ctx = open_srx;
	static fi_ops_mr mr_ops{};
	mr_ops.size = sizeof(mr_ops);
	mr_ops.reg = mr_reg;
	auto *n = whole<fake_node>(f);
	n->domain.fid = {FI_CLASS_DOMAIN, n, &ops};
	n->domain.ops = &domain_ops;
	n->domain.mr = &mr_ops;
	n->info = fi_dupinfo(info);
	*out = &n->domain;
	return 0;
}

int open_pep(fid_fabric *f, fi_info *info, fid_pep **out, void *)
{
	static fi_ops ops = plain_ops(pep_close);
	static fi_ops_cm cm{};
	cm.size = sizeof(cm);
	cm.listen = pep_listen;
	cm.reject = pep_reject;
	auto *p = new fake_pep;
	p->pep.fid = {FI_CLASS_PEP, nullptr, &ops};
	p->pep.cm = &cm;
	p->node = whole<fake_node>(f);
	sockaddr_in a{};
	std::memcpy(&a, info->src_addr, sizeof(a));
	p->where = {ntohl(a.sin_addr.s_addr), ntohs(a.sin_port)};
	*out = &p->pep;
	return 0;
}

int try_wait(fid_fabric *f, fid **, int)
{
	const auto *n = whole<fake_node>(f);
	return n->cq->done.empty() && n->eq->events.empty() ? FI_SUCCESS : -FI_EAGAIN;
}

int fabric_close(fid *f)
{
	auto *n = whole<fake_node>(f);
	FUZZ_CHECK(n->regions.empty()); // none outlives the machine
	if (n->info)
		fi_freeinfo(n->info);
	delete n;
	return 0;
}

void cut(connection &c, unsigned side)
{
	connection::end &e = c.ends[side];
	e.open = false;
	for (const passage &p : std::exchange(e.out, {}))
		if (p.context && e.ep)
			e.ep->node->complete(p.context, 0, 0, 0, FI_ECANCELED);
}

} // namespace

std::shared_ptr<connection> fake_network::connect(const sockaddr_in &from, const sockaddr_in &to,
						  std::vector<u8> text, fake_ep *ep)
{
	auto c = std::make_shared<connection>();
	c->from = from;
	c->to = to;
	c->asked = std::move(text);
	c->ends[0].ep = ep;
	c->as_handle.context = c.get();
	const u32 ip = ntohl(to.sin_addr.s_addr);
	const auto there = listeners.find({ip, ntohs(to.sin_port)});
	if (there == listeners.end() && ip != enemy_ip)
		return nullptr;
	connections.push_back(c);
	if (there == listeners.end())
		return c;
	fake_node *n = there->second;
	fi_info *info = fi_dupinfo(n->info);
	std::free(info->dest_addr);
	info->dest_addr = std::malloc(sizeof(from));
	info->dest_addrlen = sizeof(from);
	std::memcpy(info->dest_addr, &c->from, sizeof(from));
	info->handle = &c->as_handle;
	c->queued = true;
	n->tell(FI_CONNREQ, &n->pep->pep.fid, c->asked, info);
	return c;
}

void fake_network::take_up(connection &c, std::vector<u8> text)
{
	c.pending = false;
	c.answered = std::move(text);
	c.ends[0].open = c.ends[1].open = true;
	if (fake_ep *e = c.ends[0].ep)
		e->node->tell(FI_CONNECTED, &e->ep.fid, c.answered);
}

void fake_network::turn_down(connection &c)
{
	c.pending = false;
	if (fake_ep *e = c.ends[0].ep)
		e->node->tell_error(&e->ep.fid, FI_ECONNREFUSED);
}

bool fake_network::move(connection &c, unsigned side)
{
	connection::end &from = c.ends[side], &to = c.ends[1 - side];
	if (!from.open || from.out.empty())
		return false;
	fake_node *n = to.ep ? to.ep->node : nullptr;
	passage &next = from.out.front();
	if (to.open && n && !next.write && !next.read && n->receives.empty())
		return false;
	passage p = std::move(next);
	from.out.pop_front();
	if (p.read) {
		serve(c, side, p);
		return true;
	}
	for (const iovec &v : p.pieces) {
		const auto *b = static_cast<const u8 *>(v.iov_base);
		p.bytes.insert(p.bytes.end(), b, b + v.iov_len);
	}
	if (p.context && from.ep)
		from.ep->node->complete(p.context, p.write ? FI_WRITE : FI_SEND, 0, 0,
					to.open ? 0 : FI_ENOTCONN);
	if (!to.open)
		return true;
	if (!n) {
		to_enemy(c, side, p);
		return true;
	}
	if (!p.write) {
		const receive r = n->receives.front();
		n->receives.pop_front();
		const std::size_t length = std::min(r.length, p.bytes.size());
		if (length)
			std::memcpy(r.buffer, p.bytes.data(), length);
		n->complete(r.context, FI_RECV | (p.has_word ? FI_REMOTE_CQ_DATA : 0),
			    p.bytes.size(), p.word, length < p.bytes.size() ? FI_ETRUNC : 0);
		return true;
	}
	const auto it = n->regions.find(p.key);
	if (it == n->regions.end() || !(it->second->access & FI_REMOTE_WRITE) ||
	    p.address > it->second->length || p.bytes.size() > it->second->length - p.address) {
		break_off(c);
		return true;
	}
	if (!p.bytes.empty())
		std::memcpy(it->second->base + p.address, p.bytes.data(), p.bytes.size());
	if (p.has_word)
		n->complete(nullptr, FI_REMOTE_WRITE | FI_RMA | FI_REMOTE_CQ_DATA, 0, p.word, 0);
	return true;
}

// The answer to a read arrives at once. An enemy answers with anything.
void fake_network::serve(connection &c, unsigned side, const passage &p)
{
	connection::end &from = c.ends[side], &to = c.ends[1 - side];
	std::size_t length = 0;
	for (const iovec &v : p.pieces)
		length += v.iov_len;
	const u8 *source = nullptr;
	if (fake_node *n = to.open && to.ep ? to.ep->node : nullptr) {
		const auto it = n->regions.find(p.key);
		if (it != n->regions.end() && it->second->access & FI_REMOTE_READ &&
		    p.address <= it->second->length && length <= it->second->length - p.address)
			source = it->second->base + p.address;
	}
	const bool good = to.open && (source || !to.ep);
	for (const iovec &v : p.pieces) {
		if (good && source)
			std::memcpy(v.iov_base, std::exchange(source, source + v.iov_len),
				    v.iov_len);
		else if (good)
			std::memset(v.iov_base, 0xee, v.iov_len);
	}
	if (from.ep)
		from.ep->node->complete(p.context, FI_READ, 0, 0, good ? 0 : FI_ENOTCONN);
	if (to.open && !to.ep)
		to_enemy(c, side, p);
	if (!good)
		break_off(c);
}

void fake_network::hang_up(connection &c, unsigned side)
{
	connection::end &other = c.ends[1 - side];
	c.pending = false;
	if (!c.ends[side].open)
		return;
	cut(c, side);
	if (other.open && other.ep)
		other.ep->node->tell(FI_SHUTDOWN, &other.ep->ep.fid);
}

void fake_network::break_off(connection &c)
{
	for (const unsigned side : {0u, 1u})
		if (c.ends[side].open) {
			cut(c, side);
			if (fake_ep *e = c.ends[side].ep)
				e->node->tell(FI_SHUTDOWN, &e->ep.fid);
		}
}

void fake_network::forget_dead()
{
	std::erase_if(connections, [](const auto &c) {
		return !c->pending && !c->queued && !c->ends[0].open && !c->ends[1].open &&
		       c.use_count() == 1;
	});
}

} // namespace fuzz_net

using namespace fuzz_net;

// In place of libfabric's own: the linker finds these first.
extern "C" int fi_getinfo(uint32_t, const char *node, const char *service, uint64_t,
			  const fi_info *hints, fi_info **out)
{
	in_addr at{};
	if (hints->ep_attr->type != FI_EP_MSG ||
	    (node && ::inet_pton(AF_INET, node, &at) == 1 &&
	     (the_fabric->gone || ntohl(at.s_addr) == the_fabric->foreign_ip)))
		return -FI_ENODATA;
	fi_info *i = fi_dupinfo(hints);
	i->caps |= the_fabric->ordered ? FI_RMA_EVENT : 0;
	i->caps |= the_fabric->reads ? FI_READ | FI_REMOTE_READ : 0;
	i->addr_format = FI_SOCKADDR_IN;
	i->ep_attr->max_msg_size = 3000;
	i->tx_attr->inject_size = 128;
	i->tx_attr->iov_limit = 4;
	i->tx_attr->msg_order =
		FI_ORDER_SAS | FI_ORDER_SAW | (the_fabric->ordered ? FI_ORDER_WAW : 0);
	i->rx_attr->msg_order = i->tx_attr->msg_order;
	i->domain_attr->mr_mode = 0;
	i->domain_attr->cq_data_size = the_fabric->wide ? 8 : 4;
	i->domain_attr->mr_key_size = 8;
	i->domain_attr->max_ep_srx_ctx = 16;
	if (node) {
		auto *a = static_cast<sockaddr_in *>(std::calloc(1, sizeof(sockaddr_in)));
		a->sin_family = AF_INET;
		::inet_pton(AF_INET, node, &a->sin_addr);
		a->sin_port = htons(static_cast<u16>(std::atoi(service)));
		i->src_addr = a;
		i->src_addrlen = sizeof(*a);
	}
	*out = i;
	return 0;
}

extern "C" int fi_fabric(fi_fabric_attr *, fid_fabric **out, void *)
{
	static fi_ops ops = plain_ops(fabric_close);
	static fi_ops_fabric fabric_ops{};
	fabric_ops.size = sizeof(fabric_ops);
	fabric_ops.domain = open_domain;
	fabric_ops.passive_ep = open_pep;
	fabric_ops.eq_open = open_eq;
	fabric_ops.trywait = try_wait;
	auto *n = new fake_node;
	n->fabric.fid = {FI_CLASS_FABRIC, nullptr, &ops};
	n->fabric.ops = &fabric_ops;
	*out = &n->fabric;
	return 0;
}
