// SPDX-License-Identifier: MIT
// message_engine.hpp - sessions and messages, as peers, outbox and bulk call for them.
//
// Behind it is the engine of rpc/chan: in this process (chan_engine.hpp), or in the kernel, where
// the transport `kernel` reaches it. Its results come later, by the calls of the machine. A call
// costs a message or an operation, never a datagram. Used under the lock of the machine.
#pragma once

#include "identity.hpp"
#include "rpc/chan/chan.h"

namespace coop::net::ud
{

struct op;

class message_engine
{
public:
	/// Opens a session with a peer of the core, whose messages name this machine.
	/// @return the session's id (> 0), the same if the address is known; -ENOSPC, -EINVAL.
	virtual std::int64_t open(const coop_chan_peer_addr &, spi::peer_number, identity,
				  std::uint64_t now) = 0;
	/// The peer whose session a stranger has begun; no_peer: it is nobody's any more.
	virtual void admit(std::uint32_t session, spi::peer_number, identity) = 0;
	virtual void close(std::uint32_t session, std::uint64_t now) = 0;
	/// @return false: there is no such session.
	virtual bool info(std::uint32_t session, coop_chan_peer_info &) const = 0;
	/// Those that are open, strangers' as well.
	virtual std::uint32_t sessions() const = 0;

	/// As coop_chan_send(). The cookie is the index of an operation, whose message it is, or
	/// whose text() if the tag says bulk.
	virtual int send(const coop_chan_msg &, std::uint64_t now, std::uint32_t &id) = 0;
	virtual void cancel(std::uint32_t id, std::uint64_t now) = 0;
	/// The longest message that takes one datagram.
	virtual std::uint32_t unit() const = 0;
	/// Where the bulk message of this operation is written, and stays until it is sent.
	virtual std::byte *text(std::uint32_t index) = 0;

	/// Passes a message to this machine itself on: that of the operation with this index, `o`.
	/// @return as spi::sink::place(); -EINPROGRESS: a COOP_CHAN_EV_SENT tells it later, with
	/// this index as its cookie and the `id` that the operation gets here.
	virtual int deliver_here(std::uint32_t index, op &o) = 0;

protected:
	~message_engine() = default;
};

} // namespace coop::net::ud
