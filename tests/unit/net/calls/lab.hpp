// SPDX-License-Identifier: MIT
// lab.hpp - what the tests of messengers and calls share: transports, addresses, waiting.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <gtest/gtest.h>
#include <mutex>
#include <thread>
#include <vector>

#include "coop/net.hpp"
#include "tests/lib/own_ip.hpp"

namespace calls
{

using namespace coop::net;
using namespace std::chrono_literals;

/// Far longer than any passing test takes.
constexpr std::chrono::seconds patience{60};

struct way {
	const char *name;
	domain_options options;
};

inline void PrintTo(const way &w, std::ostream *out)
{
	*out << w.name;
}

inline std::vector<way> ways()
{
	std::vector<way> all = {
		{"mem", {"mem"}}, {"ud", {"ud"}}, {"fabric", {"fabric", {{"provider", "tcp"}}}}};
	const auto built = domain::transports();
	std::erase_if(all, [&](const way &w) {
		return std::find(built.begin(), built.end(), w.options.transport) == built.end();
	});
	return all;
}

inline std::string name_of(const testing::TestParamInfo<way> &i)
{
	return i.param.name;
}

inline std::string any_address()
{
	return own_ip(9) + "@tcp:12345:33:*";
}

inline std::vector<std::byte> patterned(std::size_t length, unsigned seed = 1)
{
	std::vector<std::byte> bytes(length);
	for (std::size_t i = 0; i < length; i++)
		bytes[i] = static_cast<std::byte>(seed + i * 7 + i / 251);
	return bytes;
}

inline std::vector<std::byte> bytes_of(std::span<const std::byte> b)
{
	return {b.begin(), b.end()};
}

inline std::string text_of(std::span<const std::byte> b)
{
	return {reinterpret_cast<const char *>(b.data()), b.size()};
}

/// Raised by callbacks, waited for by tests.
class tally
{
public:
	void add()
	{
		{
			std::lock_guard hold(lock_);
			count_++;
		}
		changed_.notify_all();
	}
	unsigned count() const
	{
		std::lock_guard hold(lock_);
		return count_;
	}
	/// @return false: patience ran out.
	bool reaches(unsigned n)
	{
		std::unique_lock hold(lock_);
		return changed_.wait_for(hold, patience, [&] { return count_ >= n; });
	}

private:
	mutable std::mutex lock_;
	std::condition_variable changed_;
	unsigned count_ = 0;
};

} // namespace calls
