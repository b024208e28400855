// SPDX-License-Identifier: MIT
// holders.hpp - which nodes were sent each unit of a file version, or are about to get it from
// those, so that the next one that reads it can be told to ask them.
//
// A node is a holder of a unit from the moment that it is sent bytes of it, or is told which other
// holders to ask, until it leaves the fabric; whether it still has them is not known. It may have
// closed the file long ago: so nodes that read many small files one after the other cost storage
// one copy, though they are never members of a file at the same time.
//
// Depth. A node that storage sent the bytes has depth 0, one that was told to ask holders one more
// than the deepest of these. Its load gets a level that follows from that, and waits only for loads
// of smaller levels. A holder that asks for the same bytes again does not have them, and is told
// only of holders with a smaller depth. So holders do not wait for each other in a circle.
//
// Soft state in bounded memory: whatever is forgotten costs one more copy.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "rpc/storage/forest.h"
#include "userland/daemon/members.hpp"

namespace coop::daemon
{

// Holders noted, of all units of all file versions: of one reader, those of 128 GiB of files. And
// file versions. Beyond either, those of the version that has not been read for longest are
// forgotten.
constexpr std::size_t holders_noted_max = 1u << 19;
constexpr std::size_t held_versions_max = 1u << 16;
// Of one unit. A further one takes the place of the one that was named most often.
constexpr std::size_t unit_holders_max = 16;

constexpr std::uint64_t page_bytes = COOP_FOREST_UNIT / COOP_FOREST_UNIT_PAGES;

// Pages of a file: first to end - 1.
struct page_range {
	std::uint64_t first, end;
};

class holder_table
{
public:
	explicit holder_table(std::size_t noted_max = holders_noted_max,
			      std::size_t versions_max = held_versions_max) :
		noted_max_(noted_max),
		versions_max_(versions_max)
	{
	}

	// A registered node. Others are neither noted nor named. Those that do not forward are
	// named last.
	void joined(std::uint32_t node, bool forwards);
	void left(std::uint32_t node);

	// A read. asked: pages of which the node wants a byte; whole: those that it wants all of.
	struct reading {
		page_range asked, whole;
		bool may_redirect, insists; // insists: the nodes named before did not have them
		bool chained;               // it can wait for nodes of any depth
	};
	struct answer {
		std::vector<std::uint32_t> nodes;
		std::uint32_t level = 0; // of the load that asks them
	};
	// True: ask these nodes, never the reader itself. False: it is now noted that the reader is
	// sent the pages.
	[[nodiscard]] bool redirect(std::uint32_t node, const file_version &, const reading &,
				    answer &);
	// Up to 'most' registered nodes that storage sent all of these pages of one unit.
	std::vector<std::uint32_t> sent(const file_version &, const page_range &,
					std::size_t most) const;
	// Is one of these nodes registered, other than 'node'?
	bool any_but(std::uint32_t node, const std::vector<std::uint32_t> &) const;
	std::size_t noted() const;    // holders
	std::size_t versions() const; // of files

private:
	struct holder {
		std::uint32_t node;
		std::uint8_t first, end; // pages of the unit
		std::uint8_t depth;
		std::uint16_t named; // how often
	};
	using unit = std::vector<holder>;
	struct held {
		std::unordered_map<std::uint64_t, unit> units; // by number
		std::size_t noted = 0;
		std::list<file_version>::iterator use;
	};
	// The part of a range that lies in a unit.
	struct part {
		std::uint64_t unit;
		std::uint8_t first, end; // pages of the unit
	};
	template <class function> static bool each_part(const page_range &, function use);
	unsigned depth_below_locked(const unit &, std::uint32_t node, const part &) const;
	bool name_locked(held &, std::uint32_t node, const reading &, answer &);
	bool name_in_locked(unit &, std::uint32_t node, const part &, unsigned most, bool chained,
			    answer &);
	void note_locked(const file_version &, const page_range &, const holder &, bool insists);
	static bool lose(holder &, const holder &lost);
	static void note_in(unit &, const holder &, bool insists);
	void forget_locked(const file_version &);

	const std::size_t noted_max_, versions_max_;
	mutable std::mutex mutex_;                      // guards all below
	std::unordered_map<std::uint32_t, bool> nodes_; // registered; true: it forwards
	std::unordered_map<file_version, held, file_version_hash> files_;
	std::list<file_version> uses_; // the longest unread first
	std::size_t noted_ = 0;
};

} // namespace coop::daemon
