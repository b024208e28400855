// SPDX-License-Identifier: MIT
// transport.hpp - the interface between the core and a transport.
//
// A transport is a state machine with one owner: it has no lock and no thread. The core holds the
// lock of a transfer machine whenever it calls transport_machine, so every call of a sink is made
// under that lock too. A sink appends to lists; it calls no handler and does not call the transport
// back, so a transport may report from within any call, including submit(). Transfer machines run
// in parallel; their shared parts (transport_domain, static objects) must be thread-safe.
//
// The core does what all transports have in common: states, queues, deadlines, cancelling, tokens,
// accounting of receive buffers, end points, the envelope of bulk descriptors, pools, delivery,
// statistics, the thread, addresses in use. A transport moves bytes and reports it.
//
// The life cycle of a machine:
//
//   prepare(own)   without the lock, and no other call meanwhile; start() need not follow
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

#include <cerrno>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coop/net/domain.hpp"
#include "memory.hpp"

namespace coop::net::spi
{

/// Number of a peer: small, dense, assigned by the core, reused after peer_close(). A transport
/// uses it as an array index.
using peer_number = std::uint32_t;
constexpr peer_number no_peer = 0xffffffff;

/// Names an operation while it is outstanding; never 0. Generation (44 bits) and slot (20): a
/// machine never uses a number twice (slots.hpp), and numbers of other machines mean nothing to it.
/// Opaque to transports, except that live ones differ in the lower 20 bits, and safe on the wire:
/// sink::find() and completed() check tokens from there. Not a secret: a peer that has seen some
/// can guess others. transfer::key is secret.
using token = std::uint64_t;

/// Calls of progress() after arm() for which fd() still signals. Other threads may poll while one
/// sleeps; after that many calls, the core arms again.
constexpr unsigned armed_calls = 64;

/// Messages of high priority that may overtake the same one in a row.
constexpr unsigned high_run = 16;

/// An operation as passed to a transport.
struct transfer {
	queue_type queue;
	spi::memory memory;
	/// Bytes to move, from the start of the memory; the core has checked that they fit on both
	/// sides. msg_recv: bytes that may be written.
	std::size_t length = 0;
	/// msg_send, active queues: the remote peer. Passive: the only peer that may use the
	/// descriptor, or no_peer for any.
	peer_number peer = no_peer;
	/// Bulk: the key that a peer must present to use this operation, passive or not. 64 random
	/// bits of its own, so that other keys do not help to guess it. Not 0.
	std::uint64_t key = 0;
	/// Active queues: token and key of the passive operation. Its machine answers -ENOENT if
	/// the token or the key does not match: see sink::find().
	token remote = 0;
	std::uint64_t remote_key = 0;
	/// Passive: ends by cancel() only; each request names a range, and uses it by sink::use(),
	/// or within one call. Active: the passive operation is such a one, so this is sent with
	/// the offset; never to a peer that is older than that.
	bool reusable = false;
	/// Active and `reusable`: where the range begins in the passive memory, and the size of
	/// that.
	std::size_t remote_offset = 0, remote_size = 0;
	/// A use: where its range begins in `memory`. All others: 0.
	std::size_t offset = 0;
	/// Active queues: the bytes that describe() wrote on the other side, unchecked except for
	/// the checksum; valid during submit() only.
	std::span<const std::byte> remote_part = {};
	/// msg_send: more messages follow at once, so this one may wait for them, until a submit()
	/// without this flag, or flush().
	bool more = false;
	/// msg_send: overtakes messages that are not `high` and still wait to be sent; at most
	/// high_run in a row.
	bool high = false;
	/// msg_recv, transports that do not place: bytes that must be free for another message, and
	/// the most messages.
	std::size_t min_receive_size = 0;
	std::uint32_t max_receive_msgs = 0;
};

/// Whether a peer may use this range of a passive operation. @return 0 or -EFBIG.
inline int check_range(const transfer &x, std::uint64_t offset, std::uint64_t length)
{
	return length == 0 || offset > x.length || length > x.length - offset ? -EFBIG : 0;
}

/// A piece of a receive buffer reserved for one message.
struct landing {
	spi::token token = 0; ///< of the receive operation; 0: no landing
	spi::memory memory;   ///< the whole buffer
	std::size_t offset = 0;
	std::size_t length = 0;
};

/// Properties of a transport that the core has to know.
struct traits {
	transport_traits visible;
	/// Messages can be written anywhere, so the core chooses the place when one arrives:
	/// place(), received(). False: the transport gets receive buffers by submit(), writes
	/// messages one after another and calls received_in().
	bool places;
	/// Addresses are private to this process. False: to the host.
	bool private_addresses;
	/// Most bytes that describe() writes.
	std::size_t descriptor_part;
	/// Addresses that differ only in the network name are different machines. False: peers
	/// cannot tell them apart, so only one of them can exist.
	bool networks_apart = true;
};

/// The core's interface for one transport_machine. Call it under the lock only, that is, from
/// within calls of the core.
class sink
{
public:
	/// The machine accepts operations from now on.
	virtual void started() = 0;
	/// The machine accepts no operations (any more). The transport no longer uses the memory of
	/// any operation; the core ends them with `status`, and calls only the destructor after
	/// this.
	virtual void failed(int status) = 0;
	/// The core calls only the destructor after this.
	virtual void stopped() = 0;

	/// The operation has ended, and its memory is quiet. `length`: bytes transferred, on the
	/// passive side as well. A token that is not outstanding is ignored.
	virtual void completed(spi::token, int status, std::size_t length) = 0;
	/// The operation, or null: it has ended, or the token was never valid. The pointer is valid
	/// until the next call of submit() or completed().
	virtual const transfer *find(spi::token) = 0;
	/// The same, but null as well if the key does not match. For a peer that wants to use an
	/// operation: if it is not found the passive side answers -ENOENT.
	const transfer *find(spi::token t, std::uint64_t key)
	{
		const transfer *x = find(t);
		return x && key && x->key == key ? x : nullptr;
	}

	/// Begins a use of a reusable operation: an operation like any other passive one, of this
	/// range, which check_range() has passed. It has no key, so no peer can name it. It ends by
	/// completed(), early after cancel(); the reusable one ends after its uses. `by`: whose use
	/// it is. @return its token, or 0: it cannot be used (any more), or there are too many
	/// uses, of all peers or of this one.
	virtual token use(token reusable, std::size_t offset, std::size_t length,
			  peer_number by) = 0;
	/// A peer gives up its request for a passive operation: that stands for others, but if it
	/// is a use it has ended.
	virtual void given_up(token) = 0;

	/// Reserves a piece of the receive queue for a message of `length` bytes, as early as its
	/// first byte arrives; several may be reserved at a time. @return 0, -ENOBUFS (no buffer;
	/// receivable() reports a new one), -EMSGSIZE (the buffer at the head is too small; it
	/// stays).
	virtual int place(std::size_t length, landing &out) = 0;
	/// The message is complete in its place, and came from this peer.
	virtual void received(const landing &, peer_number from) = 0;
	/// place() and received() in one, for a message that has already arrived: it is copied.
	/// @return as place().
	virtual int receive(const void *message, std::size_t length, peer_number from) = 0;
	/// The message will not arrive: the piece is returned, its memory is quiet.
	virtual void abandon(const landing &) = 0;
	/// place() and received() in one, for transports that do not place. @return false: that was
	/// the last message of the buffer, which the transport must no longer use. True: another
	/// may follow after it.
	virtual bool received_in(spi::token, std::size_t offset, std::size_t length,
				 peer_number from) = 0;

	/// The number of the peer with this address. The transport has one hold on it, at most,
	/// until release(). For peers that send first, and to keep a number while there is a
	/// connection. The core does not call peer_open() for a new number. @return no_peer if
	/// there are too many.
	virtual peer_number peer(const address &) = 0;
	/// Gives up the hold. peer_close() follows once the number is unused, after this call of
	/// the core.
	virtual void release(peer_number) = 0;

	/// The current time; read from the clock at most once in each call of the core.
	virtual time_point now() = 0;
	/// Constant from start() on: a program polls for its events, so progress() is called
	/// continually and waiting for fd() is the exception.
	virtual bool polled() const = 0;

protected:
	~sink() = default;
};

/// One transfer machine of a transport. The head of the file gives the order of calls.
class transport_machine
{
public:
	virtual ~transport_machine() = default;

	/// What takes long and reports nothing to the sink, such as opening a device and
	/// registering the buffers of the domain with it. `own`: its number may be `*`. @return 0
	/// or -errno (-ENOMEM: the limit of locked memory).
	virtual int prepare(const address & /*own*/) { return 0; }
	/// `own`: without `*`, accepted by transport_domain::check(), claimed by the core. @return
	/// 0, or -errno: then the call had no effect. -EADDRINUSE: a program without this library
	/// uses it; for `*` the core tries the next number.
	virtual int start(const address &own) = 0;
	/// No operation is outstanding. What is owed to peers (acknowledgements) may still be sent,
	/// within a bounded time, before stopped() is reported.
	virtual void stop() = 0;

	/// @return 0: completed() follows (or has been called already). -errno: it does not.
	virtual int submit(spi::token, const transfer &) = 0;
	/// No further message follows those submitted with transfer::more.
	virtual void flush() {}
	/// End the operation as soon as its memory can be quiet: -ECANCELED, or its result if it
	/// ends before that. May be called more than once. For a msg_recv token of a transport that
	/// places: end every landing in it by received() or abandon().
	virtual void cancel(spi::token) = 0;
	/// Passive queues, after submit(): the transport's part of the descriptor, at most
	/// traits::descriptor_part bytes, little-endian.
	/// @return bytes written or -errno.
	virtual int describe(spi::token, std::span<std::byte> out) = 0;
	/// A receive buffer is available after place() returned -ENOBUFS.
	virtual void receivable() {}

	/// Assigns the number to this address. @return 0 or -errno (-EINVAL: not an address of this
	/// transport).
	virtual int peer_open(peer_number, const address &) = 0;
	/// The number is unused, and nothing is queued to it.
	virtual void peer_close(peer_number) = 0;

	/// Handles about `budget` items. Never blocks. @return how many; 0: there is nothing to do.
	virtual unsigned progress(unsigned budget) = 0;
	/// From now on fd() must become readable once progress() has something to do, for at least
	/// armed_calls more calls of it. @return false: there is something to do already, and fd()
	/// need not signal.
	virtual bool arm() = 0;
	/// To poll for POLLIN while armed; -1: none, deadline() suffices. Constant from start() on.
	virtual int fd() const = 0;
	/// When expire() has to be called; `never` if there is nothing to wait for.
	virtual time_point deadline() const = 0;
	virtual void expire(time_point now) = 0;

	/// Once started: transfer_machine::rails().
	virtual std::vector<rail_stats> rails() const { return {}; }
};

/// An open transport. Thread-safe.
class transport_domain
{
public:
	virtual ~transport_domain() = default;

	virtual const domain_limits &limits() const = 0;
	virtual const spi::traits &traits() const = 0;
	/// The choice made, if the value of this parameter leaves one; else empty.
	virtual std::string chosen(std::string_view) const { return {}; }
	/// Whether a machine can have this address (its number may be `*`). @return 0, -EINVAL (an
	/// unsupported form or network), -ENOENT (not of this host).
	virtual int check(const address &own) const = 0;
	/// A buffer is made: registers its memory with every device that the domain has open now,
	/// and will open, see transport_machine::prepare(). `registration` is passed back in
	/// memory::registration. @return 0 or -errno (-ENOMEM: the limit of locked memory).
	virtual int register_memory(std::span<const segment>, void **registration) = 0;
	virtual void deregister_memory(void *registration) = 0;
	/// The sink outlives the machine. @throw std::system_error.
	virtual std::unique_ptr<transport_machine> make_machine(sink &) = 0;
};

/// The domains for which a parameter must be set.
enum class sides : std::uint8_t {
	own,   ///< affects this side; peers may use another value or learn it
	agree, ///< some or all operations fail unless peers have the same (or a device of their
	       ///< own)
};

/// A parameter that a domain accepts.
struct parameter {
	const char *key;
	const char *standard; ///< value if it is not given
	const char *text;     ///< its meaning and unit
	spi::sides sides = spi::sides::own;
};

/// Every parameter of the transport, with the given value or the standard one.
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
	/// For further checks by transports: throws EINVAL naming the key and `why`.
	[[noreturn]] void refuse(const std::string &key, const std::string &why) const;

private:
	std::string transport_;
	std::map<std::string, std::string> values_;
};

/// A kind of transport. One constant object each, listed in registry.cpp.
class transport
{
public:
	virtual const char *name() const = 0;
	/// The transport whose machines it speaks with, whose name is in descriptors.
	virtual const char *wire() const { return name(); }
	virtual std::span<const parameter> parameters() const = 0;
	/// @throw std::system_error whose text says what is missing and what to do.
	virtual std::unique_ptr<transport_domain> open(const parameter_values &) const = 0;

protected:
	~transport() = default;
};

/// The transports of this tree. Each defines its own; registry.cpp lists the ones that are built.
extern const transport &mem_transport, &ud_transport, &fabric_transport, &ntrdma_transport,
	&kernel_transport;

/// The transport of this name or null.
const transport *find_transport(std::string_view name);
/// Adds a transport that is not in the build (tests). It stays for the life of the process.
void add_transport(const transport &);

/// For check(): 0 if this host has the IP address (IPv4 mapped into IPv6), -ENOENT if not, or the
/// error that prevents the check (-EMFILE).
int check_own_ip(const std::array<std::uint8_t, 16> &ip);

} // namespace coop::net::spi
