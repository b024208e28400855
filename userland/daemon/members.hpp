// SPDX-License-Identifier: MIT
// members.hpp - nodes on the fabric, and which of them recently opened which file.
//
// Soft state: a registration ends with its connection, and all end with the daemon. A node that
// registers again gets a new id, so an old hint never names a new node. Wrong or missing hints cost
// a request to a peer, never data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rpc/storage/message.h"

namespace coop::daemon
{

constexpr std::size_t members_max = 1u << 14; // registered nodes
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

class member_table
{
public:
	// Takes whole messages NODE. Called with the table locked, so that all nodes see changes in
	// one order; must not block. Each join costs every node a call, so it is to be cheap.
	using push = std::function<void(std::string_view messages)>;

	// Tells 'to' of all other nodes, and all other nodes of it. Returns the node's id; 0: table
	// full.
	std::uint32_t join(const coop_addr &, push to);
	void leave(std::uint32_t node);
	std::size_t size() const;

private:
	struct member {
		std::string joined; // the message that says so
		push to;
	};
	mutable std::mutex mutex_;
	std::map<std::uint32_t, member> members_;
	std::uint32_t last_ = 0;
};

} // namespace coop::daemon
