// SPDX-License-Identifier: MIT
// memory_state.cpp - see memory_state.hpp.
#include "userland/client/memory_state.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

namespace coop::client
{

namespace
{

constexpr std::uint64_t reserve_most = 1ull << 30;
constexpr std::uint64_t machine_part = 32, group_part = 16; // of it is the reserve

// The numbers behind two keys, as "key: 5 kB" or "key 5" stand in a file.
std::array<std::optional<std::uint64_t>, 2> numbers_of(const std::string &path,
						       const std::array<std::string_view, 2> &keys)
{
	std::array<std::optional<std::uint64_t>, 2> out;
	std::ifstream in(path);
	for (std::string line; (!out[0] || !out[1]) && std::getline(in, line);) {
		std::istringstream words(line);
		std::string name;
		std::uint64_t value;
		if (!(words >> name >> value))
			continue;
		if (name.ends_with(':'))
			name.pop_back();
		for (std::size_t i = 0; i < keys.size(); i++)
			if (name == keys[i])
				out[i] = value;
	}
	return out;
}

// A file that holds a number alone; "max" and what cannot be read are none.
std::optional<std::uint64_t> number_in(const std::string &path)
{
	std::ifstream in(path);
	std::uint64_t value;
	if (in >> value)
		return value;
	return std::nullopt;
}

memory_state state(std::uint64_t total, std::uint64_t available, std::uint64_t part)
{
	return {available, std::min(total / part, reserve_most)};
}

// Of the second version of control groups: the line "0::/path".
std::string own_group(const std::string &root)
{
	std::ifstream in(root + "/proc/self/cgroup");
	for (std::string line; std::getline(in, line);)
		if (line.starts_with("0::"))
			return root + "/sys/fs/cgroup" + line.substr(3);
	return {};
}

std::optional<memory_state> look_at_group(const std::string &root)
{
	const std::string group = own_group(root);
	if (group.empty())
		return std::nullopt;
	auto limit = number_in(group + "/memory.max");
	if (const auto high = number_in(group + "/memory.high"); high && (!limit || *high < *limit))
		limit = high;
	const auto used = number_in(group + "/memory.current");
	if (!limit || !used)
		return std::nullopt;
	// The kernel drops its page cache by itself.
	const auto [inactive, active] =
		numbers_of(group + "/memory.stat", {"inactive_file", "active_file"});
	const std::uint64_t cache = inactive.value_or(0) + active.value_or(0);
	const std::uint64_t held = *used - std::min(*used, cache);
	return state(*limit, *limit - std::min(*limit, held), group_part);
}

} // namespace

memory_state look_at_memory(const std::string &root)
{
	memory_state out;
	const auto [total, available] =
		numbers_of(root + "/proc/meminfo", {"MemTotal", "MemAvailable"});
	if (total && available)
		out = state(*total << 10, *available << 10, machine_part);
	if (const auto group = look_at_group(root))
		if (out.reserve == 0 || group->spare() < out.spare())
			out = *group;
	return out;
}

} // namespace coop::client
