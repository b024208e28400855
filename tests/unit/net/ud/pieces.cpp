// SPDX-License-Identifier: MIT
// Bulk over ud of buffers in very many segments: pages whose datagrams differ in the number of
// their pieces (userland/net/ud/source.hpp, reader.hpp).
#include <algorithm>
#include <atomic>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "coop/net.hpp"
#include "tests/lib/own_ip.hpp"

using namespace coop::net;

namespace
{

struct ended final : buffer_handler {
	void on_buffer(const buffer_event &e) override
	{
		status = e.status;
		over = true;
	}
	bool wait() const
	{
		const auto end = coop::net::clock::now() + std::chrono::seconds(30);
		while (!over && coop::net::clock::now() < end)
			std::this_thread::yield();
		return over;
	}
	std::atomic<bool> over{false};
	std::atomic<int> status{1};
};

// Memory in segments of these lengths, with a gap after each.
class split_memory
{
public:
	split_memory(const std::vector<std::size_t> &lengths, std::byte fill)
	{
		std::size_t size = 0;
		for (const std::size_t n : lengths)
			size += n + gap;
		bytes_.assign(size, fill);
		std::byte *p = bytes_.data();
		for (const std::size_t n : lengths) {
			list_.push_back({p, n});
			p += n + gap;
		}
	}
	std::span<const segment> segments() const { return list_; }
	void write(std::span<const std::byte> text)
	{
		for (const segment &s : list_) {
			std::copy_n(text.begin(), s.length, static_cast<std::byte *>(s.base));
			text = text.subspan(s.length);
		}
	}
	std::vector<std::byte> text() const
	{
		std::vector<std::byte> all;
		for (const segment &s : list_) {
			const auto *p = static_cast<const std::byte *>(s.base);
			all.insert(all.end(), p, p + s.length);
		}
		return all;
	}
	bool gaps_hold(std::byte fill) const
	{
		for (const segment &s : list_) {
			const auto *p = static_cast<const std::byte *>(s.base) + s.length;
			if (!std::all_of(p, p + gap, [=](std::byte b) { return b == fill; }))
				return false;
		}
		return true;
	}

private:
	static constexpr std::size_t gap = 24;
	std::vector<std::byte> bytes_;
	std::vector<segment> list_;
};

// Pages in which one datagram covers more pieces than a work request has entries, and the others
// few: the first, a middle one, and the last, which ends early. One page of 15 pieces has more than
// its receives take and fewer than its sum does.
std::vector<std::size_t> uneven()
{
	std::vector<std::size_t> lengths;
	const auto many = [&](std::size_t n, std::size_t each) {
		lengths.insert(lengths.end(), n, each);
	};
	many(64, 16);
	many(1, 3072); // page 0
	many(1, 4096); // page 1
	many(1, 1024);
	many(128, 8);
	many(1, 2048); // page 2
	many(14, 16);
	many(1, 4096 - 14 * 16); // page 3
	many(1, 3000);
	many(100, 7); // page 4 of 3700 bytes
	return lengths;
}

// Sends and receives of such a page differ in kind: some datagrams lie where they belong, one is
// copied. The sums of a page read it all at once.
TEST(UdMachine, APageWithOneDatagramInManyPieces)
{
	const std::vector<std::size_t> lengths = uneven();
	std::size_t size = 0;
	for (const std::size_t n : lengths)
		size += n;
	std::vector<std::byte> text(size);
	std::mt19937 random(1);
	for (std::byte &b : text)
		b = static_cast<std::byte>(random());
	const std::string address = own_ip(14) + "@tcp:12345:31:";
	for (const char *mtu : {"1024", "1000", "256", "4096"})
		for (const char *crc : {"0", "1"}) {
			SCOPED_TRACE(std::string("mtu ") + mtu + ", bulk_crc " + crc);
			domain d({"ud",
				  {{"mtu", mtu}, {"bulk_crc", crc}, {"test_reorder", "200000"}}});
			transfer_machine shows(d), reads(d);
			ASSERT_EQ(shows.start(address + '1'), 0);
			ASSERT_EQ(shows.wait(tm_state::started), 0);
			ASSERT_EQ(reads.start(address + '2'), 0);
			ASSERT_EQ(reads.wait(tm_state::started), 0);
			for (unsigned sides = 1; sides <= 3; sides++) {
				SCOPED_TRACE(sides);
				const std::vector<std::size_t> whole{size};
				split_memory from(sides & 1 ? lengths : whole, std::byte{0});
				split_memory to(sides & 2 ? lengths : whole, std::byte{1});
				from.write(text);
				buffer shown(d, from.segments()), read(d, to.segments());
				ended shown_event, read_event;
				operation p;
				p.queue = queue_type::passive_bulk_send;
				p.handler = &shown_event;
				ASSERT_EQ(shows.add(shown, p), 0);
				const std::vector<std::byte> descriptor(shown.descriptor().begin(),
									shown.descriptor().end());
				operation o;
				o.queue = queue_type::active_bulk_recv;
				o.descriptor = descriptor;
				o.handler = &read_event;
				ASSERT_EQ(reads.add(read, o), 0);
				ASSERT_TRUE(read_event.wait());
				EXPECT_EQ(read_event.status, 0);
				ASSERT_TRUE(shown_event.wait());
				EXPECT_EQ(shown_event.status, 0);
				EXPECT_TRUE(to.text() == text);
				EXPECT_TRUE(to.gaps_hold(std::byte{1}));
			}
		}
}

} // namespace
