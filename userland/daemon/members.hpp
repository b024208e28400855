// SPDX-License-Identifier: MIT
// members.hpp - nodes on the fabric, and which of them recently opened which file.
//
// Soft state: a registration ends with its connection, and all end with the daemon. A node that
// registers again gets a new id, so an old hint never names a new node. Wrong or missing hints cost
// a request to a peer, never data.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rpc/storage/message.h"

namespace coop::daemon
{

constexpr std::size_t members_max = 1u << 14; // registered nodes
constexpr std::size_t all_told_max = 256;     // up to so many are told of one another
constexpr std::size_t openers_max = 1u << 16; // file versions whose openers are remembered

struct file_version {
	coop_fid fid;
	std::uint64_t version;
	bool operator==(const file_version &o) const
	{
		return fid.hi == o.fid.hi && fid.lo == o.fid.lo && version == o.version;
	}
};

struct file_version_hash {
	std::size_t operator()(const file_version &f) const
	{
		return f.fid.hi ^ f.version * 0x9e3779b97f4a7c15;
	}
};

class opener_table
{
public:
	// Records that 'node' opened it; out: other openers, most recent first. node 0: only a
	// query.
	void opened(const file_version &, std::uint32_t node, std::vector<std::uint32_t> &out);
	void left(std::uint32_t node);
	std::size_t size() const;

private:
	struct slot {
		std::vector<std::uint32_t> nodes; // most recent first, at most COOP_MAX_HINTS + 1
		std::list<file_version>::iterator use;
	};
	mutable std::mutex mutex_;
	std::unordered_map<file_version, slot, file_version_hash> slots_;
	std::list<file_version> uses_; // oldest first
};

// Nodes that have the same fabric key. Others cannot talk to each other, so none is told of nodes
// of another circle.
struct fabric_circle {
	const void *of = nullptr; // an export
	bool of_run = false;      // the key of this run; older clients know only another
	bool operator==(const fabric_circle &) const = default;
};

// Which nodes there are, and which of them each client was told of. A client is told of a node
// before the first message that names the node to it, and then of every change of that node. Where
// there are few nodes, or the client asks for it, it is told of all: among n nodes that costs n^2
// messages.
//
// A is named to B because B may ask A for pages. So A is told of B, too: nodes serve those that
// they know better than strangers.
class member_table
{
public:
	// Takes whole messages NODE. Called with the table locked, so that all nodes see changes in
	// one order; must not block, and is to be cheap. soon: else they may wait for the next
	// message to the client, but not for long.
	using push = std::function<void(std::string_view messages, bool soon)>;

	// Returns the node's id; 0: table full. named: where there are more than all_told_max, 'to'
	// needs to know only nodes that are named to it. before: the node that this one replaces on
	// the same connection, which leaves next.
	std::uint32_t join(const coop_addr &, push to, bool named = false, std::uint32_t before = 0,
			   const fabric_circle & = {});
	// heir: the node that replaces it on the same connection.
	void leave(std::uint32_t node, std::uint32_t heir = 0);
	// A message to 'to' is about to name these: tells it those that it does not know. 0 and
	// nodes that have left: ignored.
	void name(std::uint32_t to, std::span<const std::uint32_t> nodes);
	std::size_t size() const;

private:
	// By place; one bit each.
	class set
	{
	public:
		bool has(std::size_t i) const
		{
			return i / 64 < words_.size() && (words_[i / 64] >> i % 64 & 1);
		}
		// False: it was there.
		bool add(std::size_t i);
		bool remove(std::size_t i); // false: it was not there

	private:
		std::vector<std::uint64_t> words_;
	};
	struct member {
		std::uint32_t id = 0; // 0: a free place
		bool named = false;
		std::string joined; // the message that says so
		push to;
		set knows;
		coop_addr addr{};
		fabric_circle in;
		// A later member has the address: this one has left, though its connection does
		// not know that yet. Clients believe the member of an address that they are told
		// last, so this one is told no more.
		bool superseded = false;
	};
	member *find_locked(std::uint32_t node);

	std::atomic<bool> some_unknown_{false}; // to some node; false: name() has nothing to do
	mutable std::mutex mutex_;              // guards all below
	std::vector<member> members_;
	std::vector<std::size_t> free_;
	std::unordered_map<std::uint32_t, std::size_t> place_; // by id
	std::uint32_t last_ = 0;
};

} // namespace coop::daemon
