// SPDX-License-Identifier: MIT
// registrations.cpp - buffers and devices that come and go in any order: which are registered with
// which, and what a failure leaves behind.
#include <algorithm>
#include <array>
#include <atomic>
#include <gtest/gtest.h>
#include <memory>
#include <set>
#include <system_error>
#include <thread>

#include "tests/unit/net/puppet.hpp"
#include "userland/net/registrations.hpp"

namespace
{

using namespace coop::net;

// A device with room for some regions. It refuses as the test says.
struct device {
	std::set<const void *> regions;
	std::size_t room = 100;
	int refusal = -ENOMEM;

	struct leave {
		device *of;
		void operator()(const void *base) const { of->regions.erase(base); }
	};
	using region = std::unique_ptr<const void, leave>;
	int enter(const segment &s, region &out, int &key)
	{
		if (regions.size() == room)
			return refusal;
		regions.insert(s.base);
		out = region(s.base, leave{this});
		key = static_cast<int>(s.length);
		return 0;
	}
};

class net_registrations : public testing::Test
{
protected:
	using table = registrations<device::region, int>;

	int open(device &d)
	{
		return all.open(&d, [&d](const segment &s, device::region &r, int &key) {
			return d.enter(s, r, key);
		});
	}
	spi::memory make(std::span<const segment> s, int expected = 0)
	{
		spi::memory m;
		m.segments = s;
		EXPECT_EQ(all.add(s, &m.registration), expected);
		return m;
	}
	int find(const spi::memory &m, const device &d, std::vector<int> expected = {})
	{
		std::span<const int> keys;
		const int r = all.find(m, &d, keys);
		EXPECT_TRUE(std::equal(keys.begin(), keys.end(), expected.begin(), expected.end()));
		return r;
	}

	std::array<std::byte, 64> bytes{};
	const std::array<segment, 2> two{{{bytes.data(), 10}, {bytes.data() + 10, 20}}};
	const std::array<segment, 1> one{{{bytes.data() + 30, 5}}};
	device first, second;
	table all;
};

TEST_F(net_registrations, a_buffer_is_registered_with_the_devices_there_are_and_that_come)
{
	ASSERT_EQ(open(first), 0);
	const spi::memory m = make(two);
	EXPECT_EQ(first.regions.size(), 2u);
	EXPECT_EQ(find(m, first, {10, 20}), 0);
	EXPECT_EQ(find(m, second), -ENODEV);
	ASSERT_EQ(open(second), 0);
	EXPECT_EQ(find(m, second, {10, 20}), 0);
	all.forget(&first);
	EXPECT_TRUE(first.regions.empty());
	EXPECT_EQ(find(m, second, {10, 20}), 0);
	all.remove(m.registration);
	EXPECT_TRUE(second.regions.empty());
	all.forget(&second);
}

TEST_F(net_registrations, what_one_device_refuses_is_registered_nowhere)
{
	ASSERT_EQ(open(first), 0);
	ASSERT_EQ(open(second), 0);
	for (device *full : {&first, &second}) {
		full->room = 1;
		(void)make(two, -ENOMEM);
		EXPECT_TRUE(first.regions.empty());
		EXPECT_TRUE(second.regions.empty());
		full->room = 100;
	}
	const spi::memory m = make(one);
	EXPECT_EQ(find(m, second, {5}), 0);
	all.remove(m.registration);
	all.forget(&first);
	all.forget(&second);
}

TEST_F(net_registrations, a_device_without_room_for_all_buffers_is_not_opened)
{
	const spi::memory a = make(one), b = make(two);
	first.room = 2;
	EXPECT_EQ(open(first), -ENOMEM);
	EXPECT_TRUE(first.regions.empty());
	EXPECT_EQ(find(b, first), -ENODEV);
	all.remove(a.registration);
	EXPECT_EQ(open(first), 0);
	EXPECT_EQ(find(b, first, {10, 20}), 0);
	all.remove(b.registration);
	all.forget(&first);
}

TEST_F(net_registrations, a_removed_device_refuses_operations_and_no_buffer)
{
	ASSERT_EQ(open(first), 0);
	ASSERT_EQ(open(second), 0);
	for (const int refusal : {-ENODEV, -EIO}) {
		first.room = 1;
		first.refusal = refusal;
		const spi::memory m = make(two);
		EXPECT_TRUE(first.regions.empty());
		EXPECT_EQ(find(m, first), refusal);
		EXPECT_EQ(find(m, second, {10, 20}), 0);
		all.remove(m.registration);
	}
	all.forget(&first);
	all.forget(&second);
}

TEST_F(net_registrations, nothing_is_registered_with_a_device_that_is_being_closed)
{
	ASSERT_EQ(open(first), 0);
	const spi::memory before = make(one);
	all.close(&first);
	const spi::memory after = make(two);
	EXPECT_EQ(first.regions.size(), 1u);
	EXPECT_EQ(find(before, first, {5}), 0);
	all.forget(&first);
	EXPECT_TRUE(first.regions.empty());
	all.remove(before.registration);
	all.remove(after.registration);
}

// The sanitizers watch.
TEST_F(net_registrations, devices_come_and_go_while_buffers_do)
{
	std::atomic<bool> over = false;
	std::thread buffers([&] {
		while (!over)
			all.remove(make(two).registration);
	});
	const spi::memory m = make(one);
	for (int n = 0; n < 200; n++) {
		ASSERT_EQ(open(first), 0);
		EXPECT_EQ(find(m, first, {5}), 0);
		all.close(&first);
		all.forget(&first);
	}
	over = true;
	buffers.join();
	all.remove(m.registration);
	EXPECT_TRUE(first.regions.empty());
}

// ---- the core -----------------------------------------------------------------------------------

class net_preparing : public testing::Test
{
protected:
	static void SetUpTestSuite() { puppets::add_puppet_transport(); }
	void TearDown() override
	{
		puppets::preparing = nullptr;
		puppets::registering = 0;
	}
};

TEST_F(net_preparing, a_buffer_that_cannot_be_registered_says_what_to_do)
{
	domain d({"puppet", {}});
	std::byte memory[64];
	puppets::registering = -ENOMEM;
	try {
		const buffer b(d, memory, sizeof(memory));
		FAIL() << "it was made";
	} catch (const std::system_error &e) {
		EXPECT_EQ(e.code().value(), ENOMEM);
		EXPECT_NE(std::string(e.what()).find("ulimit -l"), std::string::npos) << e.what();
	}
	puppets::registering = -EFAULT;
	try {
		const buffer b(d, memory, sizeof(memory));
		FAIL() << "it was made";
	} catch (const std::system_error &e) {
		EXPECT_EQ(e.code().value(), EFAULT);
		EXPECT_EQ(std::string(e.what()).find("ulimit"), std::string::npos) << e.what();
	}
	puppets::registering = 0;
	const buffer b(d, memory, sizeof(memory));
}

TEST_F(net_preparing, a_machine_that_cannot_prepare_fails)
{
	domain d({"puppet", {}});
	transfer_machine tm(d);
	puppets::preparing = [] { return -ENOMEM; };
	EXPECT_EQ(tm.start(puppets::here), -ENOMEM);
	EXPECT_EQ(tm.state(), tm_state::failed);
}

// Every call of the machine takes its lock.
TEST_F(net_preparing, holds_no_lock_and_may_be_stopped)
{
	domain d({"puppet", {}});
	std::byte memory[64];
	buffer b(d, memory, sizeof(memory));
	transfer_machine tm(d);
	puppets::preparing = [&] {
		std::thread other([&] {
			EXPECT_EQ(tm.state(), tm_state::starting);
			EXPECT_EQ(tm.start(puppets::here), -EBADFD);
			operation o;
			buffer_callback ignored([](const buffer_event &) {});
			o.handler = &ignored;
			o.min_receive_size = o.max_receive_msgs = 1;
			EXPECT_EQ(tm.add(b, o), -EBADFD);
			EXPECT_FALSE(tm.del(b));
			EXPECT_EQ(tm.fini(), -EBUSY);
			EXPECT_EQ(tm.stop(false), 0);
		});
		other.join();
		return 0;
	};
	EXPECT_EQ(tm.start(puppets::here), 0);
	EXPECT_EQ(tm.state(), tm_state::stopping);
	puppets::puppet *p = puppets::puppet::last;
	p->end([p] { p->sink.stopped(); });
	EXPECT_EQ(tm.wait(tm_state::stopped), 0);
}

} // namespace
