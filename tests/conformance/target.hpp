// SPDX-License-Identifier: MIT
// target.hpp - what the suite must know of a transport to put it to the test.
//
// A transport joins by an entry in targets.cpp. What it cannot be asked for here it says by
// leaving the function out; the tests that need it are then skipped with that reason.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

#include "coop/net.hpp"

namespace conformance
{

namespace net = coop::net;
using namespace net;
using parameters = std::vector<std::pair<std::string, std::string>>;

/// What a wire does to packets.
struct faults {
	std::uint32_t drop, duplicate, reorder; // per million
	std::uint64_t seed;
	std::uint32_t slow_us = 0; // that each datagram takes
};

struct target {
	std::string label; ///< in the names of tests; a word
	std::string transport;
	parameters options = {};

	/// Addresses of this host that no other process uses at the same time: number 0 to 99.
	std::function<std::string(unsigned)> address;
	/// With `*`; what it may become is in the order of ids, beginning with highest_id.
	std::string any;
	std::uint32_t highest_id = 4095;
	/// Of a host that is not this one.
	std::string foreign;

	/// Further options under which sends and active bulk operations never end by themselves.
	parameters stall = {};
	/// Further options under which a machine stays in STARTING for long.
	parameters slow_start = {};
	/// Further options for a wire with faults.
	std::function<parameters(const faults &)> wire;
	/// Further options so that sequence numbers wrap after a few messages.
	parameters near_wrap = {};
	/// Further options so that what connects two machines is given up after `idle` without use.
	parameters brief = {};
	std::chrono::milliseconds idle{0};
	bool descriptors = false; ///< each such connection has one, of the process
	/// Operations after which numbers that peers tell each other come again.
	unsigned come_again = 0;
	/// What one is told who uses a descriptor for another.
	int for_another = -EPERM;
	/// What one is told who sends to an address where no machine is; 0: nothing.
	int nobody = -ECONNREFUSED;
	/// What a message ends with that no buffer has been found for; 0: nobody says so.
	int no_buffer = -ENOBUFS;
	/// Takes the place of a machine, lets itself be asked and never answers, while it lives.
	std::function<std::shared_ptr<void>(const net::address &)> mute;
	/// What one is told who sends to it.
	int muteness = -ECONNREFUSED;
	/// A sender may be told that all is well before its message is there.
	bool told_early = false;
	/// A peer that is silent for too long ends operations with -EHOSTDOWN.
	bool tires = false;
	/// What else an operation of soak_mixed may end with because of others: one on the same
	/// connection was cancelled, and its peer took too long; 0: nothing.
	int collateral = 0;
	/// Sends what an enemy would to the machine at this address; the seed makes it repeat.
	/// False: it was not let in.
	std::function<bool(const net::address &, std::uint64_t seed)> attack;
	/// Why there is no such enemy.
	std::string unattacked = "it takes nothing from outside of the program";
	/// What a process has outside of itself while it lives, and must not have for long after:
	/// how many such things there are of it.
	std::function<std::size_t(pid_t)> leftovers;
	/// Messages of at most so many bytes, from one machine to another, do not overtake each
	/// other.
	std::size_t ordered = SIZE_MAX;
	/// End points that ep_many makes.
	unsigned many = 10000;
};

/// Those in this build.
const std::vector<target> &targets();
const target *find_target(const std::string &label);

/// 127.a.b.c, with a and b of this process and c = 1 + n; other processes have others.
std::string own_ip(unsigned n);

} // namespace conformance
