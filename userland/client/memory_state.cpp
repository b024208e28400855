// SPDX-License-Identifier: MIT
// memory_state.cpp - see memory_state.hpp.
#include "userland/client/memory_state.hpp"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

namespace coop::client
{

namespace
{

constexpr std::uint64_t reserve_most = 1ull << 30;
constexpr std::uint64_t machine_part = 32, group_part = 16; // of it is the reserve

// The number behind a key, as "key: 5 kB" or "key 5" stand in a file.
std::optional<std::uint64_t> number_of(const std::string &path, const std::string &key)
{
	std::ifstream in(path);
	for (std::string line; std::getline(in, line);) {
		std::istringstream words(line);
		std::string name;
		std::uint64_t value;
		if (words >> name >> value && (name == key || name == key + ':'))
			return value;
	}
	return std::nullopt;
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
	// What the kernel drops by itself before anybody has to go.
	const std::uint64_t cache = number_of(group + "/memory.stat", "inactive_file").value_or(0) +
				    number_of(group + "/memory.stat", "active_file").value_or(0);
	const std::uint64_t held = *used - std::min(*used, cache);
	return state(*limit, *limit - std::min(*limit, held), group_part);
}

} // namespace

memory_state look_at_memory(const std::string &root)
{
	memory_state out;
	const std::string meminfo = root + "/proc/meminfo";
	const auto total = number_of(meminfo, "MemTotal");
	const auto available = number_of(meminfo, "MemAvailable");
	if (total && available)
		out = state(*total << 10, *available << 10, machine_part);
	if (const auto group = look_at_group(root))
		if (out.reserve == 0 || group->available < out.available)
			out = *group;
	return out;
}

} // namespace coop::client
