// SPDX-License-Identifier: MIT
// places.cpp - a peer that opens a session at another UDP port or LID: its record follows rpc/chan,
// and the answer that names the same place ends no session. And machines whose first words to each
// other do not fit: one is back at another port, or takes shorter datagrams.
#include <atomic>
#include <cerrno>
#include <gtest/gtest.h>
#include <optional>
#include <thread>
#include <vector>

#include "coop/net.hpp"
#include "tests/lib/own_ip.hpp"
#include "tests/unit/net/kernel/core.hpp"
#include "userland/net/ud/peers.hpp"

using namespace coop::net;
using namespace coop::net::ud;

namespace
{

/// An engine with one session, which it moves as the test says.
class one_session final : public message_engine
{
public:
	std::int64_t open(const coop_chan_peer_addr &a, spi::peer_number, identity,
			  std::uint64_t) override
	{
		if (!open_)
			where = a;
		open_ = true;
		return 1;
	}
	void admit(std::uint32_t, spi::peer_number, identity) override {}
	void close(std::uint32_t, std::uint64_t) override
	{
		open_ = false;
		closed++;
	}
	bool info(std::uint32_t, coop_chan_peer_info &out) const override
	{
		out = {};
		out.addr = where;
		out.cookie = cookie;
		return open_;
	}
	std::uint32_t sessions() const override { return open_; }
	int send(const coop_chan_msg &, std::uint64_t, std::uint32_t &) override { return -ENOSYS; }
	void cancel(std::uint32_t, std::uint64_t) override {}
	std::uint32_t unit() const override { return 0; }
	std::byte *text(std::uint32_t) override { return nullptr; }
	int deliver_here(std::uint32_t, op &) override { return -ENOSYS; }

	coop_chan_peer_addr where{};
	u64 cookie = 0;
	unsigned closed = 0;

private:
	bool open_ = false;
};

class places : public testing::Test
{
protected:
	static constexpr spi::peer_number n = 0;
	static constexpr std::uint16_t old_port = 1000, new_port = 2000;

	explicit places(bool verbs = false)
	{
		options_.verbs = verbs;
		EXPECT_EQ(parse(own_ip(60) + "@tcp:12345:31:1", own_), 0);
		EXPECT_EQ(parse(own_ip(60) + "@tcp:12345:31:2", other_), 0);
		resolver_.emplace(options_.key, identity::of(own_));
		peers_.emplace(options_, identity::of(own_), own_, engine_, *resolver_, core_);
		EXPECT_EQ(peers_->open(n, other_), 0);
		EXPECT_EQ(peers_->resolved(at(old_port, 1), 1).status, 0);
	}

	resolver::result at(std::uint16_t port, std::uint32_t instance) const
	{
		resolver::result r{n, 0, {}, instance};
		std::copy(other_.ip.begin(), other_.ip.end(), r.where.command.gid);
		r.where.command.lid = port;
		r.where.command.qpn = 5;
		r.where.data_qpn = 6;
		return r;
	}
	std::uint16_t place() const { return (*peers_)[n].addr.command.lid; }
	void move() { engine_.where = at(new_port, 2).where; }
	// What the other machine says of itself ends nothing.
	void expect_agreement()
	{
		const peers::change c = peers_->resolved(at(new_port, 2), 3);
		EXPECT_EQ(c.lost, 0);
		EXPECT_EQ(c.status, 0);
		EXPECT_EQ(engine_.closed, 0u);
		EXPECT_TRUE((*peers_)[n].resolved);
		EXPECT_EQ(place(), new_port);
	}

	options options_;
	address own_, other_;
	kernel_test::core core_;
	one_session engine_;
	std::optional<resolver> resolver_;
	std::optional<peers> peers_;
};

TEST_F(places, a_peer_that_restarts_is_where_its_session_is)
{
	move();
	peers_->restarted(n, 2);
	EXPECT_EQ(place(), new_port);
	expect_agreement();
}

// Its former session ended first, so no event comes with the next one.
TEST_F(places, a_session_at_the_place_of_the_answer_goes_on)
{
	peers_->restarted(n, 2);
	ASSERT_EQ(place(), old_port);
	move();
	expect_agreement();
}

TEST_F(places, a_session_with_a_peer_that_was_dead_goes_on)
{
	coop_chan_ev dead{};
	dead.why = COOP_CHAN_WHY_SILENT;
	peers_->died(n, dead);
	move();
	expect_agreement();
}

TEST_F(places, a_session_elsewhere_ends)
{
	move();
	const peers::change c = peers_->resolved(at(old_port, 2), 3);
	EXPECT_EQ(c.lost, -ENOENT);
	EXPECT_EQ(engine_.closed, 1u);
	EXPECT_EQ(place(), old_port);
}

// Its operations go on: only another instance would be another machine.
TEST_F(places, a_machine_that_has_moved_is_the_same)
{
	const peers::change c = peers_->resolved(at(new_port, 1), 3);
	EXPECT_EQ(c.lost, 0);
	EXPECT_EQ(c.status, 0);
	EXPECT_EQ(engine_.closed, 1u) << "rpc/chan would go on at the old place";
	EXPECT_TRUE((*peers_)[n].resolved);
	EXPECT_EQ(place(), new_port);
}

// The answer says that the former machine is gone. Its number stays, since the program holds it,
// and the next machine there speaks first.
TEST_F(places, a_machine_that_is_back_is_the_one_that_answers)
{
	resolver::result none = at(old_port, 0);
	none.status = -ECONNREFUSED;
	EXPECT_EQ(peers_->resolved(none, 2).lost, -ECONNRESET);
	EXPECT_EQ(engine_.open(at(old_port, 2).where, n, {}, 3), 1);
	peers_->adopt(n, 1, 3);
	const unsigned closed = engine_.closed;
	EXPECT_EQ(peers_->resolved(at(old_port, 2), 4).lost, 0);
	EXPECT_EQ(engine_.closed, closed);
	EXPECT_TRUE((*peers_)[n].resolved);
	EXPECT_EQ(peers_->resolved(at(old_port, 3), 5).lost, -ENOENT) << "it is gone in turn";
}

// The answer that it waits for ends the wait of operations.
TEST_F(places, a_peer_that_was_dead_stays_unknown_when_the_own_address_changes)
{
	coop_chan_ev dead{};
	dead.why = COOP_CHAN_WHY_SILENT;
	peers_->died(n, dead);
	peers_->reconnect(2);
	EXPECT_FALSE((*peers_)[n].resolved);
	EXPECT_TRUE(peers_->resolved(at(old_port, 1), 3).settled);
	EXPECT_TRUE((*peers_)[n].resolved);
}

// The event that a session has begun may come when it is a peer's already.
TEST_F(places, a_session_of_a_peer_is_no_strangers)
{
	coop_chan_ev begun{};
	begun.kind = COOP_CHAN_EV_PEER_NEW;
	begun.peer = 1;
	engine_.cookie = n + 1;
	options_.peers = 1;
	peers_->began(n, 2); // so it must stay
	peers_->appeared(begun, 3);
	peers_->appeared(begun, 4); // makes room
	EXPECT_EQ(engine_.closed, 0u);
	EXPECT_TRUE((*peers_)[n].resolved);
}

class device_places : public places
{
protected:
	device_places() : places(true) {}
};

// Packets do not prove the host there, so bulk waits for the answer of its UDP socket.
TEST_F(device_places, is_asked_for)
{
	move();
	EXPECT_FALSE(resolver_->asking());
	peers_->restarted(n, 2);
	EXPECT_TRUE(resolver_->asking());
	EXPECT_EQ(place(), old_port);
	expect_agreement();
}

// Another machine may have its queue pairs. Nothing is to be sent, so there is time to ask.
TEST_F(device_places, a_session_that_begins_anew_is_doubted)
{
	peers_->restarted(n, 2);
	EXPECT_FALSE(peers_->ready(n));
	EXPECT_FALSE(resolver_->asking());
	const peers::change c = peers_->resolved(at(old_port, 2), 3);
	EXPECT_EQ(c.lost, 0);
	EXPECT_TRUE(c.settled);
	EXPECT_EQ(c.status, 0);
	EXPECT_TRUE(peers_->ready(n));
	EXPECT_EQ(engine_.closed, 0u);
}

TEST_F(device_places, no_answer_leaves_the_doubt)
{
	peers_->began(n, 2);
	peers_->restarted(n, 2);
	EXPECT_TRUE(resolver_->asking()) << "something is under way";
	resolver::result none = at(old_port, 0);
	none.status = -EHOSTUNREACH;
	const peers::change c = peers_->resolved(none, 3);
	EXPECT_EQ(c.lost, 0) << "the session may go on";
	EXPECT_TRUE(c.settled);
	EXPECT_EQ(c.status, -EHOSTUNREACH);
	EXPECT_FALSE(peers_->ready(n));
}

// ---- machines ----------------------------------------------------------------------

using parameters = std::vector<std::pair<std::string, std::string>>;

/// A machine that receives messages, and sends them.
class machine final : public buffer_handler
{
public:
	machine(const std::string &address, const parameters &p) : domain_({"ud", p})
	{
		EXPECT_EQ(tm_.start(address), 0);
		EXPECT_EQ(tm_.wait(tm_state::started), 0);
		operation o;
		o.queue = queue_type::msg_recv;
		o.min_receive_size = longest;
		o.max_receive_msgs = 10;
		o.handler = this;
		EXPECT_EQ(tm_.add(in_, o), 0);
	}
	int send(const std::string &address, std::size_t length)
	{
		endpoint_ptr to;
		EXPECT_EQ(tm_.make_endpoint(address, to), 0);
		operation o;
		o.queue = queue_type::msg_send;
		o.length = length;
		o.to = to.get();
		o.handler = this;
		sent_ = false;
		EXPECT_EQ(tm_.add(out_, o), 0);
		// The deadline is for hangs.
		for (const auto end = clock::now() + std::chrono::seconds(60);
		     !sent_ && clock::now() < end;)
			std::this_thread::yield();
		return status_;
	}

private:
	static constexpr std::size_t longest = 16384;

	void on_buffer(const buffer_event &e) override
	{
		if (e.queue != queue_type::msg_send || e.queued)
			return;
		status_ = e.status;
		sent_ = true;
	}

	domain domain_;
	std::vector<std::byte> memory_ = std::vector<std::byte>(11 * longest);
	buffer in_{domain_, memory_.data(), 10 * longest};
	buffer out_{domain_, memory_.data() + 10 * longest, longest};
	std::atomic<bool> sent_ = false;
	std::atomic<int> status_ = 1;
	transfer_machine tm_{domain_};
};

TEST(UdMachine, OneThatIsBackAtAnotherPortReachesTheOthers)
{
	const std::string address = own_ip(61) + "@tcp:12345:31:";
	machine a(address + '1', {});
	std::optional<machine> b(std::in_place, address + '2', parameters{});
	ASSERT_EQ(b->send(address + '1', 8), 0);
	b.reset();
	b.emplace(address + '2', parameters{{"udp_port", "4800"}});
	EXPECT_EQ(b->send(address + '1', 8), 0);
	EXPECT_EQ(a.send(address + '2', 8), 0);
}

TEST(UdMachine, TheFirstMessageToOneWithShorterDatagramsArrives)
{
	const std::string address = own_ip(62) + "@tcp:12345:31:";
	machine a(address + '1', {{"mtu", "4096"}}), b(address + '2', {{"mtu", "1024"}});
	EXPECT_EQ(a.send(address + '2', 10000), 0);
	EXPECT_EQ(b.send(address + '1', 10000), 0);
}

} // namespace
