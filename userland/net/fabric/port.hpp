// SPDX-License-Identifier: MIT
// port.hpp - making and closing links. The machine sends on them.
//
// connected_port: end points of libfabric that connect (tcp, verbs).
// datagram_port: one end point for all links, and a TCP connection beside each (psm3, efa,
// ofi_rxm).
//
// Either way the port that listens for peers is the first free one of the address. To connect, we
// try the peer's ports in turn. A port that refuses is excluded, and we go on to the next at once;
// ports that do not answer get an equal share of five seconds one after another, and the last
// remaining one gets the rest. So a foreign service on a port only costs time, a peer that was
// silent at first is asked again, and if no peer is there we know within five seconds, whatever the
// provider does.
#pragma once

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "link.hpp"
#include "ports.hpp"

namespace coop::net::fabric
{

/// How long a peer has to answer: failure is known within five seconds.
constexpr std::chrono::milliseconds give_up_after{4500};

class port
{
public:
	/// Implemented by the machine. Called under its lock, like everything here but prepare().
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

	/// Starts connecting. linked() or unlinked() follows.
	void connect(link &);
	/// The link is connecting, and a message from the peer has already arrived. Its greeting
	/// has arrived before that; handle it now. linked() or unlinked() follows at once, or the
	/// peer has not accepted.
	virtual void catch_up(link &) = 0;
	/// Closes the link. Unless all links share an end point, neither side accesses the other's
	/// memory any more.
	virtual void close(link &) = 0;

	/// All links share an end point: only shut() makes memory quiet, that of all links.
	virtual bool shares() const { return false; }
	/// Closes that end point. All links but those that are connecting are closed; no completion
	/// follows.
	virtual void shut() {}
	/// Opens it again; links that are connecting begin again. @return 0 or -errno.
	virtual int reopen() { return 0; }

	/// Handles connections that come and go. @return how many.
	virtual unsigned poll() = 0;
	/// fd() becomes readable once there is an event. False: there is one already.
	virtual bool arm() = 0;
	/// Completions make fd() readable; else deadline() has the time to look for them.
	virtual bool wakes() const { return true; }
	virtual int fd() const = 0;
	virtual time_point deadline() const = 0;
	virtual void expire(time_point now) = 0;

protected:
	/// A link that tries the ports of its peer.
	struct search : link::side {
		port_list ports;
		unsigned at = 0;   ///< the port being tried
		unsigned left = 0; ///< bit mask of ports that have not refused
		bool unreachable =
			false; ///< the host is unreachable, for one of the ports at least
	};

	/// Starts with the port at `at`. @return 0 or -errno.
	virtual int attempt(link &) = 0;
	/// Ends what attempt() has begun.
	virtual void abandon(link &) = 0;
	virtual std::unique_ptr<search> make_search() const = 0;
	virtual bool device_gone() const { return false; }

	/// The port tried does not belong to the peer, or only it is unreachable (a firewall).
	void refused(link &, int error);
	/// No peer answers.
	void give_up(link &);
	/// The attempt has succeeded, or the link is closed. No effect if there is none.
	void end_attempt(link &l)
	{
		if (l.side)
			connecting_.erase({std::exchange(l.side->turn, never), &l});
	}
	time_point attempts_deadline() const
	{
		return connecting_.empty() ? never : connecting_.begin()->first;
	}
	void expire_attempts(time_point now);
	/// Repeats all attempts under way.
	void repeat_attempts();

	const provider &provider_;
	events *events_ = nullptr; ///< since prepare()

private:
	void try_next(link &);
	void try_until(link &, time_point);

	/// Thousands may connect at a time, when a machine connects to all others.
	std::set<std::pair<time_point, link *>> connecting_;
};

} // namespace coop::net::fabric
