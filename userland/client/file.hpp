// SPDX-License-Identifier: MIT
// file.hpp - open files: close-to-open consistency, reads that outlive a change
// of version, writes that go through to storage.
//
// Close-to-open: an open asks storage for the file's version. The kernel may keep
// its pages only if all of them are of that version. A reader that meets a newer
// version in mid-file (-ESTALE) revalidates and goes on with the new one, and lets no
// local change begin meanwhile: what it meets then is somebody else's. If those
// change the file faster than it can be read by version, the bytes come straight from
// storage and are kept by nobody. So a reader gets data or an error of
// storage's own, never one that storage could mend.
//
// Writes reach storage before they are answered. Their reply tells the version
// before and after, so pages that the write did not touch stay good (inode.hpp).
// fsync and close make them stable, writing again what a crash of storage has lost, or
// say that they may be lost (unstable.hpp). A change whose caller was killed keeps its
// turn until storage has answered.
#pragma once

#include <atomic>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "userland/client/committer.hpp"
#include "userland/client/inode.hpp"
#include "userland/client/kept_memory.hpp"
#include "userland/client/reader.hpp"

namespace coop::client
{

class open_file
{
public:
	open_file(inode &node, const caller &opener, std::uint64_t open_id, int flags) :
		node(node.shared_from_this()),
		opener(opener),
		open_id(open_id),
		flags(flags),
		losses(this->node->changes.attach(open_id, writes()))
	{
	}
	~open_file() { node->changes.detach(open_id); }
	open_file(const open_file &) = delete;
	open_file &operator=(const open_file &) = delete;
	bool writes() const { return (flags & O_ACCMODE) != O_RDONLY; }

	const std::shared_ptr<inode> node;
	const caller opener;
	const std::uint64_t open_id;
	const int flags;

	std::atomic<bool> unsettled{false};   // see inode::unsettled
	std::atomic<bool> uncommitted{false}; // wrote since the last commit
	std::mutex lock;                      // what follows
	unstable::mark losses;
	reader::stream stream;
	std::shared_ptr<const content> current;
};

// What a read found: pieces of the page store, or bytes that belong to the answer alone.
struct read_answer {
	std::vector<piece> pieces;
	std::shared_ptr<std::byte[]> direct;
	std::size_t direct_length = 0;
};

struct commit_options {
	// Most bytes of writes that are kept until storage has them on its disk.
	std::uint64_t keep = kept_memory::default_bound;
	// Otherwise what nobody has committed at the last close is storage's alone: a crash of its
	// machine loses it as it loses what its own programs wrote.
	bool on_close = true;
};

class files
{
public:
	files(storage &, page_store &, reader &, inode_table &, commit_options = {});

	// 0 or -errno. keep: the kernel may keep the pages that it has. attr_stale: the attributes
	// that the kernel holds are older than this open.
	struct open_answer {
		std::unique_ptr<open_file> file;
		bool keep = false;
		bool attr_stale = false;
	};
	[[nodiscard]] int open(const caller &, inode &, int flags, open_answer &out);
	// name empty: a file without one (O_TMPFILE).
	[[nodiscard]] int create(const caller &, const handle &dir, std::string_view name,
				 int flags, const new_mode &mode, entry &node, inode *&ino,
				 open_answer &out);
	[[nodiscard]] int read(open_file &, std::uint64_t offset, std::uint32_t length,
			       read_answer &out);
	[[nodiscard]] int write(open_file &, std::uint64_t offset, std::span<const iovec> data,
				std::size_t length);
	// fallocate(2): mode is FALLOC_FL_*.
	[[nodiscard]] int fallocate(open_file &, int mode, std::uint64_t offset,
				    std::uint64_t length);
	// whence: SEEK_DATA or SEEK_HOLE; at becomes where it begins.
	[[nodiscard]] int seek(open_file &, int whence, std::uint64_t &at);
	// Copies within storage. length becomes what was copied, which may be less than asked.
	[[nodiscard]] int copy(open_file &from, std::uint64_t from_at, open_file &to,
			       std::uint64_t to_at, std::uint64_t &length);
	// What was changed, by whomever of this mount, is on stable storage, or -errno, which also
	// tells of a loss that somebody else's commit has found.
	[[nodiscard]] int commit(open_file &);
	// The same at a close, for what this open file wrote, if a close commits; else what is
	// known.
	[[nodiscard]] int flush(open_file &);
	void release(std::unique_ptr<open_file>);

	// As storage's; what is held gives a view of the file as its last holder left it, once
	// refresh() has been called.
	[[nodiscard]] int lock(open_file &, const coop_st_lock &, bool wait,
			       storage::lock_granted granted, std::uint64_t &cookie);
	// Looks what storage has by now. drop: what the kernel holds of older versions is reported
	// stale; dropped() tells when it has gone. Must not be called on the connection's thread.
	[[nodiscard]] int refresh(open_file &, bool &drop);
	void dropped(open_file &);
	[[nodiscard]] int unlock(open_file &, const coop_st_lock &);
	[[nodiscard]] bool holds_lock(const open_file &, const coop_st_lock &);

	[[nodiscard]] int getattr(const caller &, inode &, attributes &out);
	[[nodiscard]] int setattr(const caller &, inode &, const storage::setattr_request &,
				  attributes &out);
	[[nodiscard]] int setxattr(const caller &, inode &, std::string_view name,
				   std::string_view value, int flags);
	[[nodiscard]] int removexattr(const caller &, inode &, std::string_view name);

	// Writes that a crash of storage had lost.
	std::uint64_t written_again() const { return written_again_; }

private:
	struct range {
		std::uint64_t offset, length;
	};
	// A change that leaves the bytes as they are: ask(result, what to do about a late reply).
	template <class act> int change_beside(inode &, act ask);
	std::shared_ptr<const content> content_of(open_file &, std::uint64_t *breaks = nullptr);
	int read_direct(open_file &, std::uint64_t breaks, std::uint64_t offset,
			std::uint32_t length, read_answer &out);
	int revalidate(const caller &, inode &, const std::vector<std::uint32_t> *openers,
		       change_order::hold &turn);
	void kernel_gets(inode &, std::uint64_t version);
	bool held(inode &);
	void settle(open_file &);
	void admit(inode &, const caller &, open_result &, bool judged, open_answer &out);
	int take_turn(inode &, change_order::hold &);
	int begin_change(inode &, change_order::hold &);
	void look_again(open_file &, change_order::hold &, int err);
	storage::late_reply inherit(inode &, change_order::hold, range replaced = {});
	// What was changed is on stable storage, or counted as lost; an error: not known yet.
	// open_id: an open file that stays; 0: whichever writes.
	int bring(inode &, std::uint64_t open_id);
	int commit_through_any(inode &, write_result &);
	int write_again(inode &, const unstable::cover &, std::uint64_t verifier);
	void leave(open_file &);
	void let_go(inode &);
	void let_go_of(open_file &, const coop_st_lock &);

	storage &storage_;
	page_store &store_;
	reader &reader_;
	inode_table &inodes_;
	const std::shared_ptr<kept_memory> kept_;
	const bool commit_on_close_;
	std::atomic<std::uint64_t> written_again_{0};
	committer committer_; // last: its thread uses the rest
};

} // namespace coop::client
