// SPDX-License-Identifier: MIT
// inode.hpp - the files that the kernel holds references to, and what this mount
// knows of their contents.
//
// Replies of storage arrive in any order, so each request takes a ticket before
// it is sent; a reply changes what is known only if its request started after the
// one that was believed last. A local change takes its ticket when its reply is
// in, and one inode has one local change under way at a time (order): so
// the versions that local writes go through form a chain without gaps, and a
// version that does not follow on from ours means that somebody else wrote.
//
// What the kernel's page cache may hold is followed the same way
// (kernel_version), so that an open can tell whether to keep it. The states and what moves
// them are a table in rpc/storage/STORAGE.md, "Contents in a client's cache".
//
// The kernel's pages: the invariant
// ---------------------------------
// The kernel is told to drop pages of a file only if somebody else changed the
// file, and not while the file is open for writing here. The reason is what a
// pwrite() does in a kernel that writes through: it copies its bytes into a page
// that is valid, unlocks the page, and then asks us to write them; the page is not
// dirty. Dropped in between, it comes back with the old bytes, for our WRITE has
// not arrived yet, and is valid. A store through a mapping then makes it dirty, and
// its writeback carries the old bytes over the new ones: the pwrite() is lost. We
// cannot see from here that a pwrite() is on its way, so:
//
// 1. A reply that came while a local change was under way (changing) may tell of
//    that change. It is not believed. Who must know asks again with the turn of
//    the file's changes in hand: then a version that is not ours is foreign.
// 2. Where there is nothing to drop (kernel_version is 0), an open drops nothing.
// 3. Between the first open for writing here and the last close of those, pages that
//    are stale by a foreign change stay (overdue) and go at that last close. Only an
//    open drops them earlier, because that is what close-to-open promises, and a lock
//    (must_drop), because what its last holder wrote is to be seen. Nodes that write
//    one page at the same time and do not lock it have no promise.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "userland/client/change_order.hpp"
#include "userland/client/node_ids.hpp"
#include "userland/client/page_store.hpp"
#include "userland/client/storage.hpp"
#include "userland/client/unstable.hpp"

namespace coop::client
{

using ticket = std::uint64_t;

// How long attributes that another node may change are believed.
constexpr std::chrono::seconds attributes_last{1};

struct inode : std::enable_shared_from_this<inode> {
	static constexpr std::uint64_t mixed = ~0ull; // kernel_version: pages of several versions

	inode(const entry &e, std::uint64_t id) :
		id(id),
		fid(e.attr.fid),
		fh(e.fh),
		number(e.attr.st.st_ino)
	{
	}

	const std::uint64_t id; // the kernel's name for it: see node_ids.hpp
	const coop_fid fid;
	const handle fh;
	const ino_t number;        // storage's
	std::uint64_t lookups = 0; // the kernel's references; the table's lock

	unstable changes; // has its own lock

	bool keeps_listed = false; // committer has it in its queue; guarded by its mutex

	// Held across a commit and what it writes again. Taken before 'order'.
	change_order committing;
	// Held across a write, truncation or other local change of storage. Taken before 'lock'.
	change_order order;

	std::mutex lock;           // what follows
	ticket believed = 0;       // of the last reply that was believed
	std::uint64_t version = 0; // 0: not known
	std::uint64_t size = 0;
	std::vector<std::uint32_t> openers; // of 'version', as the last open reply told
	std::uint64_t kernel_version = 0;   // of the pages that the kernel holds; 0: it holds none
	std::uint64_t kernel_attr = 0; // version that came with the attributes the kernel holds
	mode_t mode = 0;               // with 'has'
	std::uint32_t has = 0;         // enum coop_st_has, as of the reply asked for at 'has_asked'
	ticket has_asked = 0;
	std::chrono::steady_clock::time_point has_until; // what is not in 'has' is not there
	// Opens that told the kernel to throw its pages away and have not been used since: until
	// they are, the kernel may not have done it yet.
	unsigned unsettled = 0;
	// Times that 'version' went over to one that does not follow on from ours. While it stays,
	// what a read found is as good after our own changes as before: a page that the kernel
	// reads is locked, and no change of ours touches it meanwhile.
	std::uint64_t breaks = 0;
	unsigned writers = 0;  // open files that may write
	bool changing = false; // a local change was sent and has no answer yet
	bool overdue = false;  // the kernel's pages are stale, and stay while there are writers

	// The states of rpc/storage/STORAGE.md, "Contents in a client's cache", for the kernel's
	// pages. 'lock' is held.
	enum class pages { none, proved, foreign };
	pages kernel_pages() const
	{
		return !kernel_version             ? pages::none
		       : kernel_version == version ? pages::proved
						   : pages::foreign;
	}
};

// What has to follow when another version turns up.
struct inode_events {
	// The kernel holds pages of another version. Called without locks, from any thread, also
	// while the kernel waits for a reply: must not call into the kernel itself.
	std::function<void(inode &)> pages_stale;
};

class inode_table
{
public:
	inode_table(page_store &store, inode_events events);

	// One more reference of the kernel's.
	inode *ref(const entry &e);
	void forget(inode *node, std::uint64_t n);
	// As node_ids'.
	inode *find(std::uint64_t id) const { return ids_.find(id); }
	std::optional<node_ids::file> identify(std::uint64_t id) const;
	std::uint32_t generation() const { return ids_.generation(); }
	// As a reference of the kernel's, until it is destroyed: who looks the file up finds this.
	std::shared_ptr<inode> keep(inode &);
	struct figures {
		std::size_t held, forgotten; // by the kernel; see node_ids
	};
	figures count() const;

	ticket now() { return ++clock_; }

	// A reply without a local change: lookup, getattr, readdir, open. openers: from an open
	// reply, else null. to_kernel: these attributes go to the kernel. False: it may tell of a
	// local change that is under way, and was not believed.
	bool learn(inode &node, ticket asked, const attributes &attr,
		   const std::vector<std::uint32_t> *openers, bool to_kernel);
	// An open file that may write.
	void writer_came(inode &node);
	void writer_gone(inode &node);
	// What the kernel holds of older versions goes now, whoever writes here: a lock was got.
	// True: it has been told to; 'unsettled' is to be taken back when it has done so.
	[[nodiscard]] bool must_drop(inode &node);
	// A local change of [offset, offset + length) took the file from before.version_before to
	// attr. The inode's order is held.
	void changed(inode &node, const write_result &r, std::uint64_t offset,
		     std::uint64_t length);
	// A local change of attributes is done: what it says of extended ones is the newest.
	void beside(inode &node, const attributes &attr);
	// The file has none of these (enum coop_st_has), as far as attributes are believed.
	bool without(inode &node, std::uint32_t has);
	// A regular file with set-ID bits that a write takes away, as far as is known.
	bool has_set_id(inode &node);
	// This mode is the last one known, without the set-ID bits that a write takes away.
	bool is_mode_after_write(inode &node, mode_t mode);
	// What the kernel wrote into its own pages is not where storage put it.
	void misplaced(inode &node);
	// The contents were replaced by nothing (O_TRUNC). The inode's order is held.
	void emptied(inode &node, const attributes &attr);

private:
	// Goes over to a version that does not follow on from ours; true: the kernel's pages are
	// stale and may go now.
	bool replace(inode &node, const attributes &attr);
	static void learn_extras(inode &node, ticket asked, const attributes &attr);

	page_store &store_;
	inode_events events_;
	std::atomic<ticket> clock_{0};
	mutable std::mutex lock_;
	std::unordered_map<coop_fid, std::shared_ptr<inode>, fid_hash, fid_equal> by_fid_;
	node_ids ids_; // find() of it wants no lock
};

} // namespace coop::client
