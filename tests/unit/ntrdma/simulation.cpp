// SPDX-License-Identifier: MIT
// simulation.cpp - random work of two sides in a random order, and the link cut at every step.
//
// A run is told by its seed: who posts, makes progress or polls next, and what; of a link by a byte
// stream how many bytes move; of one through memory how much of it is seen, and whether the
// doorbell rings at once. It is repeated once for each of its steps, with the link cut there.
// Whatever happens, each request completes exactly once and in its order; a request that succeeded
// moved exactly its bytes; after the first error all is flushed; and from the cut on no byte of a
// side's memory changes.
//
// SEED=n repeats one run.
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <gtest/gtest.h>
#include <random>

#include "tests/unit/ntrdma/lagging.hpp"
#include "tests/unit/ntrdma/pipe.hpp"

namespace
{

using namespace coop::ntrdma;
using namespace coop::ntrdma::test;

constexpr int steps = 100;
constexpr std::uint32_t slot_bytes = 48 << 10;
constexpr std::uint32_t slots_each = 6;

struct posted {
	std::uint64_t id;
	operation op;
	std::uint32_t length, mine, theirs; // slots
	std::uint8_t fill;
	bool wanted; // signalled
};

/// A side and what is expected of it.
struct player {
	side *own, *other;
	std::deque<posted> sends;
	std::deque<std::uint64_t> recvs;
	std::deque<posted> *peer_sends;
	bool failed = false;
	std::uint8_t next_fill = 1;
	std::uint32_t next_slot = 0;
};

/// Memory of a side: slots that it sends from, slots that its peer writes to, receives.
std::uint32_t sends_from(std::uint32_t slot)
{
	return slot * slot_bytes;
}
std::uint32_t writes_to(std::uint32_t slot)
{
	return (slots_each + slot) * slot_bytes;
}
std::uint32_t receives_at(std::uint32_t slot)
{
	return (2 * slots_each + slot) * slot_bytes;
}

/// What joins the sides moves by itself.
void move(joined &, std::mt19937 &) {}
void move(lagging &link, std::mt19937 &rng)
{
	link.move(rng);
}
void move(piped &link, std::mt19937 &rng)
{
	for (int i = 0; i < 4; i++)
		link.move(rng);
}

void show(joined &) {}
void show(piped &) {}
void show(lagging &link)
{
	link.show();
}

template <typename Link> class run
{
public:
	run(unsigned seed, int cut, bool pulls) : rng_{seed}, cut_{cut}, l_{pulls, depth(4)}
	{
		players_[0] = {&l_.a, &l_.b, {}, {}, &players_[1].sends};
		players_[1] = {&l_.b, &l_.a, {}, {}, &players_[0].sends};
	}

	void play()
	{
		for (int i = 0; i < steps; i++) {
			if (i == cut_)
				cut();
			move(l_, rng_);
			player &p = players_[rng_() % 2];
			switch (rng_() % 4) {
			case 0:
				post_send(p);
				break;
			case 1:
				post_recv(p);
				break;
			case 2:
				p.own->pair->progress();
				break;
			case 3:
				reap(p);
				break;
			}
			if (i >= cut_)
				check_untouched();
			if (testing::Test::HasFatalFailure())
				return;
		}
		finish();
	}

private:
	std::uint32_t pick(std::uint32_t n) { return static_cast<std::uint32_t>(rng_() % n); }

	void post_send(player &p)
	{
		// A slot is in use until its request has completed.
		if (p.sends.size() >= 4)
			return;
		constexpr operation ops[] = {operation::send, operation::send_imm, operation::write,
					     operation::write_imm, operation::read};
		constexpr std::uint32_t sizes[] = {0, 1, 32, 161, 5000, 20000, slot_bytes};
		posted s{};
		s.op = ops[pick(5)];
		s.length = sizes[pick(7)];
		s.mine = s.theirs = p.next_slot++ % slots_each;
		s.fill = p.next_fill++;
		s.wanted = pick(4) != 0;
		auto &from = s.op == operation::read ? *p.other : *p.own;
		std::uint32_t at =
			s.op == operation::read ? writes_to(s.theirs) : sends_from(s.mine);
		if (!cut_done_)
			std::fill_n(from.memory.begin() + at, s.length, s.fill);
		auto r = p.own->request(s.op, p.own->at(sends_from(s.mine), s.length),
					p.other->base() + writes_to(s.theirs), p.other->key);
		r.imm = s.fill;
		if (!s.wanted)
			r.flags = 0;
		r.id = s.id = p.own->next_send;
		// The messaging library stores several requests before it rings.
		bool rings = !std::is_same_v<Link, lagging> || pick(2);
		int rc = rings ? p.own->send(r) : p.own->store(r);
		if (!rc)
			p.sends.push_back(s);
		else
			ASSERT_EQ(rc, -ENOMEM);
	}

	void post_recv(player &p)
	{
		std::uint32_t slot = static_cast<std::uint32_t>(p.own->next_recv % 4);
		std::uint64_t id = p.own->next_recv;
		if (p.recvs.size() >= 4)
			return;
		if (!p.own->receive(p.own->at(receives_at(slot), slot_bytes)))
			p.recvs.push_back(id);
	}

	void reap(player &p)
	{
		for (const completion &c : p.own->poll(p.own->sends))
			sent(p, c);
		for (const completion &c : p.own->poll(p.own->recvs))
			received(p, c);
	}

	void judge(player &p, status result)
	{
		if (p.failed) {
			ASSERT_EQ(result, status::flushed);
		} else if (result != status::success) {
			ASSERT_GE(cut_done_ ? 1 : 0, 1) << "an error without a cut";
			ASSERT_TRUE(result == status::retry_exceeded || result == status::flushed);
		}
	}

	void sent(player &p, const completion &c)
	{
		while (!p.sends.empty() && p.sends.front().id != c.id) {
			ASSERT_FALSE(p.sends.front().wanted) << "a completion is missing";
			p.sends.pop_front();
		}
		ASSERT_FALSE(p.sends.empty()) << "a completion of nothing";
		posted s = p.sends.front();
		p.sends.pop_front();
		judge(p, c.result);
		if (c.result != status::success) {
			p.failed = true;
			return;
		}
		ASSERT_TRUE(s.wanted);
		const auto &memory = s.op == operation::read ? p.own->memory : p.other->memory;
		std::uint32_t at = s.op == operation::read ? sends_from(s.mine)
				   : takes_place(s.op)     ? writes_to(s.theirs)
							   : UINT32_MAX;
		if (at != UINT32_MAX && latest(p, s))
			for (std::uint32_t i = 0; i < s.length; i += 97)
				ASSERT_EQ(memory[at + i], s.fill) << "byte " << i;
	}

	static bool takes_place(operation op)
	{
		return op == operation::write || op == operation::write_imm;
	}
	/// False if the slot may have been used again: by a later request of either side.
	bool latest(player &p, const posted &s)
	{
		if (cut_done_)
			return false;
		for (const posted &later : p.sends)
			if (later.mine == s.mine)
				return false;
		for (const posted &o : *p.peer_sends)
			if (o.op == operation::read || takes_place(o.op))
				return false;
		return p.next_slot - 1 - s.mine < slots_each || s.op == operation::read
			       ? p.next_slot <= slots_each
			       : false;
	}

	void received(player &p, const completion &c)
	{
		ASSERT_FALSE(p.recvs.empty());
		ASSERT_EQ(c.id, p.recvs.front());
		p.recvs.pop_front();
		if (c.result != status::success) {
			ASSERT_TRUE(cut_done_);
			ASSERT_EQ(c.result, status::flushed);
			return;
		}
		if (c.op == operation::write_imm || c.bytes == 0)
			return;
		std::uint32_t at = receives_at(static_cast<std::uint32_t>(c.id % 4));
		std::uint8_t first = p.own->memory[at];
		for (std::uint32_t i = 0; i < c.bytes; i++)
			ASSERT_EQ(p.own->memory[at + i], first) << "a torn message";
		if (has_imm(c.op)) {
			ASSERT_EQ(c.imm, first);
		}
	}

	/// Both sides learn it, in either order, as two processes do.
	void cut()
	{
		cut_done_ = true;
		side *order[] = {&l_.a, &l_.b};
		if (pick(2))
			std::swap(order[0], order[1]);
		for (side *s : order) {
			show(l_);
			s->pair->peer_gone();
		}
		before_[0] = l_.a.memory;
		before_[1] = l_.b.memory;
	}

	void check_untouched()
	{
		ASSERT_EQ(l_.a.memory, before_[0]) << "a byte was written after the end";
		ASSERT_EQ(l_.b.memory, before_[1]) << "a byte was written after the end";
	}

	void finish()
	{
		if (!cut_done_)
			cut();
		for (int i = 0; i < 8; i++)
			for (player &p : players_)
				reap(p);
		for (player &p : players_) {
			EXPECT_TRUE(p.recvs.empty());
			for (const posted &s : p.sends)
				EXPECT_FALSE(s.wanted) << "no completion of request " << s.id;
			EXPECT_EQ(p.own->regions.find(p.own->key)->grants, 0u);
		}
	}

	std::mt19937 rng_;
	int cut_;
	bool cut_done_ = false;
	Link l_;
	player players_[2];
	std::vector<std::uint8_t> before_[2];
};

TEST(simulation, ends_well_wherever_the_link_is_cut)
{
	const char *given = std::getenv("SEED");
	unsigned seed =
		given ? static_cast<unsigned>(std::atoi(given)) : std::random_device{}() % 100000;
	std::printf("SEED=%u\n", seed);
	for (bool pulls : {true, false})
		for (int cut = 0; cut <= steps; cut++) {
			run<joined>{seed, cut, pulls}.play();
			ASSERT_FALSE(HasFailure())
				<< "cut at step " << cut << (pulls ? ", pulled" : ", streamed");
			run<lagging>{seed, cut, pulls}.play();
			ASSERT_FALSE(HasFailure())
				<< "cut at step " << cut << (pulls ? ", pulled" : ", streamed")
				<< ", and seen late";
		}
	for (int cut = 0; cut <= steps; cut++) {
		run<piped>{seed, cut, false}.play();
		ASSERT_FALSE(HasFailure()) << "cut at step " << cut << ", by a byte stream";
	}
}

} // namespace
