// SPDX-License-Identifier: MIT
// local_keys.hpp - local keys of buffers, for providers that need one for all memory they read.
#pragma once

#include <atomic>

#include "../registrations.hpp"
#include "provider.hpp"

namespace coop::net::fabric
{

/// The keys of one transport domain.
class local_keys
{
public:
	/// fi_mr_desc() of each segment, in order.
	using descriptors = std::span<void *const>;

	/// A buffer is made. @return 0 or -errno.
	int add(std::span<const segment> s, void **registration)
	{
		return buffers_.add(s, registration);
	}
	void remove(void *registration) { buffers_.remove(registration); }

	/// A machine has opened its domain: registers all buffers. @return 0 or -errno.
	int open(const void *machine, fid_domain &domain)
	{
		return buffers_.open(machine, [this, &domain](const segment &s,
							      handle<fid_mr> &region, void *&desc) {
			fid_mr *mr = nullptr;
			if (int r = fi_mr_reg(&domain, s.base, s.length,
					      FI_SEND | FI_WRITE | FI_READ, 0, next_key_++, 0, &mr,
					      nullptr))
				return r;
			region.reset(mr);
			desc = fi_mr_desc(mr);
			return 0;
		});
	}
	/// The machine's domain is about to be closed.
	void forget(const void *machine) { buffers_.forget(machine); }

	/// For a machine. @return 0, or -errno of a device that was removed.
	int find(const spi::memory &m, const void *machine, descriptors &out)
	{
		return buffers_.find(m, machine, out);
	}

private:
	registrations<handle<fid_mr>, void *> buffers_;
	std::atomic<std::uint64_t> next_key_{1}; // used if the provider lets us choose
};

/// Whether each piece lies in the segment whose descriptor it carries; for tests.
inline bool covered(const spi::memory &m, local_keys::descriptors keys,
		    std::span<const iovec> pieces, std::span<void *const> descs)
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
