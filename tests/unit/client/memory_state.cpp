// SPDX-License-Identifier: MIT
// Reads the machine's memory files from folders that stand for / .
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/lib/scratch.hpp"
#include "userland/client/memory_state.hpp"

namespace
{

using namespace coop::client;
namespace fs = std::filesystem;

constexpr std::uint64_t mib = 1u << 20;

class Memory : public testing::Test
{
protected:
	void say(const std::string &path, const std::string &text)
	{
		const fs::path file = fs::path(root()) / path;
		fs::create_directories(file.parent_path());
		std::ofstream(file) << text;
	}
	void machine(std::uint64_t total_kib, std::uint64_t available_kib,
		     std::uint64_t free_kib = 1)
	{
		say("proc/meminfo", "MemTotal: " + std::to_string(total_kib) +
					    " kB\nMemFree: " + std::to_string(free_kib) +
					    " kB\nMemAvailable: " + std::to_string(available_kib) +
					    " kB\n");
	}
	std::string root() const { return where_.path().string(); }

private:
	test::scratch where_{"coopfs-memory"};
};

TEST_F(Memory, OfTheMachine)
{
	machine(3200 << 10, 90 << 10);
	const memory_state m = look_at_memory(root());
	EXPECT_EQ(m.available, 90 * mib);
	EXPECT_EQ(m.reserve, 100 * mib);
	EXPECT_EQ(m.lacking(), 10 * mib);
	EXPECT_FALSE(m.ample());
	machine(3200 << 10, 200 << 10);
	EXPECT_EQ(look_at_memory(root()).lacking(), 0u);
	EXPECT_TRUE(look_at_memory(root()).ample());
	machine(1ull << 30, 200 << 10);
	EXPECT_EQ(look_at_memory(root()).reserve, 1024 * mib) << "of a large machine";
}

TEST_F(Memory, OfTheOwnGroupWhereItIsTighter)
{
	machine(3200 << 10, 3000 << 10);
	say("proc/self/cgroup", "1:name=old:/\n0::/jobs/7\n");
	EXPECT_EQ(look_at_memory(root()).available, 3000 * mib) << "no files";
	const std::string group = "sys/fs/cgroup/jobs/7/";
	say(group + "memory.max", "max\n");
	say(group + "memory.current", std::to_string(310 * mib));
	say(group + "memory.stat", "anon 5\ninactive_file " + std::to_string(8 * mib) +
					   "\nactive_file " + std::to_string(2 * mib) + "\n");
	EXPECT_EQ(look_at_memory(root()).available, 3000 * mib) << "no limit";
	say(group + "memory.max", std::to_string(640 * mib));
	say(group + "memory.high", std::to_string(320 * mib));
	const memory_state m = look_at_memory(root());
	EXPECT_EQ(m.available, 20 * mib);
	EXPECT_EQ(m.reserve, 20 * mib);
	machine(3200 << 10, 10 << 10);
	EXPECT_EQ(look_at_memory(root()).available, 10 * mib) << "the machine has less";
	machine(3200 << 10, 30 << 10);
	EXPECT_EQ(look_at_memory(root()).lacking(), 70 * mib) << "the group has less, but enough";
}

TEST_F(Memory, OfAGroupAbove)
{
	machine(3200 << 10, 3000 << 10);
	say("proc/self/cgroup", "0::/jobs/7\n");
	say("sys/fs/cgroup/jobs/7/memory.max", "max\n");
	say("sys/fs/cgroup/jobs/memory.max", std::to_string(160 * mib));
	say("sys/fs/cgroup/jobs/memory.current", std::to_string(155 * mib));
	EXPECT_EQ(look_at_memory(root()).lacking(), 5 * mib);
	say("sys/fs/cgroup/memory.max", std::to_string(320 * mib));
	say("sys/fs/cgroup/memory.current", std::to_string(310 * mib));
	EXPECT_EQ(look_at_memory(root()).lacking(), 10 * mib) << "of a container";
	say("proc/self/cgroup", "0::/\n");
	EXPECT_EQ(look_at_memory(root()).lacking(), 10 * mib);
}

TEST_F(Memory, ThatProgramsWaitForIsNotToSpare)
{
	const auto waits = [](int percent) {
		return "some avg10=90.00 avg60=0.00 avg300=0.00 total=5\nfull avg10=" +
		       std::to_string(percent) + ".00 avg60=70.00 avg300=0.00 total=5\n";
	};
	machine(3200 << 10, 3000 << 10);
	say("proc/pressure/memory", waits(19));
	EXPECT_TRUE(look_at_memory(root()).ample());
	say("proc/pressure/memory", waits(20));
	EXPECT_FALSE(look_at_memory(root()).ample());
	EXPECT_EQ(look_at_memory(root()).lacking(), 100 * mib / 8);
	machine(3200 << 10, 50 << 10);
	EXPECT_EQ(look_at_memory(root()).lacking(), 50 * mib) << "less than that is left";
	machine(3200 << 10, 3000 << 10, 100 << 10);
	EXPECT_TRUE(look_at_memory(root()).ample()) << "they wait for memory of their own group";

	say("proc/self/cgroup", "0::/jobs\n");
	const std::string group = "sys/fs/cgroup/jobs/";
	say(group + "memory.max", std::to_string(320 * mib));
	say(group + "memory.stat", "anon 5\ninactive_file " + std::to_string(300 * mib) + "\n");
	say(group + "memory.pressure", waits(50));
	say(group + "memory.current", std::to_string(300 * mib));
	EXPECT_TRUE(look_at_memory(root()).ample()) << "20 MiB are free";
	say(group + "memory.current", std::to_string(301 * mib));
	EXPECT_EQ(look_at_memory(root()).lacking(), 20 * mib / 8);
}

TEST_F(Memory, WhatCannotBeReadLacksNothing)
{
	EXPECT_EQ(look_at_memory(root()).lacking(), 0u);
	say("proc/meminfo", "MemTotal: what\n");
	EXPECT_EQ(look_at_memory(root()).lacking(), 0u);
}

} // namespace
