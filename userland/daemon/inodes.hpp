// SPDX-License-Identifier: MIT
// inodes.hpp - files that were used lately, with their descriptors: a read by
// handle costs no path walk and no check of a MAC.
//
// The table is bounded; the least recently used file that nobody holds goes
// first. Whoever holds an inode keeps its descriptors open, so a file that was
// unlinked stays readable for as long as it is open.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "userland/daemon/exports.hpp"

namespace coop::daemon
{

class inode
{
public:
	inode(const exported &in, std::string handle, coop_fid fid, unique_fd path, mode_t type) :
		in(in),
		handle(std::move(handle)),
		fid(fid),
		path(std::move(path)),
		type(type)
	{
	}

	const exported &in;
	const std::string handle;
	const coop_fid fid;
	const unique_fd path; // O_PATH
	const mode_t type;    // S_IFMT

	// What follows belongs to whoever holds the mutex. Changes of the file's content and looks
	// at its version are serialised by it; reads are not.
	std::mutex mutex;
	version_record record;
	unsigned writers = 0; // opens that may write

	// The process' one data descriptor of this file: writable while there are writers.
	[[nodiscard]] std::shared_ptr<unique_fd> data_locked(int &err);
	// Takes a descriptor opened for reading as that one, if there is none yet.
	void offer_locked(unique_fd);
	[[nodiscard]] int want_writable_locked();
	void drop_writable_locked();
	bool writable_locked() const { return writable_; }
	// Takes fstat() and the version that it proves.
	[[nodiscard]] int observe_locked(struct stat &, std::uint64_t &version);
	// Opens it anew as the calling thread's user: the file system's own check of permissions.
	[[nodiscard]] int reopen(int flags, unique_fd &out) const;

private:
	std::shared_ptr<unique_fd> data_;
	bool writable_ = false;
};

using inode_ref = std::shared_ptr<inode>;

class inode_table
{
public:
	explicit inode_table(std::size_t max) : max_(max) {}
	// The inode of a handle, opened if need be. Call with the daemon's own ids.
	[[nodiscard]] int get(const exported &, std::string_view handle, inode_ref &out);
	// The same for a file that was just found.
	[[nodiscard]] inode_ref put(const exported &, const exported::named &, unique_fd path,
				    mode_t type);
	[[nodiscard]] inode_ref find(std::string_view handle);
	// Forgets a file that has no name any more, unless somebody holds it: its descriptors would
	// keep its space from being free.
	void discard(std::string_view handle);
	std::size_t size() const;
	bool roomy() const { return size() < max_ / 2; }

private:
	void trim_locked();
	struct slot {
		inode_ref node;
		std::list<std::string>::iterator use;
	};
	const std::size_t max_;
	mutable std::mutex mutex_;
	std::unordered_map<std::string, slot> slots_;
	std::list<std::string> uses_; // least recently used first
};

} // namespace coop::daemon
