// SPDX-License-Identifier: MIT
// fuzz_ntrdma_stream.cpp - anything that a peer can send on the byte stream of a link.
//
// The input is a small program for a queue pair whose peer is a stream of bytes: it posts, takes
// what leaves, and delivers frames, which may be right, and noise, in pieces. The peer's half stays
// within what it can be, only posted and registered memory changes, each request completes once at
// most, and nothing changes once the peer has broken the protocol and the link has ended.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/fuzz/check.hpp"
#include "userland/ntrdma/core/queue_pair.hpp"
#include "userland/ntrdma/stream/decoder.hpp"
#include "userland/ntrdma/stream/encoder.hpp"

namespace
{

using namespace coop::ntrdma;

struct input {
	const std::uint8_t *at, *end;

	std::uint32_t number(std::size_t bytes)
	{
		std::uint32_t v = 0;
		for (; bytes && at < end; bytes--)
			v = v << 8 | *at++;
		return v;
	}
	bool empty() const { return at == end; }
};

struct nothing final : watcher {
	void completed(completion_queue &) override {}
	void happened(queue_pair &, event) override {}
	void few_receives(shared_receives &) override {}
};

constexpr std::size_t region = 20000, guard = 64;

struct peer final : port, placements {
	peer() : halves{static_cast<half *>(std::aligned_alloc(alignof(half), 2 * sizeof(half)))}
	{
		std::memset(static_cast<void *>(halves), 0, 2 * sizeof(half));
	}
	~peer() override { std::free(halves); }
	half &out() override { return halves[0]; }
	const half &in() const override { return halves[1]; }
	bool can_pull() const override { return false; }
	int pull(std::span<const wire_segment>, std::span<const place>) override
	{
		FUZZ_CHECK(false);
		return -1;
	}
	void ring() override {}
	void ended() override { over = true; }

	std::optional<std::size_t> places(std::uint64_t number, std::uint64_t offset,
					  std::uint64_t length, std::span<place> out) override
	{
		if (number != 1)
			return 0;
		if (offset != placed_ || length > target.size() - placed_)
			return std::nullopt;
		out[0] = {target.data() + placed_, length};
		return 1;
	}
	void placed(std::uint64_t number, std::uint64_t bytes) override
	{
		FUZZ_CHECK(number == 1 && bytes <= target.size() - placed_);
		placed_ += bytes;
	}

	/// Bytes arrive, in pieces of at most `most`.
	void deliver(const std::vector<std::uint8_t> &text, std::size_t most)
	{
		for (std::size_t at = 0; at < text.size() && !lied && !over;) {
			std::array<place, 10> to;
			std::size_t n = into.room(to), left = std::min(most, text.size() - at),
				    came = 0;
			lied = !n;
			for (std::size_t i = 0; i < n && left; i++) {
				auto part = std::min<std::size_t>(left, to[i].length);
				std::memcpy(to[i].at, text.data() + at, part);
				at += part;
				left -= part;
				came += part;
			}
			FUZZ_CHECK(lied || came);
			lied |= came && !into.arrived(came);
		}
	}

	half *halves;
	encoder from{halves[0]};
	decoder into{halves[1], from, this};
	std::vector<std::uint8_t> target = std::vector<std::uint8_t>(100);
	std::uint64_t placed_ = 0;
	bool lied = false, over = false;
};

struct machine {
	machine() : memory(region + 2 * guard, 0xaa)
	{
		key = *regions.add(memory.data() + guard, region, base(), 1, 15);
		pair_options o;
		o.number = 2;
		o.domain = 1;
		o.send_depth = o.recv_depth = 8;
		o.send_queue = &sends;
		o.recv_queue = &recvs;
		pair = std::make_unique<queue_pair>(regions, seen, o);
		pair->peer = 1;
		pair->set_rights(15);
		for (auto s : {pair_state::init, pair_state::ready, pair_state::sends})
			pair->set_state(s);
		pair->attach(link);
	}
	std::uint64_t base() const
	{
		return reinterpret_cast<std::uintptr_t>(memory.data() + guard);
	}
	segment piece_of(input &in)
	{
		std::uint32_t offset = in.number(2) % region;
		return {base() + offset,
			in.number(2) % static_cast<std::uint32_t>(region - offset + 1), key};
	}
	void post(input &in)
	{
		send_request s{};
		s.op = static_cast<operation>(in.number(1) % 7);
		s.flags = signalled;
		s.remote = in.number(2);
		s.segments = 1;
		s.at[0] = piece_of(in);
		if (is_atomic(s.op))
			s.at[0] = {base(), 8, key};
		posted += !pair->post_send(s);
		recv_request r{};
		r.segments = 1;
		r.at[0] = piece_of(in);
		received += !pair->post_recv(r);
		pair->flush_posts();
	}
	void leave(input &in)
	{
		std::array<piece, 3> out;
		std::size_t n = link.from.next(out), most = in.number(2), total = 0;
		for (std::size_t i = 0; i < n && total < most; i++)
			total += std::min(out[i].length, most - total);
		link.from.sent(total);
	}
	void frame(input &in)
	{
		update u;
		u.word = in.number(1) % 32 ? 0 : static_cast<std::uint8_t>(in.number(1) % 4);
		u.wqes = static_cast<std::uint16_t>(in.number(1) % 3);
		u.cqes = static_cast<std::uint16_t>(in.number(1) % 3);
		u.stream = in.number(2) % 3000;
		u.answer = in.number(1) % 4 ? 0 : in.number(2) % 3000;
		u.stream_taken = in.number(1) % 4 ? 0 : in.number(2);
		u.answer_taken = in.number(1) % 4 ? 0 : in.number(2);
		u.ping = in.number(1);
		std::vector<std::uint8_t> text(update_bytes);
		for (std::uint32_t i = 0; i < u.wqes; i++) {
			std::array<std::uint8_t, wqe_front> w{};
			std::uint32_t length = in.number(2) % 400;
			writer to{w.data()};
			to.put(static_cast<std::uint8_t>(in.number(1) % 8)).put(std::uint8_t{0});
			to.put(static_cast<std::uint8_t>(in.number(1) % 4)).put(std::uint8_t{0});
			to.put(in.number(1)).put(length).put(in.number(1) % 4 ? key : in.number(4));
			to.put(base() + in.number(2));
			text.insert(text.end(), w.begin(), w.end());
			if (w[2] == static_cast<std::uint8_t>(carriage::within))
				text.resize(text.size() + length, 0x33);
		}
		text.resize(text.size() + u.cqes * cqe_bytes);
		u.entries = static_cast<std::uint32_t>(text.size() - update_bytes);
		put(text.data(), u);
		text.resize(text.size() + u.stream + u.answer, 0x44);
		std::size_t most = 1 + in.number(2);
		if (in.number(1) % 8 == 0)
			text[in.number(2) % text.size()] ^= static_cast<std::uint8_t>(in.number(1));
		link.deliver(text, most);
	}
	void check()
	{
		for (std::size_t i = 0; i < guard; i++)
			FUZZ_CHECK(memory[i] == 0xaa && memory[guard + region + i] == 0xaa);
		std::array<completion, 8> got;
		std::size_t n = sends.poll(got);
		FUZZ_CHECK(n <= posted);
		posted -= n;
		n = recvs.poll(got);
		FUZZ_CHECK(n <= received);
		received -= n;
		if (link.lied && pair->linked())
			pair->peer_gone();
		if (pair->state() != pair_state::error)
			return;
		if (final_.empty())
			final_ = memory;
		FUZZ_CHECK(final_ == memory);
	}

	peer link; // outlives the queue pair
	std::vector<std::uint8_t> memory, final_;
	region_table regions;
	nothing seen;
	completion_queue sends{seen}, recvs{seen};
	std::uint32_t key;
	std::size_t posted = 0, received = 0;
	std::unique_ptr<queue_pair> pair;
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
	input in{data, data + size};
	machine m;
	for (int steps = 0; !in.empty() && steps < 100; steps++) {
		switch (in.number(1) % 6) {
		case 0:
			m.post(in);
			break;
		case 1:
			m.leave(in);
			break;
		case 2:
		case 3:
			m.frame(in);
			break;
		case 4: {
			std::vector<std::uint8_t> noise(in.number(1));
			for (std::uint8_t &b : noise)
				b = static_cast<std::uint8_t>(in.number(1));
			if (noise.size() >= placement_bytes && in.number(1) % 2)
				put(noise.data(), placement{in.number(1), in.number(1) % 2,
							    in.number(1) % 2 ? m.link.placed_ : 0});
			m.link.deliver(noise, 1 + in.number(1));
			break;
		}
		case 5:
			m.pair->progress();
			break;
		}
		m.check();
	}
	m.pair->peer_gone();
	m.check();
	return 0;
}
