// SPDX-License-Identifier: MIT
// pages.hpp - the memory of a bulk operation as the pages that rpc/fetch moves.
//
// Page i is bytes [shift + 4096 i, shift + 4096 (i + 1)) of the buffer, whatever its segments are.
// A request for a range that begins anywhere has the shift that makes the beginning a page's; all
// others have 0. The last page may reach past the end, and has memory of its own there, because
// rpc/fetch may move a whole datagram that came to the wrong page.
#pragma once

#include "userland/net/memory.hpp"
#include "userland/ud/endpoint.hpp"

namespace coop::net::ud
{

/// Memory of an operation, and the keys of its segments if a device has registered them.
struct keyed_memory : spi::memory {
	std::span<const std::uint32_t> keys = {};

	std::uint32_t key(std::size_t segment) const { return keys.empty() ? 0 : keys[segment]; }
};

constexpr unsigned page_shift = 12;
constexpr std::size_t page_bytes = std::size_t{1} << page_shift;

/// Pieces of [offset, offset + length) of the memory from `start` on, appended to `out`; bytes past
/// `end` are in `beyond`, at their offset in the page. @return false: there are more than `most`.
inline bool page_pieces(const keyed_memory &m, std::size_t start, std::size_t end,
			std::byte *beyond, std::size_t offset, std::size_t length,
			coop::ud::sge *out, std::uint32_t most, std::uint32_t &n)
{
	std::size_t inside = offset >= end ? 0 : std::min(length, end - offset);
	std::size_t left = inside;
	spi::cursor c(m, start + offset);
	while (left) {
		const std::size_t segment = c.index();
		const auto piece = c.next(left);
		if (piece.empty())
			break;
		if (n == most)
			return false;
		out[n++] = {piece.data(), static_cast<std::uint32_t>(piece.size()), m.key(segment)};
		left -= piece.size();
	}
	if (inside == length)
		return true;
	if (n == most)
		return false;
	out[n++] = {beyond + (offset + inside) % page_bytes,
		    static_cast<std::uint32_t>(length - inside)};
	return true;
}

} // namespace coop::net::ud
