// SPDX-License-Identifier: MIT
// bridge.hpp - a TAP interface at one end of a link: the process of `coop-verbs ether`.
//
// One thread moves frames both ways: from the interface into the own stream while the peer has
// posted receives and there is room, and from the peer's stream into the interface. It sleeps when
// neither is possible, until the interface, the doorbell, the connection, the meeting point or the
// kernel's news about interfaces have something.
//
// The carrier of the interface is up while there is a link and the peer's interface is up.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <csignal>

#include "userland/ntrdma/ether/meeting.hpp"
#include "userland/ntrdma/ether/pipe.hpp"
#include "userland/ntrdma/ether/tap.hpp"

namespace coop::ntrdma
{

struct bridge_options {
	std::string path;
	tap_options interface;
	std::chrono::milliseconds bound{10000}; ///< time for which a peer may be silent
};

struct bridge_counts {
	std::uint64_t sent = 0, sent_bytes = 0;         // frames read from the interface
	std::uint64_t received = 0, received_bytes = 0; // frames written to it
	std::uint64_t stops = 0;     // times that the queue stopped for lack of room or receives
	std::uint64_t refused = 0;   // frames that the kernel did not take: malformed
	std::uint64_t down = 0;      // frames that came while the own interface was down
	std::uint64_t links = 0;     // times that the link came up
	std::uint64_t lost = 0;      // links that ended otherwise than in good order
	std::uint64_t abandoned = 0; // frames that the peer had not taken when its link ended
};

class bridge
{
public:
	using clock = meeting::clock;

	/// Creates the interface. Throws trouble or std::system_error.
	explicit bridge(const bridge_options &);
	~bridge();

	/// Runs until `stop` is set by a handler of a signal that `mask` lets through while this
	/// sleeps, and is blocked else. Throws trouble.
	void run(const std::atomic<bool> &stop, const sigset_t &mask);
	/// What `coop-verbs info` shows, as JSON.
	std::string describe() const;

private:
	struct link {
		acquaintance peer;
		std::unique_ptr<window_port> port;
		std::optional<class pipe> pipe;
		bool asking = false;
		clock::time_point asked{};
	};

	// bridge.cpp
	bool pump();
	bool pump_out();
	bool pump_in();
	bool put(const span_pair &, std::uint32_t bytes);
	bool may_sleep();
	void sleep(const sigset_t &, bool wait);
	void listen_to_interface(bool);
	void watch(int fd, std::uint32_t events, bool moves_frames = false);
	int patience(clock::time_point) const;

	// ends.cpp
	void tend();
	void beat(clock::time_point);
	bool lose(const std::string &why);
	void peer_ended();
	void drop_link();
	void follow();
	void answer_askers();

	bridge_options options_;
	tap tap_;
	unique_fd bell_, epoll_;
	meeting meeting_;
	unique_fd slot_;  // where `coop-verbs info` asks; none if all slots are taken
	unique_fd asker_; // one that is about to ask
	clock::time_point asker_since_{};
	unsigned slot_number_ = 0;
	std::unique_ptr<link> link_;
	bool listens_ = true; // for frames of the interface, while asleep
	bool carrier_ = false, wanted_ = true;
	bool blocked_ = false; // a frame may wait in the interface, but not go
	bool full_ = false;    // the kernel had no memory for a frame of the peer
	bridge_counts counts_;
};

} // namespace coop::ntrdma
