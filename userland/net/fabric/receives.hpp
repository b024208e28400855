// SPDX-License-Identifier: MIT
// receives.hpp - the receive buffers, posted once for all peers.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "environment.hpp"

namespace coop::net::fabric
{

/// Owns the buffers. libfabric uses them until the port is closed. Under the machine's lock.
class receives
{
public:
	explicit receives(environment &e) : env_(e) {}

	/// @return 0 or -errno.
	int start()
	{
		// The stagger keeps the starts of the buffers from sharing a few cache sets.
		const std::size_t stagger = 192;
		const std::size_t stride = (env_.buffer_size + 63) / 64 * 64 + stagger;
		const std::size_t size = stride * env_.options.receives;
		// Not cleared: pages that no message touches cost nothing.
		memory_.reset(new std::byte[size]);
		void *desc = nullptr;
		if (int r = env_.memory.enter_own(memory_.get(), size, FI_RECV, region_, desc))
			return r;
		for (unsigned n = 0; n < env_.options.receives; n++) {
			bounce &b = all_.emplace_back(role::receive);
			b.data = memory_.get() + n * stride;
			b.length = env_.buffer_size;
			b.desc = desc;
			if (int r = post(b))
				return r;
		}
		return 0;
	}
	/// None is posted any more: posts them again. @return 0 or -errno.
	int post_all()
	{
		unposted_.clear();
		for (bounce &b : all_)
			if (int r = post(b))
				return r;
		return 0;
	}
	/// The machine has taken the buffer's message. Post it later: the receiver of the message
	/// comes first.
	void give_back(bounce &b)
	{
		unposted_.push_back(&b);
		if (unposted_.size() > env_.options.receives / 4)
			post();
	}
	/// Posts what was given back.
	void post()
	{
		while (!unposted_.empty() && post(*unposted_.back()) == 0)
			unposted_.pop_back();
	}
	bool all_posted() const { return unposted_.empty(); }
	void close_region() { region_.reset(); }

private:
	int post(bounce &b)
	{
		return static_cast<int>(fi_recv(&env_.port.receiver(), b.data, b.length, b.desc,
						FI_ADDR_UNSPEC, static_cast<posted *>(&b)));
	}

	environment &env_;
	std::unique_ptr<std::byte[]> memory_;
	handle<fid_mr> region_;
	std::deque<bounce> all_;
	std::vector<bounce *> unposted_;
};

} // namespace coop::net::fabric
