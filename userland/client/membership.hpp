// SPDX-License-Identifier: MIT
// membership.hpp - this node's place in the forests of the files that it has open.
//
// A file that several nodes have open has a forest (rpc/storage/forest.h). The daemon says which
// nodes are this one's parents in each colour. In return this node loads for its children what it
// has not read itself; for that it needs an open file to read through.
//
// Soft state: a wrong or missing role costs a request, or a copy from storage, never data. All
// roles end with the connection to the daemon, or with the node's place on the fabric, the roles in
// a file with its last close here.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "coop/fid.hpp"
#include "userland/client/content.hpp"
#include "userland/client/fetcher.hpp"

namespace coop::client
{

struct forest_place {
	std::uint32_t parents[2] = {}; // node ids, 0: none. Both 0: the root, or no member
	std::uint32_t level = COOP_LEVEL_NO_ROLE;
	bool member = false;
	bool root() const { return member && parents[0] == 0 && parents[1] == 0; }
};

// What this node is in the forests of all its files.
struct forest_figures {
	std::uint64_t files = 0, leaf = 0;         // in which it has roles; in which it is a leaf
	std::uint64_t carrier = 0, substitute = 0; // trees
	std::uint64_t parents = 0;                 // different nodes
	std::uint64_t children = 0;                // over all trees, without leaves
};

// Any thread may call all of it.
class membership
{
public:
	// Roles of a file that is neither open nor being opened came after its last close: ignored.
	void on_roles(const file_roles &);
	void on_lost(); // the connection, or the port
	// While one lives, the file counts as open: its roles come before the reply to the open.
	class opening;
	// The same for a file that only the open will name: while one lives, all roles are kept.
	class opening_any;
	// The file can be read through this open file, at this version.
	void opened(const std::shared_ptr<const content> &);
	void closed(const coop_fid &, std::uint64_t open_id);

	// A block is a unit of the forest. An unknown file: no member.
	forest_place place(const content_key &, std::uint64_t block) const;
	// Some other members, this node's parents in the block's colour first: they may be asked
	// for the block. Empty: no member.
	std::vector<std::uint32_t> others(const content_key &, std::uint64_t block) const;
	// As the daemon sent it; n_colours 0: no member.
	coop_st_roles roles(const content_key &) const;
	forest_figures figures() const;
	// By node: the trees in which it is this node's parent.
	std::unordered_map<std::uint32_t, std::uint64_t> parent_trees() const;
	// To load for peers; null: this version is not open here.
	std::shared_ptr<const content> open_content(const content_key &) const;

private:
	struct file {
		std::uint64_t version = 0; // of the roles
		std::unique_ptr<coop_st_roles> roles;
		std::vector<std::shared_ptr<const content>> open; // one an open file
		unsigned opening = 0;
		bool in_use() const { return !open.empty() || opening != 0; }
	};
	mutable std::mutex mutex_;
	unsigned opening_any_ = 0;
	std::unordered_map<coop_fid, file, fid_hash, fid_equal> files_;
};

class membership::opening
{
public:
	opening(membership &, const coop_fid &);
	~opening();
	opening(const opening &) = delete;
	opening &operator=(const opening &) = delete;

private:
	membership &of_;
	const coop_fid fid_;
};

class membership::opening_any
{
public:
	explicit opening_any(membership &);
	~opening_any();
	opening_any(const opening_any &) = delete;
	opening_any &operator=(const opening_any &) = delete;

private:
	membership &of_;
};

} // namespace coop::client
