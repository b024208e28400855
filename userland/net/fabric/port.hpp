// SPDX-License-Identifier: MIT
// port.hpp - making and closing links. The machine sends on them.
//
// connected_port: end points of libfabric that connect (tcp, verbs).
// datagram_port: one end point for all links, and sockets of the host for the handshake (shm).
#pragma once

#include <algorithm>
#include <cerrno>
#include <set>
#include <span>
#include <sys/uio.h>
#include <utility>

#include "link.hpp"

namespace coop::net::fabric
{

/// How long a peer has to answer: failure is known within five seconds.
constexpr std::chrono::milliseconds give_up_after{4500};

class port
{
public:
	/// Implemented by the machine. Called under its lock, like everything here.
	class events
	{
	public:
		/// Do not answer connection requests.
		virtual bool mute() const = 0;
		/// A peer wants a link. @return the link to answer with, or null: refuse.
		virtual link *admit(const hello &) = 0;
		/// The greeting for the peer of this link.
		virtual hello greeting(const link &) const = 0;
		/// The link can be sent on.
		virtual void linked(link &) = 0;
		/// Checks and stores the peer's greeting. False: it is another machine.
		virtual bool accept(link &, const hello &) = 0;
		/// The link has failed, or ended. The machine closes it later.
		virtual void unlinked(link &, int status) = 0;
		/// The port is unusable: its device was removed. No peer can cause this.
		virtual void broken(int) {}
		virtual time_point now() = 0;
		/// A program polls, and has few links.
		virtual bool polled() const = 0;

	protected:
		~events() = default;
	};

	explicit port(const provider &p) : provider_(p) {}
	virtual ~port() = default;

	/// Opens the domain, without the machine's lock. `own`: its number may be `*`. @return 0 or
	/// -errno.
	virtual int prepare(const address &own, events &) = 0;
	/// @return 0 or -errno; -EADDRINUSE: another address of this host may be tried.
	virtual int start(const address &own) = 0;
	virtual fid_domain &domain() = 0;
	virtual fid_cq &queue() = 0;
	/// The end point to post receives to.
	virtual fid_ep &receiver() = 0;

	/// Starts connecting. @return 0: linked() or unlinked() follows; -errno.
	virtual int connect(link &) = 0;
	/// The link is connecting, and a message from the peer has already arrived. Its greeting
	/// has arrived before that; handle it now. linked() or unlinked() follows at once, or the
	/// peer has not accepted.
	virtual void catch_up(link &) = 0;
	/// Closes the link; its accesses to our memory have ended, if the provider permits that.
	virtual void close(link &) = 0;
	/// Whether close() makes memory quiet while the peer is alive.
	virtual bool close_is_quiet() const = 0;
	/// Handles connections that come and go. @return how many.
	virtual unsigned poll() = 0;
	/// Something was sent, and the peer may be asleep.
	virtual void sent(link &) {}
	/// Writes these bytes to the peer's address, at once and without the provider. @return 0;
	/// -EOPNOTSUPP: use the provider; -errno: the link has failed.
	virtual int write(link &, std::span<iovec>, std::uint64_t) { return -EOPNOTSUPP; }
	/// Whether peers can read our memory by themselves, even while this process is stopped.
	virtual bool lends() const { return false; }
	/// Whether read() works on this link.
	virtual bool reads(const link &) const { return false; }
	/// Reads from the peer's address into these bytes, at once and without the provider.
	/// @return 0; -EFAULT: the peer has no memory there; -errno: the link has failed.
	virtual int read(link &, std::span<iovec>, std::uint64_t) { return -EOPNOTSUPP; }
	/// fd() becomes readable once there is an event. False: there is one already.
	virtual bool arm() = 0;
	virtual int fd() const = 0;
	virtual time_point deadline() const = 0;
	virtual void expire(time_point now) = 0;

protected:
	/// Starts the time in which a peer has to answer.
	void begin(link &l, std::unique_ptr<struct link::side> side)
	{
		side->give_up = events_->now() + give_up_after;
		l.side = std::move(side);
	}
	/// The attempt on this link ends at `when`, or when the peer has to be given up.
	void try_until(link &l, time_point when)
	{
		end_attempt(l);
		l.side->turn = std::min(l.side->give_up, when);
		connecting_.emplace(l.side->turn, &l);
	}
	/// No effect if there is no attempt.
	void end_attempt(link &l)
	{
		if (l.side)
			connecting_.erase({std::exchange(l.side->turn, never), &l});
	}
	time_point attempts_deadline() const
	{
		return connecting_.empty() ? never : connecting_.begin()->first;
	}
	void expire_attempts(time_point now)
	{
		while (attempts_deadline() <= now) {
			link &l = *connecting_.begin()->second;
			end_attempt(l);
			if (now >= l.side->give_up)
				give_up(l);
			else
				try_again(l);
		}
	}
	virtual void try_again(link &) = 0;
	virtual void give_up(link &) = 0;

	const provider &provider_;
	events *events_ = nullptr; ///< since start()
	/// Thousands may connect at a time, when a machine connects to all others.
	std::set<std::pair<time_point, link *>> connecting_;
};

} // namespace coop::net::fabric
