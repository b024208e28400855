// SPDX-License-Identifier: MIT
// claims.cpp - two machines of which each seems to be at the same queue pairs: one has got those of
// another after a restart, or lies. With udp_port=4791 queue pairs may be a device's, as with
// device=, so a machine's number does not tell them.
#include <atomic>
#include <cerrno>
#include <gtest/gtest.h>
#include <optional>
#include <thread>
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
const parameters roce{{"udp_port", "4791"}};

std::string at(unsigned last, char number)
{
	return own_ip(last) + "@tcp:12345:31:" + number;
}

/// A machine that receives messages, and sends them.
class side final : public buffer_handler
{
public:
	side(const std::string &address, const parameters &p) : domain_({"ud", p})
	{
		EXPECT_EQ(tm_.start(address), 0);
		EXPECT_EQ(tm_.wait(tm_state::started), 0);
		operation o;
		o.queue = queue_type::msg_recv;
		o.min_receive_size = 8;
		o.max_receive_msgs = 100;
		o.handler = this;
		EXPECT_EQ(tm_.add(in_, o), 0);
	}
	/// @return the final status.
	int send(const std::string &address)
	{
		endpoint_ptr to;
		EXPECT_EQ(tm_.make_endpoint(address, to), 0);
		operation o;
		o.queue = queue_type::msg_send;
		o.length = 8;
		o.to = to.get();
		o.handler = this;
		sent_ = false;
		EXPECT_EQ(tm_.add(out_, o), 0);
		EXPECT_TRUE(until([this] { return sent_.load(); }));
		return status_;
	}
	/// Its peer's number stays.
	endpoint_ptr hold(const std::string &address)
	{
		endpoint_ptr to;
		EXPECT_EQ(tm_.make_endpoint(address, to), 0);
		return to;
	}
	std::atomic<unsigned> received{0};

private:
	void on_buffer(const buffer_event &e) override
	{
		if (e.queue == queue_type::msg_recv) {
			received += e.status == 0;
			return;
		}
		status_ = e.status;
		sent_ = true;
	}

	domain domain_;
	std::vector<std::byte> memory_ = std::vector<std::byte>(8200);
	buffer in_{domain_, memory_.data(), 8192}, out_{domain_, memory_.data() + 8192, 8};
	std::atomic<bool> sent_ = false;
	std::atomic<int> status_ = 1;
	transfer_machine tm_{domain_};
};

/// Answers that a machine is where another is.
class other_name
{
public:
	other_name(const std::string &name, const std::string &place)
	{
		address a, b;
		EXPECT_EQ(parse(name, a), 0);
		EXPECT_EQ(parse(place, b), 0);
		resolver_.emplace(std::array<std::uint8_t, 16>{}, ud::identity::of(a));
		find(ud::identity::of(b));
		thread_ = std::thread([this] {
			while (!over_) {
				(void)resolver_->progress(1);
				std::this_thread::sleep_for(1ms);
			}
		});
	}
	~other_name()
	{
		over_ = true;
		thread_.join();
	}

private:
	void find(ud::identity who)
	{
		std::uint64_t now = 1;
		resolver_->ask(0, who, now);
		ud::resolver::result r{};
		EXPECT_TRUE(until([&] {
			(void)resolver_->progress(now);
			resolver_->expire(now += 1000);
			return resolver_->next(r);
		}));
		EXPECT_EQ(r.status, 0);
		resolver_->answer_with(r.where, 77);
	}

	std::optional<ud::resolver> resolver_;
	std::atomic<bool> over_{false};
	std::thread thread_;
};

} // namespace

// A host was started anew: what another program of it had has become this machine's.
TEST(UdClaim, AMachineSpeaksFromTheFormerPlaceOfAnother)
{
	side asks(at(100, '1'), roce), comes(at(101, '1'), roce);
	const endpoint_ptr held = asks.hold(at(101, '2'));
	{
		const other_name former(at(101, '2'), at(101, '1'));
		ASSERT_EQ(asks.send(at(101, '2')), 0);
		ASSERT_EQ(comes.received, 1u) << "as the former one";
	}
	EXPECT_EQ(comes.send(at(100, '1')), 0);
	EXPECT_EQ(asks.send(at(101, '1')), 0);
	EXPECT_EQ(asks.send(at(101, '2')), -ECONNREFUSED);
	EXPECT_EQ(comes.received, 2u);
}

// The machine that has got the queue pairs does not know the session, and must not get a new one.
TEST(UdClaim, AMessageDoesNotReachTheNextAtThePlace)
{
	side asks(at(102, '1'), roce);
	std::optional<side> there(std::in_place, at(103, '1'), roce);
	const endpoint_ptr held = asks.hold(at(103, '2'));
	{
		const other_name former(at(103, '2'), at(103, '1'));
		ASSERT_EQ(asks.send(at(103, '2')), 0);
	}
	there.reset();
	there.emplace(at(103, '1'), roce);
	EXPECT_EQ(asks.send(at(103, '2')), -ECONNRESET);
	EXPECT_EQ(asks.send(at(103, '2')), -ECONNREFUSED);
	EXPECT_EQ(there->received, 0u);
}

// Both have told the truth, one of them before its host was started anew.
TEST(UdClaim, TheNextAtThePlaceIsFoundThere)
{
	side asks(at(104, '1'), roce), there(at(105, '1'), roce);
	const endpoint_ptr held = asks.hold(at(105, '2'));
	{
		const other_name former(at(105, '2'), at(105, '1'));
		ASSERT_EQ(asks.send(at(105, '2')), 0);
	}
	EXPECT_EQ(asks.send(at(105, '1')), 0);
	EXPECT_EQ(there.received, 2u);
	EXPECT_EQ(asks.send(at(105, '2')), -ECONNREFUSED);
	EXPECT_EQ(asks.send(at(105, '1')), 0);
	EXPECT_EQ(there.send(at(104, '1')), 0);
}

// One of them still tells that it is there, and is not.
class UdLie : public testing::TestWithParam<bool>
{
};

TEST_P(UdLie, CostsTheMachineThatIsThereNothing)
{
	const parameters p = GetParam() ? roce : parameters{};
	const unsigned last = GetParam() ? 106 : 109;
	side asks(at(last, '1'), p), honest(at(last + 1, '1'), p);
	const endpoint_ptr held = asks.hold(at(last + 1, '1')),
			   liars = asks.hold(at(last + 2, '1'));
	ASSERT_EQ(honest.send(at(last, '1')), 0);
	ASSERT_EQ(asks.send(at(last + 1, '1')), 0);
	const other_name lie(at(last + 2, '1'), at(last + 1, '1'));
	for (unsigned n = 0; n < 3; n++) {
		EXPECT_EQ(asks.send(at(last + 2, '1')), -EHOSTUNREACH) << n;
		EXPECT_EQ(honest.send(at(last, '1')), 0) << n;
		EXPECT_EQ(asks.send(at(last + 1, '1')), 0) << n;
	}
	EXPECT_EQ(honest.received, 4u);
	EXPECT_EQ(asks.received, 4u);
}

INSTANTIATE_TEST_SUITE_P(, UdLie, testing::Bool(),
			 [](const auto &i) { return i.param ? "aboutADevice" : "aboutSoftRoCE"; });
