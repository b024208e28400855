// SPDX-License-Identifier: MIT
// random.hpp - numbers that a peer cannot guess, however many it has seen: keys of bulk operations
// and of memory, cookies of links.
#pragma once

#include <array>
#include <cstdint>
#include <sys/random.h>

namespace coop::net
{

/// Random numbers from the kernel, fetched many at a time. One owner.
class random_source
{
public:
	std::uint64_t next()
	{
		if (at_ == numbers_.size()) {
			// Up to 256 bytes come complete and uninterrupted.
			while (::getrandom(numbers_.data(), sizeof(numbers_), 0) !=
			       static_cast<ssize_t>(sizeof(numbers_)))
				continue;
			at_ = 0;
		}
		return numbers_[at_++];
	}

private:
	std::array<std::uint64_t, 32> numbers_;
	std::size_t at_ = 32;
};

/// A single one.
inline std::uint64_t random_number()
{
	std::uint64_t v = 0;
	while (::getrandom(&v, sizeof(v), 0) != sizeof(v))
		continue;
	return v;
}

} // namespace coop::net
