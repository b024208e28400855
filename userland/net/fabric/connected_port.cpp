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

constexpr std::chrono::milliseconds give_up_after{4500};
// An event with all that a peer may say along with it.
constexpr std::size_t event_size = sizeof(fi_eq_cm_entry) + 256;

int watch(int epoll, fid &f)
{
	int fd = -1;
	if (int r = fi_control(&f, FI_GETWAIT, &fd))
		return r;
	epoll_event e{EPOLLIN, {}};
	return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) ? -errno : 0;
}

// Into an fi_info, which owns it.
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

connected_port::connected_port(const provider &p, events &e) : provider_(p), events_(e) {}

connected_port::~connected_port()
{
	// What is asked for and never answered libfabric would keep.
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
	own_ = own;
	// Once: with another port of the same host the core comes again.
	if (fd_ < 0)
		if (int r = open(own))
			return r;
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
		return -EADDRNOTAVAIL;
	info_->domain_attr->threading = provider_.threading();
	if (int r = base_.open(*info_, FI_WAIT_FD))
		return r;
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
	return watch(fd_, base_.queue->fid);
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

// An end point that the link will send on.
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

int connected_port::connect(link &l)
{
	auto h = std::make_unique<half>();
	h->ports = ports_of(l.address);
	h->left = (1u << h->ports.count) - 1;
	h->give_up = events_.now() + give_up_after;
	l.side = std::move(h);
	connecting_.push_back(&l);
	try_next(l);
	return 0;
}

// From the port `at` on, and round.
void connected_port::try_next(link &l)
{
	half &h = static_cast<half &>(*l.side);
	for (; h.left; h.at = (h.at + 1) % h.ports.count) {
		const unsigned bit = 1u << h.at;
		if (!(h.left & bit))
			continue;
		if (attempt(l) == 0) {
			h.next = h.left == bit
					 ? h.give_up
					 : std::min(h.give_up, events_.now() + give_up_after / 4);
			return;
		}
		h.left &= ~bit;
	}
	h.ep.reset();
	forget(l);
	events_.unlinked(l, -ECONNREFUSED);
}

// The one that was tried is not the peer.
void connected_port::refused(link &l)
{
	half &h = static_cast<half &>(*l.side);
	h.left &= ~(1u << h.at);
	try_next(l);
}

int connected_port::attempt(link &l)
{
	half &h = static_cast<half &>(*l.side);
	h.ep.reset();
	info_ptr info(fi_dupinfo(info_.get()));
	if (!info)
		return -ENOMEM;
	const socket_address to = at_port(l.address, h.ports.ports[h.at]);
	if (!put(to, info->dest_addr, info->dest_addrlen))
		return -ENOMEM;
	info->handle = nullptr;
	if (int r = make(l, *info, h.ep))
		return r;
	const auto text = encode(events_.greeting(l));
	return fi_connect(h.ep.get(), &to.storage, text.data(), text.size());
}

void connected_port::forget(link &l)
{
	std::erase(connecting_, &l);
}

void connected_port::close(link &l)
{
	forget(l);
	l.ep = nullptr;
	if (l.side)
		static_cast<half &>(*l.side).ep.reset();
}

unsigned connected_port::poll()
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
		if (r < static_cast<ssize_t>(sizeof(e)))
			return n;
		const std::size_t size = static_cast<std::size_t>(r) - sizeof(e);
		if (event == FI_CONNREQ)
			on_request(e, size);
		else if (event == FI_CONNECTED)
			on_connected(e, size);
		else if (event == FI_SHUTDOWN)
			events_.unlinked(*static_cast<link *>(e.fid->context), -ECONNRESET);
	}
}

void connected_port::on_request(fi_eq_cm_entry &e, std::size_t size)
{
	info_ptr info(e.info);
	if (events_.mute()) {
		unanswered_.push_back(info->handle);
		return;
	}
	hello h;
	link *l = nullptr;
	// Who it says it is has to be where it comes from.
	if (decode({reinterpret_cast<const std::byte *>(e.data), size}, h) &&
	    (!info->dest_addr || same_ip(h.from, *static_cast<const sockaddr *>(info->dest_addr))))
		l = events_.admit(h);
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
		const auto text = encode(events_.greeting(*l));
		r = fi_accept(side->ep.get(), text.data(), text.size());
	}
	l->ep = side->ep.get();
	l->side = std::move(side);
	if (r)
		events_.unlinked(*l, -ECONNRESET);
}

void connected_port::on_connected(const fi_eq_cm_entry &e, std::size_t size)
{
	link &l = *static_cast<link *>(e.fid->context);
	half &h = static_cast<half &>(*l.side);
	if (std::find(connecting_.begin(), connecting_.end(), &l) != connecting_.end()) {
		hello theirs;
		if (!decode({reinterpret_cast<const std::byte *>(e.data), size}, theirs) ||
		    !events_.accept(l, theirs))
			return refused(l);
		forget(l);
		l.ep = h.ep.get();
	}
	events_.linked(l);
}

void connected_port::on_error()
{
	fi_eq_err_entry e{};
	if (fi_eq_readerr(eq_.get(), &e, 0) < 0 || !e.fid || e.fid->fclass != FI_CLASS_EP)
		return;
	link &l = *static_cast<link *>(e.fid->context);
	if (std::find(connecting_.begin(), connecting_.end(), &l) == connecting_.end())
		return events_.unlinked(l, -ECONNRESET);
	refused(l);
}

bool connected_port::arm()
{
	fid *both[] = {&base_.queue->fid, &eq_->fid};
	return fi_trywait(base_.fabric.get(), both, 2) == FI_SUCCESS;
}

time_point connected_port::deadline() const
{
	time_point t = never;
	for (const link *l : connecting_)
		t = std::min(t, static_cast<const half &>(*l->side).next);
	return t;
}

void connected_port::expire(time_point now)
{
	const std::vector<link *> all = connecting_;
	for (link *l : all) {
		half &h = static_cast<half &>(*l->side);
		if (h.next > now)
			continue;
		if (now >= h.give_up) {
			h.ep.reset();
			forget(*l);
			events_.unlinked(*l, -ECONNREFUSED);
			continue;
		}
		h.at = (h.at + 1) % h.ports.count;
		try_next(*l);
	}
}

} // namespace coop::net::fabric
