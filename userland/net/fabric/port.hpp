// SPDX-License-Identifier: MIT
// port.hpp - how links come and go. What is sent on them is the machine's business.
//
// connected_port: end points of libfabric that connect (tcp, verbs).
// datagram_port: one end point for all, and sockets of the host to agree on it (shm).
#pragma once

#include <cerrno>
#include <span>
#include <sys/uio.h>

#include "link.hpp"

namespace coop::net::fabric
{

/// How long a peer is given to answer whoever connects: then it is known within five seconds.
constexpr std::chrono::milliseconds give_up_after{4500};

class port
{
public:
	/// The machine. Under its lock, as everything here.
	class events
	{
	public:
		/// Whoever wants a link is to wait in vain.
		virtual bool mute() const = 0;
		/// Somebody wants a link. @return what to answer with, or null: not ours to accept.
		virtual link *admit(const hello &) = 0;
		/// What to say to whoever is at the other end.
		virtual hello greeting(const link &) const = 0;
		/// The link can be sent on.
		virtual void linked(link &) = 0;
		/// What the peer said suits the link; keeps it. False: it is somebody else.
		virtual bool accept(link &, const hello &) = 0;
		/// It has failed, or ended. The machine closes it, later.
		virtual void unlinked(link &, int status) = 0;
		/// Nothing comes of this port any more: what it is on has gone. No peer can bring
		/// that about.
		virtual void broken(int) {}
		virtual time_point now() = 0;
		/// A program polls, and has few links.
		virtual bool polled() const = 0;

	protected:
		~events() = default;
	};

	virtual ~port() = default;

	virtual int start(const address &own) = 0;
	virtual fid_domain &domain() = 0;
	virtual fid_cq &queue() = 0;
	/// Where receives are posted.
	virtual fid_ep &receiver() = 0;

	/// Begins. @return 0: linked() or unlinked() follows; -errno.
	virtual int connect(link &) = 0;
	/// The link is connecting, and the peer speaks on it already: what it said when it
	/// accepted has come before, and is looked at. linked() or unlinked() follows at once, or
	/// it has not accepted.
	virtual void catch_up(link &) = 0;
	/// Whatever the link did to memory here has ended, if the provider allows that.
	virtual void close(link &) = 0;
	/// Whether close() makes memory quiet while the peer is alive.
	virtual bool close_is_quiet() const = 0;
	/// Looks for connections that come and go. @return how many.
	virtual unsigned poll() = 0;
	/// Something has been sent, and the peer may be asleep.
	virtual void sent(link &) {}
	/// Writes these bytes to that address of the peer's, at once and without the provider.
	/// @return 0; -EOPNOTSUPP: the provider has to; -errno: the link has failed.
	virtual int write(link &, std::span<iovec>, std::uint64_t) { return -EOPNOTSUPP; }
	/// Peers may read memory here by themselves, whatever this process does.
	virtual bool lends() const { return false; }
	/// Whether read() can serve.
	virtual bool reads(const link &) const { return false; }
	/// Reads from that address of the peer's into these bytes, at once and without the
	/// provider.
	/// @return 0; -EFAULT: it has no memory there; -errno: the link has failed.
	virtual int read(link &, std::span<iovec>, std::uint64_t) { return -EOPNOTSUPP; }
	/// fd() becomes readable once there is something. False: there is already.
	virtual bool arm() = 0;
	virtual int fd() const = 0;
	virtual time_point deadline() const = 0;
	virtual void expire(time_point now) = 0;
};

} // namespace coop::net::fabric
