// SPDX-License-Identifier: MIT
// tcp_greeting.cpp - see tcp_greeting.hpp.
#include "tcp_greeting.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "rpc/base/mac.h"
#include "userland/ntrdma/stream/frame.hpp"

namespace coop::net::nt
{

namespace
{

constexpr std::uint32_t magic = 0x544e6f63; // "coNT"
constexpr std::size_t text_bytes = 88, proof_at = tcp_greeting::size - 8;
static_assert(address::text_max < text_bytes);

std::uint64_t proof(const std::uint8_t *text, const tcp_key &key, const nonce &peers)
{
	coop_mac_state s;
	coop_mac_begin(&s, key.data());
	coop_mac_add(&s, peers.data(), peers.size());
	coop_mac_add(&s, text, proof_at);
	return coop_mac_end(&s);
}

void put_text(rdma::writer &w, const std::string &s)
{
	std::array<char, text_bytes> padded{};
	std::copy_n(s.data(), std::min(s.size(), text_bytes - 1), padded.data());
	w.raw(padded.data(), padded.size());
}

std::string get_text(rdma::reader &r)
{
	std::array<char, text_bytes> padded;
	r.raw(padded.data(), padded.size());
	padded.back() = 0;
	return padded.data();
}

} // namespace

std::array<std::uint8_t, tcp_greeting::size> put(const tcp_greeting &g, const tcp_key &key,
						 const nonce &peers)
{
	std::array<std::uint8_t, tcp_greeting::size> text{};
	rdma::writer w{text.data()};
	w.put(magic).put(tcp_greeting::version).put(static_cast<std::uint16_t>(g.kind));
	w.put(rdma::ring_entries).put(rdma::stream_bytes).put(g.receives);
	w.put(static_cast<std::uint32_t>(g.status)).raw(g.own.data(), g.own.size());
	put_text(w, g.from);
	put_text(w, g.to);
	w.put(g.takes);
	rdma::writer{text.data() + proof_at}.put(proof(text.data(), key, peers));
	return text;
}

int get(const std::array<std::uint8_t, tcp_greeting::size> &text, const tcp_key &key,
	const nonce &peers, tcp_greeting &out)
{
	rdma::reader r{text.data()};
	if (r.get<std::uint32_t>() != magic || r.get<std::uint16_t>() != tcp_greeting::version)
		return -EPROTO;
	out.kind = static_cast<greeting_kind>(r.get<std::uint16_t>());
	bool same = r.get<std::uint32_t>() == rdma::ring_entries;
	same &= r.get<std::uint32_t>() == rdma::stream_bytes;
	out.receives = r.get<std::uint32_t>();
	out.status = static_cast<std::int32_t>(r.get<std::uint32_t>());
	r.raw(out.own.data(), out.own.size());
	out.from = get_text(r);
	out.to = get_text(r);
	out.takes = r.get<std::uint32_t>();
	if (rdma::reader{text.data() + proof_at}.get<std::uint64_t>() !=
	    proof(text.data(), key, peers))
		return -EACCES;
	return same ? 0 : -EPROTO;
}

std::uint16_t tcp_port(const address &a)
{
	// Below the ports that systems assign by themselves. TMIDs below 344 never collide.
	constexpr std::uint32_t first = 10240, each = 344, range = each * address::portals;
	if (a.kind != address::form::lnet)
		return static_cast<std::uint16_t>(a.id);
	return static_cast<std::uint16_t>(first + (each * a.portal + a.id) % range);
}

} // namespace coop::net::nt
