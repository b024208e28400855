// SPDX-License-Identifier: MIT
// file.hpp - open files: close-to-open consistency, reads that continue over a change of version,
// writes that go through to storage.
//
// Close-to-open: an open asks storage for the file's version. The kernel may keep its pages only if
// all of them are of that version. A reader that meets a newer version (-ESTALE) revalidates,
// continues with the new one, and holds back local changes: any further change comes from another
// node. If those change the file faster than it can be read by version, the bytes come directly
// from storage and are not cached. So a reader gets data or an error of storage itself, never an
// error that a retry would avoid.
//
// A write is answered after storage has acknowledged it. The reply has the version before and
// after, so pages that the write did not touch stay valid (inode.hpp). fsync and close make writes
// stable, write again what a crash of storage lost, or report that writes may be lost
// (unstable.hpp). A change whose caller was killed keeps its turn until storage has answered.
//
// Storage appends every write of an open with O_APPEND. But fcntl(2) changes that flag of an open
// file, and the kernel writes pages of a mapping in place, through any open file that was mapped. A
// write of the other kind goes through a second open, made when the first such write comes.
#pragma once

#include <atomic>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "userland/client/committer.hpp"
#include "userland/client/inode.hpp"
#include "userland/client/kept_memory.hpp"
#include "userland/client/open_watch.hpp"
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
	bool appends() const { return flags & O_APPEND; }
	// The kernel shall send its writes past the page cache: storage chooses the offset of
	// appended bytes, so the kernel must not cache them at the offset that it assumes. A file
	// open for reading too needs the cache for its mappings.
	bool past_cache() const { return appends() && (flags & O_ACCMODE) == O_WRONLY; }

	const std::shared_ptr<inode> node;
	const caller opener;
	const std::uint64_t open_id;
	const int flags;

	std::atomic<bool> unsettled{false};   // see inode::unsettled
	std::atomic<ticket> emptied{0};       // see inode::truncating; 0: it does not count there
	std::atomic<bool> uncommitted{false}; // wrote since the last commit
	// Opened with the other value of O_APPEND; guarded by the inode's order.
	std::unique_ptr<open_file> other;
	std::mutex lock; // guards what follows
	unstable::mark losses;
	reader::stream stream;
	std::shared_ptr<const content> current;
};

// Result of a read: pieces of the page store, or memory that only this answer owns.
struct read_answer {
	std::vector<piece> pieces;
	std::shared_ptr<std::byte[]> direct;
	std::size_t direct_length = 0;
	bool company = false; // other nodes have the file open
	std::uint64_t length = 0;
	// The file ends before an end that the kernel may have believed when it asked.
	bool falls_short = false;
};

struct commit_options {
	// Limit of the bytes of writes kept until storage has them on its disk.
	std::uint64_t keep = kept_memory::default_bound;
	// false: what is uncommitted at the last close is left to storage: a crash of its machine
	// loses it, as it loses writes of local programs there.
	bool on_close = true;
};

class files
{
public:
	files(storage &, page_store &, reader &, inode_table &, membership &, commit_options = {});

	// Returns 0 or -errno. keep: the kernel may keep its cached pages. attr_stale: the kernel
	// may believe attributes that are older than this open.
	struct open_answer {
		std::unique_ptr<open_file> file;
		bool keep = false;
		bool attr_stale = false;
	};
	// What the kernel is known to have of the file when it asks for the open.
	struct seen {
		// -ESTALE, and nothing is open, if the kernel must look the file up again before it
		// reads (inode_table::in_doubt()).
		bool can_look_again = false;
		// It had the attributes of this version from a request that began when the inode
		// had this number of bumps. None: not known.
		std::optional<std::uint64_t> bumps{};
		std::uint64_t version = 0;
	};
	[[nodiscard]] int open(const caller &, inode &, int flags, open_answer &out,
			       const seen &by_kernel = {false, {}, 0});
	// name empty: a file without a name (O_TMPFILE).
	[[nodiscard]] int create(const caller &, const handle &dir, std::string_view name,
				 int flags, const new_mode &mode, entry &node, inode *&ino,
				 open_answer &out);
	[[nodiscard]] int read(open_file &, std::uint64_t offset, std::uint32_t length,
			       read_answer &out);
	// The kernel has put all of the answer into its page cache. The file may be closed by now.
	void given(read_answer &&);
	struct range {
		std::uint64_t offset, length;
	};
	// appends: at the end of the file, wherever storage finds it, not at the offset. drop: out,
	// the kernel must drop its pages of this range before the write is answered; length 0: to
	// the end of the file.
	[[nodiscard]] int write(open_file &, bool appends, std::uint64_t offset,
				std::span<const iovec> data, std::size_t length,
				std::optional<range> &drop);
	// fallocate(2): mode is FALLOC_FL_*.
	[[nodiscard]] int fallocate(open_file &, int mode, std::uint64_t offset,
				    std::uint64_t length);
	// whence: SEEK_DATA or SEEK_HOLE; at: in the start of the search, out the position found.
	[[nodiscard]] int seek(open_file &, int whence, std::uint64_t &at);
	// Copies within storage. length: out the number of bytes copied, which may be less.
	[[nodiscard]] int copy(open_file &from, std::uint64_t from_at, open_file &to,
			       std::uint64_t to_at, std::uint64_t &length);
	// 0: all changes by this mount are on stable storage. Or -errno, also for a loss that
	// another open file's commit found.
	[[nodiscard]] int commit(open_file &);
	[[nodiscard]] int commit_names(inode &dir, std::atomic<std::uint64_t> &known);
	// close(2): commits what this open file wrote, if closes commit; otherwise returns known
	// losses.
	[[nodiscard]] int flush(open_file &);
	void release(std::unique_ptr<open_file>);

	// As in storage. A held lock shows the file as its last holder left it, after refresh().
	[[nodiscard]] int lock(open_file &, const coop_st_lock &, bool wait,
			       storage::lock_granted granted, std::uint64_t &cookie);
	// Call before lock(). What refresh() releases if it fails, for then the program is told
	// that it did not get the lock. Nothing if the lock replaces an older one in its range: the
	// program goes on as the holder of that one and will release it.
	[[nodiscard]] std::optional<coop_st_lock> undo_of(const open_file &, const coop_st_lock &);
	// Asks storage for the current version. drop: the kernel's pages of older versions are
	// stale; call dropped() once they are dropped. Must not be called on the connection's
	// thread.
	[[nodiscard]] int refresh(open_file &, const std::optional<coop_st_lock> &undo, bool &drop);
	void dropped(open_file &);
	[[nodiscard]] int unlock(open_file &, const coop_st_lock &);
	[[nodiscard]] bool holds_lock(const open_file &, const coop_st_lock &);

	// After ESTALE: whether it was removed. False: storage may just have lost the handle. See
	// rpc/storage/stale.h.
	[[nodiscard]] bool is_removed(const caller &, inode &);
	// These attributes go to the kernel.
	[[nodiscard]] int getattr(const caller &, inode &, attributes &out);
	// Attributes from the reply to another request are about to go to the kernel: replaces them
	// if an open has shown newer ones.
	void show(inode &, ticket asked, attributes &);
	[[nodiscard]] int setattr(const caller &, inode &, const storage::setattr_request &,
				  attributes &out);
	[[nodiscard]] int setxattr(const caller &, inode &, std::string_view name,
				   std::string_view value, int flags);
	[[nodiscard]] int removexattr(const caller &, inode &, std::string_view name);

	// Number of writes sent again because a crash of storage lost them.
	std::uint64_t written_again() const { return written_again_; }

private:
	// A change that leaves the file's bytes as they are: ask(result, handler of a late reply).
	template <class act> int change_beside(inode &, act ask);
	std::shared_ptr<const content> content_of(open_file &, std::uint64_t *breaks = nullptr);
	int read_newest(open_file &, std::uint64_t offset, std::uint32_t length, read_answer &,
			change_order::hold &turn);
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
	// Brings all changes to stable storage, or counts them as lost; an error: not known yet.
	// open_id: an open file that stays open; 0: any with write access.
	int bring(inode &, std::uint64_t open_id);
	int commit_through_any(inode &, write_result &);
	int write_again(inode &, const unstable::cover &, std::uint64_t verifier);
	int open_as(open_file &, bool appends, open_file *&out);
	void leave(open_file &);
	void close_writer(open_file &);
	void let_go(inode &);
	void let_go_of(open_file &, const coop_st_lock &);

	storage &storage_;
	page_store &store_;
	reader &reader_;
	inode_table &inodes_;
	membership &membership_;
	const std::shared_ptr<kept_memory> kept_;
	const bool commit_on_close_;
	std::atomic<std::uint64_t> written_again_{0};
	committer committer_; // these are last: their threads use the rest
	open_watch watch_;
};

} // namespace coop::client
