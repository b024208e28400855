// SPDX-License-Identifier: MIT
// buffer.hpp - registered memory, and the operations on it.
//
// A buffer is a list of segments registered with the transport (pinned, given keys, as needed), so
// that operations touch no page tables. The memory stays the caller's. While a buffer is on a queue
// the network may read or write it at any time; the final event says that it no longer does.
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
	void *base;         ///< the caller's; must live as long as the buffer
	std::size_t length; ///< bytes, not 0
};

/// What happened to a buffer.
/// @par Source
/// Motr's m0_net_buffer_event.
struct buffer_event {
	net::buffer *buffer; ///< the one passed to add(), or the pool's
	queue_type queue;    ///< the queue that it is, or was, on
	/// True: the buffer is still on its queue (a receive buffer with room left); do not add or
	/// destroy it. False: this is the final event, and the network no longer uses the memory.
	bool queued;
	/// 0, or -ETIMEDOUT (deadline, nothing else), -ECANCELED (del() or stop(), here or on the
	/// side that offered the descriptor), or the transport's error: -ECONNREFUSED, -ECONNRESET
	/// (by the peer), -EHOSTUNREACH (the peer never answered), -EHOSTDOWN (ud, kernel,
	/// ntrdma: the peer no longer answers; ud, kernel: or bulk data stalled too long), -ECOMM
	/// (ud, kernel: the peer answers, but long datagrams do not reach it: lower mtu= of ud, or
	/// the active MTU of kernel's device), -EPROTO (the peer violated the protocol),
	/// -EPROTONOSUPPORT (ud, kernel: the peer speaks another version), -ENOMEM (fabric: memory
	/// that the peer is to access cannot be registered), -ENOBUFS, -EMSGSIZE (the peer had no
	/// buffer, or one too small), -ENOENT (stale descriptor), -EPERM (a descriptor for another
	/// machine; on ud and kernel -ENOENT), -ENODEV (the device was removed; kernel: or the MTU
	/// of its port has changed), -EMFILE (no descriptor left for a connection), -EACCES,
	/// -EFAULT (ntrdma: the peer is another user's; memory of a side cannot be read or
	/// written), -EIO.
	int status;
	/// Start of the message in the buffer, in bytes; 0 for other queues.
	std::size_t offset;
	/// Bytes received or sent. 0 when status is not 0.
	std::size_t length;
	/// Sender of the message; valid until the handler returns, endpoint_ptr keeps it longer.
	/// Null on other queues and when there is no message (a final event without one: an error,
	/// or a receive buffer retired because the next message did not fit).
	endpoint *sender;
	/// operation::context of the operation.
	void *context;
};

/// Receives buffer events. The library keeps a pointer: a handler must live until the final event
/// of every operation that names it. Called without any lock of the library; it may add, delete
/// and stop.
/// @par Source
/// Motr's m0_net_buffer_callbacks, one function for all queues.
class buffer_handler
{
public:
	/// Called on the machine's background thread, or inside deliver_all() on its caller's; a
	/// machine makes one call at a time unless several threads call deliver_all(). The event is
	/// valid until the call returns.
	virtual void on_buffer(const buffer_event &) = 0;

protected:
	~buffer_handler() = default;
};

/// Makes a buffer_handler from any callable that takes (const buffer_event &).
template <class function> class buffer_callback final : public buffer_handler
{
public:
	/// Moves or copies `f` into the handler.
	explicit buffer_callback(function f) : f_(std::move(f)) {}
	/// Calls the function.
	void on_buffer(const buffer_event &e) override { f_(e); }

private:
	function f_;
};

/// Describes an operation on a buffer; an argument of transfer_machine::add(), which copies it.
/// @par Source
/// The network layer of Motr: deadlines, descriptors, and receive buffers that take several
/// messages, as in its LNet transport.
struct operation {
	queue_type queue = queue_type::msg_recv; ///< the operation
	/// Bytes, from the start of the buffer. msg_send: the message, which may be empty. Bulk
	/// queues, where 0 means the whole buffer: the memory offered (passive), the bytes to write
	/// (active_bulk_send), the most bytes to read (active_bulk_recv: the passive side's length
	/// is transferred). msg_recv: not used.
	std::size_t length = 0;
	/// msg_send: the destination. Passive queues: the machine that may use the descriptor, or
	/// null for any.
	endpoint *to = nullptr;
	/// Active queues: buffer::descriptor() of the passive side.
	std::span<const std::byte> descriptor = {};
	/// Active queues, reusable descriptor: where the range begins, in bytes from the start of
	/// the passive memory; else 0. The range is `length` bytes long, or if that is 0 all the
	/// rest (active_bulk_recv), the whole buffer (active_bulk_send).
	std::size_t offset = 0;
	/// Passive queues: the descriptor serves any number of active operations, also at the same
	/// time, each for a range. No event tells of them. The operation ends with -ECANCELED
	/// (del(), stop) or -ETIMEDOUT, once no peer uses the memory any more; uses under way end
	/// with an error or in full. Writers of overlapping ranges have to agree among themselves.
	bool reusable = false;
	/// The operation ends with -ETIMEDOUT at this time if it has not ended before.
	time_point deadline = never;
	/// msg_send: its place among the messages that wait to be sent.
	net::priority priority = net::priority::normal;
	/// msg_recv: bytes that must be free for the buffer to take another message, > 0.
	std::size_t min_receive_size = 0;
	/// msg_recv: most messages that the buffer takes, > 0.
	std::uint32_t max_receive_msgs = 0;
	/// Receives the events of this operation.
	buffer_handler *handler = nullptr;
	/// For the handler; copied into its events.
	void *context = nullptr;
};

/// Registered memory. Move-only; it must not be on a queue when it is moved or destroyed
/// (destroying a queued one aborts the program with a message, as for a joinable thread:
/// the network would continue to write into freed memory).
/// @par Source
/// Motr's network buffer, and its descriptor.
class COOP_NET_API buffer
{
public:
	/// Registers `segments` (copied) with the transport of `d`, which must outlive the buffer:
	/// with the device of every machine of `d` that is started. A machine that starts later
	/// registers it at its start. So no add() has to, and the limit of locked memory counts a
	/// buffer once for each such machine. Devices may require that the memory is writable.
	/// @throw std::system_error EINVAL (no segments, an empty or null one), E2BIG (more than
	/// limits().max_segments), EFBIG (more bytes than max_buffer or max_segment), or the
	/// transport's error (ENOMEM: the limit of locked memory; the text says what to do).
	buffer(domain &d, std::span<const segment> segments);
	/// Registers one segment.
	buffer(domain &d, void *base, std::size_t length);
	/// Moves; afterwards the other one can only be assigned to or destroyed.
	buffer(buffer &&) noexcept;
	/// Moves; the memory registered here before is deregistered.
	buffer &operator=(buffer &&) noexcept;
	~buffer();

	/// The segments, in their order; valid as long as the buffer.
	std::span<const segment> segments() const noexcept;
	/// Bytes of all segments.
	std::size_t size() const noexcept;
	/// True while the buffer is on a queue of a transfer machine, or its final event is not
	/// delivered yet. It becomes false just before the handler gets that event, so that the
	/// handler may add the buffer again. Another thread may destroy the buffer only after that
	/// handler has returned, not when this becomes false.
	bool queued() const noexcept;
	/// Passive queues, from add() until the buffer is added again: opaque bytes that another
	/// transfer machine passes in operation::descriptor. Little-endian, checksummed, at most
	/// limits().max_descriptor bytes; can be sent as they are. Empty otherwise.
	std::span<const std::byte> descriptor() const noexcept;
	/// The pool that the buffer belongs to, or null.
	buffer_pool *pool() const noexcept;

private:
	friend class core::machine;
	friend class core::pool_state;

	std::unique_ptr<core::buffer_state> state_;
};

} // namespace coop::net
