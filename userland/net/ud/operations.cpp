// SPDX-License-Identifier: MIT
// operations.cpp - see operations.hpp.
#include "operations.hpp"

namespace coop::net::ud
{

operations::operations(const options &o, memory_lender &l, spi::sink &s) :
	options_(o),
	lender_(l),
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
	o.length = x.length;
	lender_.lend(o);
	o.remote = x.remote;
	o.key = x.key;
	o.remote_key = x.remote_key;
	o.high = x.high && x.queue == queue_type::msg_send;
	o.reusable = x.reusable;
	o.offset = x.offset;
	o.remote_offset = x.remote_offset;
	o.remote_size = x.remote_size;
	o.cancelled = o.sending = o.waiting = o.ending = o.lent = o.under_way = o.question =
		o.asked = o.of_reusable = false;
	o.attempts = 0;
	o.told_at = 0;
	o.status = 0;
	o.serving = 0;
	o.result.reset();
	if (t)
		by_token_.insert(t, index);
	return index;
}

void operations::replied(identity who)
{
	const auto i = replies_.find(who.packed());
	if (--i->second == 0)
		replies_.erase(i);
}

} // namespace coop::net::ud
