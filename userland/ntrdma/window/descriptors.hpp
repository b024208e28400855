// SPDX-License-Identifier: MIT
// descriptors.hpp - messages between two processes of a machine that carry file descriptors.
//
// Windows, boards and bells reach the peer as SCM_RIGHTS of a UNIX socket of packets. A peer can
// send any number of descriptors, of any kind. What a receiver does not hand to its caller, it has
// closed; what it hands over closes with its owner.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "userland/ntrdma/window/window.hpp"

namespace coop::ntrdma
{

constexpr std::size_t descriptors_most = 3; ///< of a message

/// Sends one message, without waiting. False if the peer cannot take it now, or has hung up.
[[nodiscard]] bool send_message(int socket, std::span<const std::byte>, std::span<const int> fds);

/// Takes one message, without waiting. @return 1: it has exactly `bytes.size()` bytes, and `fds`
/// are its descriptors; 0: there is none yet; -1: the peer hung up, or its message has another
/// length, more than descriptors_most descriptors, or control data of another kind. `fds` is empty
/// then.
[[nodiscard]] int take_message(int socket, std::span<std::byte> bytes, std::vector<unique_fd> &fds);

/// Whether a peer's descriptor will do as a bell: it is an eventfd, and a write to it does not wait
/// from here on. A write to anything else might wait, or end this process. Where /proc does not say
/// what it is, it will do.
[[nodiscard]] bool take_bell(const unique_fd &);

} // namespace coop::ntrdma
