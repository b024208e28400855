// SPDX-License-Identifier: MIT
// far_greeting.cpp - see far_greeting.hpp.
#include "userland/ntrdma/node/far_greeting.hpp"

#include <cerrno>

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
	return !send_text(socket, text);
}

int receive_greeting(int socket, far_text &text, far_greeting &g)
{
	if (const int r = take_text(socket, text.bytes, text.filled); r <= 0)
		return r;
	reader from{text.bytes.data()};
	if (from.get<std::uint32_t>() != magic)
		return -1;
	bool same = from.get<std::uint16_t>() == version;
	g.kind = static_cast<far_kind>(from.get<std::uint16_t>());
	same &= from.get<std::uint32_t>() == layout;
	if (!same)
		return -EPROTO;
	g.from = from.get<std::uint32_t>();
	g.to = from.get<std::uint32_t>();
	from.raw(g.own.data(), 16).raw(g.peer.data(), 16);
	return from.get<std::uint32_t>() == 0 ? 1 : -1;
}

} // namespace coop::ntrdma
