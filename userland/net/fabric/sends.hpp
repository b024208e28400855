// SPDX-License-Identifier: MIT
// sends.hpp - control messages, and all that libfabric has been given or had no room for.
//
// What the provider does not copy at once is copied here first, and stays until its completion. A
// provider may not tell when it has room again, or that a completion has come: while it owes
// either, a sleeping thread is woken to poll.
#pragma once

#include <deque>
#include <vector>

#include "environment.hpp"

namespace coop::net::fabric
{

/// Owns the copies, and the lists of links with completions to come and of links to try again.
/// Under the machine's lock.
class sends
{
public:
	explicit sends(environment &e) : env_(e) {}

	/// Sends now, or as soon as there is room.
	void send(link &l, const control &c) { send(l, c, 0); }
	/// The same for an answer, which costs the peer nothing: a peer that reads none loses its
	/// link.
	void answer(link &, const control &);
	/// Tells the peer how its work has ended.
	void refuse(link &, std::uint32_t peer_id, int status);
	/// There is room for another message of this peer.
	void consumed(link &);

	/// Null: there is no memory. The caller fills it and posts or frees it.
	bounce *make_copy(std::size_t length, kind);
	/// @return 0: it is freed once it has been sent; -EAGAIN: later; or the link is broken.
	int post(link &, bounce &);
	void free(bounce &b) { (b.small ? small_ : large_).push_back(&b); }

	/// A completion for `p` is to come from this link.
	void posted_on(link &, posted &);
	/// A completion has come.
	void completed(bounce &);
	void completed(work &);
	/// No completion is to come any more, for any link.
	void forget_copies();

	/// The provider has no room for more of this link.
	void try_again(link &);
	/// The same; `p` is posted again before anything else of the link.
	void queue(link &l, posted &p)
	{
		l.urgent.push_back(&p);
		try_again(l);
	}
	bool trying_again() const { return !backlog_.empty(); }
	/// The links to try again, removed from the list.
	std::vector<link *> take_backlog() { return take_all(backlog_, link::backlog_place); }

	/// The link is closed: completions to come no longer concern it.
	void detach(link &);
	/// Closes all regions.
	void close_regions();

	time_point deadline() const { return tick_; }
	void expire(time_point now);

private:
	void send(link &, const control &, std::uint64_t nth);
	link *take_off(posted &);
	void nudge();

	environment &env_;
	std::deque<bounce> copies_;
	std::vector<bounce *> large_, small_; ///< unused
	roster<link *> posting_, backlog_;
	unsigned out_ = 0;        ///< completions to come
	time_point tick_ = never; ///< next poll of a provider that does not wake us
};

} // namespace coop::net::fabric
