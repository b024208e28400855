// SPDX-License-Identifier: MIT
// fuzz_ntrdma.cpp - anything that a peer can write into the halves of a link.
//
// The input is a small program. It posts requests, and it writes into the peer's half: indices,
// entries, completions, stream bytes, the link word. It may do that properly, so that the code
// behind the first checks is reached. What must hold is in ntrdma_application.hpp; besides, memory
// of another domain never changes.
#include "tests/fuzz/ntrdma_application.hpp"

namespace
{

using namespace fuzz_ntrdma;

/// Pulls bytes of one value: what a peer's memory holds is of no interest.
struct wild_port final : port {
	explicit wild_port(bool pulls) : pulls_{pulls} {}
	half &out() override { return both[0]; }
	const half &in() const override { return both[1]; }
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

	halves both;
	std::uint32_t error = 0;
	bool ended_once = false;

private:
	bool pulls_;
};

struct machine {
	explicit machine(bool pulls) :
		link{pulls},
		app{link,
		    [] {
			    pair_options o;
			    o.inline_bytes = body_bytes;
			    o.pull_from = 1000;
			    return o;
		    }()},
		secret_key{*app.regions.add(secret.data(), secret.size(), 0, 2, 15)}
	{
	}
	/// An entry that may be right, and is then refined by the next writes.
	void write_entry(input &in)
	{
		half &h = link.both[1];
		wqe &w = h.wqes[in.number(1) % 4 + h.wqe_prod.load() % ring_entries / 4 * 4];
		std::uint32_t cons = in.number(1);
		w.cons = cons & 0x80 ? in.number(4) : cons % 16;
		w.op = static_cast<std::uint8_t>(in.number(1));
		w.how = static_cast<std::uint8_t>(in.number(1) % 5);
		w.length = in.number(2) % 1200;
		if (in.number(1) % 4 == 0)
			w.length = in.number(4);
		w.rkey = in.number(1) % 4 ? app.key : in.number(1) % 2 ? secret_key : in.number(4);
		w.remote = app.base() + in.number(2);
		w.segments = static_cast<std::uint8_t>(in.number(1) % 6);
		wire_segment s{1, w.length};
		std::memcpy(w.body, &s, sizeof(s));
	}
	void write_index(input &in)
	{
		half &h = link.both[1];
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
		app.check();
		for (std::uint8_t b : secret)
			FUZZ_CHECK(b == 0x77);
	}

	std::array<std::uint8_t, 64> secret = [] {
		std::array<std::uint8_t, 64> a;
		a.fill(0x77);
		return a;
	}();
	wild_port link;
	application app;
	std::uint32_t secret_key;
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
	input in{data, data + size};
	machine m{(in.number(1) & 1) != 0};
	for (int steps = 0; !in.empty() && steps < 200; steps++) {
		switch (in.number(1) % 7) {
		case 0:
			m.app.post_send(in, true);
			m.app.pair->flush_posts();
			break;
		case 1:
			m.app.post_recv(in);
			m.app.pair->flush_posts();
			break;
		case 2:
			m.write_entry(in);
			break;
		case 3:
		case 4:
			m.write_index(in);
			break;
		case 5:
			m.app.pair->progress();
			break;
		case 6:
			m.link.error = in.number(1) % 3 ? 0 : in.number(1) % 2 ? 14 : 3;
			break;
		}
		m.check();
	}
	m.app.pair->peer_gone();
	m.check();
	return 0;
}
