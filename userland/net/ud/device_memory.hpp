// SPDX-License-Identifier: MIT
// device_memory.hpp - the keys by which the device of a machine knows the memory of operations.
//
// Used under the lock of the machine, which opens and closes its device there.
#pragma once

#include <memory>

#include "channels.hpp"
#include "operations.hpp"
#include "userland/net/registrations.hpp"

namespace coop::net::ud
{

/// The keys of all machines of a domain.
using memory_keys = registrations<std::unique_ptr<coop::ud::lent_memory>, std::uint32_t>;

class device_memory final : public memory_lender
{
public:
	device_memory(const options &o, memory_keys &k, const void *machine, const channels &c) :
		options_(o),
		keys_(k),
		machine_(machine),
		channels_(c)
	{
	}
	device_memory(const device_memory &) = delete;
	device_memory &operator=(const device_memory &) = delete;

	// So that the device reads and writes it in place. What fits a command is copied; without
	// keys everything is.
	void lend(op &o) override
	{
		if (!options_.verbs || !o.memory.registration ||
		    (o.queue == queue_type::msg_send &&
		     o.length <= channels_.mtu(COOP_CHAN_COMMAND)))
			return;
		// Only a device that was removed has none.
		if (keys_.find(o.memory, machine_, o.memory.keys))
			o.memory.keys = {};
	}

private:
	const options &options_;
	memory_keys &keys_;
	const void *const machine_; // as the keys know it
	const channels &channels_;
};

} // namespace coop::net::ud
