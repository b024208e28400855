// SPDX-License-Identifier: MIT
// Soft RoCE end to end over the loopback: whatever is sent arrives whole, in
// order, in the right WR and nowhere else; and errors are hardware's.
#include <cstring>

#include "tests/unit/ud_pair.hpp"

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
			ASSERT_EQ(std::memcmp(in.payload(i), sent[i].data(), sent[i].size()), 0)
				<< "size " << sent[i].size();
		}
	}
	EXPECT_TRUE(in.guards_hold());
	EXPECT_EQ(b->stats().rx_packets, 4097u);
	EXPECT_EQ(b->stats().rx_bad_icrc, 0u);
	EXPECT_EQ(a->stats().tx_packets, 4097u);
	EXPECT_EQ(a->stats().tx_errors, 0u);
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

} // namespace
