// SPDX-License-Identifier: MIT
// inode_numbers.hpp - the numbers by which the kernel names files to us.
//
// The kernel puts a file's number into the handles of name_to_handle_at(2), and a handle
// may come back long after the kernel has forgotten the file. So a number is never given
// to a second file, and a file that the kernel has forgotten keeps its number while the
// number is remembered here. A handle of an earlier mount must not find a file either:
// numbers start at random, and the mount's generation, which the kernel compares, is
// random as well.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <unordered_map>

#include "coop/fid.hpp"
#include "userland/client/storage.hpp"

namespace coop::client
{

struct inode;

// All but find() want the inode table's lock, or the only thread.
class inode_numbers
{
public:
	// Smaller numbers are the host's, for what is no file of storage's.
	static constexpr std::uint64_t first = 1u << 16;
	// Forgotten files that are remembered: with handles of the longest kind some 350 bytes
	// each, 22 MiB at most.
	static constexpr std::size_t most_forgotten = 1u << 16;

	explicit inode_numbers(std::size_t most = most_forgotten);

	std::uint32_t generation() const { return generation_; }

	// The number that the file had when the kernel forgot it, else one that no file had.
	std::uint64_t claim(const coop_fid &);
	struct file {
		coop_fid fid;
		handle fh;
	};
	// The inode is found by its number from now on, until it is forgotten.
	void enter(std::uint64_t id, inode &);
	void forget(std::uint64_t id, const file &);

	// Any thread. The caller knows that the kernel refers to the inode, or holds the table's
	// lock. Null: no file that the kernel refers to has this number.
	inode *find(std::uint64_t id) const;

	// Which file had this number when the kernel forgot it.
	std::optional<file> forgotten_file(std::uint64_t id) const;
	std::size_t forgotten_files() const { return forgotten_.size(); }

private:
	// Every request of the kernel's that names a file looks for it, so no lock is everybody's.
	struct shard {
		mutable std::shared_mutex lock;
		std::unordered_map<std::uint64_t, inode *> inodes;
	};
	shard &shard_of(std::uint64_t id) { return shards_[id % shards_.size()]; }
	const shard &shard_of(std::uint64_t id) const { return shards_[id % shards_.size()]; }

	struct forgotten {
		std::uint64_t id;
		file what;
	};
	using place = std::list<forgotten>::iterator;

	const std::size_t most_;
	const std::uint32_t generation_;
	std::uint64_t next_;
	std::array<shard, 64> shards_;
	std::list<forgotten> forgotten_; // the oldest first
	std::unordered_map<std::uint64_t, place> by_id_;
	std::unordered_map<coop_fid, place, fid_hash, fid_equal> by_fid_;
};

} // namespace coop::client
