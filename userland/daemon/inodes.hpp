// SPDX-License-Identifier: MIT
// inodes.hpp - recently used files with their descriptors: a read by handle needs no path walk and
// no check of a MAC.
//
// The table is bounded because descriptors are. A reference to an inode keeps its descriptors open,
// so an unlinked file stays readable while it is open. An inode without references is idle; the one
// that has been idle longest is evicted for a new file. A file is refused (-ENFILE) only when no
// inode is idle.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "coop/fid.hpp"
#include "userland/daemon/exports.hpp"

namespace coop::daemon
{

// Attributes of a file from one statx(2).
struct file_look {
	struct stat st = {}; // as fstat() has it
	bool has_btime = false;
	coop_st_time btime{};
	std::uint32_t traits = 0, traits_known = 0; // COOP_ST_TRAIT_...
};
// fd: O_PATH suffices. 0 or -errno.
[[nodiscard]] int look(int fd, file_look &);

// Of a file, whichever exports it is used through.
struct file_use {
	std::atomic<unsigned> writers{0}; // opens that may write
	// Taken before an inode's mutex. One fsync at a time: the kernel reports a failure to one
	// fsync only, and we must record it before another one succeeds.
	std::mutex commit_order;
};

class inode
{
public:
	inode(const exported &in, const exported::named &named, std::shared_ptr<file_use> use,
	      unique_fd path, mode_t type) :
		in(in),
		handle(named.handle),
		fid(named.fid),
		file(named.file),
		use(std::move(use)),
		path(std::move(path)),
		type(type)
	{
	}

	const exported &in;
	const std::string handle;
	const coop_fid fid;  // names it to clients of the export
	const coop_fid file; // names it in the daemon: for locks, leases, failures of its disk
	const std::shared_ptr<file_use> use;
	const unique_fd path; // O_PATH
	const mode_t type;    // S_IFMT
	// Not 0: the version of contents that never change; set before the inode is shared.
	std::uint64_t constant = 0;

	// The mutex guards what follows. It serialises changes of the file's content and looks at
	// its version, not reads.
	std::mutex mutex;
	version_record record;
	unsigned writers = 0; // opens through this export that may write; counted in 'use' too

	// The process' only data descriptor of this file: writable while there are writers.
	[[nodiscard]] std::shared_ptr<unique_fd> data_locked(int &err);
	[[nodiscard]] std::shared_ptr<unique_fd> data(int &err);
	// Offers a descriptor opened for reading (or reading and writing) as that one; unused if
	// there is no need.
	void offer_locked(unique_fd, bool writable);
	[[nodiscard]] int want_writable_locked();
	void drop_writable_locked();
	bool writable_locked() const { return writable_; }
	// Looks at the file, and returns the version that this look proves.
	[[nodiscard]] int observe_locked(file_look &, std::uint64_t &version);
	// The COOP_ST_HAS_XATTR* flags that the file has; st: its attributes.
	[[nodiscard]] std::uint32_t extras_locked(const struct stat &);
	// A path for calls that follow links and open nothing: "/proc/self/fd/N".
	[[nodiscard]] std::string self() const;
	// Opens the file again as the calling thread's user, so that the file system checks the
	// permissions. -EAGAIN: a process of this machine holds a lease, and the kernel has asked
	// it to release it.
	[[nodiscard]] int reopen(int flags, unique_fd &out) const;

private:
	std::shared_ptr<unique_fd> data_;
	bool writable_ = false;
	std::uint32_t extras_ = 0;      // as of change time extras_time_
	std::uint64_t extras_time_ = 0; // 0: unknown
};

using inode_ref = std::shared_ptr<inode>;

class inode_table
{
public:
	explicit inode_table(std::size_t max) : max_(max) {}
	// The table outlives all references.
	~inode_table() = default;
	inode_table(const inode_table &) = delete;
	inode_table &operator=(const inode_table &) = delete;
	// The inode of a handle, opened if need be; -ENFILE: all are in use. Call with the daemon's
	// own ids.
	[[nodiscard]] int get(const exported &, std::string_view handle, inode_ref &out);
	// The same for a file just looked up.
	[[nodiscard]] int put(const exported &, const exported::named &, unique_fd path,
			      mode_t type, inode_ref &out);
	[[nodiscard]] inode_ref find(std::string_view handle);
	// For an inode that is not in the table.
	[[nodiscard]] std::shared_ptr<file_use> use_of(const exported &, const coop_fid &file);
	// Drops a file that has no name any more, now or with its last reference: our descriptors
	// would keep its space from being freed.
	void discard(std::string_view handle);
	std::size_t size() const;
	std::size_t idle() const;
	std::size_t capacity() const { return max_; }
	bool roomy() const { return size() < max_ / 2; }
	// Whether less than half of it is in use. What is idle makes room when that is needed.
	bool half_free() const;

private:
	struct slot {
		std::unique_ptr<inode> node;
		unsigned holders = 0; // references not yet let go
		bool discarded = false;
		std::weak_ptr<inode> held;
		std::list<slot *>::iterator idle; // while there are no holders
	};
	inode_ref hold_locked(slot &);
	void let_go(slot *);
	std::unique_ptr<inode> evict_locked();
	const std::size_t max_;
	// Recursive: if allocating the control block fails, hold_locked() calls let_go() under the
	// lock.
	mutable std::recursive_mutex mutex_;
	std::unordered_map<std::string, std::unique_ptr<slot>> slots_;
	std::list<slot *> idle_; // longest idle first
	// Of files that several exports have; some have ended.
	std::unordered_map<coop_fid, std::weak_ptr<file_use>, fid_hash, fid_equal> shared_;
	std::size_t sweep_at_ = 1024; // entries of shared_
};

} // namespace coop::daemon
