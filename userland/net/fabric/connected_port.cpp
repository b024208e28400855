// SPDX-License-Identifier: MIT
// connected_port.cpp - see connected_port.hpp.
#include "connected_port.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sys/epoll.h>
#include <unistd.h>

namespace coop::net::fabric
{

namespace
{

// Room for an event with all data that a peer may attach.
constexpr std::size_t event_size = sizeof(fi_eq_cm_entry) + 256;
// Calls of poll() without arm() in between; each stands for thousands of the machine's progress().
constexpr unsigned unarmed_most = 16;

int watch(int epoll, fid &f)
{
	int fd = -1;
	if (int r = fi_control(&f, FI_GETWAIT, &fd))
		return r;
	epoll_event e{EPOLLIN, {}};
	return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) ? -errno : 0;
}

// Copies an address into an fi_info, which then owns it.
bool put(const socket_address &a, void *&at, std::size_t &size)
{
	void *copy = std::malloc(a.size);
	if (!copy)
		return false;
	std::memcpy(copy, &a.storage, a.size);
	std::free(at);
	at = copy;
	size = a.size;
	return true;
}

} // namespace

connected_port::~connected_port()
{
	// libfabric never frees requests without an answer, so reject them.
	alignas(fi_eq_cm_entry) std::byte text[event_size];
	auto &e = *reinterpret_cast<fi_eq_cm_entry *>(text);
	std::uint32_t event = 0;
	for (ssize_t r = 1; pep_ && r > 0;) {
		r = fi_eq_read(eq_.get(), &event, text, sizeof(text), 0);
		fi_eq_err_entry error{};
		if (r == -FI_EAVAIL)
			r = fi_eq_readerr(eq_.get(), &error, 0);
		else if (r > 0 && event == FI_CONNREQ)
			unanswered_.push_back(info_ptr(e.info)->handle);
	}
	for (fid_t f : unanswered_)
		(void)fi_reject(pep_.get(), f, nullptr, 0);
	if (fd_ >= 0)
		::close(fd_);
}

int connected_port::start(const address &own)
{
	const port_list l = ports_of(own);
	int r = -EADDRINUSE;
	for (unsigned n = 0; n < l.count && r == -EADDRINUSE; n++)
		r = listen(own, l.ports[n]);
	return r;
}

int connected_port::open(const address &own)
{
	info_ = provider_.at(own);
	if (!info_)
		return -ENOENT; // an address of the host, but not of the device
	info_->domain_attr->threading = provider_.threading();
	sockets_ = events_->polled() && provider_.name() == "tcp";
	if (int r = base_.open(*info_, sockets_ ? FI_WAIT_POLLFD : FI_WAIT_FD))
		return r;
	std::vector<pollfd> now;
	fi_cq_data_entry none;
	// later libfabric versions' tcp always reports a single descriptor, which shows nothing
	if (sockets_ &&
	    ((void)fi_cq_read(base_.queue.get(), &none, 1), list_sockets(now) || now.size() < 2)) {
		sockets_ = false;
		if (int r = base_.open_queue(FI_WAIT_FD))
			return r;
	}
	fi_eq_attr eq_attr{};
	eq_attr.wait_obj = FI_WAIT_FD;
	fid_fabric *fabric = base_.fabric.get();
	if (int r = take(eq_, [&](auto **o) { return fi_eq_open(fabric, &eq_attr, o, nullptr); }))
		return r;
	fid_domain *domain = base_.domain.get();
	if (int r = take(srx_, [&](auto **o) {
		    return fi_srx_context(domain, info_->rx_attr, o, nullptr);
	    }))
		return r;
	fd_ = ::epoll_create1(EPOLL_CLOEXEC);
	if (fd_ < 0)
		return -errno;
	if (int r = watch(fd_, eq_->fid))
		return r;
	return sockets_ ? 0 : watch(fd_, base_.queue->fid);
}

// The sockets that libfabric polled when it was last asked for completions.
int connected_port::list_sockets(std::vector<pollfd> &out) const
{
	fi_wait_pollfd list{};
	int r;
	out.resize(watched_.size() + 8);
	do {
		out.resize(std::max(out.size(), list.nfds));
		list.nfds = out.size();
		list.fd = out.data();
		r = fi_control(&base_.queue->fid, FI_GETWAIT, &list);
	} while (r == -FI_ETOOSMALL && list.nfds > out.size());
	out.resize(r ? 0 : list.nfds);
	return r;
}

// From now on fd_ watches all of them.
int connected_port::watch_sockets()
{
	std::vector<pollfd> now;
	if (int r = list_sockets(now))
		return r;
	// The first descriptor signals a change of the list, and libfabric 1.17 never resets it
	// unless a thread waits by libfabric's own means.
	if (!now.empty() && ::poll(now.data(), 1, 0) > 0)
		now.erase(now.begin());
	std::sort(now.begin(), now.end(),
		  [](const pollfd &a, const pollfd &b) { return a.fd < b.fd; });
	int r = 0;
	auto old = watched_.begin();
	for (const pollfd &p : now) {
		for (; old != watched_.end() && old->fd < p.fd; old++)
			::epoll_ctl(fd_, EPOLL_CTL_DEL, old->fd, nullptr);
		const bool known = old != watched_.end() && old->fd == p.fd;
		if (known && old++->events == p.events)
			continue;
		epoll_event e{static_cast<std::uint32_t>(p.events), {}}; // the bits are the same
		if (::epoll_ctl(fd_, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, p.fd, &e))
			r = -errno;
	}
	for (; old != watched_.end(); old++)
		::epoll_ctl(fd_, EPOLL_CTL_DEL, old->fd, nullptr);
	watched_.swap(now);
	unarmed_ = 0;
	// If some could not be watched, look at the sockets periodically.
	stale_ = r ? events_->now() + std::chrono::milliseconds(1) : never;
	return 0;
}

// Wakes a sleeping thread, which then lists the sockets again.
void connected_port::forget_sockets()
{
	if (watched_.empty())
		return;
	for (const pollfd &p : watched_)
		::epoll_ctl(fd_, EPOLL_CTL_DEL, p.fd, nullptr);
	watched_.clear();
	stale_ = time_point::min();
}

// Once the socket is closed, another socket may get its number.
void connected_port::drop(handle<fid_ep> &ep)
{
	if (!ep)
		return;
	forget_sockets();
	ep.reset();
}

int connected_port::listen(const address &own, std::uint16_t port)
{
	info_ptr info(fi_dupinfo(info_.get()));
	if (!info || !put(at_port(own, port), info->src_addr, info->src_addrlen))
		return -ENOMEM;
	fid_pep *pep = nullptr;
	int r = fi_passive_ep(base_.fabric.get(), info.get(), &pep, nullptr);
	if (r)
		return r;
	handle<fid_pep> guard(pep);
	r = fi_pep_bind(pep, &eq_->fid, 0);
	if (!r)
		r = fi_listen(pep);
	if (!r)
		pep_ = std::move(guard);
	return r;
}

// Makes the end point on which the link will send.
int connected_port::make(link &l, fi_info &info, handle<fid_ep> &out)
{
	fid_domain *domain = base_.domain.get();
	if (int r = take(out, [&](auto **o) { return fi_endpoint(domain, &info, o, &l); }))
		return r;
	fid_ep *ep = out.get();
	int r = fi_ep_bind(ep, &eq_->fid, 0);
	if (!r)
		r = bind_queue(*ep, *base_.queue);
	if (!r)
		r = fi_ep_bind(ep, &srx_->fid, 0);
	return r ? r : fi_enable(ep);
}

void connected_port::abandon(link &l)
{
	drop(static_cast<half &>(*l.side).ep);
}

int connected_port::attempt(link &l)
{
	half &h = static_cast<half &>(*l.side);
	drop(h.ep);
	info_ptr info(fi_dupinfo(info_.get()));
	if (!info)
		return -ENOMEM;
	const socket_address to = at_port(l.address, h.ports.ports[h.at]);
	if (!put(to, info->dest_addr, info->dest_addrlen))
		return -ENOMEM;
	info->handle = nullptr;
	if (int r = make(l, *info, h.ep))
		return r;
	const auto text = encode(events_->greeting(l));
	return fi_connect(h.ep.get(), &to.storage, text.data(), text.size());
}

void connected_port::close(link &l)
{
	end_attempt(l);
	l.ep = nullptr;
	if (l.side)
		drop(static_cast<half &>(*l.side).ep);
}

unsigned connected_port::poll()
{
	const unsigned n = look();
	// There may be new sockets. If poll() has been called often since arm(), no thread sleeps.
	if (n)
		forget_sockets();
	if (++unarmed_ >= unarmed_most) {
		forget_sockets();
		stale_ = never;
	}
	return n;
}

// Handles events of the connections.
unsigned connected_port::look()
{
	if (!eq_)
		return 0;
	alignas(fi_eq_cm_entry) std::byte text[event_size];
	auto &e = *reinterpret_cast<fi_eq_cm_entry *>(text);
	unsigned n = 0;
	for (;; n++) {
		std::uint32_t event = 0;
		const ssize_t r = fi_eq_read(eq_.get(), &event, text, sizeof(text), 0);
		if (r == -FI_EAVAIL) {
			on_error();
			continue;
		}
		if (r == -FI_ENODEV)
			events_->broken(-FI_ENODEV);
		if (r < static_cast<ssize_t>(sizeof(e)))
			return n;
		const std::size_t size = static_cast<std::size_t>(r) - sizeof(e);
		if (event == FI_CONNREQ)
			on_request(e, size);
		else if (event == FI_CONNECTED)
			on_connected(e, size);
		else if (event == FI_SHUTDOWN && e.fid->fclass == FI_CLASS_EP) // else of a request
			events_->unlinked(*static_cast<link *>(e.fid->context), -ECONNRESET);
	}
}

void connected_port::on_request(fi_eq_cm_entry &e, std::size_t size)
{
	info_ptr info(e.info);
	if (events_->mute()) {
		unanswered_.push_back(info->handle);
		return;
	}
	hello h;
	link *l = nullptr;
	// The address that the peer states must match where the request comes from.
	if (decode({reinterpret_cast<const std::byte *>(e.data), size}, h) &&
	    (!info->dest_addr || same_ip(h.from, *static_cast<const sockaddr *>(info->dest_addr))))
		l = events_->admit(h);
	if (!l) {
		(void)fi_reject(pep_.get(), info->handle, nullptr, 0);
		return;
	}
	auto side = std::make_unique<half>();
	int r = make(*l, *info, side->ep);
	if (!side->ep)
		(void)fi_reject(pep_.get(), info->handle, nullptr, 0);
	sockaddr_storage from{};
	std::size_t from_size = sizeof(from);
	if (!r && fi_getpeer(side->ep.get(), &from, &from_size) == 0 &&
	    !same_ip(h.from, reinterpret_cast<const sockaddr &>(from)))
		r = -EACCES;
	if (!r) {
		const auto text = encode(events_->greeting(*l));
		r = fi_accept(side->ep.get(), text.data(), text.size());
	}
	l->ep = side->ep.get();
	l->side = std::move(side);
	if (r)
		events_->unlinked(*l, -ECONNRESET);
}

void connected_port::on_connected(const fi_eq_cm_entry &e, std::size_t size)
{
	link &l = *static_cast<link *>(e.fid->context);
	half &h = static_cast<half &>(*l.side);
	if (h.turn != never) {
		hello theirs;
		if (!decode({reinterpret_cast<const std::byte *>(e.data), size}, theirs) ||
		    !events_->accept(l, theirs))
			return refused(l, EPROTO);
		end_attempt(l);
		l.ep = h.ep.get();
	}
	events_->linked(l);
}

void connected_port::on_error()
{
	fi_eq_err_entry e{};
	if (fi_eq_readerr(eq_.get(), &e, 0) < 0 || !e.fid)
		return;
	// Other errors of the passive end point belong to a failed request.
	if (e.fid->fclass == FI_CLASS_PEP && e.err == FI_ENODEV)
		return events_->broken(-FI_ENODEV);
	if (e.fid->fclass != FI_CLASS_EP)
		return;
	link &l = *static_cast<link *>(e.fid->context);
	if (!l.side || l.side->turn == never)
		return events_->unlinked(l, -ECONNRESET);
	refused(l, e.err);
}

bool connected_port::arm()
{
	fid *both[] = {&base_.queue->fid, &eq_->fid};
	return fi_trywait(base_.fabric.get(), both, 2) == FI_SUCCESS &&
	       (!sockets_ || watch_sockets() == 0);
}

} // namespace coop::net::fabric
