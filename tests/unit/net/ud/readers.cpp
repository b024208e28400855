// SPDX-License-Identifier: MIT
// Readers of a passive buffer over ud that die, fall silent, give up, or lose their last message
// (userland/net/ud/bulk.hpp, readers.hpp).
#include <atomic>
#include <cerrno>
#include <deque>
#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "coop/net.hpp"
#include "tests/lib/own_ip.hpp"
#include "tests/unit/net/ud/waiting.hpp"

using namespace coop::net;
using namespace std::chrono_literals;

namespace
{

// A handler that can hold up its caller.
struct busy final : buffer_handler {
	void on_buffer(const buffer_event &) override
	{
		there = wait.load();
		wait.wait(true);
	}
	void go_on()
	{
		wait = false;
		wait.notify_all();
	}
	std::atomic<bool> wait{true}, there{false};
};

// One machine offers memory, over a wire so slow that the read still runs when something happens
// to the reader.
class UdReader : public testing::Test
{
protected:
	static constexpr std::size_t size = 2u << 20;
	const std::string own_ = own_ip(20) + "@tcp:12345:31:",
			  other_ = own_ip(21) + "@tcp:12345:31:";
	domain slow_{{"ud", {{"test_slow", "10000"}, {"tries", "9"}}}}, quick_{{"ud", {}}};
	std::vector<std::byte> shown_bytes_ = std::vector<std::byte>(size, std::byte{1});
	std::vector<std::byte> read_bytes_ = std::vector<std::byte>(size);
	std::vector<std::byte> word_bytes_ = std::vector<std::byte>(size);
	buffer shown_{slow_, shown_bytes_.data(), size}, read_{quick_, read_bytes_.data(), size};
	buffer word_{quick_, word_bytes_.data(), 8}, heard_{quick_, word_bytes_.data() + 64, 64};
	noting shown_event_, read_event_, word_event_;
	busy held_;
	std::vector<std::byte> descriptor_;
	std::optional<transfer_machine> shows_{slow_}, reads_{quick_};

	void SetUp() override
	{
		ASSERT_EQ(shows_->start(own_ + '1'), 0);
		ASSERT_EQ(shows_->wait(tm_state::started), 0);
		ASSERT_EQ(reads_->start(other_ + '1'), 0);
		ASSERT_EQ(reads_->wait(tm_state::started), 0);
		operation o;
		o.queue = queue_type::passive_bulk_send;
		o.length = size;
		o.handler = &shown_event_;
		ASSERT_EQ(shows_->add(shown_, o), 0);
		descriptor_.assign(shown_.descriptor().begin(), shown_.descriptor().end());
	}
	void TearDown() override { held_.go_on(); }

	void read()
	{
		read_event_.ended = 0;
		operation o;
		o.queue = queue_type::active_bulk_recv;
		o.descriptor = descriptor_;
		o.handler = &read_event_;
		ASSERT_EQ(reads_->add(read_, o), 0);
	}
	// Returns when some of the data has arrived, but not all.
	void begin()
	{
		read();
		ASSERT_TRUE(until([this] {
			const volatile std::byte *p = read_bytes_.data();
			return p[0] == std::byte{1};
		}));
		ASSERT_FALSE(read_event_.ended);
	}
};

} // namespace

TEST_F(UdReader, that_dies_ends_what_it_has_begun)
{
	begin();
	reads_.reset();
	ASSERT_TRUE(until([this] { return shown_event_.ended.load(); }));
	EXPECT_EQ(shown_event_.status, -ECONNRESET);
}

TEST_F(UdReader, another_at_the_address_of_one_that_died_knows_of_nothing)
{
	begin();
	reads_.reset();
	transfer_machine again(quick_);
	ASSERT_EQ(again.start(other_ + '1'), 0);
	ASSERT_EQ(again.wait(tm_state::started), 0);
	ASSERT_TRUE(until([this] { return shown_event_.ended.load(); }));
	EXPECT_EQ(shown_event_.status, -ECONNRESET);
}

TEST_F(UdReader, that_falls_silent_ends_what_it_has_begun)
{
	operation r;
	r.queue = queue_type::msg_recv;
	r.min_receive_size = 8;
	r.max_receive_msgs = 1;
	r.handler = &held_;
	ASSERT_EQ(reads_->add(heard_, r), 0);
	begin();
	transfer_machine third(quick_); // its messages do not wait behind the data
	ASSERT_EQ(third.start(other_ + '2'), 0);
	ASSERT_EQ(third.wait(tm_state::started), 0);
	endpoint_ptr to;
	ASSERT_EQ(third.make_endpoint(other_ + '1', to), 0);
	operation s;
	s.queue = queue_type::msg_send;
	s.length = 8;
	s.to = to.get();
	s.handler = &word_event_;
	ASSERT_EQ(third.add(word_, s), 0);
	ASSERT_TRUE(until([this] { return held_.there.load(); }));
	ASSERT_FALSE(read_event_.ended);
	ASSERT_TRUE(until([this] { return shown_event_.ended.load(); }));
	EXPECT_EQ(shown_event_.status, -EHOSTDOWN);
	held_.go_on();
}

// The reader lives and says so; another holder of the descriptor may use it.
TEST_F(UdReader, that_gives_up_leaves_it_to_others)
{
	begin();
	ASSERT_TRUE(reads_->del(read_));
	ASSERT_TRUE(until([this] { return read_event_.ended.load(); }));
	EXPECT_EQ(read_event_.status, -ECANCELED);
	const auto later = coop::net::clock::now() + 1500ms; // by then it was asked
	ASSERT_TRUE(until([&] { return coop::net::clock::now() > later || shown_event_.ended; }));
	ASSERT_TRUE(shown_.queued());
	read();
	ASSERT_TRUE(until([this] { return read_event_.ended && shown_event_.ended; }));
	EXPECT_EQ(read_event_.status, 0);
	EXPECT_EQ(shown_event_.status, 0);
	EXPECT_EQ(read_bytes_, shown_bytes_);
}

// The reader loses half of what it sends, and gives up after two tries: so at times the last
// message of a read is lost for good. The reader repeats it when asked.
TEST(UdReaders, whose_last_word_was_lost_says_it_again)
{
	const std::string own = own_ip(22) + "@tcp:12345:31:";
	domain shows_d({"ud", {{"tries", "250"}}}),
		reads_d({"ud", {{"tries", "2"}, {"test_drop", "500000"}}});
	std::vector<std::byte> from(4096, std::byte{1}), to(4096);
	buffer shown(shows_d, from.data(), from.size()), read(reads_d, to.data(), to.size());
	std::deque<noting> events; // of both; they outlive the machines
	transfer_machine shows(shows_d), reads(reads_d);
	for (auto &[tm, id] : {std::pair(&shows, '1'), {&reads, '2'}}) {
		ASSERT_EQ(tm->start(own + id), 0);
		ASSERT_EQ(tm->wait(tm_state::started), 0);
	}
	unsigned well = 0;
	// On a busy machine few reads find the machine before the reader gives up.
	const auto end = coop::net::clock::now() + 60s;
	for (unsigned i = 0; i < 24 || (!well && coop::net::clock::now() < end); i++) {
		noting &shown_event = events.emplace_back(), &read_event = events.emplace_back();
		operation o;
		o.queue = queue_type::passive_bulk_send;
		o.handler = &shown_event;
		ASSERT_EQ(shows.add(shown, o), 0);
		const std::vector<std::byte> text(shown.descriptor().begin(),
						  shown.descriptor().end());
		operation a;
		a.queue = queue_type::active_bulk_recv;
		a.descriptor = text;
		a.handler = &read_event;
		ASSERT_EQ(reads.add(read, a), 0);
		ASSERT_TRUE(until([&] { return read_event.ended.load(); })) << i;
		if (read_event.status) { // it found no machine: nothing began, or it gave up
			(void)shows.del(shown);
			ASSERT_TRUE(until([&] { return shown_event.ended.load(); })) << i;
			continue;
		}
		ASSERT_TRUE(until([&] { return shown_event.ended.load(); })) << i;
		ASSERT_EQ(shown_event.status, 0) << i;
		well++;
	}
	EXPECT_GT(well, 0u);
}
