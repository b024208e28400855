// SPDX-License-Identifier: MIT
// greeting.hpp - what two processes say to each other before they share a window.
//
// Each process that uses the device owns a slot, a UNIX socket in the abstract name space, so that
// nothing stays behind when it dies. The slot is part of its queue-pair numbers, which is how a
// peer finds it. Both sides accept only processes of their own user.
//
//	caller			called
//	HELLO  memfd, bell  ->
//			    <-	WELCOME  bell, "I can pull from you"
//	START  "both can"   ->			the link is up
//
// ASK is answered with TELL: the text of `coop-verbs info`. A called process whose queue pair is
// not yet ready for the caller keeps the HELLO until it is; if it has no such queue pair it hangs
// up, and the caller tries again. A caller of another version or layout gets REFUSE, so that both
// sides can say why their link does not come up. So magic, version and kind stay where they are.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "userland/ntrdma/window/window.hpp"

namespace coop::ntrdma
{

constexpr std::uint32_t greeting_magic = 0x6e747264; // "ntrd"
constexpr std::uint16_t greeting_version = 2;
constexpr std::uint32_t slots = 1024;       // processes of a user that may use the device
constexpr std::uint32_t slot_shift = 14;    // a queue-pair number is slot << 14 | index
constexpr std::uint16_t first_port = 15000; // of UDP and TCP: that of slot 0
constexpr std::uint32_t pairs_most = 1u << slot_shift;

enum class greeting_kind : std::uint16_t { hello = 1, welcome, start, ask, tell, refuse };

struct greeting {
	std::uint32_t magic;
	std::uint16_t version;
	greeting_kind kind;
	std::uint32_t from, to;              // queue-pair numbers
	std::uint64_t probe_at, probe_value; // for the peer's can_read()
	std::uint32_t pulls;                 // 1: the sender can (START: both can)
	std::uint32_t layout;                // sizeof(half) of the sender
};
static_assert(sizeof(greeting) == 40);

/// Of a slot of this user.
std::string slot_name(std::uint32_t slot);
/// A socket that listens there; none if another process has it.
unique_fd listen_at(const std::string &name);
/// A connection to it; none if nobody listens, or it belongs to another user.
unique_fd call(const std::string &name);
/// The process at the other end, if it is of this user; else 0.
pid_t process_behind(int socket);

/// One of this version, that says nothing else.
greeting new_greeting(greeting_kind);
bool send_greeting(int socket, const greeting &, std::span<const int> fds);
/// 1 and the message; 0 if there is none yet; -EPROTO if it is of another version or layout, then
/// of `greeting` only magic, version and kind are valid; -1 if the peer hung up or sent something
/// else.
int receive_greeting(int socket, greeting *, std::vector<unique_fd> *fds);

} // namespace coop::ntrdma
