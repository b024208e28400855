// SPDX-License-Identifier: MIT
// unstable.hpp - changes of one file that storage has acknowledged but not yet
// promised to keep.
//
// Every acknowledgement carries a verifier; a commit that returns the same one
// covers all that was acknowledged before it was sent. Another verifier means
// that storage's machine came up anew, or could not write the file back: what
// was acknowledged may be gone. So the bytes of writes are kept until a commit
// has covered them, and are written again if it did not (commit.cpp). What has no
// bytes here (truncations, creations, ranges, appends) or was given up is a loss
// then: every open file learns of it once, at its next fsync or close.
//
// Rules of writing again:
//
// 1. A byte goes out as it was last written here: what a later change of this
//    mount has replaced is left out, also if that change is stable already.
// 2. A write goes out through the open file that it came by, so storage judges it
//    as it did at first. What is left of an open file at its end is a loss.
// 3. What was written before a lock was given back is a loss: its next holder may
//    have written there since. So is what was written under a lock that was lost
//    (storage::lock_era).
// 4. What another node wrote meanwhile is overwritten, as NFS does. After a crash
//    versions do not tell who came last, and nodes that write the same bytes
//    without locks have no promise.
//
// It lasts as long as the file is open here; nobody can ask about it later.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <sys/uio.h>
#include <vector>

#include "userland/client/kept_memory.hpp"

namespace coop::client
{

class unstable
{
public:
	static constexpr std::uint64_t to_the_end = UINT64_MAX;
	// Punched into what is kept, each makes two records of one; beyond that nothing is kept.
	static constexpr std::size_t most_holes = 1024;

	// The bytes of one write, or of some that follow on from each other.
	struct kept {
		std::uint64_t number; // of the latest change in it
		std::uint64_t verifier;
		std::uint64_t open_id;
		std::uint64_t era; // storage::lock_era() at the time
		std::uint64_t offset;
		std::size_t length;
		const std::byte *bytes; // in 'memory'
		kept_memory::chunk memory;
		std::uint64_t end() const { return offset + length; }
	};

	// What a commit that is sent now will cover.
	struct cover {
		bool pending = false;
		std::uint64_t number = 0;
		bool loose = false;
		std::uint64_t verifier = 0; // of what is loose
	};

	// An open file's view: losses up to here it knows of.
	using mark = std::uint64_t;
	mark attach(std::uint64_t open_id, bool writes);
	void detach(std::uint64_t open_id);
	// Of an open file at its end, before storage closes it. Not while it writes again.
	void leave(std::uint64_t open_id);

	// A change without bytes. [offset, offset + length) is not as it was kept any more.
	void acknowledged(std::uint64_t verifier, std::uint64_t offset = 0,
			  std::uint64_t length = 0);
	// A write. True: nothing was kept before it. The inode's order is held by who writes.
	bool wrote(kept_memory &, std::uint64_t verifier, std::uint64_t open_id, std::uint64_t era,
		   std::uint64_t offset, std::span<const iovec> data, std::size_t length);
	// A write that storage says is stable, and with it what 'covered' had found before it was
	// sent. Nothing is kept, and the inode's order is held since. False: of that something may
	// be lost, so a commit has to tell; the write is to be kept.
	[[nodiscard]] bool wrote_stable(const cover &, std::uint64_t verifier);
	// A write that failed may have changed these bytes: what is kept of them is older.
	void spoiled(std::uint64_t offset, std::uint64_t length);
	// What is kept is not written again, nor is what take_again() has returned.
	void let_go();
	std::uint64_t releases() const; // counts those calls

	cover covered();
	// True: what take_again() returns has to be written again. Otherwise nothing of it is kept
	// any longer.
	[[nodiscard]] bool committed(const cover &, std::uint64_t verifier);
	// What that commit did not reach, in the order of the writes; nothing else of 'cover' is
	// kept any longer. The inode's order is held until each was given to rewrote(), put_back()
	// or lost().
	std::vector<kept> take_again(const cover &, std::uint64_t verifier);
	void rewrote(kept, std::uint64_t verifier);
	void put_back(kept);
	// All that it covers is gone, or that one piece.
	void lost(const cover &, int err);
	void lost(int err);

	// The open files that may write here.
	std::vector<std::uint64_t> writers() const;
	bool keeps() const;
	// 0, or what has become of changes since: -errno, told once.
	int lost_since(mark &);

private:
	void keep_locked(kept);
	void lost_locked(int err);
	void loosen_locked(std::uint64_t verifier);
	void cut_locked(std::uint64_t from, std::uint64_t to);
	// Those that [from, to) touches will be lost if a crash was before their commit.
	void loosen_in_locked(std::uint64_t from, std::uint64_t to);
	bool append_locked(kept_memory &, kept, std::span<const iovec> data);
	void dropped_locked();

	mutable std::mutex lock_;
	std::vector<kept> kept_; // in the order of the changes
	// The chunk that is being filled.
	struct {
		kept_memory::chunk memory;
		std::size_t size = 0, used = 0, records = 0;
	} chunk_;
	std::size_t holes_ = 0;
	std::uint64_t changes_ = 0;  // counts them
	std::uint64_t asked_ = 0;    // up to here a commit was sent: later writes do not join them
	std::uint64_t loose_ = 0;    // the latest change without bytes, 0: none
	std::uint64_t verifier_ = 0; // its
	std::uint64_t losses_ = 0, releases_ = 0;
	int error_ = 0; // of the last loss
	unsigned opens_ = 0;
	std::vector<std::uint64_t> writers_; // open files
};

} // namespace coop::client
