// SPDX-License-Identifier: MIT
// inodes.hpp - files that were used lately, with their descriptors: a read by
// handle costs no path walk and no check of a MAC.
//
// The table is bounded, for descriptors are. Whoever holds an inode keeps its
// descriptors open, so a file that was unlinked stays readable for as long as it
// is open. When the last holder lets go of it an inode becomes idle; the longest
// idle one makes room for the next. Only when none is idle is a file refused.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "userland/daemon/exports.hpp"

namespace coop::daemon
{

// What one statx(2) tells of a file.
struct file_look {
	struct stat st = {}; // as fstat() has it
	bool has_btime = false;
	coop_st_time btime{};
	std::uint32_t traits = 0, traits_known = 0; // COOP_ST_TRAIT_...
};
// fd: O_PATH suffices. 0 or -errno.
[[nodiscard]] int look(int fd, file_look &);

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

	// Taken before 'mutex': one fsync at a time, so that the failure that one has met is known
	// before another says that all is well.
	std::mutex commit_order;

	// The process' one data descriptor of this file: writable while there are writers.
	[[nodiscard]] std::shared_ptr<unique_fd> data_locked(int &err);
	// Takes a descriptor opened for reading (and writing) as that one, if it is of use.
	void offer_locked(unique_fd, bool writable);
	[[nodiscard]] int want_writable_locked();
	void drop_writable_locked();
	bool writable_locked() const { return writable_; }
	// Looks, and tells the version that it proves.
	[[nodiscard]] int observe_locked(file_look &, std::uint64_t &version);
	// What it has of COOP_ST_HAS_XATTRS besides the attributes of st.
	[[nodiscard]] std::uint32_t extras_locked(const struct stat &);
	// Its name for calls that follow links and open nothing: "/proc/self/fd/N".
	[[nodiscard]] std::string self() const;
	// Opens it anew as the calling thread's user: the file system's own check of permissions.
	// -EAGAIN: a process of this machine holds a lease, and has been told to give it back.
	[[nodiscard]] int reopen(int flags, unique_fd &out) const;

private:
	std::shared_ptr<unique_fd> data_;
	bool writable_ = false;
	std::uint32_t extras_ = 0;      // at change time extras_time_
	std::uint64_t extras_time_ = 0; // 0: not known
};

using inode_ref = std::shared_ptr<inode>;

class inode_table
{
public:
	explicit inode_table(std::size_t max) : max_(max) {}
	// Outlives all references.
	~inode_table() = default;
	inode_table(const inode_table &) = delete;
	inode_table &operator=(const inode_table &) = delete;
	// The inode of a handle, opened if need be; -ENFILE: all are in use. Call with the daemon's
	// own ids.
	[[nodiscard]] int get(const exported &, std::string_view handle, inode_ref &out);
	// The same for a file that was just found.
	[[nodiscard]] int put(const exported &, const exported::named &, unique_fd path,
			      mode_t type, inode_ref &out);
	[[nodiscard]] inode_ref find(std::string_view handle);
	// Forgets a file that has no name any more, now or when its last holder lets go of it: its
	// descriptors would keep its space from being free.
	void discard(std::string_view handle);
	std::size_t size() const;
	std::size_t idle() const;
	std::size_t capacity() const { return max_; }
	bool roomy() const { return size() < max_ / 2; }

private:
	struct slot {
		std::unique_ptr<inode> node;
		unsigned holders = 0; // references made and not yet let go of
		bool discarded = false;
		std::weak_ptr<inode> held;
		std::list<slot *>::iterator idle; // while there are no holders
	};
	inode_ref hold_locked(slot &);
	void let_go(slot *);
	std::unique_ptr<inode> evict_locked();
	const std::size_t max_;
	// Recursive: a reference that there is no memory for is let go of at once.
	mutable std::recursive_mutex mutex_;
	std::unordered_map<std::string, std::unique_ptr<slot>> slots_;
	std::list<slot *> idle_; // longest idle first
};

} // namespace coop::daemon
