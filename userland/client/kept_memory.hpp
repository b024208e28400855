// SPDX-License-Identifier: MIT
// kept_memory.hpp - the memory of a mount's writes that storage has acknowledged
// and not yet promised to keep (unstable.hpp).
//
// It is bounded. Past half of its bound the oldest files are committed in the
// background (committer.hpp); at the bound a writer waits until one has been. The
// bound counts chunks, which hold many small writes each, and one of any size.
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

	// Shared, because each chunk refers to it.
	static std::shared_ptr<kept_memory> create(std::uint64_t bound = default_bound)
	{
		return std::shared_ptr<kept_memory>(new kept_memory(bound));
	}
	// At least that many bytes of any content, which become how many there are. Given back with
	// its last reference. Empty: the system has none.
	chunk take(std::size_t &bytes);
	// 0; -EINTR: the asker has gone; -ETIMEDOUT. patience: 0 is no end. Takes nothing: as many
	// writers as find room at the same time may exceed the bound by a write each.
	[[nodiscard]] int wait_for_room(std::chrono::milliseconds patience);
	[[nodiscard]] bool crowded() const;
	[[nodiscard]] std::uint64_t used() const;
	// Gives back to the system what no write has needed since the last call. False: nothing is
	// left that a later call could give back.
	bool trim();

private:
	explicit kept_memory(std::uint64_t bound) : bound_(bound) {}
	void give_back(std::byte *, std::size_t bytes);

	const std::uint64_t bound_;
	mutable std::mutex mutex_;
	std::condition_variable room_;
	std::uint64_t used_ = 0;
	// Of chunk_max, for the next write: fresh memory costs more than the copy into it.
	std::vector<std::unique_ptr<std::byte[]>> idle_;
	std::size_t least_idle_ = 0; // since the last trim()
};

} // namespace coop::client
