// SPDX-License-Identifier: MIT
// local_server.hpp - a server on this machine while a client needs one.
//
// It is this program again, as `coopnet serve`, so that two processes are measured. It ends with
// its standard input, however the client ends. For a transport within one process it is a thread.
#pragma once

#include <thread>

#include "server.hpp"

namespace coop::net_tools
{

class local_server
{
public:
	local_server() = default;
	~local_server();
	local_server(const local_server &) = delete;
	local_server &operator=(const local_server &) = delete;

	/// Starts at a loopback address derived from the pid.
	trouble start(const settings &, bool within_process);
	/// The address at which it serves.
	const std::string &address() const { return address_; }

private:
	trouble start_thread(const settings &);
	trouble start_process(const settings &);

	std::string address_;
	pid_t pid_ = -1;
	int in_ = -1; ///< the child's standard input; closing it ends the child
	goal end_;
	std::unique_ptr<station> station_;
	std::unique_ptr<server> server_;
	std::thread thread_;
};

} // namespace coop::net_tools
