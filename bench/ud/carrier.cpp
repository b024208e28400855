// SPDX-License-Identifier: MIT
// carrier.cpp - see carrier.hpp. Every carrier receives into a ring of 16 MiB, so that the
// CPU's caches favour none of them.
#include "bench/ud/carrier.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <vector>

#include <arpa/inet.h>
#include <netinet/udp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "userland/ud/endpoint.hpp"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace ud_bench
{

namespace
{

constexpr std::size_t arena_bytes = 16u << 20;
constexpr std::size_t socket_buffer = 8u << 20;

struct arena {
	std::uint8_t *base;
	arena()
	{
		void *p = mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		if (p == MAP_FAILED)
			throw std::system_error(errno, std::generic_category(), "mmap");
		base = static_cast<std::uint8_t *>(p);
	}
	~arena() { munmap(base, arena_bytes); }
};

void check(long status, const char *what)
{
	if (status < 0)
		throw std::system_error(static_cast<int>(-status), std::generic_category(), what);
}

class soft_roce_carrier final : public carrier
{
	using sge = coop::ud::sge;

public:
	explicit soft_roce_carrier(const std::string &ip)
	{
		coop::ud::soft_roce_options o;
		o.ip = ip;
		o.socket_buffer = socket_buffer;
		ep_ = coop::ud::make_soft_roce(o);
		check(ep_->register_memory(memory_.base, arena_bytes), "register");
		check(ep_->register_memory(grh_.data(), grh_.size()), "register");
		const int qp = ep_->create_qp({256, posted, 2, 0x1234});
		check(qp, "create queue pair");
		qp_ = static_cast<std::uint32_t>(qp);
		for (std::uint32_t i = 0; i < posted; i++)
			post(i);
		flush_posts();
	}

	where self() const override
	{
		coop::ud::address a{};
		std::copy_n(ep_->info().gid.begin(), 16, a.gid);
		a.qpn = ep_->qpn(qp_);
		a.qkey = ep_->qkey(qp_);
		where w{};
		std::memcpy(w.bytes, &a, sizeof(a));
		return w;
	}
	void connect(const where &w) override { std::memcpy(&peer_, w.bytes, sizeof(peer_)); }

	void send_pages(std::span<const std::uint8_t> data) override
	{
		register_once(data);
		std::array<sge, batch_pages> list;
		std::array<coop::ud::send_wr, batch_pages> wrs;
		const std::size_t n = data.size() / page;
		for (std::size_t i = 0; i < n; i++) {
			list[i] = {const_cast<std::uint8_t *>(data.data()) + i * page, page};
			wrs[i] = {i, &list[i], 1, static_cast<std::uint32_t>(i), true, false};
		}
		check(ep_->post_send(qp_, peer_, {wrs.data(), n}), "send");
	}

	std::size_t receive_pages() override
	{
		std::size_t bytes = 0;
		const std::size_t n = ep_->poll(done_);
		for (std::size_t i = 0; i < n; i++) {
			bytes += done_[i].byte_len - coop_grh;
			post(static_cast<std::uint32_t>(done_[i].wr_id));
		}
		flush_posts();
		return bytes;
	}

	void send_one(std::size_t payload) override
	{
		const sge one{memory_.base, static_cast<std::uint32_t>(payload)};
		const coop::ud::send_wr wr{0, &one, 1, 1, true, false};
		check(ep_->post_send(qp_, peer_, {&wr, 1}), "send");
	}
	bool receive_one() override { return receive_pages() != 0; }
	bool arm() override { return ep_->arm(); }
	int fd() const override { return ep_->fd(); }
	std::string counters() const override
	{
		const auto s = ep_->stats();
		return "tx calls " + std::to_string(s.tx_calls) + " errors " +
		       std::to_string(s.tx_errors) + ", rx calls " + std::to_string(s.rx_calls) +
		       " packets " + std::to_string(s.rx_packets) + " copied " +
		       std::to_string(s.rx_copied) + " bad ICRC " + std::to_string(s.rx_bad_icrc) +
		       " no WR " + std::to_string(s.rx_no_wr);
	}

private:
	static constexpr std::size_t coop_grh = COOP_GRH;
	static constexpr std::uint32_t posted = arena_bytes / page;

	void post(std::uint32_t i)
	{
		repost_lists_[n_repost_] = {sge{grh_.data(), COOP_GRH},
					    sge{memory_.base + std::size_t{i} * page, page}};
		repost_[n_repost_] = {i, repost_lists_[n_repost_].data(), 2};
		if (++n_repost_ == repost_.size())
			flush_posts();
	}
	void flush_posts()
	{
		if (n_repost_)
			check(ep_->post_recv(qp_, {repost_.data(), n_repost_}), "post");
		n_repost_ = 0;
	}
	void register_once(std::span<const std::uint8_t> data)
	{
		if (source_)
			return;
		source_ = data.data();
		check(ep_->register_memory(const_cast<std::uint8_t *>(source_), arena_bytes),
		      "register");
	}

	arena memory_;
	std::array<std::uint8_t, COOP_GRH> grh_{};
	std::unique_ptr<coop::ud::endpoint> ep_;
	std::uint32_t qp_ = 0;
	coop::ud::address peer_{};
	const std::uint8_t *source_ = nullptr;
	std::array<coop::ud::completion, 64> done_;
	std::array<coop::ud::recv_wr, 64> repost_;
	std::array<std::array<sge, 2>, 64> repost_lists_;
	std::size_t n_repost_ = 0;
};

// Sends datagrams of 'page + wire_overhead' bytes, as super packets or one by one.
class udp_carrier final : public carrier
{
public:
	udp_carrier(const std::string &ip, bool segmented) : segmented_(segmented)
	{
		fd_ = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		const int size = socket_buffer, on = 1;
		if (setsockopt(fd_, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)))
			setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
		setsockopt(fd_, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
		if (segmented_)
			check(setsockopt(fd_, IPPROTO_UDP, UDP_GRO, &on, sizeof(on)) ? -errno : 0,
			      "UDP_GRO");
		self_.sin_family = AF_INET;
		inet_pton(AF_INET, ip.c_str(), &self_.sin_addr);
		check(bind(fd_, reinterpret_cast<sockaddr *>(&self_), sizeof(self_)) ? -errno : 0,
		      "bind");
		socklen_t length = sizeof(self_);
		getsockname(fd_, reinterpret_cast<sockaddr *>(&self_), &length);
	}
	~udp_carrier() override { close(fd_); }

	where self() const override
	{
		where w{};
		std::memcpy(w.bytes, &self_, sizeof(self_));
		return w;
	}
	void connect(const where &w) override { std::memcpy(&peer_, w.bytes, sizeof(peer_)); }

	void send_pages(std::span<const std::uint8_t> data) override
	{
		const std::size_t n = data.size() / page;
		const std::size_t group = segmented_ ? 65000 / datagram : 1;
		std::array<mmsghdr, batch_pages> messages{};
		std::array<iovec, batch_pages> iov;
		std::array<std::array<char, CMSG_SPACE(2)>, batch_pages> control;
		unsigned m = 0;
		for (std::size_t i = 0; i < n; i += group, m++) {
			const std::size_t k = std::min(group, n - i);
			// Read a little beyond the pages in place of the headers.
			std::size_t at = (i * page) % (data.size() - group * wire_overhead);
			if (at + k * datagram > data.size())
				at = data.size() - k * datagram;
			iov[m] = {const_cast<std::uint8_t *>(data.data()) + at, k * datagram};
			msghdr &h = messages[m].msg_hdr;
			h.msg_name = &peer_;
			h.msg_namelen = sizeof(peer_);
			h.msg_iov = &iov[m];
			h.msg_iovlen = 1;
			if (k > 1) {
				h.msg_control = control[m].data();
				h.msg_controllen = control[m].size();
				cmsghdr *c = CMSG_FIRSTHDR(&h);
				c->cmsg_level = IPPROTO_UDP;
				c->cmsg_type = UDP_SEGMENT;
				c->cmsg_len = CMSG_LEN(2);
				const std::uint16_t size = datagram;
				std::memcpy(CMSG_DATA(c), &size, 2);
			}
		}
		for (unsigned sent = 0; sent < m;) {
			const int r = sendmmsg(fd_, messages.data() + sent, m - sent, 0);
			if (r < 0 && errno != EAGAIN)
				check(-errno, "sendmmsg");
			sent += r > 0 ? static_cast<unsigned>(r) : 0;
		}
	}

	std::size_t receive_pages() override
	{
		return segmented_ ? receive_merged() : receive_many();
	}

	void send_one(std::size_t payload) override
	{
		check(sendto(fd_, memory_.base, payload + wire_overhead, 0,
			     reinterpret_cast<sockaddr *>(&peer_), sizeof(peer_)) < 0
			      ? -errno
			      : 0,
		      "sendto");
	}
	bool receive_one() override
	{
		sockaddr_in from;
		socklen_t length = sizeof(from);
		return recvfrom(fd_, memory_.base, 65536, 0, reinterpret_cast<sockaddr *>(&from),
				&length) > 0;
	}
	bool arm() override { return true; }
	int fd() const override { return fd_; }

private:
	static constexpr std::size_t datagram = page + wire_overhead;

	std::uint8_t *next(std::size_t bytes)
	{
		if (at_ + bytes > arena_bytes)
			at_ = 0;
		return memory_.base + at_;
	}

	std::size_t receive_merged()
	{
		iovec iov{next(65536), 65536};
		char control[CMSG_SPACE(sizeof(int))];
		sockaddr_in from;
		msghdr h{};
		h.msg_name = &from;
		h.msg_namelen = sizeof(from);
		h.msg_iov = &iov;
		h.msg_iovlen = 1;
		h.msg_control = control;
		h.msg_controllen = sizeof(control);
		const ssize_t n = recvmsg(fd_, &h, 0);
		if (n <= 0)
			return 0;
		at_ += static_cast<std::size_t>(n);
		return static_cast<std::size_t>(n) / datagram * page;
	}

	std::size_t receive_many()
	{
		std::array<mmsghdr, 32> messages{};
		std::array<iovec, 32> iov;
		for (std::size_t i = 0; i < messages.size(); i++) {
			iov[i] = {next(datagram), datagram};
			at_ += datagram;
			messages[i].msg_hdr.msg_iov = &iov[i];
			messages[i].msg_hdr.msg_iovlen = 1;
		}
		const int n = recvmmsg(fd_, messages.data(), messages.size(), 0, nullptr);
		return n > 0 ? static_cast<std::size_t>(n) * page : 0;
	}

	arena memory_;
	bool segmented_;
	int fd_ = -1;
	sockaddr_in self_{}, peer_{};
	std::size_t at_ = 0;
};

} // namespace

std::unique_ptr<carrier> make_carrier(kind k, const std::string &ip)
{
	if (k == kind::soft_roce)
		return std::make_unique<soft_roce_carrier>(ip);
	return std::make_unique<udp_carrier>(ip, k == kind::udp_segmented);
}

} // namespace ud_bench
