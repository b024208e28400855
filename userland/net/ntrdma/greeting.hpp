// SPDX-License-Identifier: MIT
// greeting.hpp - how machines of a host find each other and agree on a link.
//
// A machine listens on a UNIX socket in the abstract name space, named by its address: the name
// vanishes with its process. Both sides accept only processes of their own user.
//
//   caller                             called
//   HELLO    window, bell, board   ->
//                                  <-  WELCOME  bell, board; or REFUSE with a reason
//   START    features of both      ->
//
// HELLO and WELCOME carry the version and features of their sender; START those that the link
// has. A called machine of another version or layout refuses with -EPROTO.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "coop/net/address.hpp"
#include "userland/ntrdma/window/window.hpp"

namespace coop::net::nt
{

namespace rdma = coop::ntrdma;

constexpr std::uint32_t greeting_magic = 0x636f6e74; // "cont"
constexpr std::uint16_t greeting_version = 2;

enum class greeting_kind : std::uint16_t { hello = 1, welcome, start, refuse };

enum feature : std::uint32_t {
	pulls = 1, ///< this process may read the other's memory; START: both may
};

struct greeting {
	std::uint32_t magic = greeting_magic;
	std::uint16_t version = greeting_version;
	greeting_kind kind{};
	std::uint32_t layout = 0;                    ///< sizeof(rdma::half)
	std::uint32_t features = 0;                  ///< feature
	std::uint32_t receives = 0;                  ///< bytes of a receive of the sender
	std::int32_t status = 0;                     ///< REFUSE: -errno
	std::uint64_t probe_at = 0, probe_value = 0; ///< for rdma::can_read()
	char from[address::text_max + 8] = {};
	char to[address::text_max + 8] = {};
};
static_assert(sizeof(greeting) == 216);

/// Listens for machines that call this address. @return 0 or -errno.
int listen_at(const address &, rdma::unique_fd &out);
/// A connection to the machine with this address. @return 0, -EAGAIN (ask again), -ECONNREFUSED,
/// -EACCES (it is another user's) or another -errno.
int call(const address &, rdma::unique_fd &out);
/// Whether the process at the other end is of this user. `pid`: 0 if it has none here.
bool is_own_user(int socket, pid_t &pid);

bool send_greeting(int socket, const greeting &, std::span<const int> fds);
/// @return 1 and the message, 0 if there is none yet, -1: hung up, or not a greeting. The texts
/// are terminated. The version and the layout are not checked.
int receive_greeting(int socket, greeting &, std::vector<rdma::unique_fd> &fds);

} // namespace coop::net::nt
