// SPDX-License-Identifier: MIT
// device.cpp - see device.hpp.
#include "device.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>

namespace coop::net::kernel
{

namespace
{

// What to do about an error of open().
std::string advice(int error)
{
	if (error == ENOENT || error == ENXIO || error == ENODEV)
		return "kernel: " COOP_NET_DEVICE
		       " is not there: load the module coopfs (modprobe coopfs)";
	if (error == EACCES || error == EPERM)
		return "kernel: " COOP_NET_DEVICE
		       " may not be opened: its permissions exclude this user";
	return "kernel: " COOP_NET_DEVICE;
}

} // namespace

coop_chan_peer_addr address_of(const coop_net_addr &a)
{
	coop_chan_peer_addr out{};
	std::memcpy(out.command.gid, a.gid, sizeof(a.gid));
	out.command.qpn = a.qpn;
	out.command.qkey = a.qkey;
	out.command.lid = a.lid;
	out.command.sl = a.sl;
	out.data_qpn = a.data_qpn;
	out.data_qkey = a.data_qkey;
	return out;
}

coop_net_addr address_of(const coop_chan_peer_addr &a)
{
	coop_net_addr out{};
	std::memcpy(out.gid, a.command.gid, sizeof(out.gid));
	out.qpn = a.command.qpn;
	out.qkey = a.command.qkey;
	out.lid = a.command.lid;
	out.sl = a.command.sl;
	out.data_qpn = a.data_qpn;
	out.data_qkey = a.data_qkey;
	return out;
}

int pin(buffers &b, device &d)
{
	return b.open_whole(&d, [&d](std::span<const segment> all, auto &lent, auto &numbers) {
		std::uint32_t number = 0;
		if (const int r = d.add_buffer(all, number))
			return r;
		lent.push_back(lent_buffer(d, number));
		numbers.push_back(number);
		return 0;
	});
}

void device::fail(int error, const std::string &what)
{
	if (fd_ >= 0)
		::close(fd_);
	throw std::system_error(error, std::generic_category(), what);
}

device::device(const options &o, const ring_sizes &sizes)
{
	fd_ = ::open(COOP_NET_DEVICE, O_RDWR | O_CLOEXEC);
	if (fd_ < 0)
		fail(errno, advice(errno));
	coop_net_setup &s = setup_;
	s.size = sizeof(s);
	s.abi = COOP_NET_ABI;
	o.device.device.copy(reinterpret_cast<char *>(s.device), sizeof(s.device) - 1);
	s.port = o.device.port;
	s.gid_index = o.device.gid_index;
	std::memcpy(s.key, o.key.data(), sizeof(s.key));
	s.qkey = o.qkey();
	s.flags |= o.seal ? COOP_NET_SEAL : 0;
	s.flags |= o.fixed_seq ? COOP_NET_FIRST_SEQ : 0;
	s.flags |= o.page_crc ? COOP_NET_PAGE_CRC : 0;
	s.ops = sizes.operations;
	s.events = sizes.events;
	s.handles = sizes.handles;
	s.peers = o.peers;
	s.fetches = o.fetches;
	s.serves = o.serves;
	s.window = o.window;
	s.tries = o.tries;
	s.first_seq = o.first_seq;
	s.fetch_timeout_us = o.fetch_timeout_us;
	s.silence_us = o.silence_us();
	if (const int err = call(COOP_NET_SETUP, &s)) {
		s.why[sizeof(s.why) - 1] = 0;
		std::string why = reinterpret_cast<const char *>(s.why);
		if (why.empty() && err == -EPROTO)
			why = "the module and this library are of different versions: ABI " +
			      std::to_string(s.abi) + " and " + std::to_string(COOP_NET_ABI);
		fail(-err, "kernel: " + (why.empty() ? "setup of " COOP_NET_DEVICE : why));
	}
	void *at = ::mmap(nullptr, s.map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
	if (at == MAP_FAILED)
		fail(errno, "kernel: mapping the rings of " COOP_NET_DEVICE);
	mapping_ = at;
	auto *base = static_cast<std::byte *>(at);
	use(static_cast<coop_net_rings *>(at), reinterpret_cast<coop_net_op *>(base + s.ops_at),
	    s.ops, reinterpret_cast<const coop_net_event *>(base + s.events_at), s.events);
}

device::~device()
{
	::munmap(mapping_, setup_.map_bytes);
	::close(fd_);
}

int device::call(unsigned long request, void *argument) const
{
	int r;
	do
		r = ::ioctl(fd_, request, argument);
	while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : 0;
}

coop_chan_peer_addr device::self() const
{
	coop_net_addr a = setup_.self;
	(void)call(COOP_NET_SELF, &a);
	return address_of(a);
}

coop_net_count device::count() const
{
	coop_net_count c{};
	(void)call(COOP_NET_COUNT, &c);
	return c;
}

void device::enter()
{
	coop_net_enter e{};
	(void)call(COOP_NET_ENTER, &e);
}

// ---- peers -----------------------------------------------------------------------

int device::open_peer(coop_net_peer &p) const
{
	return call(COOP_NET_PEER_OPEN, &p);
}

int device::admit_peer(coop_net_peer &p) const
{
	return call(COOP_NET_PEER_ADMIT, &p);
}

void device::close_peer(std::uint32_t peer)
{
	submit(); // else they would name a peer that there is not
	(void)call(COOP_NET_PEER_CLOSE, &peer);
}

int device::peer_info(coop_net_peer &p) const
{
	return call(COOP_NET_PEER_INFO, &p);
}

// ---- memory ----------------------------------------------------------------------

int device::add_buffer(std::span<const segment> segments, std::uint32_t &number)
{
	std::vector<coop_net_segment> list;
	list.reserve(segments.size());
	for (const segment &s : segments)
		list.push_back({reinterpret_cast<std::uintptr_t>(s.base), s.length});
	coop_net_buffer b{};
	b.segments = reinterpret_cast<std::uintptr_t>(list.data());
	b.n = static_cast<std::uint32_t>(list.size());
	const int err = call(COOP_NET_BUFFER_ADD, &b);
	number = b.buffer;
	return err == -EBADR && failure() ? -ENODEV : err; // the device was removed
}

void device::drop_buffer(std::uint32_t number)
{
	if (call(COOP_NET_BUFFER_DEL, &number) != -EBUSY)
		return;
	std::lock_guard guard(lock_);
	late_.push_back(number);
	is_late_.store(true, std::memory_order_relaxed);
}

void device::drop_late()
{
	if (!is_late_.load(std::memory_order_relaxed))
		return;
	std::lock_guard guard(lock_);
	std::erase_if(late_, [this](std::uint32_t number) {
		return call(COOP_NET_BUFFER_DEL, &number) != -EBUSY;
	});
	is_late_.store(!late_.empty(), std::memory_order_relaxed);
}

} // namespace coop::net::kernel
