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

	void *add(std::span<const segment> s) { return buffers_.add(s); }
	void remove(void *registration) { buffers_.remove(registration); }

	/// For a machine and its domain. @return 0 or -errno of the registration.
	int find(const spi::memory &, const void *machine, fid_domain &, descriptors &out);
	/// The machine's domain is about to be closed.
	void forget(const void *machine) { buffers_.forget(machine); }

private:
	registrations<handle<fid_mr>, void *> buffers_;
	std::atomic<std::uint64_t> next_key_{1}; // used if the provider lets us choose
};

/// Whether each piece lies in the segment whose descriptor it carries; for tests.
bool covered(const spi::memory &, local_keys::descriptors, std::span<const iovec>,
	     std::span<void *const>);

} // namespace coop::net::fabric
