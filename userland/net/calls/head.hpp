// SPDX-License-Identifier: MIT
// head.hpp - the messages of calls, as they are on the wire.
//
// Every message of an rpc object begins with this head, little-endian, 32 bytes. A message that is
// shorter, or has another magic, version or kind, or flags that are not defined, is dropped and
// counted.
//
//   offset  bytes  field
//        0      4  magic     "CoRP"
//        4      1  version   1
//        5      1  kind      see call_kind
//        6      2  flags     1: the body is a descriptor of the bytes, which are read by bulk
//        8      8  call      chosen by the caller, unique for as long as it lives; message: 0
//       16      4  method    request: its number; answer: 0 or a negative errno value; else 0
//       20      4  time      request: milliseconds until the caller gives up, 0: never; else 0
//       24      8  length    bytes of the argument, result or message
//       32         body      `length` bytes, or with flag 1 a descriptor up to the end
//
//   kind         from      answered by
//   1 request    caller    answer, once; or not at all, if the caller has given up
//   2 answer     callee    -
//   3 probe      caller    alive or unknown: is this call still under way at your side?
//   4 alive      callee    -
//   5 unknown    callee    -; the caller ends the call (-ECONNRESET) when it gets the second one,
//                          because the first may have overtaken the answer
//   6 message    any       -; what rpc::post() sends
//
// The time is relative, so clocks need not agree. Side by side with a session of the transport that
// delivers a message at most once, and a caller that never repeats an id, a request runs at most
// once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <endian.h>

namespace coop::net::core
{

enum class call_kind : std::uint8_t { request = 1, answer, probe, alive, unknown, message };

struct call_head {
	static constexpr std::uint32_t magic = 0x50526f43; // "CoRP"
	static constexpr std::uint8_t version = 1;
	static constexpr std::size_t size = 32;
	static constexpr std::uint16_t bulk = 1;

	call_kind kind = call_kind::message;
	std::uint16_t flags = 0;
	std::uint64_t call = 0;
	std::uint32_t method = 0;
	std::uint32_t time = 0;
	std::uint64_t length = 0;

	void put(std::byte *at) const
	{
		at = store(at, htole32(magic));
		at = store(at, version);
		at = store(at, static_cast<std::uint8_t>(kind));
		at = store(at, htole16(flags));
		at = store(at, htole64(call));
		at = store(at, htole32(method));
		at = store(at, htole32(time));
		store(at, htole64(length));
	}

	/// @return false: not such a message. Afterwards `from` is the body, and without flag 1 it
	/// has `length` bytes.
	static bool get(std::span<const std::byte> &from, call_head &out)
	{
		if (from.size() < size || le32toh(load<std::uint32_t>(from, 0)) != magic ||
		    load<std::uint8_t>(from, 4) != version)
			return false;
		const auto kind = load<std::uint8_t>(from, 5);
		if (kind < 1 || kind > static_cast<std::uint8_t>(call_kind::message))
			return false;
		out.kind = static_cast<call_kind>(kind);
		out.flags = le16toh(load<std::uint16_t>(from, 6));
		out.call = le64toh(load<std::uint64_t>(from, 8));
		out.method = le32toh(load<std::uint32_t>(from, 16));
		out.time = le32toh(load<std::uint32_t>(from, 20));
		out.length = le64toh(load<std::uint64_t>(from, 24));
		from = from.subspan(size);
		if (out.flags & ~bulk)
			return false;
		if (out.flags & bulk)
			return out.kind <= call_kind::answer && out.length && !from.empty();
		return out.length == from.size();
	}

private:
	template <class value> static std::byte *store(std::byte *at, value v)
	{
		std::memcpy(at, &v, sizeof(v));
		return at + sizeof(v);
	}
	template <class value> static value load(std::span<const std::byte> from, std::size_t at)
	{
		value v;
		std::memcpy(&v, from.data() + at, sizeof(v));
		return v;
	}
};

} // namespace coop::net::core
