// SPDX-License-Identifier: MIT
// transfers.hpp - bulk data and large messages: request, grant, move, done (wire.hpp).
//
// The owner of the memory checks each request before any byte moves, so an outdated descriptor
// touches no memory. An operation is reported when its memory is quiet. If a peer or the provider
// keeps using the memory of a cancelled one, its link is closed.
#pragma once

#include <vector>

#include "mover.hpp"
#include "works.hpp"

namespace coop::net::fabric
{

/// Owns the lists of works that end within a limited time. Under the machine's lock.
class transfers
{
public:
	transfers(environment &e, works &w, sends &s) : env_(e), works_(w), sends_(s), mover_(e, s)
	{
	}

	/// Starts an active operation. @return 0 or -errno.
	int submit(link &, spi::token, const spi::transfer &);
	/// The link is ready: sends the request of a work.
	void begin(work &);
	/// There is a place for what the peer has offered or wants to put.
	void grant(work &);
	/// Continues writing or reading. @return 0 or -errno, see mover::move().
	int move(work &);
	/// What was posted so far is complete.
	void completed(work &);
	/// The message of this landing will not arrive.
	void drop_landing(work &);

	/// Ends the operation, or every message that lands in it, as soon as memory can be quiet.
	void cancel(work &);
	void cancel_landings(spi::token);

	void on_put(link &, const control &);
	void on_get(link &, const control &);
	void on_grant(link &, const control &);
	void on_lend(link &, const control &);
	void on_landed(work *);
	void on_done(link &, const control &);
	void on_cancel(link &, const control &);

	time_point deadline() const;
	void expire(time_point now);

private:
	work *make(link &, const control &, queue_type);
	void lend(work &);
	void move_or_queue(work &);
	void moved(work &);
	void has_read(work &);
	void be_patient(work &);
	work *named(link &, const control &);
	work *use_of(link &, std::uint32_t id);

	environment &env_;
	works &works_;
	sends &sends_;
	mover mover_;
	roster<work *> landing_;         ///< messages that peers may write
	time_point landings_at_ = never; ///< next look at them
	std::vector<std::pair<time_point, std::uint32_t>> patience_; ///< cancelled works, in order
};

} // namespace coop::net::fabric
