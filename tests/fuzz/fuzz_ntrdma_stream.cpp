// SPDX-License-Identifier: MIT
// fuzz_ntrdma_stream.cpp - anything that a peer can send on the byte stream of a link.
//
// The input is a small program for a queue pair whose peer is a stream of bytes: it posts, takes
// what leaves, and delivers frames, which may be right, and noise, in pieces. The link ends once
// the peer has broken the protocol; what must hold is in ntrdma_application.hpp.
#include "tests/fuzz/ntrdma_application.hpp"
#include "userland/ntrdma/stream/decoder.hpp"
#include "userland/ntrdma/stream/encoder.hpp"

namespace
{

using namespace fuzz_ntrdma;

struct peer final : port, placements {
	half &out() override { return both[0]; }
	const half &in() const override { return both[1]; }
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
	std::optional<std::uint64_t> message(std::uint64_t number, std::uint32_t length) override
	{
		FUZZ_CHECK(length && length <= placement_most);
		return number % 8 ? std::optional(number % 2) : std::nullopt;
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

	halves both;
	encoder from{both[0]};
	decoder into{both[1], from, this};
	std::vector<std::uint8_t> target = std::vector<std::uint8_t>(100);
	std::uint64_t placed_ = 0;
	bool lied = false, over = false;
};

struct machine {
	void post(input &in)
	{
		app.post_send(in, false);
		app.post_recv(in);
		app.pair->flush_posts();
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
			to.put(in.number(1))
				.put(length)
				.put(in.number(1) % 4 ? app.key : in.number(4));
			to.put(app.base() + in.number(2));
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
		if (link.lied && app.pair->linked())
			app.pair->peer_gone();
		app.check();
	}

	peer link;
	application app{link};
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
				put(noise.data(),
				    placement{static_cast<std::uint8_t>(in.number(1) % 2
										? placement_kind
										: message_kind),
					      in.number(1), in.number(1) % 4,
					      in.number(1) % 2 ? m.link.placed_ : 0});
			m.link.deliver(noise, 1 + in.number(1));
			break;
		}
		case 5:
			m.app.pair->progress();
			break;
		}
		m.check();
	}
	m.app.pair->peer_gone();
	m.check();
	return 0;
}
