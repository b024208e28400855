// SPDX-License-Identifier: MIT
// buffer_pool.hpp - a pool of idle buffers for several transfer machines.
//
// A transfer machine with a pool keeps its receive queue filled from it, so a few buffers serve
// many machines. Colours keep memory near the processor that used it last: a machine asks with its
// own colour and gets the most recently used buffer of that colour, else an unclaimed one, else the
// least recently used one. A claim lapses after a time; get and put sweep lapsed claims. Everything
// is O(1).
#pragma once

#include "buffer.hpp"

namespace coop::net
{

/// Notified about the level of a pool, without any lock of the library. The call is made on the
/// thread that called get(), put() or grow(), or that caused a transfer machine to take or return a
/// buffer: the machine's background thread, the domain's own (after a put()), or a thread of the
/// program inside a call of the machine, for example add() or deliver_all(). Several threads may
/// call at a time. The level may have changed by the time of the call.
/// @par Source
/// Motr's m0_net_buffer_pool_ops.
class pool_handler
{
public:
	/// An empty pool has got its first buffer, also during construction. No action is needed: a
	/// thread of the domain serves transfer machines that wait for buffers.
	virtual void not_empty(buffer_pool &) {}
	/// A buffer was taken, and pool_options::threshold - 1 are left.
	virtual void below_threshold(buffer_pool &) {}

protected:
	~pool_handler() = default;
};

/// Size of a pool, and its handler.
/// @par Source
/// The arguments of Motr's m0_net_buffer_pool_init(); the affinity is our own.
struct pool_options {
	std::uint32_t buffers = 0;          ///< initial number
	std::size_t segment_size = 1 << 16; ///< bytes
	std::uint32_t segments = 1;         ///< segments of a buffer
	std::uint32_t threshold = 0;        ///< in buffers; see pool_handler::below_threshold
	pool_handler *handler = nullptr;    ///< must live as long as the pool
	/// How long an idle buffer keeps its colour.
	std::chrono::milliseconds affinity{1000};
};

/// Thread-safe. Must outlive the transfer machines that it is attached to.
/// @par Source
/// Motr's network buffer pool and the provisioning of its LNet transport: colours, deficits, and
/// the domain's own thread that serves them.
class COOP_NET_API buffer_pool
{
public:
	/// Colours are 0 to max_colours - 1.
	static constexpr std::uint32_t max_colours = 4096;
	static constexpr std::uint32_t no_colour = 0xffffffff; ///< for callers without a colour

	/// Allocates and registers the buffers. @throw as buffer(), std::bad_alloc.
	buffer_pool(domain &, const pool_options &);
	/// Aborts the program with a message if a buffer is out or a transfer machine is attached.
	~buffer_pool();
	buffer_pool(const buffer_pool &) = delete;
	buffer_pool &operator=(const buffer_pool &) = delete;

	/// Takes a buffer out of the pool, or null if it is empty. `colour`: see above.
	[[nodiscard]] buffer *get(std::uint32_t colour = no_colour);
	/// Returns a buffer of this pool that is not queued. It keeps the colour that it was taken
	/// with. @return 0, -EINVAL (not of this pool, or already in it), -EBUSY (queued).
	[[nodiscard]] int put(buffer *);
	/// Allocates `n` more buffers. @return 0, -ENOMEM or an error as of buffer().
	[[nodiscard]] int grow(std::uint32_t n);

	std::uint32_t free() const noexcept;      ///< buffers in the pool
	std::uint32_t total() const noexcept;     ///< buffers in the pool and out of it
	std::size_t buffer_size() const noexcept; ///< bytes of each

private:
	friend class core::pool_state;

	std::shared_ptr<core::pool_state> state_;
};

} // namespace coop::net
