// SPDX-License-Identifier: MIT
// lease_returns.hpp - when leases may be believed again after all were returned.
//
// All leases are returned after a lost connection, and when the daemon holds some for us of files
// that the book does not know. Several returns may be under way. A lease that was given between two
// of them ends with the later one, so none is believed before the last has been answered.
#pragma once

#include <mutex>
#include <utility>

#include "userland/client/lease_book.hpp"

namespace coop::client
{

class lease_returns
{
public:
	explicit lease_returns(lease_book &book) : book_(book) {}
	// The connection is lost: the next one begins with a return.
	void lost()
	{
		const std::lock_guard lock(mutex_);
		book_.lost();
		under_way_ += std::exchange(owed_, true) ? 0 : 1;
	}
	// Before each return is sent; reconnected: it is the first of a connection.
	void begin(bool reconnected)
	{
		const std::lock_guard lock(mutex_);
		if (!reconnected)
			book_.lost();
		under_way_ += reconnected && std::exchange(owed_, false) ? 0 : 1;
	}
	void answered()
	{
		const std::lock_guard lock(mutex_);
		if (!--under_way_)
			book_.resume();
	}

private:
	lease_book &book_;
	std::mutex mutex_; // guards the next two
	unsigned under_way_ = 0;
	bool owed_ = false; // one of them is sent with the next connection
};

} // namespace coop::client
