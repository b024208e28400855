// SPDX-License-Identifier: MIT
// memory_state.cpp - see memory_state.hpp.
#include "userland/client/memory_state.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
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
constexpr double stall_most = 20; // percent; files that fill the page cache give up to 7
constexpr std::uint64_t stall_step =
	8; // of the reserve: what programs that wait are left at a time

// The numbers behind keys, as "key: 5 kB" or "key 5" stand in a file.
template <std::size_t N>
std::array<std::optional<std::uint64_t>, N> numbers_of(const std::string &path,
						       const std::array<std::string_view, N> &keys)
{
	std::array<std::optional<std::uint64_t>, N> out;
	std::ifstream in(path);
	for (std::string line; std::getline(in, line);) {
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

// Percent of the last ten seconds in which all programs that would run waited for memory; from a
// file of pressure stall information.
double stall(const std::string &path)
{
	std::ifstream in(path);
	for (std::string word; in >> word;) {
		constexpr std::string_view key = "avg10=";
		if (word == "full" && in >> word && word.starts_with(key))
			return std::strtod(word.c_str() + key.size(), nullptr);
	}
	return 0;
}

// free: nobody uses it, not even as a cache. With much of it programs do not wait for this memory,
// but for that of a control group of theirs.
memory_state state(std::uint64_t total, std::uint64_t available, std::uint64_t free,
		   std::uint64_t part, const std::string &pressure)
{
	memory_state out{available, std::min(total / part, reserve_most)};
	if (free < out.reserve && stall(pressure) >= stall_most)
		out.available = std::min(available, out.reserve - out.reserve / stall_step);
	return out;
}

// Of the second version of control groups: the line "0::/path". Without a slash at its end.
std::string own_group(const std::string &root)
{
	std::ifstream in(root + "/proc/self/cgroup");
	for (std::string line; std::getline(in, line);)
		if (line.starts_with("0::/"))
			return line.substr(line.ends_with('/') ? 4 : 3);
	return {};
}

// Nothing: the group has no limit.
std::optional<memory_state> look_at_group(const std::string &group)
{
	auto limit = number_in(group + "/memory.max");
	if (const auto high = number_in(group + "/memory.high"); high && (!limit || *high < *limit))
		limit = high;
	const auto used = number_in(group + "/memory.current");
	if (!limit || !used)
		return std::nullopt;
	// The kernel drops its page cache by itself.
	const auto [inactive, active] =
		numbers_of<2>(group + "/memory.stat", {"inactive_file", "active_file"});
	const std::uint64_t cache = inactive.value_or(0) + active.value_or(0);
	const std::uint64_t held = *used - std::min(*used, cache);
	return state(*limit, *limit - std::min(*limit, held), *limit - std::min(*limit, *used),
		     group_part, group + "/memory.pressure");
}

std::optional<memory_state> look_at_machine(const std::string &root)
{
	const auto [total, available, free] =
		numbers_of<3>(root + "/proc/meminfo", {"MemTotal", "MemAvailable", "MemFree"});
	if (!total || !available)
		return std::nullopt;
	return state(*total << 10, *available << 10, free.value_or(*available) << 10, machine_part,
		     root + "/proc/pressure/memory");
}

} // namespace

memory_state look_at_memory(const std::string &root)
{
	std::optional<memory_state> out = look_at_machine(root);
	// The limit of a group above holds for this one too.
	for (std::string group = own_group(root);; group.resize(group.rfind('/'))) {
		const auto m = look_at_group(root + "/sys/fs/cgroup" + group);
		if (m && (!out || m->spare() < out->spare()))
			out = m;
		if (group.empty())
			break;
	}
	return out.value_or(memory_state{});
}

} // namespace coop::client
