// SPDX-License-Identifier: MIT
// operations.cpp - see operations.hpp.
#include "operations.hpp"

namespace coop::net::ud
{

operations::operations(const options &o, memory_keys &k, coop::ud::endpoint &ep, const channels &c,
		       spi::sink &s) :
	options_(o),
	keys_(k),
	endpoint_(ep),
	channels_(c),
	sink_(s),
	by_token_(most(o))
{
}

std::uint32_t operations::add(spi::token t, const spi::transfer &x)
{
	if (free_.empty()) {
		if (ops_.size() == most(options_))
			return none;
		free_.push_back(size());
		ops_.emplace_back();
	}
	const std::uint32_t index = free_.back();
	free_.pop_back();
	op &o = ops_[index];
	o.token = t;
	o.queue = x.queue;
	o.peer = x.peer;
	static_cast<spi::memory &>(o.memory) = x.memory;
	o.memory.keys = {};
	if (options_.verbs)
		lend(o);
	o.length = x.length;
	o.remote = x.remote;
	o.key = x.key;
	o.remote_key = x.remote_key;
	o.high = x.high && x.queue == queue_type::msg_send;
	o.reusable = x.reusable;
	o.offset = x.offset;
	o.remote_offset = x.remote_offset;
	o.remote_size = x.remote_size;
	o.cancelled = o.sending = o.ending = o.under_way = o.question = o.asked = false;
	o.attempts = 0;
	o.status = 0;
	o.serving = 0;
	o.result.reset();
	if (t)
		by_token_.insert(t, index);
	return index;
}

// So that the device reads and writes it in place. What fits a command is copied; without keys
// everything is.
void operations::lend(op &o)
{
	if (!o.memory.registration ||
	    (o.queue == queue_type::msg_send && o.length <= channels_.mtu(COOP_CHAN_COMMAND)))
		return;
	// Only a device that was removed has none.
	if (keys_.find(o.memory, &endpoint_, o.memory.keys))
		o.memory.keys = {};
}

} // namespace coop::net::ud
