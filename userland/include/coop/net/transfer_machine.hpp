// SPDX-License-Identifier: MIT
// transfer_machine.hpp - queues for buffers, and the delivery of their events.
//
// A transfer machine has an address, six queues, one background thread and one of two ways to
// deliver buffer events: on that thread (the default), or on the caller's inside deliver_all(). The
// second is also the fastest way to poll: the caller's thread then makes the progress itself,
// without a system call, and the background thread does nothing until the caller has not polled for
// 3 milliseconds (up to 24 if it had polled for long). From then on the background thread answers
// peers and runs timers, but delivers no buffer event.
//
// Every buffer that add() accepted gets exactly one event with queued == false, whatever races.
#pragma once

#include <initializer_list>
#include <span>

#include "buffer.hpp"
#include "buffer_pool.hpp"
#include "channel.hpp"
#include "domain.hpp"

namespace coop::net
{

/// Life cycle of a transfer machine. From initialized on, each state is followed by the next one,
/// or by failed; fini() makes it undefined.
/// @par Source
/// Motr's m0_net_tm_state.
enum class tm_state : std::uint8_t {
	undefined,   ///< finished: only the destructor may be called
	initialized, ///< new; delivery, processors, pool and colour can be set
	starting,    ///< start() has returned 0
	started,     ///< buffers may be added
	stopping,    ///< stop() has returned 0
	stopped,     ///< no operation is left; final state
	failed,      ///< start failed or the transport broke; no operation is left; final state
};

/// The state as text: "STARTED" and so on.
COOP_NET_API const char *name(tm_state) noexcept;

/// A change of a transfer machine's state.
/// @par Source
/// Motr's m0_net_tm_event, as far as it reports states.
struct tm_event {
	transfer_machine *machine; ///< the machine
	tm_state state;            ///< started, stopped or failed
	int status;                ///< 0, or -errno of the failure
};

/// Receives state events, always on the background thread, without any lock of the library.
/// @par Source
/// Motr's m0_net_tm_callbacks.
class tm_handler
{
public:
	/// One call at a time; with automatic delivery, after the events of operations that ended
	/// before.
	virtual void on_state(const tm_event &) = 0;

protected:
	~tm_handler() = default;
};

/// Makes a tm_handler from any callable that takes (const tm_event &).
template <class function> class tm_callback final : public tm_handler
{
public:
	/// Moves or copies `f` into the handler.
	explicit tm_callback(function f) : f_(std::move(f)) {}
	/// Calls the function.
	void on_state(const tm_event &e) override { f_(e); }

private:
	function f_;
};

/// Counters of one queue since the start or the last reset.
/// @par Source
/// Motr's statistics of a queue, m0_net_qstats.
struct queue_stats {
	std::uint64_t adds;   ///< operations that add() accepted
	std::uint64_t dels;   ///< operations that del() ended, or tried to
	std::uint64_t ok;     ///< messages received; other queues: successful operations
	std::uint64_t failed; ///< operations that ended with an error
	/// Nanoseconds from add() to the event, summed over all counted in ok and failed. Received
	/// messages with synchronous delivery: to the first call of the machine after that event,
	/// by their handler or later.
	std::uint64_t total_time;
	std::uint64_t total_bytes; ///< of all counted in ok
	std::uint64_t largest;     ///< bytes
};

/// Thread-safe, also for calls from handlers, unless said otherwise.
/// @par Source
/// Motr's network layer: the states, one final event for a buffer, delivery on the transport's
/// thread or on request, confinement to processors.
class COOP_NET_API transfer_machine
{
public:
	/// Makes an initialized machine. `h`, if any, must live as long as the machine. @throw
	/// std::system_error from the transport, or if descriptors are short.
	explicit transfer_machine(domain &, tm_handler *h = nullptr);
	/// Stops the machine (aborting queued operations) if necessary, and waits as fini() does.
	~transfer_machine();
	transfer_machine(const transfer_machine &) = delete;
	transfer_machine &operator=(const transfer_machine &) = delete;

	/// @name Before start()
	/// In any state but initialized they return -EBADFD.
	/// @{

	/// Confines callbacks on the library's threads to these processors, also those of its pool
	/// that this machine causes; on threads of the program they run where those threads do.
	/// -EINVAL: none given, or none is online. If the program may not use any of them, for
	/// example because of a cpuset, start() returns -EINVAL.
	[[nodiscard]] int confine(std::span<const unsigned> cpus);
	/// Only deliver_all() delivers buffer events.
	[[nodiscard]] int deliver_synchronously();
	/// Automatic delivery: time for which the background thread polls before it blocks
	/// (default: 0). Uses a processor, saves the wake-up.
	[[nodiscard]] int poll_before_block(std::chrono::microseconds);
	/// Keeps the receive queue filled from `pool`, with min_receive_size and max_receive_msgs
	/// as in operation. `h` gets the events, and returns a buffer to the pool when an event
	/// says that it is not queued. When the machine stops or fails, a buffer that took no
	/// message is returned automatically, before the state event, without an event of its own.
	/// A buffer that took one gets its final event: with automatic delivery before the state
	/// event; with synchronous delivery in deliver_all(), for which the state event does not
	/// wait. A program may wait instead: all final events have been delivered when
	/// deliver_all() returns 0 after the state event while no other thread is in deliver_all().
	/// -EINVAL: the pool of another domain, a 0, or a pool is already attached; -EFBIG:
	/// min_receive_size is larger than the pool's buffer_size(), so no buffer could take a
	/// message; -EAGAIN: no thread could be created.
	[[nodiscard]] int attach(buffer_pool &pool, buffer_handler &h, std::size_t min_receive_size,
				 std::uint32_t max_receive_msgs);
	/// Least number of buffers with room for a message on the receive queue (default 2);
	/// buffers that only wait for data under way do not count. -EINVAL: 0.
	[[nodiscard]] int set_pool_length(std::uint32_t);
	/// Colour for requests to the pool (default 0). -EINVAL: not below
	/// buffer_pool::max_colours.
	[[nodiscard]] int set_colour(std::uint32_t);

	/// @}

	/// Starts the machine at this address; an event reports the result. The last part of the
	/// address may be `*`: the highest free number is taken. @return 0, -EINVAL (malformed, or
	/// a form that the transport does not support), -ENOENT (the NID is not of this host),
	/// -EADDRINUSE, -EADDRNOTAVAIL (`*`, and no number is free), -EBADFD (not initialized), or
	/// the transport's error (-ENOMEM: the domain's buffers cannot be registered with the
	/// device of this machine; raise the limit of locked memory, ulimit -l). All but -EBADFD
	/// are final: the machine has failed, and there is no event.
	[[nodiscard]] int start(std::string_view address);
	/// Stops the machine; the event `stopped` reports the end. With `abort` every queued
	/// operation ends with -ECANCELED; without, sends and active bulk operations first
	/// complete. @return 0 or -EBADFD (neither starting, started, nor draining).
	[[nodiscard]] int stop(bool abort);
	/// Makes the machine undefined; waits until no callback runs. @return 0, -EBUSY (not
	/// initialized, stopped or failed), -EDEADLK (called by a callback of this machine).
	[[nodiscard]] int fini();

	/// The current state; its event may still be undelivered.
	tm_state state() const noexcept;
	/// Waits until the machine is in state `wanted` and the event of that state was delivered.
	/// @return 0, -ETIMEDOUT, -ECANCELED (it can no longer reach that state), -EDEADLK (called
	/// by a callback of this machine).
	[[nodiscard]] int wait(tm_state wanted, time_point deadline = never);
	/// Once started: the machine's own address, with the number chosen for `*`.
	net::address address() const;
	/// The colour set by set_colour().
	std::uint32_t colour() const noexcept;

	/// The end point of an address; always the same object for the same address. @return 0,
	/// -EINVAL (malformed, `*`, or not a form of the transport), -EBADFD (not started),
	/// -ENOBUFS (the limit of end points is reached), or the transport's error; then `out` is
	/// unchanged.
	[[nodiscard]] int make_endpoint(std::string_view address, endpoint_ptr &out);
	/// The same for a parsed address.
	[[nodiscard]] int make_endpoint(const net::address &, endpoint_ptr &out);
	/// Number of end points with a reference outside of the library or with an operation.
	std::size_t endpoints() const;

	/// Queues `b`. On the passive queues b.descriptor() is valid when it returns. @return 0;
	/// -EBADFD (not started), -EBUSY (queued), -ETIME (the deadline is past), -EINVAL (no
	/// handler, end point or sizes; a buffer of another domain or an end point of another
	/// machine; a corrupt or foreign descriptor), -EMSGSIZE (longer than max_message), -EFBIG
	/// (longer than the buffer, the passive side is too small or too large for it, or the range
	/// leaves the passive memory), -EPERM (the descriptor is for the other direction), -ENOBUFS
	/// (max_queued, or a limit of the transport, for example of connections), -EOPNOTSUPP
	/// (reusable, see transport_traits), -EHOSTUNREACH. After an error there is no event.
	/// The event reports a stale descriptor: -ENOENT. An offset with a descriptor that is not
	/// reusable, and an empty range: -EINVAL.
	[[nodiscard]] int add(buffer &b, const operation &);
	/// Requests the end of the operation. @return false: `b` is not queued here, or has already
	/// ended. True: its final event follows, with -ECANCELED unless the operation ended
	/// otherwise first.
	bool del(buffer &b);
	/// Number of operations on a queue.
	std::size_t queued(queue_type) const;
	/// Number of receive buffers that the pool could not supply; 0 when not started, and when
	/// max_queued is what limits the queue.
	std::uint32_t receive_deficit() const noexcept;

	/// @name Synchronous delivery
	/// @{

	/// Makes progress on this thread. @return whether deliver_all() has something to do. Always
	/// false with automatic delivery.
	[[nodiscard]] bool pending();
	/// Makes progress and delivers the available events on this thread. @return the number of
	/// events delivered, which may be 0. Several threads may call it at a time. While a handler
	/// runs for a message of a buffer, later events of that buffer, including its final one,
	/// wait for a call after the handler has returned.
	std::size_t deliver_all();
	/// Signals `c` once, from the background thread, when there is an event to deliver; at once
	/// if there is one. `c` must live until then or until the machine is finished. A second
	/// call before the signal replaces the channel. @return 0, -EBADFD (automatic delivery).
	[[nodiscard]] int notify(channel &c);

	/// @}

	/// The counters of one queue. With `reset` they become 0, atomically: no event is lost or
	/// counted twice.
	queue_stats stats(queue_type, bool reset = false);
	/// The rails of a started machine (`rails=` of ud and kernel), the first first, with
	/// counters since its start. Empty on transports that have none.
	std::vector<rail_stats> rails();

private:
	std::shared_ptr<core::machine> state_;
};

} // namespace coop::net
