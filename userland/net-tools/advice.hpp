// SPDX-License-Identifier: MIT
// advice.hpp - what an error means, in words of what to type.
#pragma once

#include <string>

#include "coop/net.hpp"

namespace coop::net_tools
{

namespace net = coop::net;

/// `coopnet COMMAND ... ADDR`, as the other side of this domain types it: with those of its
/// parameters that both sides need, and no others. Quoted for a shell.
std::string command_line(const char *command, const net::domain &, const std::string &address);
/// The transport and those parameters, as a person says it: "transport ud, seal=1, no key".
std::string described(const net::domain &);

/// How addresses of this transport are written, with an example.
std::string address_forms(const net::domain &);
/// What an error of an operation with `peer` means, and what to do.
std::string explain(int status, const std::string &peer, const net::domain &);
/// The same of starting at an address of this host.
std::string why_not_started(int status, const std::string &address, const net::domain &);
/// The same of a machine there that has failed.
std::string why_lost(int status, const std::string &address, const net::domain &);

} // namespace coop::net_tools
