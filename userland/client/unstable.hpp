// SPDX-License-Identifier: MIT
// unstable.hpp - changes of one file that storage has acknowledged but not yet committed.
//
// Every acknowledgement carries a verifier. A commit that returns the same verifier covers all
// changes acknowledged before it was sent. Another verifier means that storage's machine was
// restarted, or could not write the file back: acknowledged changes may be lost. So the bytes of
// writes are kept until a commit has covered them, and are written again if it did not
// (commit.cpp). Changes without kept bytes (truncations, creations, ranges, appends) or with bytes
// given up are losses then: every open file learns of a loss once, at its next fsync or close.
//
// Rules of writing again:
//
// 1. A byte is sent as it was last written here: bytes that a later change of
//    this mount has replaced are left out, even if that change is stable already.
// 2. A write is sent through the open file that it came by, so storage checks it
//    as it did at first. Writes still kept when their open file ends are losses.
// 3. Writes from before a lock was released are losses: the lock's next holder may
//    have written there since. So are writes under a lock that was lost
//    (storage::lock_era).
// 4. Writes of another node in between are overwritten, as on NFS. After a crash
//    versions do not tell the order, and nodes that write the same bytes without
//    locks have no guarantee.
//
// The book lasts as long as the file is open here; later no caller can ask about it.
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
	// Most holes punched into kept writes; each splits a record in two. Beyond that nothing is
	// kept.
	static constexpr std::size_t most_holes = 1024;

	// The bytes of one write, or of several adjacent ones.
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

	// The changes that a commit sent now will cover.
	struct cover {
		bool pending = false;
		std::uint64_t number = 0;
		bool loose = false;
		std::uint64_t verifier = 0; // of the loose change
	};

	// An open file's position in the sequence of losses: it knows those up to here.
	using mark = std::uint64_t;
	mark attach(std::uint64_t open_id, bool writes);
	void detach(std::uint64_t open_id);
	// Called at the end of an open file, before storage closes it. Not while it writes again.
	void leave(std::uint64_t open_id);

	// A change without bytes. Kept bytes in [offset, offset + length) are obsolete.
	void acknowledged(std::uint64_t verifier, std::uint64_t offset = 0,
			  std::uint64_t length = 0);
	// A write. True: nothing was kept before it. The caller holds the inode's order.
	bool wrote(kept_memory &, std::uint64_t verifier, std::uint64_t open_id, std::uint64_t era,
		   std::uint64_t offset, std::span<const iovec> data, std::size_t length);
	// A write that storage reports as stable, together with what 'covered' found before it was
	// sent. Nothing is kept, and the caller has held the inode's order since. False: some of it
	// may be lost, so a commit has to tell; keep the write.
	[[nodiscard]] bool wrote_stable(const cover &, std::uint64_t verifier);
	// A failed write may have changed these bytes: kept bytes there are older.
	void spoiled(std::uint64_t offset, std::uint64_t length);
	// Kept writes, and those that take_again() has returned, are not written again.
	void let_go();
	std::uint64_t releases() const; // number of let_go() calls

	cover covered();
	// True: write again what take_again() returns. False: nothing of it is kept any longer.
	[[nodiscard]] bool committed(const cover &, std::uint64_t verifier);
	// The writes that the commit did not reach, in order; nothing else of 'cover' is kept any
	// longer. The caller holds the inode's order until it has passed each to rewrote(),
	// put_back() or lost().
	std::vector<kept> take_again(const cover &, std::uint64_t verifier);
	void rewrote(kept, std::uint64_t verifier);
	void put_back(kept);
	// All changes that the cover includes are lost, or one piece.
	void lost(const cover &, int err);
	void lost(int err);

	// The open files with write access.
	std::vector<std::uint64_t> writers() const;
	bool keeps() const;
	// 0, or -errno of a loss since the mark; reported once.
	int lost_since(mark &);

private:
	void keep_locked(kept);
	void lost_locked(int err);
	void loosen_locked(std::uint64_t verifier);
	void cut_locked(std::uint64_t from, std::uint64_t to);
	// Kept writes that [from, to) touches are lost if storage crashed before their commit.
	void loosen_in_locked(std::uint64_t from, std::uint64_t to);
	bool append_locked(kept_memory &, kept, std::span<const iovec> data);
	void dropped_locked();

	mutable std::mutex lock_;
	std::vector<kept> kept_; // in the order of the changes
	// The chunk being filled.
	struct {
		kept_memory::chunk memory;
		std::size_t size = 0, used = 0, records = 0;
	} chunk_;
	std::size_t holes_ = 0;
	std::uint64_t changes_ = 0; // number of changes
	std::uint64_t asked_ =
		0; // changes up to here had a commit sent: later writes do not merge with them
	std::uint64_t loose_ = 0;    // the latest change without bytes, 0: none
	std::uint64_t verifier_ = 0; // its verifier
	std::uint64_t losses_ = 0, releases_ = 0;
	int error_ = 0; // of the latest loss
	unsigned opens_ = 0;
	std::vector<std::uint64_t> writers_; // open files
};

} // namespace coop::client
