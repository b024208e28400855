// SPDX-License-Identifier: MIT
// The verbs endpoint on this machine's RDMA device, and soft RoCE against it. Without a device
// the test covers only the error texts.
//
// COOP_UD_NETNS and COOP_UD_IP name a network namespace, and an address in it with a wire to
// the device; then soft RoCE talks from there to the device.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <sched.h>

#include "tests/unit/ud/pair.hpp"

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

TEST_F(Verbs, LentMemoryIsNamedByItsKeyUntilItIsTakenBack)
{
	inbox in(*b, 2, 512);
	in.post(0, 2);
	const int qp = a->create_qp({4, 1, 2, 17});
	ASSERT_GE(qp, 0);
	auto data = pattern(512, 3);
	sge one{data.data(), 512};
	send_wr wr{};
	wr.list = &one;
	wr.n_sge = 1;
	wr.signaled = true;
	const auto send = [&] {
		return a->post_send(static_cast<std::uint32_t>(qp), in.where(), {&wr, 1});
	};
	EXPECT_EQ(send(), -EFAULT) << "not lent";
	std::unique_ptr<lent_memory> loan;
	ASSERT_EQ(a->lend_memory(data.data(), data.size(), loan, one.key), 0);
	ASSERT_NE(one.key, 0u);
	ASSERT_EQ(send(), 1);
	EXPECT_EQ(collect(*a, 1)[0].status, wc_status::success);
	EXPECT_EQ(collect(*b, 1)[0].status, wc_status::success);
	EXPECT_TRUE(std::equal(data.begin(), data.end(), in.payload(0)));
	loan.reset();
	ASSERT_EQ(send(), 1);
	EXPECT_EQ(collect(*a, 1)[0].status, wc_status::other_error);
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

// Soft RoCE in the namespace with a wire to the device; null and the reason if there is none.
std::unique_ptr<endpoint> soft_roce_beside(std::string &why)
{
	const char *name = std::getenv("COOP_UD_NETNS"), *ip = std::getenv("COOP_UD_IP");
	if (!name || !ip) {
		why = "COOP_UD_NETNS and COOP_UD_IP name no namespace beside the device";
		return nullptr;
	}
	std::unique_ptr<endpoint> soft;
	std::thread([&] {
		const int fd = open(name, O_RDONLY | O_CLOEXEC);
		if (fd < 0 || setns(fd, CLONE_NEWNET)) {
			ADD_FAILURE() << name << ": " << std::strerror(errno);
			return;
		}
		close(fd);
		soft = make_soft_roce(options(ip));
	}).join();
	return soft;
}

TEST_F(Verbs, CompletionQueuesAreAddedAsQueuePairsNeedThem)
{
	verbs_options o;
	o.cq_entries = 64;
	const auto small = make_verbs(o);
	std::vector<std::uint8_t> memory(COOP_GRH + 256);
	ASSERT_EQ(small->register_memory(memory.data(), memory.size()), 0);
	const sge one{memory.data(), static_cast<std::uint32_t>(memory.size())};
	const std::vector<recv_wr> wrs(48, recv_wr{7, &one, 1});
	for (std::uint32_t i = 0; i < 8; i++) {
		const int qp = small->create_qp({32, 48, 1, 1});
		ASSERT_EQ(qp, static_cast<int>(i)) << small->refusal();
		ASSERT_EQ(small->post_recv(i, wrs), 48);
	}
	for (std::uint32_t i = 0; i < 8; i++)
		ASSERT_EQ(small->modify_qp(i, qp_state::error), 0);
	for (const completion &c : collect(*small, 8 * 48))
		EXPECT_EQ(c.status, wc_status::flushed);
}

TEST_F(Verbs, CompletionsOfAPreferredQueuePairComeFirst)
{
	constexpr std::uint32_t many = 40;
	inbox bulk(*b, many, 64);
	std::vector<std::uint8_t> memory(COOP_GRH + 64);
	ASSERT_EQ(b->register_memory(memory.data(), memory.size()), 0);
	qp_attr attr{4, 4, 1, 5};
	attr.preferred = true;
	const int made = b->create_qp(attr);
	ASSERT_GE(made, 0) << b->refusal();
	const auto command = static_cast<std::uint32_t>(made);
	address there = bulk.where();
	there.qpn = b->qpn(command);
	there.qkey = 5;
	outbox out(*a);
	// The last datagram of a round goes to another endpoint, so that the test can wait for
	// it while this endpoint does not poll. Queue pairs are independent, so its arrival
	// proves little about the others; but in some round all are there, and in order of
	// arrival the preferred one would be last.
	std::string why;
	const auto last = device(why);
	ASSERT_TRUE(last) << why;
	inbox mark(*last, 1, 64);
	bool first = false;
	for (int round = 0; round < 20 && !first; round++) {
		bulk.post(0, many);
		mark.post(0, 1);
		const sge one{memory.data(), static_cast<std::uint32_t>(memory.size())};
		const recv_wr wr{0, &one, 1};
		ASSERT_EQ(b->post_recv(command, {&wr, 1}), 1);
		ASSERT_EQ(out.send(bulk.where(),
				   std::vector<std::vector<std::uint8_t>>(many, pattern(64, 1))),
			  static_cast<int>(many));
		ASSERT_EQ(out.send(there, {pattern(64, 2)}), 1);
		ASSERT_EQ(out.send(mark.where(), {pattern(64, 3)}), 1);
		ASSERT_EQ(collect(*last, 1).size(), 1u);
		const auto got = collect(*b, many + 1);
		ASSERT_EQ(got.size(), many + 1);
		first = got[0].qp == command;
		(void)drain(*a); // its sends make room
	}
	EXPECT_TRUE(first);
}

TEST_F(Verbs, APreferredQueuePairWakesWhoWaits)
{
	std::vector<std::uint8_t> memory(COOP_GRH + 64);
	ASSERT_EQ(b->register_memory(memory.data(), memory.size()), 0);
	qp_attr attr{4, 4, 1, 5};
	attr.preferred = true;
	const int made = b->create_qp(attr);
	ASSERT_GE(made, 0) << b->refusal();
	const auto command = static_cast<std::uint32_t>(made);
	const sge one{memory.data(), static_cast<std::uint32_t>(memory.size())};
	const recv_wr wr{9, &one, 1};
	address there{};
	std::copy(b->info().gid.begin(), b->info().gid.end(), there.gid);
	there.lid = b->info().lid;
	there.qpn = b->qpn(command);
	there.qkey = 5;
	outbox out(*a);
	for (int round = 0; round < 3; round++) {
		ASSERT_EQ(b->post_recv(command, {&wr, 1}), 1);
		EXPECT_TRUE(drain(*b).empty()); // empty before it is armed
		ASSERT_EQ(out.send(there, {pattern(64, 1)}), 1);
		pollfd p{b->fd(), POLLIN, 0};
		ASSERT_EQ(::poll(&p, 1, 20000), 1) << "armed, but not woken";
		const auto got = collect(*b, 1);
		ASSERT_EQ(got.size(), 1u);
		EXPECT_EQ(got[0].wr_id, 9u);
	}
}

// The device checks keys when it reads memory: an invalid key shows who read it.
TEST_F(Verbs, SmallSendsGoOutWithTheWorkRequest)
{
	inbox in(*b, 3, 4096);
	qp_attr attr{4, 1, 3, 17};
	attr.inline_bytes = 1 << 16; // more than any device allows
	const int qp = a->create_qp(attr);
	ASSERT_GE(qp, 0) << a->refusal();
	auto head = pattern(24, 1), body = pattern(1024, 2);
	ASSERT_EQ(a->register_memory(head.data(), head.size()), 0);
	sge list[] = {{head.data(), 24}, {body.data(), 8}, {body.data() + 100, 32}};
	std::unique_ptr<lent_memory> loan;
	ASSERT_EQ(a->lend_memory(body.data(), body.size(), loan, list[1].key), 0);
	list[2].key = list[1].key;
	loan.reset();
	send_wr wr{};
	wr.list = list;
	wr.n_sge = 3;
	wr.signaled = true;
	const auto send = [&] {
		return a->post_send(static_cast<std::uint32_t>(qp), in.where(), {&wr, 1});
	};
	in.post(0, 3);
	ASSERT_EQ(send(), 1);
	std::fill(head.begin(), head.end(), std::uint8_t{0}); // already read
	EXPECT_EQ(collect(*a, 1)[0].status, wc_status::success);
	const auto got = collect(*b, 1);
	ASSERT_EQ(got.size(), 1u);
	EXPECT_EQ(got[0].byte_len, COOP_GRH + 64u);
	auto wanted = pattern(24, 1);
	wanted.insert(wanted.end(), body.begin(), body.begin() + 8);
	wanted.insert(wanted.end(), body.begin() + 100, body.begin() + 132);
	EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), in.payload(0)));

	wr.n_sge = 0; // an empty send is read by neither
	ASSERT_EQ(send(), 1);
	EXPECT_EQ(collect(*a, 1)[0].status, wc_status::success);
	EXPECT_EQ(collect(*b, 1)[0].byte_len, COOP_GRH + 0u);

	wr.n_sge = 2;
	list[1].length = 1024;
	ASSERT_EQ(send(), 1);
	EXPECT_EQ(collect(*a, 1)[0].status, wc_status::other_error)
		<< "too long for inline: the device reads it";
}

TEST_F(Verbs, SaysWhatTheDeviceCannotHold)
{
	verbs_options o;
	o.cq_entries = 64;
	const auto small = make_verbs(o);
	EXPECT_EQ(small->create_qp({1, 65, 1, 1}), -ENOSPC);
	EXPECT_NE(small->refusal().find("65 completions"), std::string::npos) << small->refusal();
	EXPECT_NE(small->refusal().find("holds 64"), std::string::npos) << small->refusal();
	qp_attr both{33, 32, 1, 1};
	both.preferred = true; // sends and receives in one queue
	EXPECT_EQ(small->create_qp(both), -ENOSPC);
	EXPECT_NE(small->refusal().find("65 completions"), std::string::npos) << small->refusal();
	EXPECT_EQ(small->create_qp({1, 64, 1, 1}), 0) << small->refusal();
	const int qp = small->create_qp({1, 1, 16, 1}); // a device may take that many
	EXPECT_TRUE(qp >= 0 || qp == -EOPNOTSUPP) << qp;
	EXPECT_EQ(qp < 0, small->refusal().find("16 segments") != std::string::npos)
		<< small->refusal();
}

// All WRs name the same GRH memory, and the test looks at them after both senders' datagrams
// have arrived: each completion still names its own sender.
TEST_F(Verbs, SendersAreToldApartThoughAllWrsShareTheGrhArea)
{
	std::string why;
	const auto soft = soft_roce_beside(why);
	if (!soft)
		GTEST_SKIP() << why;
	constexpr std::uint32_t n = 4, size = 64;
	std::vector<std::uint8_t> memory(COOP_GRH + 2 * n * size);
	ASSERT_EQ(b->register_memory(memory.data(), memory.size()), 0);
	const int qp = b->create_qp({1, 2 * n, 2, 5});
	ASSERT_GE(qp, 0) << b->refusal();
	for (std::uint32_t i = 0; i < 2 * n; i++) {
		const sge list[] = {{memory.data(), COOP_GRH},
				    {memory.data() + COOP_GRH + i * size, size}};
		const recv_wr wr{i, list, 2};
		ASSERT_EQ(b->post_recv(static_cast<std::uint32_t>(qp), {&wr, 1}), 1);
	}
	address to{};
	std::copy(b->info().gid.begin(), b->info().gid.end(), to.gid);
	to.qpn = b->qpn(static_cast<std::uint32_t>(qp));
	to.qkey = 5;
	outbox from_soft(*soft), from_device(*a);
	for (std::uint32_t i = 0; i < n; i++) {
		ASSERT_EQ(from_device.send(to, {pattern(size, i)}, true, 100 + i, true), 1);
		ASSERT_EQ(collect(*a, 1).size(), 1u);
		ASSERT_EQ(from_soft.send(to, {pattern(size, i)}, true, 200 + i, true), 1);
		ASSERT_EQ(collect(*soft, 1).size(), 1u);
	}
	// Gives the last datagram time to arrive, to catch a wrong end point; a right one
	// passes without.
	std::this_thread::sleep_for(std::chrono::milliseconds(300));
	for (const completion &c : collect(*b, 2 * n)) {
		ASSERT_EQ(c.status, wc_status::success);
		EXPECT_EQ(c.src_gid, c.imm < 200 ? a->info().gid : soft->info().gid) << c.imm;
	}
}

TEST_F(Verbs, SoftRoceAndTheDeviceUnderstandEachOther)
{
	std::string why;
	const auto soft = soft_roce_beside(why);
	if (!soft)
		GTEST_SKIP() << why;
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
