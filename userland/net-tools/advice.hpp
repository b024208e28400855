// SPDX-License-Identifier: MIT
// advice.hpp - explains errors by what the user should type.
#pragma once

#include <string>

#include "coop/net.hpp"

namespace coop::net_tools
{

namespace net = coop::net;

/// `coopnet COMMAND ... ADDR` for the other side of this domain: with the parameters that both
/// sides need, and no others. Quoted for a shell.
std::string command_line(const char *command, const net::domain &, const std::string &address);
/// The transport and those parameters as text: "transport ud, seal=1, no key".
std::string described(const net::domain &);

/// The syntax of this transport's addresses, with an example.
std::string address_forms(const net::domain &);
/// Explains an error of an operation with `peer`, and what to do.
std::string explain(int status, const std::string &peer, const net::domain &);
/// The same for an error at start at an address of this host.
std::string why_not_started(int status, const std::string &address, const net::domain &);
/// The same for a machine at that address that has failed.
std::string why_lost(int status, const std::string &address, const net::domain &);
/// What to do about a program at `peer` that is no server of this version: one of an `older`
/// version, or anything else.
std::string why_no_server(bool older, const std::string &peer, const net::domain &);

} // namespace coop::net_tools
