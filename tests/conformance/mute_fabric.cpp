// SPDX-License-Identifier: MIT
// mute_fabric.cpp - a foreign service on every port that a machine of the fabric transport would
// use: it accepts connections and never reads from them.
#include <cerrno>
#include <sys/socket.h>
#include <system_error>
#include <vector>

#include "coop/unique_fd.hpp"
#include "mute.hpp"
#include "userland/net/fabric/datagram_port.hpp"
#include "userland/net/fabric/ports.hpp"

namespace conformance
{

using namespace net::fabric;

std::shared_ptr<void> mute_fabric(const net::address &a)
{
	auto all = std::make_shared<std::vector<coop::unique_fd>>();
	const port_list ports = ports_of(a);
	for (unsigned n = 0; n < ports.count; n++) {
		const socket_address at = at_port(a, ports.ports[n]);
		const int fd = all->emplace_back(::socket(at.storage.ss_family,
							  SOCK_STREAM | SOCK_CLOEXEC, 0))
				       .get();
		const int on = 1;
		::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
		const auto *name = reinterpret_cast<const sockaddr *>(&at.storage);
		if (::bind(fd, name, static_cast<socklen_t>(at.size)) || ::listen(fd, 8))
			throw std::system_error(errno, std::generic_category(), "mute service");
	}
	return all;
}

} // namespace conformance
