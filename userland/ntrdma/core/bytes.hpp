// SPDX-License-Identifier: MIT
// bytes.hpp - moving bytes between lists of places and the streams of a half.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include "userland/ntrdma/core/port.hpp"

namespace coop::ntrdma
{

/// Calls f(pointer, bytes) for the pieces of [offset, offset + length) of a list of places.
template <typename F>
void for_pieces(std::span<const place> list, std::uint64_t offset, std::uint64_t length, F f)
{
	for (const place &p : list) {
		if (!length)
			return;
		if (offset >= p.length) {
			offset -= p.length;
			continue;
		}
		std::uint64_t n = std::min(length, p.length - offset);
		f(p.at + offset, n);
		offset = 0;
		length -= n;
	}
}

inline void into_stream(std::uint8_t *stream, std::uint64_t at, const std::uint8_t *from,
			std::uint64_t n)
{
	std::uint64_t offset = at % stream_bytes, first = std::min(n, stream_bytes - offset);
	std::memcpy(stream + offset, from, first);
	std::memcpy(stream, from + first, n - first);
}

inline void from_stream(const std::uint8_t *stream, std::uint64_t at, std::uint8_t *to,
			std::uint64_t n)
{
	std::uint64_t offset = at % stream_bytes, first = std::min(n, stream_bytes - offset);
	std::memcpy(to, stream + offset, first);
	std::memcpy(to + first, stream, n - first);
}

/// Most bytes of one pull, which bounds the time that a device's lock is held.
constexpr std::uint64_t pull_bytes = 1u << 20;

/// The pieces of [offset, offset + length) of `list`, stored in `out`; returns how many.
template <typename T>
std::size_t slice(std::span<const T> list, std::uint64_t offset, std::uint64_t length, T *out)
{
	std::size_t n = 0;
	for (T p : list) {
		if (!length)
			break;
		if (offset >= p.length) {
			offset -= p.length;
			continue;
		}
		if constexpr (requires { p.at; })
			p.at += offset;
		else
			p.addr += offset;
		p.length = std::min(length, p.length - offset);
		offset = 0;
		length -= p.length;
		out[n++] = p;
	}
	return n;
}

} // namespace coop::ntrdma
