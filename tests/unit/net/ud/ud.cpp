// SPDX-License-Identifier: MIT
// Parts of the ud transport by themselves: the table of tokens, pages of a buffer, tags; the
// resolver against machines that exist, restarted, moved or never existed; and a machine's
// limits.
#include <array>
#include <atomic>
#include <gtest/gtest.h>
#include <iterator>
#include <list>
#include <map>
#include <poll.h>
#include <random>
#include <set>
#include <thread>
#include <unistd.h>

#include "coop/net.hpp"
#include "tests/lib/own_ip.hpp"
#include "userland/net/ud/pages.hpp"
#include "userland/net/ud/resolver.hpp"
#include "userland/net/ud/sessions.hpp"
#include "userland/net/ud/token_map.hpp"

using namespace coop::net;
using namespace coop::net::ud;

namespace
{

TEST(TokenMap, DoesWhatAMapDoes)
{
	token_map m(200);
	std::map<spi::token, std::uint32_t> reference;
	std::mt19937_64 random(1);
	for (std::uint32_t i = 0; i < 100000; i++) {
		// Few different tokens, so that they repeat; near each other, so that they
		// collide.
		const spi::token t = 1 + random() % 300;
		const auto it = reference.find(t);
		ASSERT_EQ(m.find(t), it == reference.end() ? token_map::none : it->second);
		if (it != reference.end()) {
			m.erase(t);
			reference.erase(it);
		} else if (reference.size() < 200) {
			m.insert(t, i);
			reference[t] = i;
		}
	}
	for (const auto &[t, v] : reference)
		EXPECT_EQ(m.find(t), v);
	EXPECT_EQ(m.find(0), token_map::none);
}

// Against the obvious: a list.
TEST(Sessions, TheOneUsedLongestAgoGoesFirst)
{
	sessions all;
	struct {
		sessions::position at = 0;
		std::uint32_t chan = 0;
		bool busy = false;
	} known[20];
	std::list<std::uint32_t> line; // idle chans
	std::set<std::uint32_t> strangers;
	std::uint32_t next = 0;
	std::mt19937 random(1);
	for (int step = 0; step < 100000; step++) {
		const auto n = static_cast<spi::peer_number>(random() % std::size(known));
		auto &k = known[n];
		switch (random() % 8) {
		case 0:
			line.push_back(++next);
			strangers.insert(next);
			all.add_stranger(next);
			all.add_stranger(next);
			break;
		case 1: // its own session, or the oldest stranger's
			line.remove(k.chan);
			k.chan = strangers.empty() || random() % 2 ? ++next : *strangers.begin();
			line.remove(k.chan);
			strangers.erase(k.chan);
			all.own(k.at, k.chan, n, !k.busy);
			if (!k.busy)
				line.push_back(k.chan);
			break;
		case 2:
			k.busy = true;
			line.remove(k.chan);
			all.busy(k.at);
			break;
		case 3:
			k.busy = false;
			line.remove(k.chan);
			if (k.chan)
				line.push_back(k.chan);
			all.idle(k.at);
			break;
		case 4:
			if (k.chan && !k.busy) {
				line.remove(k.chan);
				line.push_back(k.chan);
			}
			all.used(k.at);
			break;
		case 5:
			line.remove(k.chan);
			k.chan = 0;
			all.drop(k.at);
			break;
		default: {
			const sessions::session s = all.take_oldest();
			ASSERT_EQ(s.chan, line.empty() ? 0 : line.front()) << step;
			if (line.empty())
				break;
			line.pop_front();
			ASSERT_EQ(strangers.erase(s.chan) == 1, s.peer == spi::no_peer);
			if (s.peer != spi::no_peer) {
				ASSERT_EQ(known[s.peer].chan, s.chan);
				known[s.peer].chan = known[s.peer].at = 0;
			}
		}
		}
	}
	EXPECT_GT(next, 1000u);
}

TEST(Identity, AnIPv4AddressIsFoundInMappedOnesAlone)
{
	std::array<std::uint8_t, 16> ip{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 200, 72, 49, 14};
	EXPECT_EQ(ipv4_of(ip), 200u << 24 | 72u << 16 | 49u << 8 | 14u);
	for (unsigned i = 0; i < 12; i++) {
		ip[i] ^= 1;
		EXPECT_EQ(ipv4_of(ip), 0u) << "byte " << i;
		ip[i] ^= 1;
	}
}

TEST(Identity, SurvivesATagAndAnAddress)
{
	address a, own;
	ASSERT_EQ(parse("10.72.49.14@o2ib3:12345:63:4095", a), 0);
	ASSERT_EQ(parse("10.1.2.3@o2ib3:12345:31:7", own), 0);
	const identity i = identity::of(a);
	EXPECT_EQ(i.on(own), a);
	EXPECT_EQ(identity::unpack(i.packed()), i);
	EXPECT_LT(i.packed(), 1ull << 50);
	EXPECT_EQ(identity::unpack(make_tag(tag_kind::bulk, i) & ((1ull << 50) - 1)), i);
	const asker by = asker::unpack(asker{i, 4095}.packed());
	EXPECT_EQ(by.who, i);
	EXPECT_EQ(by.shift, 4095u);
	EXPECT_EQ(identity::unpack(asker{i, 4095}.packed()), i) << "as machines without shifts do";
}

TEST(Pages, WhatIsBehindTheEndHasMemoryOfItsOwn)
{
	std::vector<std::byte> x(5000), y(3000), beyond(page_bytes);
	const segment list[] = {{x.data(), x.size()}, {y.data(), y.size()}};
	const std::uint32_t keys[] = {7, 9};
	const keyed_memory m{{list, 8000, nullptr}, keys};
	coop::ud::sge out[8];
	std::uint32_t n = 0;
	ASSERT_TRUE(page_pieces(m, 0, 8000, beyond.data(), 4096, page_bytes, out, 8, n));
	ASSERT_EQ(n, 3u);
	EXPECT_EQ(out[0].addr, x.data() + 4096);
	EXPECT_EQ(out[0].length, 904u);
	EXPECT_EQ(out[1].addr, y.data());
	EXPECT_EQ(out[1].length, 3000u);
	EXPECT_EQ(out[2].addr, beyond.data() + 3904);
	EXPECT_EQ(out[2].length, 192u);
	EXPECT_EQ(out[0].key, 7u);
	EXPECT_EQ(out[1].key, 9u);
	EXPECT_EQ(out[2].key, 0u) << "that of who owns it is looked up";
	n = 0;
	EXPECT_FALSE(page_pieces(m, 0, 8000, beyond.data(), 4096, page_bytes, out, 2, n));
	n = 0;
	ASSERT_TRUE(page_pieces(m, 0, 8000, beyond.data(), 2 * page_bytes, 100, out, 8, n));
	ASSERT_EQ(n, 1u);
	EXPECT_EQ(out[0].addr, beyond.data());
}

// Machines of this process on their own address.
struct Resolver : testing::Test {
	static constexpr std::array<std::uint8_t, 16> key{1};
	const std::uint32_t ip =
		127u << 24 | 77u << 16 | static_cast<std::uint32_t>(getpid() % 65000 + 1);
	resolver asker{key, {ip, 1}};
	std::uint64_t now = 1;

	coop_chan_peer_addr somewhere(std::uint32_t qpn)
	{
		coop_chan_peer_addr a{};
		a.command.qpn = qpn;
		a.command.qkey = 5;
		a.command.lid = 6;
		a.data_qpn = qpn + 1;
		a.data_qkey = 7;
		return a;
	}
	// Time advances when nothing moves. In between the kernel may deliver what was sent.
	bool result(resolver::result &r, std::initializer_list<resolver *> others)
	{
		for (int i = 0; i < 2000; i++) {
			bool any = asker.progress(now);
			for (resolver *o : others)
				any |= o->progress(now);
			if (asker.next(r))
				return true;
			if (any)
				continue;
			std::this_thread::sleep_for(std::chrono::milliseconds(1));
			now += 5000;
			asker.expire(now);
		}
		return false;
	}
};

TEST_F(Resolver, TellsWhereAMachineIs)
{
	resolver there(key, {ip, 2});
	there.answer_with(somewhere(100), 42);
	asker.ask(9, {ip, 2}, now);
	resolver::result r;
	ASSERT_TRUE(result(r, {&there}));
	EXPECT_EQ(r.number, 9u);
	EXPECT_EQ(r.status, 0);
	EXPECT_EQ(r.instance, 42u);
	EXPECT_EQ(r.where.command.qpn, 100u);
	EXPECT_EQ(r.where.command.lid, 6);
	EXPECT_EQ(r.where.data_qpn, 101u);
	EXPECT_FALSE(asker.asking());
}

TEST_F(Resolver, FindsTheCandidateThatWasFree)
{
	// 8192 apart: the same four ports.
	resolver first(key, {ip, 2}), second(key, {ip, 2 + 8192}), third(key, {ip, 2 + 2 * 8192});
	first.answer_with(somewhere(100), 1);
	second.answer_with(somewhere(200), 2);
	third.answer_with(somewhere(300), 3);
	asker.ask(1, {ip, 2 + 2 * 8192}, now);
	resolver::result r;
	ASSERT_TRUE(result(r, {&first, &second, &third}));
	EXPECT_EQ(r.status, 0);
	EXPECT_EQ(r.where.command.qpn, 300u);
}

TEST_F(Resolver, NobodyThereIsToldAtOnce)
{
	asker.ask(1, {ip, 3}, now);
	resolver::result r;
	ASSERT_TRUE(result(r, {}));
	EXPECT_EQ(r.status, -ECONNREFUSED);
	// Another machine at the first port.
	resolver other(key, {ip, 3 + 8192});
	other.answer_with(somewhere(100), 1);
	asker.ask(2, {ip, 3}, now);
	ASSERT_TRUE(result(r, {&other}));
	EXPECT_EQ(r.status, -ECONNREFUSED);
}

TEST_F(Resolver, SilenceEndsAndForgersAreNotHeard)
{
	resolver deaf(key, {ip, 4}), forger({2}, {ip, 5});
	forger.answer_with(somewhere(66), 6);
	resolver::result r;
	asker.ask(1, {ip, 4}, now); // it does not answer yet
	ASSERT_TRUE(result(r, {&deaf}));
	EXPECT_EQ(r.status, -EHOSTUNREACH);
	asker.ask(2, {ip, 5}, now);
	ASSERT_TRUE(result(r, {&forger}));
	EXPECT_EQ(r.status, -EHOSTUNREACH);
	EXPECT_GT(forger.stats().malformed, 0u);
	EXPECT_FALSE(asker.asking());
	EXPECT_EQ(asker.deadline(), ~0ull);
}

TEST_F(Resolver, WhoIsForgottenGetsNoResult)
{
	resolver there(key, {ip, 6});
	there.answer_with(somewhere(100), 1);
	asker.ask(1, {ip, 6}, now);
	asker.forget(1);
	asker.ask(2, {ip, 6}, now);
	resolver::result r;
	ASSERT_TRUE(result(r, {&there}));
	EXPECT_EQ(r.number, 2u);
	while (there.progress(now) || asker.progress(now))
		;
	EXPECT_FALSE(asker.next(r));
}

// An error that a send has taken is still in the socket's queue, and wakes a thread that waits for
// the descriptor until someone reads it.
TEST_F(Resolver, LeavesNoErrorBehind)
{
	resolver deaf(key, {ip, 8});
	asker.ask(1, {ip, 7}, now);
	asker.ask(2, {ip, 8}, now);
	asker.forget(1);
	asker.forget(2);
	pollfd p{asker.fd(), POLLIN, 0};
	ASSERT_EQ(poll(&p, 1, 0), 1) << "the host has refused the first port";
	while (asker.progress(now))
		;
	EXPECT_EQ(poll(&p, 1, 0), 0);
}

// Messages do not carry the network, so a peer could not say which of the two it means.
TEST(UdMachine, ThereIsOneOfThoseThatDifferInTheNetworkAlone)
{
	domain d({"ud", {}});
	transfer_machine one(d), other(d), third(d);
	ASSERT_EQ(one.start(own_ip(7) + "@tcp:12345:31:1"), 0);
	EXPECT_EQ(other.start(own_ip(7) + "@tcp1:12345:31:1"), -EADDRINUSE);
	EXPECT_EQ(third.start(own_ip(7) + "@o2ib:12345:31:2"), 0);
}

// The add of an operation refuses what the window cannot hold; limits() tells it before.
TEST(UdMachine, RefusesWhatTheWindowCannotHold)
{
	constexpr std::size_t most = 32 * (512 - 120);
	class : public buffer_handler
	{
		void on_buffer(const buffer_event &) override
		{
			EXPECT_TRUE(may_end) << "of what was refused";
		}

	public:
		std::atomic<bool> may_end = false;
	} handler;
	const std::string address = own_ip(8) + "@tcp:12345:31:";
	domain d({"ud", {{"window", "64"}, {"mtu", "512"}}});
	EXPECT_EQ(d.limits().max_message, most);
	std::vector<std::byte> memory(most + 1);
	buffer b(d, memory.data(), memory.size());
	transfer_machine tm(d);
	ASSERT_EQ(tm.start(address + '1'), 0);
	ASSERT_EQ(tm.wait(tm_state::started), 0);
	endpoint_ptr to;
	ASSERT_EQ(tm.make_endpoint(address + '2', to), 0);
	operation o;
	o.queue = queue_type::msg_send;
	o.length = most + 1;
	o.to = to.get();
	o.handler = &handler;
	EXPECT_EQ(tm.add(b, o), -EMSGSIZE);
	EXPECT_EQ(tm.queued(queue_type::msg_send), 0u);
	handler.may_end = true;
	o.length = most;
	EXPECT_EQ(tm.add(b, o), 0);
}

TEST(UdMachine, TheParameterIsTheLimitWhereTheWindowHoldsMore)
{
	EXPECT_EQ(domain({"ud", {{"max_message", "8m"}}}).limits().max_message,
		  2048u * (4096 - 120));
	EXPECT_EQ(domain({"ud", {{"mtu", "1024"}}}).limits().max_message, 1u << 20);
	EXPECT_EQ(domain({"ud", {{"mtu", "256"}}}).limits().max_message, 2048u * (256 - 120));
}

// Two machines, the first of this thread. The second can fall silent.
class couple
{
public:
	couple(unsigned last, std::vector<std::pair<std::string, std::string>> parameters) :
		d_({"ud", std::move(parameters)}),
		out_(d_, memory_[0].data(), most),
		in_(d_, memory_[1].data(), most),
		shown_(d_, memory_[2].data(), most),
		word_(d_, memory_[3].data(), most),
		one_(d_),
		other_(d_)
	{
		const std::string address = own_ip(last) + "@tcp:12345:31:";
		for (transfer_machine *tm : {&one_, &other_}) {
			if (tm == &one_) {
				EXPECT_EQ(tm->deliver_synchronously(), 0);
			}
			EXPECT_EQ(tm->start(address + (tm == &one_ ? '1' : '2')), 0);
			EXPECT_EQ(tm->wait(tm_state::started), 0);
		}
		EXPECT_EQ(one_.make_endpoint(address + '2', to_), 0);
	}

	~couple() { go_on(); }

	// Sends from the first to the second; returns the final status.
	int send(std::size_t length) { return end_of(out_, message(length)); }

	// From here on the second is busy with a message.
	void stall()
	{
		received_.busy = true;
		operation o = message(8);
		o.handler = &last_;
		EXPECT_EQ(one_.add(word_, o), 0);
		for (const auto end = clock::now() + std::chrono::seconds(60);
		     !received_.there && clock::now() < end;)
			(void)one_.deliver_all();
		EXPECT_TRUE(received_.there);
	}
	void go_on()
	{
		received_.busy = false;
		received_.busy.notify_all();
	}

	// The first reads the second's memory.
	int read(std::size_t length)
	{
		operation p;
		p.queue = queue_type::passive_bulk_send;
		p.length = length;
		p.handler = &shown_event_;
		EXPECT_EQ(other_.add(shown_, p), 0);
		const std::vector<std::byte> text(shown_.descriptor().begin(),
						  shown_.descriptor().end());
		operation o;
		o.queue = queue_type::active_bulk_recv;
		o.descriptor = text;
		return end_of(out_, o);
	}

private:
	static constexpr std::size_t most = 1u << 20;

	static std::array<std::vector<std::byte>, 4> filled()
	{
		std::array<std::vector<std::byte>, 4> all;
		all.fill(std::vector<std::byte>(most));
		return all;
	}

	struct ended final : buffer_handler {
		void on_buffer(const buffer_event &e) override
		{
			over = !e.queued;
			status = e.status;
		}
		bool over = false;
		int status = 1;
	};
	struct receiver final : buffer_handler {
		void on_buffer(const buffer_event &) override
		{
			there = busy.load();
			busy.wait(true);
		}
		std::atomic<bool> busy = false, there = false;
	};

	operation message(std::size_t length)
	{
		if (!taken_) {
			operation r;
			r.queue = queue_type::msg_recv;
			r.min_receive_size = 8192;
			r.max_receive_msgs = 100;
			r.handler = &received_;
			EXPECT_EQ(other_.add(in_, r), 0);
			taken_ = true;
		}
		operation o;
		o.queue = queue_type::msg_send;
		o.length = length;
		o.to = to_.get();
		return o;
	}

	// No deadline: the transport must notice. The one here is for hangs.
	int end_of(buffer &b, operation o)
	{
		sent_ = {};
		o.handler = &sent_;
		EXPECT_EQ(one_.add(b, o), 0);
		const auto late = coop::net::clock::now() + std::chrono::seconds(60);
		while (!sent_.over && coop::net::clock::now() < late) {
			(void)one_.deliver_all();
			std::this_thread::yield();
		}
		return sent_.status;
	}

	domain d_;
	std::array<std::vector<std::byte>, 4> memory_ = filled();
	buffer out_, in_, shown_, word_;
	ended sent_, last_, shown_event_;
	receiver received_;
	bool taken_ = false;
	transfer_machine one_, other_;
	endpoint_ptr to_;
};

TEST(UdMachine, APeerThatFallsSilentIsNoDeadline)
{
	couple c(9, {{"tries", "9"}});
	ASSERT_EQ(c.send(8), 0);
	c.stall();
	EXPECT_EQ(c.send(8), -EHOSTDOWN);
	c.go_on();
	EXPECT_EQ(c.send(8), 0) << "it is asked again";
}

TEST(UdMachine, BulkOfAPeerThatFallsSilentIsNoDeadline)
{
	// Either rpc/chan notices, or no data comes for too long.
	couple dies(10, {{"tries", "9"}, {"bulk_patience", "3600000"}});
	ASSERT_EQ(dies.send(8), 0);
	dies.stall();
	EXPECT_EQ(dies.read(100000), -EHOSTDOWN);
	couple waits(11, {{"tries", "250"}, {"bulk_patience", "100"}});
	ASSERT_EQ(waits.send(8), 0);
	waits.stall();
	EXPECT_EQ(waits.read(100000), -EHOSTDOWN);
}

// Short datagrams pass, so the peer lives; the status blames the path.
TEST(UdMachine, APathThatTakesNoLongDatagramsHasAStatusOfItsOwn)
{
	couple c(12, {{"test_longest", "1000"}});
	ASSERT_EQ(c.send(8), 0);
	EXPECT_EQ(c.send(8000), -ECOMM);
	EXPECT_EQ(c.send(8), 0) << "tiny ones go on";
	EXPECT_EQ(c.send(800), 0) << "and so does all that fits";
}

TEST(UdMachine, BulkOnAPathThatTakesNoLongDatagramsHasTheSameStatus)
{
	couple c(13, {{"test_longest", "1000"}, {"bulk_patience", "20000"}});
	EXPECT_EQ(c.read(100000), -ECOMM);
}

class Noting : public buffer_handler
{
	void on_buffer(const buffer_event &e) override
	{
		if (!e.queued) {
			status = e.status;
			ended++;
		}
	}

public:
	bool after(unsigned n) const
	{
		const auto end = clock::now() + std::chrono::seconds(30);
		while (ended < n && clock::now() < end)
			std::this_thread::yield();
		return ended >= n;
	}
	std::atomic<unsigned> ended{0};
	std::atomic<int> status{0};
};

// It has fewer sessions than peers: the one least recently heard makes room, and comes again.
TEST(UdMachine, MoreThanItHasPlacesForComeInTurn)
{
	const std::string address = own_ip(9) + "@tcp:12345:31:";
	domain few({"ud", {{"peers", "6"}}}), d({"ud", {}});
	std::vector<std::byte> memory(1 << 16);
	buffer in(few, memory.data(), memory.size()), out(d, memory.data(), 8);
	Noting received, sent;
	transfer_machine to(few);
	ASSERT_EQ(to.start(address + '1'), 0);
	ASSERT_EQ(to.wait(tm_state::started), 0);
	operation o;
	o.queue = queue_type::msg_recv;
	o.min_receive_size = 8;
	o.max_receive_msgs = 1000;
	o.handler = &received;
	ASSERT_EQ(to.add(in, o), 0);
	std::list<transfer_machine> from;
	unsigned n = 0;
	for (unsigned round = 0; round < 2; round++)
		for (unsigned i = 0; i < 16; i++) {
			if (!round) {
				ASSERT_EQ(from.emplace_back(d).start(address + '*'), 0);
				ASSERT_EQ(from.back().wait(tm_state::started), 0);
			}
			transfer_machine &tm = *std::next(from.begin(), i);
			endpoint_ptr there;
			ASSERT_EQ(tm.make_endpoint(address + '1', there), 0);
			operation s;
			s.queue = queue_type::msg_send;
			s.length = 8;
			s.to = there.get();
			s.handler = &sent;
			ASSERT_EQ(tm.add(out, s), 0);
			ASSERT_TRUE(sent.after(++n)) << round << ' ' << i;
			ASSERT_EQ(sent.status, 0) << round << ' ' << i;
		}
	EXPECT_EQ(to.stats(queue_type::msg_recv).ok, n);
}

// Two messages have half arrived: both places come back when their buffer is wanted, long before
// the lost parts could arrive.
TEST(UdMachine, ABufferIsBackThoughMessagesAreHalfThere)
{
	constexpr std::size_t length = 6 << 20;
	const std::string address = own_ip(10) + "@tcp:12345:31:", large = "8388608";
	domain d({"ud", {{"max_message", large}}}),
		lossy({"ud",
		       {{"max_message", large}, {"test_drop", "500000"}, {"test_seed", "1"}}});
	std::vector<std::byte> memory(2 * length), text(length, std::byte{1});
	buffer in(d, memory.data(), memory.size());
	Noting received, sent;
	transfer_machine to(d);
	ASSERT_EQ(to.start(address + '1'), 0);
	ASSERT_EQ(to.wait(tm_state::started), 0);
	operation o;
	o.queue = queue_type::msg_recv;
	o.min_receive_size = length;
	o.max_receive_msgs = 2;
	o.handler = &received;
	ASSERT_EQ(to.add(in, o), 0);
	std::list<buffer> out;
	std::list<transfer_machine> from;
	for (unsigned n = 0; n < 2; n++) {
		transfer_machine &tm = from.emplace_back(lossy);
		ASSERT_EQ(tm.start(address + '*'), 0);
		ASSERT_EQ(tm.wait(tm_state::started), 0);
		endpoint_ptr there;
		ASSERT_EQ(tm.make_endpoint(address + '1', there), 0);
		operation s;
		s.queue = queue_type::msg_send;
		s.length = length;
		s.to = there.get();
		s.handler = &sent;
		ASSERT_EQ(tm.add(out.emplace_back(lossy, text.data(), length), s), 0);
	}
	const auto begun = [&](std::size_t at) {
		return *static_cast<const volatile std::byte *>(&memory[at]) == std::byte{1};
	};
	const auto end = clock::now() + std::chrono::seconds(60);
	while (!(begun(0) && begun(length)) && clock::now() < end)
		std::this_thread::yield();
	ASSERT_TRUE(begun(0) && begun(length));
	ASSERT_TRUE(to.del(in));
	ASSERT_TRUE(received.after(1));
	EXPECT_EQ(received.status, -ECANCELED);
	EXPECT_EQ(to.queued(queue_type::msg_recv), 0u);
	EXPECT_EQ(to.stats(queue_type::msg_recv).ok, 0u) << "nothing was waited for";
}

} // namespace
