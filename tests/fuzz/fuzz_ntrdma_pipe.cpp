// SPDX-License-Identifier: MIT
// fuzz_ntrdma_pipe.cpp - anything that a peer can write into the memory of an Ethernet link.
//
// The input is a small program for one pipe. It sends and takes frames, and it writes into the
// peer's half and stream: properly, as a peer that sends and takes, or any index and entry. In all
// cases: a frame that is taken lies in the peer's stream and has a possible length; the room for
// the next own frame lies in the own stream, and never in a frame that the peer has not taken;
// queues hold what they can; no own index is read back; and a link with an impossible index has
// ended.
#include "tests/fuzz/ntrdma_application.hpp"
#include "userland/ntrdma/ether/pipe.hpp"

namespace
{

using namespace fuzz_ntrdma;

struct wild_port final : port {
	half &out() override { return both[0]; }
	const half &in() const override { return both[1]; }
	bool can_pull() const override { return false; }
	int pull(std::span<const wire_segment>, std::span<const place>) override
	{
		FUZZ_CHECK(false);
		return -1;
	}
	void ring() override { rings++; }
	void ended() override {}

	halves both;
	unsigned rings = 0;
};

using ether = coop::ntrdma::pipe;
using stream = std::vector<std::uint8_t>;

/// A frame that the peer has not taken.
struct own_frame {
	span_pair at;
	std::uint8_t fill;
	std::uint64_t begin, end; ///< in bytes of the stream
};

struct machine {
	/// Puts the frame's pattern where the pipe says, and everything that it must not touch is
	/// still as it was.
	void send(input &in)
	{
		std::uint32_t bytes = frame_least + in.number(2) % (frame_most - frame_least + 1);
		if (!p.room())
			return;
		span_pair at = p.space();
		FUZZ_CHECK(at[0].length + at[1].length == frame_most);
		own_frame f{at, ++next_fill, link.both[0].stream_prod, 0};
		std::uint32_t left = bytes;
		for (place &piece : f.at) {
			within(own, piece);
			piece.length = std::min<std::uint64_t>(piece.length, left);
			left -= static_cast<std::uint32_t>(piece.length);
		}
		// The interface may write all of it.
		for (const place &piece : at)
			std::memset(piece.at, f.fill, piece.length);
		std::uint64_t before = p.outstanding_bytes();
		p.send(bytes);
		FUZZ_CHECK(p.outstanding_bytes() >= before + bytes);
		f.end = link.both[0].stream_prod;
		frames.push_back(f);
		untouched();
	}
	void take()
	{
		for (; p.waiting(); taken++) {
			span_pair at;
			std::uint32_t bytes = 0;
			if (!p.next(&at, &bytes)) {
				over = true;
				return;
			}
			FUZZ_CHECK(bytes >= frame_least && bytes <= frame_most);
			FUZZ_CHECK(at[0].length + at[1].length == bytes);
			for (const place &piece : at)
				within(peers, piece);
			p.take();
		}
	}
	void look()
	{
		if (!p.look()) {
			over = true;
			return;
		}
		// Single-threaded, so these are what it has seen.
		const half &h = link.both[1];
		FUZZ_CHECK(p.waiting() <= ring_entries && p.outstanding() <= ring_entries);
		FUZZ_CHECK(p.credits() <= ring_entries);
		FUZZ_CHECK(p.outstanding_bytes() <= frame_stream_bytes);
		FUZZ_CHECK(h.stream_cons <= link.both[0].stream_prod);
		seen = h.stream_prod;
		acked = h.stream_cons;
		while (!frames.empty() && frames.front().end <= h.stream_cons)
			frames.pop_front();
	}

	/// As a peer of good faith, from where its half stands.
	void peer_sends(input &in)
	{
		half &h = link.both[1];
		wqe &w = h.wqes[h.wqe_prod % ring_entries];
		w.op = static_cast<std::uint8_t>(operation::send);
		w.how = static_cast<std::uint8_t>(carriage::stream);
		w.segments = 0;
		w.length = frame_least + in.number(2) % (frame_most - frame_least + 1);
		h.stream_prod += (w.length + 63) / 64 * 64;
		h.wqe_prod++;
	}
	void peer_takes()
	{
		half &h = link.both[1];
		if (frames.empty() || h.wqe_cons == link.both[0].wqe_prod)
			return;
		for (const own_frame &f : frames)
			if (f.end > h.stream_cons) {
				h.stream_cons = f.end;
				break;
			}
		h.recv_post++;
		h.wqe_cons++;
	}
	void write_entry(input &in)
	{
		half &h = link.both[1];
		// Among those that are taken next, mostly.
		wqe &w = h.wqes[(link.both[0].wqe_cons + in.number(1) % 4) % ring_entries];
		switch (in.number(1) % 4) {
		case 0:
			w.op = static_cast<std::uint8_t>(in.number(1));
			break;
		case 1:
			w.how = static_cast<std::uint8_t>(in.number(1));
			break;
		case 2:
			w.segments = static_cast<std::uint8_t>(in.number(1));
			break;
		default:
			w.length = in.number(4);
		}
	}
	void write_index(input &in)
	{
		half &h = link.both[1];
		std::uint32_t which = in.number(1), by = in.number(1);
		if (which & 0x80)
			by = in.number(4);
		switch (which % 9) {
		case 0:
			h.wqe_prod += by;
			break;
		case 1:
			h.wqe_cons += by;
			break;
		case 2:
			h.recv_post += by;
			break;
		case 3:
			h.stream_prod += std::uint64_t{by} << in.number(1) % 33;
			break;
		case 4:
			h.stream_cons += std::uint64_t{by} << in.number(1) % 33;
			break;
		case 5:
			h.waiting = by;
			break;
		case 6:
			h.ping = by;
			break;
		case 7:
			h.pong = by;
			break;
		case 8:
			h.word = by % 4;
			break;
		}
	}
	/// Own indices do not go back, whatever stands in the own half.
	void check()
	{
		half &h = link.both[0];
		FUZZ_CHECK(h.wqe_cons == taken);
		FUZZ_CHECK(h.recv_post == taken + ring_entries);
		FUZZ_CHECK(h.stream_prod >= stored && h.stream_cons >= given);
		stored = h.stream_prod;
		given = h.stream_cons;
		FUZZ_CHECK(given <= seen);
	}

	stream own = stream(frame_stream_bytes), peers = stream(frame_stream_bytes);
	wild_port link;
	ether p = [this] {
		link.both[1].recv_post = ring_entries;
		return ether{link, own.data(), peers.data()};
	}();
	std::deque<own_frame> frames;
	std::uint8_t next_fill = 0;
	std::uint32_t taken = 0;
	std::uint64_t stored = 0, given = 0; ///< the last that were seen in the own half
	std::uint64_t seen = 0;              ///< the peer's bytes that look() has accepted
	std::uint64_t acked = 0;             ///< the own bytes that the peer has taken
	bool over = false;

private:
	static void within(const stream &s, const place &piece)
	{
		FUZZ_CHECK(!piece.length || (piece.at >= s.data() && piece.length <= s.size() &&
					     piece.at + piece.length <= s.data() + s.size()));
	}
	/// A peer of bad faith may take a part of a frame; the rest is still its.
	void untouched() const
	{
		for (const own_frame &f : frames) {
			std::uint64_t at = f.begin;
			for (const place &piece : f.at) {
				for (std::uint64_t i = 0; i < piece.length; i += 61)
					FUZZ_CHECK(at + i < acked || piece.at[i] == f.fill);
				at += piece.length;
			}
		}
	}
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
	input in{data, data + size};
	auto m = std::make_unique<machine>();
	for (int steps = 0; !in.empty() && !m->over && steps < 300; steps++) {
		switch (in.number(1) % 10) {
		case 0:
			m->send(in);
			break;
		case 1:
			m->take();
			break;
		case 2:
		case 3:
			m->look();
			break;
		case 4:
			m->peer_sends(in);
			break;
		case 5:
			m->peer_takes();
			break;
		case 6:
			m->write_entry(in);
			break;
		case 7:
			m->write_index(in);
			break;
		case 8:
			m->p.wait(in.number(1) % 2 ? ether::room_too : ether::frames);
			break;
		default:
			m->p.ring();
			m->p.ask();
			break;
		}
		m->check();
	}
	m->p.end(m->over ? link_word::failed : link_word::closed);
	return 0;
}
