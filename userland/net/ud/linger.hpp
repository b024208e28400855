// SPDX-License-Identifier: MIT
// linger.hpp - how long a machine that stops stays for its peers.
//
// They may have missed the acknowledgement of what it has received, and would take its silence for
// a failure. So it stays for a moment after it last heard something, and longer while bulk messages
// are under way. Used under the lock of the machine.
#pragma once

#include <cstdint>

namespace coop::net::ud
{

class linger
{
public:
	/// Something came from the network.
	void heard(std::uint64_t now) { heard_at_ = now; }
	bool stopping() const { return stopping_; }
	/// `telling`: bulk messages are under way.
	void stop(bool telling, std::uint64_t now)
	{
		stopping_ = true;
		latest_ = now + (telling ? tell_us : most_us);
		at_ = now;
		if (heard_at_ && now - heard_at_ < recent_us)
			at_ = now + quiet_us;
	}
	/// After stop(), until it says so once: whether the machine has stopped.
	bool over(bool telling, std::uint64_t now)
	{
		if (!stopping_ || at_ == never)
			return false;
		if (now < latest_ &&
		    (telling || now < at_ || (heard_at_ && now - heard_at_ < quiet_us))) {
			if (at_ <= now)
				at_ = now + again_us;
			return false;
		}
		at_ = never;
		return true;
	}
	/// When to ask again.
	std::uint64_t deadline() const { return at_; }

private:
	static constexpr std::uint64_t never = ~0ull;
	static constexpr std::uint64_t quiet_us = 20000; // without a datagram, then it stops
	static constexpr std::uint64_t again_us = 5000;
	static constexpr std::uint64_t most_us = 500000;
	static constexpr std::uint64_t tell_us = 2000000;
	static constexpr std::uint64_t recent_us = 1000000;

	bool stopping_ = false;
	std::uint64_t heard_at_ = 0;
	std::uint64_t at_ = never, latest_ = 0;
};

} // namespace coop::net::ud
