// SPDX-License-Identifier: MIT
// soft_roce.cpp - UD queue pairs over RoCE v2 in plain UDP: no device, no kernel
// module, the same bytes on the wire as hardware and as Linux' rxe.
//
//	post_send -> transmitter -> socket (UDP_SEGMENT)
//	socket (UDP_GRO) -> receiver -> posted WRs -> completions -> poll
//
// Beside the socket there may be a lane, connected to one peer; see roce_lane.hpp.
//
// Packets move only inside post_send() and poll(), so WR memory changes only while
// the owner is in poll(). The protocol above deals with losses, here and on the
// wire. A queue pair that a too long datagram killed works again after
// modify_qp(reset, ready), as on hardware.
//
// Q_Keys are compared literally: bit 31 of a send's Q_Key has no special meaning.
#include "userland/ud/endpoint.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <arpa/inet.h>
#include <netinet/udp.h>
#include <sys/random.h>

#include "userland/ud/memory_map.hpp"
#include "userland/ud/roce_lane.hpp"
#include "userland/ud/roce_socket.hpp"
#include "userland/ud/soft_roce_rx.hpp"
#include "userland/ud/soft_roce_tx.hpp"

#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace coop::ud
{

namespace
{

class soft_roce final : public endpoint
{
public:
	explicit soft_roce(const soft_roce_options &);

	const endpoint_info &info() const override { return info_; }
	int register_memory(void *base, std::size_t length) override
	{
		return memory_.add(base, length, 0);
	}
	int create_qp(const qp_attr &) override;
	std::uint32_t qpn(std::uint32_t qp) const override { return core_.qps.at(qp)->number; }
	std::uint32_t qkey(std::uint32_t qp) const override { return core_.qps.at(qp)->attr.qkey; }
	int modify_qp(std::uint32_t qp, qp_state) override;
	int post_recv(std::uint32_t qp, std::span<const recv_wr>) override;
	int post_send(std::uint32_t qp, const address &, std::span<const send_wr>) override;
	void flush() override { transmitter_.flush(); }
	std::size_t poll(std::span<completion> out) override;
	int fd() const override { return socket_.fd(); }
	bool arm() override;
	endpoint_stats stats() const override { return core_.stats; }
	void reset_stats() override { core_.stats = {}; }

private:
	static constexpr int max_receives = 16; // per poll, while they complete nothing

	bool holds(std::span<const sge> list) const
	{
		return core_.any_memory || memory_.holds(list);
	}

	queue_pair *at(std::uint32_t qp)
	{
		return qp < core_.qps.size() ? core_.qps[qp].get() : nullptr;
	}
	bool receive_next();
	bool receive_from_others();
	bool receive_one(int fd);
	bool peek(int fd, std::span<iovec> &into);

	roce_socket socket_;
	roce_lane lane_{socket_};
	soft_roce_core core_;
	memory_map memory_;
	receiver receiver_;
	transmitter transmitter_;
	endpoint_info info_{};
};

std::uint32_t random_tag()
{
	std::uint32_t value;
	do {
		if (getrandom(&value, sizeof(value), 0) != sizeof(value))
			throw std::system_error(errno, std::generic_category(),
						"soft RoCE: getrandom");
		value >>= 32 - (24 - soft_roce_core::index_bits);
	} while (!value);
	return value;
}

soft_roce::soft_roce(const soft_roce_options &options) :
	socket_(options.ip, options.socket_buffer, options.port, options.traffic_class),
	receiver_(core_),
	transmitter_(core_, socket_, lane_, options.faults)
{
	if (options.mtu < COOP_MTU_MIN || options.mtu > COOP_MTU_MAX || options.mtu % 4)
		throw std::system_error(EINVAL, std::generic_category(),
					"soft RoCE MTU " + std::to_string(options.mtu) +
						": must be a multiple of 4 from 256 to 4096");
	core_.gid = socket_.gid();
	core_.v6 = socket_.v6();
	core_.mtu = std::min(options.mtu, socket_.interface_mtu());
	core_.first_qpn =
		options.first_qpn ? options.first_qpn : random_tag() << soft_roce_core::index_bits;
	core_.port = socket_.port();
	core_.any_memory = options.any_memory;

	info_.gid = core_.gid;
	info_.lid = core_.port == roce_port ? 0 : core_.port;
	info_.sends_copy = true;
	info_.mtu = core_.mtu;
	info_.max_qps = soft_roce_core::max_qps;
	info_.max_sge = soft_roce_core::max_sge;
	info_.max_recv_wr = soft_roce_core::max_wr;
	info_.receive_window = socket_.receive_window(core_.mtu);
	info_.mbps = socket_.interface_mbps();
	info_.name = "soft-roce " + options.ip;
}

int soft_roce::create_qp(const qp_attr &attr)
{
	if (attr.max_recv_wr > soft_roce_core::max_wr ||
	    attr.max_send_wr > soft_roce_core::max_wr || !attr.max_sge ||
	    attr.max_sge > soft_roce_core::max_sge)
		return -EINVAL;
	if (core_.qps.size() == soft_roce_core::max_qps)
		return -ENOSPC;
	const auto index = static_cast<std::uint32_t>(core_.qps.size());
	const std::uint32_t number = core_.first_qpn + index;
	try {
		core_.done.reserve_more(std::size_t{attr.max_recv_wr} + attr.max_send_wr);
		core_.qps.push_back(std::make_unique<queue_pair>(index, number, attr));
	} catch (const std::bad_alloc &) {
		return -ENOMEM;
	}
	return static_cast<int>(index);
}

int soft_roce::modify_qp(std::uint32_t index, qp_state state)
{
	queue_pair *qp = at(index);
	if (!qp)
		return -EINVAL;
	switch (state) {
	case qp_state::error:
		core_.kill(*qp);
		return 0;
	case qp_state::reset:
	case qp_state::ready: // passes through reset
		if (qp->recvs_owed() || qp->sends_owed)
			return -EBUSY;
		qp->state = state;
		return 0;
	}
	return -EINVAL;
}

int soft_roce::post_recv(std::uint32_t index, std::span<const recv_wr> wrs)
{
	queue_pair *qp = at(index);
	if (!qp || qp->state == qp_state::reset)
		return -EINVAL;
	int posted = 0, error = 0;
	for (const recv_wr &wr : wrs) {
		error = holds({wr.list, wr.n_sge}) ? qp->push(wr) : -EFAULT;
		if (error)
			break;
		posted++;
	}
	if (qp->state == qp_state::error)
		core_.kill(*qp);
	else if (posted)
		receiver_.posted(*qp);
	return posted ? posted : error;
}

int soft_roce::post_send(std::uint32_t index, const address &dst, std::span<const send_wr> wrs)
{
	queue_pair *qp = at(index);
	if (!qp || qp->state == qp_state::reset)
		return -EINVAL;

	// Take the valid prefix that has room for its completions.
	std::uint32_t room = qp->attr.max_send_wr - qp->sends_owed;
	std::size_t good = 0;
	int error = 0;
	for (const send_wr &wr : wrs) {
		if (!room)
			error = -ENOMEM;
		else if (wr.n_sge > qp->attr.max_sge)
			error = -EINVAL;
		else if (!holds({wr.list, wr.n_sge}))
			error = -EFAULT;
		if (error)
			break;
		if (wr.signaled || qp->state == qp_state::error)
			room--;
		good++;
	}
	if (!good)
		return error;
	wrs = wrs.first(good);

	if (qp->state == qp_state::ready) {
		error = transmitter_.send(*qp, dst, wrs);
		if (error)
			return error;
	}
	for (const send_wr &wr : wrs) {
		if (qp->state == qp_state::error)
			core_.complete_send(*qp, wr.wr_id, wc_status::flushed);
		else if (wr.signaled)
			core_.complete_send(*qp, wr.wr_id, wc_status::success);
	}
	return static_cast<int>(good);
}

std::size_t soft_roce::poll(std::span<completion> out)
{
	lane_.polled();
	transmitter_.settle();
	if (core_.done.empty())
		transmitter_.flush();
	if (!out.empty())
		for (int i = 0; core_.done.empty() && i < max_receives; i++)
			if (!receive_next())
				break;

	std::size_t n = 0;
	for (; n < out.size() && !core_.done.empty(); n++) {
		const completion &c = out[n] = core_.done.front();
		core_.done.pop();
		if (c.is_recv)
			core_.qps[c.qp]->polled_recv();
		else
			core_.qps[c.qp]->sends_owed--;
	}
	return n;
}

// Whether to repeat a failed receive. A connected socket reports each failure of an earlier send
// once, before it delivers what it holds.
bool again(int &tries)
{
	constexpr int tries_most = 4;
	return errno == EINTR || (errno != EAGAIN && ++tries < tries_most);
}

// The results of a receive besides the bytes.
struct receive_call {
	any_sockaddr source{};
	alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
	msghdr header{};

	ssize_t operator()(int fd, std::span<iovec> into, int flags)
	{
		header.msg_name = &source;
		header.msg_namelen = sizeof(source);
		header.msg_iov = into.data();
		header.msg_iovlen = into.size();
		header.msg_control = control;
		header.msg_controllen = sizeof(control);
		ssize_t n;
		int tries = 0;
		do
			n = recvmsg(fd, &header, flags | MSG_DONTWAIT);
		while (n < 0 && again(tries));
		return n;
	}

	std::size_t segment()
	{
		for (cmsghdr *c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(&header, c)) {
			if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
				int size;
				std::memcpy(&size, CMSG_DATA(c), sizeof(size));
				return size > 0 ? static_cast<std::size_t>(size) : 0;
			}
		}
		return 0;
	}
};

// Lays out by the packet's own head. False: there is no packet.
bool soft_roce::peek(int fd, std::span<iovec> &into)
{
	std::uint8_t head[head_imm];
	iovec iov{head, sizeof(head)};
	receive_call call;
	core_.stats.rx_calls++;
	const ssize_t n = call(fd, {&iov, 1}, MSG_PEEK | MSG_TRUNC);
	if (n < 0)
		return false;
	const auto length = static_cast<std::size_t>(n);
	into = receiver_.lay_out(head, std::min(length, sizeof(head)), length, call.segment());
	return true;
}

// False: the socket is empty.
bool soft_roce::receive_next()
{
	if (!lane_.is_open())
		return receive_one(socket_.fd());
	if (lane_.others_due() && receive_from_others())
		return true;
	const bool found = receive_one(lane_.fd());
	lane_.looked(found);
	return found || (lane_.others_overdue() && receive_from_others());
}

bool soft_roce::receive_from_others()
{
	const bool found = receive_one(socket_.fd());
	lane_.looked_at_others(found);
	return found;
}

bool soft_roce::receive_one(int fd)
{
	std::span<iovec> into;
	if (!receiver_.should_peek())
		into = receiver_.lay_out();
	else if (!peek(fd, into))
		return false;

	receive_call call;
	core_.stats.rx_calls++;
	const ssize_t n = call(fd, into, 0);
	if (n < 0)
		return false;
	if (call.header.msg_flags & MSG_TRUNC) {
		core_.stats.rx_malformed++;
		return true;
	}
	receiver_.deliver(socket_.from(call.source), static_cast<std::size_t>(n), call.segment());
	return true;
}

bool holds_something(int fd)
{
	char byte;
	ssize_t n;
	int tries = 0;
	do
		n = recv(fd, &byte, 1, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
	while (n < 0 && again(tries));
	return n >= 0;
}

bool soft_roce::arm()
{
	transmitter_.flush();
	transmitter_.settle();
	if (!core_.done.empty())
		return false;
	lane_.rest();
	if (lane_.is_open()) {
		if (holds_something(lane_.fd()))
			return false;
		lane_.looked(false);
	}
	// For edge-triggered waiters: a packet already in the socket makes no edge.
	return !holds_something(socket_.fd());
}

} // namespace

std::unique_ptr<endpoint> make_soft_roce(const soft_roce_options &options)
{
	return std::make_unique<soft_roce>(options);
}

} // namespace coop::ud
