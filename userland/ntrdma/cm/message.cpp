// SPDX-License-Identifier: MIT
// message.cpp - see message.hpp.
#include "userland/ntrdma/cm/message.hpp"

#include <cstring>

#include <netinet/in.h>

#include "userland/ntrdma/cm/far_address.hpp"
#include "userland/ntrdma/stream/frame.hpp"

namespace coop::ntrdma::cm
{

namespace
{

constexpr std::uint32_t magic = 0x6d63746e;
constexpr std::uint16_t version = 1;

void put_address(writer &to, const sockaddr_storage &a)
{
	const auto *any = reinterpret_cast<const sockaddr *>(&a);
	const bool six = a.ss_family == AF_INET6;
	const auto *in6 = reinterpret_cast<const sockaddr_in6 *>(&a);
	const auto *in = reinterpret_cast<const sockaddr_in *>(&a);
	to.raw(ip_of(any).data(), sizeof(ip_address));
	to.put(ntohs(six ? in6->sin6_port : in->sin_port)).put(std::uint16_t{0});
	to.put(six ? in6->sin6_scope_id : 0u);
}

sockaddr_storage get_address(reader &from)
{
	ip_address ip;
	from.raw(ip.data(), sizeof(ip));
	const auto port = from.get<std::uint16_t>();
	(void)from.get<std::uint16_t>();
	sockaddr_storage a = address_of(ip, port);
	const auto scope = from.get<std::uint32_t>();
	if (a.ss_family == AF_INET6)
		reinterpret_cast<sockaddr_in6 *>(&a)->sin6_scope_id = scope;
	return a;
}

} // namespace

int say(int socket, const message &m)
{
	std::array<std::uint8_t, message_bytes> text{};
	writer to{text.data()};
	to.put(magic).put(version).put(static_cast<std::uint16_t>(m.what));
	to.put(m.qpn).put(m.reason).put(m.responder_resources).put(m.initiator_depth);
	to.put(m.rnr_retry).put(m.private_length).raw(m.data, private_most);
	put_address(to, m.from);
	put_address(to, m.to);
	return send_text(socket, text);
}

int hear(int socket, message_text &text, message &m)
{
	if (const int r = take_text(socket, text.bytes, text.filled); r <= 0)
		return r;
	reader from{text.bytes.data()};
	bool fits = from.get<std::uint32_t>() == magic;
	fits &= from.get<std::uint16_t>() == version;
	m.what = static_cast<kind>(from.get<std::uint16_t>());
	m.qpn = from.get<std::uint32_t>();
	m.reason = from.get<std::uint32_t>();
	m.responder_resources = from.get<std::uint8_t>();
	m.initiator_depth = from.get<std::uint8_t>();
	m.rnr_retry = from.get<std::uint8_t>();
	m.private_length = from.get<std::uint8_t>();
	from.raw(m.data, private_most);
	m.from = get_address(from);
	m.to = get_address(from);
	return fits && m.private_length <= private_most ? 1 : -1;
}

} // namespace coop::ntrdma::cm
