// SPDX-License-Identifier: MIT
// local_keys.cpp - see local_keys.hpp.
#include "local_keys.hpp"

namespace coop::net::fabric
{

int local_keys::find(const spi::memory &m, const void *machine, fid_domain &domain,
		     descriptors &out)
{
	const auto enter = [&](const segment &s, handle<fid_mr> &region, void *&desc) {
		fid_mr *mr = nullptr;
		if (int r = fi_mr_reg(&domain, s.base, s.length, FI_SEND | FI_WRITE, 0, next_key_++,
				      0, &mr, nullptr))
			return r;
		region.reset(mr);
		desc = fi_mr_desc(mr);
		return 0;
	};
	return buffers_.find(m, machine, enter, out);
}

bool covered(const spi::memory &m, local_keys::descriptors keys, std::span<const iovec> pieces,
	     std::span<void *const> descs)
{
	for (std::size_t n = 0; n < pieces.size(); n++) {
		const auto *from = static_cast<const std::byte *>(pieces[n].iov_base);
		bool good = false;
		for (std::size_t i = 0; i < m.segments.size() && i < keys.size(); i++) {
			const auto *base = static_cast<const std::byte *>(m.segments[i].base);
			good |= descs[n] && descs[n] == keys[i] && from >= base &&
				from + pieces[n].iov_len <= base + m.segments[i].length;
		}
		if (!good)
			return false;
	}
	return true;
}

} // namespace coop::net::fabric
