// SPDX-License-Identifier: MIT
// messenger.hpp - send(to, bytes) in one line.
//
// A messenger is a transfer machine with its buffers. It copies the bytes of a message into a
// buffer that was registered at the start, and it calls one function for every message that
// arrives. All of its memory is allocated by the constructor; a sender that is faster than the
// network gets -EAGAIN, or waits.
#pragma once

#include <functional>
#include <future>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "transfer_machine.hpp"

namespace coop::net
{

/// Where a message or a call goes: an address as text or as a value, or an end point. Implicit, so
/// that each can be written as an argument. Refers to what it was made from. An end point saves the
/// look-up.
/// @par Source
/// Our own.
class destination
{
public:
	destination(const char *text) : text_(text) {}             ///< a text for parse()
	destination(std::string_view text) : text_(text) {}        ///< a text for parse()
	destination(const std::string &text) : text_(text) {}      ///< a text for parse()
	destination(const address &a) : address_(&a) {}            ///< an address
	destination(endpoint &e) : endpoint_(&e) {}                ///< an end point
	destination(const endpoint_ptr &e) : endpoint_(e.get()) {} ///< not empty

	/// The end point of a machine. @return as transfer_machine::make_endpoint().
	[[nodiscard]] int find(transfer_machine &tm, endpoint_ptr &out) const
	{
		if (endpoint_) {
			out = endpoint_ptr(endpoint_);
			return 0;
		}
		return address_ ? tm.make_endpoint(*address_, out) : tm.make_endpoint(text_, out);
	}

private:
	std::string_view text_;
	const address *address_ = nullptr;
	endpoint *endpoint_ = nullptr;
};

/// Sizes of a messenger.
/// @par Source
/// Our own.
struct messenger_options {
	/// Longest message, in bytes; the domain's max_message if that is less. The messengers of a
	/// program should agree on it: a longer message fails at its receiver (-EMSGSIZE).
	std::size_t max_message = 64 << 10;
	/// Messages under way at a time, each with a buffer of max_message bytes.
	std::uint32_t send_buffers = 32;
	/// Buffers of max_message bytes for received messages, at least 2. Small messages share
	/// one.
	std::uint32_t receive_buffers = 8;
	/// As transfer_machine::poll_before_block().
	std::chrono::microseconds poll{0};
};

/// Sends and receives messages. Thread-safe, also for calls from its own callbacks, unless said
/// otherwise. The callbacks run on the background thread, one at a time, without any lock of the
/// library, and must not throw.
/// @par Source
/// Our own.
class COOP_NET_API messenger
{
public:
	/// Gets each message. The end point and the bytes are valid until it returns.
	using receiver = std::function<void(endpoint &from, std::span<const std::byte>)>;
	/// Gets the status of a send, as in buffer_event.
	using completion = std::function<void(int status)>;

	/// Allocates and registers all buffers. @throw as buffer(), transfer_machine(),
	/// std::bad_alloc; EINVAL: an option is 0, or the buffers are more than max_queued.
	explicit messenger(domain &, const messenger_options & = {});
	/// Sends at a machine of the program, of the same domain, which has not been started. The
	/// program starts and stops it, and gets the messages that arrive: start() returns -EBADFD.
	/// The callbacks run where the machine's events are delivered. A thread that delivers them
	/// must not wait in send() or wait_room(): outside of callbacks nothing refuses that, and
	/// the event that would end it never comes. `receive_buffers` and `poll` mean nothing. The
	/// program must leave room for `send_buffers` operations within the domain's max_queued:
	/// without it, post() returns -ENOBUFS. The messenger must be destroyed after the machine
	/// has stopped or failed and its events have been delivered, and before the machine.
	/// @throw as above.
	messenger(domain &, transfer_machine &, const messenger_options & = {});
	/// Stops. No other call may be running, and no callback may be the caller.
	~messenger();
	messenger(const messenger &) = delete;
	messenger &operator=(const messenger &) = delete;

	/// Starts at an address, which may end with `*`, and waits until messages can be sent. The
	/// receiver may be empty: then messages are accepted and dropped. `ended`, if any, is
	/// called once, after all other callbacks: with 0 after stop(), or -errno if the machine
	/// broke.
	/// @return as transfer_machine::start(), or the reason why the start failed.
	[[nodiscard]] int start(std::string_view address, receiver = {}, completion ended = {});

	/// Sends a copy of `bytes` and waits until the transport reports the end. It also waits for
	/// a free buffer. @return 0 as transport_traits::reports_remote_errors says; -ETIMEDOUT
	/// (the deadline, also while waiting for a buffer), -ECANCELED (stop()), another status of
	/// buffer_event, or an error of post() except -EAGAIN; -EDEADLK: called by a callback of
	/// this messenger or of its machine, which has to use post().
	[[nodiscard]] int send(const destination &to, std::span<const std::byte> bytes,
			       time_point deadline = never, priority = priority::normal);
	/// The same for text.
	[[nodiscard]] int send(const destination &to, std::string_view text,
			       time_point deadline = never, priority p = priority::normal)
	{
		return send(to, std::as_bytes(std::span(text)), deadline, p);
	}
	/// Sends a copy of `bytes` and never waits. If it returns 0, `done` is called exactly once,
	/// perhaps before it returns. @return 0; -EAGAIN (all buffers are under way; see
	/// on_room()), -EMSGSIZE (longer than max_message()), -ETIMEDOUT (the deadline is past),
	/// -EBADFD (not started, or stopped), or another error of make_endpoint() and add(). After
	/// an error `done` is not called.
	[[nodiscard]] int post(const destination &to, std::span<const std::byte> bytes,
			       completion done = {}, time_point deadline = never,
			       priority = priority::normal);
	/// The same for a message in several parts, which are put together.
	[[nodiscard]] int post(const destination &to,
			       std::initializer_list<std::span<const std::byte>> parts,
			       completion done = {}, time_point deadline = never,
			       priority = priority::normal);
	/// post() with a future of the status; an error of post() is such a status, too. Do not
	/// wait for the future in a callback of this messenger.
	[[nodiscard]] std::future<int> async_send(const destination &to,
						  std::span<const std::byte> bytes,
						  time_point deadline = never,
						  priority = priority::normal);
	/// Waits until a buffer is free. Another thread may take it first. @return 0, -ETIMEDOUT,
	/// -ECANCELED (stopped), -EDEADLK (as send()).
	[[nodiscard]] int wait_room(time_point deadline = never);
	/// Before start(): `room` is called after every send, when its buffer is free again; and by
	/// the thread of a post() that fails, if another got -EAGAIN meanwhile. So several threads
	/// may call it at a time, and it may be called inside a post() of its own.
	/// @return 0, -EBADFD.
	[[nodiscard]] int on_room(std::function<void()> room);

	/// Ends every send, with -ECANCELED if `abort`, and all waiting; then waits until no
	/// callback runs or will run, unless a callback of this messenger calls it. A second call
	/// does no harm. At a machine of the program it ends all waiting and makes later sends
	/// fail; those under way end with the machine. @return 0, -EBADFD (never started).
	int stop(bool abort = true);

	/// Own address, once started.
	net::address address() const;
	/// The same as text.
	std::string text() const { return format(address()); }
	/// Bytes.
	std::size_t max_message() const noexcept;
	/// For bulk operations and end points. Only the messenger starts and stops its own.
	/// Handlers of its operations are callbacks of the messenger: they run on the same thread.
	transfer_machine &machine() noexcept;
	/// Whether a callback of this messenger, or of its machine, is the caller.
	bool inside() const noexcept;

private:
	class state;
	std::unique_ptr<state> state_;
};

} // namespace coop::net
