// SPDX-License-Identifier: MIT
// pipe.cpp - frames in and out of the streams, and the indices that speak of them; see pipe.hpp.
#include "userland/ntrdma/ether/pipe.hpp"

#include <algorithm>
#include <cstring>

#include "userland/ntrdma/core/types.hpp"

namespace coop::ntrdma
{

namespace
{

constexpr auto acquire = std::memory_order_acquire;
constexpr auto release = std::memory_order_release;

/// Frames begin at this offset of a cache line, and take whole lines. Then what follows the headers
/// of TCP over IPv4 with time stamps is aligned, which the kernel copies faster.
constexpr std::uint32_t line = 64, frame_start = line - (10 + 14 + 20 + 32) % line;

constexpr std::uint32_t stream_room(std::uint32_t bytes)
{
	return (bytes + line - 1) / line * line;
}

/// What only room_too has of pipe::waits.
constexpr std::uint32_t room_bit = pipe::room_too & ~std::uint32_t{pipe::frames};

span_pair range(std::uint8_t *stream, std::uint64_t from, std::uint32_t bytes)
{
	std::uint64_t offset = (from + frame_start) % frame_stream_bytes;
	std::uint64_t first = std::min<std::uint64_t>(bytes, frame_stream_bytes - offset);
	return {place{stream + offset, first}, place{stream, bytes - first}};
}

} // namespace

pipe::pipe(port &p, std::uint8_t *own, std::uint8_t *peers, std::uint32_t first) :
	port_{p},
	own_{own},
	peers_{peers}
{
	mine_.wqe_prod = mine_.wqe_cons = first;
	theirs_ = mine_;
	mine_.recv_post = first + ring_entries;
	half &out = port_.out();
	out.wqe_prod.store(mine_.wqe_prod, release);
	out.wqe_cons.store(mine_.wqe_cons, release);
	out.recv_post.store(mine_.recv_post, release);
}

bool pipe::look()
{
	const half &in = port_.in();
	indices t = theirs_;
	// Counters before the streams they speak of: the peer stores in the opposite order.
	t.wqe_cons = in.wqe_cons.load(acquire);
	t.wqe_prod = in.wqe_prod.load(acquire);
	t.recv_post = in.recv_post.load(acquire);
	t.stream_prod = in.stream_prod.load(acquire);
	t.stream_cons = in.stream_cons.load(acquire);
	std::uint32_t ping = in.ping.load(acquire);
	if (ping != pong_)
		port_.out().pong.store(pong_ = ping, release);
	bool possible =
		t.wqe_cons - theirs_.wqe_cons <= mine_.wqe_prod - theirs_.wqe_cons &&
		t.wqe_prod - mine_.wqe_cons >= theirs_.wqe_prod - mine_.wqe_cons &&
		t.wqe_prod - mine_.wqe_cons <= mine_.recv_post - mine_.wqe_cons &&
		t.stream_prod - mine_.stream_cons <= frame_stream_bytes &&
		t.stream_prod >= theirs_.stream_prod && t.stream_cons >= theirs_.stream_cons &&
		t.stream_cons <= mine_.stream_prod && t.recv_post - mine_.wqe_prod <= ring_entries;
	if (possible)
		theirs_ = t;
	return possible;
}

bool pipe::room() const
{
	return credits() && outstanding_bytes() <= frame_stream_bytes - frame_most;
}

bool pipe::much_room() const
{
	return credits() > ring_entries / 2 && outstanding_bytes() <= frame_stream_bytes / 2;
}

span_pair pipe::space()
{
	return range(own_, mine_.stream_prod, frame_most);
}

void pipe::send(std::uint32_t bytes)
{
	half &out = port_.out();
	wqe &w = out.wqes[mine_.wqe_prod % ring_entries];
	w.op = static_cast<std::uint8_t>(operation::send);
	w.how = static_cast<std::uint8_t>(carriage::stream);
	w.length = bytes;
	mine_.stream_prod += stream_room(bytes);
	mine_.wqe_prod++;
	out.stream_prod.store(mine_.stream_prod, release);
	out.wqe_prod.store(mine_.wqe_prod, release);
	out.bell.store(++bell_, release);
}

void pipe::ring()
{
	wake(frames);
}

bool pipe::next(span_pair *at, std::uint32_t *bytes)
{
	const wqe &shared = port_.in().wqes[mine_.wqe_cons % ring_entries];
	wqe w;
	std::memcpy(&w, &shared, offsetof(wqe, body));
	std::atomic_signal_fence(std::memory_order_seq_cst);
	if (w.op != static_cast<std::uint8_t>(operation::send) ||
	    w.how != static_cast<std::uint8_t>(carriage::stream) || w.segments ||
	    w.length < frame_least || w.length > frame_most ||
	    stream_room(w.length) > theirs_.stream_prod - mine_.stream_cons)
		return false;
	*at = range(peers_, mine_.stream_cons, w.length);
	*bytes = w.length;
	taken_ = stream_room(w.length);
	return true;
}

void pipe::take()
{
	half &out = port_.out();
	mine_.stream_cons += taken_;
	mine_.wqe_cons++;
	mine_.recv_post++;
	out.stream_cons.store(mine_.stream_cons, release);
	out.recv_post.store(mine_.recv_post, release);
	out.wqe_cons.store(mine_.wqe_cons, release);
	out.bell.store(++bell_, release);
	// The half of the stream is looked at as the sender sees it, so the last frame always
	// wakes.
	if (theirs_.stream_prod - mine_.stream_cons > frame_stream_bytes / 2 ||
	    waiting() > ring_entries / 2)
		return;
	wake(room_bit);
}

void pipe::wait(waits what)
{
	std::uint32_t word = what ? ++sleeps_ << 2 | what : 0;
	port_.out().waiting.store(word, std::memory_order_seq_cst);
	std::atomic_thread_fence(std::memory_order_seq_cst);
}

/// Wakes a peer that sleeps for one of these, unless it was woken from that sleep already.
void pipe::wake(std::uint32_t what)
{
	// Pairs with wait(): either this load sees the word, or the peer sees what was stored.
	std::atomic_thread_fence(std::memory_order_seq_cst);
	std::uint32_t word = port_.in().waiting.load(std::memory_order_relaxed);
	if (!(word & what) || word == rung_)
		return;
	rung_ = word;
	port_.ring();
}

void pipe::ask()
{
	half &out = port_.out();
	out.ping.store(++ping_, release);
	out.bell.store(++bell_, release);
	wake(frames);
}

bool pipe::answered() const
{
	return port_.in().pong.load(acquire) == ping_;
}

void pipe::say_up(bool up)
{
	half &out = port_.out();
	out.spare.store(up, release);
	out.bell.store(++bell_, release);
	wake(frames);
}

bool pipe::peer_up() const
{
	return port_.in().spare.load(acquire) != 0;
}

void pipe::end(link_word word)
{
	half &out = port_.out();
	out.word.store(static_cast<std::uint32_t>(word), std::memory_order_seq_cst);
	out.bell.store(++bell_, std::memory_order_seq_cst);
	wake(frames);
	port_.ended();
}

bool pipe::ended() const
{
	return port_.in().word.load(acquire) != static_cast<std::uint32_t>(link_word::open);
}

} // namespace coop::ntrdma
