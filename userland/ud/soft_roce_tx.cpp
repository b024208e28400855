// SPDX-License-Identifier: MIT
// soft_roce_tx.cpp - see soft_roce_tx.hpp.
#include "userland/ud/soft_roce_tx.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <netinet/udp.h>
#include <poll.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

namespace coop::ud
{

namespace
{
constexpr int longest_wait_ms = 5; // for room in the socket buffer

std::size_t payload_of(const send_wr &wr)
{
	std::size_t bytes = 0;
	for (std::uint32_t i = 0; i < wr.n_sge; i++)
		bytes += wr.list[i].length;
	return bytes;
}

std::size_t payload_of(std::span<const send_wr> wrs)
{
	std::size_t bytes = 0;
	for (const send_wr &wr : wrs)
		bytes += payload_of(wr);
	return bytes;
}

} // namespace

transmitter::transmitter(soft_roce_core &core, const roce_socket &socket, roce_lane &lane,
			 const wire_faults &faults) :
	core_(core),
	socket_(socket),
	lane_(lane),
	wire_(faults),
	segmenting_(socket.segments()),
	side_(side_bytes),
	linear_(max_super_bytes)
{
	flow_.src = socket.gid();
	flow_.src_port = socket.port();
	flow_.v6 = socket.v6();
}

int transmitter::send(queue_pair &qp, const address &dst, std::span<const send_wr> wrs)
{
	static_assert(sizeof(dst.gid) == sizeof(flow_.dst));
	const std::uint16_t port = core_.port == roce_port ? roce_port : dst.lid;
	if (std::memcmp(flow_.dst.data(), dst.gid, sizeof(dst.gid)) || flow_.dst_port != port) {
		flush(); // waiting datagrams go to another peer
		std::memcpy(flow_.dst.data(), dst.gid, sizeof(dst.gid));
		flow_.dst_port = port;
		reachable_ = socket_.destination(flow_.dst, port, to_);
		lane_.turn(to_);
	}
	if (!reachable_)
		return -EAFNOSUPPORT;

	const bool hold = !wrs.empty() && wrs.back().more && payload_of(wrs) <= most_held;
	for (const send_wr &wr : wrs) {
		const std::size_t payload = payload_of(wr);
		if (payload <= core_.mtu)
			append(qp, dst, wr, payload, hold || payload <= inline_payload);
	}
	if (!hold)
		flush();
	return 0;
}

void transmitter::append(queue_pair &qp, const address &dst, const send_wr &wr, std::size_t payload,
			 bool copied)
{
	const std::size_t length = datagram_bytes(payload, wr.has_imm);
	// Entries: the head, payload pieces, and the bytes after them, which the next head extends.
	if (n_iov_ + wr.n_sge + 2 > max_iov ||
	    side_used_ + head_imm + (copied ? payload : 0) + 3 + icrc_bytes > side_bytes)
		flush();
	message &m = place(length, wr.has_imm);

	datagram_head head{};
	head.dest_qp = dst.qpn;
	head.src_qp = qp.number;
	head.qkey = dst.qkey;
	head.psn = qp.psn++;
	head.imm = wr.imm;
	head.has_imm = wr.has_imm;
	head.pad = pad_bytes(payload);
	const std::size_t head_length = head_bytes(wr.has_imm);

	std::uint8_t *start = side_.data() + side_used_;
	encode_head(start, head);
	// The identification that the kernel will use.
	const auto ip_id = static_cast<std::uint16_t>(m.segments - 1);
	std::uint32_t crc = icrc_begin(flow_, length, ip_id, start, head_length);
	std::uint8_t *p = start + head_length;
	if (!copied)
		add(start, head_length);
	for (std::uint32_t i = 0; i < wr.n_sge; i++) {
		const sge &entry = wr.list[i];
		if (!entry.length)
			continue;
		crc = crc32(crc, entry.addr, entry.length);
		if (copied) {
			std::memcpy(p, entry.addr, entry.length);
			p += entry.length;
		} else {
			add(entry.addr, entry.length);
		}
	}
	std::uint8_t *behind = p;
	if (head.pad) {
		std::memset(p, 0, head.pad);
		crc = crc32(crc, p, head.pad);
		p += head.pad;
	}
	put_icrc(p, crc);
	p += icrc_bytes;
	std::uint8_t *rest = copied ? start : behind;
	add(rest, static_cast<std::size_t>(p - rest));
	side_used_ = static_cast<std::size_t>(p - side_.data());

	core_.stats.tx_packets++;
	core_.stats.tx_bytes += payload;
}

// The message that the datagram joins; it already counts the datagram.
transmitter::message &transmitter::place(std::size_t length, bool has_imm)
{
	if (n_messages_ && segmenting_) {
		message &m = messages_[n_messages_ - 1];
		// All but the last must be equal for the receiver.
		if (!m.closed && length <= m.stride &&
		    (m.has_imm == has_imm || length < m.stride) && m.segments < max_segments &&
		    m.length + length <= max_super_bytes) {
			m.closed = length < m.stride;
			m.length += length;
			m.segments++;
			return m;
		}
	}
	if (n_messages_ == max_messages)
		flush();
	message &m = messages_[n_messages_++];
	m = {length, length, 1, n_iov_, has_imm, false};
	return m;
}

void transmitter::add(const void *data, std::size_t length)
{
	const bool first_of_message = messages_[n_messages_ - 1].first_iov == n_iov_;
	if (!first_of_message) {
		iovec &last = iov_[n_iov_ - 1];
		if (static_cast<std::uint8_t *>(last.iov_base) + last.iov_len == data) {
			last.iov_len += length;
			return;
		}
	}
	iov_[n_iov_++] = {const_cast<void *>(data), length};
}

void transmitter::flush()
{
	if (!n_messages_)
		return;
	if (wire_.active()) {
		for (std::size_t i = 0; i < n_messages_; i++)
			send_singly(messages_[i]);
	} else {
		send_batch();
		if (core_.port != roce_port)
			lane_.sent();
	}
	n_messages_ = n_iov_ = side_used_ = 0;
}

void transmitter::set_header(std::size_t i)
{
	const message &m = messages_[i];
	const std::size_t end = i + 1 < n_messages_ ? messages_[i + 1].first_iov : n_iov_;
	msghdr &h = headers_[i].msg_hdr;
	h = msghdr{};
	h.msg_iov = iov_.data() + m.first_iov;
	h.msg_iovlen = end - m.first_iov;
	if (m.segments > 1) {
		h.msg_control = control_[i].bytes;
		h.msg_controllen = sizeof(control_[i].bytes);
		cmsghdr *c = CMSG_FIRSTHDR(&h);
		c->cmsg_level = IPPROTO_UDP;
		c->cmsg_type = UDP_SEGMENT;
		c->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
		const auto size = static_cast<std::uint16_t>(m.stride);
		std::memcpy(CMSG_DATA(c), &size, sizeof(size));
	}
}

// Headers for a connected socket carry no name: the kernel would look up the route to it.
void transmitter::address_headers(int fd)
{
	const bool named = fd == socket_.fd();
	for (std::size_t i = 0; i < n_messages_; i++) {
		headers_[i].msg_hdr.msg_name = named ? &to_ : nullptr;
		headers_[i].msg_hdr.msg_namelen = named ? socket_.address_length() : 0;
	}
}

void transmitter::send_batch()
{
	for (std::size_t i = 0; i < n_messages_; i++)
		set_header(i);
	int fd = lane_.way();
	address_headers(fd);

	for (std::size_t next = 0; next < n_messages_;) {
		int n;
		core_.stats.tx_calls++;
		if (n_messages_ - next == 1)
			n = send_one(fd, headers_[next].msg_hdr) < 0 ? -1 : 1;
		else
			n = sendmmsg(fd, headers_.data() + next,
				     static_cast<unsigned>(n_messages_ - next), MSG_DONTWAIT);
		if (n > 0) {
			next += static_cast<std::size_t>(n);
			continue;
		}
		if (errno == EINTR)
			continue;
		if (errno == EAGAIN && wait_writable(fd))
			continue;
		if (fd != socket_.fd()) { // the error may be of an earlier datagram
			lane_.leave();
			address_headers(fd = lane_.way());
			continue;
		}
		const message &m = messages_[next++];
		// The device cannot segment, or a datagram does not fit: sending them one by one
		// tells which.
		if (m.segments > 1 && (errno == EINVAL || errno == EIO || errno == EMSGSIZE))
			send_singly(m);
		else
			core_.stats.tx_errors += m.segments;
	}
}

// Uses the call that is cheapest for the kernel.
ssize_t transmitter::send_one(int fd, const msghdr &h)
{
	if (h.msg_iovlen == 1 && !h.msg_controllen)
		return sendto(fd, h.msg_iov->iov_base, h.msg_iov->iov_len, MSG_DONTWAIT,
			      static_cast<const sockaddr *>(h.msg_name), h.msg_namelen);
	return sendmsg(fd, &h, MSG_DONTWAIT);
}

bool transmitter::wait_writable(int fd)
{
	pollfd p{fd, POLLOUT, 0};
	return ::poll(&p, 1, longest_wait_ms) > 0;
}

// Sends each datagram by itself, with identification 0, as the kernel does then.
void transmitter::send_singly(const message &m)
{
	std::size_t at = 0;
	for (std::size_t i = m.first_iov; at < m.length; i++) {
		std::memcpy(linear_.data() + at, iov_[i].iov_base, iov_[i].iov_len);
		at += iov_[i].iov_len;
	}

	const wire_simulator::emit out = [this](const any_sockaddr &to,
						std::span<const std::uint8_t> datagram) {
		emit(to, datagram);
	};
	std::uint32_t sent = 0;
	for (std::uint32_t k = 0; k < m.segments; k++) {
		const std::size_t length = std::min(m.stride, m.length - k * m.stride);
		const std::span<std::uint8_t> datagram(linear_.data() + k * m.stride, length);
		if (!flow_.v6) {
			std::uint8_t *icrc = datagram.data() + length - icrc_bytes;
			put_icrc(icrc, get_icrc(icrc) ^
					       icrc_of_id(static_cast<std::uint16_t>(k), length));
		}
		if (wire_.active())
			wire_.pass(to_, datagram, out);
		else
			sent += emit(to_, datagram);
	}
	if (!wire_.active() && sent == m.segments)
		segmenting_ = false;
}

bool transmitter::emit(const any_sockaddr &to, std::span<const std::uint8_t> datagram)
{
	for (;;) {
		core_.stats.tx_calls++;
		if (sendto(socket_.fd(), datagram.data(), datagram.size(), MSG_DONTWAIT,
			   &to.generic, socket_.address_length()) >= 0)
			return true;
		if (errno == EINTR || (errno == EAGAIN && wait_writable(socket_.fd())))
			continue;
		core_.stats.tx_errors++;
		return false;
	}
}

void transmitter::settle()
{
	if (wire_.active())
		wire_.release(
			[this](const any_sockaddr &to, std::span<const std::uint8_t> datagram) {
				emit(to, datagram);
			});
}

} // namespace coop::ud
