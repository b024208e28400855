// SPDX-License-Identifier: MIT
// registrar.hpp - registers memory with the domain of a machine.
//
// A registration fails with -ENODEV only if the device was removed; no peer can cause it.
#pragma once

#include "endings.hpp"
#include "objects.hpp"
#include "userland/net/random.hpp"

namespace coop::net::fabric
{

/// Owns no region: the callers do, and close them before the domain. Under the machine's lock.
class registrar
{
public:
	registrar(const provider &p, fabric::port &via, endings &e, local_keys &k) :
		needed_(p.local_keys()),
		key_mask_(p.key_mask()),
		port_(via),
		endings_(e),
		keys_(k)
	{
	}

	/// Whether memory that the provider reads, or receives into, must be registered.
	bool needed() const { return needed_; }
	/// Registers memory for `access`, under a key that was not used lately, and that no peer
	/// can guess if the provider's keys are long. @return 0 or -errno.
	int enter(void *base, std::size_t length, std::uint64_t access, handle<fid_mr> &out)
	{
		int r = -FI_ENOKEY;
		for (unsigned tries = 0; r == -FI_ENOKEY && tries < tries_most; tries++)
			r = take(out, [&](fid_mr **mr) {
				return fi_mr_reg(&port_.domain(), base, length, access, 0,
						 random_.next() & key_mask_, 0, mr, nullptr);
			});
		return checked(r);
	}
	/// Registers memory of the machine's own, if needed; `desc` is for libfabric.
	int enter_own(void *base, std::size_t length, std::uint64_t access, handle<fid_mr> &out,
		      void *&desc)
	{
		const int r = needed_ ? enter(base, length, access, out) : 0;
		desc = out ? fi_mr_desc(out.get()) : nullptr;
		return r;
	}
	/// Descriptors of an operation's memory, if needed. @return 0 or -errno.
	int descriptors(const spi::memory &m, local_keys::descriptors &out)
	{
		return needed_ ? checked(keys_.find(m, this, out)) : 0;
	}
	/// The domain is open: registers all buffers, if needed. Without the machine's lock.
	int begin() { return needed_ ? keys_.open(this, port_.domain()) : 0; }
	/// The domain is about to be closed.
	void forget() { keys_.forget(this); }

private:
	int checked(int status)
	{
		if (status == -FI_ENODEV)
			endings_.lose_device(status);
		return status;
	}

	static constexpr unsigned tries_most = 64; // short keys may be in use

	const bool needed_;
	const std::uint64_t key_mask_;
	fabric::port &port_;
	endings &endings_;
	local_keys &keys_;
	random_source random_;
};

} // namespace coop::net::fabric
