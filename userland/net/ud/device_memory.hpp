// SPDX-License-Identifier: MIT
// device_memory.hpp - the keys by which a device of a machine knows the memory of operations.
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
		find(o.memory);
	}
	/// The keys by which this device knows memory that another one of the machine was lent.
	void know(keyed_memory &m) const
	{
		if (options_.verbs && m.registration)
			find(m);
	}

private:
	// Only a device that was removed has none.
	void find(keyed_memory &m) const
	{
		if (keys_.find(m, machine_, m.keys))
			m.keys = {};
	}

	const options &options_;
	memory_keys &keys_;
	const void *const machine_; // as the keys know it
	const channels &channels_;
};

} // namespace coop::net::ud
