// SPDX-License-Identifier: MIT
// domain.hpp - one transport, opened: what buffers, pools and transfer machines belong to.
//
// Domains are independent of each other; a process may open several, of the same transport
// or of different ones. A domain outlives everything that was made from it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base.hpp"

namespace coop::net
{

/// Which transport, and how it is set up.
/// @par Source
/// Motr names a transport to m0_net_domain_init(); parameters as text are our own.
struct domain_options {
	std::string transport; ///< a name from domain::transports()
	/// key and value. What a transport does not know is refused, never ignored.
	std::vector<std::pair<std::string, std::string>> parameters = {};
};

/// What a domain can take. Bytes unless said otherwise.
/// @par Source
/// Motr's m0_net_domain_get_max_buffer_size() and its kin.
struct domain_limits {
	/// operation::length of a msg_send. On ud no session takes more than half of window= times
	/// the room in a datagram (mtu=, or what the device has, without the heads): where that is
	/// less, add() says -EMSGSIZE; where the peer takes less, the event does.
	std::size_t max_message;
	std::size_t max_buffer;     ///< all segments of a buffer
	std::size_t max_segment;    ///< one segment
	std::uint32_t max_segments; ///< number, of one buffer
	std::size_t max_descriptor; ///< of a passive buffer
	std::uint32_t max_queued;   ///< operations on all queues of one transfer machine
};

/// How a transport behaves where transports differ; programs that must run on any of them
/// assume the weaker.
/// @par Source
/// Our own.
struct transport_traits {
	/// A message that found no transfer machine or no buffer ends with an error at its
	/// sender. False: it may end well, as a datagram does.
	bool reports_remote_errors;
	/// Other processes can be reached.
	bool between_processes;
};

/// One of domain_options::parameters in an open domain.
/// @par Source
/// Our own, as domain_options::parameters is.
struct domain_parameter {
	std::string key;      ///< its name
	std::string value;    ///< in effect; where that given offers a choice, what was taken
	std::string standard; ///< of a domain that is not given any
	/// The domains of peers need it too: the same value, or (device, file) their host's own.
	bool both_sides;
};

/// An open transport.
/// @par Source
/// Motr's network domain.
class COOP_NET_API domain
{
public:
	/// @throw std::system_error EPROTONOSUPPORT (no such transport; the text lists those
	/// there are), EINVAL (unknown parameter or bad value, which the text names), or what
	/// the transport says (ENODEV: no device).
	explicit domain(const domain_options &);
	/// Ends the program with a message if a buffer, pool or transfer machine is left.
	~domain();
	domain(const domain &) = delete;
	domain &operator=(const domain &) = delete;

	/// Its name, as in domain_options.
	const std::string &transport() const noexcept;
	/// They do not change while it is open.
	const domain_limits &limits() const noexcept;
	/// The same.
	const transport_traits &traits() const noexcept;
	/// Every parameter of the transport.
	const std::vector<domain_parameter> &parameters() const noexcept;

	/// Names of the transports in this build.
	static std::vector<std::string> transports();
	/// One line a parameter: "key=default  what it does (unit)", and "[both sides]" behind
	/// those that peers need too. Empty if there is no such transport.
	static std::string parameters(const std::string &transport);

private:
	friend class core::domain_state;

	std::shared_ptr<core::domain_state> state_;
};

} // namespace coop::net
