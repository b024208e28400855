// SPDX-License-Identifier: MIT
// domain.hpp - an open transport, the owner of buffers, pools and transfer machines.
//
// Domains are independent of each other; a process may open several, of the same transport or of
// different ones. A domain must outlive everything made from it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base.hpp"

namespace coop::net
{

/// The transport and its parameters.
/// @par Source
/// Motr names a transport to m0_net_domain_init(); parameters as text are our own.
struct domain_options {
	std::string transport; ///< a name from domain::transports()
	/// Keys and values. An unknown key is an error.
	std::vector<std::pair<std::string, std::string>> parameters = {};
};

/// Limits of a domain, in bytes unless said otherwise.
/// @par Source
/// Motr's m0_net_domain_get_max_buffer_size() and related calls.
struct domain_limits {
	/// operation::length of a msg_send. On ud and kernel a session limits it to half of
	/// window= times the payload of a datagram (mtu= or the device's, minus headers): if our
	/// side's limit is lower than max_message, add() returns -EMSGSIZE; if the peer's is, the
	/// event does.
	std::size_t max_message;
	std::size_t max_buffer;     ///< all segments of a buffer
	std::size_t max_segment;    ///< one segment
	std::uint32_t max_segments; ///< number, of one buffer
	std::size_t max_descriptor; ///< of a passive buffer
	std::uint32_t max_queued;   ///< operations on all queues of one transfer machine
};

/// Properties in which transports differ; a program that must run on any of them has to assume the
/// weaker one.
/// @par Source
/// Our own.
struct transport_traits {
	/// A message that finds no transfer machine or no buffer ends with an error at its sender.
	/// False: it may seem to succeed, like a datagram.
	bool reports_remote_errors;
	/// Whether it reaches other processes.
	bool between_processes;
	/// Whether it has operation::reusable; else add() returns -EOPNOTSUPP. All transports of
	/// this library have it.
	bool reusable_descriptors = false;
};

/// What went over one rail of a transfer machine, see transfer_machine::rails().
/// @par Source
/// Our own; the rails are LNet's Multi-Rail.
struct rail_stats {
	std::string name; ///< its device or address
	/// Bytes of datagrams, without headers below the transport; on kernel of messages and bulk
	/// data alone.
	std::uint64_t sent;
	std::uint64_t received;   ///< likewise
	std::uint64_t read_bytes; ///< bulk data that this machine has read by it, in whole pages
	std::uint64_t reads;      ///< requests for that
	std::uint64_t failed;     ///< those that brought nothing: other rails, or later ones, did
};

/// A parameter of an open domain, see domain_options::parameters.
/// @par Source
/// Our own, as domain_options::parameters is.
struct domain_parameter {
	std::string key;      ///< its name
	std::string value;    ///< in effect; the one chosen, if the given one offers a choice
	std::string standard; ///< value if it is not given
	/// The domains of peers need it too: the same value, or (device, file) their own host's.
	bool both_sides;
};

/// An open transport.
/// @par Source
/// Motr's network domain.
class COOP_NET_API domain
{
public:
	/// @throw std::system_error EPROTONOSUPPORT (no such transport; the text lists the known
	/// ones), EINVAL (unknown parameter or bad value, which the text names), or the transport's
	/// error (ENODEV: no device).
	explicit domain(const domain_options &);
	/// Aborts the program with a message if a buffer, pool or transfer machine is left.
	~domain();
	domain(const domain &) = delete;
	domain &operator=(const domain &) = delete;

	/// The transport's name, as in domain_options.
	const std::string &transport() const noexcept;
	/// The limits; constant while the domain is open.
	const domain_limits &limits() const noexcept;
	/// The traits; constant while the domain is open.
	const transport_traits &traits() const noexcept;
	/// Every parameter of the transport.
	const std::vector<domain_parameter> &parameters() const noexcept;

	/// Names of the transports in this build.
	static std::vector<std::string> transports();
	/// One line for each parameter: "key=default meaning (unit)", followed by "[both sides]" if
	/// peers need it too. Empty if there is no such transport.
	static std::string parameters(const std::string &transport);

private:
	friend class core::domain_state;

	std::shared_ptr<core::domain_state> state_;
};

} // namespace coop::net
