// SPDX-License-Identifier: MIT
// far_greeting.cpp - see far_greeting.hpp.
#include "userland/ntrdma/node/far_greeting.hpp"

#include <cerrno>

#include <sys/socket.h>

#include "userland/ntrdma/stream/frame.hpp"

namespace coop::ntrdma
{

namespace
{

constexpr std::uint32_t magic = 0x7472746e;
constexpr std::uint16_t version = 1;
constexpr std::uint32_t layout = sizeof(half);

} // namespace

bool send_greeting(int socket, const far_greeting &g)
{
	std::array<std::uint8_t, far_greeting_bytes> text{};
	writer to{text.data()};
	to.put(magic).put(version).put(static_cast<std::uint16_t>(g.kind)).put(layout);
	to.put(g.from).put(g.to).raw(g.own.data(), 16).raw(g.peer.data(), 16);
	ssize_t n = send(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
	return n == static_cast<ssize_t>(text.size());
}

int receive_greeting(int socket, far_text &text, far_greeting &g)
{
	ssize_t n = recv(socket, text.bytes.data() + text.filled, text.bytes.size() - text.filled,
			 MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n <= 0)
		return -1;
	text.filled += static_cast<std::size_t>(n);
	if (text.filled < text.bytes.size())
		return 0;
	reader from{text.bytes.data()};
	text.filled = 0;
	bool fits = from.get<std::uint32_t>() == magic;
	fits &= from.get<std::uint16_t>() == version;
	g.kind = static_cast<far_kind>(from.get<std::uint16_t>());
	fits &= from.get<std::uint32_t>() == layout;
	g.from = from.get<std::uint32_t>();
	g.to = from.get<std::uint32_t>();
	from.raw(g.own.data(), 16).raw(g.peer.data(), 16);
	return fits && from.get<std::uint32_t>() == 0 ? 1 : -1;
}

} // namespace coop::ntrdma
