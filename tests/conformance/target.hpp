// SPDX-License-Identifier: MIT
// target.hpp - what the suite must know about a transport to test it.
//
// A transport joins by an entry in targets.cpp. It leaves out the functions that it cannot
// provide; tests that need one are skipped with that reason.
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
	std::uint32_t slow_us = 0; // time of each datagram
};

struct target {
	std::string label; ///< a word, for the names of tests
	std::string transport;
	parameters options = {};
	/// Another transport with the same wire and options, if there is one here.
	std::string kin = {};

	/// Addresses of this host that no other process uses meanwhile: numbers 0 to 99.
	std::function<std::string(unsigned)> address;
	/// With `*`; it becomes addresses in the order of ids, beginning with highest_id.
	std::string any;
	std::uint32_t highest_id = 4095;
	/// The address of another host.
	std::string foreign;

	/// Further options under which sends and active bulk operations never end by themselves.
	parameters stall = {};
	/// Further options under which a machine stays in STARTING for long.
	parameters slow_start = {};
	/// Further options for a wire with faults.
	std::function<parameters(const faults &)> wire;
	/// Further options so that sequence numbers wrap after a few messages.
	parameters near_wrap = {};
	/// Further options that end a connection between two machines after `idle` without use.
	parameters brief = {};
	std::chrono::milliseconds idle{0};
	bool descriptors = false; ///< each such connection uses a descriptor of the process
	/// Operations after which the numbers that peers exchange repeat.
	unsigned come_again = 0;
	/// The status of an operation with another peer's descriptor.
	int for_another = -EPERM;
	/// The status of a send to an address without a machine; 0: none is reported.
	int nobody = -ECONNREFUSED;
	/// The status of a message that found no buffer; 0: none is reported.
	int no_buffer = -ENOBUFS;
	/// Takes the place of a machine and never answers, while it lives.
	std::function<std::shared_ptr<void>(const net::address &)> mute;
	/// The status of a send to it.
	int muteness = -ECONNREFUSED;
	/// A sender may get status 0 before its message has arrived.
	bool told_early = false;
	/// A process that is stopped still takes messages, and peers read and write its memory.
	bool works_frozen = false;
	/// The first messages of a peer are refused until its host has said who it is, and come
	/// again in any order, on a fast device behind all that were sent meanwhile.
	bool asks_who = false;
	/// A peer that is silent too long ends operations with -EHOSTDOWN.
	bool tires = false;
	/// How else an operation may end because of others: one on the same connection was
	/// cancelled, and its peer took too long; 0: not at all.
	int collateral = 0;
	bool is_collateral(int status) const { return status && status == collateral; }
	/// Sends what an enemy would to the machine at this address; the seed makes it
	/// repeatable. False: the machine refused it.
	std::function<bool(const net::address &, std::uint64_t seed)> attack;
	/// The reason if there is no such enemy.
	std::string unattacked = "it takes nothing from outside of the program";
	/// Messages of at most this many bytes, from one machine to another, stay in order.
	std::size_t ordered = SIZE_MAX;
	/// End points that ep_many makes.
	unsigned many = 10000;
};

/// Those in this build.
const std::vector<target> &targets();
const target *find_target(const std::string &label);

/// 127.a.b.c, with a and b from this process and c = 1 + n; other processes have others.
std::string own_ip(unsigned n);

} // namespace conformance
