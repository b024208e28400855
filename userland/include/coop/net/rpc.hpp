// SPDX-License-Identifier: MIT
// rpc.hpp - call(to, method, bytes): remote procedure calls between messengers.
//
// Every rpc object calls and serves at one address. A method has a number and takes and returns
// bytes. Arguments and results that do not fit into a message go by bulk transfer; callers and
// methods do not notice.
//
// A request runs at most once. It is sent once and never repeated, and the transports deliver a
// message at most once. A call that ends with 0 or with a status of the method has run; one that
// ends otherwise (-ETIMEDOUT, an error of the transport, -ECANCELED) may have run, may be running,
// or never run. Repeating it is up to the program, which knows whether that does harm.
#pragma once

#include <vector>

#include "messenger.hpp"

namespace coop::net
{

/// The end of a call.
/// @par Source
/// Our own.
struct call_result {
	/// 0; a negative errno value of the method (`remote`) or of the library: -ETIMEDOUT (the
	/// deadline), -ECANCELED (stop(), or the method's program dropped the request), -ENOSYS
	/// (the peer has no such method), -ENOBUFS (the peer's limits, it has no receive buffer,
	/// or our bulk_memory), -EFBIG (an argument longer than the peer's max_body, or a result
	/// longer than ours), -ECONNRESET (the peer restarted, or no longer knows the call),
	/// -EPROTO, another status of buffer_event, or an error of call().
	int status = 0;
	bool remote = false;          ///< the status is the peer's word
	std::vector<std::byte> bytes; ///< the result; empty if status is not 0
};

/// Limits of an rpc object.
/// @par Source
/// Our own.
struct rpc_options {
	messenger_options messages = {}; ///< of its messenger
	/// Longest argument or result, in bytes, that is sent or accepted.
	std::size_t max_body = 64 << 20;
	/// Longer ones go by bulk transfer; never more than what fits into a message.
	std::size_t eager = 16 << 10;
	/// Bytes that go by bulk transfer and that peers can make this side keep: arguments, from
	/// the arrival of a request until the method has dropped it, and results that are offered,
	/// together; and apart from them the results that own calls are reading. Beyond it callers,
	/// or own calls, get -ENOBUFS.
	std::size_t bulk_memory = 256 << 20;
	/// Requests under way here, from their arrival until their answers have left; beyond it
	/// callers get -ENOBUFS.
	std::uint32_t max_requests = 1024;
	/// The same for one peer.
	std::uint32_t max_requests_of_peer = 256;
	/// Own calls under way; beyond it call() fails with -EAGAIN.
	std::uint32_t max_calls = 4096;
	/// After this time without an answer a caller asks the peer whether it is still there.
	std::chrono::milliseconds probe{1000};
	/// A result that the caller does not take, as a message or by bulk transfer, is dropped
	/// after this time. Until then it may keep a send buffer: a quarter of them for one caller.
	std::chrono::milliseconds unread{30000};
};

/// Counters of an rpc object, since it was made.
/// @par Source
/// Our own.
struct rpc_stats {
	std::uint64_t calls;     ///< calls that call() accepted
	std::uint64_t served;    ///< requests handed to a method
	std::uint64_t refused;   ///< requests beyond a limit, or for no method
	std::uint64_t repeated;  ///< requests with the id of one under way, dropped
	std::uint64_t late;      ///< answers without a call: it has ended, or never was
	std::uint64_t malformed; ///< messages that are not of this protocol
	std::uint64_t unsent;    ///< answers that could not be sent
};

class rpc;

namespace core
{
class request_state;
}

/// A request to a method. Copies are the same request, which is answered once, from any thread,
/// now or later. If all copies are gone without an answer, the caller gets -ECANCELED; so a method
/// may ignore what answer() returns. A request may outlive its rpc object; then it cannot be
/// answered.
/// @par Source
/// Our own.
class COOP_NET_API request
{
public:
	request(const request &) = default;            ///< the same request
	request &operator=(const request &) = default; ///< the same request
	/// The caller's address.
	const address &from() const noexcept;
	/// The number of the method.
	std::uint32_t method() const noexcept;
	/// The argument; valid as long as a copy of the request.
	std::span<const std::byte> bytes() const noexcept;
	/// When the caller gives up; by our clock, counted from the arrival.
	time_point deadline() const noexcept;

	/// Sends the result. @return 0: it will be sent, and the transport reports no errors to
	/// methods; -EALREADY (answered), -ETIMEDOUT (the caller has given up), -ECANCELED (the rpc
	/// object has stopped); not answered yet: -EFBIG (longer than max_body), -ENOBUFS
	/// (bulk_memory), -ENOMEM, or another error of add().
	int answer(std::span<const std::byte> bytes) const;
	/// The same for text.
	int answer(std::string_view text) const { return answer(std::as_bytes(std::span(text))); }
	/// Sends a negative errno value instead. @return as answer(); -EINVAL: not negative.
	int fail(int status) const;

private:
	friend class rpc;
	explicit request(std::shared_ptr<core::request_state> s) : state_(std::move(s)) {}

	std::shared_ptr<core::request_state> state_; // never null
};

/// Calls methods of peers and serves methods to them. Thread-safe, also for calls from its own
/// callbacks, unless said otherwise. Callbacks run on the background thread, or on a second one for
/// calls whose deadline passes; without any lock of the library. They must not throw, and must not
/// wait for a call of the same object.
/// @par Source
/// Our own.
class COOP_NET_API rpc
{
public:
	/// A method. It may keep the request and answer it later.
	using method_handler = std::function<void(const request &)>;
	/// Gets the end of a call.
	using completion = std::function<void(call_result &&)>;

	/// @throw as messenger(); EINVAL: max_message is too small, probe or unread not positive.
	explicit rpc(domain &, const rpc_options & = {});
	/// Calls and serves at a machine of the program, of the same domain, which has not been
	/// started; for one that polls, or that has messages of other kinds, too. One object for
	/// each machine: it takes the answers to all calls as its own. The program starts and stops
	/// the machine, gives the messages that arrive to take(), and calls stop() when the machine
	/// has stopped or failed and its events have been delivered. Only then may this object be
	/// destroyed, and only after that the machine. `r` gets the messages of post().
	///
	/// Callbacks run where the machine's events are delivered; those of calls that end without
	/// an answer also on the thread of deadlines, and inside stop(). A thread that delivers the
	/// events must not wait in send() or in the call() that returns a future: outside of
	/// callbacks nothing refuses that, and the event that would end it never comes.
	///
	/// The program must leave room within the domain's max_queued: for as many operations as
	/// there are send buffers, and for one more for each long argument or result. A call
	/// without it gets -ENOBUFS; an answer without it is dropped, and its caller gets
	/// -ECONNRESET when it asks. `o.messages.receive_buffers` and `poll` mean nothing.
	/// @throw as above; EBADFD: it has been started.
	rpc(domain &, transfer_machine &, const rpc_options &o = {}, messenger::receiver r = {});
	/// Stops. No other call may be running, and no callback may be the caller.
	~rpc();
	rpc(const rpc &) = delete;
	rpc &operator=(const rpc &) = delete;

	/// Sets the handler of a method, before or after start(); an empty one removes it. Requests
	/// for a method without handler are answered with -ENOSYS. It does not wait: requests that
	/// have arrived may still run the handler before. After stop() none runs.
	void serve(std::uint32_t method, method_handler);
	/// Starts at an address. `r` gets the messages of post(). @return as messenger::start().
	/// -EBADFD: at a machine of the program.
	[[nodiscard]] int start(std::string_view address, messenger::receiver r = {});
	/// At a machine of the program: handles a message that has arrived, and calls its method,
	/// the completion of its call, or the receiver of post(). After stop() it drops the
	/// message. @return false: it is not of an rpc object, and nothing was done.
	bool take(endpoint &from, std::span<const std::byte> bytes);

	/// Calls a method and never waits. If it returns 0, `done` is called exactly once, perhaps
	/// before it returns. @return 0; -EAGAIN (max_calls, or all send buffers are under way),
	/// -EFBIG (longer than max_body), -ENOMEM (no memory can be registered for a long
	/// argument), -ETIMEDOUT (the deadline is past), -EBADFD (not started, or stopped), or
	/// another error of post(). After an error `done` is not called.
	[[nodiscard]] int call(const destination &to, std::uint32_t method,
			       std::span<const std::byte> bytes, completion done,
			       time_point deadline = never);
	/// Calls a method. Instead of -EAGAIN it waits until the deadline, unless a callback of
	/// this object is the caller. Errors are in the result.
	[[nodiscard]] std::future<call_result> call(const destination &to, std::uint32_t method,
						    std::span<const std::byte> bytes,
						    time_point deadline = never);
	/// The same for text.
	[[nodiscard]] std::future<call_result> call(const destination &to, std::uint32_t method,
						    std::string_view text,
						    time_point deadline = never)
	{
		return call(to, method, std::as_bytes(std::span(text)), deadline);
	}

	/// Sends a message beside the calls, to the peer's receiver; as messenger::post(), and
	/// max_message() bytes at most.
	[[nodiscard]] int post(const destination &to, std::span<const std::byte> bytes,
			       messenger::completion done = {}, time_point deadline = never,
			       priority = priority::normal);
	/// The same as messenger::send().
	[[nodiscard]] int send(const destination &to, std::span<const std::byte> bytes,
			       time_point deadline = never, priority = priority::normal);
	/// The longest message of post(), in bytes.
	std::size_t max_message() const noexcept;

	/// Ends every call and send with -ECANCELED and waits until no callback runs or will run,
	/// unless a callback of this object calls it. At a machine of the program it ends the
	/// calls, and makes later calls and sends fail; sends under way end with the machine, and
	/// callbacks where its events are delivered are not waited for. @return 0, -EBADFD (never
	/// started; not at a machine of the program).
	int stop();

	/// Own address, once started.
	net::address address() const;
	/// The same as text.
	std::string text() const { return format(address()); }
	/// For bulk operations and end points. Only the rpc object starts and stops it. Handlers of
	/// its operations are callbacks of this object.
	transfer_machine &machine() noexcept;
	/// Whether a callback of this object is the caller.
	bool inside() const noexcept;
	/// The counters.
	rpc_stats stats() const;

private:
	class state;
	std::unique_ptr<state> state_;
};

} // namespace coop::net
