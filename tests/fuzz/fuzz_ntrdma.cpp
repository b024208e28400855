// SPDX-License-Identifier: MIT
// fuzz_ntrdma.cpp - anything that a peer can write into the halves of a link.
//
// The input is a small program. It posts requests, and it writes into the peer's half: indices,
// entries, completions, stream bytes, the link word. It may do that properly, so that the code
// behind the first checks is reached. Registered memory and its surroundings are watched: only
// what was registered for the peer, or posted, may change; each request completes once at most,
// in order; and after the queue pair has failed nothing changes at all.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "tests/fuzz/check.hpp"
#include "userland/ntrdma/core/queue_pair.hpp"

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

/// Pulls bytes of one value: what a peer's memory holds is of no interest.
struct wild_port final : port {
	wild_port(half &mine, half &others, bool pulls) : out_{mine}, in_{others}, pulls_{pulls} {}
	half &out() override { return out_; }
	const half &in() const override { return in_; }
	bool can_pull() const override { return pulls_; }
	int pull(std::span<const wire_segment>, std::span<const place> to) override
	{
		FUZZ_CHECK(!ended_once);
		if (error)
			return -static_cast<int>(error);
		for (const place &p : to)
			std::memset(p.at, 0x55, p.length);
		return 0;
	}
	void ring() override {}
	void ended() override { ended_once = true; }
	std::uint32_t error = 0;
	bool ended_once = false;

private:
	half &out_, &in_;
	bool pulls_;
};

constexpr std::size_t region = 20000, guard = 64;

struct machine {
	explicit machine(bool pulls) :
		halves{static_cast<half *>(std::aligned_alloc(alignof(half), 2 * sizeof(half)))},
		memory(region + 2 * guard, 0xaa),
		port_{halves[0], halves[1], pulls}
	{
		std::memset(static_cast<void *>(halves), 0, 2 * sizeof(half));
		key = *regions.add(memory.data() + guard, region, base(), 1, 15);
		secret_key = *regions.add(secret.data(), secret.size(), 0, 2, 15);
		pair_options o;
		o.number = 2;
		o.domain = 1;
		o.send_depth = o.recv_depth = 8;
		o.inline_bytes = body_bytes;
		o.send_queue = &sends;
		o.recv_queue = &recvs;
		o.pull_from = 1000;
		pair = std::make_unique<queue_pair>(regions, seen, o);
		pair->peer = 1;
		pair->set_rights(15);
		for (auto s : {pair_state::init, pair_state::ready, pair_state::sends})
			pair->set_state(s);
		pair->attach(port_);
	}
	~machine()
	{
		pair.reset();
		std::free(halves);
	}
	std::uint64_t base() const
	{
		return reinterpret_cast<std::uintptr_t>(memory.data() + guard);
	}

	segment piece(input &in)
	{
		std::uint32_t offset = in.number(2) % region;
		return {base() + offset,
			in.number(2) % static_cast<std::uint32_t>(region - offset + 1), key};
	}
	void post_send(input &in)
	{
		send_request r{};
		r.op = static_cast<operation>(in.number(1) % 7);
		r.flags = signalled | (in.number(1) & fenced);
		r.id = next_send;
		r.remote = in.number(2);
		r.segments = 1;
		r.at[0] = piece(in);
		if (is_atomic(r.op))
			r.at[0] = {base(), 8, key};
		if (!pair->post_send(r))
			sent.push_back(next_send++);
		pair->flush_posts();
	}
	void post_recv(input &in)
	{
		recv_request r{};
		r.id = next_recv;
		r.segments = 1;
		r.at[0] = piece(in);
		if (!pair->post_recv(r))
			received.push_back(next_recv++);
		pair->flush_posts();
	}
	/// An entry that may be right, and is then refined by the next writes.
	void write_entry(input &in)
	{
		half &h = halves[1];
		wqe &w = h.wqes[in.number(1) % 4 + h.wqe_prod.load() % ring_entries / 4 * 4];
		std::uint32_t cons = in.number(1);
		w.cons = cons & 0x80 ? in.number(4) : cons % 16;
		w.op = static_cast<std::uint8_t>(in.number(1));
		w.how = static_cast<std::uint8_t>(in.number(1) % 5);
		w.length = in.number(2) % 1200;
		if (in.number(1) % 4 == 0)
			w.length = in.number(4);
		w.rkey = in.number(1) % 4 ? key : in.number(1) % 2 ? secret_key : in.number(4);
		w.remote = base() + in.number(2);
		w.segments = static_cast<std::uint8_t>(in.number(1) % 6);
		wire_segment s{1, w.length};
		std::memcpy(w.body, &s, sizeof(s));
	}
	void write_index(input &in)
	{
		half &h = halves[1];
		std::uint32_t which = in.number(1), by = in.number(1);
		if (which & 0x80)
			by = in.number(4);
		switch (which % 11) {
		case 0:
			// Whether the entries below it are there, `turn` tells.
			for (by %= 16; by; by--, h.wqe_prod++)
				h.wqes[h.wqe_prod % ring_entries].turn = h.wqe_prod + 1;
			h.wqes[in.number(1) % 16].turn += in.number(1) % 4 ? 0 : 1;
			break;
		case 1:
			h.wqe_cons += by;
			break;
		case 2:
			h.read_ack += by;
			break;
		case 3:
			h.read_grant += by;
			break;
		case 4:
			h.stream_prod += by * 16;
			break;
		case 5:
			h.stream_cons += by * 16;
			break;
		case 6:
			h.answer_prod += by * 16;
			break;
		case 7:
			h.answer_cons += by * 16;
			break;
		case 8:
			h.cqes[by % 16].result = in.number(1) % 3 ? 0 : in.number(1);
			break;
		case 9:
			h.word = by % 8 ? 0 : in.number(1) % 4;
			break;
		case 10:
			h.refused = by % 3;
			break;
		}
		h.bell++;
	}
	void check()
	{
		for (std::size_t i = 0; i < guard; i++)
			FUZZ_CHECK(memory[i] == 0xaa && memory[guard + region + i] == 0xaa);
		for (std::uint8_t b : secret)
			FUZZ_CHECK(b == 0x77);
		std::array<completion, 8> got;
		for (bool failed : {false, true}) {
			completion_queue &q = failed ? recvs : sends;
			auto &expected = failed ? received : sent;
			std::size_t n = q.poll(got);
			for (std::size_t i = 0; i < n; i++) {
				FUZZ_CHECK(!expected.empty() && expected.front() == got[i].id);
				expected.pop_front();
			}
		}
		if (pair->state() != pair_state::error)
			return;
		if (final_.empty())
			final_ = memory;
		FUZZ_CHECK(final_ == memory);
	}

	half *halves;
	std::vector<std::uint8_t> memory, final_;
	std::array<std::uint8_t, 64> secret = [] {
		std::array<std::uint8_t, 64> a;
		a.fill(0x77);
		return a;
	}();
	region_table regions;
	nothing seen;
	completion_queue sends{seen}, recvs{seen};
	wild_port port_;
	std::uint32_t key, secret_key;
	std::uint64_t next_send = 0, next_recv = 0;
	std::deque<std::uint64_t> sent, received;
	std::unique_ptr<queue_pair> pair;
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
	input in{data, data + size};
	machine m{(in.number(1) & 1) != 0};
	for (int steps = 0; !in.empty() && steps < 200; steps++) {
		switch (in.number(1) % 7) {
		case 0:
			m.post_send(in);
			break;
		case 1:
			m.post_recv(in);
			break;
		case 2:
			m.write_entry(in);
			break;
		case 3:
		case 4:
			m.write_index(in);
			break;
		case 5:
			m.pair->progress();
			break;
		case 6:
			m.port_.error = in.number(1) % 3 ? 0 : in.number(1) % 2 ? 14 : 3;
			break;
		}
		m.check();
	}
	m.pair->peer_gone();
	m.check();
	return 0;
}
