// SPDX-License-Identifier: MIT
// memory.hpp - the numbers by which the device of a machine knows the memory of operations.
//
// A buffer is pinned for a machine when it is made, or when the machine is. Used under the lock of
// the machine.
#pragma once

#include "device.hpp"
#include "userland/net/ud/operations.hpp"

namespace coop::net::kernel
{

class memory final : public ud::memory_lender
{
public:
	memory(buffers &b, device &d) : buffers_(b), device_(d) {}
	memory(const memory &) = delete;
	memory &operator=(const memory &) = delete;

	// A short message travels in its operation.
	void lend(ud::op &o) override
	{
		failure_ = 0;
		if (o.queue == queue_type::msg_send && o.length <= COOP_NET_TEXT)
			return;
		if (o.memory.registration)
			failure_ = find(o.memory, o.memory.keys);
	}
	/// Why the last operation got no key; 0: it got one or needs none.
	int failure() const { return failure_; }

	/// 0 or -errno (-ENODEV: the device was removed).
	int find(const spi::memory &m, std::span<const std::uint32_t> &keys)
	{
		const int err = buffers_.find(m, &device_, keys);
		if (err)
			keys = {};
		return err;
	}

private:
	buffers &buffers_;
	device &device_;
	int failure_ = 0;
};

} // namespace coop::net::kernel
