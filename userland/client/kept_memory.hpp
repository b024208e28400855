// SPDX-License-Identifier: MIT
// kept_memory.hpp - a mount's memory for writes that storage has acknowledged but not yet committed
// (unstable.hpp).
//
// It is bounded. Above half of its bound the oldest files are committed in the background
// (committer.hpp); at the bound a writer waits until one has been. The bound counts chunks; a chunk
// holds many small writes, or one of any size.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace coop::client
{

class kept_memory : public std::enable_shared_from_this<kept_memory>
{
public:
	using chunk = std::shared_ptr<std::byte[]>;
	static constexpr std::size_t chunk_min = 4u << 10, chunk_max = (1u << 20) + chunk_min;
	static constexpr std::uint64_t default_bound = 64u << 20;

	// Shared: each chunk refers to it.
	static std::shared_ptr<kept_memory> create(std::uint64_t bound = default_bound)
	{
		return std::shared_ptr<kept_memory>(new kept_memory(bound));
	}
	// Takes a chunk of at least 'bytes' bytes, uninitialised; bytes: out its size. It is
	// returned with its last reference. Empty: out of memory.
	chunk take(std::size_t &bytes);
	// 0; -EINTR: the asker has gone; -ETIMEDOUT. patience: 0 means no limit. Reserves nothing:
	// writers that find room at the same time may exceed the bound by one write each.
	[[nodiscard]] int wait_for_room(std::chrono::milliseconds patience);
	[[nodiscard]] bool crowded() const;
	[[nodiscard]] std::uint64_t used() const;
	// Returns to the system what no write has needed since the last call. False: a later call
	// could return nothing more.
	bool trim();

private:
	explicit kept_memory(std::uint64_t bound) : bound_(bound) {}
	void give_back(std::byte *, std::size_t bytes);

	const std::uint64_t bound_;
	mutable std::mutex mutex_;
	std::condition_variable room_;
	std::uint64_t used_ = 0;
	// Chunks of chunk_max for the next writes: fresh memory costs more than the copy into it.
	std::vector<std::unique_ptr<std::byte[]>> idle_;
	std::size_t least_idle_ = 0; // smallest idle_ since the last trim()
};

} // namespace coop::client
