// SPDX-License-Identifier: MIT
// The receiving half alone, with one bad datagram in a batch: the datagrams after it lie in the
// wrong WRs and must move.
#include <cstring>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "userland/ud/soft_roce_rx.hpp"

namespace
{

using namespace coop::ud;

constexpr std::size_t payload = 2048, count = 6;
constexpr std::size_t stride = head_imm + payload + icrc_bytes;
constexpr std::uint32_t tag = 7;

struct Receiver : testing::Test {
	soft_roce_core core;
	receiver rx{core};
	flow from{};
	std::vector<std::uint8_t> memory =
		std::vector<std::uint8_t>(2 * count * (COOP_GRH + payload));
	std::vector<std::uint8_t> batch;

	void SetUp() override
	{
		core.v6 = false;
		core.mtu = 4096;
		core.first_qpn = tag << soft_roce_core::index_bits;
		from.src_port = roce_port;
		for (std::uint32_t i = 0; i < 2; i++) {
			core.done.reserve_more(count);
			core.qps.push_back(std::make_unique<queue_pair>(
				i, tag << soft_roce_core::index_bits | i, qp_attr{0, count, 1, 5}));
			for (std::size_t k = 0; k < count; k++) {
				const sge one{wr(i, k), COOP_GRH + payload};
				ASSERT_EQ(core.qps[i]->push({k, &one, 1}), 0);
			}
			rx.posted(*core.qps[i]);
		}
	}

	std::uint8_t *wr(std::size_t qp, std::size_t k)
	{
		return memory.data() + (qp * count + k) * (COOP_GRH + payload);
	}

	// Datagram number k of the batch; all bytes of its payload are k + 1.
	void add(std::uint32_t qp, std::uint32_t qkey = 5)
	{
		const auto k = static_cast<std::uint16_t>(batch.size() / stride);
		batch.resize(batch.size() + stride, static_cast<std::uint8_t>(k + 1));
		std::uint8_t *p = batch.data() + k * stride;
		encode_head(p, {core.qps[qp]->number, 9, qkey, 0, k, true, 0});
		put_icrc(p + stride - icrc_bytes,
			 icrc_begin(from, stride, k, p, stride - icrc_bytes));
	}

	void arrive(bool peeked)
	{
		const auto into = peeked ? rx.lay_out(batch.data(), head_imm, batch.size(), stride)
					 : rx.lay_out();
		std::size_t at = 0;
		for (const iovec &v : into) {
			const std::size_t n = std::min(v.iov_len, batch.size() - at);
			std::memcpy(v.iov_base, batch.data() + at, n);
			at += n;
		}
		ASSERT_EQ(at, batch.size());
		rx.deliver(from, batch.size(), stride);
	}

	// The next completion belongs to this datagram, and its WR holds all of it.
	void expect(std::uint32_t qp, std::size_t slot, std::uint32_t datagram)
	{
		ASSERT_FALSE(core.done.empty());
		const completion c = core.done.front();
		core.done.pop();
		EXPECT_EQ(c.qp, qp);
		EXPECT_EQ(c.wr_id, slot);
		EXPECT_EQ(c.imm, datagram);
		EXPECT_EQ(c.status, wc_status::success);
		const std::vector<std::uint8_t> want(payload,
						     static_cast<std::uint8_t>(datagram + 1));
		EXPECT_EQ(std::memcmp(wr(qp, slot) + COOP_GRH, want.data(), payload), 0)
			<< "datagram " << datagram;
	}
};

struct ReceiverLaidOut : Receiver, testing::WithParamInterface<bool> {
};
INSTANTIATE_TEST_SUITE_P(Guessed, ReceiverLaidOut, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Peeked, ReceiverLaidOut, testing::Values(true));

TEST_P(ReceiverLaidOut, CorruptDatagramInABatchShiftsTheRest)
{
	for (std::size_t i = 0; i < 5; i++)
		add(1);
	batch[1 * stride + 500] ^= 1;
	arrive(GetParam());
	expect(1, 0, 0);
	expect(1, 1, 2);
	expect(1, 2, 3);
	expect(1, 3, 4);
	EXPECT_TRUE(core.done.empty());
	EXPECT_EQ(core.stats.rx_bad_icrc, 1u);
}

TEST_P(ReceiverLaidOut, ForeignDatagramsInABatchGoWhereTheyBelong)
{
	add(1);
	add(0);
	add(1, 6); // wrong Q_Key
	add(1);
	add(0);
	arrive(GetParam());
	expect(1, 0, 0);
	expect(0, 0, 1);
	expect(1, 1, 3);
	expect(0, 1, 4);
	EXPECT_TRUE(core.done.empty());
	EXPECT_EQ(core.stats.rx_bad_qkey, 1u);
}

TEST_P(ReceiverLaidOut, MoreThanPostedIsDropped)
{
	for (std::size_t i = 0; i < count + 2; i++)
		add(1);
	arrive(GetParam());
	for (std::size_t i = 0; i < count; i++)
		expect(1, i, static_cast<std::uint32_t>(i));
	EXPECT_TRUE(core.done.empty());
	EXPECT_EQ(core.stats.rx_no_wr, 2u);
}

} // namespace
