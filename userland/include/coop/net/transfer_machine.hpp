// SPDX-License-Identifier: MIT
// transfer_machine.hpp - where buffers are queued and events come from.
//
// A transfer machine has an address, six queues, one background thread and one of two ways
// to deliver buffer events: on that thread (the default), or on the caller's inside
// deliver_all(). The second is also the fastest way to poll: the caller's thread then makes
// the progress itself, without a system call, and the background thread stays out of its way
// until the caller has stopped polling for 3 milliseconds (up to 24 if it had polled for long);
// from then on the background thread answers peers and runs timers, but delivers no buffer
// event.
//
// Every buffer that add() took gets exactly one event with queued == false, whatever races.
#pragma once

#include <initializer_list>
#include <span>

#include "buffer.hpp"
#include "buffer_pool.hpp"
#include "channel.hpp"
#include "domain.hpp"

namespace coop::net
{

/// Where a transfer machine is in its life. From initialized on one follows the other, or failed;
/// fini() makes it undefined.
/// @par Source
/// Motr's m0_net_tm_state.
enum class tm_state : std::uint8_t {
	undefined,   ///< finished: nothing but the destructor may be called
	initialized, ///< made; delivery, processors, pool and colour are set now
	starting,    ///< start() has returned 0
	started,     ///< buffers may be added
	stopping,    ///< stop() has returned 0
	stopped,     ///< no operation is left; final
	failed,      ///< start failed or the transport broke; no operation is left; final
};

/// "STARTED" and so on, for texts.
COOP_NET_API const char *name(tm_state) noexcept;

/// A transfer machine has come to another state.
/// @par Source
/// Motr's m0_net_tm_event, as far as it tells of states.
struct tm_event {
	transfer_machine *machine; ///< whose handler is called
	tm_state state;            ///< started, stopped or failed
	int status;                ///< 0, or why it failed: -errno
};

/// Takes state events, always on the background thread, without any lock of the library.
/// @par Source
/// Motr's m0_net_tm_callbacks.
class tm_handler
{
public:
	/// One at a time; with automatic delivery behind the events of what ended before.
	virtual void on_state(const tm_event &) = 0;

protected:
	~tm_handler() = default;
};

/// A tm_handler out of anything callable with (const tm_event &).
template <class function> class tm_callback final : public tm_handler
{
public:
	/// `f` is moved or copied here.
	explicit tm_callback(function f) : f_(std::move(f)) {}
	/// Calls it.
	void on_state(const tm_event &e) override { f_(e); }

private:
	function f_;
};

/// Counters of one queue since the start or since they were last reset.
/// @par Source
/// Motr's statistics of a queue, m0_net_qstats.
struct queue_stats {
	std::uint64_t adds;   ///< operations that add() took
	std::uint64_t dels;   ///< operations that del() ended or tried to
	std::uint64_t ok;     ///< messages received; other queues: operations that ended well
	std::uint64_t failed; ///< operations that ended with an error
	/// ns from add to the event, over all counted in ok and failed. Messages under synchronous
	/// delivery: to the first call of the machine behind it, their handler's or the next.
	std::uint64_t total_time;
	std::uint64_t total_bytes; ///< of all counted in ok
	std::uint64_t largest;     ///< bytes
};

/// Any thread may call anything, handlers included, unless said otherwise.
/// @par Source
/// Motr's network layer: the states, one final event for a buffer, delivery on the transport's
/// thread or when asked for, confinement to processors.
class COOP_NET_API transfer_machine
{
public:
	/// Initialized. `h`, if any, lives as long as the machine.
	/// @throw std::system_error from the transport or for want of descriptors.
	explicit transfer_machine(domain &, tm_handler *h = nullptr);
	/// Stops (aborting what is queued) if that is still to be done, and waits as fini() does.
	~transfer_machine();
	transfer_machine(const transfer_machine &) = delete;
	transfer_machine &operator=(const transfer_machine &) = delete;

	/// @name Before start()
	/// They return -EBADFD in any state but initialized.
	/// @{

	/// Callbacks by threads of the library run on these processors only, its pool's included
	/// where they are because of this machine; on the program's own threads they run where
	/// those do. -EINVAL: none, or none that is online. Where the program may not use any of
	/// them, which a cpuset can bring about, start() says -EINVAL.
	[[nodiscard]] int confine(std::span<const unsigned> cpus);
	/// Buffer events are delivered by deliver_all() only.
	[[nodiscard]] int deliver_synchronously();
	/// Automatic delivery: how long the background thread polls before it blocks (default:
	/// not at all). Costs a processor and saves the wake-up.
	[[nodiscard]] int poll_before_block(std::chrono::microseconds);
	/// Keeps the receive queue filled from `pool`, with min_receive_size and max_receive_msgs
	/// as in operation; `h` gets the events, and puts buffers back into the pool when an event
	/// says that they are not queued. A buffer that took no message goes back by itself
	/// when the machine stops or fails, before the state event, without an event of its own.
	/// One that did has its final event: before the state event with automatic delivery; with
	/// synchronous delivery in deliver_all(), which the state event does not wait for, so that
	/// a program may: all have been handed out when deliver_all() returns 0 after it and no
	/// other thread is in deliver_all(). -EINVAL: another domain's pool, a 0, or there is a
	/// pool already; -EFBIG: no buffer of the pool can take a message, for min_receive_size is
	/// more than its buffer_size(), which has to be as much; -EAGAIN: no thread.
	[[nodiscard]] int attach(buffer_pool &pool, buffer_handler &h, std::size_t min_receive_size,
				 std::uint32_t max_receive_msgs);
	/// Buffers with room for a message that the receive queue has at least (default 2); those
	/// that only wait for what is on its way are not counted. -EINVAL: 0.
	[[nodiscard]] int set_pool_length(std::uint32_t);
	/// Colour to ask the pool for (default 0). -EINVAL: not below buffer_pool::max_colours.
	[[nodiscard]] int set_colour(std::uint32_t);

	/// @}

	/// Begins to start at this address; an event says how it ended. The last part of the
	/// address may be `*`: the highest free number is taken.
	/// @return 0, -EINVAL (malformed, or a form the transport does not speak), -ENOENT (the
	/// NID is not of this host), -EADDRINUSE, -EADDRNOTAVAIL (`*`, and none is free), -EBADFD
	/// (not initialized), or what the transport says. All but -EBADFD are final: the machine
	/// has failed, and there is no event.
	[[nodiscard]] int start(std::string_view address);
	/// Begins to stop; the event `stopped` says when it is done. With `abort` everything
	/// queued ends with -ECANCELED; without, sends and active bulk operations first run to
	/// their ends. @return 0 or -EBADFD (neither starting, started, nor draining).
	[[nodiscard]] int stop(bool abort);
	/// Undefined from now on; waits until no callback runs. @return 0, -EBUSY (not
	/// initialized, stopped or failed), -EDEADLK (called by a callback of this machine).
	[[nodiscard]] int fini();

	/// Where it is by now; the event of that state may be still to come.
	tm_state state() const noexcept;
	/// Waits until the machine has come to `wanted` and its event was delivered.
	/// @return 0, -ETIMEDOUT, -ECANCELED (it can no longer come there), -EDEADLK (called by
	/// a callback of this machine).
	[[nodiscard]] int wait(tm_state wanted, time_point deadline = never);
	/// Once started: the machine's own, with the number that `*` became.
	net::address address() const;
	/// What set_colour() has set.
	std::uint32_t colour() const noexcept;

	/// The end point of an address; the same object for the same address.
	/// @return 0, -EINVAL (malformed, `*`, or not the transport's form), -EBADFD (not
	/// started), -ENOBUFS (as many as there can be), or what the transport says; then `out` is
	/// unchanged.
	[[nodiscard]] int make_endpoint(std::string_view address, endpoint_ptr &out);
	/// The same, of an address that has been read.
	[[nodiscard]] int make_endpoint(const net::address &, endpoint_ptr &out);
	/// End points with a reference outside of the library or with an operation.
	std::size_t endpoints() const;

	/// Queues `b`. On the passive queues b.descriptor() is valid when it returns.
	/// @return 0; -EBADFD (not started), -EBUSY (queued), -ETIME (the deadline is past),
	/// -EINVAL (no handler, end point or sizes; another domain's buffer or another machine's
	/// end point; a corrupt or foreign descriptor), -EMSGSIZE (longer than max_message), -EFBIG
	/// (longer than the buffer, or the passive side is too small or too large for it),
	/// -EPERM (the descriptor is for the other direction), -ENOBUFS (max_queued, or the
	/// transport's own limits, of connections for example), -EHOSTUNREACH. Then there is no
	/// event. A stale descriptor is told by the event: -ENOENT.
	[[nodiscard]] int add(buffer &b, const operation &);
	/// Asks for the end of the operation. @return false: `b` is not queued here, or its end
	/// has come already. True: its final event follows, with -ECANCELED unless something else
	/// was faster.
	bool del(buffer &b);
	/// Operations on a queue.
	std::size_t queued(queue_type) const;
	/// Receive buffers that the pool could not give; 0 when not started, and while it is
	/// max_queued that lets in no more.
	std::uint32_t receive_deficit() const noexcept;

	/// @name Synchronous delivery
	/// @{

	/// Makes progress on this thread. @return whether deliver_all() has something to do.
	/// Always false with automatic delivery.
	[[nodiscard]] bool pending();
	/// Makes progress and delivers, on this thread, what there is. @return the number of
	/// events delivered; none is no error. Several threads may call it at a time. While a
	/// handler has a message of a buffer, later events of that buffer, its last above all, wait
	/// for a call after the handler has returned.
	std::size_t deliver_all();
	/// Signals `c` once, from the background thread, when there is an event to deliver; at once
	/// if there is one. `c` lives until then or until the machine is finished. A second call
	/// before the signal replaces the channel. @return 0, -EBADFD (automatic delivery).
	[[nodiscard]] int notify(channel &c);

	/// @}

	/// One queue's counters; with `reset` they are 0 afterwards, and nothing is lost or
	/// counted twice between.
	queue_stats stats(queue_type, bool reset = false);

private:
	std::shared_ptr<core::machine> state_;
};

} // namespace coop::net
