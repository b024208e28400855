// SPDX-License-Identifier: MIT
// ends.cpp - every way a link ends: closed, lost, silent, and peers that lie.
#include <array>
#include <gtest/gtest.h>
#include <utility>

#include "tests/unit/ntrdma/sides.hpp"

namespace
{

using namespace coop::ntrdma;
using namespace coop::ntrdma::test;

TEST(ends, a_lost_peer_ends_all_once)
{
	joined l;
	for (int i = 0; i < 3; i++) {
		l.a.receive(l.a.at(0, 8));
		l.a.send(l.a.request(operation::send, l.a.at(0, 8)));
	}
	l.a.pair->peer_gone();
	auto sent = l.a.poll(l.a.sends);
	ASSERT_EQ(sent.size(), 3u);
	EXPECT_EQ(sent[0].result, status::retry_exceeded);
	EXPECT_EQ(sent[1].result, status::flushed);
	auto received = l.a.poll(l.a.recvs);
	ASSERT_EQ(received.size(), 3u);
	EXPECT_EQ(received[0].result, status::flushed);
	EXPECT_EQ(l.a.seen.events.back(), event::lost);
	EXPECT_EQ(l.pa.ends, 1u);
	EXPECT_TRUE(l.a.pair->wants_detach());
	// Later requests are flushed too.
	EXPECT_EQ(l.a.send(l.a.request(operation::send, l.a.at(0, 8))), 0);
	EXPECT_EQ(l.a.poll(l.a.sends).at(0).result, status::flushed);
}

TEST(ends, what_a_dead_peer_had_stored_still_counts)
{
	joined l;
	l.b.receive(l.b.at(0, 8));
	l.a.memory[0] = 42;
	l.a.send(l.a.request(operation::send, l.a.at(0, 8)));
	l.b.pair->peer_gone();
	EXPECT_EQ(l.b.poll(l.b.recvs).at(0).result, status::success);
	EXPECT_EQ(l.b.memory[0], 42);
}

// A program that takes one completion for an event hears of the failure behind a success.
TEST(ends, a_failure_that_is_left_is_an_event)
{
	joined l;
	l.b.receive(l.b.at(0, 8));
	l.b.receive(l.b.at(0, 8));
	l.a.send(l.a.request(operation::send, l.a.at(0, 8)));
	l.b.pair->peer_gone();
	EXPECT_EQ(l.b.seen.notices, 0u);
	std::array<completion, 1> one;
	for (status s : {status::success, status::flushed}) {
		l.b.recvs.request_notice(completion_queue::arm::solicited);
		EXPECT_EQ(l.b.seen.notices, s == status::success ? 1u : 2u);
		ASSERT_EQ(l.b.recvs.poll(one), 1u);
		EXPECT_EQ(one[0].result, s);
	}
	l.b.recvs.request_notice(completion_queue::arm::any);
	EXPECT_EQ(l.b.seen.notices, 2u);
}

/// Two links of `a` and `b`, with one completion queue for all on a's side.
struct two_links {
	two_links()
	{
		pair_options o = depth(16);
		o.number = 4;
		o.domain = 7;
		o.send_queue = o.recv_queue = &first.a.recvs;
		other = std::make_unique<queue_pair>(first.a.regions, first.a.seen, o);
		other->peer = 1;
		for (pair_state s : {pair_state::init, pair_state::ready, pair_state::sends})
			other->set_state(s);
		second.a.pair->detach();
		other->attach(second.pa);
	}
	joined first, second; // of the second, side b is the peer of `other`
	std::unique_ptr<queue_pair> other;
};

TEST(queues, of_completions_go_round_their_queue_pairs)
{
	two_links l;
	side &a = l.first.a, &b = l.first.b, &c = l.second.b;
	recv_request into{};
	into.segments = 1;
	into.at[0] = a.at(0, 8);
	for (queue_pair *p : {a.pair.get(), l.other.get()})
		for (int i = 0; i < 3; i++) {
			into.id = p->options().number;
			ASSERT_EQ(p->post_recv(into), 0);
			p->flush_posts();
		}
	for (int i = 0; i < 3; i++) {
		b.send(b.request(operation::send, b.at(0, 8)));
		c.send(c.request(operation::send, c.at(0, 8)));
	}
	std::vector<std::uint64_t> from;
	std::array<completion, 1> got;
	while (a.recvs.poll(got))
		from.push_back(got[0].id);
	ASSERT_EQ(from.size(), 6u);
	for (std::size_t i = 1; i < from.size(); i++)
		EXPECT_NE(from[i], from[i - 1]) << i;
}

TEST(ends, what_a_peer_did_on_other_links_before_it_left_comes_first)
{
	for (bool dies : {false, true}) {
		two_links l;
		side &a = l.first.a, &b = l.first.b;
		recv_request into{};
		into.id = 77;
		into.segments = 1;
		into.at[0] = a.at(64, 8);
		ASSERT_EQ(l.other->post_recv(into), 0);
		l.other->flush_posts();
		ASSERT_EQ(a.receive(a.at(0, 8)), 0);
		// The last that the peer does: a send on the other link, then it leaves both.
		l.second.b.send(l.second.b.request(operation::send, l.second.b.at(0, 8)));
		b.pair->set_state(pair_state::reset);
		l.second.b.pair->set_state(pair_state::reset);
		if (dies)
			a.pair->peer_gone();
		else
			a.send(a.request(operation::send, a.at(0, 8)));
		auto got = a.poll(a.recvs);
		ASSERT_FALSE(got.empty());
		EXPECT_EQ(got.at(0).id, 77u);
		EXPECT_EQ(got.at(0).result, status::success);
	}
}

// As the last thing that it does, the peer answers on the other link; an answer rings no bell.
TEST(ends, what_a_peer_answered_on_other_links_before_it_left_comes_first)
{
	two_links l;
	side &a = l.first.a, &b = l.first.b;
	l.second.b.pair->answers_wait = true;
	l.second.b.receive(l.second.b.at(0, 8));
	send_request r = a.request(operation::send, a.at(0, 8));
	r.id = 77;
	ASSERT_EQ(l.other->post_send(r), 0);
	l.other->flush_posts();
	ASSERT_EQ(a.receive(a.at(0, 8)), 0);
	a.send(a.request(operation::send, a.at(0, 8))); // stays outstanding
	EXPECT_EQ(l.second.b.poll(l.second.b.recvs).size(), 1u);
	b.pair->set_state(pair_state::reset);
	// The loss is found by the poll.
	auto got = a.poll(a.recvs);
	ASSERT_FALSE(got.empty());
	EXPECT_EQ(got.at(0).id, 77u);
	EXPECT_EQ(got.at(0).result, status::success);
	for (const completion &c : got)
		EXPECT_EQ(c.result, status::success) << "failures come later";
	got = a.poll(a.recvs);
	ASSERT_EQ(got.size(), 1u);
	EXPECT_EQ(got.at(0).result, status::flushed);
}

// What was done before comes first also of queue pairs that have failed since.
TEST(ends, successes_come_before_the_failures_of_all)
{
	two_links l;
	side &a = l.first.a;
	recv_request into{};
	into.segments = 1;
	into.at[0] = a.at(64, 8);
	for (into.id = 77; into.id < 79; into.id++)
		ASSERT_EQ(l.other->post_recv(into), 0);
	l.other->flush_posts();
	ASSERT_EQ(a.receive(a.at(0, 8)), 0);
	l.second.b.send(l.second.b.request(operation::send, l.second.b.at(0, 8)));
	l.first.a.pair->peer_gone();
	l.other->peer_gone();
	const auto got = a.poll(a.recvs);
	ASSERT_EQ(got.size(), 1u);
	EXPECT_EQ(got.at(0).id, 77u);
	EXPECT_EQ(got.at(0).result, status::success);
	EXPECT_EQ(a.poll(a.recvs).size(), 2u) << "flushed";
}

// A process that is killed lends memory on all its links.
TEST(ends, a_peer_that_dies_while_it_is_pulled_from_on_several_links_ends_each_once)
{
	two_links l;
	side &a = l.first.a, &b = l.first.b, &c = l.second.b;
	recv_request into{};
	into.segments = 1;
	into.at[0] = a.at(0, 100000);
	for (queue_pair *p : {a.pair.get(), l.other.get()}) {
		into.id = p->options().number;
		ASSERT_EQ(p->post_recv(into), 0);
		p->flush_posts();
	}
	b.send(b.request(operation::send, b.at(0, 100000)));
	c.send(c.request(operation::send, c.at(0, 100000)));
	l.first.pa.pull_error = l.second.pa.pull_error = -ESRCH;
	std::vector<completion> all;
	for (int turns = 0; turns < 4; turns++)
		for (const completion &each : a.poll(a.recvs))
			all.push_back(each);
	ASSERT_EQ(all.size(), 2u);
	EXPECT_EQ(all[0].id + all[1].id, 2u + 4u);
	for (const completion &each : all)
		EXPECT_EQ(each.result, status::flushed);
	EXPECT_EQ(a.seen.events,
		  (std::vector{event::established, event::established, event::lost, event::lost}));
	EXPECT_EQ(l.first.pa.ends, 1u);
	EXPECT_EQ(l.second.pa.ends, 1u);
}

TEST(ends, a_peer_that_closes_in_order_leaves_posted_receives_alone)
{
	joined l;
	l.a.receive(l.a.at(0, 8));
	l.b.pair->set_state(pair_state::reset);
	l.settle();
	EXPECT_TRUE(l.a.poll(l.a.recvs).empty());
	EXPECT_EQ(l.a.pair->state(), pair_state::sends);
	EXPECT_TRUE(l.a.pair->wants_detach());
	l.a.send(l.a.request(operation::send, l.a.at(0, 8)));
	EXPECT_EQ(l.a.poll(l.a.sends).at(0).result, status::retry_exceeded);
	EXPECT_EQ(l.a.poll(l.a.recvs).at(0).result, status::flushed);
}

TEST(ends, a_read_that_the_granter_withdraws_fails)
{
	joined l;
	l.a.send(l.a.request(operation::read, l.a.at(0, 100000), l.b.base(), l.b.key));
	l.b.pair->progress(); // grants
	EXPECT_EQ(l.b.regions.find(l.b.key)->grants, 1u);
	l.b.pair->set_state(pair_state::error);
	EXPECT_EQ(l.b.regions.find(l.b.key)->grants, 0u);
	l.settle();
	EXPECT_EQ(l.a.poll(l.a.sends).at(0).result, status::retry_exceeded);
}

TEST(ends, a_region_that_closes_ends_its_granted_read_and_opens_nothing_new)
{
	joined l;
	l.a.send(l.a.request(operation::read, l.a.at(0, 100000), l.b.base(), l.b.key));
	l.b.pair->progress(); // grants
	EXPECT_TRUE(l.b.pair->grants(l.b.key));
	l.b.regions.find(l.b.key)->closing = true;
	l.a.send(l.a.request(operation::read, l.a.at(0, 100000), l.b.base(), l.b.key));
	l.settle();
	auto sent = l.a.poll(l.a.sends);
	ASSERT_EQ(sent.size(), 2u);
	EXPECT_EQ(sent[0].result, status::success);
	EXPECT_EQ(sent[1].result, status::remote_access);
	EXPECT_EQ(l.b.regions.find(l.b.key)->grants, 0u);
}

TEST(ends, a_pull_from_a_requester_that_hung_up_is_no_message)
{
	joined l;
	l.b.receive(l.b.at(0, 100000));
	l.a.send(l.a.request(operation::send, l.a.at(0, 100000)));
	l.a.pair->set_state(pair_state::error); // its memory is its own again
	l.settle();
	EXPECT_EQ(l.b.poll(l.b.recvs).at(0).result, status::flushed);
	EXPECT_EQ(l.b.pair->counts().served, 0u);
}

TEST(ends, what_came_before_the_end_is_received)
{
	for (bool left : {false, true}) {
		joined l;
		l.b.receive(l.b.at(0, 8));
		l.b.receive(l.b.at(8, 8));
		l.a.send(l.a.request(operation::send, l.a.at(0, 8)));
		if (left)
			l.a.pair->set_state(pair_state::error);
		l.b.pair->set_state(pair_state::error);
		auto got = l.b.poll(l.b.recvs);
		ASSERT_EQ(got.size(), 2u);
		EXPECT_EQ(got[0].result, status::success);
		EXPECT_EQ(got[1].result, status::flushed);
		if (left)
			continue;
		l.settle();
		EXPECT_EQ(l.a.poll(l.a.sends).at(0).result, status::success);
	}
}

TEST(ends, requests_that_the_peer_reported_as_failed_are_not_carried_out)
{
	for (std::uint32_t length : {8u, 4000u, 100000u}) {
		joined l;
		l.a.memory[0] = 42;
		for (int i = 0; i < 2; i++)
			l.a.send(l.a.request(operation::write, l.a.at(0, length), l.b.base(),
					     l.b.key));
		l.a.pair->peer_gone(); // b was silent for too long
		EXPECT_EQ(l.a.poll(l.a.sends).at(0).result, status::retry_exceeded);
		l.settle(); // b goes on
		EXPECT_EQ(l.b.memory[0], 0);
		EXPECT_EQ(l.b.pair->counts().served, 0u);
		EXPECT_EQ(l.b.pair->state(), pair_state::error);
		EXPECT_EQ(l.b.seen.events.back(), event::lost);
	}
}

TEST(ends, a_pull_that_fails_ends_the_link)
{
	for (int error : {-ESRCH, -EFAULT, -EPERM}) {
		joined l;
		l.b.receive(l.b.at(0, 100000));
		l.a.send(l.a.request(operation::send, l.a.at(0, 100000)));
		l.pb.pull_error = error;
		l.settle();
		EXPECT_EQ(l.b.poll(l.b.recvs).at(0).result, status::flushed);
		EXPECT_EQ(l.a.poll(l.a.sends).at(0).result,
			  error == -EFAULT ? status::remote_operation : status::retry_exceeded);
	}
}

TEST(ends, a_message_without_its_bytes_takes_no_receive)
{
	notes seen;
	shared_receives shared{seen, 7, 1};
	joined l{false, depth(16), &shared};
	recv_request r{};
	r.segments = 1;
	r.at[0] = l.b.at(0, 4000);
	ASSERT_EQ(shared.post(r), 0);
	l.a.send(l.a.request(operation::send, l.a.at(0, 4000)));
	half &said = l.halves[0];
	ASSERT_EQ(said.stream_prod, 4000u);
	said.stream_prod = 3999;
	l.b.pair->progress();
	EXPECT_FALSE(shared.empty()) << "other peers need it";
	said.stream_prod = 4000;
	said.bell++;
	l.settle();
	EXPECT_EQ(l.b.poll(l.b.recvs).at(0).bytes, 4000u);
}

TEST(ends, a_large_copy_is_unfinished_until_its_last_piece)
{
	joined l;
	// A message of two pieces; where its bytes lie does not matter.
	l.b.receive(l.b.at(0, 1u << 20));
	recv_request r{};
	r.segments = 2;
	r.at[0] = r.at[1] = l.b.at(0, 1u << 20);
	EXPECT_EQ(l.b.pair->post_recv(r), 0);
	l.a.send(l.a.request(operation::send, l.a.at(0, 8)));
	l.settle();
	EXPECT_FALSE(l.b.pair->unfinished());
	send_request w = l.a.request(operation::send, l.a.at(0, 1u << 20));
	w.segments = 2;
	w.at[1] = w.at[0];
	l.a.send(w);
	l.b.pair->progress();
	EXPECT_TRUE(l.b.pair->unfinished());
	EXPECT_TRUE(l.b.recvs.unfinished());
	l.b.pair->progress();
	EXPECT_FALSE(l.b.recvs.unfinished());
	EXPECT_EQ(l.b.poll(l.b.recvs).size(), 2u);
}

TEST(ends, what_a_peer_carried_out_before_it_closed_is_done)
{
	// The peer serves and closes after this side looked at its indices, before the word.
	struct closing_port final : fake_port {
		using fake_port::fake_port;
		void ring() override
		{
			fake_port::ring();
			if (queue_pair *p = std::exchange(peer, nullptr)) {
				p->progress();
				p->set_state(pair_state::reset);
			}
		}
		queue_pair *peer = nullptr;
	};
	joined l;
	l.b.receive(l.b.at(0, 8));
	closing_port port{l.halves[0], l.halves[1], true};
	l.a.pair->detach();
	l.a.pair->attach(port);
	port.peer = l.b.pair.get();
	l.a.send(l.a.request(operation::send, l.a.at(0, 8)));
	l.settle();
	EXPECT_EQ(l.a.poll(l.a.sends).at(0).result, status::success);
	EXPECT_EQ(l.a.pair->state(), pair_state::sends);
}

TEST(ends, signs_of_life)
{
	joined l;
	l.a.pair->ask();
	EXPECT_FALSE(l.a.pair->answered());
	l.b.pair->progress();
	EXPECT_TRUE(l.a.pair->answered());
}

TEST(ends, a_reset_queue_pair_serves_a_new_link)
{
	joined l;
	l.a.send(l.a.request(operation::send, l.a.at(0, 8)));
	for (side *s : {&l.a, &l.b}) {
		s->pair->set_state(pair_state::reset);
		s->pair->detach();
		s->pair->set_state(pair_state::init);
		s->pair->set_state(pair_state::ready);
		s->pair->set_state(pair_state::sends);
	}
	std::memset(static_cast<void *>(l.halves.get()), 0, 2 * sizeof(half));
	l.a.pair->attach(l.pa);
	l.b.pair->attach(l.pb);
	l.b.receive(l.b.at(0, 8));
	l.a.send(l.a.request(operation::send, l.a.at(0, 8)));
	l.settle();
	EXPECT_EQ(l.b.poll(l.b.recvs).size(), 1u);
	EXPECT_EQ(l.a.poll(l.a.sends).at(0).result, status::success);
}

// A program that has got all it waits for may end without another call.
TEST(ends, an_answer_that_waits_counts_after_the_end)
{
	for (bool dies : {true, false}) {
		joined l;
		l.b.pair->answers_wait = true;
		l.b.receive(l.b.at(0, 8));
		l.a.send(l.a.request(operation::send, l.a.at(0, 8)));
		EXPECT_EQ(l.b.poll(l.b.recvs).size(), 1u);
		if (dies)
			l.a.pair->peer_gone();
		else
			l.b.pair->set_state(pair_state::reset);
		auto got = l.a.poll(l.a.sends);
		ASSERT_EQ(got.size(), 1u) << dies;
		EXPECT_EQ(got[0].result, status::success) << dies;
	}
}

struct lie {
	const char *name;
	std::function<void(half &)> tell; // in the half of b
};
const lie lies[] = {
	{"completions_of_what_was_not_posted", [](half &h) { h.wqe_cons = 5; }},
	{"completions_taken_back", [](half &h) { h.wqe_cons = UINT32_MAX; }},
	{"an_entry_that_acknowledges_what_was_not_posted",
	 [](half &h) {
		 h.wqes[0].op = static_cast<std::uint8_t>(operation::send);
		 h.wqes[0].cons = 5;
		 h.wqes[0].turn = 1;
	 }},
	{"more_bytes_than_the_stream", [](half &h) { h.stream_prod = stream_bytes + 1; }},
	{"more_answers_than_the_stream", [](half &h) { h.answer_prod = stream_bytes + 1; }},
	{"bytes_taken_that_were_not_sent", [](half &h) { h.stream_cons = 1; }},
	{"answers_taken_that_were_not_sent", [](half &h) { h.answer_cons = 1; }},
	{"a_grant_too_many", [](half &h) { h.read_grant = 2; }},
	{"an_acknowledgement_of_no_grant", [](half &h) { h.read_ack = 1; }},
	{"a_grant_for_a_send", [](half &h) { h.read_grant = 1; }},
	{"an_unknown_operation",
	 [](half &h) {
		 h.wqes[0].op = 7;
		 h.wqes[0].turn = 1;
	 }},
	{"an_unknown_carriage",
	 [](half &h) {
		 h.wqes[0].how = 9;
		 h.wqes[0].turn = 1;
	 }},
	{"a_body_that_is_too_long",
	 [](half &h) {
		 h.wqes[0].how = static_cast<std::uint8_t>(carriage::within);
		 h.wqes[0].length = body_bytes + 1;
		 h.wqes[0].turn = 1;
	 }},
	{"a_message_that_is_too_long",
	 [](half &h) {
		 h.wqes[0].how = static_cast<std::uint8_t>(carriage::stream);
		 h.wqes[0].length = max_message + 1;
		 h.wqes[0].turn = 1;
	 }},
	{"segments_of_another_sum",
	 [](half &h) {
		 h.wqes[0].how = static_cast<std::uint8_t>(carriage::pull);
		 h.wqes[0].length = 5;
		 h.wqes[0].turn = 1;
	 }},
	{"an_atomic_of_another_size",
	 [](half &h) {
		 h.wqes[0].op = static_cast<std::uint8_t>(operation::fetch_add);
		 h.wqes[0].length = 16;
		 h.wqes[0].turn = 1;
	 }},
	{"a_status_that_no_peer_gives",
	 [](half &h) {
		 h.cqes[0].result = 77;
		 h.refused = 1;
		 h.wqe_cons = 1;
	 }},
};

struct liars : testing::TestWithParam<lie> {
};
INSTANTIATE_TEST_SUITE_P(each, liars, testing::ValuesIn(lies),
			 [](const auto &info) { return info.param.name; });

TEST_P(liars, lose_the_link)
{
	joined l;
	l.a.receive(l.a.at(0, 8));
	l.a.send(l.a.request(operation::send, l.a.at(0, 8)));
	GetParam().tell(l.halves[1]);
	l.halves[1].bell++;
	for (int i = 0; i < 4; i++)
		l.a.pair->progress();
	EXPECT_EQ(l.a.pair->state(), pair_state::error);
	EXPECT_EQ(l.a.poll(l.a.sends).at(0).result, status::bad_response);
	EXPECT_EQ(l.a.poll(l.a.recvs).at(0).result, status::flushed);
	EXPECT_EQ(l.a.seen.events.back(), event::lost);
}

} // namespace
