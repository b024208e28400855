// SPDX-License-Identifier: MIT
// interruption.hpp - SIGINT, SIGTERM and SIGHUP while something is measured or served.
//
// A measurement ends as if it had failed, so that servers, connections and files in /dev/shm go
// the usual way; then the program dies of the signal, as whoever has sent it expects. A server
// ends as it should. A second signal waits for neither. One that is ignored when main() begins
// remains so: SIGHUP, under nohup(1). For the others libraries have put handlers there by then that
// end the program.
#pragma once

#include "station.hpp"

namespace coop::net_tools
{

/// While there is one, such a signal ends what is told to it. One at a time.
class interruption
{
public:
	enum class of { measurement, service };
	explicit interruption(of = of::measurement);
	~interruption();
	interruption(const interruption &) = delete;
	interruption &operator=(const interruption &) = delete;

	/// Once more: what libfabric loads when a domain is opened puts handlers of its own in the
	/// place of ours.
	void install() const;
	/// From now on a signal reaches this goal, too. Both live as long as the interruption.
	void ends(station &, goal &) const;
};

/// The signal that came, or 0; always 0 once there has been a service, which is to end so.
int interrupted();
/// Says so, and dies of the signal that came.
[[noreturn]] void die_interrupted();

} // namespace coop::net_tools
