// SPDX-License-Identifier: MIT
// messages.hpp - small messages, offers of large ones, and what waits on a link to be sent.
//
// A sender has a window of unconsumed messages, so a receiver without buffers keeps a bounded
// number, and messages about other operations never wait behind them.
#pragma once

#include <memory>
#include <set>

#include "transfers.hpp"

namespace coop::net::fabric
{

/// Owns the messages that wait for a receive buffer. Under the machine's lock.
class messages
{
public:
	messages(environment &e, works &w, sends &s, transfers &t) :
		env_(e),
		works_(w),
		sends_(s),
		transfers_(t)
	{
	}

	/// Sends a message, or queues it on the link. @return 0 or -errno.
	int submit(link &, spi::token, const spi::transfer &);
	/// Sends what is queued on the link, in order of priority.
	void send_waiting(link &);

	/// A small message has arrived.
	void take(link &, const std::byte *, std::size_t length);
	void on_offer(link &, const control &);
	/// There is a new receive buffer.
	void receivable();
	/// The link is closed. After a protocol violation no message of it may be delivered.
	void drop(link &);

	time_point deadline() const { return parked_.empty() ? never : parked_.front().until; }
	void expire(time_point now);

private:
	int post(link &, posted &);
	int post(work &);
	int post_copy(work &);
	void park(link &, work *offer, const std::byte *, std::size_t length);
	void unpark();
	void pop();
	work *offer_of(const parked &);
	void keep(link &, std::size_t bytes);

	environment &env_;
	works &works_;
	sends &sends_;
	transfers &transfers_;
	std::list<parked> parked_;                       ///< in order of arrival
	std::size_t parked_bytes_ = 0;                   ///< memory that they take
	std::set<std::pair<std::size_t, link *>> greed_; ///< the same by link
	std::uint64_t parkings_ = 0;
};

} // namespace coop::net::fabric
