// SPDX-License-Identifier: MIT
// stream.cpp - queue pairs joined by a byte stream: all operations, in pieces of every size, cut at
// every byte, and what the decoder refuses.
#include <gtest/gtest.h>

#include "tests/unit/ntrdma/pipe.hpp"

namespace
{

using namespace coop::ntrdma;
using namespace coop::ntrdma::test;

/// A bit of everything, of sizes below and above those of a ring and of a frame.
void post_all(piped &l)
{
	for (std::uint32_t i = 0; i < 301000; i++)
		l.a.memory[i] = static_cast<std::uint8_t>(i * 7 + i / 256);
	l.b.memory[900000] = 41;
	ASSERT_EQ(l.b.receive(l.b.at(0, 1000)), 0);
	ASSERT_EQ(l.b.receive(l.b.at(1000, 400000)), 0);
	ASSERT_EQ(l.a.send(l.a.request(operation::send_imm, l.a.at(0, 100))), 0);
	ASSERT_EQ(l.a.send(l.a.request(operation::send, l.a.at(1000, 300000))), 0);
	ASSERT_EQ(l.a.send(l.a.request(operation::write, l.a.at(5, 70000), l.b.base() + 500000,
				       l.b.key)),
		  0);
	ASSERT_EQ(l.a.send(l.a.request(operation::read, l.a.at(700000, 150000), l.b.base() + 1000,
				       l.b.key)),
		  0);
	ASSERT_EQ(l.a.send(l.a.request(operation::fetch_add, l.a.at(900008, 8), l.b.base() + 900000,
				       l.b.key)),
		  0);
}
constexpr std::size_t sends = 5, receives = 2;

void check_all(piped &l)
{
	auto done = l.a.poll(l.a.sends), came = l.b.poll(l.b.recvs);
	ASSERT_EQ(done.size(), sends);
	ASSERT_EQ(came.size(), receives);
	for (const completion &c : done)
		EXPECT_EQ(c.result, status::success) << c.id;
	for (const completion &c : came)
		EXPECT_EQ(c.result, status::success) << c.id;
	EXPECT_TRUE(std::equal(l.a.memory.begin(), l.a.memory.begin() + 100, l.b.memory.begin()));
	EXPECT_TRUE(std::equal(l.a.memory.begin() + 1000, l.a.memory.begin() + 301000,
			       l.b.memory.begin() + 1000));
	EXPECT_TRUE(std::equal(l.a.memory.begin() + 5, l.a.memory.begin() + 70005,
			       l.b.memory.begin() + 500000));
	EXPECT_TRUE(std::equal(l.b.memory.begin() + 1000, l.b.memory.begin() + 151000,
			       l.a.memory.begin() + 700000));
	EXPECT_EQ(l.a.memory[900008], 41);
}

TEST(stream, carries_every_operation_in_pieces_of_every_size)
{
	for (std::size_t most : {1ul, 13ul, 44ul, 1000ul, 65536ul, SIZE_MAX}) {
		piped l;
		post_all(l);
		for (bool found = true; found;) {
			found = l.a.pair->progress();
			found |= l.b.pair->progress();
			// One byte at a time only to begin with: it takes long.
			std::size_t n = l.pa.sent > 3000 ? std::max<std::size_t>(most, 500) : most;
			found |= l.carry(n, n);
		}
		check_all(l);
		ASSERT_FALSE(HasFatalFailure()) << most;
	}
}

TEST(stream, ends_well_at_every_byte)
{
	// The first bytes of each kind, and then some of all.
	for (std::size_t cut = 0; cut < 500000; cut += cut < 300 ? 1 : 19997) {
		piped l;
		post_all(l);
		for (bool found = true; found;) {
			found = l.a.pair->progress();
			found |= l.b.pair->progress();
			std::size_t left = cut - std::min(cut, l.pa.sent);
			found |= l.carry(left, SIZE_MAX);
		}
		ASSERT_FALSE(l.pa.lied || l.pb.lied);
		l.a.pair->peer_gone();
		l.b.pair->peer_gone();
		auto before = l.b.memory;
		auto done = l.a.poll(l.a.sends), came = l.b.poll(l.b.recvs);
		// Failures come in a poll of their own.
		for (const completion &c : l.a.poll(l.a.sends))
			done.push_back(c);
		for (const completion &c : l.b.poll(l.b.recvs))
			came.push_back(c);
		ASSERT_EQ(done.size(), sends) << cut;
		ASSERT_EQ(came.size(), receives) << cut;
		bool failed = false;
		for (const completion &c : done) {
			ASSERT_EQ(c.result, failed                        ? status::flushed
					    : c.result == status::success ? status::success
									  : status::retry_exceeded)
				<< cut;
			failed |= c.result != status::success;
		}
		for (std::size_t i = 0; i < receives; i++)
			if (came[i].result == status::success)
				ASSERT_TRUE(std::equal(l.b.memory.begin() + (i ? 1000 : 0),
						       l.b.memory.begin() + (i ? 301000 : 100),
						       l.a.memory.begin() + (i ? 1000 : 0)))
					<< cut;
		l.settle();
		ASSERT_EQ(l.b.memory, before) << "a byte was written after the end";
	}
}

TEST(stream, brings_bytes_straight_to_their_places)
{
	piped l;
	std::vector<std::uint8_t> from(70000);
	for (std::size_t i = 0; i < from.size(); i++)
		from[i] = static_cast<std::uint8_t>(i * 3 + i / 512);
	const std::array<piece, 2> parts{{{from.data(), 100}, {from.data() + 100, 69900}}};
	l.pa.from.put_at(5, 0, parts, 1);
	EXPECT_EQ(l.a.send(l.a.request(operation::write, l.a.at(0, 8), l.b.base(), l.b.key)), 0);
	l.settle();
	EXPECT_FALSE(l.pa.from.placing());
	EXPECT_EQ(l.pb.transfer.got, from.size());
	EXPECT_TRUE(std::equal(from.begin(), from.end(), l.pb.transfer.memory.begin()));
	EXPECT_EQ(l.a.poll(l.a.sends).size(), 1u);
	// Of a transfer that has ended: dropped, and what follows is understood.
	l.pa.from.put_at(6, 0, parts, 1);
	EXPECT_EQ(l.a.send(l.a.request(operation::write, l.a.at(0, 8), l.b.base(), l.b.key)), 0);
	l.settle();
	EXPECT_FALSE(l.pb.lied);
	EXPECT_EQ(l.a.poll(l.a.sends).size(), 1u);
	// At a wrong offset.
	l.pa.from.put_at(5, 1, parts, 1);
	l.settle();
	EXPECT_TRUE(l.pb.lied);
}

void withdraw_after(std::size_t begun, bool message)
{
	piped l;
	std::vector<std::uint8_t> from(70000, 1);
	const std::array<piece, 1> parts{{{from.data(), from.size()}}};
	if (message)
		l.pa.from.put_message(15, parts, 9);
	else
		l.pa.from.put_at(5, 0, parts, 9);
	if (begun)
		l.pa.send(l.pb, begun);
	l.pa.from.withdraw(8);
	l.pa.from.withdraw(9);
	from = {};
	EXPECT_EQ(l.a.send(l.a.request(operation::write, l.a.at(0, 8), l.b.base(), l.b.key)), 0);
	l.settle();
	EXPECT_EQ(l.pb.transfer.got, begun ? 70000u : 0u);
	EXPECT_FALSE(l.pb.lied);
	EXPECT_EQ(l.a.poll(l.a.sends).size(), 1u) << begun;
}

TEST(stream, a_withdrawn_placement_leaves_its_memory)
{
	for (std::size_t begun : {0ul, 1ul, 24ul, 25ul, 30000ul}) {
		withdraw_after(begun, false);
		withdraw_after(begun, true);
	}
}

TEST(stream, a_message_finds_its_place_without_being_asked_for)
{
	for (std::size_t most : {1ul, 23ul, 24ul, 25ul, 1000ul, SIZE_MAX}) {
		piped l;
		std::vector<std::uint8_t> from(70000);
		for (std::size_t i = 0; i < from.size(); i++)
			from[i] = static_cast<std::uint8_t>(i * 5 + i / 512);
		const std::array<piece, 2> parts{{{from.data(), 100}, {from.data() + 100, 69900}}};
		// The first has no place: it is dropped, and what follows is understood.
		for (std::uint64_t number : {14, 15}) {
			l.pa.from.put_message(number, parts, 1);
			EXPECT_TRUE(l.pa.from.placing_message());
			for (bool found = true; found;) {
				std::size_t n = l.pa.sent % 70024 > 3000
							? std::max<std::size_t>(most, 500)
							: most;
				found = l.carry(n, n);
			}
			EXPECT_FALSE(l.pa.from.placing_message());
			EXPECT_EQ(l.pb.transfer.announced, from.size());
			EXPECT_EQ(l.pb.transfer.got, number == 15 ? from.size() : 0);
		}
		EXPECT_TRUE(std::equal(from.begin(), from.end(), l.pb.transfer.memory.begin()));
		EXPECT_EQ(
			l.a.send(l.a.request(operation::write, l.a.at(0, 8), l.b.base(), l.b.key)),
			0);
		l.settle();
		EXPECT_EQ(l.a.poll(l.a.sends).size(), 1u);
		EXPECT_FALSE(l.pb.lied);
		l.pa.from.put_message(16, parts, 1);
		l.settle();
		EXPECT_TRUE(l.pb.lied) << "its owner did not believe it";
	}
}

/// Whether a decoder refuses these bytes. `known`: it has places.
bool head_refused(const placement &p, bool known = true)
{
	pipe_end e;
	one_transfer places;
	decoder into{e.halves[1], e.from, known ? &places : nullptr};
	std::array<place, 10> room;
	EXPECT_NE(into.room(room), 0u);
	put(room[0].at, p);
	return !into.arrived(placement_bytes);
}

TEST(stream, refuses_heads_of_messages_that_are_wrong)
{
	const placement good{message_kind, 100, 15, 0};
	EXPECT_FALSE(head_refused(good));
	EXPECT_TRUE(head_refused(good, false)) << "a device takes none";
	EXPECT_TRUE(head_refused({message_kind, 100, 15, 1})) << "it has no offset";
	EXPECT_TRUE(head_refused({message_kind, 0, 15, 0}));
	EXPECT_FALSE(head_refused({message_kind, placement_most, 14, 0}));
	EXPECT_TRUE(head_refused({message_kind, placement_most + 1, 14, 0}));
	EXPECT_TRUE(head_refused({message_kind + 1, 100, 15, 0}));
	EXPECT_TRUE(head_refused({0, 100, 15, 0}));
}

/// What a decoder says to an update with these fields, after `of` WQEs were told to the peer.
bool refused(const update &u, std::vector<std::uint8_t> entries = {})
{
	pipe_end e;
	std::vector<std::uint8_t> text(update_bytes);
	put(text.data(), u);
	text.insert(text.end(), entries.begin(), entries.end());
	text.resize(text.size() + u.stream + u.answer);
	e.flying.assign(text.begin(), text.end());
	while (e.receive(SIZE_MAX))
		continue;
	return e.lied;
}

TEST(stream, refuses_what_it_has_no_room_for)
{
	EXPECT_FALSE(refused({}));
	EXPECT_FALSE(refused({.stream = frame_stream, .answer = frame_stream}));
	EXPECT_TRUE(refused({.stream = frame_stream + 1}));
	EXPECT_TRUE(refused({.answer = frame_stream + 1}));
	EXPECT_TRUE(refused({.stream_taken = 1})) << "it was sent nothing";
	EXPECT_TRUE(refused({.answer_taken = 1}));
	EXPECT_TRUE(
		refused({.cqes = 1, .entries = cqe_bytes}, std::vector<std::uint8_t>(cqe_bytes)));
	EXPECT_TRUE(refused({.word = 3}));
	EXPECT_FALSE(
		refused({.wqes = 1, .entries = wqe_front}, std::vector<std::uint8_t>(wqe_front)));
	EXPECT_TRUE(
		refused({.wqes = 2, .entries = wqe_front}, std::vector<std::uint8_t>(wqe_front)));
	EXPECT_TRUE(refused({.entries = 1}, {0})) << "entries that nothing explains";
	EXPECT_TRUE(refused({.entries = frame_entries + 1}));
	std::vector<std::uint8_t> within(wqe_front + body_bytes + 1);
	within[2] = static_cast<std::uint8_t>(carriage::within);
	within[8] = body_bytes + 1;
	EXPECT_TRUE(refused({.wqes = 1, .entries = wqe_front + body_bytes + 1}, within));
	within[8] = body_bytes;
	within.pop_back();
	EXPECT_FALSE(refused({.wqes = 1, .entries = wqe_front + body_bytes}, within));
}

TEST(stream, refuses_more_than_the_rings_hold)
{
	pipe_end e;
	update u{.wqes = frame_wqes, .entries = frame_wqes * wqe_front};
	std::vector<std::uint8_t> text(update_bytes + u.entries);
	put(text.data(), u);
	for (std::uint32_t i = 0; i < ring_entries / frame_wqes; i++) {
		e.flying.assign(text.begin(), text.end());
		while (e.receive(SIZE_MAX))
			continue;
		EXPECT_FALSE(e.lied) << i;
	}
	e.flying.assign(text.begin(), text.end());
	while (e.receive(SIZE_MAX))
		continue;
	EXPECT_TRUE(e.lied);
}

} // namespace
