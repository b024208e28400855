// SPDX-License-Identifier: MIT
// Machines with several rails (userland/net/ud/rail.hpp, peer_rails.hpp): all rails carry bulk
// data, one that dies under traffic costs no operation, whichever it is, and machines with and
// without rails understand each other. An address that a peer claims as its rail gets no data
// unless the peer is there.
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <gtest/gtest.h>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "coop/net.hpp"
#include "tests/lib/own_ip.hpp"
#include "tests/unit/net/ud/waiting.hpp"
#include "userland/net/ud/resolver.hpp"

using namespace coop::net;
using namespace std::chrono_literals;

namespace
{

using parameters = std::vector<std::pair<std::string, std::string>>;

// A machine and its memory.
struct side {
	static constexpr std::size_t size = 4u << 20;

	side(const std::string &address, const parameters &p) : d({"ud", p})
	{
		EXPECT_EQ(tm.start(address), 0);
		EXPECT_EQ(tm.wait(tm_state::started), 0);
	}
	operation bulk(queue_type q)
	{
		operation o;
		o.queue = q;
		o.length = size;
		o.handler = &event;
		event.ended = 0;
		return o;
	}
	std::uint64_t read_on(unsigned rail)
	{
		const auto all = tm.rails();
		return rail < all.size() ? all[rail].read_bytes : 0;
	}

	domain d;
	std::vector<std::byte> memory = std::vector<std::byte>(size);
	buffer b{d, memory.data(), size};
	noting event;
	transfer_machine tm{d};
};

// Two machines on addresses of their own.
class UdRails : public testing::Test
{
protected:
	const std::string first_ = own_ip(40), second_ = own_ip(41), third_ = own_ip(42);
	std::optional<side> one_, other_;
	std::mt19937_64 random_{1};

	static parameters with(parameters p, const std::string &rails)
	{
		if (!rails.empty())
			p.emplace_back("rails", rails);
		return p;
	}
	void start(const parameters &p, const std::string &rails, const std::string &others)
	{
		one_.emplace(first_ + "@tcp:12345:31:1", with(p, rails));
		other_.emplace(first_ + "@tcp:12345:31:2", with(p, others));
	}
	void fill(std::vector<std::byte> &m)
	{
		for (std::size_t i = 0; i < m.size(); i += 8) {
			const std::uint64_t r = random_();
			std::memcpy(&m[i], &r, 8);
		}
	}
	// The first reads the second's memory (`in`), or writes its own there.
	void transfer(bool in)
	{
		side &from = in ? *other_ : *one_, &to = in ? *one_ : *other_;
		fill(from.memory);
		ASSERT_EQ(
			other_->tm.add(other_->b, other_->bulk(in ? queue_type::passive_bulk_send
								  : queue_type::passive_bulk_recv)),
			0);
		const std::vector<std::byte> text(other_->b.descriptor().begin(),
						  other_->b.descriptor().end());
		operation o = one_->bulk(in ? queue_type::active_bulk_recv
					    : queue_type::active_bulk_send);
		o.descriptor = text;
		ASSERT_EQ(one_->tm.add(one_->b, o), 0);
		ASSERT_TRUE(until([&] { return one_->event.ended && other_->event.ended; }));
		ASSERT_EQ(one_->event.status, 0);
		ASSERT_EQ(other_->event.status, 0);
		ASSERT_EQ(from.memory, to.memory);
	}
	void transfers(unsigned n)
	{
		for (unsigned i = 0; i < n; i++)
			ASSERT_NO_FATAL_FAILURE(transfer(i % 2 == 0)) << i;
	}
	void expect_message()
	{
		endpoint_ptr to;
		ASSERT_EQ(one_->tm.make_endpoint(other_->tm.address(), to), 0);
		operation r = other_->bulk(queue_type::msg_recv);
		r.min_receive_size = 100000;
		r.max_receive_msgs = 1;
		ASSERT_EQ(other_->tm.add(other_->b, r), 0);
		operation o = one_->bulk(queue_type::msg_send);
		o.length = 100000;
		o.to = to.get();
		ASSERT_EQ(one_->tm.add(one_->b, o), 0);
		ASSERT_TRUE(until([&] { return one_->event.ended && other_->event.ended; }));
		ASSERT_EQ(one_->event.status, 0);
		ASSERT_EQ(other_->event.status, 0);
	}
};

} // namespace

TEST_F(UdRails, all_carry_bulk_data)
{
	start({}, second_ + ',' + third_, second_ + ',' + third_);
	// A rail that seemed dead on a busy machine pauses for a while.
	const auto carried = [](side &s) {
		std::uint64_t least = ~0ull, bytes = 0;
		for (const rail_stats &r : s.tm.rails()) {
			least = std::min({least, r.read_bytes, r.sent});
			bytes += r.read_bytes;
		}
		return least > bytes / 20;
	};
	for (unsigned i = 0; i < 8 && !(i && carried(*one_) && carried(*other_)); i++)
		ASSERT_NO_FATAL_FAILURE(transfers(8));
	for (side *s : {&*one_, &*other_}) {
		const auto all = s->tm.rails();
		ASSERT_EQ(all.size(), 3u);
		std::uint64_t bytes = 0;
		for (const rail_stats &r : all)
			bytes += r.read_bytes;
		EXPECT_GE(bytes, 4 * side::size);
		for (const rail_stats &r : all) {
			EXPECT_GT(r.read_bytes, bytes / 20) << r.name;
			EXPECT_GT(r.received, r.read_bytes) << r.name;
			EXPECT_GT(r.sent, bytes / 20) << r.name;
		}
	}
	EXPECT_NE(one_->tm.rails()[1].name.find(second_), std::string::npos);
}

TEST_F(UdRails, that_one_side_lacks_stay_unused)
{
	start({}, second_, "");
	ASSERT_NO_FATAL_FAILURE(transfers(4));
	EXPECT_EQ(one_->read_on(1), 0u);
	EXPECT_EQ(other_->tm.rails().size(), 1u);
	one_.reset();
	other_.reset();
	start({}, second_ + ',' + third_, second_);
	// The other's rails are known after a while.
	const auto end = coop::net::clock::now() + 60s;
	do
		ASSERT_NO_FATAL_FAILURE(transfers(4));
	while (!one_->read_on(1) && coop::net::clock::now() < end);
	EXPECT_GT(one_->read_on(1), 0u);
	EXPECT_EQ(one_->read_on(2), 0u);
}

// The wire of the second rail is cut under traffic.
TEST_F(UdRails, one_that_dies_costs_no_operation)
{
	start({{"test_cut", "1:2000"}}, second_, second_);
	const auto died = [](side &s) { return s.tm.rails()[1].failed > 0; };
	for (unsigned i = 0; i < 8 && !(died(*one_) && died(*other_)); i++)
		ASSERT_NO_FATAL_FAILURE(transfers(12));
	for (side *s : {&*one_, &*other_}) {
		EXPECT_GT(s->read_on(1), 0u) << "it died too early";
		EXPECT_GT(s->tm.rails()[1].failed, 0u) << "it never died";
	}
}

// The same of the first, by which messages go.
TEST_F(UdRails, the_first_dies_and_costs_no_operation_either)
{
	start({{"test_cut", "0:1000"}, {"tries", "12"}}, second_, second_);
	const auto failed = [&] {
		return one_->tm.rails()[0].failed + other_->tm.rails()[0].failed;
	};
	for (unsigned i = 0; i < 8 && !failed(); i++)
		ASSERT_NO_FATAL_FAILURE(transfers(12));
	EXPECT_GT(failed(), 0u) << "it never died";
	for (unsigned i = 0; i < 4; i++)
		ASSERT_NO_FATAL_FAILURE(expect_message()) << i;
	ASSERT_NO_FATAL_FAILURE(transfers(4));
}

TEST_F(UdRails, that_are_wrong_are_refused_with_the_reason)
{
	const auto refusal = [](const parameters &p) -> std::string {
		try {
			domain d({"ud", p});
		} catch (const std::system_error &e) {
			return e.what();
		}
		return {};
	};
	EXPECT_NE(refusal({{"rails", "rxe0"}}).find("rxe0"), std::string::npos);
	EXPECT_NE(refusal({{"rails", "192.0.2.1"}}).find("no address of this host"),
		  std::string::npos);
	EXPECT_NE(refusal({{"rails", "127.0.0.1,"}}), "");
	EXPECT_NE(refusal({{"rails", "127.0.0.1,127.0.0.1"}}), "");
	EXPECT_NE(refusal({{"rails", "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4"}}), "");
	EXPECT_NE(refusal({{"test_cut", "1"}}), "");
	EXPECT_EQ(refusal({{"rails", "127.0.0.1,127.0.0.2,127.0.0.3"}}), "");
	domain d({"ud", {{"rails", first_}}});
	transfer_machine tm(d);
	EXPECT_EQ(tm.start(first_ + "@tcp:12345:31:1"), -EINVAL) << "the machine's own";
}

// What resolvers say of rails.
class UdRailResolver : public testing::Test
{
protected:
	static constexpr std::array<std::uint8_t, 16> key{1};
	const std::uint32_t ip =
		127u << 24 | 78u << 16 | static_cast<std::uint32_t>(getpid() % 65000 + 1);
	ud::resolver asker{key, {ip, 1}};
	std::uint64_t now = 1;

	// Time advances when nothing moves. In between the kernel may deliver what was sent.
	bool result(ud::resolver::result &r, std::initializer_list<ud::resolver *> others)
	{
		for (int i = 0; i < 2000; i++) {
			bool any = asker.progress(now);
			for (ud::resolver *o : others)
				any |= o->progress(now);
			if (asker.next(r))
				return true;
			if (any)
				continue;
			std::this_thread::sleep_for(1ms);
			now += 5000;
			asker.expire(now);
		}
		return false;
	}
	static coop_chan_peer_addr somewhere(std::uint32_t qpn)
	{
		coop_chan_peer_addr a{};
		a.command.qpn = qpn;
		return a;
	}
};

TEST_F(UdRailResolver, ThereIsAListAndAnAnswerAtEachAddress)
{
	const ud::identity who{ip, 2};
	ud::resolver first(key, who), second(key, who, ip + 65536);
	first.answer_with(somewhere(7), 33);
	second.answer_with(somewhere(9), 33);
	ud::rail_list rails;
	rails.ip[rails.size++] = ip + 65536;
	first.answer_with_rails(rails);
	ud::resolver::result r{};
	asker.list(5, who, now);
	asker.ask(5, who, now); // beside each other
	for (int i = 0; i < 2; i++) {
		ASSERT_TRUE(result(r, {&first, &second}));
		EXPECT_EQ(r.number, 5u);
		EXPECT_EQ(r.status, 0);
		EXPECT_EQ(r.instance, 33u);
		if (!r.list) {
			EXPECT_EQ(r.where.command.qpn, 7u);
			continue;
		}
		ASSERT_EQ(r.rails.size, 1u);
		EXPECT_EQ(r.rails.ip[0], rails.ip[0]);
	}
	asker.ask(5, who, rails.ip[0], now);
	ASSERT_TRUE(result(r, {&first, &second}));
	EXPECT_EQ(r.status, 0);
	EXPECT_EQ(r.where.command.qpn, 9u);
	EXPECT_FALSE(asker.asking());
}

// A peer says that its rail is at another machine's address: that one does not confirm it.
TEST_F(UdRailResolver, AnotherMachineIsNoRail)
{
	ud::resolver third(key, {ip + 65536, 2});
	third.answer_with(somewhere(7), 33);
	ud::resolver::result r{};
	asker.ask(5, {ip, 2}, ip + 65536, now);
	ASSERT_TRUE(result(r, {&third}));
	EXPECT_EQ(r.status, -ECONNREFUSED);
}

TEST_F(UdRailResolver, AMachineWithoutRailsSaysSo)
{
	ud::resolver one(key, {ip, 2});
	one.answer_with(somewhere(7), 33);
	ud::resolver::result r{};
	asker.list(5, {ip, 2}, now);
	ASSERT_TRUE(result(r, {&one}));
	EXPECT_EQ(r.status, 0);
	EXPECT_EQ(r.rails.size, 0u);
	ud::resolver older(key, {ip, 3}); // does not answer such a question
	asker.list(6, {ip, 3}, now);
	ASSERT_TRUE(result(r, {&older}));
	EXPECT_TRUE(r.list);
	EXPECT_EQ(r.status, -EHOSTUNREACH);
}
