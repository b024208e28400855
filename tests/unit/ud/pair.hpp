// SPDX-License-Identifier: MIT
// pair.hpp - endpoints on this machine's loopback for tests, and memory that detects writes
// past its end.
//
// Every test process takes its own addresses from 127.128.0.0/10, so that tests do not collide on
// UDP port 4791, nor with the programs that tests/e2e runs in 127.64.0.0/10.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include "userland/ud/endpoint.hpp"

namespace ud_test
{

using namespace coop::ud;

inline std::string loopback_address()
{
	static std::atomic<unsigned> next{1};
	const unsigned pid = static_cast<unsigned>(getpid()), n = next++;
	return "127." + std::to_string(128 + pid / 250 % 64) + "." + std::to_string(pid % 250 + 1) +
	       "." + std::to_string(n % 250 + 1);
}

inline soft_roce_options options(std::string ip = loopback_address())
{
	soft_roce_options o;
	o.ip = std::move(ip);
	return o;
}

// A queue pair with memory for n receives of 'size' payload bytes, in one buffer of
// poisoned bytes: slot i is [GRH 40 | payload | 16 guard bytes].
struct inbox {
	static constexpr std::uint8_t poison = 0xa5;
	static constexpr std::size_t guard = 16;

	endpoint &ep;
	std::uint32_t qp;
	std::size_t size, stride;
	std::vector<std::uint8_t> memory;

	inbox(endpoint &e, std::size_t n, std::size_t payload, std::uint32_t key = 0x11111111) :
		ep(e),
		size(payload),
		stride(COOP_GRH + payload + guard),
		memory(n * stride, poison)
	{
		const int made = ep.create_qp({64, static_cast<std::uint32_t>(n ? n : 1), 4, key});
		EXPECT_GE(made, 0);
		qp = static_cast<std::uint32_t>(made);
		if (n) {
			EXPECT_EQ(ep.register_memory(memory.data(), memory.size()), 0);
		}
	}

	std::uint8_t *slot(std::size_t i) { return memory.data() + i * stride; }
	std::uint8_t *payload(std::size_t i) { return slot(i) + COOP_GRH; }

	void post(std::size_t first, std::size_t n)
	{
		for (std::size_t i = first; i < first + n; i++) {
			const sge one{slot(i), static_cast<std::uint32_t>(COOP_GRH + size)};
			const recv_wr wr{i, &one, 1};
			ASSERT_EQ(ep.post_recv(qp, {&wr, 1}), 1);
		}
	}

	// True if no byte after the payload of any slot was written.
	bool guards_hold()
	{
		for (std::size_t i = 0; i < memory.size() / stride; i++)
			for (std::size_t k = 0; k < guard; k++)
				if (payload(i)[size + k] != poison)
					return false;
		return true;
	}

	address where() const
	{
		address a{};
		std::copy(ep.info().gid.begin(), ep.info().gid.end(), a.gid);
		a.lid = ep.info().lid;
		a.qpn = ep.qpn(qp);
		a.qkey = ep.qkey(qp);
		return a;
	}
};

// Polls until n completions have arrived; fails the test after a while without any.
inline std::vector<completion> collect(endpoint &ep, std::size_t n)
{
	using clock = std::chrono::steady_clock;
	std::vector<completion> got;
	auto deadline = clock::now() + std::chrono::seconds(20);
	while (got.size() < n && clock::now() < deadline) {
		completion batch[32];
		const std::size_t k = ep.poll({batch, std::min<std::size_t>(32, n - got.size())});
		got.insert(got.end(), batch, batch + k);
		if (!k && ep.arm()) {
			pollfd p{ep.fd(), POLLIN, 0};
			::poll(&p, 1, 1000);
		}
	}
	EXPECT_EQ(got.size(), n);
	return got;
}

// Polls until the endpoint has seen every datagram that a local sender put into the socket.
inline std::vector<completion> drain(endpoint &ep)
{
	std::vector<completion> got;
	for (;;) {
		completion batch[32];
		const std::size_t k = ep.poll(batch);
		got.insert(got.end(), batch, batch + k);
		if (!k && ep.arm())
			return got;
	}
}

// n bytes that depend on seed and position.
inline std::vector<std::uint8_t> pattern(std::size_t n, unsigned seed)
{
	std::vector<std::uint8_t> v(n);
	std::uint32_t x = seed * 2654435761u + 1;
	for (auto &b : v) {
		x = x * 1664525u + 1013904223u;
		b = static_cast<std::uint8_t>(x >> 24);
	}
	return v;
}

// Sends whole buffers as one post_send().
struct outbox {
	endpoint &ep;
	std::uint32_t qp;
	std::vector<std::vector<std::uint8_t>> kept;

	explicit outbox(endpoint &e, std::uint32_t max_send = 256) : ep(e)
	{
		const int made = ep.create_qp({max_send, 0, 4, 0x22222222});
		EXPECT_GE(made, 0);
		qp = static_cast<std::uint32_t>(made);
	}

	int send(const address &to, std::vector<std::vector<std::uint8_t>> data, bool imm = true,
		 std::uint32_t first_imm = 0, bool signaled = false)
	{
		std::vector<sge> list(data.size());
		std::vector<send_wr> wrs(data.size());
		for (std::size_t i = 0; i < data.size(); i++) {
			const bool empty = data[i].empty();
			if (!empty) {
				EXPECT_EQ(ep.register_memory(data[i].data(), data[i].size()), 0);
			}
			list[i] = {data[i].data(), static_cast<std::uint32_t>(data[i].size())};
			wrs[i] = {first_imm + i,
				  &list[i],
				  empty ? 0u : 1u,
				  static_cast<std::uint32_t>(first_imm + i),
				  imm,
				  signaled};
		}
		const int n = ep.post_send(qp, to, wrs);
		for (auto &d : data)
			kept.push_back(std::move(d)); // stays registered
		return n;
	}
};

} // namespace ud_test
