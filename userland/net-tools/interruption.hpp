// SPDX-License-Identifier: MIT
// interruption.hpp - SIGINT, SIGTERM and SIGHUP during a measurement or a service.
//
// A measurement ends as if it had failed, so that servers, connections and files in /dev/shm are
// cleaned up as usual; then the program terminates by the signal, as its sender expects. A server
// ends regularly. A second signal waits for neither. A signal that is ignored when main() begins
// stays ignored: SIGHUP, under nohup(1). For the others, libraries may have installed handlers by
// then that end the program.
#pragma once

#include "station.hpp"

namespace coop::net_tools
{

/// While an object exists, such a signal reaches the registered goals. One at a time.
class interruption
{
public:
	enum class of { measurement, service };
	explicit interruption(of = of::measurement);
	~interruption();
	interruption(const interruption &) = delete;
	interruption &operator=(const interruption &) = delete;

	/// Installs the handlers again: libraries that libfabric loads when a domain is opened
	/// replace them.
	void install() const;
	/// From now on a signal also reaches this goal. Both must live as long as the interruption.
	void ends(station &, goal &) const;
};

/// The signal received, or 0; always 0 once there has been a service, which a signal ends
/// regularly.
int interrupted();
/// Prints a message and terminates by the received signal.
[[noreturn]] void die_interrupted();

} // namespace coop::net_tools
