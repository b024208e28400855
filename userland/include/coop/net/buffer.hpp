// SPDX-License-Identifier: MIT
// buffer.hpp - registered memory, and what one operation does with it.
//
// A buffer is a list of segments known to the transport (pinned, given keys: whatever it
// needs), so that operations touch no page tables. The memory stays the caller's. While a
// buffer is on a queue the network may read or write it at any time; its final event says
// that it no longer does.
#pragma once

#include <span>
#include <vector>

#include "endpoint.hpp"

namespace coop::net
{

/// A piece of memory.
/// @par Source
/// An element of Motr's m0_bufvec, of which its network buffers are made.
struct segment {
	void *base;         ///< the caller's, for as long as the buffer
	std::size_t length; ///< bytes, not 0
};

/// What happened to a buffer.
/// @par Source
/// Motr's m0_net_buffer_event.
struct buffer_event {
	net::buffer *buffer; ///< the one that add() was given, or the pool's
	queue_type queue;    ///< that it is on, or was
	/// True: the buffer is still on its queue (a receive buffer with room left), do not add
	/// or destroy it. False: this is the final event, and the network is done with the memory.
	bool queued;
	/// 0, or -ETIMEDOUT (deadline, nothing else), -ECANCELED (del or stop, here or of what a
	/// descriptor stands for), or what the transport says: -ECONNREFUSED, -ECONNRESET (peer),
	/// -EHOSTUNREACH (nothing was ever heard of it), -EHOSTDOWN (ud: nothing is heard of it any
	/// more, or for too long nothing of bulk data), -ECOMM (ud: it answers, and long datagrams
	/// do not reach it: a lower `mtu`), -EPROTO (it broke the rules), -EPROTONOSUPPORT (ud: it
	/// speaks another version), -ENOBUFS, -EMSGSIZE (it had no buffer, or too small a one),
	/// -ENOENT (stale descriptor), -EPERM (a descriptor for somebody else; on ud -ENOENT),
	/// -ENODEV (the device has gone), -EIO.
	int status;
	/// Of the message in the buffer; 0 for other queues.
	std::size_t offset;
	/// Bytes that came or went. 0 when status is not 0.
	std::size_t length;
	/// Who sent the message; lives until the handler returns, endpoint_ptr keeps it longer.
	/// Null on other queues and when there is no message (a final event without one: an
	/// error, or a receive buffer retired because what came next had no room in it).
	endpoint *sender;
	/// operation::context of the operation that ends.
	void *context;
};

/// Takes buffer events. The library keeps a pointer: a handler lives until the final event
/// of every operation it was given to. Called without any lock of the library; it may add,
/// delete and stop.
/// @par Source
/// Motr's m0_net_buffer_callbacks, one function for all queues.
class buffer_handler
{
public:
	/// On the machine's background thread, or in deliver_all() on its caller's; a machine calls
	/// one at a time unless several threads call deliver_all(). The event lives until this
	/// returns.
	virtual void on_buffer(const buffer_event &) = 0;

protected:
	~buffer_handler() = default;
};

/// A buffer_handler out of anything callable with (const buffer_event &).
template <class function> class buffer_callback final : public buffer_handler
{
public:
	/// `f` is moved or copied here.
	explicit buffer_callback(function f) : f_(std::move(f)) {}
	/// Calls it.
	void on_buffer(const buffer_event &e) override { f_(e); }

private:
	function f_;
};

/// What is to be done with a buffer; an argument of transfer_machine::add(), copied there.
/// @par Source
/// The network layer of Motr: deadlines, descriptors, and receive buffers that take several
/// messages as its LNet transport has them.
struct operation {
	queue_type queue = queue_type::msg_recv; ///< what is to be done
	/// Bytes, from the start of the buffer. msg_send: what goes, 0 included. Bulk queues, where
	/// 0 means the whole buffer: what is offered (passive), what goes (active_bulk_send), the
	/// most that may come (active_bulk_recv: the length of the passive side is what comes).
	/// msg_recv: not used.
	std::size_t length = 0;
	/// msg_send: whom to. Passive queues: who will use the descriptor, or null for anybody.
	endpoint *to = nullptr;
	/// Active queues: what buffer::descriptor() of the passive side said.
	std::span<const std::byte> descriptor = {};
	/// When the operation ends with -ETIMEDOUT if it has not ended before.
	time_point deadline = never;
	/// msg_recv: bytes that must be free for the buffer to take another message, > 0.
	std::size_t min_receive_size = 0;
	/// msg_recv: messages that the buffer takes at most, > 0.
	std::uint32_t max_receive_msgs = 0;
	/// Gets the events of this operation.
	buffer_handler *handler = nullptr;
	/// For the handler; comes back in its events.
	void *context = nullptr;
};

/// Registered memory. Move-only; it must not be on a queue when it is moved or destroyed
/// (destroying a queued one ends the program with a message, as a joinable thread does:
/// the network would go on to write into memory that is gone).
/// @par Source
/// Motr's network buffer, and its descriptor.
class COOP_NET_API buffer
{
public:
	/// Registers `segments` (copied) with the transport of `d`, which must outlive the buffer.
	/// @throw std::system_error EINVAL (no segments, an empty one, null), E2BIG (more than
	/// limits().max_segments), EFBIG (more bytes than max_buffer or max_segment), or what
	/// the transport says (ENOMEM: the limit of locked memory).
	buffer(domain &d, std::span<const segment> segments);
	/// One segment.
	buffer(domain &d, void *base, std::size_t length);
	/// What is left of the other is good for assignment and destruction only.
	buffer(buffer &&) noexcept;
	/// The same; what was registered here no longer is.
	buffer &operator=(buffer &&) noexcept;
	~buffer();

	/// What it was made of, in that order; lives as long as the buffer.
	std::span<const segment> segments() const noexcept;
	/// Bytes of all segments.
	std::size_t size() const noexcept;
	/// On a queue of a transfer machine, or its final event is still to be delivered. It turns
	/// false just before the handler gets that event, so that the handler may add the buffer
	/// again: not this, but the handler's return tells another thread that it may destroy the
	/// buffer.
	bool queued() const noexcept;
	/// Passive queues, from add() until the buffer is added again: opaque bytes that
	/// another transfer machine passes in operation::descriptor. Little-endian, checksummed,
	/// at most limits().max_descriptor bytes; safe to send as they are. Empty otherwise.
	std::span<const std::byte> descriptor() const noexcept;
	/// The pool that the buffer belongs to, or null.
	buffer_pool *pool() const noexcept;

private:
	friend class core::machine;
	friend class core::pool_state;

	std::unique_ptr<core::buffer_state> state_;
};

} // namespace coop::net
