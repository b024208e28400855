// SPDX-License-Identifier: MIT
// budget.hpp - a limit on the bytes that peers can make this side keep.
//
// A grant counts from the moment a peer's message names a length until the memory is free, or
// belongs to the program. Grants share the budget, because a request may outlive its rpc object.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace coop::net::core
{

class budget
{
public:
	explicit budget(std::uint64_t bytes) : left_(bytes) {}

	bool take(std::uint64_t bytes)
	{
		std::uint64_t left = left_.load(std::memory_order_relaxed);
		while (bytes <= left)
			if (left_.compare_exchange_weak(left, left - bytes,
							std::memory_order_relaxed))
				return true;
		return false;
	}
	void give(std::uint64_t bytes) { left_.fetch_add(bytes, std::memory_order_relaxed); }

private:
	std::atomic<std::uint64_t> left_;
};

/// Bytes of a budget, or none. Returns them.
class grant
{
public:
	grant() = default;
	/// None, if the budget has less.
	grant(const std::shared_ptr<budget> &of, std::uint64_t bytes)
	{
		if (!of->take(bytes))
			return;
		of_ = of;
		bytes_ = bytes;
	}
	grant(grant &&) noexcept = default;
	grant &operator=(grant &&o) noexcept
	{
		std::swap(of_, o.of_);
		std::swap(bytes_, o.bytes_);
		return *this;
	}
	~grant()
	{
		if (of_)
			of_->give(bytes_);
	}
	explicit operator bool() const { return of_ != nullptr; }

private:
	std::shared_ptr<budget> of_; // a moved one has none
	std::uint64_t bytes_ = 0;
};

} // namespace coop::net::core
