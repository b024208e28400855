// SPDX-License-Identifier: MIT
// ntrdma_application.hpp - an application of ntrdma whose peer is the fuzzer's input.
//
// It has one queue pair and one registered region, posts what the input says, and watches its
// memory: only the region may change, each request completes once at most and in order, and after
// the queue pair has failed nothing changes at all.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "tests/fuzz/check.hpp"
#include "userland/ntrdma/core/queue_pair.hpp"

namespace fuzz_ntrdma
{

using namespace coop::ntrdma;

/// libFuzzer's bytes; after their end zeros.
struct input {
	const std::uint8_t *at, *end;

	std::uint32_t number(std::size_t bytes)
	{
		std::uint32_t v = 0;
		for (; bytes && at < end; bytes--)
			v = v << 8 | *at++;
		return v;
	}
	bool empty() const { return at == end; }
};

/// The halves of a link: the first is the application's.
class halves
{
public:
	halves() : at_{static_cast<half *>(std::aligned_alloc(alignof(half), 2 * sizeof(half)))}
	{
		std::memset(static_cast<void *>(at_), 0, 2 * sizeof(half));
	}
	~halves() { std::free(at_); }
	halves(const halves &) = delete;
	halves &operator=(const halves &) = delete;
	half &operator[](std::size_t i) { return at_[i]; }
	const half &operator[](std::size_t i) const { return at_[i]; }

private:
	half *at_;
};

class application
{
public:
	/// The port outlives it.
	explicit application(port &p, pair_options o = {}) : memory_(region + 2 * guard, untouched)
	{
		key = *regions.add(memory_.data() + guard, region, base(), 1, 15);
		o.number = 2;
		o.domain = 1;
		o.send_depth = o.recv_depth = 8;
		o.send_queue = &sends_;
		o.recv_queue = &recvs_;
		pair = std::make_unique<queue_pair>(regions, seen_, o);
		pair->peer = 1;
		pair->set_rights(15);
		for (auto s : {pair_state::init, pair_state::ready, pair_state::sends})
			pair->set_state(s);
		pair->attach(p);
	}
	~application() { pair.reset(); }

	/// Of the region.
	std::uint64_t base() const
	{
		return reinterpret_cast<std::uintptr_t>(memory_.data() + guard);
	}
	void post_send(input &in, bool fences)
	{
		send_request r{};
		r.op = static_cast<operation>(in.number(1) % 7);
		r.flags = signalled | (fences ? in.number(1) & fenced : 0);
		r.id = next_send_;
		r.remote = in.number(2);
		r.segments = 1;
		r.at[0] = piece_of(in);
		if (is_atomic(r.op))
			r.at[0] = {base(), 8, key};
		if (!pair->post_send(r))
			sent_.push_back(next_send_++);
	}
	void post_recv(input &in)
	{
		recv_request r{};
		r.id = next_recv_;
		r.segments = 1;
		r.at[0] = piece_of(in);
		if (!pair->post_recv(r))
			received_.push_back(next_recv_++);
	}
	void check()
	{
		for (std::size_t i = 0; i < guard; i++)
			FUZZ_CHECK(memory_[i] == untouched &&
				   memory_[guard + region + i] == untouched);
		take(sends_, sent_);
		take(recvs_, received_);
		if (pair->state() != pair_state::error)
			return;
		if (final_.empty())
			final_ = memory_;
		FUZZ_CHECK(final_ == memory_);
	}

	region_table regions;
	std::uint32_t key;
	std::unique_ptr<queue_pair> pair;

private:
	static constexpr std::size_t region = 20000, guard = 64;
	static constexpr std::uint8_t untouched = 0xaa;

	struct nothing final : watcher {
		void completed(completion_queue &) override {}
		void happened(queue_pair &, event) override {}
		void few_receives(shared_receives &) override {}
	};

	segment piece_of(input &in) const
	{
		std::uint32_t offset = in.number(2) % region;
		return {base() + offset,
			in.number(2) % static_cast<std::uint32_t>(region - offset + 1), key};
	}
	static void take(completion_queue &from, std::deque<std::uint64_t> &expected)
	{
		std::array<completion, 8> got;
		std::size_t n = from.poll(got);
		for (std::size_t i = 0; i < n; i++) {
			FUZZ_CHECK(!expected.empty() && expected.front() == got[i].id);
			expected.pop_front();
		}
	}

	std::vector<std::uint8_t> memory_, final_;
	nothing seen_;
	completion_queue sends_{seen_}, recvs_{seen_};
	std::uint64_t next_send_ = 0, next_recv_ = 0;
	std::deque<std::uint64_t> sent_, received_;
};

} // namespace fuzz_ntrdma
