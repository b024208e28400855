// SPDX-License-Identifier: MIT
// tap.cpp - creating, configuring, reading and writing a TAP interface; see tap.hpp.
#include "userland/ntrdma/ether/tap.hpp"

#include <cerrno>
#include <charconv>
#include <cstring>

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

namespace coop::ntrdma
{

namespace
{

constexpr char device[] = "/dev/net/tun";
// Since Linux 6.2; older headers lack them, and older kernels refuse them.
constexpr unsigned tun_uso4 = 0x20, tun_uso6 = 0x40;

/// RTM_NEWADDR with both addresses of an interface, which are the same unless it is point to point.
struct address_request {
	nlmsghdr head;
	ifaddrmsg body;
	rtattr local_head;
	std::uint8_t local[16];
	rtattr address_head;
	std::uint8_t address[16];
};
static_assert(sizeof(address_request) == NLMSG_LENGTH(sizeof(ifaddrmsg)) + 2 * RTA_LENGTH(16));

ifreq request(const std::string &name)
{
	ifreq r{};
	std::memcpy(r.ifr_name, name.data(), name.size());
	return r;
}

void check_name(const std::string &name)
{
	if (name.empty() || name.size() >= IFNAMSIZ || name == "." || name == ".." ||
	    name.find_first_of("/: \t\n") != std::string::npos)
		throw trouble{"interface \"" + name + "\": not a name: use 1 to 15 characters, " +
			      "none of them a space, '/' or ':' (--name)"};
}

unique_fd open_device()
{
	unique_fd fd{open(device, O_RDWR | O_NONBLOCK | O_CLOEXEC)};
	if (fd)
		return fd;
	bool absent = errno == ENOENT || errno == ENODEV || errno == ENXIO;
	give_up(device, errno,
		absent ? "load it with modprobe tun, or give this container the device"
		       : "run as root, or get the right to open it");
}

} // namespace

tap::tap(const tap_options &o) :
	fd_{open_device()},
	control_{socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)}
{
	check_name(o.name);
	ifreq r = request(o.name);
	unsigned flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | IFF_TUN_EXCL;
	r.ifr_flags = static_cast<short>(flags);
	if (ioctl(fd_.get(), TUNSETIFF, &r)) {
		std::string what = "creating the interface " + o.name;
		if (errno == EPERM)
			give_up(what, errno,
				"needs CAP_NET_ADMIN in this network namespace: run as root, or "
				"with that capability");
		if (errno == EBUSY || errno == EINVAL || errno == EEXIST)
			throw trouble{what +
				      ": the name is taken: choose another with --name, or " +
				      "delete that one: ip link delete " + o.name};
		give_up(what, errno);
	}
	name_ = r.ifr_name;
	set_carrier(false);
	unsigned offload = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
	if (ioctl(fd_.get(), TUNSETOFFLOAD, offload | tun_uso4 | tun_uso6) &&
	    ioctl(fd_.get(), TUNSETOFFLOAD, offload))
		give_up("offloads of " + name_, errno, "the kernel is too old");
	configure(o);
}

void tap::configure(const tap_options &o)
{
	if (!control_)
		give_up("a socket to configure " + name_, errno);
	ifreq r = request(name_);
	if (ioctl(control_.get(), SIOCGIFINDEX, &r))
		give_up("looking up " + name_, errno);
	index_ = r.ifr_ifindex;
	r.ifr_mtu = static_cast<int>(o.mtu);
	if (ioctl(control_.get(), SIOCSIFMTU, &r))
		give_up("MTU " + std::to_string(o.mtu) + " of " + name_, errno,
			"choose another (--mtu)");
	mtu_ = o.mtu;
	r.ifr_qlen = static_cast<int>(o.queue);
	if (ioctl(control_.get(), SIOCSIFTXQLEN, &r))
		give_up("queue of " + std::to_string(o.queue) + " packets for " + name_, errno,
			"choose fewer (--queue)");
	changes_ = unique_fd{
		socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE)};
	sockaddr_nl group{};
	group.nl_family = AF_NETLINK;
	group.nl_groups = RTMGRP_LINK;
	if (!changes_ || bind(changes_.get(), reinterpret_cast<sockaddr *>(&group), sizeof(group)))
		give_up("watching " + name_, errno);
	for (const std::string &a : o.addresses)
		add_address(a);
	if (ioctl(control_.get(), SIOCGIFFLAGS, &r))
		give_up("flags of " + name_, errno);
	r.ifr_flags |= IFF_UP;
	if (ioctl(control_.get(), SIOCSIFFLAGS, &r))
		give_up("bringing " + name_ + " up", errno);
}

void tap::add_address(const std::string &text)
{
	std::string what = "address " + text + " of " + name_;
	auto slash = text.find('/');
	std::string host = text.substr(0, slash);
	bool six = host.find(':') != std::string::npos;
	unsigned most = six ? 128 : 32, prefix = most;
	const char *end = text.data() + text.size();
	if (slash != std::string::npos) {
		auto [at, error] = std::from_chars(text.data() + slash + 1, end, prefix);
		if (error != std::errc{} || at != end || prefix > most)
			throw trouble{what + ": the prefix is a number up to " +
				      std::to_string(most) + " (--address 10.9.0.1/24)"};
	}
	address_request q{};
	unsigned bytes = six ? 16 : 4;
	if (inet_pton(six ? AF_INET6 : AF_INET, host.c_str(), q.local) != 1)
		throw trouble{what + ": not an address (--address 10.9.0.1/24)"};
	std::memcpy(q.address, q.local, bytes);
	q.head.nlmsg_type = RTM_NEWADDR;
	q.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
	q.body.ifa_family = six ? AF_INET6 : AF_INET;
	q.body.ifa_prefixlen = static_cast<unsigned char>(prefix);
	q.body.ifa_index = static_cast<unsigned>(index_);
	auto length = static_cast<unsigned short>(RTA_LENGTH(bytes));
	q.local_head = {length, IFA_LOCAL};
	q.address_head = {length, IFA_ADDRESS};
	if (!six) // the attributes follow each other without a gap
		std::memmove(q.local + bytes, &q.address_head, sizeof(rtattr) + bytes);
	q.head.nlmsg_len = static_cast<std::uint32_t>(NLMSG_LENGTH(sizeof(q.body)) + 2u * length);
	unique_fd netlink{socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE)};
	struct {
		nlmsghdr head;
		nlmsgerr body;
		char rest[512];
	} answer{};
	if (!netlink || send(netlink.get(), &q, q.head.nlmsg_len, 0) < 0 ||
	    recv(netlink.get(), &answer, sizeof(answer), 0) <
		    static_cast<ssize_t>(NLMSG_LENGTH(sizeof(nlmsgerr))))
		give_up(what, errno);
	if (answer.body.error)
		give_up(what, -answer.body.error);
}

void tap::set_carrier(bool on)
{
	int carrier = on;
	if (ioctl(fd_.get(), TUNSETCARRIER, &carrier))
		give_up("carrier of " + name_, errno, "the kernel is too old");
}

bool tap::wanted() const
{
	ifreq r{};
	if (ioctl(fd_.get(), TUNGETIFF, &r))
		throw trouble{name_ + ": was deleted"};
	// Its name may have been changed; the index stays.
	r = {};
	r.ifr_ifindex = index_;
	return ioctl(control_.get(), SIOCGIFNAME, &r) || ioctl(control_.get(), SIOCGIFFLAGS, &r) ||
	       (r.ifr_flags & IFF_UP);
}

void tap::changes_seen()
{
	char text[8192];
	while (recv(changes_.get(), text, sizeof(text), 0) > 0 || errno == ENOBUFS)
		;
}

namespace
{

int pieces(const span_pair &at, iovec *out)
{
	out[0] = {at[0].at, at[0].length};
	out[1] = {at[1].at, at[1].length};
	return at[1].length ? 2 : 1;
}

} // namespace

ssize_t tap::read(const span_pair &at)
{
	iovec v[2];
	ssize_t n = readv(fd_.get(), v, pieces(at, v));
	return n < 0 ? -errno : n;
}

int tap::write(const span_pair &at)
{
	iovec v[2];
	return writev(fd_.get(), v, pieces(at, v)) < 0 ? -errno : 0;
}

} // namespace coop::ntrdma
