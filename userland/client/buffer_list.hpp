// SPDX-License-Identifier: MIT
// buffer_list.hpp - lists of buffers that hold consecutive bytes of a file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <sys/uio.h>

namespace coop::client
{

// The bytes [offset, offset + length) of a list of buffers.
inline std::vector<iovec> slice(std::span<const iovec> v, std::size_t offset, std::size_t length)
{
	std::vector<iovec> out;
	for (const iovec &i : v) {
		if (offset >= i.iov_len) {
			offset -= i.iov_len;
			continue;
		}
		const std::size_t n = std::min(i.iov_len - offset, length);
		if (!n)
			break;
		out.push_back({static_cast<char *>(i.iov_base) + offset, n});
		length -= n;
		offset = 0;
	}
	return out;
}

inline std::size_t length_of(std::span<const iovec> v)
{
	std::size_t n = 0;
	for (const iovec &i : v)
		n += i.iov_len;
	return n;
}

// Removes the first n bytes.
inline void advance(std::vector<iovec> &v, std::size_t n)
{
	std::size_t i = 0;
	for (; i < v.size() && n >= v[i].iov_len; i++)
		n -= v[i].iov_len;
	v.erase(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(i));
	if (!v.empty()) {
		v[0].iov_base = static_cast<char *>(v[0].iov_base) + n;
		v[0].iov_len -= n;
	}
}

} // namespace coop::client
