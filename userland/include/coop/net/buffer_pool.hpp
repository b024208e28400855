// SPDX-License-Identifier: MIT
// buffer_pool.hpp - idle buffers that several transfer machines draw from.
//
// A transfer machine with a pool keeps its own receive queue filled, so that buffers are
// committed late and a few serve many machines. Colours keep memory near the processor that
// used it last: a machine asks with its own colour and is given the buffer of that colour
// used most recently, else one that nobody has a claim to, else the one used least recently.
// A claim lapses after a time; the sweep rides on get and put. Everything is O(1).
#pragma once

#include "buffer.hpp"

namespace coop::net
{

/// Told about the level of a pool, without any lock of the library: on the thread that called
/// get(), put() or grow(), or on one that had a transfer machine take or give back a buffer. That
/// may be the machine's background thread, the domain's own (after a put()), or any of the
/// program's in a call of the machine, add() and deliver_all() for instance; several at a time
/// where several threads do. By the time of the call the level may have moved on.
/// @par Source
/// Motr's m0_net_buffer_pool_ops.
class pool_handler
{
public:
	/// The first buffer has come into an empty pool, while it was made for instance. Transfer
	/// machines that wait for buffers are served by a thread of the domain; nothing needs to
	/// be done here.
	virtual void not_empty(buffer_pool &) {}
	/// A buffer was taken, and pool_options::threshold - 1 are left.
	virtual void below_threshold(buffer_pool &) {}

protected:
	~pool_handler() = default;
};

/// What a pool is made of, and whom it tells.
/// @par Source
/// The arguments of Motr's m0_net_buffer_pool_init(); the affinity is our own.
struct pool_options {
	std::uint32_t buffers = 0;          ///< number to begin with
	std::size_t segment_size = 1 << 16; ///< bytes
	std::uint32_t segments = 1;         ///< of one buffer
	std::uint32_t threshold = 0;        ///< buffers; see pool_handler::below_threshold
	pool_handler *handler = nullptr;    ///< lives as long as the pool
	/// How long a buffer in the pool keeps its colour.
	std::chrono::milliseconds affinity{1000};
};

/// Any thread may call anything. Outlives the transfer machines it is attached to.
/// @par Source
/// Motr's network buffer pool and the provisioning of its LNet transport: colours, deficits, the
/// domain's own thread that makes up for them.
class COOP_NET_API buffer_pool
{
public:
	/// Colours are 0 to max_colours - 1.
	static constexpr std::uint32_t max_colours = 4096;
	static constexpr std::uint32_t no_colour = 0xffffffff; ///< of who has none

	/// Allocates and registers the buffers. @throw as buffer(), std::bad_alloc.
	buffer_pool(domain &, const pool_options &);
	/// Ends the program with a message if a buffer is out or a transfer machine attached.
	~buffer_pool();
	buffer_pool(const buffer_pool &) = delete;
	buffer_pool &operator=(const buffer_pool &) = delete;

	/// A buffer out of the pool, or null if there is none. `colour`: see above.
	[[nodiscard]] buffer *get(std::uint32_t colour = no_colour);
	/// Puts back a buffer of this pool that is not queued. Its colour is the one it was
	/// got with. @return 0, -EINVAL (not of this pool, or in it already), -EBUSY (queued).
	[[nodiscard]] int put(buffer *);
	/// Allocates `n` more buffers. @return 0, -ENOMEM or as buffer().
	[[nodiscard]] int grow(std::uint32_t n);

	std::uint32_t free() const noexcept;      ///< buffers in the pool
	std::uint32_t total() const noexcept;     ///< in it and out of it
	std::size_t buffer_size() const noexcept; ///< bytes of each

private:
	friend class core::pool_state;

	std::shared_ptr<core::pool_state> state_;
};

} // namespace coop::net
