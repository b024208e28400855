// SPDX-License-Identifier: MIT
// claim.hpp - an address that a transfer machine has to itself.
//
// On transports between processes a claim is a bound unix socket in the abstract name space,
// named after transport and address: it is one of a kind in the network name space, as the
// address is, and goes with the process however that ends. No file is left behind and no lock
// can be stale. Transports within a process keep theirs in a set.
#pragma once

#include <string>

#include "coop/net/address.hpp"

namespace coop::net::core
{

class claim
{
public:
	claim() = default;
	claim(claim &&) noexcept;
	claim &operator=(claim &&) noexcept;
	~claim() { release(); }

	/// @return 0, -EADDRINUSE, or what the kernel says (-EMFILE). Takes the place of the
	/// claim held so far, if any.
	[[nodiscard]] int take(const std::string &transport, const address &, bool private_);
	void release() noexcept;

private:
	int fd_ = -1;
	std::string name_; // in the set; empty if not
};

} // namespace coop::net::core
