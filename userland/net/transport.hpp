// SPDX-License-Identifier: MIT
// transport.hpp - what a transport is to the core, and the core to a transport.
//
// A transport is a state machine with one owner: it has no lock and no thread. The core holds
// the lock of a transfer machine whenever it calls transport_machine, and so is every call of
// a sink made under it. A sink appends to lists; it calls no handler and does not call the
// transport back, so a transport may report from within any call, submit() included. Transfer
// machines run in parallel; what they share (transport_domain, anything static) has to stand
// that.
//
// The core does what is the same everywhere: states, queues, deadlines, cancelling, tokens,
// the accounting of receive buffers, end points, the envelope of bulk descriptors, pools,
// delivery, statistics, the thread, addresses in use. A transport moves bytes and says so.
//
// The life of a machine:
//
//   start(own)  -> sink.started() or sink.failed(), now or later
//   submit()... -> sink.completed() exactly once for each token that submit() took
//   cancel()    -> nothing new: completed() comes sooner. The core cancels all before
//   stop()      -> sink.stopped(), now or later; also instead of started()
//   destructor  after start() failed, failed() or stopped(), or without any start
//
// and whenever the core has time:
//
//   for (;;) { while (progress(n)) deliver; if (arm()) wait for fd() or deadline(); expire(); }
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coop/net/domain.hpp"
#include "memory.hpp"

namespace coop::net::spi
{

/// Number of a peer: small, dense, given by the core, used again after peer_close(). A
/// transport indexes an array with it.
using peer_number = std::uint32_t;
constexpr peer_number no_peer = 0xffffffff;

/// Names an operation while it is outstanding; never 0. TMID (12 bits), generation (32) and
/// slot (20): a number is not used again while anybody can have kept it. Opaque to transports
/// and safe on the wire: what comes from there goes through sink::find() or completed(). Not a
/// secret: who has seen some can tell others. transfer::key is one.
using token = std::uint64_t;

/// Calls of progress() after arm() for which fd() still tells. Somebody else may poll while
/// one thread sleeps; when that goes on for longer, the core arms anew.
constexpr unsigned armed_calls = 64;

/// An operation as a transport gets it.
struct transfer {
	queue_type queue;
	spi::memory memory;
	/// Bytes to move, from the start of the memory; the core has checked that they fit on
	/// both sides. msg_recv: bytes that may be written.
	std::size_t length = 0;
	/// msg_send, active queues: the other side. Passive: who alone may use the descriptor,
	/// or no_peer for anybody.
	peer_number peer = no_peer;
	/// Bulk: what a peer has to show to use this operation, passive or not. 64 random bits of
	/// its own, so that one who has seen any number of others cannot tell it. Not 0.
	std::uint64_t key = 0;
	/// Active queues: token and key of the passive operation. Its machine answers -ENOENT
	/// where it has none of that token, or the key is another: see sink::find().
	token remote = 0;
	std::uint64_t remote_key = 0;
	/// Active queues: what describe() wrote on the other side, unchecked but for its
	/// checksum; valid during submit() only.
	std::span<const std::byte> remote_part = {};
	/// msg_send: others follow at once, so it may wait for them: until a submit() without
	/// this, or flush().
	bool more = false;
	/// msg_recv, transports that do not place: bytes that must be left for another message,
	/// and the number of messages.
	std::size_t min_receive_size = 0;
	std::uint32_t max_receive_msgs = 0;
};

/// A piece of a receive buffer set apart for one message.
struct landing {
	spi::token token = 0; ///< of the receive operation; 0: no landing
	spi::memory memory;   ///< all of the buffer
	std::size_t offset = 0;
	std::size_t length = 0;
};

/// How transports differ in what the core does for them.
struct traits {
	transport_traits visible;
	/// Messages can be written anywhere, so the core picks the place when one has come:
	/// place(), received(). False: the transport gets receive buffers by submit(), writes
	/// messages one behind the other and calls received_in().
	bool places;
	/// Addresses are those of this process alone. False: of the host.
	bool private_addresses;
	/// Bytes that describe() writes at most.
	std::size_t descriptor_part;
	/// Machines whose addresses differ in the network alone are two. False: peers cannot tell
	/// them apart, so there can be one of them.
	bool networks_apart = true;
};

/// The core, to one transport_machine. Call it under the lock only, which is: from within
/// calls of the core.
class sink
{
public:
	/// The machine takes operations from now on.
	virtual void started() = 0;
	/// It will never take any (again). The transport is done with the memory of every
	/// operation; the core ends those with `status`, and only the destructor follows.
	virtual void failed(int status) = 0;
	/// Only the destructor follows.
	virtual void stopped() = 0;

	/// The operation has ended, and its memory is quiet. `length`: bytes that came or went,
	/// on the passive side as well. A token that is not outstanding is counted and skipped.
	virtual void completed(spi::token, int status, std::size_t length) = 0;
	/// The operation, or null: it has ended, or there never was one of this token. The pointer
	/// is good until the next call of submit() or completed().
	virtual const transfer *find(spi::token) = 0;
	/// The same, but null as well where this is not its key. For a peer that wants to use an
	/// operation: the passive side answers -ENOENT to one that is not found.
	const transfer *find(spi::token t, std::uint64_t key)
	{
		const transfer *x = find(t);
		return x && key && x->key == key ? x : nullptr;
	}

	/// Sets a piece of the receive queue apart for a message of `length` bytes, as early
	/// as its first byte arrives; several may be out at a time.
	/// @return 0, -ENOBUFS (no buffer; receivable() tells when there is one), -EMSGSIZE
	/// (the buffer at the head is smaller than that; it stays).
	virtual int place(std::size_t length, landing &out) = 0;
	/// The message is in its place, and came from this peer.
	virtual void received(const landing &, peer_number from) = 0;
	/// As place() and received() in one, for a message that is here already: it is copied.
	/// @return as place().
	virtual int receive(const void *message, std::size_t length, peer_number from) = 0;
	/// It will not come: the piece is given back, its memory is quiet.
	virtual void abandon(const landing &) = 0;
	/// As place() and received() in one, for transports that do not place.
	/// @return false: that was the last message of the buffer, which is no longer the
	/// transport's. True: another may follow behind it.
	virtual bool received_in(spi::token, std::size_t offset, std::size_t length,
				 peer_number from) = 0;

	/// The number of whoever has this address; the transport has a hold on it until
	/// release(), and one at most. For peers that speak first, and to keep a number while
	/// there is a connection. The core does not call peer_open() for it if it was new.
	/// @return no_peer if there are too many.
	virtual peer_number peer(const address &) = 0;
	/// Gives up the hold. peer_close() comes when nobody else uses the number, after this
	/// call of the core's.
	virtual void release(peer_number) = 0;

	/// The time; read from the clock at most once a call of the core.
	virtual time_point now() = 0;
	/// From start() on: a program polls for its events, so progress() is called over and over,
	/// and waiting for fd() is the exception.
	virtual bool polled() const = 0;

protected:
	~sink() = default;
};

/// One transfer machine of a transport. See the head of the file for the order of calls.
class transport_machine
{
public:
	virtual ~transport_machine() = default;

	/// `own`: without `*`, accepted by transport_domain::check(), claimed by the core.
	/// @return 0, or -errno: then it is as if it had not been called. -EADDRINUSE: somebody
	/// who is not of this library has it; for `*` the core goes on with the next number.
	virtual int start(const address &own) = 0;
	/// No operation is outstanding. What peers are owed (acknowledgements) may still go
	/// out, within a bounded time, before stopped() is reported.
	virtual void stop() = 0;

	/// @return 0: completed() follows (or has been called already). -errno: it does not.
	virtual int submit(spi::token, const transfer &) = 0;
	/// Nothing follows what was submitted with transfer::more.
	virtual void flush() {}
	/// The operation is to end as soon as its memory can be quiet: -ECANCELED, or however
	/// it ends before that. May be called more than once. For a token of msg_recv of a
	/// transport that places: let go of every landing in it, by received() or abandon().
	virtual void cancel(spi::token) = 0;
	/// Passive queues, after submit(): the transport's part of the descriptor, at most
	/// traits::descriptor_part bytes, little-endian.
	/// @return bytes written or -errno.
	virtual int describe(spi::token, std::span<std::byte> out) = 0;
	/// There is a receive buffer after place() has said -ENOBUFS.
	virtual void receivable() {}

	/// The number stands for this address from now on. @return 0 or -errno (-EINVAL: not an
	/// address of this transport).
	virtual int peer_open(peer_number, const address &) = 0;
	/// Nobody uses the number any more, and nothing is queued to it.
	virtual void peer_close(peer_number) = 0;

	/// Handles about `budget` things. Never blocks. @return how many; 0: there is nothing.
	virtual unsigned progress(unsigned budget) = 0;
	/// fd() is to be readable once progress() has something to do, for armed_calls more calls
	/// of it at least. @return false: it has already, and nothing is asked of fd().
	virtual bool arm() = 0;
	/// To poll for POLLIN while armed; -1: there is none, deadline() says it all. Constant
	/// from start() on.
	virtual int fd() const = 0;
	/// When expire() is to be called; `never` if there is nothing to wait for.
	virtual time_point deadline() const = 0;
	virtual void expire(time_point now) = 0;
};

/// An open transport. Any thread may call anything at any time.
class transport_domain
{
public:
	virtual ~transport_domain() = default;

	virtual const domain_limits &limits() const = 0;
	virtual const spi::traits &traits() const = 0;
	/// What was taken where the value of this parameter offers a choice; else empty.
	virtual std::string chosen(std::string_view) const { return {}; }
	/// Whether a machine can have this address (its number may be `*`). @return 0, -EINVAL
	/// (a form or a network that is not spoken here), -ENOENT (not of this host).
	virtual int check(const address &own) const = 0;
	/// `registration` comes back in memory::registration. @return 0 or -errno.
	virtual int register_memory(std::span<const segment>, void **registration) = 0;
	virtual void deregister_memory(void *registration) = 0;
	/// The sink outlives the machine. @throw std::system_error.
	virtual std::unique_ptr<transport_machine> make_machine(sink &) = 0;
};

/// Whose domains a parameter has to be given to.
enum class sides : std::uint8_t {
	own,   ///< its effect is on this side; peers may have another value or learn of it
	agree, ///< without the same at its peers (or a device of their own) some or all fails
};

/// A key that a domain may be given.
struct parameter {
	const char *key;
	const char *standard; ///< value if it is not given
	const char *text;     ///< what it does, with its unit
	spi::sides sides = spi::sides::own;
};

/// Every key of the transport, with the value given or the standard one.
class parameter_values
{
public:
	/// @throw std::system_error EINVAL naming a key that is not in `known` or given twice.
	parameter_values(std::string transport, std::span<const parameter> known,
			 const std::vector<std::pair<std::string, std::string>> &given);

	const std::string &text(const std::string &key) const;
	/// Decimal, with an optional k, m or g (powers of 1024). @throw std::system_error EINVAL
	/// naming the key and the range.
	std::uint64_t number(const std::string &key, std::uint64_t least, std::uint64_t most) const;
	/// 0 or 1. @throw as number().
	bool flag(const std::string &key) const { return number(key, 0, 1) != 0; }
	/// For transports that check more: throws EINVAL naming the key and `why`.
	[[noreturn]] void refuse(const std::string &key, const std::string &why) const;

private:
	std::string transport_;
	std::map<std::string, std::string> values_;
};

/// A kind of transport. One constant object each, named in registry.cpp.
class transport
{
public:
	virtual const char *name() const = 0;
	virtual std::span<const parameter> parameters() const = 0;
	/// @throw std::system_error whose text says what is missing and what to do.
	virtual std::unique_ptr<transport_domain> open(const parameter_values &) const = 0;

protected:
	~transport() = default;
};

/// Those of this tree. Each defines its own; registry.cpp lists the ones that are built.
extern const transport &mem_transport, &ud_transport, &fabric_transport;

/// The transport of this name or null.
const transport *find_transport(std::string_view name);
/// Adds one that is not in the build (tests). It stays for the life of the process.
void add_transport(const transport &);

/// For check(): 0 if this host has the IP address (IPv4 mapped into IPv6), -ENOENT if it has not,
/// or why that cannot be told (-EMFILE).
int check_own_ip(const std::array<std::uint8_t, 16> &ip);

} // namespace coop::net::spi
