// SPDX-License-Identifier: MIT
// hostile.cpp - operations with a peer that wants them to last forever, or to be another's.
#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <memory>
#include <poll.h>
#include <set>
#include <sys/socket.h>
#include <system_error>
#include <thread>
#include <unistd.h>

#include "coop/net.hpp"
#include "tests/conformance/fabric_enemy.hpp"
#include "tests/lib/own_ip.hpp"
#include "userland/net/descriptor.hpp"
#include "userland/net/fabric/datagram_port.hpp"
#include "userland/net/fabric/ports.hpp"

namespace
{

using namespace coop::net;
using namespace coop::net::fabric;
using namespace std::chrono_literals;

class ended final : public buffer_handler
{
public:
	void on_buffer(const buffer_event &e) override { status = e.status; }
	std::atomic<int> status{1}; // 1: not yet
};

std::string here(unsigned n)
{
	return own_ip(9) + "@tcp:12345:31:" + std::to_string(n);
}

class fabric_hostile_over : public testing::TestWithParam<const char *>
{
};

// The peer grants memory that cannot be written. tcp breaks the connection, after the last byte
// has left without error.
TEST_P(fabric_hostile_over, a_grant_that_cannot_be_used_ends_the_operation)
{
	address there;
	ASSERT_EQ(parse(here(1), there), 0);
	conformance::fabric_enemy enemy(GetParam(), there);
	domain d({"fabric", {{"provider", GetParam()}}});
	transfer_machine tm(d);
	ASSERT_EQ(tm.start(here(2)), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	std::vector<std::byte> memory(100000);
	buffer b(d, memory.data(), memory.size());
	ended e;
	operation o;
	o.queue = queue_type::msg_send;
	o.length = memory.size();
	o.handler = &e;
	endpoint_ptr to;
	ASSERT_EQ(tm.make_endpoint(there, to), 0);
	o.to = to.get();
	ASSERT_EQ(tm.add(b, o), 0);
	bool granted = false;
	for (const auto end = clock::now() + 30s; e.status == 1 && clock::now() < end;) {
		enemy.look();
		for (; !enemy.heard.empty(); enemy.heard.pop_front()) {
			const control offer = enemy.heard.front();
			if (offer.verb != control::verb::offer)
				continue;
			control c;
			c.verb = control::verb::grant;
			c.id = 77;
			c.peer = offer.id;
			c.count = 1;
			c.regions[0] = {16, memory.size(), 12345};
			enemy.say(c);
			granted = true;
		}
	}
	EXPECT_TRUE(granted);
	EXPECT_NE(e.status, 1) << "it is still queued";
	EXPECT_EQ(tm.state(), tm_state::started);
}

// A work rests for long after its operation. The next one that uses it must not tell the token and
// key of the one before.
TEST_P(fabric_hostile_over, an_offer_says_nothing_of_an_earlier_operation)
{
	address there;
	ASSERT_EQ(parse(here(1), there), 0);
	conformance::fabric_enemy enemy(GetParam(), there);
	domain d({"fabric", {{"provider", GetParam()}}});
	std::vector<std::byte> memory(100000);
	buffer b(d, memory.data(), memory.size());
	ended e;
	transfer_machine tm(d);
	ASSERT_EQ(tm.start(here(2)), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	core::descriptor what;
	what.transport = core::transport_id("fabric");
	what.size = memory.size();
	what.token = 1234;
	what.key = 5678;
	what.machine = there;
	std::array<std::byte, core::descriptor::fixed> text;
	ASSERT_EQ(core::encode(what, text.data()), text.size());
	operation read, send;
	endpoint_ptr to;
	ASSERT_EQ(tm.make_endpoint(there, to), 0);
	read.queue = queue_type::active_bulk_recv;
	read.descriptor = text;
	send.queue = queue_type::msg_send;
	send.length = memory.size();
	send.to = to.get();
	read.handler = send.handler = &e;
	const auto next = [&] {
		for (const auto end = clock::now() + 30s;
		     enemy.heard.empty() && clock::now() < end;)
			enemy.look();
		const control c = enemy.heard.empty() ? control() : enemy.heard.front();
		enemy.heard.clear();
		return c;
	};
	// The peer refuses each of them.
	const auto refused = [&] {
		e.status = 1;
		EXPECT_EQ(tm.add(b, read), 0);
		const control get = next();
		EXPECT_EQ(get.verb, control::verb::get);
		EXPECT_EQ(get.token, what.token);
		EXPECT_EQ(get.key, what.key);
		control done;
		done.verb = control::verb::done;
		done.peer = get.id;
		done.status = -ENOENT;
		EXPECT_TRUE(enemy.say(done));
		for (const auto end = clock::now() + 30s; e.status == 1 && clock::now() < end;)
			enemy.look();
		EXPECT_EQ(e.status, -ENOENT);
		return get.id;
	};
	constexpr std::uint32_t slots = 1u << 17;
	std::set<std::uint32_t> used;
	std::uint32_t id = refused();
	while (!HasFailure() && used.insert(id % slots).second)
		id = refused();
	EXPECT_GT(used.size(), 200u) << "an id comes back too soon";
	EXPECT_NE(id / slots, 1u) << "the work is another one now";
	ASSERT_EQ(tm.add(b, send), 0);
	const control offer = next();
	ASSERT_EQ(offer.verb, control::verb::offer);
	EXPECT_EQ(offer.token, 0u);
	EXPECT_EQ(offer.key, 0u);
}

// The greeting and the first question arrive together, and the machine may find the question
// first. It nearly always does if only this thread looks, and has looked so often that the
// machine's own thread no longer does.
TEST_P(fabric_hostile_over, who_asks_right_after_the_greeting_is_answered_and_may_go)
{
	domain d({"fabric", {{"provider", GetParam()}}});
	transfer_machine tm(d);
	ASSERT_EQ(tm.deliver_synchronously(), 0);
	ASSERT_EQ(tm.start(here(20)), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	for (unsigned n = 0; n < 1000; n++)
		tm.deliver_all();
	std::byte text[8]{};
	buffer b(d, text, sizeof(text));
	ended e;
	operation o;
	o.queue = queue_type::msg_send;
	o.length = sizeof(text);
	o.handler = &e;
	control get;
	get.verb = control::verb::get;
	get.id = 7;
	get.token = 12345;
	get.length = 8;
	get.count = 1;
	get.regions[0] = {16, 8, 12345};
	for (unsigned round = 0; round < 8; round++) {
		address there;
		ASSERT_EQ(parse(here(10 + round), there), 0);
		conformance::fabric_enemy enemy(GetParam(), there);
		endpoint_ptr to;
		ASSERT_EQ(tm.make_endpoint(there, to), 0);
		o.to = to.get();
		e.status = 1;
		ASSERT_EQ(tm.add(b, o), 0);
		bool asked = false, answered = false;
		for (const auto end = clock::now() + 30s;
		     (!answered || e.status == 1) && clock::now() < end;) {
			enemy.look();
			if (!asked && enemy.linked())
				asked = enemy.say(get);
			for (; !enemy.heard.empty(); enemy.heard.pop_front()) {
				const control c = enemy.heard.front();
				answered |= c.verb == control::verb::done && c.peer == get.id &&
					    c.status == -ENOENT;
			}
			tm.deliver_all();
		}
		EXPECT_TRUE(asked);
		ASSERT_TRUE(answered) << "round " << round;
		EXPECT_EQ(e.status, 0);
	}
}

// The peer gets the only buffer, and writes nothing.
TEST(fabric_hostile, a_place_that_is_not_filled_is_taken_back)
{
	address own, there;
	ASSERT_EQ(parse(here(3), own), 0);
	ASSERT_EQ(parse(here(4), there), 0);
	domain d({"fabric", {{"provider", "tcp"}, {"landing", "100"}}});
	transfer_machine tm(d), other(d);
	ASSERT_EQ(tm.start(here(4)), 0);
	ASSERT_EQ(other.start(here(5)), 0);
	for (transfer_machine *each : {&tm, &other})
		ASSERT_EQ(each->wait(tm_state::started), 0);
	std::vector<std::byte> memory(100000), text(64);
	buffer in(d, memory.data(), memory.size()), out(d, text.data(), text.size());
	ended received, sent;
	operation r;
	r.min_receive_size = 1;
	r.max_receive_msgs = 1;
	r.handler = &received;
	ASSERT_EQ(tm.add(in, r), 0);
	conformance::fabric_enemy enemy("tcp", own);
	ASSERT_TRUE(enemy.connect(there, enemy.greeting_of(there)));
	control offer;
	offer.verb = control::verb::offer;
	offer.id = 5;
	offer.length = memory.size();
	enemy.say(offer);
	const auto end = clock::now() + 240s;
	while (enemy.heard.empty() && clock::now() < end)
		enemy.look();
	ASSERT_FALSE(enemy.heard.empty());
	ASSERT_EQ(enemy.heard.front().verb, control::verb::grant);
	endpoint_ptr to;
	ASSERT_EQ(other.make_endpoint(here(4), to), 0);
	operation s;
	s.queue = queue_type::msg_send;
	s.length = text.size();
	s.to = to.get();
	s.handler = &sent;
	ASSERT_EQ(other.add(out, s), 0);
	while ((received.status == 1 || enemy.linked()) && clock::now() < end)
		enemy.look();
	EXPECT_EQ(received.status, 0);
	EXPECT_FALSE(enemy.linked());
}

// Over reliable datagrams no single link can be closed so that its peer can write no more. A peer
// that was granted memory and stands still costs all links, and none of the memory.
TEST(fabric_hostile, who_stands_still_with_memory_over_datagrams_is_left)
{
	address own, there;
	ASSERT_EQ(parse(here(40), own), 0);
	ASSERT_EQ(parse(here(41), there), 0);
	domain d({"fabric", {{"provider", "tcp;ofi_rxm"}}});
	transfer_machine tm(d), other(d);
	ASSERT_EQ(tm.start(here(41)), 0);
	ASSERT_EQ(other.start(here(43)), 0);
	for (transfer_machine *each : {&tm, &other})
		ASSERT_EQ(each->wait(tm_state::started), 0);
	std::vector<std::byte> memory(100000, std::byte{0xff}), text(64);
	buffer in(d, memory.data(), memory.size()), out(d, text.data(), text.size());
	ended e, sent;
	operation r;
	r.min_receive_size = 1;
	r.max_receive_msgs = 1;
	r.handler = &e;
	ASSERT_EQ(tm.add(in, r), 0);
	conformance::fabric_enemy enemy("tcp;ofi_rxm", own);
	ASSERT_TRUE(enemy.connect(there, enemy.greeting_of(there)));
	control offer;
	offer.verb = control::verb::offer;
	offer.id = 5;
	offer.length = memory.size();
	const auto end = clock::now() + 60s;
	while (!enemy.say(offer) && clock::now() < end)
		enemy.look();
	while (enemy.heard.empty() && clock::now() < end)
		enemy.look();
	ASSERT_FALSE(enemy.heard.empty());
	const control grant = enemy.heard.front();
	ASSERT_EQ(grant.verb, control::verb::grant);
	EXPECT_TRUE(in.queued());
	ASSERT_TRUE(tm.del(in));
	while (e.status == 1 && clock::now() < end)
		enemy.look();
	EXPECT_EQ(e.status, -ECANCELED);
	enemy.write(grant.regions[0], memory.size(), word::landed(enemy.link().base, grant.id));
	// The machine goes on with others, over its new end point.
	endpoint_ptr to;
	ASSERT_EQ(other.make_endpoint(here(41), to), 0);
	ended got;
	r.handler = &got;
	ASSERT_EQ(tm.add(in, r), 0);
	operation s;
	s.queue = queue_type::msg_send;
	s.length = text.size();
	s.to = to.get();
	s.handler = &sent;
	ASSERT_EQ(other.add(out, s), 0);
	while ((got.status == 1 || sent.status == 1) && clock::now() < end)
		enemy.look();
	EXPECT_EQ(sent.status, 0);
	EXPECT_EQ(got.status, 0);
	EXPECT_EQ(memory.back(), std::byte{0xff});
}

// Offers that the peer cancels at once cost its window until their turn comes: otherwise they
// would fill the queue, and pass for other offers.
TEST(fabric_hostile, offers_that_are_taken_back_count)
{
	address own, there;
	ASSERT_EQ(parse(here(30), own), 0);
	ASSERT_EQ(parse(here(31), there), 0);
	domain d({"fabric", {{"provider", "tcp"}}});
	transfer_machine tm(d);
	ASSERT_EQ(tm.start(here(31)), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	conformance::fabric_enemy enemy("tcp", own);
	ASSERT_TRUE(enemy.connect(there, enemy.greeting_of(there)));
	control offer, cancel;
	offer.verb = control::verb::offer;
	offer.length = 100000;
	cancel.verb = control::verb::cancel;
	const auto end = clock::now() + 60s;
	for (unsigned id = 1; enemy.linked() && clock::now() < end; id++) {
		offer.id = cancel.id = id % 1000 + 1;
		enemy.say(offer);
		enemy.say(cancel);
		enemy.look();
	}
	EXPECT_FALSE(enemy.linked());
	EXPECT_EQ(tm.state(), tm_state::started);
}

// The kernel knows of TCP connections of that host that neither end has closed.
bool any_connection(unsigned n)
{
	in_addr ip{};
	(void)::inet_pton(AF_INET, own_ip(n).c_str(), &ip);
	char local[16];
	std::snprintf(local, sizeof(local), "%08X:", ip.s_addr);
	std::ifstream table("/proc/self/net/tcp");
	std::string number, from, to, state, rest;
	while (table >> number >> from >> to >> state && std::getline(table, rest))
		if (from.starts_with(local) && state == "01") // established
			return true;
	return false;
}

// Each question costs an answer, and unread answers cost memory.
TEST(fabric_hostile, who_asks_and_does_not_read_is_left)
{
	address own, there;
	ASSERT_EQ(parse(here(6), own), 0);
	ASSERT_EQ(parse(here(7), there), 0);
	domain d({"fabric", {{"provider", "tcp"}}});
	transfer_machine tm(d);
	ASSERT_EQ(tm.start(here(7)), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	conformance::fabric_enemy enemy("tcp", own);
	ASSERT_TRUE(enemy.connect(there, enemy.greeting_of(there)));
	control put;
	put.verb = control::verb::put;
	put.id = 5;
	put.length = 8;
	put.token = 12345;
	const auto end = clock::now() + 240s;
	unsigned rounds = 0, said = 0;
	// libfabric hears that the machine has left after all unread data, and sometimes never:
	// it takes questions for a dead connection. The kernel knows.
	const auto left = [] { return !any_connection(9); };
	ASSERT_FALSE(left());
	// After a failed say() it waits, so that the machine gets its share of a busy processor,
	// but not for long.
	const auto ask = [&](unsigned times) {
		unsigned unheard = 0;
		rounds++;
		for (unsigned n = 0;
		     n < times && unheard < 10000 && enemy.linked() && clock::now() < end; n++) {
			if (enemy.say(put)) {
				said++;
				unheard = 0;
			} else {
				unheard++;
				std::this_thread::sleep_for(100us);
			}
			if (n % 16 == 0)
				enemy.look();
			if (n % 4096 == 0 && left())
				return;
		}
	};
	ask(5000);
	while (enemy.heard.size() < 5000 && enemy.linked() && clock::now() < end)
		enemy.look();
	EXPECT_EQ(enemy.heard.size(), 5000u) << "who reads is answered";
	// The network takes a hundred thousand or so. Further questions are lost: if the machine
	// was not there to read them, they were too few, and the test asks again.
	while (!left() && clock::now() < end) {
		enemy.reads = false;
		ask(400000);
		enemy.reads = true;
		const auto pause = std::min(end, clock::now() + 3s);
		while (!left() && clock::now() < pause) {
			enemy.look();
			enemy.heard.clear();
		}
	}
	EXPECT_TRUE(left()) << said << " questions in " << rounds << " rounds";
	EXPECT_EQ(tm.state(), tm_state::started);
}

// A service that listens and never sends.
class mute_service
{
public:
	explicit mute_service(const socket_address &at) :
		fd_(::socket(at.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0))
	{
		const int on = 1;
		::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
		const auto *name = reinterpret_cast<const sockaddr *>(&at.storage);
		if (::bind(fd_, name, static_cast<socklen_t>(at.size)) || ::listen(fd_, 8))
			throw std::system_error(errno, std::generic_category(), "mute service");
	}
	~mute_service()
	{
		::close(fd_);
		for (const int c : callers_)
			::close(c);
	}
	/// All calls so far; it keeps every caller's connection open.
	std::size_t calls()
	{
		for (int c; (c = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;)
			callers_.push_back(c);
		return callers_.size();
	}

private:
	int fd_;
	std::vector<int> callers_;
};

// Two of the ports are silent; that the peer was slow to reach one of them is no reason to
// continue with the other alone.
TEST(fabric_hostile, silent_ports_take_turns)
{
	address there;
	ASSERT_EQ(parse(here(3), there), 0);
	const port_list ports = ports_of(there);
	mute_service first(at_port(there, ports.ports[0]));
	auto second = std::make_unique<mute_service>(at_port(there, ports.ports[1]));
	domain d({"fabric", {{"provider", "tcp"}}});
	transfer_machine tm(d), late(d);
	ASSERT_EQ(tm.start(here(4)), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	std::vector<std::byte> memory(8), landing(8);
	buffer b(d, memory.data(), memory.size()), in(d, landing.data(), landing.size());
	ended sent, got;
	operation o;
	o.queue = queue_type::msg_send;
	o.length = memory.size();
	o.handler = &sent;
	endpoint_ptr to;
	ASSERT_EQ(tm.make_endpoint(there, to), 0);
	o.to = to.get();
	const auto begun = clock::now(), end = begun + 30s;
	// The machine gives up after 4.5 s, twice as long as two calls to the first port take.
	const auto too_slow = [&] { return clock::now() - begun > 4s; };
	ASSERT_EQ(tm.add(b, o), 0);
	while (first.calls() < 2 && sent.status == 1 && clock::now() < end)
		std::this_thread::sleep_for(1ms);
	const bool waits = sent.status == 1;
	second.reset();
	ASSERT_EQ(late.start(here(3)), 0);
	ASSERT_EQ(late.wait(tm_state::started), 0);
	if (too_slow())
		GTEST_SKIP() << "this machine is too busy";
	ASSERT_TRUE(waits);
	operation r;
	r.queue = queue_type::msg_recv;
	r.min_receive_size = 8;
	r.max_receive_msgs = 1;
	r.handler = &got;
	ASSERT_EQ(late.add(in, r), 0);
	while ((sent.status == 1 || (!sent.status && got.status == 1)) && clock::now() < end)
		std::this_thread::sleep_for(1ms);
	EXPECT_EQ(sent.status, 0);
	EXPECT_EQ(got.status, 0);
}

std::size_t open_descriptors()
{
	const std::filesystem::directory_iterator all("/proc/self/fd");
	return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// Foreign services hold the ports of the number that `*` would become.
TEST(fabric_hostile, ports_that_others_hold_are_passed_over_and_cost_nothing)
{
	const std::string any = here(0).substr(0, here(0).rfind(':') + 1);
	address highest;
	ASSERT_EQ(parse(any + "4095", highest), 0);
	const port_list ports = ports_of(highest);
	std::vector<std::unique_ptr<mute_service>> others;
	for (unsigned n = 0; n < ports.count; n++)
		others.push_back(std::make_unique<mute_service>(at_port(highest, ports.ports[n])));
	std::size_t before = 0;
	// The first run opens some for libfabric that stay open.
	for (int times = 0; times < 2; times++) {
		before = open_descriptors();
		domain d({"fabric", {{"provider", "tcp"}}});
		transfer_machine tm(d);
		ASSERT_EQ(tm.start(any + '*'), 0);
		EXPECT_EQ(tm.address().id, 4094u);
		ASSERT_EQ(tm.wait(tm_state::started), 0);
	}
	EXPECT_EQ(open_descriptors(), before);
}

// Only the program has a deadline; a peer that reports one is disconnected.
TEST(fabric_hostile, nobody_else_tells_of_a_deadline)
{
	address there;
	ASSERT_EQ(parse(here(7), there), 0);
	conformance::fabric_enemy enemy("tcp", there);
	domain d({"fabric", {{"provider", "tcp"}}});
	transfer_machine tm(d);
	ASSERT_EQ(tm.start(here(8)), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	std::vector<std::byte> memory(100000);
	buffer b(d, memory.data(), memory.size());
	ended e;
	operation o;
	o.queue = queue_type::msg_send;
	o.length = memory.size();
	o.handler = &e;
	endpoint_ptr to;
	ASSERT_EQ(tm.make_endpoint(there, to), 0);
	o.to = to.get();
	ASSERT_EQ(tm.add(b, o), 0);
	for (const auto end = clock::now() + 30s; e.status == 1 && clock::now() < end;) {
		enemy.look();
		for (; !enemy.heard.empty(); enemy.heard.pop_front()) {
			control c;
			c.verb = control::verb::done;
			c.peer = enemy.heard.front().id;
			c.status = -ETIMEDOUT;
			enemy.say(c);
		}
	}
	EXPECT_EQ(e.status, -EPROTO);
}

// The peer knows token and key, like every holder of the descriptor, and asks for the other
// direction, for an earlier machine's, for another's, or for more than there is.
TEST_P(fabric_hostile_over, what_is_not_offered_so_is_refused)
{
	address there, own;
	ASSERT_EQ(parse(here(40), there), 0);
	ASSERT_EQ(parse(here(41), own), 0);
	domain d({"fabric", {{"provider", GetParam()}}});
	transfer_machine tm(d);
	ASSERT_EQ(tm.start(here(41)), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	endpoint_ptr another;
	ASSERT_EQ(tm.make_endpoint(here(42), another), 0);
	std::vector<std::byte> memory[3];
	std::unique_ptr<buffer> buffers[3];
	core::descriptor known[3];
	ended e;
	for (unsigned i = 0; i < 3; i++) {
		memory[i].assign(4096, std::byte{7});
		buffers[i] = std::make_unique<buffer>(d, memory[i].data(), memory[i].size());
		operation o;
		o.queue = i ? queue_type::passive_bulk_send : queue_type::passive_bulk_recv;
		o.to = i == 2 ? another.get() : nullptr;
		o.handler = &e;
		ASSERT_EQ(tm.add(*buffers[i], o), 0);
		ASSERT_EQ(core::decode(buffers[i]->descriptor(), known[i]), 0);
	}
	const auto asks = [](enum control::verb v, const core::descriptor &of, std::uint64_t key,
			     std::size_t length) {
		control c;
		c.verb = v;
		c.token = of.token;
		c.key = key;
		c.length = length;
		if (v == control::verb::get) {
			c.count = 1;
			c.regions[0] = {16, length, 12345};
		}
		return c;
	};
	const core::descriptor &taken = known[0], &shown = known[1], &not_his = known[2];
	const std::pair<control, int> cases[] = {
		{asks(control::verb::get, taken, taken.key, 8), -EPERM},
		{asks(control::verb::put, shown, shown.key, 8), -EPERM},
		{asks(control::verb::get, not_his, not_his.key, 8), -EPERM},
		{asks(control::verb::get, shown, shown.key + 1, 8), -ENOENT},
		{asks(control::verb::put, taken, taken.key - 1, 8), -ENOENT},
		{asks(control::verb::get, shown, shown.key, 4097), -EFBIG},
		{asks(control::verb::put, taken, taken.key, 4097), -EFBIG},
	};
	conformance::fabric_enemy enemy(GetParam(), there);
	ASSERT_TRUE(enemy.connect(own, enemy.greeting_of(own)));
	std::uint32_t id = 0;
	for (const auto &[question, status] : cases) {
		control c = question;
		c.id = ++id;
		int answer = 1;
		bool asked = false;
		for (const auto end = clock::now() + 30s; answer == 1 && clock::now() < end;) {
			enemy.look();
			if (!asked && enemy.linked())
				asked = enemy.say(c);
			for (; !enemy.heard.empty(); enemy.heard.pop_front())
				if (enemy.heard.front().verb == control::verb::done &&
				    enemy.heard.front().peer == id)
					answer = enemy.heard.front().status;
		}
		EXPECT_EQ(answer, status) << id;
	}
	EXPECT_EQ(e.status, 1) << "one has ended";
	for (unsigned i = 0; i < 3; i++) {
		EXPECT_TRUE(buffers[i]->queued());
		EXPECT_EQ(memory[i], std::vector<std::byte>(4096, std::byte{7}));
	}
	ASSERT_EQ(tm.stop(true), 0);
	ASSERT_EQ(tm.wait(tm_state::stopped), 0);
}

INSTANTIATE_TEST_SUITE_P(on, fabric_hostile_over, testing::Values("tcp", "tcp;ofi_rxm"),
			 [](const auto &i) { return std::string(i.index ? "rxm" : "tcp"); });

} // namespace
