// SPDX-License-Identifier: MIT
// stream.cpp - halves over a socket; see stream.hpp.
#include "userland/ntrdma/stream/stream.hpp"

#include <array>
#include <cerrno>
#include <new>

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>

namespace coop::ntrdma
{

namespace
{

constexpr std::size_t halves_bytes = 2 * sizeof(half);
constexpr std::size_t receive_most = 1u << 20; // of one call, so that a fast peer is not alone
constexpr std::size_t pieces_most = 64;

// Zeroed, and memory is taken only for what a link uses of it.
half *map_halves()
{
	void *at = mmap(nullptr, halves_bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		throw std::bad_alloc{};
	return static_cast<half *>(at);
}

} // namespace

void stream_port::unmap::operator()(half *h) const
{
	munmap(h, halves_bytes);
}

stream_port::stream_port(unique_fd socket, placements *known, std::function<void()> ended) :
	socket_{std::move(socket)},
	halves_{map_halves()},
	encoder_{halves_[0]},
	decoder_{halves_[1], encoder_, known},
	ended_{std::move(ended)}
{
}

stream_port::~stream_port()
{
	// Bytes that nobody has read would turn the end of the connection into a reset, which may
	// overtake what the peer has yet to read.
	shutdown(socket_.get(), SHUT_WR);
	std::array<std::uint8_t, 16u << 10> rest;
	for (int i = 0; i < 64; i++)
		if (recv(socket_.get(), rest.data(), rest.size(), MSG_DONTWAIT) <= 0)
			break;
}

int stream_port::pull(std::span<const wire_segment>, std::span<const place>)
{
	return -EOPNOTSUPP;
}

int stream_port::receive()
{
	std::size_t total = 0;
	while (total < receive_most) {
		std::array<place, 10> to;
		std::array<iovec, 10> v;
		std::size_t n = decoder_.room(to), room = 0;
		if (!n)
			return -EPROTO;
		for (std::size_t i = 0; i < n; i++) {
			v[i] = {to[i].at, to[i].length};
			room += to[i].length;
		}
		msghdr m{};
		m.msg_iov = v.data();
		m.msg_iovlen = n;
		ssize_t got = recvmsg(socket_.get(), &m, MSG_DONTWAIT);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN)
			break;
		if (got <= 0)
			return -ECONNRESET;
		if (!decoder_.arrived(static_cast<std::size_t>(got)))
			return -EPROTO;
		total += static_cast<std::size_t>(got);
		if (static_cast<std::size_t>(got) < room)
			break;
	}
	return total != 0;
}

void stream_port::send()
{
	blocked_ = false;
	while (!broken_) {
		std::array<piece, pieces_most> from;
		std::array<iovec, pieces_most> v;
		std::size_t n = encoder_.next(from), length = 0;
		if (!n)
			return;
		for (std::size_t i = 0; i < n; i++) {
			v[i] = {const_cast<std::uint8_t *>(from[i].at), from[i].length};
			length += from[i].length;
		}
		msghdr m{};
		m.msg_iov = v.data();
		m.msg_iovlen = n;
		ssize_t left = sendmsg(socket_.get(), &m, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (left < 0 && errno == EINTR)
			continue;
		if (left < 0) {
			blocked_ = errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM;
			broken_ = !blocked_;
			return;
		}
		encoder_.sent(static_cast<std::size_t>(left));
		// Less than all: the socket is full, and asking again would only say so.
		if (static_cast<std::size_t>(left) < length) {
			blocked_ = true;
			return;
		}
	}
}

void stream_port::put_at(std::uint64_t number, std::uint64_t offset, std::span<const piece> from,
			 std::uint64_t owner)
{
	encoder_.put_at(number, offset, from, owner);
	send();
}

void stream_port::put_message(std::uint64_t number, std::span<const piece> from,
			      std::uint64_t owner)
{
	encoder_.put_message(number, from, owner);
	send();
}

} // namespace coop::ntrdma
