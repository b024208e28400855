// SPDX-License-Identifier: MIT
// claim.hpp - exclusive use of an address by a transfer machine.
//
// On transports between processes a claim is a bound unix socket in the abstract name space, named
// by transport and address. The name is unique in the network name space, as the address is, and
// disappears with the process, however that ends: no file is left behind and no lock can be stale.
// For transports within a process the table of this process suffices.
//
// The table lists the numbers that this process holds, so a search for a free number asks the
// kernel only about numbers of other processes.
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

	/// @return 0, -EADDRINUSE, or the kernel's error (-EMFILE). Replaces the claim held so far,
	/// if any.
	[[nodiscard]] int take(const std::string &transport, const address &, bool private_);
	void release() noexcept;
	/// The highest number, up to that of the address, that this process does not hold there.
	static std::optional<std::uint32_t> highest_free(const std::string &transport,
							 const address &);

private:
	int fd_ = -1;
	std::string line_; // the address without its number; empty: not in the table
	std::uint32_t number_ = 0;
};

} // namespace coop::net::core
