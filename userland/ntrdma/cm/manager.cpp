// SPDX-License-Identifier: MIT
// manager.cpp - the thread that reads connections' sockets and makes events; see manager.hpp.
#include "userland/ntrdma/cm/manager.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "userland/include/coop/backlog.hpp"
#include "userland/ntrdma/verbs/unpolled.hpp"
#include "userland/ntrdma/window/greeting.hpp"

namespace coop::ntrdma::cm
{

namespace
{

// Reasons of InfiniBand's connection manager.
constexpr std::uint32_t rej_taken_back = 4, rej_no_such_service = 8;
constexpr auto patience = std::chrono::seconds{5};
constexpr int call_again_ms = 10;
constexpr int look_again_ms = 1000; // at silent callers
constexpr int listen_again_ms = 50; // after a lack of descriptors
constexpr auto polls_within = std::chrono::seconds{1};
constexpr int polled_ms = 1; // between looks whether it has

/// What a program learns of a peer that has datagrams. The event's data are in place.
void fill_datagram(event &e, const message &m)
{
	rdma_ud_param &p = e.e.param.ud;
	p.private_data = m.private_length ? e.data : nullptr;
	p.private_data_len = m.private_length;
	p.qp_num = m.qpn;
	p.qkey = RDMA_UDP_QKEY;
}

} // namespace

manager &manager::instance()
{
	// Of this process, also after a fork. Never destroyed: its thread lives to the end.
	static std::mutex guard;
	static manager *one;
	static pid_t owner;
	std::scoped_lock held{guard};
	if (!one || owner != getpid()) {
		one = new manager;
		owner = getpid();
	}
	return *one;
}

manager::manager() :
	epoll_{epoll_create1(EPOLL_CLOEXEC)},
	wake_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)}
{
	epoll_event e{};
	e.events = EPOLLIN;
	epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &e);
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	thread_ = std::thread{[this] { run(); }};
	pthread_sigmask(SIG_SETMASK, &before, nullptr);
	thread_.detach();
}

ibv_context *manager::device()
{
	if (device_)
		return device_;
	ibv_device **list = ibv_get_device_list(nullptr);
	if (!list)
		return nullptr;
	device_ = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	return device_;
}

bool manager::give_device(identifier *i)
{
	if (!device() || (!domain_ && !(domain_ = ibv_alloc_pd(device_))))
		return false;
	i->id.verbs = device_;
	i->id.pd = domain_;
	return true;
}

void manager::add(identifier *i)
{
	all_.push_back(i);
}

void manager::remove(identifier *i)
{
	std::erase(all_, i);
	unwatch(i);
}

void manager::unwatch(const identifier *i)
{
	for (const unique_fd *fd : {&i->socket, &i->far_listener})
		if (*fd)
			epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd->get(), nullptr);
}

void manager::watch(identifier *i)
{
	epoll_event e{};
	e.events = EPOLLIN;
	e.data.ptr = i;
	for (const unique_fd *fd : {&i->socket, &i->far_listener})
		if (*fd)
			epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd->get(), &e);
}

std::vector<identifier *> manager::unknown_of(const identifier *listener) const
{
	std::vector<identifier *> all;
	for (identifier *i : all_)
		if (i->listener == listener)
			all.push_back(i);
	for (const event *e : of(listener->id.channel)->ready)
		if (e->about == listener && e->e.event == RDMA_CM_EVENT_CONNECT_REQUEST)
			all.push_back(of(e->e.id));
	return all;
}

event *manager::make(identifier *i, rdma_cm_event_type type, int status)
{
	auto *e = new event{};
	e->e.id = &i->id;
	e->e.event = type;
	e->e.status = status;
	e->about = i;
	return e;
}

void manager::push(event *e)
{
	rdma_event_channel *c = e->about->id.channel;
	of(c)->ready.push_back(e);
	event_count::add(c->fd);
}

std::vector<event *> manager::take_unread(rdma_event_channel *c,
					  const std::vector<identifier *> &about)
{
	std::vector<event *> all;
	std::erase_if(of(c)->ready, [&](event *e) {
		bool is = std::find(about.begin(), about.end(), e->about) != about.end();
		if (is) {
			all.push_back(e);
			of(c)->unread.erase(c->fd);
		}
		return is;
	});
	return all;
}

bool manager::send(identifier *i, kind what, const rdma_conn_param *p, std::uint32_t reason)
{
	return !say(i->socket.get(), compose(i, what, p, reason));
}

message manager::compose(identifier *i, kind what, const rdma_conn_param *p, std::uint32_t reason)
{
	message m{};
	m.what = what;
	m.reason = reason;
	m.from = i->id.route.addr.src_storage;
	m.to = i->id.route.addr.dst_storage;
	if (p) {
		m.qpn = i->id.qp ? i->id.qp->qp_num : p->qp_num;
		m.responder_resources = p->responder_resources;
		m.initiator_depth = p->initiator_depth;
		m.rnr_retry = p->rnr_retry_count;
		m.private_length = static_cast<std::uint8_t>(
			std::min<std::size_t>(p->private_data_len, private_most));
		if (m.private_length)
			std::memcpy(m.data, p->private_data, m.private_length);
	}
	return m;
}

/// False if nobody listens, or the call has failed.
bool manager::try_to_call(identifier *i)
{
	if (i->by_tcp)
		return try_to_call_far(i);
	sockaddr *to = &i->id.route.addr.dst_addr;
	i->why = 0;
	i->socket = call(listener_name(i->id.ps, to, false));
	if (!i->socket)
		i->socket = call(listener_name(i->id.ps, to, true));
	if (!i->socket)
		return false;
	i->why = say(i->socket.get(), i->request);
	if (i->why) { // the listener may be gone again
		i->socket = unique_fd{};
		return false;
	}
	i->calling = false;
	watch(i);
	return true;
}

void manager::connect(identifier *i)
{
	if (try_to_call(i))
		return;
	i->calling = true;
	i->patience = std::chrono::steady_clock::now() + patience;
	std::uint64_t one = 1;
	[[maybe_unused]] ssize_t n = write(wake_.get(), &one, sizeof(one));
}

/// Programs connect as soon as they know that their peer will listen: on a fabric, connecting takes
/// longer than that. So a client asks for a while before it is refused.
void manager::call_again()
{
	auto now = std::chrono::steady_clock::now();
	for (identifier *i : all_)
		if (i->calling && !try_to_call(i) && now > i->patience) {
			i->calling = false;
			i->socket = unique_fd{};
			i->at = stage::ended;
			i->told_end = true;
			if ((!i->by_tcp && !i->why) || i->why == -ECONNREFUSED)
				push(i, RDMA_CM_EVENT_REJECTED, rej_no_such_service);
			else
				push(i, RDMA_CM_EVENT_UNREACHABLE,
				     i->why == -EAGAIN ? -ETIMEDOUT : i->why);
		}
}

void manager::run()
{
	int timeout = -1;
	for (;;) {
		epoll_event e[16];
		int n = epoll_wait(epoll_.get(), e, 16, timeout);
		std::scoped_lock held{lock};
		call_again();
		tend_silent();
		listen_again();
		for (int k = 0; k < n; k++) {
			std::uint64_t count;
			if (!e[k].data.ptr) {
				[[maybe_unused]] ssize_t got =
					read(wake_.get(), &count, sizeof(count));
				continue;
			}
			auto *i = static_cast<identifier *>(e[k].data.ptr);
			// It may have been destroyed since.
			if (std::find(all_.begin(), all_.end(), i) != all_.end() && i->socket)
				readable(i);
		}
		tell_ends();
		timeout = patience_left();
	}
}

/// Milliseconds until something has to be done unasked; -1: never.
int manager::patience_left() const
{
	int left = -1;
	const auto within = [&left](int ms) { left = left < 0 ? ms : std::min(left, ms); };
	for (const identifier *i : all_) {
		if (i->untold != decltype(i->untold){})
			within(polled_ms);
		if (i->calling)
			within(call_again_ms);
		if (i->deaf)
			within(listen_again_ms);
		if (i->listener && i->by_tcp)
			within(look_again_ms);
	}
	return left;
}

void manager::readable(identifier *i)
{
	if (i->at == stage::listening)
		return accept(i);
	for (;;) {
		message m;
		int rc = hear(i->socket.get(), i->text, m);
		if (!rc)
			return;
		if (rc < 0)
			return hung_up(i);
		take(i, m);
		if (std::find(all_.begin(), all_.end(), i) == all_.end() || !i->socket)
			return;
	}
}

/// A connection to a listener becomes an identifier when its REQ arrives.
void manager::accept(identifier *listener)
{
	unique_fd fd{
		accept4(listener->socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
	int error = fd ? 0 : errno;
	if (fd && process_behind(fd.get()))
		take_caller(listener, std::move(fd));
	if (listener->far_listener && !keeps_callers_waiting(error))
		error = -accept_far(listener);
	if (!keeps_callers_waiting(error))
		return;
	unwatch(listener);
	listener->deaf = true;
	listener->again =
		std::chrono::steady_clock::now() + std::chrono::milliseconds{listen_again_ms};
}

void manager::listen_again()
{
	auto now = std::chrono::steady_clock::now();
	for (identifier *i : all_)
		if (i->deaf && now >= i->again) {
			i->deaf = false;
			watch(i);
		}
}

identifier *manager::take_caller(identifier *listener, unique_fd fd)
{
	auto *i = new identifier{};
	i->id.channel = listener->id.channel;
	i->id.context = listener->id.context;
	i->id.ps = listener->id.ps;
	i->id.qp_type = listener->id.qp_type;
	i->id.port_num = 1;
	give_device(i);
	i->at = stage::requested;
	i->socket = std::move(fd);
	i->listener = listener;
	add(i);
	watch(i);
	return i;
}

void manager::take(identifier *i, const message &m)
{
	auto fill = [&](event *e) {
		std::memcpy(e->data, m.data, m.private_length);
		i->peer_qpn = m.qpn;
		if (is_unconnected(i)) {
			fill_datagram(*e, m);
			return push(e);
		}
		rdma_conn_param &p = e->e.param.conn;
		p.private_data = m.private_length ? e->data : nullptr;
		p.private_data_len = m.private_length;
		p.responder_resources = m.initiator_depth;
		p.initiator_depth = m.responder_resources;
		p.rnr_retry_count = m.rnr_retry;
		p.qp_num = m.qpn;
		push(e);
	};
	switch (m.what) {
	case kind::req:
	case kind::find: {
		bool fits = is_unconnected(i) == (m.what == kind::find);
		if (i->at != stage::requested || !i->listener || !fits)
			return hung_up(i);
		identifier *listener = i->listener;
		if (std::find(all_.begin(), all_.end(), listener) == all_.end())
			return hung_up(i);
		// The host that it claims to be has to have sent it.
		if (i->by_tcp &&
		    ip_of(reinterpret_cast<const sockaddr *>(&m.from)) != i->by_tcp->to)
			return hung_up(i);
		i->listener = nullptr;
		i->id.route.addr.src_storage = m.to;
		i->id.route.addr.dst_storage = m.from;
		event *e = make(i, RDMA_CM_EVENT_CONNECT_REQUEST);
		e->e.listen_id = &listener->id;
		e->about = listener;
		return fill(e);
	}
	case kind::rep: {
		if (i->at != stage::connecting || is_unconnected(i) ||
		    std::exchange(i->replied, true))
			return hung_up(i);
		event *e = make(i, i->id.qp ? RDMA_CM_EVENT_ESTABLISHED
					    : RDMA_CM_EVENT_CONNECT_RESPONSE);
		e->replies = i->id.qp != nullptr;
		return fill(e);
	}
	case kind::found: {
		if (i->at != stage::connecting || !is_unconnected(i))
			return hung_up(i);
		event *e = make(i, RDMA_CM_EVENT_ESTABLISHED);
		if (address_peer(i, &e->e.param.ud.ah_attr)) {
			e->e.event = RDMA_CM_EVENT_CONNECT_ERROR;
			e->e.status = -errno;
		}
		i->at = stage::established;
		return fill(e);
	}
	case kind::rtu:
		if (i->at != stage::accepted)
			return hung_up(i);
		i->at = stage::established;
		return push(i, RDMA_CM_EVENT_ESTABLISHED);
	case kind::rej: {
		if (i->at != stage::connecting)
			return hung_up(i);
		i->at = stage::ended;
		i->told_end = true;
		return fill(make(i, RDMA_CM_EVENT_REJECTED, static_cast<int>(m.reason)));
	}
	case kind::dreq:
		return hung_up(i);
	}
	hung_up(i);
}

/// The peer disconnected, or is gone. The socket is closed; the end is told once.
void manager::hung_up(identifier *i)
{
	epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, i->socket.get(), nullptr);
	i->socket = unique_fd{};
	if (i->listener) {
		// It never said what it wants, and no program knows of it.
		std::erase(all_, i);
		delete i;
		return;
	}
	// Datagrams need no connection: the peer only closes what the question came by.
	bool answered = is_unconnected(i) && i->at != stage::connecting;
	if (i->told_end || answered) {
		// Nothing is left to tell.
	} else if (i->at == stage::established || i->at == stage::accepted) {
		i->untold = std::chrono::steady_clock::now() + polls_within;
	} else {
		i->told_end = true;
		if (i->at == stage::requested) // as Linux: the caller takes its request back
			push(i, RDMA_CM_EVENT_REJECTED, rej_taken_back);
		else
			push(i, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
	}
	i->at = stage::ended;
}

/// Programs take the end of a connection for the end of its messages: libfabric destroys the queue
/// pair at once, and with it what nobody has polled. On a fabric this news comes long after the
/// last message. So it waits until the program has polled that.
void manager::tell_ends()
{
	const auto now = std::chrono::steady_clock::now();
	for (identifier *i : all_) {
		if (i->untold == decltype(i->untold){})
			continue;
		ibv_qp *const pair = __atomic_load_n(&i->id.qp, __ATOMIC_ACQUIRE);
		if (!i->told_end && now < i->untold && pair &&
		    coop_verbs_unpolled(i->id.verbs, pair))
			continue;
		i->untold = {};
		if (!i->told_end)
			push(i, RDMA_CM_EVENT_DISCONNECTED);
		i->told_end = true;
	}
}

} // namespace coop::ntrdma::cm
