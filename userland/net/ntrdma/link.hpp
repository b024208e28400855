// SPDX-License-Identifier: MIT
// link.hpp - a connection to another machine: a queue pair, its window or TCP connection, and what
// waits for it.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "board.hpp"
#include "greeting.hpp"
#include "tcp_greeting.hpp"
#include "userland/net/transport.hpp"
#include "userland/ntrdma/core/queue_pair.hpp"
#include "userland/ntrdma/stream/sockets.hpp"
#include "userland/ntrdma/stream/stream.hpp"

namespace coop::net::nt
{

/// The states of a link; docs/messaging.md says how each ends.
enum class stage : std::uint8_t {
	calling,  // there is no connection yet: the peer's backlog is full, or TCP connects
	greeted,  // HELLO is sent
	heard,    // accepted; no HELLO yet
	welcomed, // WELCOME is sent
	up,
};

/// Bytes that the peer asked for by `want` or `get`.
struct stream {
	spi::token token;     ///< of the own operation
	std::uint64_t intake; ///< the peer's
	std::size_t moved, length;
};

struct link {
	std::uint32_t index = 0;  ///< in the machine's list
	std::uint64_t serial = 0; ///< never repeats
	nt::stage stage{};
	int ends = 0; ///< a status: the machine will end it; 0: not
	spi::peer_number peer = spi::no_peer;

	rdma::unique_fd socket, life; ///< life: a pidfd; none if the peer has no pid here
	pid_t process = 0;
	rdma::probe sign;   ///< of the peer's process
	bool reads = false; ///< this process may read the peer's memory; up: and the other way
	std::uint32_t receives = 0;           ///< bytes of a receive of the peer
	std::unique_ptr<rdma::window> memory; ///< until the port has it
	rdma::unique_fd bell;                 ///< the peer's, until the port has it
	rdma::unique_fd own_bell;             ///< the peer rings it; the set reports its edges
	std::unique_ptr<board_view> words;
	std::unique_ptr<rdma::window_port> port;

	bool far = false;               ///< by TCP; then it has these instead of a window
	bool unasked = false;           ///< the peer takes messages that it has not asked for
	unsigned refrains = 0;          ///< so many messages are offered nevertheless
	bool writes = false;            ///< the set reports when the socket has room
	rdma::ip_address from{};        ///< of the peer that called
	std::vector<std::uint8_t> text; ///< of a greeting, as far as it came
	nonce nonce_own{}, nonce_peer{};
	std::unique_ptr<rdma::placements> places;
	std::unique_ptr<rdma::stream_port> tcp;
	std::unique_ptr<rdma::queue_pair> pair; ///< last: it ends before its port

	std::deque<std::vector<std::byte>> owed; ///< answers that wait for room, the kind in front
	std::size_t owed_bytes = 0;
	std::vector<stream> streams;
	std::unordered_set<spi::token> tokens;   ///< of own operations that the peer has to end
	std::unordered_set<std::uint64_t> takes; ///< intakes from the peer
	std::unordered_map<std::uint64_t, spi::token> uses; ///< lent operations, by their readers
	bool blocked = false;                               ///< in the machine's list of these
	bool unrung = false;                                ///< alike

	time_point since{}; ///< of the stage
	time_point asked{}; ///< the last sign of life that was asked for
	bool asking = false;

	bool aside = false;         ///< out of the rounds of the machine, until something stirs
	std::uint64_t requests = 0; ///< of both sides, when the machine last looked
	time_point used{};          ///< when it last saw a change of that

	/// Something waits for the peer.
	bool waits() const
	{
		return stage != nt::stage::up || pair->sends_outstanding() || !tokens.empty() ||
		       !takes.empty() || !owed.empty();
	}
};

} // namespace coop::net::nt
