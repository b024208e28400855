// SPDX-License-Identifier: MIT
// content_key.hpp - the name of a file version, by which the page store keeps its bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rpc/base/types.h"

namespace coop::client
{

struct content_key {
	coop_fid fid;
	std::uint64_t version;
	bool operator==(const content_key &o) const
	{
		return fid.hi == o.fid.hi && fid.lo == o.fid.lo && version == o.version;
	}
};

// A number that the same block of the same content has every time.
inline std::uint64_t fingerprint(const content_key &key, std::uint64_t block_index)
{
	std::uint64_t h = key.fid.hi ^ 0x9e3779b97f4a7c15u;
	for (const std::uint64_t v : {key.fid.lo, key.version, block_index}) {
		h = (h ^ v) * 0xff51afd7ed558ccdu;
		h ^= h >> 32;
	}
	return h;
}

struct content_hash {
	std::size_t operator()(const content_key &k) const { return fingerprint(k, 0); }
};

} // namespace coop::client
