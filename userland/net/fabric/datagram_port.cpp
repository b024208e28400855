// SPDX-License-Identifier: MIT
// datagram_port.cpp - see datagram_port.hpp.
#include "datagram_port.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>

namespace coop::net::fabric
{

namespace
{

constexpr std::chrono::milliseconds ask_again{5};
// After a peer has gone; its process has exited by then.
constexpr std::chrono::milliseconds sweep_after{200};
// Neighbours in the same process end without notice if no link is left.
constexpr std::chrono::seconds neighbours_after{5};
constexpr std::size_t page_size = 4096, strangers_most = 64, name_most = 160;

// The peer's memory at this address, as long as the pieces.
iovec remote(std::span<const iovec> pieces, std::uint64_t address)
{
	std::size_t length = 0;
	for (const iovec &piece : pieces)
		length += piece.iov_len;
	return {reinterpret_cast<void *>(address), length};
}

// Drops the first `done` bytes of the list, and of the peer's memory.
void skip(std::span<iovec> &pieces, std::uint64_t &address, std::size_t done)
{
	address += done;
	while (!pieces.empty() && done >= pieces.front().iov_len) {
		done -= pieces.front().iov_len;
		pieces = pieces.subspan(1);
	}
	if (!pieces.empty()) {
		pieces.front().iov_base = static_cast<std::byte *>(pieces.front().iov_base) + done;
		pieces.front().iov_len -= done;
	}
}

} // namespace

void datagram_port::unmap::operator()(page *p) const noexcept
{
	::munmap(p, page_size);
}

datagram_port::~datagram_port()
{
	if (!own_)
		return;
	for (auto &[name, entry] : names_)
		fi_av_remove(own_->table.get(), &entry.first, 1, 0);
	if (!name_.empty())
		neighbours::here().done(name_, std::move(own_));
}

int datagram_port::prepare(const address &, events &e)
{
	events_ = &e;
	sweep_shared_names();
	return open();
}

int datagram_port::start(const address &own)
{
	epoll_ = descriptor(::epoll_create1(EPOLL_CLOEXEC));
	bell_ = descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (!epoll_ || !bell_)
		return -errno;
	if (int r = listen_here(provider_.name(), own, listener_))
		return r;
	if (int r = make_page())
		return r;
	if (int r = watch(listener_.get(), &listener_))
		return r;
	listening_ = true;
	return watch(bell_.get(), &bell_);
}

int datagram_port::open()
{
	info_ptr info(fi_dupinfo(&provider_.info()));
	if (!info)
		return -ENOMEM;
	const std::string wanted = "fi_shm://" + new_shared_name();
	info->domain_attr->threading = provider_.threading();
	std::free(info->src_addr);
	info->src_addr = ::strdup(wanted.c_str());
	info->src_addrlen = wanted.size() + 1;
	std::free(info->dest_addr);
	info->dest_addr = nullptr;
	info->dest_addrlen = 0;
	own_ = std::make_unique<neighbours::remains>();
	if (int r = own_->base.open(*info, FI_WAIT_NONE))
		return r;
	fid_domain *domain = own_->base.domain.get();
	fi_av_attr av_attr{};
	av_attr.type = FI_AV_TABLE;
	if (int r = take(own_->table,
			 [&](auto **o) { return fi_av_open(domain, &av_attr, o, nullptr); }))
		return r;
	if (int r = take(own_->ep,
			 [&](auto **o) { return fi_endpoint(domain, info.get(), o, nullptr); }))
		return r;
	fid_ep *ep = own_->ep.get();
	int r = bind_queue(*ep, *own_->base.queue);
	if (!r)
		r = fi_ep_bind(ep, &own_->table->fid, 0);
	if (!r)
		r = fi_enable(ep);
	if (r)
		return r;
	char name[name_most];
	std::size_t size = sizeof(name);
	r = fi_getname(&ep->fid, name, &size);
	if (r)
		return r;
	name_ = name;
	neighbours::here().opened(name_);
	return 0;
}

int datagram_port::make_page()
{
	page_fd_ = descriptor(::memfd_create("coop-net", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	if (!page_fd_ || ::ftruncate(page_fd_.get(), page_size) ||
	    ::fcntl(page_fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		return -errno;
	page_ = map_page(page_fd_.get());
	return page_ ? 0 : -ENOMEM;
}

datagram_port::page_ptr datagram_port::map_page(int fd)
{
	void *p = ::mmap(nullptr, page_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	return page_ptr(p == MAP_FAILED ? nullptr : static_cast<page *>(p));
}

int datagram_port::watch(int fd, void *what)
{
	epoll_event e{EPOLLIN, {}};
	e.data.ptr = what;
	return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &e) ? -errno : 0;
}

// Closing the socket is not enough: a child that the program has just forked also has it until it
// executes another program, and until then its events would still come.
void datagram_port::forget(half &h)
{
	if (h.socket)
		::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, h.socket.get(), nullptr);
	h.socket = descriptor();
}

int datagram_port::connect(link &l)
{
	auto side = std::make_unique<half>();
	side->link = &l;
	begin(l, std::move(side));
	try_again(l);
	return 0;
}

void datagram_port::try_again(link &l)
{
	half &h = static_cast<half &>(*l.side);
	int r = connect_there(provider_.name(), l.address, h.socket);
	if (r == -EAGAIN)
		return try_until(l, events_->now() + ask_again);
	if (!r && !is_own_user(h.socket.get()))
		r = -EACCES;
	if (!r)
		r = watch(h.socket.get(), &h);
	if (!r)
		r = greet(h);
	if (r)
		give_up(l);
	else
		try_until(l, never);
}

int datagram_port::greet(half &h)
{
	const auto text = encode(events_->greeting(*h.link));
	std::string packet(reinterpret_cast<const char *>(text.data()), text.size());
	packet += name_;
	h.inquiring = true;
	return send_packet(h.socket.get(), packet, bell_.get(), page_fd_.get());
}

void datagram_port::catch_up(link &l)
{
	half *h = static_cast<half *>(l.side.get());
	if (h && h->socket)
		heard(*h);
}

void datagram_port::close(link &l)
{
	half *h = static_cast<half *>(l.side.get());
	if (!h)
		return;
	end_attempt(l);
	if (!h->name.empty()) {
		auto it = names_.find(h->name);
		if (--it->second.second == 0) {
			fi_av_remove(own_->table.get(), &it->second.first, 1, 0);
			names_.erase(it);
		}
		h->name.clear();
		sweep_ = events_->now() + sweep_after;
	}
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
		if (what == &bell_)
			continue; // rung to wake a sleeper: read only in arm()
		if (what == &listener_) {
			accept_all();
			n++;
		} else {
			heard(*static_cast<half *>(what));
			n++;
			// This may have freed one of the following events' objects.
			break;
		}
	}
	mind_listener();
	return n;
}

// While too many connections have not sent a greeting, further ones wait in the kernel and wake no
// thread.
void datagram_port::mind_listener()
{
	const bool room = strangers_.size() < strangers_most;
	if (room == listening_)
		return;
	const int r = room ? watch(listener_.get(), &listener_)
			   : ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
	if (!r)
		listening_ = room;
}

void datagram_port::accept_all()
{
	while (strangers_.size() < strangers_most) {
		auto h = std::make_unique<half>();
		h->socket = descriptor(
			::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
		if (!h->socket)
			return;
		h->give_up = events_->now() + give_up_after;
		if (is_own_user(h->socket.get()) && watch(h->socket.get(), h.get()) == 0)
			strangers_.push_back(std::move(h));
	}
}

void datagram_port::drop_stranger(half &h)
{
	forget(h);
	strangers_.remove_if([&h](const auto &s) { return s.get() == &h; });
}

// Handles input from the peer: its greeting, or the end.
void datagram_port::heard(half &h)
{
	std::string text;
	descriptor bell, page;
	const int n = receive_packet(h.socket.get(), text, bell, page);
	if (n == -EAGAIN)
		return;
	hello theirs;
	const bool greeting =
		n > 0 && h.name.empty() &&
		decode({reinterpret_cast<const std::byte *>(text.data()), text.size()}, theirs);
	if (h.link) {
		link &l = *h.link;
		if (!greeting || !events_->accept(l, theirs) ||
		    !pair(h, text, std::move(bell), std::move(page)))
			return events_->unlinked(l, h.name.empty() ? -ECONNREFUSED : -ECONNRESET);
		end_attempt(l);
		return events_->linked(l);
	}
	if (greeting && events_->mute())
		return;
	link *l = greeting ? events_->admit(theirs) : nullptr;
	if (!l)
		return drop_stranger(h);
	for (auto it = strangers_.begin(); it != strangers_.end(); ++it)
		if (it->get() == &h) {
			l->side = std::move(*it);
			strangers_.erase(it);
			break;
		}
	h.link = l;
	if (!pair(h, text, std::move(bell), std::move(page)) || greet(h))
		return events_->unlinked(*l, -ECONNRESET);
	events_->linked(*l);
}

// Nothing is mapped at address 0: EFAULT means that we may read, other errors that we may not.
bool datagram_port::may_read(int pid)
{
	char byte;
	const iovec to{&byte, 1}, from{nullptr, 1};
	return ::process_vm_readv(pid, &to, 1, &from, 1, 0) < 0 && errno == EFAULT;
}

bool datagram_port::pair(half &h, const std::string &text, descriptor bell, descriptor page)
{
	const std::string name = text.substr(hello::size);
	// Only files of shared memory have seals; for other files this fails.
	const int seals = page ? ::fcntl(page.get(), F_GET_SEALS) : -1;
	if (name.empty() || name.size() >= name_most || name.find('\0') != name.npos || !bell ||
	    seals < 0 || !(seals & F_SEAL_SHRINK) ||
	    ::lseek(page.get(), 0, SEEK_END) < static_cast<off_t>(page_size))
		return false;
	h.theirs = map_page(page.get());
	if (!h.theirs)
		return false;
	h.bell = std::move(bell);
	::fcntl(h.bell.get(), F_SETFL, ::fcntl(h.bell.get(), F_GETFL) | O_NONBLOCK);
	auto [it, fresh] = names_.try_emplace(name, FI_ADDR_UNSPEC, 0);
	if (fresh && (!neighbours::here().meet(name_, name) ||
		      fi_av_insert(own_->table.get(), name.c_str(), 1, &it->second.first, 0,
				   nullptr) != 1)) {
		names_.erase(it);
		return false;
	}
	it->second.second++;
	sweep_ = std::min(sweep_, events_->now() + neighbours_after);
	h.name = name;
	h.pid = provider_.virtual_addresses() ? peer_process(h.socket.get(), h.end) : 0;
	h.readable = h.pid && may_read(h.pid);
	h.link->ep = own_->ep.get();
	h.link->dest = it->second.first;
	return true;
}

void datagram_port::sent(link &l)
{
	const half &h = static_cast<const half &>(*l.side);
	// Orders our send before the look at the flag; the sleeper has a fence between setting the
	// flag and its last look at the queue.
	std::atomic_thread_fence(std::memory_order_seq_cst);
	if (h.theirs->asleep.load(std::memory_order_relaxed) && h.theirs->asleep.exchange(0)) {
		const std::uint64_t one = 1;
		[[maybe_unused]] ssize_t r = ::write(h.bell.get(), &one, sizeof(one));
	}
}

// A pid is reused only some time after its process has ended.
int datagram_port::write(link &l, std::span<iovec> from, std::uint64_t address)
{
	half &h = static_cast<half &>(*l.side);
	if (h.pid == 0)
		return -EOPNOTSUPP;
	for (bool begun = false; !from.empty(); begun = true) {
		if (has_gone(h.socket.get(), h.end.get()))
			return -ECONNRESET;
		const iovec to = remote(from, address);
		const ssize_t n = ::process_vm_writev(h.pid, from.data(), from.size(), &to, 1, 0);
		if (n < 0 && !begun && (errno == EPERM || errno == ENOSYS)) {
			h.pid = 0; // not permitted later either
			return -EOPNOTSUPP;
		}
		if (n <= 0)
			return -ECONNRESET;
		skip(from, address, static_cast<std::size_t>(n));
	}
	return 0;
}

bool datagram_port::reads(const link &l) const
{
	const half *h = static_cast<const half *>(l.side.get());
	return h && h->readable;
}

// Data that were read count only if the process existed until the end: until then the pid is its
// own.
int datagram_port::read(link &l, std::span<iovec> to, std::uint64_t address)
{
	half &h = static_cast<half &>(*l.side);
	while (!to.empty()) {
		const iovec from = remote(to, address);
		const ssize_t n = ::process_vm_readv(h.pid, to.data(), to.size(), &from, 1, 0);
		if (n < 0 && errno == EFAULT)
			return -EFAULT;
		if (n <= 0) {
			h.readable &= n == 0 || errno != EPERM;
			return -ECONNRESET;
		}
		skip(to, address, static_cast<std::size_t>(n));
	}
	return has_gone(h.socket.get(), h.end.get()) ? -ECONNRESET : 0;
}

// Other threads may poll while one sleeps, so the flag stays set until a peer has rung, and the
// bell stays rung until the sleeper calls arm() again.
bool datagram_port::arm()
{
	std::uint64_t rung;
	[[maybe_unused]] ssize_t r = ::read(bell_.get(), &rung, sizeof(rung));
	page_->asleep.store(1, std::memory_order_relaxed);
	std::atomic_thread_fence(std::memory_order_seq_cst);
	return true;
}

// Messages from them may still be inside libfabric, so the first time each is only noted. False:
// call again.
bool datagram_port::forget_neighbours()
{
	std::set<std::string> left;
	for (const std::string &name : neighbours::here().gone(name_))
		if (names_.contains(name))
			continue; // wait until its link is closed, which calls this again
		else if (gone_.contains(name))
			neighbours::here().part(name_, name, *own_->table);
		else
			left.insert(name);
	gone_ = std::move(left);
	return gone_.empty();
}

time_point datagram_port::deadline() const
{
	time_point t = std::min(sweep_, attempts_deadline());
	for (const auto &h : strangers_)
		t = std::min(t, h->give_up);
	return t;
}

void datagram_port::expire(time_point now)
{
	expire_attempts(now);
	strangers_.remove_if([this, now](const auto &h) {
		if (h->give_up > now)
			return false;
		forget(*h);
		return true;
	});
	mind_listener();
	if (now >= sweep_) {
		sweep_shared_names();
		sweep_ = !forget_neighbours()            ? now + sweep_after
			 : neighbours::here().any(name_) ? now + neighbours_after
							 : never;
	}
}

} // namespace coop::net::fabric
