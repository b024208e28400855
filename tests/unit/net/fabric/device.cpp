// SPDX-License-Identifier: MIT
// device.cpp - machines of the fabric transport whose device does what the test says.
//
// libfabric is the fuzzer's fake. Only its own calls touch a machine that is alone on its
// network, with the library's core; two of them, or one with an enemy, have the naive core and
// the test's own thread.
#include <arpa/inet.h>
#include <cstring>
#include <gtest/gtest.h>
#include <map>
#include <set>

#include "coop/net.hpp"
#include "tests/fuzz/fake_fabric.hpp"
#include "tests/fuzz/fake_objects.hpp"
#include "tests/fuzz/naive_core.hpp"
#include "tests/lib/own_ip.hpp"
#include "userland/net/fabric/machine.hpp"
#include "userland/net/fabric/ports.hpp"

namespace
{

using namespace fuzz_net;
using namespace std::chrono_literals;

std::string text_of(unsigned n)
{
	return own_ip(11 + n) + "@tcp:12345:31:" + std::to_string(n);
}

address at(unsigned n)
{
	address a;
	EXPECT_EQ(parse(text_of(n), a), 0);
	return a;
}

sockaddr_in place_of(unsigned n, std::uint16_t port)
{
	sockaddr_in a{};
	a.sin_family = AF_INET;
	a.sin_port = htons(port);
	::inet_pton(AF_INET, own_ip(11 + n).c_str(), &a.sin_addr);
	return a;
}

std::uint32_t ip_of(unsigned n)
{
	return ntohl(place_of(n, 0).sin_addr.s_addr);
}

class fabric_device : public testing::Test
{
protected:
	fabric_device()
	{
		the_fabric = &wire;
		wire.enemy_ip = ip_of(9);
		wire.to_enemy = [](connection &, unsigned, const passage &) {};
	}
	~fabric_device() override { the_fabric = nullptr; }

	fake_network wire;
};

// ---- alone, with the core of the library ------------------------------------------------------

TEST_F(fabric_device, an_ip_of_the_host_that_is_not_the_devices_is_foreign)
{
	wire.foreign_ip = ip_of(1);
	domain d({"fabric", {{"provider", "fake"}}});
	transfer_machine foreign(d), tm(d);
	EXPECT_EQ(foreign.start(text_of(1)), -ENOENT);
	EXPECT_EQ(foreign.state(), tm_state::failed);
	EXPECT_EQ(tm.start(text_of(2)), 0);
}

// A provider with local keys, and a limit of locked memory.
TEST_F(fabric_device, buffers_are_registered_when_they_or_a_machine_are_made_and_at_no_other_time)
{
	domain d({"fabric", {{"provider", "fake"}, {"local_keys", "1"}, {"receives", "4"}}});
	std::vector<std::byte> memory(10 << 20);
	buffer big(d, memory.data(), memory.size());
	EXPECT_EQ(wire.registered, 0u);
	{
		transfer_machine tm(d);
		wire.lockable = memory.size() - 1;
		EXPECT_EQ(tm.start(text_of(1)), -ENOMEM);
	}
	wire.lockable = memory.size();
	transfer_machine tm(d);
	ASSERT_EQ(tm.start(text_of(2)), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	wire.lockable = 1 << 20;
	EXPECT_THROW(buffer(d, memory.data(), memory.size()), std::system_error);
	buffer small(d, memory.data(), 4096);
	const unsigned before = wire.registered;
	operation o;
	buffer_callback ignored([](const buffer_event &) {});
	o.queue = queue_type::passive_bulk_send;
	o.handler = &ignored;
	EXPECT_EQ(tm.add(big, o), 0);
	EXPECT_EQ(tm.add(small, o), 0);
	EXPECT_EQ(wire.registered, before);
	ASSERT_EQ(tm.stop(true), 0);
	ASSERT_EQ(tm.wait(tm_state::stopped), 0);
}

// How a machine notices: through its listener, or through its next call to the device.
class fabric_device_goes : public fabric_device, public testing::WithParamInterface<const char *>
{
protected:
	bool by(const char *how) const { return std::string(GetParam()) == how; }
};

TEST_P(fabric_device_goes, and_every_operation_ends_once)
{
	struct : buffer_handler {
		void on_buffer(const buffer_event &e) override
		{
			EXPECT_FALSE(e.queued);
			ended[e.buffer].push_back(e.status);
		}
		std::map<buffer *, std::vector<int>> ended;
	} handler;
	int status = 1;
	tm_callback told([&](const tm_event &e) {
		if (e.state != tm_state::started)
			status = e.status;
	});
	domain d({"fabric", {{"provider", "fake"}}});
	transfer_machine tm(d, &told);
	ASSERT_EQ(tm.deliver_synchronously(), 0);
	ASSERT_EQ(tm.start(text_of(1)), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	std::byte memory[5][64]{};
	buffer receive(d, memory[0], 64), passive(d, memory[1], 64), send(d, memory[2], 64),
		given_up(d, memory[3], 64), next(d, memory[4], 64);
	endpoint_ptr silent, another;
	ASSERT_EQ(tm.make_endpoint(text_of(9), silent), 0);
	ASSERT_EQ(tm.make_endpoint(own_ip(20) + "@tcp:12345:31:1", another), 0);
	operation o;
	o.handler = &handler;
	o.min_receive_size = 1;
	o.max_receive_msgs = 1;
	ASSERT_EQ(tm.add(receive, o), 0);
	o.queue = queue_type::passive_bulk_recv;
	ASSERT_EQ(tm.add(passive, o), 0);
	o.queue = queue_type::msg_send;
	o.length = 64;
	o.to = silent.get();
	ASSERT_EQ(tm.add(send, o), 0);
	ASSERT_EQ(tm.add(given_up, o), 0);
	EXPECT_EQ(tm.deliver_all(), 0u);
	if (by("listener"))
		wire.tell_gone = 1;
	else
		wire.gone = true;
	if (by("connect")) {
		o.to = another.get();
		ASSERT_EQ(tm.add(next, o), 0);
	}
	const auto end = clock::now() + 60s;
	while (tm.state() == tm_state::started && clock::now() < end)
		tm.deliver_all();
	ASSERT_EQ(tm.wait(tm_state::failed, end), 0);
	EXPECT_EQ(status, -ENODEV);
	while (tm.deliver_all())
		;
	std::vector<buffer *> all{&receive, &passive, &send, &given_up};
	if (by("connect"))
		all.push_back(&next);
	for (buffer *b : all) {
		EXPECT_EQ(handler.ended[b], std::vector{-ENODEV});
		EXPECT_FALSE(b->queued());
	}
	EXPECT_EQ(tm.add(next, o), -EBADFD);
}

INSTANTIATE_TEST_SUITE_P(known_by, fabric_device_goes, testing::Values("listener", "connect"),
			 [](const auto &i) { return std::string(i.param); });

// The status of a peer that the device cannot reach equals that of a removed device.
TEST_F(fabric_device, a_peer_out_of_its_reach_is_no_reason_to_give_up)
{
	domain d({"fabric", {{"provider", "fake"}}});
	transfer_machine tm(d);
	ASSERT_EQ(tm.deliver_synchronously(), 0);
	ASSERT_EQ(tm.start(text_of(1)), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	int status = 1;
	buffer_callback handler([&](const buffer_event &e) { status = e.status; });
	std::byte memory[64]{};
	buffer b(d, memory, sizeof(memory));
	endpoint_ptr to;
	ASSERT_EQ(tm.make_endpoint(text_of(3), to), 0);
	wire.out_of_reach = ip_of(3);
	operation o;
	o.queue = queue_type::msg_send;
	o.length = sizeof(memory);
	o.to = to.get();
	o.handler = &handler;
	ASSERT_EQ(tm.add(b, o), 0);
	for (const auto end = clock::now() + 60s; status == 1 && clock::now() < end;)
		tm.deliver_all();
	EXPECT_EQ(status, -ECONNREFUSED);
	EXPECT_EQ(tm.state(), tm_state::started);
}

// ---- with the naive core ------------------------------------------------------------------------

class fabric_naive : public fabric_device
{
protected:
	fabric_naive()
	{
		options.eager = 256;
		options.receives = 16;
		options.window = 8;
		options.max_message = 100000;
		options.parked = 100000;
		options.hold = 1s;
		options.max_links = 8;
	}
	void make(unsigned n)
	{
		core[n] = std::make_unique<naive_core>(n, clock);
		core[n]->machine =
			std::make_unique<fabric::machine>(*core[n], provider, options, keys);
		ASSERT_EQ(core[n]->machine->prepare(at(n)), 0);
		ASSERT_EQ(core[n]->machine->start(at(n)), 0);
	}
	void run(unsigned n)
	{
		while (!core[n]->is_failed() &&
		       (core[n]->machine->progress(64) || !core[n]->machine->arm()))
			;
		core[n]->settle();
	}
	std::shared_ptr<connection> only_connection()
	{
		return wire.connections.size() == 1 ? wire.connections[0] : nullptr;
	}

	/// The enemy, at 9, connects to core[0].
	void greet()
	{
		fabric::hello h;
		h.from = at(9);
		h.to = fabric::digest(at(0));
		h.link = 1;
		h.cookie = 7;
		h.window = 8;
		h.eager = 256;
		const auto bytes = fabric::encode(h);
		std::vector<u8> greeting(bytes.size());
		std::memcpy(greeting.data(), bytes.data(), bytes.size());
		enemy = wire.connect(place_of(9, 999),
				     place_of(0, fabric::ports_of(at(0)).ports[0]), greeting,
				     nullptr);
		ASSERT_TRUE(enemy);
		run(0);
		ASSERT_TRUE(fabric::decode(std::as_bytes(std::span(enemy->answered)), answered));
	}
	/// By the enemy.
	void say(const fabric::control &m, unsigned credits = 0)
	{
		std::byte text[fabric::control::size_most];
		passage p;
		p.bytes.resize(fabric::encode(m, text));
		std::memcpy(p.bytes.data(), text, p.bytes.size());
		p.has_word = true;
		p.word = fabric::word::with(fabric::word::base(answered.link, answered.cookie),
					    fabric::kind::control, credits);
		enemy->ends[0].out.push_back(std::move(p));
		ASSERT_TRUE(wire.move(*enemy, 0));
		run(0);
	}

	std::shared_ptr<connection> enemy;
	fabric::hello answered;
	std::chrono::microseconds clock{1000000};
	fabric::provider provider{"fake"};
	fabric::options options;
	fabric::local_keys keys;
	std::unique_ptr<naive_core> core[2];
};

// Who fetches reads, or has the peer write.
class fabric_naive_either_way : public fabric_naive, public testing::WithParamInterface<bool>
{
};

// At each step of a large message and of a transfer both ways, the device of one machine goes:
// libfabric keeps nothing of either, and the other machine goes on.
TEST_P(fabric_naive_either_way, the_device_goes_at_any_moment)
{
	options.read = GetParam();
	constexpr std::size_t size = 5000;
	unsigned steps = 0;
	for (bool all_done = false; !all_done; steps++) {
		ASSERT_LT(steps, 1000u);
		for (unsigned n : {0u, 1u})
			make(n);
		std::multiset<int> ended[2];
		for (unsigned n : {0u, 1u})
			core[n]->on_end = [&, n](const naive_core::item &, int status,
						 std::size_t) { ended[n].insert(status); };
		const auto none = [](naive_core::item &) {};
		const auto to = core[0]->peer_at(at(1));
		core[1]->add(queue_type::msg_recv, size, 2, spi::no_peer, [](naive_core::item &i) {
			i.what.min_receive_size = 1;
			i.what.max_receive_msgs = 1;
		});
		core[0]->add(queue_type::msg_send, size, 3, to, none);
		for (const bool read : {true, false}) {
			const auto t = core[1]->add(read ? queue_type::passive_bulk_send
							 : queue_type::passive_bulk_recv,
						    size, 1, spi::no_peer, none);
			core[0]->add(read ? queue_type::active_bulk_recv
					  : queue_type::active_bulk_send,
				     size, 2, to, [&](naive_core::item &i) {
					     i.what.remote = t;
					     i.what.remote_key = core[1]->key(t);
				     });
		}
		for (unsigned done = 0; done < steps && !all_done; done++) {
			run(done & 1);
			bool moved = false;
			for (std::size_t c = 0; c < wire.connections.size() && !moved; c++)
				for (const unsigned side : {0u, 1u})
					moved = moved || wire.move(*wire.connections[c], side);
			all_done = !moved && core[0]->tokens().empty() && core[1]->tokens().empty();
		}
		fake_node *n = wire.listeners.at({ip_of(1), fabric::ports_of(at(1)).ports[0]});
		n->tell_error(&n->pep->pep.fid, FI_ENODEV);
		core[1]->machine->arm(); // the next progress() looks at the port
		run(1);
		EXPECT_TRUE(core[1]->is_failed());
		EXPECT_EQ(core[1]->failed_with(), -ENODEV);
		EXPECT_TRUE(n->regions.empty()) << "a peer may write";
		for (const spi::token t : core[1]->tokens()) {
			const naive_core::item &i = core[1]->at(t);
			EXPECT_EQ(i.out, 0u) << "a place was not given back";
		}
		for (const int status : ended[1])
			EXPECT_TRUE(status == 0 || status == -ENODEV) << status;
		core[1]->machine.reset();
		for (unsigned looks = 0; !core[0]->tokens().empty() && looks < 1000; looks++) {
			run(0);
			clock += 10ms;
			core[0]->machine->expire(core[0]->now());
		}
		EXPECT_TRUE(core[0]->tokens().empty()) << steps;
		EXPECT_FALSE(core[0]->is_failed());
		if (all_done) {
			EXPECT_EQ(ended[0], (std::multiset<int>{0, 0, 0}));
		}
		core[0]->machine.reset();
		wire.connections.clear();
	}
	EXPECT_GT(steps, 8u);
}

INSTANTIATE_TEST_SUITE_P(who, fabric_naive_either_way, testing::Bool(), [](const auto &i) {
	return std::string(i.param ? "reads" : "is_written_to");
});

// Peers that never take what they are sent must not use up what all peers share.
TEST_F(fabric_naive, one_peer_leaves_works_for_others)
{
	constexpr unsigned works = 1u << 16;
	make(0);
	const auto none = [](naive_core::item &) {};
	const auto fill = [&](unsigned peer) {
		const auto to = core[0]->peer_at(at(peer));
		unsigned n = 0;
		while (n < 2 * works && core[0]->add(queue_type::msg_send, 1, 1, to, none))
			n++;
		return n;
	};
	EXPECT_EQ(fill(9), works / 2);
	EXPECT_EQ(fill(8), works / 4);
	EXPECT_EQ(fill(7), works / 8);
	for (const spi::token t : core[0]->tokens())
		core[0]->cancel(t);
	EXPECT_TRUE(core[0]->tokens().empty());
	EXPECT_EQ(fill(8), works / 2) << "what has ended counts no more";
	for (const spi::token t : core[0]->tokens())
		core[0]->cancel(t);
}

// A peer names works that have ended, whose slots are in use again.
TEST_F(fabric_naive, numbers_of_works_come_again_late)
{
	constexpr unsigned generations = 8192, uses = 3 * generations, slots = 1u << 17;
	make(0);
	greet();
	std::vector<std::uint32_t> ids;
	wire.to_enemy = [&](connection &, unsigned, const passage &p) {
		fabric::control offer;
		ASSERT_TRUE(fabric::decode(std::as_bytes(std::span(p.bytes)), offer));
		ASSERT_EQ(offer.verb, fabric::control::verb::offer);
		ids.push_back(offer.id);
	};
	const auto done = [&](std::uint32_t id, int status, unsigned credits) {
		fabric::control m;
		m.verb = fabric::control::verb::done;
		m.peer = id;
		m.status = status;
		say(m, credits);
	};
	std::vector<int> ended;
	core[0]->on_end = [&](const naive_core::item &, int status, std::size_t) {
		ended.push_back(status);
	};
	const auto to = core[0]->peer_at(at(9));
	std::set<std::uint32_t> seen, seen_slots;
	for (unsigned n = 0; n < uses; n++) {
		const auto t =
			core[0]->add(queue_type::msg_send, 1000, 1, to, [](naive_core::item &) {});
		ASSERT_NE(t, 0u);
		ASSERT_TRUE(wire.move(*enemy, 1));
		ASSERT_EQ(ids.size(), n + 1);
		const std::uint32_t id = ids.back();
		ASSERT_NE(id, 0u);
		EXPECT_LE(id, fabric::word::id_mask);
		ASSERT_TRUE(seen.insert(id).second) << "it comes again after " << n << " works";
		seen_slots.insert(id % slots);
		for (const unsigned age : {1u, 2u, generations / 2, generations - 1})
			if (age <= n)
				done(ids[n - age], -EIO, 0);
		ASSERT_TRUE(core[0]->has(t)) << "the end of another";
		done(id, -ENOSPC, 1);
		ASSERT_FALSE(core[0]->has(t));
		ASSERT_TRUE(enemy->ends[1].open);
	}
	EXPECT_EQ(ended, std::vector<int>(uses, -ENOSPC));
	EXPECT_LT(seen_slots.size(), 1000u) << "slots come again";
}

// A put that is taken back at once costs its sender nothing, and this side a grant.
TEST_F(fabric_naive, grants_that_a_peer_does_not_take_are_bounded)
{
	make(0);
	greet();
	const auto t = core[0]->add(queue_type::passive_bulk_recv, 64, 1, spi::no_peer,
				    [](naive_core::item &) {});
	fabric::control put, cancel;
	put.verb = fabric::control::verb::put;
	put.length = 8;
	put.token = t;
	put.key = core[0]->key(t);
	cancel.verb = fabric::control::verb::cancel;
	unsigned n = 0;
	for (; enemy->ends[1].open && n < 2000; n++) {
		put.id = cancel.id = n + 1;
		say(put);
		if (enemy->ends[1].open)
			say(cancel);
	}
	EXPECT_LT(n, 2000u);
	EXPECT_GT(n, 1000u) << "one that is late with its reading keeps its link";
}

} // namespace
