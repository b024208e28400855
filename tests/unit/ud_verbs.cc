// SPDX-License-Identifier: MIT
// The verbs endpoint on whatever RDMA device this machine has, and soft RoCE
// against it. Without a device only the error texts can be tried.
//
// COOP_UD_NETNS and COOP_UD_IP name a network namespace and an address in it that
// reach the device over a wire; then soft RoCE talks from there to the device.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <sched.h>

#include "tests/unit/ud_pair.hpp"

using namespace ud_test;

namespace
{

std::unique_ptr<endpoint> device(std::string &why)
{
	try {
		return make_verbs({});
	} catch (const std::system_error &e) {
		why = e.what();
		return nullptr;
	}
}

struct Verbs : testing::Test {
	std::unique_ptr<endpoint> a, b;

	void SetUp() override
	{
		std::string why;
		a = device(why);
		if (!a)
			GTEST_SKIP() << why;
		b = device(why);
		ASSERT_TRUE(b) << why;
	}
};

TEST(VerbsOpen, SaysWhatIsMissing)
{
	verbs_options o;
	o.device = "no_such_device";
	try {
		make_verbs(o);
		FAIL() << "opened";
	} catch (const std::system_error &e) {
		const std::string text = e.what();
		EXPECT_TRUE(text.find("no_such_device") != std::string::npos ||
			    text.find("no RDMA device") != std::string::npos)
			<< text;
	}
}

void carries_pages(endpoint &from, endpoint &to)
{
	const std::uint32_t mtu = std::min(from.info().mtu, to.info().mtu);
	outbox out(from);
	inbox in(to, 48, mtu);
	for (int round = 0; round < 3; round++) {
		in.post(0, 48);
		std::vector<std::vector<std::uint8_t>> data;
		for (unsigned i = 0; i < 16; i++) {
			data.push_back(pattern(mtu, i));
			data.push_back({});
			data.push_back(pattern(i * 61 + 1, i));
		}
		const auto sent = data;
		ASSERT_EQ(out.send(in.where(), std::move(data), round != 1, 100, round == 2), 48);
		const auto got = collect(to, 48);
		ASSERT_EQ(got.size(), 48u);
		for (std::size_t i = 0; i < got.size(); i++) {
			ASSERT_EQ(got[i].status, wc_status::success);
			ASSERT_EQ(got[i].wr_id, i);
			ASSERT_EQ(got[i].byte_len, COOP_GRH + sent[i].size());
			ASSERT_EQ(got[i].src_qp, from.qpn(out.qp));
			ASSERT_EQ(got[i].has_imm, round != 1);
			if (got[i].has_imm) {
				ASSERT_EQ(got[i].imm, 100 + i);
			}
			if (got[i].has_gid) {
				ASSERT_EQ(got[i].src_gid, from.info().gid);
			}
			ASSERT_TRUE(std::equal(sent[i].begin(), sent[i].end(), in.payload(i)));
		}
	}
	EXPECT_EQ(collect(from, 48).size(), 48u) << "the signaled sends of the last round";
	EXPECT_TRUE(in.guards_hold());
}

TEST_F(Verbs, CarriesPages)
{
	carries_pages(*a, *b);
}

TEST_F(Verbs, StopFlushesEveryWrThenResetIsAllowed)
{
	outbox out(*a);
	inbox in(*b, 8, 1024);
	in.post(0, 8);
	EXPECT_EQ(b->modify_qp(in.qp, qp_state::reset), -EBUSY);
	ASSERT_EQ(b->modify_qp(in.qp, qp_state::error), 0);
	for (const auto &c : collect(*b, 8))
		EXPECT_EQ(c.status, wc_status::flushed);
	ASSERT_EQ(b->modify_qp(in.qp, qp_state::ready), 0);
	in.post(0, 1);
	ASSERT_EQ(out.send(in.where(), {pattern(1024, 4)}), 1);
	EXPECT_EQ(collect(*b, 1)[0].status, wc_status::success);
}

TEST_F(Verbs, DatagramLongerThanItsWrKillsTheQueuePair)
{
	outbox out(*a);
	inbox in(*b, 3, 512);
	in.post(0, 3);
	ASSERT_EQ(out.send(in.where(), {pattern(513, 1)}), 1);
	const auto got = collect(*b, 3);
	ASSERT_EQ(got.size(), 3u);
	EXPECT_EQ(got[0].status, wc_status::length_error);
	EXPECT_EQ(got[1].status, wc_status::flushed);
	ASSERT_EQ(b->modify_qp(in.qp, qp_state::ready), 0);
	in.post(0, 1);
	ASSERT_EQ(out.send(in.where(), {pattern(512, 1)}), 1);
	EXPECT_EQ(collect(*b, 1)[0].status, wc_status::success);
}

TEST_F(Verbs, OverTheMtuVanishesWithSuccess)
{
	outbox out(*a);
	inbox in(*b, 2, 4096);
	in.post(0, 2);
	ASSERT_EQ(out.send(in.where(), {pattern(a->info().mtu + 4, 1), pattern(64, 2)}, true, 0,
			   true),
		  2);
	for (const auto &c : collect(*a, 2))
		EXPECT_EQ(c.status, wc_status::success);
	EXPECT_EQ(collect(*b, 1)[0].imm, 1u);
}

TEST_F(Verbs, SoftRoceAndTheDeviceUnderstandEachOther)
{
	const char *name = std::getenv("COOP_UD_NETNS"), *ip = std::getenv("COOP_UD_IP");
	if (!name || !ip)
		GTEST_SKIP() << "COOP_UD_NETNS and COOP_UD_IP name no namespace beside the device";
	std::unique_ptr<endpoint> soft;
	std::string failure;
	std::thread([&] {
		const int fd = open(name, O_RDONLY | O_CLOEXEC);
		if (fd < 0 || setns(fd, CLONE_NEWNET)) {
			failure = std::strerror(errno);
			return;
		}
		close(fd);
		soft = make_soft_roce(options(ip));
	}).join();
	ASSERT_TRUE(soft) << failure;
	{
		SCOPED_TRACE("device to soft RoCE");
		carries_pages(*a, *soft);
	}
	{
		SCOPED_TRACE("soft RoCE to device");
		carries_pages(*soft, *a);
	}
	EXPECT_EQ(soft->stats().rx_bad_icrc, 0u);
}

} // namespace
