// SPDX-License-Identifier: MIT
// handles.hpp - the handles of operations in the ring, and what each is for.
//
// A handle is in use until the machine has taken the last event of its operation, and is then used
// again, so an operation that may have ended is named by an id. Used under the lock of the machine.
#pragma once

#include <cstdint>
#include <vector>

namespace coop::net::kernel
{

class handles
{
public:
	static constexpr std::uint32_t none = 0xffffffff;
	enum class use : std::uint8_t { free, send, probe, receive, offer, fetch };
	struct record {
		use what = use::free;
		std::uint16_t again = 0;  // times that it was taken, modulo 65536
		std::uint32_t number = 0; // of what it is for
	};

	explicit handles(std::uint32_t most) : records_(most)
	{
		free_.reserve(most);
		for (std::uint32_t i = most; i-- > 0;)
			free_.push_back(i);
	}
	/// `none`: all are in use.
	std::uint32_t take(use what, std::uint32_t number)
	{
		if (free_.empty())
			return none;
		const std::uint32_t h = free_.back();
		free_.pop_back();
		records_[h].what = what;
		records_[h].again++;
		records_[h].number = number;
		return h;
	}
	void release(std::uint32_t h)
	{
		records_[h].what = use::free;
		free_.push_back(h);
	}
	/// Of an event; `free` for one that was never taken.
	record operator[](std::uint32_t h) const
	{
		return h < records_.size() ? records_[h] : record{};
	}
	/// Names one use of a handle.
	std::uint32_t id(std::uint32_t h) const
	{
		return std::uint32_t{records_[h].again} << 16 | h;
	}
	/// The handle of that use; `none`: it is over.
	std::uint32_t of(std::uint32_t id) const
	{
		const std::uint32_t h = id & 0xffff;
		return h < records_.size() && records_[h].what != use::free &&
				       records_[h].again == id >> 16
			       ? h
			       : none;
	}

private:
	std::vector<record> records_;
	std::vector<std::uint32_t> free_;
};

} // namespace coop::net::kernel
