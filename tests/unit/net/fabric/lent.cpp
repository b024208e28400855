// SPDX-License-Identifier: MIT
// lent.cpp - over shm: data that the receiver reads, with a pledge that it stayed valid to the
// end; and data that the sender writes, where the kernel does not let a process read another's
// memory.
#include <array>
#include <atomic>
#include <cerrno>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "coop/net.hpp"
#include "tests/conformance/fabric_enemy.hpp"
#include "tests/lib/own_ip.hpp"
#include "userland/net/descriptor.hpp"

namespace
{

using namespace coop::net;
using namespace coop::net::fabric;
using namespace std::chrono_literals;

struct ended final : buffer_handler {
	void on_buffer(const buffer_event &e) override
	{
		if (!e.queued)
			status = e.status;
	}
	bool well() const
	{
		const auto end = coop::net::clock::now() + 30s;
		while (status == 1 && coop::net::clock::now() < end)
			std::this_thread::sleep_for(1ms);
		return status == 0;
	}
	std::atomic<int> status{1};
};

TEST(fabric_granted, messages_and_bulk_data_arrive)
{
	constexpr std::size_t size = 300000;
	const std::string address = own_ip(12) + "@tcp:12345:31:";
	domain d({"fabric", {{"provider", "shm"}, {"lend", "0"}}});
	std::array<std::vector<std::byte>, 2> memory;
	for (auto &m : memory)
		m.resize(size);
	// In three pieces on one side, in one on the other.
	const segment pieces[] = {{memory[0].data(), 100},
				  {memory[0].data() + 100, 100000},
				  {memory[0].data() + 100100, size - 100100}};
	buffer mine(d, pieces), theirs(d, memory[1].data(), size);
	std::array<ended, 6> e;
	transfer_machine one(d), other(d);
	for (auto &[tm, id] : {std::pair(&one, '1'), {&other, '2'}}) {
		ASSERT_EQ(tm->start(address + id), 0);
		ASSERT_EQ(tm->wait(tm_state::started), 0);
	}
	endpoint_ptr to;
	ASSERT_EQ(one.make_endpoint(address + '2', to), 0);
	const auto fill = [&](unsigned seed) {
		for (std::size_t i = 0; i < size; i++) {
			memory[0][i] = std::byte(i * 7 + seed);
			memory[1][i] = std::byte(i * 5 + seed);
		}
	};

	fill(1);
	operation r;
	r.queue = queue_type::msg_recv;
	r.min_receive_size = size;
	r.max_receive_msgs = 1;
	r.handler = &e[0];
	ASSERT_EQ(other.add(theirs, r), 0);
	operation s;
	s.queue = queue_type::msg_send;
	s.length = size;
	s.to = to.get();
	s.handler = &e[1];
	ASSERT_EQ(one.add(mine, s), 0);
	ASSERT_TRUE(e[0].well() && e[1].well());
	EXPECT_EQ(memory[0], memory[1]);

	for (const bool read : {true, false}) {
		fill(2 + read);
		ended &shown = e[2 + 2 * read], &done = e[3 + 2 * read];
		const std::vector<std::byte> from = memory[read];
		operation p;
		p.queue = read ? queue_type::passive_bulk_send : queue_type::passive_bulk_recv;
		p.length = size;
		p.handler = &shown;
		ASSERT_EQ(other.add(theirs, p), 0);
		operation a;
		a.queue = read ? queue_type::active_bulk_recv : queue_type::active_bulk_send;
		const std::vector<std::byte> text(theirs.descriptor().begin(),
						  theirs.descriptor().end());
		a.descriptor = text;
		a.handler = &done;
		ASSERT_EQ(one.add(mine, a), 0);
		ASSERT_TRUE(shown.well() && done.well()) << read;
		EXPECT_EQ(memory[0], from);
		EXPECT_EQ(memory[1], from);
	}
}

// A machine, and a peer that does what the test says, in the same process.
class fabric_lent : public testing::Test
{
protected:
	const std::string address_ = own_ip(13) + "@tcp:12345:31:";
	domain d_{{"fabric", {{"provider", "shm"}}}};
	std::vector<std::byte> memory_ = std::vector<std::byte>(100000, std::byte{1});
	std::vector<std::byte> lent_ = std::vector<std::byte>(100000, std::byte{2});
	buffer buffer_{d_, memory_.data(), memory_.size()};
	ended event_;
	transfer_machine tm_{d_};
	std::unique_ptr<conformance::fabric_enemy> peer_;

	void SetUp() override
	{
		address own, there;
		ASSERT_EQ(parse(address_ + '1', own), 0);
		ASSERT_EQ(parse(address_ + '2', there), 0);
		ASSERT_EQ(tm_.start(address_ + '2'), 0);
		ASSERT_EQ(tm_.wait(tm_state::started), 0);
		peer_ = std::make_unique<conformance::fabric_enemy>("shm", own);
		ASSERT_TRUE(peer_->connect(there, peer_->greeting_of(there)));
	}
	// The peer's next control message. A default `verb`: none came.
	control next()
	{
		const auto end = coop::net::clock::now() + 30s;
		while (peer_->heard.empty() && coop::net::clock::now() < end)
			peer_->look();
		if (peer_->heard.empty())
			return {};
		const control c = peer_->heard.front();
		peer_->heard.pop_front();
		return c;
	}
	bool say(const control &c)
	{
		const auto end = coop::net::clock::now() + 30s;
		bool said = false;
		while (!(said = peer_->say(c)) && coop::net::clock::now() < end)
			peer_->look();
		return said;
	}
};

// The peer knows where to read, and stands still: the operation does not wait for it.
TEST_F(fabric_lent, the_pledge_ends_with_the_operation)
{
	operation o;
	o.queue = queue_type::passive_bulk_send;
	o.handler = &event_;
	ASSERT_EQ(tm_.add(buffer_, o), 0);
	core::descriptor what;
	ASSERT_EQ(core::decode(buffer_.descriptor(), what), 0);
	control get;
	get.verb = control::verb::get;
	get.id = 7;
	get.token = what.token;
	get.key = what.key;
	get.length = memory_.size();
	ASSERT_TRUE(say(get));
	const control lend = next();
	ASSERT_EQ(lend.verb, control::verb::lend);
	ASSERT_EQ(lend.count, 2u);
	EXPECT_EQ(lend.peer, get.id);
	EXPECT_EQ(lend.regions[1].address, reinterpret_cast<std::uintptr_t>(memory_.data()));
	const auto &pledge =
		*reinterpret_cast<const std::atomic<std::uint64_t> *>(lend.regions[0].address);
	EXPECT_EQ(pledge, lend.regions[0].key);
	ASSERT_TRUE(tm_.del(buffer_));
	(void)event_.well();
	EXPECT_EQ(event_.status, -ECANCELED);
	EXPECT_NE(pledge, lend.regions[0].key);
}

// Without its pledge the copied data may be anything: no buffer gets it.
TEST_F(fabric_lent, without_its_pledge_is_no_message)
{
	operation r;
	r.min_receive_size = memory_.size();
	r.max_receive_msgs = 1;
	r.handler = &event_;
	ASSERT_EQ(tm_.add(buffer_, r), 0);
	std::uint64_t pledge = 0;
	control offer;
	offer.verb = control::verb::offer;
	offer.id = 5;
	offer.length = lent_.size();
	offer.count = 2;
	offer.regions[0] = {reinterpret_cast<std::uintptr_t>(&pledge), sizeof(pledge), 99};
	offer.regions[1] = {reinterpret_cast<std::uintptr_t>(lent_.data()), lent_.size(), 0};
	ASSERT_TRUE(say(offer));
	control cancel; // answered once the offer is done
	cancel.verb = control::verb::cancel;
	cancel.id = offer.id;
	ASSERT_TRUE(say(cancel));
	control answer = next();
	EXPECT_EQ(answer.verb, control::verb::done);
	EXPECT_EQ(answer.status, -ECANCELED);
	EXPECT_EQ(event_.status, 1);
	EXPECT_TRUE(buffer_.queued());
	// The same if the lent memory no longer exists: the link goes on.
	offer.id = cancel.id = 6;
	offer.regions[1].address = 4096;
	ASSERT_TRUE(say(offer));
	ASSERT_TRUE(say(cancel));
	answer = next();
	EXPECT_EQ(answer.verb, control::verb::done);
	EXPECT_EQ(answer.status, -ECANCELED);
	EXPECT_TRUE(buffer_.queued());
	offer.regions[1].address = reinterpret_cast<std::uintptr_t>(lent_.data());
	pledge = 99;
	ASSERT_TRUE(say(offer));
	answer = next();
	EXPECT_EQ(answer.verb, control::verb::done);
	EXPECT_EQ(answer.peer, offer.id);
	EXPECT_EQ(answer.status, 0);
	ASSERT_TRUE(event_.well());
	EXPECT_EQ(memory_, lent_);
}

} // namespace
