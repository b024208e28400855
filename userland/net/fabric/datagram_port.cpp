// SPDX-License-Identifier: MIT
// datagram_port.cpp - see datagram_port.hpp.
#include "datagram_port.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "coop/backlog.hpp"

namespace coop::net::fabric
{

namespace
{

constexpr std::size_t strangers_most = 64;
// After a lack of descriptors.
constexpr std::chrono::milliseconds listen_again{50};
// Between looks for completions that wake no thread.
constexpr std::chrono::milliseconds look_every{1};
// A host that has vanished is noticed after idle + count * interval seconds.
constexpr int keepalive_idle = 5, keepalive_interval = 2, keepalive_count = 5;

void set(int fd, int level, int name, int value)
{
	::setsockopt(fd, level, name, &value, sizeof(value));
}

unique_fd tcp_socket(const socket_address &of)
{
	return unique_fd(
		::socket(of.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

const sockaddr *generic(const socket_address &a)
{
	return reinterpret_cast<const sockaddr *>(&a.storage);
}

void keep_alive(int fd)
{
	set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	set(fd, IPPROTO_TCP, TCP_KEEPIDLE, keepalive_idle);
	set(fd, IPPROTO_TCP, TCP_KEEPINTVL, keepalive_interval);
	set(fd, IPPROTO_TCP, TCP_KEEPCNT, keepalive_count);
}

bool is_ip(std::uint32_t format)
{
	return format == FI_SOCKADDR || format == FI_SOCKADDR_IN || format == FI_SOCKADDR_IN6;
}

} // namespace

int datagram_port::prepare(const address &own, events &e)
{
	events_ = &e;
	own_address_ = own;
	info_ = provider_.at(own);
	if (!info_)
		return -ENOENT; // an address of the host, but not of the device
	info_->domain_attr->threading = provider_.threading();
	epoll_ = unique_fd(::epoll_create1(EPOLL_CLOEXEC));
	if (!epoll_)
		return -errno;
	int r = base_.open(*info_, FI_WAIT_FD);
	wakes_ = !r;
	if (r && base_.domain)
		r = base_.open_queue(FI_WAIT_NONE);
	return r ? r : reopen();
}

int datagram_port::reopen()
{
	fid_domain *domain = base_.domain.get();
	if (!base_.queue)
		if (int r = base_.open_queue(wakes_ ? FI_WAIT_FD : FI_WAIT_NONE))
			return r;
	fi_av_attr av_attr{};
	av_attr.type = info_->domain_attr->av_type == FI_AV_UNSPEC ? FI_AV_TABLE
								   : info_->domain_attr->av_type;
	if (int r = take(table_,
			 [&](auto **o) { return fi_av_open(domain, &av_attr, o, nullptr); }))
		return r;
	if (int r = take(ep_,
			 [&](auto **o) { return fi_endpoint(domain, info_.get(), o, nullptr); }))
		return r;
	int r = bind_queue(*ep_, *base_.queue);
	if (!r)
		r = fi_ep_bind(ep_.get(), &table_->fid, 0);
	if (!r)
		r = fi_enable(ep_.get());
	char name[name_most];
	std::size_t size = sizeof(name);
	if (!r)
		r = fi_getname(&ep_->fid, name, &size);
	if (r)
		return r;
	name_.assign(name, size);
	int fd = -1;
	if (wakes_ && (r = fi_control(&base_.queue->fid, FI_GETWAIT, &fd)))
		return r;
	if (wakes_ && (r = watch(fd, &base_, EPOLLIN)))
		return r;
	repeat_attempts(); // peers learn the new name
	return 0;
}

// The descriptor of the queue leaves epoll when it is closed: no child has it, and libfabric's is
// itself an epoll or a pipe that only this process reads.
void datagram_port::shut()
{
	int fd = -1;
	if (wakes_ && base_.queue && fi_control(&base_.queue->fid, FI_GETWAIT, &fd) == 0)
		::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
	ep_.reset();
	table_.reset();
	base_.queue.reset();
	names_.clear();
}

int datagram_port::start(const address &own)
{
	own_address_ = own;
	const port_list l = ports_of(own);
	for (unsigned n = 0; n < l.count; n++) {
		const socket_address at = at_port(own, l.ports[n]);
		listener_ = tcp_socket(at);
		if (!listener_)
			return -errno;
		set(listener_.get(), SOL_SOCKET, SO_REUSEADDR, 1);
		if (::bind(listener_.get(), generic(at), static_cast<socklen_t>(at.size)) == 0 &&
		    ::listen(listener_.get(), SOMAXCONN) == 0) {
			listening_ = true;
			return watch(listener_.get(), &listener_, EPOLLIN);
		}
		if (errno != EADDRINUSE)
			return -errno;
	}
	return -EADDRINUSE;
}

int datagram_port::watch(int fd, void *what, std::uint32_t events)
{
	epoll_event e{events, {}};
	e.data.ptr = what;
	return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &e) ? -errno : 0;
}

// Closing the socket is not enough: a child that the program has just forked also has it until it
// executes another program, and until then its events would still come.
void datagram_port::forget(half &h)
{
	if (h.socket)
		::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, h.socket.get(), nullptr);
	h.socket = unique_fd();
	h.heard.clear();
	h.greets = false;
}

int datagram_port::attempt(link &l)
{
	half &h = static_cast<half &>(*l.side);
	forget(h);
	h.link = &l;
	const socket_address from = at_port(own_address_, 0),
			     to = at_port(l.address, h.ports.ports[h.at]);
	h.socket = tcp_socket(to);
	if (!h.socket)
		return -errno;
	// The peer checks that the request comes from our address.
	set(h.socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
	if (::bind(h.socket.get(), generic(from), static_cast<socklen_t>(from.size)))
		return -errno;
	keep_alive(h.socket.get());
	if (::connect(h.socket.get(), generic(to), static_cast<socklen_t>(to.size)) &&
	    errno != EINPROGRESS)
		return -errno;
	return watch(h.socket.get(), &h, EPOLLOUT);
}

void datagram_port::abandon(link &l)
{
	forget(static_cast<half &>(*l.side));
}

// A few hundred bytes always fit.
int datagram_port::greet(half &h)
{
	const auto text = encode(events_->greeting(*h.link));
	std::string all(reinterpret_cast<const char *>(text.data()), text.size());
	all += static_cast<char>(name_.size() & 0xff);
	all += static_cast<char>(name_.size() >> 8);
	all += name_;
	h.greets = true;
	const ssize_t n = ::send(h.socket.get(), all.data(), all.size(), MSG_NOSIGNAL);
	return n == static_cast<ssize_t>(all.size()) ? 0 : n < 0 ? -errno : -EPIPE;
}

void datagram_port::catch_up(link &l)
{
	half *h = static_cast<half *>(l.side.get());
	if (h && h->socket && h->greets)
		heard(*h);
}

void datagram_port::close(link &l)
{
	half *h = static_cast<half *>(l.side.get());
	if (!h)
		return;
	end_attempt(l);
	if (const auto it = names_.find(h->name); it != names_.end() && --it->second.second == 0) {
		fi_av_remove(table_.get(), &it->second.first, 1, 0);
		names_.erase(it);
	}
	h->name.clear();
	forget(*h);
	l.ep = nullptr;
}

unsigned datagram_port::poll()
{
	epoll_event events[16];
	unsigned n = 0;
	const int count = epoll_ ? ::epoll_wait(epoll_.get(), events, 16, 0) : 0;
	for (int i = 0; i < count; i++) {
		void *what = events[i].data.ptr;
		if (what == &base_)
			continue; // completions
		n++;
		if (what == &listener_) {
			accept_all();
			continue;
		}
		react(*static_cast<half *>(what));
		// This may have freed one of the following events' objects.
		break;
	}
	mind_listener();
	return n;
}

// While too many connections have not sent a greeting, or there is no descriptor for one, further
// ones wait in the kernel and wake no thread.
void datagram_port::mind_listener()
{
	const bool room = strangers_.size() < strangers_most && deaf_until_ == never;
	if (!listener_ || room == listening_)
		return;
	const int r = room ? watch(listener_.get(), &listener_, EPOLLIN)
			   : ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
	if (!r)
		listening_ = room;
}

void datagram_port::accept_all()
{
	while (strangers_.size() < strangers_most) {
		auto h = std::make_unique<half>();
		h->socket = unique_fd(
			::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
		if (!h->socket) {
			if (keeps_callers_waiting(errno))
				deaf_until_ = events_->now() + listen_again;
			return;
		}
		keep_alive(h->socket.get());
		h->give_up = events_->now() + give_up_after;
		if (watch(h->socket.get(), h.get(), EPOLLIN) == 0)
			strangers_.push_back(std::move(h));
	}
}

void datagram_port::drop_stranger(half &h)
{
	forget(h);
	strangers_.remove_if([&h](const auto &s) { return s.get() == &h; });
}

void datagram_port::react(half &h)
{
	if (h.link && !h.greets)
		connected(h);
	else
		heard(h);
}

// The attempt has reached a listener, or failed.
void datagram_port::connected(half &h)
{
	int error = 0;
	socklen_t size = sizeof(error);
	::getsockopt(h.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
	if (!error)
		error = -greet(h);
	epoll_event e{EPOLLIN, {}};
	e.data.ptr = &h;
	if (!error && ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, h.socket.get(), &e))
		error = errno;
	if (error)
		refused(*h.link, error);
}

// @return 1: the greeting is complete; 0: not yet; -errno: the peer has gone or talks nonsense.
int datagram_port::receive(half &h, hello &out)
{
	char text[head + name_most];
	const ssize_t n = ::recv(h.socket.get(), text, sizeof(text), 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n <= 0)
		return n ? -errno : -ECONNRESET;
	if (!h.name.empty())
		return -EPROTO;
	h.heard.append(text, static_cast<std::size_t>(n));
	if (h.heard.size() < head)
		return 0;
	const auto at = [&h](std::size_t i) {
		return static_cast<std::size_t>(static_cast<unsigned char>(h.heard[i]));
	};
	const std::size_t length = at(hello::size) | at(hello::size + 1) << 8;
	if (length == 0 || length > name_most || h.heard.size() > head + length ||
	    !decode(std::as_bytes(std::span(h.heard)).first(hello::size), out))
		return -EPROTO;
	if (h.heard.size() < head + length)
		return 0;
	h.name = h.heard.substr(head);
	h.heard.clear();
	return 1;
}

// Handles input from the peer: its greeting, or the end.
void datagram_port::heard(half &h)
{
	hello theirs;
	const bool known = !h.name.empty();
	const int r = receive(h, theirs);
	if (r == 0)
		return;
	if (r == 1)
		return h.link ? answered(h, theirs) : asked(h, theirs);
	if (!h.link)
		drop_stranger(h);
	else if (known)
		events_->unlinked(*h.link, -ECONNRESET);
	else
		refused(*h.link, -r);
}

// The peer that this side has called greets.
void datagram_port::answered(half &h, const hello &theirs)
{
	link &l = *h.link;
	if (!events_->accept(l, theirs) || !pair(h, l.address)) {
		h.name.clear();
		return refused(l, EPROTO);
	}
	end_attempt(l);
	events_->linked(l);
}

// A stranger greets. The address that it states must match where its connection comes from.
void datagram_port::asked(half &h, const hello &theirs)
{
	if (events_->mute()) {
		h.name.clear(); // it waits for an answer
		return;
	}
	sockaddr_storage from{};
	socklen_t size = sizeof(from);
	const bool true_ip =
		::getpeername(h.socket.get(), reinterpret_cast<sockaddr *>(&from), &size) == 0 &&
		same_ip(theirs.from, reinterpret_cast<const sockaddr &>(from));
	link *l = true_ip ? events_->admit(theirs) : nullptr;
	if (!l)
		return drop_stranger(h);
	const auto it = std::find_if(strangers_.begin(), strangers_.end(),
				     [&h](const auto &s) { return s.get() == &h; });
	h.give_up = never;
	l->side = std::move(*it);
	strangers_.erase(it);
	h.link = l;
	if (!pair(h, l->address)) {
		h.name.clear();
		return events_->unlinked(*l, -ECONNRESET);
	}
	if (greet(h))
		return events_->unlinked(*l, -ECONNRESET);
	events_->linked(*l);
}

// Enters the peer's end point into the table. Names have one format, and an IP address in one is
// that of the peer.
bool datagram_port::pair(half &h, const address &of)
{
	const std::uint32_t format = info_->addr_format;
	if (format != FI_ADDR_STR && h.name.size() != name_.size())
		return false;
	if (is_ip(format)) {
		sockaddr_storage at{};
		std::memcpy(&at, h.name.data(), std::min(sizeof(at), h.name.size()));
		if (!same_ip(of, reinterpret_cast<const sockaddr &>(at)))
			return false;
	}
	auto [it, fresh] = names_.try_emplace(h.name, FI_ADDR_UNSPEC, 0);
	if (fresh &&
	    fi_av_insert(table_.get(), h.name.c_str(), 1, &it->second.first, 0, nullptr) != 1) {
		names_.erase(it);
		return false;
	}
	it->second.second++;
	h.link->ep = ep_.get();
	h.link->dest = it->second.first;
	return true;
}

bool datagram_port::arm()
{
	if (!wakes_) {
		look_at_ = events_->now() + look_every;
		return true;
	}
	fid *queue = &base_.queue->fid;
	return fi_trywait(base_.fabric.get(), &queue, 1) == FI_SUCCESS;
}

time_point datagram_port::deadline() const
{
	time_point t = std::min({look_at_, deaf_until_, attempts_deadline()});
	for (const auto &h : strangers_)
		t = std::min(t, h->give_up);
	return t;
}

void datagram_port::expire(time_point now)
{
	if (look_at_ <= now)
		look_at_ = never;
	if (deaf_until_ <= now)
		deaf_until_ = never;
	expire_attempts(now);
	strangers_.remove_if([this, now](const auto &h) {
		if (h->give_up > now)
			return false;
		forget(*h);
		return true;
	});
	mind_listener();
}

} // namespace coop::net::fabric
