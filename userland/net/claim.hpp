// SPDX-License-Identifier: MIT
// claim.hpp - an address that a transfer machine has to itself.
//
// On transports between processes a claim is a bound unix socket in the abstract name space,
// named after transport and address: it is one of a kind in the network name space, as the
// address is, and goes with the process however that ends. No file is left behind and no lock
// can be stale. Transports within a process have what this process holds, and no more.
//
// What this process holds is kept by number, so that whoever looks for a free one asks the
// kernel about those of others alone.
#pragma once

#include <optional>
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
	/// The highest number up to that of the address that this process does not hold there.
	static std::optional<std::uint32_t> highest_free(const std::string &transport,
							 const address &);

private:
	int fd_ = -1;
	std::string line_; // addresses that differ in the number alone; empty: not in the book
	std::uint32_t number_ = 0;
};

} // namespace coop::net::core
