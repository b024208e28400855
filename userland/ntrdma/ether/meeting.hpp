// SPDX-License-Identifier: MIT
// meeting.hpp - a path in the file system at which two processes meet and set up a link.
//
// Network namespaces have each their own abstract sockets, so the meeting point is a file. The
// process that holds the lock PATH.lock listens at PATH; the other one calls. The kernel lets go
// of the lock when its holder dies, and then the one that is left listens: so either may start
// first, and either may die. Both accept only processes of their own user.
//
//	caller			listener
//	HELLO  window, streams, bell ->
//			    <-	WELCOME  bell		the link is up at both
//			    <-	BUSY  pid of its peer	it has a link already
//
// The connection stays open, and tells each side when the other is gone.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "userland/ntrdma/ether/stream.hpp"

namespace coop::ntrdma
{

constexpr std::uint32_t meeting_magic = 0x65746872; // "ethr"
constexpr std::uint16_t meeting_version = 1;

enum class meeting_kind : std::uint16_t { hello = 1, welcome, busy };

struct meeting_words {
	std::uint32_t magic = meeting_magic;
	std::uint16_t version = meeting_version;
	meeting_kind kind{};
	std::uint32_t layout = sizeof(half);
	std::uint32_t mtu = 0; // of the sender's interface
	std::int32_t pid = 0;  // BUSY: of the peer that the listener has
};
static_assert(sizeof(meeting_words) == 20);

/// What the two agreed on.
struct acquaintance {
	unique_fd socket;
	std::unique_ptr<window> memory;
	std::unique_ptr<frame_streams> streams;
	unsigned side = 0; // whose half is the own one
	unique_fd bell;    // the peer's
	pid_t peer = 0;    // 0 if it has no number in this process's PID namespace
	unsigned mtu = 0;  // of the peer's interface
};

class meeting
{
public:
	using clock = std::chrono::steady_clock;

	/// `bell`: the own eventfd; `mtu`: of the own interface. Throws trouble if the path cannot
	/// serve.
	meeting(std::string path, int bell, unsigned mtu);
	~meeting();
	meeting(const meeting &) = delete;
	meeting &operator=(const meeting &) = delete;

	/// Takes every step that is possible. True, and the peer, if the two have met.
	/// `linked`: the pid of the peer, if there is a link already (-1: it has no number here),
	/// which callers are told; else 0.
	/// Throws trouble if the listener is of another user, speaks another version, or has
	/// another peer although this process has never met one here.
	bool step(pid_t linked, acquaintance *);
	/// Descriptors that are readable if a step may be possible; -1 for none.
	int listener() const { return listener_.get(); }
	int talk() const { return talk_.get(); }
	/// True if a step may be possible without any of them being readable: ask again soon.
	bool restless() const { return !listener_ && !talk_; }
	const std::string &path() const { return path_; }

private:
	bool take_lock();
	void listen();
	bool call();
	bool hear_answer(acquaintance *);
	bool hear_callers(pid_t linked, acquaintance *);
	bool accept_caller();
	int hear_caller(pid_t linked, acquaintance *);
	void hang_up();

	std::string path_;
	int bell_;
	unsigned mtu_;
	unique_fd lock_, listener_;
	unique_fd talk_; // calling: the call; listening: a caller that has not said HELLO
	clock::time_point since_{};      // of the caller
	clock::time_point busy_since_{}; // of the listener's other link
	std::unique_ptr<window> memory_;
	std::unique_ptr<frame_streams> streams_;
	bool has_met_ = false;
};

} // namespace coop::ntrdma
