// SPDX-License-Identifier: MIT
// resolver.cpp - see resolver.hpp. A question or answer, little-endian:
//
//   0 magic "sidc"   4 version (1)   5 kind   6 zero (16)   8 nonce (64)   16 who (64)
//   24 GID (16)   40 LID (16)   42 SL   43 zero   44 QPN, Q_Key of the command QP, QPN, Q_Key of
//   the data QP (32 each)   60 instance (32)   64 MAC (64) over all before it
//
// or, in the answer that lists rails:
//
//   24 number of rails but the first   25 1: for messages too   28 their IPv4 addresses (32 each)
//   60, 64 as above
//
// Questions are as long as answers, so that forged questions amplify nothing. An answer counts if
// it names the nonce of an open question and comes from the host that was asked.
#include "resolver.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <system_error>
#include <unistd.h>

#include "rpc/base/mac.h"

namespace coop::net::ud
{

namespace
{

constexpr std::uint32_t magic = 0x63646973; // "sidc" in memory order
constexpr std::uint8_t version = 1;
enum kind : std::uint8_t {
	ask_kind = 1,
	here_kind = 2,
	absent_kind = 3,
	list_kind = 4, // a question, which rails_kind answers
	rails_kind = 5,
};

// Below the ports that Linux assigns by itself. Two adjacent portals, and all TMIDs of one, have
// first candidates of their own.
constexpr std::uint32_t first_port = 16384, ports = 8192, stride = 2731;

constexpr unsigned most_tries = 9;
constexpr unsigned most_list_tries = 6; // 0.6 s: the machine may know of no rails
constexpr std::uint64_t first_pause_us = 10000, longest_pause_us = 1000000;

std::uint16_t candidate_port(std::uint32_t number, unsigned k)
{
	return static_cast<std::uint16_t>(first_port + (number + k * stride) % ports);
}

sockaddr_in socket_address(std::uint32_t ip, std::uint16_t port)
{
	sockaddr_in a{};
	a.sin_family = AF_INET;
	a.sin_addr.s_addr = htonl(ip);
	a.sin_port = htons(port);
	return a;
}

template <class T> void put_le(std::uint8_t *p, T v)
{
	for (std::size_t i = 0; i < sizeof(T); i++)
		p[i] = static_cast<std::uint8_t>(v >> (8 * i));
}

template <class T> T get_le(const std::uint8_t *p)
{
	T v = 0;
	for (std::size_t i = 0; i < sizeof(T); i++)
		v = static_cast<T>(v | static_cast<T>(p[i]) << (8 * i));
	return v;
}

// Whether an error report is about the port, or from a firewall for it. If not, the path to the
// host is interrupted, perhaps for a moment.
bool of_the_port(msghdr &h)
{
	for (cmsghdr *c = CMSG_FIRSTHDR(&h); c; c = CMSG_NXTHDR(&h, c))
		if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR) {
			sock_extended_err e;
			std::memcpy(&e, CMSG_DATA(c), sizeof(e));
			const bool unreachable =
				e.ee_errno == EHOSTUNREACH || e.ee_errno == ENETUNREACH;
			return !unreachable ||
			       (e.ee_origin == SO_EE_ORIGIN_ICMP &&
				e.ee_type == ICMP_DEST_UNREACH &&
				(e.ee_code == ICMP_NET_ANO || e.ee_code == ICMP_HOST_ANO ||
				 e.ee_code == ICMP_PKT_FILTERED));
		}
	return true;
}

} // namespace

resolver::resolver(const std::array<std::uint8_t, 16> &key, identity own, std::uint32_t ip) :
	key_(key),
	own_(own)
{
	fd_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd_ < 0)
		throw std::system_error(errno, std::generic_category(), "ud: socket");
	const int on = 1;
	::setsockopt(fd_, IPPROTO_IP, IP_RECVERR, &on, sizeof(on));
	int error = 0;
	for (unsigned k = 0; k < candidates; k++) {
		const std::uint16_t port = candidate_port(own.number, k);
		const sockaddr_in a = socket_address(ip, port);
		if (::bind(fd_, reinterpret_cast<const sockaddr *>(&a), sizeof(a)) == 0) {
			companion_ = static_cast<std::uint16_t>(port + ports);
			return;
		}
		error = errno;
		if (error != EADDRINUSE)
			break;
	}
	::close(fd_);
	throw std::system_error(error, std::generic_category(),
				"ud: cannot bind a UDP port to be found at");
}

resolver::~resolver()
{
	::close(fd_);
}

std::uint64_t resolver::mac(const packet &p) const
{
	return coop_mac(key_.data(), p.data(), packet_bytes - 8);
}

bool resolver::genuine(const std::uint8_t *data, std::size_t length) const
{
	if (length != packet_bytes || get_le<std::uint32_t>(data) != magic || data[4] != version ||
	    get_le<std::uint16_t>(data + 6) != 0)
		return false;
	return get_le<std::uint64_t>(data + packet_bytes - 8) ==
	       coop_mac(key_.data(), data, packet_bytes - 8);
}

void resolver::send(const packet &p, std::uint32_t ip, std::uint16_t port)
{
	const sockaddr_in to = socket_address(ip, port);
	// A pending ICMP error of another question is reported here instead of sending. It stays in
	// the error queue.
	for (int i = 0; i < 3; i++) {
		if (::sendto(fd_, p.data(), p.size(), MSG_DONTWAIT,
			     reinterpret_cast<const sockaddr *>(&to), sizeof(to)) >= 0)
			return;
		errors_ = true;
		if (errno != ECONNREFUSED)
			return;
	}
}

void resolver::put(question &q, unsigned candidate)
{
	packet p{};
	put_le(p.data(), magic);
	p[4] = version;
	p[5] = q.nonce & list_bit ? list_kind : ask_kind;
	put_le(p.data() + 8, q.nonce);
	put_le(p.data() + 16, q.who.packed());
	put_le(p.data() + packet_bytes - 8, mac(p));
	send(p, q.ip, candidate_port(q.who.number, candidate));
}

// Null: there is one already.
resolver::question *resolver::begin(name n, identity who, std::uint32_t ip, std::uint64_t now)
{
	if (questions_.count(n))
		return nullptr;
	std::uint32_t random = 0;
	if (::getrandom(&random, sizeof(random), 0) != sizeof(random))
		random = static_cast<std::uint32_t>(now * 2654435761u);
	question &q = questions_[n];
	q.nonce = std::uint64_t(random) << 32 | n;
	q.who = who;
	q.ip = ip;
	q.timer = timers_.emplace(now + first_pause_us, n);
	counters_.asked++;
	return &q;
}

void resolver::ask_first(name n, identity who, std::uint32_t ip, std::uint64_t now)
{
	if (question *q = begin(n, who, ip, now))
		put(*q, 0);
}

void resolver::drop(name n)
{
	const auto it = questions_.find(n);
	if (it == questions_.end())
		return;
	timers_.erase(it->second.timer);
	questions_.erase(it);
}

void resolver::conclude(name n, int status, const std::uint8_t *answer)
{
	result r{n & ~list_bit, status, {}, 0, (n & list_bit) != 0};
	if (answer && r.list) {
		r.rails.size = std::min<unsigned>(answer[24], most_rails - 1);
		r.rails.messages = answer[25] & 1;
		for (unsigned i = 0; i < r.rails.size; i++)
			r.rails.ip[i] = get_le<std::uint32_t>(answer + 28 + 4 * i);
	} else if (answer) {
		coop_addr &a = r.where.command;
		std::memcpy(a.gid, answer + 24, 16);
		a.lid = get_le<std::uint16_t>(answer + 40);
		a.sl = answer[42];
		a.qpn = get_le<std::uint32_t>(answer + 44);
		a.qkey = get_le<std::uint32_t>(answer + 48);
		r.where.data_qpn = get_le<std::uint32_t>(answer + 52);
		r.where.data_qkey = get_le<std::uint32_t>(answer + 56);
	}
	if (answer)
		r.instance = get_le<std::uint32_t>(answer + 60);
	drop(n);
	results_.push_back(r);
}

resolver::question *resolver::of_nonce(std::uint64_t nonce)
{
	const auto it = questions_.find(static_cast<name>(nonce));
	return it != questions_.end() && it->second.nonce == nonce ? &it->second : nullptr;
}

// The machine is not at this port.
void resolver::refused(std::uint64_t nonce, std::uint16_t port, std::uint64_t now)
{
	question *q = of_nonce(nonce);
	if (!q)
		return;
	for (unsigned k = 0; k < candidates; k++)
		if (port == candidate_port(q->who.number, k))
			q->refused |= 1u << k;
	if (q->refused == (1u << candidates) - 1) {
		conclude(static_cast<name>(nonce), -ECONNREFUSED);
		return;
	}
	while (q->refused >> q->at & 1)
		q->at = (q->at + 1) % candidates;
	put(*q, q->at);
}

void resolver::answer(const std::uint8_t *data, std::uint32_t ip, std::uint16_t port)
{
	if (!self_.command.qpn)
		return; // not yet; it will be asked again
	packet p{};
	std::memcpy(p.data(), data, 24);
	const bool here = get_le<std::uint64_t>(data + 16) == own_.packed();
	if (!here) {
		p[5] = absent_kind;
	} else if (data[5] == list_kind) {
		p[5] = rails_kind;
		p[24] = static_cast<std::uint8_t>(rails_.size);
		p[25] = rails_.messages;
		for (unsigned i = 0; i < rails_.size; i++)
			put_le(p.data() + 28 + 4 * i, rails_.ip[i]);
	} else {
		p[5] = here_kind;
		std::memcpy(p.data() + 24, self_.command.gid, 16);
		put_le(p.data() + 40, self_.command.lid);
		p[42] = self_.command.sl;
		put_le(p.data() + 44, self_.command.qpn);
		put_le(p.data() + 48, self_.command.qkey);
		put_le(p.data() + 52, self_.data_qpn);
		put_le(p.data() + 56, self_.data_qkey);
	}
	if (here)
		put_le(p.data() + 60, instance_);
	put_le(p.data() + packet_bytes - 8, mac(p));
	counters_.answered++;
	send(p, ip, port);
}

void resolver::handle(const std::uint8_t *data, std::size_t length, std::uint32_t ip,
		      std::uint16_t port, std::uint64_t now)
{
	if (!genuine(data, length)) {
		counters_.malformed++;
		return;
	}
	if (data[5] == ask_kind || data[5] == list_kind) {
		answer(data, ip, port);
		return;
	}
	const auto nonce = get_le<std::uint64_t>(data + 8);
	const question *q = of_nonce(nonce);
	if (!q || q->ip != ip || q->who.packed() != get_le<std::uint64_t>(data + 16)) {
		counters_.strangers++;
		return;
	}
	if (data[5] == absent_kind)
		refused(nonce, port, now);
	else if (data[5] == (nonce & list_bit ? rails_kind : here_kind))
		conclude(static_cast<name>(nonce), 0, data);
	else
		counters_.malformed++;
}

// Reads what the hosts report about the ports that were asked.
bool resolver::read_errors(std::uint64_t now)
{
	bool any = false;
	errors_ = false;
	for (;;) {
		std::uint8_t data[packet_bytes];
		sockaddr_in to{};
		iovec iov{data, sizeof(data)};
		alignas(cmsghdr) char
			control[CMSG_SPACE(sizeof(sock_extended_err) + sizeof(sockaddr_in))];
		msghdr h{};
		h.msg_name = &to;
		h.msg_namelen = sizeof(to);
		h.msg_iov = &iov;
		h.msg_iovlen = 1;
		h.msg_control = control;
		h.msg_controllen = sizeof(control);
		const ssize_t n = ::recvmsg(fd_, &h, MSG_ERRQUEUE | MSG_DONTWAIT);
		if (n < 0)
			return any;
		any = true;
		if (genuine(data, static_cast<std::size_t>(n)) &&
		    (data[5] == ask_kind || data[5] == list_kind) && of_the_port(h))
			refused(get_le<std::uint64_t>(data + 8), ntohs(to.sin_port), now);
	}
}

bool resolver::progress(std::uint64_t now)
{
	bool any = false;
	for (int i = 0; i < 64; i++) {
		std::uint8_t data[packet_bytes + 1];
		sockaddr_in from{};
		socklen_t length = sizeof(from);
		const ssize_t n = ::recvfrom(fd_, data, sizeof(data), MSG_DONTWAIT,
					     reinterpret_cast<sockaddr *>(&from), &length);
		if (n < 0 && errno != EAGAIN && errno != EINTR) {
			any |= read_errors(now);
			continue;
		}
		if (n < 0)
			break;
		any = true;
		handle(data, static_cast<std::size_t>(n), ntohl(from.sin_addr.s_addr),
		       ntohs(from.sin_port), now);
	}
	if (asking() || errors_)
		any |= read_errors(now);
	return any;
}

bool resolver::next(result &r)
{
	if (results_.empty())
		return false;
	r = results_.front();
	results_.pop_front();
	return true;
}

void resolver::expire(std::uint64_t now)
{
	while (!timers_.empty() && timers_.begin()->first <= now) {
		const name n = timers_.begin()->second;
		question &q = questions_.at(n);
		timers_.erase(q.timer);
		if (++q.tries >= (n & list_bit ? most_list_tries : most_tries)) {
			q.timer = timers_.emplace(now, n);
			conclude(n, -EHOSTUNREACH);
			continue;
		}
		const std::uint64_t pause = std::min(first_pause_us << q.tries, longest_pause_us);
		q.timer = timers_.emplace(now + pause, n);
		for (unsigned k = 0; k < candidates; k++)
			if (!(q.refused >> k & 1))
				put(q, k);
	}
}

} // namespace coop::net::ud
