// SPDX-License-Identifier: MIT
// Soft RoCE end to end over loopback: every datagram arrives whole, in order, in the right WR
// and nowhere else; errors are those of hardware.
#include <algorithm>
#include <cstring>
#include <set>
#include <system_error>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/unit/ud/pair.hpp"

using namespace ud_test;

namespace
{

struct SoftRoce : testing::Test {
	std::unique_ptr<endpoint> a = make_soft_roce(options());
	std::unique_ptr<endpoint> b = make_soft_roce(options());
};

TEST_F(SoftRoce, CarriesEverySizeUpToTheMtu)
{
	constexpr std::size_t batch = 61;
	outbox out(*a);
	inbox in(*b, batch, 4096);
	for (std::size_t first = 0; first <= 4096; first += batch) {
		const std::size_t n = std::min(batch, 4097 - first);
		in.post(0, n);
		std::vector<std::vector<std::uint8_t>> data;
		for (std::size_t i = 0; i < n; i++)
			data.push_back(pattern(first + i, static_cast<unsigned>(first + i)));
		const auto sent = data;
		ASSERT_EQ(out.send(in.where(), std::move(data), first % 2), static_cast<int>(n));
		const auto got = collect(*b, n);
		ASSERT_EQ(got.size(), n);
		for (std::size_t i = 0; i < n; i++) {
			ASSERT_EQ(got[i].status, wc_status::success);
			ASSERT_EQ(got[i].wr_id, i);
			ASSERT_EQ(got[i].byte_len, COOP_GRH + first + i);
			ASSERT_EQ(got[i].has_imm, first % 2 == 1);
			ASSERT_EQ(got[i].src_qp, a->qpn(out.qp));
			ASSERT_EQ(got[i].src_gid, a->info().gid);
			ASSERT_TRUE(std::equal(sent[i].begin(), sent[i].end(), in.payload(i)))
				<< "size " << sent[i].size();
		}
	}
	EXPECT_TRUE(in.guards_hold());
	EXPECT_EQ(b->stats().rx_packets, 4097u);
	EXPECT_EQ(b->stats().rx_bad_icrc, 0u);
	EXPECT_EQ(a->stats().tx_packets, 4097u);
	EXPECT_EQ(a->stats().tx_errors, 0u);
}

TEST(SoftRoceTrafficClass, IsThatOfEachPacket)
{
	constexpr std::uint8_t wanted = 104;
	soft_roce_options o = options();
	o.traffic_class = wanted;
	const auto a = make_soft_roce(o);
	outbox out(*a);

	const std::string ip = loopback_address();
	const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), on = 1;
	ASSERT_GE(fd, 0);
	const std::unique_ptr<const int, void (*)(const int *)> owner(
		&fd, [](const int *f) { ::close(*f); });
	sockaddr_in at{};
	at.sin_family = AF_INET;
	at.sin_port = htons(4791);
	ASSERT_EQ(::inet_pton(AF_INET, ip.c_str(), &at.sin_addr), 1);
	ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr *>(&at), sizeof(at)), 0);
	ASSERT_EQ(::setsockopt(fd, IPPROTO_IP, IP_RECVTOS, &on, sizeof(on)), 0);

	address to{};
	to.gid[10] = to.gid[11] = 0xff;
	std::memcpy(to.gid + 12, &at.sin_addr, 4);
	to.qpn = 17;
	ASSERT_EQ(out.send(to, {pattern(100, 1)}, false), 1);

	std::uint8_t packet[256];
	char control[64];
	iovec part{packet, sizeof(packet)};
	msghdr m{};
	m.msg_iov = &part;
	m.msg_iovlen = 1;
	m.msg_control = control;
	m.msg_controllen = sizeof(control);
	pollfd ready{fd, POLLIN, 0};
	ASSERT_EQ(::poll(&ready, 1, 10000), 1);
	ASSERT_GT(::recvmsg(fd, &m, 0), 100);
	const cmsghdr *c = CMSG_FIRSTHDR(&m);
	ASSERT_TRUE(c && c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS);
	EXPECT_EQ(*CMSG_DATA(c), wanted);
}

TEST_F(SoftRoce, ReceivesABatchOfPagesWithoutAnExtraCopy)
{
	outbox out(*a);
	inbox in(*b, 64, 4096);
	for (int round = 0; round < 3; round++) {
		in.post(0, 64);
		std::vector<std::vector<std::uint8_t>> data;
		for (unsigned i = 0; i < 64; i++)
			data.push_back(pattern(4096, i + static_cast<unsigned>(round) * 64));
		const auto sent = data;
		ASSERT_EQ(out.send(in.where(), std::move(data), true, 7000), 64);
		const auto got = collect(*b, 64);
		for (std::size_t i = 0; i < got.size(); i++) {
			ASSERT_EQ(got[i].wr_id, i);
			ASSERT_EQ(got[i].imm, 7000 + i);
			ASSERT_EQ(std::memcmp(in.payload(i), sent[i].data(), 4096), 0);
		}
	}
	EXPECT_TRUE(in.guards_hold());
	EXPECT_EQ(b->stats().rx_copied, 0u);
	EXPECT_LE(a->stats().tx_calls, 3u);
	EXPECT_LE(b->stats().rx_calls, 3u * 5 + 3);
}

// Any split of payload over entries, at any alignment, in and out.
TEST_F(SoftRoce, GathersAndScattersFragmentsAtAnyAlignment)
{
	constexpr std::uint32_t total = 2048 + 77;
	auto source = pattern(total + 64, 1);
	std::vector<std::uint8_t> target(8192, inbox::poison);
	ASSERT_EQ(a->register_memory(source.data(), source.size()), 0);
	ASSERT_EQ(b->register_memory(target.data(), target.size()), 0);
	const int from = a->create_qp({64, 0, 3, 5}), to = b->create_qp({0, 64, 4, 6});
	ASSERT_GE(from, 0);
	ASSERT_GE(to, 0);
	const auto qp = static_cast<std::uint32_t>(to);
	address dst{};
	std::copy_n(b->info().gid.begin(), 16, dst.gid);
	dst.qpn = b->qpn(qp);
	dst.qkey = 6;

	for (std::uint32_t offset = 0; offset < 9; offset++) {
		for (std::uint32_t cut : {0u, 1u, 3u, 39u, 1024u, total - 1, total}) {
			std::fill(target.begin(), target.end(), inbox::poison);
			// GRH and the first payload bytes | a gap | the rest in two pieces
			const std::uint32_t near = cut / 2;
			const sge in[] = {{target.data() + offset, COOP_GRH + near},
					  {target.data() + 3000 + offset, cut - near},
					  {target.data() + 5500 - offset, total - cut}};
			const recv_wr recv{1, in, 3};
			ASSERT_EQ(b->post_recv(qp, {&recv, 1}), 1);
			const sge out[] = {{source.data() + offset, cut},
					   {source.data() + offset + cut, 0},
					   {source.data() + offset + cut, total - cut}};
			const send_wr send{2, out, 3, 9, true, false};
			ASSERT_EQ(a->post_send(static_cast<std::uint32_t>(from), dst, {&send, 1}),
				  1);
			const auto got = collect(*b, 1);
			ASSERT_EQ(got.size(), 1u);
			ASSERT_EQ(got[0].byte_len, COOP_GRH + total);
			std::vector<std::uint8_t> joined;
			for (const sge &e : in) {
				auto *p = static_cast<std::uint8_t *>(e.addr);
				joined.insert(joined.end(), p, p + e.length);
			}
			ASSERT_EQ(std::memcmp(joined.data() + COOP_GRH, source.data() + offset,
					      total),
				  0)
				<< offset << " " << cut;
			const auto untouched = static_cast<std::size_t>(
				std::count(target.begin(), target.end(), inbox::poison));
			ASSERT_GE(untouched, target.size() - joined.size());
		}
	}
}

// Sends that may wait for more are copied, leave at the next doorbell in one system call, and
// arrive in order: a page and the shorter message after it, of two queue pairs.
TEST_F(SoftRoce, WhatMayWaitLeavesTogether)
{
	inbox pages(*b, 2, 4096), messages(*b, 2, 512);
	pages.post(0, 2);
	messages.post(0, 2);
	const auto page = pattern(4096, 1), message = pattern(200, 2);
	auto memory = page;
	ASSERT_EQ(a->register_memory(memory.data(), memory.size()), 0);
	const int qp = a->create_qp({4, 0, 1, 1});
	ASSERT_GE(qp, 0);
	const auto from = static_cast<std::uint32_t>(qp);
	for (const bool with_immediate : {true, false}) {
		std::copy(page.begin(), page.end(), memory.begin());
		const auto before = a->stats();
		const sge first{memory.data(), 4096}, second{memory.data(), 200};
		send_wr wr{1, &first, 1, 7, with_immediate, true, true};
		ASSERT_EQ(a->post_send(from, pages.where(), {&wr, 1}), 1);
		std::copy(message.begin(), message.end(), memory.begin());
		wr = {2, &second, 1, 8, false, true, true};
		ASSERT_EQ(a->post_send(from, messages.where(), {&wr, 1}), 1);
		std::fill(memory.begin(), memory.end(), std::uint8_t{0});
		EXPECT_TRUE(drain(*b).empty());
		a->flush();
		EXPECT_EQ(a->stats().tx_calls - before.tx_calls, 1u);
		const auto got = collect(*b, 2);
		ASSERT_EQ(got.size(), 2u);
		EXPECT_EQ(got[0].qp, pages.qp);
		EXPECT_EQ(got[0].byte_len, COOP_GRH + 4096);
		EXPECT_EQ(got[0].has_imm, with_immediate);
		EXPECT_EQ(got[1].qp, messages.qp);
		EXPECT_EQ(got[1].byte_len, COOP_GRH + 200);
		EXPECT_EQ(std::memcmp(pages.payload(got[0].wr_id), page.data(), 4096), 0);
		EXPECT_EQ(std::memcmp(messages.payload(got[1].wr_id), message.data(), 200), 0);
		EXPECT_EQ(collect(*a, 2).size(), 2u);
	}
}

// The super packets of two queue pairs alternate: every guess of the receiver is wrong.
TEST_F(SoftRoce, InterleavedQueuePairsGetTheirOwn)
{
	constexpr std::size_t n = 15, rounds = 12, boxes = 3;
	outbox out(*a);
	std::vector<std::unique_ptr<inbox>> in;
	for (std::size_t i = 0; i < boxes; i++)
		in.push_back(std::make_unique<inbox>(*b, n * rounds, 4096));
	for (auto &box : in)
		box->post(0, n * rounds);
	std::vector<std::vector<std::vector<std::uint8_t>>> sent(boxes);
	for (unsigned r = 0; r < rounds; r++) {
		for (std::size_t i = 0; i < boxes; i++) {
			std::vector<std::vector<std::uint8_t>> data;
			for (unsigned k = 0; k < n; k++)
				data.push_back(pattern(
					4096, r * 100 + k + static_cast<unsigned>(i) * 10000));
			sent[i].insert(sent[i].end(), data.begin(), data.end());
			ASSERT_EQ(out.send(in[i]->where(), std::move(data)), static_cast<int>(n));
		}
	}
	const auto got = collect(*b, n * rounds * boxes);
	std::vector<std::size_t> next(boxes, 0);
	for (const completion &c : got) {
		ASSERT_EQ(c.status, wc_status::success);
		ASSERT_LT(c.qp, boxes);
		ASSERT_EQ(c.wr_id, next[c.qp]++) << "posting order";
	}
	for (std::size_t i = 0; i < boxes; i++) {
		EXPECT_TRUE(in[i]->guards_hold());
		for (std::size_t k = 0; k < n * rounds; k++)
			ASSERT_EQ(std::memcmp(in[i]->payload(k), sent[i][k].data(), 4096), 0)
				<< i << " " << k;
	}
	EXPECT_EQ(b->stats().rx_packets, n * rounds * boxes);
	// The receiver notices a wrong guess and then searches: it may copy the first super
	// packet after a change, not all.
	EXPECT_LE(b->stats().rx_copied, 4u * n * 4200);
}

// Any mix of sizes, pads and immediates, so that layouts shift within a queue pair.
TEST_F(SoftRoce, MixedSizesShiftNothing)
{
	outbox out(*a);
	inbox in(*b, 60, 4096);
	std::uint32_t x = 12345;
	for (int round = 0; round < 40; round++) {
		in.post(0, 60);
		std::vector<std::vector<std::uint8_t>> sent;
		while (sent.size() < 60) {
			static constexpr std::size_t sizes[] = {4096, 4096, 0,    0,   1,
								2048, 4095, 4093, 300, 64};
			x = x * 1664525u + 1013904223u;
			const std::size_t size = sizes[(x >> 16) % 10];
			const std::size_t run =
				std::min<std::size_t>(1 + (x >> 24) % 20, 60 - sent.size());
			std::vector<std::vector<std::uint8_t>> data;
			for (std::size_t i = 0; i < run; i++)
				data.push_back(pattern(size, x + static_cast<unsigned>(i)));
			sent.insert(sent.end(), data.begin(), data.end());
			ASSERT_EQ(out.send(in.where(), std::move(data), x & 0x1000),
				  static_cast<int>(run));
		}
		const auto got = collect(*b, 60);
		ASSERT_EQ(got.size(), 60u);
		for (std::size_t i = 0; i < 60; i++) {
			ASSERT_EQ(got[i].wr_id, i);
			ASSERT_EQ(got[i].byte_len, COOP_GRH + sent[i].size());
			ASSERT_TRUE(std::equal(sent[i].begin(), sent[i].end(), in.payload(i)));
		}
		ASSERT_TRUE(in.guards_hold());
	}
}

TEST_F(SoftRoce, NoReceivePostedDropsSilentlyAndSenderSeesSuccess)
{
	outbox out(*a);
	inbox in(*b, 2, 4096);
	in.post(0, 1);
	ASSERT_EQ(out.send(in.where(), {pattern(4096, 1), pattern(4096, 2), pattern(4096, 3)}, true,
			   0, true),
		  3);
	const auto sends = collect(*a, 3);
	for (const auto &c : sends) {
		EXPECT_EQ(c.status, wc_status::success);
		EXPECT_FALSE(c.is_recv);
	}
	EXPECT_EQ(drain(*b).size(), 1u);
	EXPECT_EQ(b->stats().rx_no_wr, 2u);
	in.post(1, 1);
	ASSERT_EQ(out.send(in.where(), {pattern(64, 4)}), 1);
	EXPECT_EQ(collect(*b, 1)[0].status, wc_status::success) << "the queue pair still works";
}

TEST_F(SoftRoce, WrongQkeyIsDropped)
{
	outbox out(*a);
	inbox in(*b, 4, 4096, 0x80001234);
	in.post(0, 4);
	address wrong = in.where();
	wrong.qkey = 0x1234; // bit 31 is not special
	ASSERT_EQ(out.send(wrong, {pattern(4096, 1), pattern(100, 2)}), 2);
	EXPECT_TRUE(drain(*b).empty());
	EXPECT_EQ(b->stats().rx_bad_qkey, 2u);
	ASSERT_EQ(out.send(in.where(), {pattern(4096, 1)}), 1);
	EXPECT_EQ(collect(*b, 1)[0].wr_id, 0u);
}

TEST_F(SoftRoce, UnknownQueuePairIsDropped)
{
	outbox out(*a);
	inbox in(*b, 1, 4096);
	in.post(0, 1);
	address other = in.where();
	other.qpn ^= 0x001000; // the same index, another generation
	ASSERT_EQ(out.send(other, {pattern(64, 1)}), 1);
	other.qpn = in.where().qpn + 1;
	ASSERT_EQ(out.send(other, {pattern(64, 1)}), 1);
	EXPECT_TRUE(drain(*b).empty());
	EXPECT_EQ(b->stats().rx_no_qp, 2u);
}

TEST_F(SoftRoce, DatagramLongerThanItsWrKillsTheQueuePairOnly)
{
	outbox out(*a);
	inbox small(*b, 4, 1000), other(*b, 1, 4096);
	small.post(0, 4);
	other.post(0, 1);
	ASSERT_EQ(out.send(small.where(), {pattern(1000, 1), pattern(1001, 2), pattern(10, 3)}), 3);
	const auto got = collect(*b, 4);
	ASSERT_EQ(got.size(), 4u);
	EXPECT_EQ(got[0].status, wc_status::success);
	EXPECT_EQ(got[1].status, wc_status::length_error);
	EXPECT_EQ(got[2].status, wc_status::flushed);
	EXPECT_EQ(got[3].status, wc_status::flushed);
	for (std::size_t i = 0; i < 4; i++)
		EXPECT_EQ(got[i].wr_id, i);
	EXPECT_EQ(b->stats().rx_too_long, 1u);
	EXPECT_TRUE(small.guards_hold());

	// WRs posted now are flushed until the reset.
	small.post(0, 1);
	EXPECT_EQ(collect(*b, 1)[0].status, wc_status::flushed);
	ASSERT_EQ(b->modify_qp(small.qp, qp_state::reset), 0);
	ASSERT_EQ(b->modify_qp(small.qp, qp_state::ready), 0);
	small.post(0, 1);
	ASSERT_EQ(out.send(small.where(), {pattern(500, 1)}), 1);
	ASSERT_EQ(out.send(other.where(), {pattern(500, 1)}), 1);
	for (const auto &c : collect(*b, 2))
		EXPECT_EQ(c.status, wc_status::success);
}

TEST_F(SoftRoce, OverTheMtuVanishesWithSuccess)
{
	soft_roce_options o = options();
	o.mtu = 1024;
	auto narrow = make_soft_roce(o);
	EXPECT_EQ(narrow->info().mtu, 1024u);
	outbox out(*narrow);
	inbox in(*b, 3, 4096);
	in.post(0, 3);
	ASSERT_EQ(out.send(in.where(), {pattern(1024, 1), pattern(1028, 2), pattern(1020, 3)}, true,
			   0, true),
		  3);
	for (const auto &c : collect(*narrow, 3))
		EXPECT_EQ(c.status, wc_status::success);
	const auto got = collect(*b, 2);
	EXPECT_EQ(got[0].imm, 0u);
	EXPECT_EQ(got[1].imm, 2u);
	EXPECT_TRUE(drain(*b).empty());

	// The reverse: the sender's MTU is larger than the receiver's.
	outbox wide(*a);
	inbox tight(*narrow, 2, 4096);
	tight.post(0, 2);
	ASSERT_EQ(wide.send(tight.where(), {pattern(4096, 1), pattern(1024, 2)}), 2);
	EXPECT_EQ(collect(*narrow, 1)[0].byte_len, COOP_GRH + 1024u);
	EXPECT_EQ(narrow->stats().rx_malformed, 1u);
}

TEST_F(SoftRoce, StopFlushesEveryWrThenResetIsAllowed)
{
	outbox out(*a);
	inbox in(*b, 8, 4096);
	in.post(0, 8);
	ASSERT_EQ(out.send(in.where(), {pattern(4096, 1), pattern(4096, 2)}), 2);
	ASSERT_EQ(collect(*b, 2).size(), 2u);

	EXPECT_EQ(b->modify_qp(in.qp, qp_state::reset), -EBUSY);
	EXPECT_EQ(b->modify_qp(in.qp, qp_state::ready), -EBUSY);
	ASSERT_EQ(b->modify_qp(in.qp, qp_state::error), 0);
	EXPECT_EQ(b->modify_qp(in.qp, qp_state::reset), -EBUSY) << "completions wait to be polled";
	EXPECT_FALSE(b->arm());
	const auto flushed = collect(*b, 6);
	for (std::size_t i = 0; i < flushed.size(); i++) {
		EXPECT_EQ(flushed[i].status, wc_status::flushed);
		EXPECT_EQ(flushed[i].wr_id, i + 2);
	}
	// Nothing arrives in a stopped or reset queue pair.
	ASSERT_EQ(out.send(in.where(), {pattern(4096, 3)}), 1);
	EXPECT_TRUE(drain(*b).empty());
	ASSERT_EQ(b->modify_qp(in.qp, qp_state::reset), 0);
	const sge one{in.slot(0), 4136};
	const recv_wr wr{0, &one, 1};
	EXPECT_EQ(b->post_recv(in.qp, {&wr, 1}), -EINVAL);
	ASSERT_EQ(b->modify_qp(in.qp, qp_state::ready), 0);
	in.post(0, 1);
	ASSERT_EQ(out.send(in.where(), {pattern(4096, 4)}), 1);
	EXPECT_EQ(collect(*b, 1)[0].status, wc_status::success);
}

TEST_F(SoftRoce, SendsOnAStoppedQueuePairAreFlushed)
{
	outbox out(*a);
	inbox in(*b, 1, 4096);
	in.post(0, 1);
	ASSERT_EQ(a->modify_qp(out.qp, qp_state::error), 0);
	ASSERT_EQ(out.send(in.where(), {pattern(64, 1), pattern(64, 2)}), 2);
	for (const auto &c : collect(*a, 2))
		EXPECT_EQ(c.status, wc_status::flushed);
	EXPECT_TRUE(drain(*b).empty());
}

TEST_F(SoftRoce, RefusesWhatHardwareRefuses)
{
	std::vector<std::uint8_t> memory(8192);
	ASSERT_EQ(b->register_memory(memory.data(), 4136), 0);
	const int made = b->create_qp({1, 1, 2, 1});
	ASSERT_GE(made, 0);
	const auto qp = static_cast<std::uint32_t>(made);
	const auto post = [&](const std::vector<sge> &list) {
		const recv_wr wr{0, list.data(), static_cast<std::uint32_t>(list.size())};
		return b->post_recv(qp, {&wr, 1});
	};
	EXPECT_EQ(post({{memory.data(), 4137}}), -EFAULT) << "beyond the registered memory";
	EXPECT_EQ(post({{memory.data(), 39}}), -EINVAL) << "no room for the GRH";
	EXPECT_EQ(post({{memory.data(), 40}, {memory.data(), 1}, {memory.data(), 1}}), -EINVAL);
	EXPECT_EQ(post({{memory.data(), 4136}}), 1);
	EXPECT_EQ(post({{memory.data(), 4136}}), -ENOMEM) << "the queue is full";
	EXPECT_EQ(b->create_qp({1, 1 << 20, 1, 1}), -EINVAL);
	EXPECT_EQ(b->create_qp({1, 1, 0, 1}), -EINVAL);
	EXPECT_EQ(b->modify_qp(99, qp_state::error), -EINVAL);

	address v6{};
	v6.gid[0] = 0xfd;
	const sge one{memory.data(), 8};
	const send_wr wr{0, &one, 1, 0, false, true};
	EXPECT_EQ(b->post_send(qp, v6, {&wr, 1}), -EAFNOSUPPORT);
	address self{};
	std::copy_n(b->info().gid.begin(), 16, self.gid);
	EXPECT_EQ(b->post_send(qp, self, {&wr, 1}), 1);
	EXPECT_EQ(b->post_send(qp, self, {&wr, 1}), -ENOMEM) << "its completion waits to be polled";
	EXPECT_EQ(collect(*b, 1)[0].status, wc_status::success);
	EXPECT_EQ(b->post_send(qp, self, {&wr, 1}), 1);
}

TEST_F(SoftRoce, GrhHoldsTheIpv4HeaderOfTheSender)
{
	outbox out(*a);
	inbox in(*b, 2, 4096);
	in.post(0, 2);
	ASSERT_EQ(out.send(in.where(), {pattern(4096, 1), pattern(4096, 2)}), 2);
	const auto got = collect(*b, 2);
	for (std::uint8_t i = 0; i < 2; i++) {
		const std::uint8_t *grh = in.slot(i);
		EXPECT_EQ(grh[20], 0x45);
		EXPECT_EQ(grh[20 + 5], i) << "identification: segment of the super packet";
		EXPECT_EQ(std::memcmp(grh + 32, a->info().gid.data() + 12, 4), 0);
		EXPECT_EQ(std::memcmp(grh + 36, b->info().gid.data() + 12, 4), 0);
		EXPECT_TRUE(got[i].has_gid);
	}
}

TEST_F(SoftRoce, ArmTellsWhatIsThere)
{
	outbox out(*a);
	inbox in(*b, 1, 4096);
	in.post(0, 1);
	EXPECT_TRUE(b->arm());
	pollfd p{b->fd(), POLLIN, 0};
	EXPECT_EQ(::poll(&p, 1, 0), 0);
	ASSERT_EQ(out.send(in.where(), {pattern(64, 1)}), 1);
	EXPECT_EQ(::poll(&p, 1, 20000), 1);
	EXPECT_FALSE(b->arm()) << "a datagram waits";
	EXPECT_EQ(collect(*b, 1).size(), 1u);
	EXPECT_TRUE(b->arm());
}

TEST_F(SoftRoce, PollOfNothingIsOneCall)
{
	completion c[4];
	const auto before = b->stats().rx_calls;
	EXPECT_EQ(b->poll(c), 0u);
	EXPECT_EQ(b->stats().rx_calls, before + 1);
}

TEST(SoftRoceOpen, SaysWhatIsWrong)
{
	const auto text = [](const std::string &ip) -> std::string {
		try {
			make_soft_roce(options(ip));
		} catch (const std::system_error &e) {
			return e.what();
		}
		return "no error";
	};
	EXPECT_NE(text("").find("numeric"), std::string::npos);
	EXPECT_NE(text("localhost").find("numeric"), std::string::npos);
	EXPECT_NE(text("0.0.0.0").find("one address"), std::string::npos);
	EXPECT_NE(text("192.0.2.1").find("no interface"), std::string::npos);
	const std::string ip = loopback_address();
	auto first = make_soft_roce(options(ip));
	EXPECT_NE(text(ip).find("own address"), std::string::npos);
}

// A bad wire: a datagram that arrives is whole, and the same seed repeats the same run.
TEST(SoftRoceFaults, DamageIsNoticedAndRepeatable)
{
	struct outcome {
		std::vector<std::uint32_t> order;
		std::uint64_t bad;
		bool operator==(const outcome &) const = default;
	};
	const auto run = [](std::uint64_t seed) {
		soft_roce_options o = options();
		o.faults = {100000, 100000, 100000, 100000, seed};
		auto a = make_soft_roce(o), b = make_soft_roce(options());
		outbox out(*a);
		inbox in(*b, 400, 1024);
		in.post(0, 400);
		std::vector<std::vector<std::uint8_t>> sent;
		for (unsigned i = 0; i < 10; i++) {
			std::vector<std::vector<std::uint8_t>> data;
			for (unsigned k = 0; k < 20; k++)
				data.push_back(pattern(1024, i * 20 + k));
			sent.insert(sent.end(), data.begin(), data.end());
			EXPECT_EQ(out.send(in.where(), std::move(data), true, i * 20), 20);
		}
		drain(*a); // releases a delayed datagram
		outcome r{};
		for (const completion &c : drain(*b)) {
			EXPECT_EQ(std::memcmp(in.payload(c.wr_id), sent.at(c.imm).data(), 1024), 0);
			r.order.push_back(c.imm);
		}
		const auto s = b->stats();
		r.bad = s.rx_bad_icrc + s.rx_malformed;
		EXPECT_EQ(s.rx_no_qp + s.rx_bad_qkey, 0u) << "a corrupted header passed";
		return r;
	};
	const outcome first = run(42);
	EXPECT_GT(first.bad, 5u);
	EXPECT_FALSE(std::is_sorted(first.order.begin(), first.order.end()));
	EXPECT_LT(std::set<std::uint32_t>(first.order.begin(), first.order.end()).size(), 195u);
	EXPECT_EQ(run(42), first);
	EXPECT_NE(run(43), first);
}

TEST(SoftRoceOnOneAddress, NodesWithUdpPortsOfTheirOwnReachEachOther)
{
	const std::string ip = loopback_address();
	std::unique_ptr<endpoint> ep[3];
	for (std::uint32_t i = 0; i < 3; i++) {
		soft_roce_options o = options(ip);
		o.port = 0;
		o.first_qpn = 0x1000 + 64 * i;
		o.any_memory = true;
		ep[i] = make_soft_roce(o);
		ASSERT_NE(ep[i]->info().lid, 0);
	}
	std::unique_ptr<inbox> in[3];
	for (std::uint32_t i = 0; i < 3; i++) {
		in[i] = std::make_unique<inbox>(*ep[i], 4, 256);
		in[i]->post(0, 4);
		EXPECT_EQ(ep[i]->qpn(in[i]->qp), 0x1000 + 64 * i);
	}
	for (std::uint32_t to = 1; to < 3; to++) {
		std::vector<std::uint8_t> text = pattern(200, to); // not registered
		address a = in[to]->where();
		a.lid = ep[to]->info().lid;
		const sge one{text.data(), 200};
		const send_wr wr{0, &one, 1, 0, false, false};
		ASSERT_EQ(ep[0]->post_send(in[0]->qp, a, {&wr, 1}), 1);
		const auto got = collect(*ep[to], 1);
		ASSERT_EQ(got.size(), 1u);
		EXPECT_TRUE(std::equal(text.begin(), text.end(), in[to]->payload(0)));
		// The source that it reports is where an answer goes.
		EXPECT_EQ(got[0].src_lid, ep[0]->info().lid);
		EXPECT_EQ(got[0].src_qp, ep[0]->qpn(in[0]->qp));
	}
	EXPECT_EQ(ep[1]->stats().rx_bad_icrc + ep[2]->stats().rx_bad_icrc, 0u);
}

} // namespace
