// SPDX-License-Identifier: MIT
// pipe.hpp - Ethernet frames through the rings of a link, without a copy of their own.
//
// A pipe is a queue pair that knows one request only: a send whose bytes are in the own stream.
// The frame is read from its interface straight into the stream, and written straight out of it by
// the other side: space() says where the next frame goes, next() where the oldest one is.
//
// The receiver posts its receives to the peer (`recv_post`), and a sender without a posted receive,
// or without room for the largest frame, reads no more from its interface. So a slow receiver stops
// the sender's queue, and the pipe never drops a frame.
//
// A side that sleeps says what for: frames, or room as well. Taking a frame wakes a peer only if it
// waits for room, and if half of the stream is free by then.
//
// No input or output, no clock, no lock. The peer's indices are checked as in the core: what look()
// has accepted is possible, and own indices are never read back.
#pragma once

#include <array>
#include <cstdint>

#include "userland/ntrdma/core/port.hpp"
#include "userland/ntrdma/ether/stream.hpp"

namespace coop::ntrdma
{

/// Most bytes of a frame: 64 KiB of packet, its Ethernet header, and the header by which the
/// kernel describes segments and check sums (struct virtio_net_hdr).
constexpr std::uint32_t frame_most = (64u << 10) + 64;
/// Fewest: the two headers.
constexpr std::uint32_t frame_least = 10 + 14;
static_assert(frame_stream_bytes >= 2 * frame_most);

/// A range of a stream, in two pieces where it passes the end.
using span_pair = std::array<place, 2>;

class pipe
{
public:
	/// In the lower bits of `waiting`; the others count the sleeps.
	enum waits : std::uint32_t { nothing = 0, frames = 1, room_too = 3 };

	/// Posts the receives. `own` and `peers`: the streams of this side and of the peer. They
	/// and the port outlive the pipe. `first`: where the indices of both sides begin.
	pipe(port &, std::uint8_t *own, std::uint8_t *peers, std::uint32_t first = 0);

	/// Reads the peer's indices, and answers if it asked for a sign of life. False if they are
	/// impossible, which ends the link.
	[[nodiscard]] bool look();

	/// True if a frame of any size may be sent.
	bool room() const;
	/// The same, and so much that it pays to wake up for it.
	bool much_room() const;
	/// Where the next frame goes: room for frame_most bytes.
	span_pair space();
	/// It has so many bytes: stores it for the peer.
	void send(std::uint32_t bytes);
	/// After a batch of them: wakes the peer if it sleeps.
	void ring();

	/// Frames of the peer that were not taken yet.
	std::uint32_t waiting() const { return theirs_.wqe_prod - mine_.wqe_cons; }
	/// The oldest of them; waiting() is not 0. False if its entry is impossible.
	[[nodiscard]] bool next(span_pair *at, std::uint32_t *bytes);
	/// It was taken: its room and its receive are the peer's again.
	void take();

	/// Before sleeping: say so, then look() again, then sleep. The peer rings once for each
	/// call.
	void wait(waits);
	/// Own frames that the peer has not taken.
	std::uint32_t outstanding() const { return mine_.wqe_prod - theirs_.wqe_cons; }
	/// Bytes of them.
	std::uint64_t outstanding_bytes() const { return mine_.stream_prod - theirs_.stream_cons; }
	/// The peer's posted receives.
	std::uint32_t credits() const { return theirs_.recv_post - mine_.wqe_prod; }

	/// Asks the peer for a sign of life, which any look() of its gives.
	void ask();
	bool answered() const;
	/// A word for the peer, beside the frames: whether the own interface is up.
	void say_up(bool);
	bool peer_up() const;
	/// Tells the peer that this side is done.
	void end(link_word);
	/// True if the peer did.
	bool ended() const;

private:
	void wake(std::uint32_t what);

	port &port_;
	std::uint8_t *own_, *peers_;
	indices mine_, theirs_;
	std::uint32_t taken_ = 0; // bytes of the frame that next() gave
	std::uint32_t bell_ = 0, ping_ = 0, pong_ = 0;
	std::uint32_t sleeps_ = 0; // times that this side went to sleep
	std::uint32_t rung_ = 0;   // the peer's sleep for which it was woken
};

} // namespace coop::ntrdma
