// SPDX-License-Identifier: MIT
// tcp_greeting.hpp - how machines of different hosts agree on a link, over its TCP connection.
//
//   caller                             called
//   HELLO    nonce                 ->
//                                  <-  WELCOME  nonce; or REFUSE with a reason
//   START                          ->
//
// Each is 256 bytes, little-endian, and ends with a proof: SipHash with the key, of the nonce that
// the other side has sent (HELLO: of zeros) and of the bytes before. So a START serves one
// connection only. Without a key the proof is a check sum. It covers the greeting: it keeps out
// strangers, but neither those who change packets under way, nor those who read them.
//
//	offset	bytes	field
//	     0	    4	magic	"coNT"
//	     4	    2	version	1
//	     6	    2	kind
//	     8	    4	WQEs of a ring
//	    12	    4	bytes of a stream
//	    16	    4	bytes of a receive of the sender
//	    20	    4	REFUSE: -errno, else 0
//	    24	   16	nonce; START and REFUSE: 0
//	    40	   88	address of the sender, padded with zeros
//	   128	   88	address of the receiver
//	   216	    4	what the sender takes, a bit each. 1: messages that it has not asked for
//	   220	   28	zero
//	   248	    8	proof
//
// A machine listens on TCP port PORT of an address of the form inet:NET:IP@PORT, and on
// 10240 + (344 * portal + TMID) mod 22016 of IP@NET:PID:portal:TMID.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "coop/net/address.hpp"
#include "greeting.hpp"

namespace coop::net::nt
{

using tcp_key = std::array<std::uint8_t, 16>;
using nonce = std::array<std::uint8_t, 16>;

/// Of tcp_greeting::takes. Releases before this take nothing, and ignore the field.
constexpr std::uint32_t takes_messages = 1;

struct tcp_greeting {
	static constexpr std::size_t size = 256;
	static constexpr std::uint16_t version = 1;

	greeting_kind kind{};
	std::uint32_t receives = 0;
	std::uint32_t takes = 0;
	std::int32_t status = 0;
	nonce own{};
	std::string from, to;
};

/// `peers`: the nonce that the other side has sent; HELLO: zeros.
std::array<std::uint8_t, tcp_greeting::size> put(const tcp_greeting &, const tcp_key &,
						 const nonce &peers);
/// @return 0, -EPROTO (no greeting, or of another version or layout) or -EACCES (wrong proof: the
/// sides have different keys).
int get(const std::array<std::uint8_t, tcp_greeting::size> &, const tcp_key &, const nonce &peers,
	tcp_greeting &);

/// The TCP port of an address.
std::uint16_t tcp_port(const address &);

} // namespace coop::net::nt
