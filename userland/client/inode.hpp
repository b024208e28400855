// SPDX-License-Identifier: MIT
// inode.hpp - the files to which the kernel holds references, and what this mount knows of their
// contents.
//
// Replies of storage arrive in any order, so each request takes a ticket before it is sent. A reply
// is believed only if its request started after that of the last believed reply. A local change
// takes its ticket when its reply has arrived, and an inode has one local change under way at a
// time (order). So the versions that local writes produce form a chain without gaps, and a version
// outside of that chain means that another node wrote.
//
// kernel_version tracks in the same way what the kernel's page cache may hold, so that an open can
// decide whether to keep it. The states and their transitions are a table in
// rpc/storage/STORAGE.md, "Contents in a client's cache".
//
// The kernel's pages: the invariant
// ---------------------------------
// We tell the kernel to drop pages of a file only if another node changed the file, and not while
// the file is open for writing here. The reason is how pwrite() works in a kernel that writes
// through: it copies its bytes into a valid page, unlocks the page, and then sends us the write;
// the page is not dirty. If the page is dropped in between, it is read again with the old bytes,
// because our WRITE has not arrived yet, and is valid. A store through a mapping then makes it
// dirty, and its writeback puts the old bytes over the new ones: the pwrite() is lost. We cannot
// see that a pwrite() is on its way, so:
//
// 1. A reply that came while a local change was under way (changing) may include
//    that change, and one to a request from before a change ended may lack what
//    followed it. Neither is believed. A caller that must know asks again while it
//    holds the turn of the file's changes: then a version that is not ours is
//    foreign.
// 2. If there is nothing to drop (kernel_version is 0), an open drops nothing.
// 3. While the file is open for writing here, pages that a foreign change made
//    stale stay (overdue) until the last such open file is closed. Only two things
//    drop them earlier: an open, because close-to-open promises it, and a lock
//    (must_drop), because its holder must see what the last holder wrote. Nodes
//    that write one page at the same time without a lock have no guarantee.
// 4. A write that the kernel sends past its page cache leaves old bytes in the
//    pages, so it drops them (changed_past_cache) before it is answered: until
//    then the kernel holds the file's lock for writes, so no pwrite() is on its
//    way, and has not moved the end of the file over the bytes.
//
// The kernel's attributes: the invariant
// --------------------------------------
// The kernel ignores attributes in the reply to a request that began before it took others for the
// same file, before a write of its own ended, or before our last notification. It does not tell us.
// So we cannot know which of several replies it took. But it can only have taken one of those that
// it got since the last notification, and each notification makes it forget what it had. So:
//
// 1. kernel_attr is a version only if all these replies had that version. An open
//    that finds another one notifies the kernel before it is answered
//    (announced()), and no open does so twice for one version: a second
//    notification would make the kernel ignore the attributes that a reader of
//    that version is waiting for.
// 2. Attributes that are older than the last open do not go to the kernel: it
//    might take them and ignore the newer ones (told()). We ask storage again.
// 3. A read goes by the end of the file that the kernel took last, even if it
//    ignores the attributes for which the read has asked. So an open is answered
//    only when the kernel is proved to have an end of the file from after the call
//    began. Until then (unproved), the open is refused once, so that its thread
//    walks the path again and looks the file up. The kernel has taken the reply to
//    that, or another from after the refusal, if nothing of 1 came in between
//    (bumps); the thread's next request shows that it has had the time. Attributes
//    on their way from before the refusal do not count, because of a notification
//    before it. A change that keeps the end of the file leaves nothing to prove: a
//    file that is renamed over a name may need the one refusal for its name.
//
// The kernel's end of the file: no zeros from behind it
// -----------------------------------------------------
// A reader sees zeros that nobody wrote if the kernel believes a longer file than the one of which
// it has the last page.
//
// 1. When a READ ends at the end of a shorter file, the kernel moves its own end of
//    the file, but not if it has changed the attributes since the READ began. So
//    notifications wait for the READs that we have in hand (let_reads_end()), for a
//    short time at most.
// 2. Attributes with a new end of the file go to the kernel when it has dropped the
//    pages of the old one (dropping_pages).
// 3. A READ may find that another node has cut the file, and the kernel may have
//    taken attributes since the READ began, perhaps those of the longer file. So a
//    READ that ends before the end that the kernel may believe is refused. It is
//    readahead, of which an error is nobody's: the reader then asks for each page by
//    itself, and that READ is answered as it is. (A fault may come without readahead:
//    then the page has bytes and is not refused, or is behind the end of the file as
//    storage has it now, where a program gets SIGBUS on a local file system too. A
//    read(2) comes without readahead only if the kernel lacks the memory for it, and
//    fails then. A kernel with large folios repeats the READ as it was, at once. The same
//    READ after others is readahead again: the kernel may have sent it before a
//    notification.) Several are refused at a time: the kernel reads one part ahead while
//    the reader waits for another. The next second, attributes and notifications wait for
//    READs in hand, for a refused reader to ask again, and for one that got less to move
//    the end of the file (acts_until()): all this takes as long as it takes a reader to
//    get a processor. And a READ is refused when neither attributes nor a notification
//    are about to go to the kernel (telling, notification).
// 4. The kernel truncates its pages when it has the answer to an open with O_TRUNC.
//    Another open waits for that and drops no pages (let_truncations_end()). If it
//    did, it could drop what a pwrite() after the O_TRUNC has just put there, and
//    the kernel would read again what storage has until the WRITE arrives.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "coop/boot_clock.hpp"
#include "userland/client/change_order.hpp"
#include "userland/client/inode_numbers.hpp"
#include "userland/client/page_store.hpp"
#include "userland/client/storage.hpp"
#include "userland/client/unstable.hpp"

namespace coop::client
{

using ticket = std::uint64_t;

// How long we believe attributes that another node may change.
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

	const std::uint64_t id; // the kernel's name for it: see inode_numbers.hpp
	const coop_fid fid;
	const handle fh;
	const ino_t number;        // storage's
	std::uint64_t lookups = 0; // the kernel's references; guarded by the table's lock

	unstable changes;                          // has its own lock
	std::atomic<std::uint64_t> name_losses{0}; // a directory: commits that found a loss

	bool keeps_listed = false; // in the committer's queue; guarded by its mutex

	// Held during a commit and the writes that it repeats. Taken before 'order'.
	change_order committing;
	// Held during a write, truncation or other local change of storage. Taken before 'lock'.
	change_order order;

	std::mutex lock;           // guards what follows
	ticket believed = 0;       // ticket of the last reply that was believed
	ticket judged = 0;         // the same, of replies that show what other nodes changed
	std::uint64_t version = 0; // 0: not known
	std::uint64_t size = 0;
	std::vector<std::uint32_t> openers; // of 'version', from the last open reply
	std::uint64_t kernel_version = 0;   // of the kernel's cached pages; 0: it has none
	// Version of all attributes that the kernel may believe: see the invariant above. 0: it
	// believes none; mixed: they may be of several versions.
	std::uint64_t kernel_attr = 0;
	ticket attr_told = 0; // of the last attributes that went to the kernel
	// The last end of the file among them in about a second. It stays until the kernel is told
	// others, which programs that read make it ask for each second. Until then a READ that ends
	// before it costs a GETATTR and perhaps a refusal.
	std::uint64_t told_end = 0;
	std::chrono::steady_clock::time_point told_end_at;
	ticket attr_fence =
		0; // the kernel ignores attributes of requests from before the last notification
	ticket opened = 0; // of the last open: older attributes must not go to the kernel
	// The kernel's end of the file may be of an older version: see the invariant, 3.
	bool unproved = false;
	std::uint64_t bumps = 0; // notifications, writers that came, answers of refuses_short()
	unsigned notifying = 0;  // notifications under way
	// Threads that look the file up again for their opens, and how long others wait for them.
	unsigned looking = 0;
	std::chrono::steady_clock::time_point looking_until;
	mode_t mode = 0;                   // as of 'has'
	std::unique_ptr<struct stat> last; // as of 'has'; null: a regular file, or not known
	std::uint32_t has = 0; // enum coop_st_has, from the reply to the request 'has_asked'
	ticket has_asked = 0;
	boot_clock::time_point has_until; // until then, a flag not in 'has' means absent
	// Opens that told the kernel to drop its pages and have not been used since: the kernel may
	// not have dropped them yet.
	unsigned unsettled = 0;
	// The same for locks: notifications that the kernel has not acted on yet.
	unsigned dropping = 0;
	// One of the unsettled opens is later than the last notification for a lock. The others'
	// stale pages went with that notification, so an open file that is never used does not make
	// every lock drop pages.
	bool drops_by_open = false;
	// Number of times that 'version' changed to one outside our own chain. While it is
	// constant, a read's result stays valid over our own changes: the kernel locks a page that
	// it reads, so no change of ours touches it until then.
	std::uint64_t breaks = 0;
	// The kernel has truncated the pages of reads that began when 'breaks' was smaller, or will
	// before an open with O_TRUNC returns.
	std::uint64_t truncated_before = 0;
	std::chrono::steady_clock::time_point truncated_at;
	unsigned writers = 0;  // open files with write access
	bool changing = false; // a local change was sent and not answered yet
	// READs that were refused because they fell short, latest last, and until when the kernel
	// may ask for their pages.
	struct refused_read {
		std::uint64_t from, to;
		std::chrono::steady_clock::time_point since, until;
		pid_t by;      // thread; 0: not known
		bool answered; // a later READ of a part
		// The reader has asked for all up to the end, got less, or asks something else.
		bool returned;
		bool alone = true;     // nothing of it has been asked for since
		bool repeated = false; // the last READ of it was the first since, and the same

		bool is(std::uint64_t offset, std::uint64_t length) const
		{
			return offset == from && offset + length == to;
		}
	};
	std::vector<refused_read> refused;
	// The last reply that fell short, and the thread that has not been heard of since; 0:
	// several.
	std::chrono::steady_clock::time_point short_at;
	pid_t short_by = 0;
	bool overdue = false; // the kernel's pages are stale, but stay while there are writers
	unsigned opens = 0;   // open files
	bool watched = false; // see open_watch.hpp

	// Without the lock: READs of the kernel that are not answered, and how often it was to be
	// told to drop pages since it has last dropped them.
	std::atomic<unsigned> telling{0}; // replies with attributes that are being written
	std::atomic<unsigned> reading{0};
	std::atomic<unsigned> dropping_pages{0};
	// Until when (steady_clock) attributes wait for READs; 0: no READ ever fell short.
	std::atomic<std::chrono::steady_clock::rep> shrinks_until{0};
	// Opens with O_TRUNC that have not been used since: the kernel may still have the pages.
	std::atomic<unsigned> truncating{0};
	std::atomic<bool> locked{false}; // this mount has asked for a lock of it
	// A lock was lost, and the kernel may have pages that were stored to under it.
	std::atomic<unsigned> lost_stores{0};

	// States of the kernel's pages as in rpc/storage/STORAGE.md, "Contents in a client's
	// cache". Call with 'lock' held.
	enum class pages { none, proved, foreign };
	pages kernel_pages() const
	{
		return !kernel_version             ? pages::none
		       : kernel_version == version ? pages::proved
						   : pages::foreign;
	}
};

// Reactions to a new version.
struct inode_events {
	// The kernel holds pages of another version. Called from any thread, also while the kernel
	// waits for a reply or with an inode's lock held: must not call into the kernel itself.
	std::function<void(inode &)> pages_stale;
	// Asks the kernel for bytes of its cached pages: see kernel_loads::asker. Called without
	// locks, from any thread.
	std::function<int(inode &, std::uint64_t offset, std::uint32_t length,
			  std::uint64_t cookie)>
		retrieve = {};
	// Calls the function when the kernel has dropped the pages that it was told of so far.
	std::function<void(std::function<void()>)> pages_dropped =
		[](const std::function<void()> &then) { then(); };
	// The lease of a file, or all (null), is over: see storage_options::on_lease_over.
	std::function<void(inode *, std::function<void()> then)> lease_over = {};
};

class inode_table
{
public:
	inode_table(page_store &store, inode_events events);

	// Takes one more reference for the kernel.
	inode *ref(const entry &e);
	void forget(inode *node, std::uint64_t n);
	// See inode_numbers.
	inode *find(std::uint64_t id) const { return ids_.find(id); }
	// 0 or -errno: see kernel_loads::asker.
	int retrieve(const coop_fid &, std::uint64_t offset, std::uint32_t length,
		     std::uint64_t cookie);
	void lease_over(const coop_fid &, std::function<void()> then);
	std::optional<inode_numbers::file> identify(std::uint64_t id) const;
	std::uint32_t generation() const { return ids_.generation(); }
	// Like a reference of the kernel, until it is destroyed: lookups find this inode.
	std::shared_ptr<inode> keep(inode &);
	struct figures {
		std::size_t held, forgotten; // by the kernel; see inode_numbers
	};
	figures count() const;

	ticket now() { return ++clock_; }

	// A reply that is not to a local change: lookup, getattr, readdir, open. openers: from an
	// open reply, else null. False: it was not believed because of a local change, and no reply
	// to a later request was either; so whether another node changed the file is not known.
	bool learn(inode &node, ticket asked, const attributes &attr,
		   const std::vector<std::uint32_t> *openers);

	// These attributes go to the kernel with the next reply. False: they must not, because a
	// later open has shown newer ones. always: the kernel takes them however old they are.
	[[nodiscard]] bool told(inode &node, ticket asked, const attributes &attr, bool always);
	// Whether the kernel may believe attributes of another version.
	bool believes_other(inode &node, std::uint64_t version);
	// Call after a notification; since: ticket from before it.
	void announced(inode &node, ticket since);
	// The same after the first notification of this version.
	void announced(inode &node, ticket since, std::uint64_t version);
	// The time of a notification to the kernel about the file. Begins when no reader is in
	// need, as telling does.
	class notification
	{
	public:
		notification(inode_table &t, inode &n) : table_(t), node_(n), since(t.notifies(n))
		{
		}
		~notification() { table_.notified(node_); }
		notification(const notification &) = delete;

	private:
		inode_table &table_;
		inode &node_;

	public:
		const ticket since; // from before it
	};

	// True: the kernel must look the file up again before an open is answered. Waits for other
	// threads that do so, for a short time at most: a notification now would spoil their proof,
	// and theirs is good for this one.
	bool in_doubt(inode &node);
	// An open from which the inode learned will not tell the kernel what to do with its pages.
	void not_opened(inode &node);
	// A thread begins to look the file up again, or is back. Returns the number of the events
	// that make the kernel ignore replies; none: one is under way, for longer than a short
	// time.
	std::optional<std::uint64_t> looks_again(inode &node);
	void has_looked(inode &node);
	// The kernel has had the time to take attributes of this version, which it asked for when
	// bumps() was the number.
	void prove(inode &node, std::uint64_t bumps, std::uint64_t version);

	// A READ of the kernel, from its arrival until it has been answered.
	class read_in_hand
	{
	public:
		read_in_hand(inode_table &t, std::shared_ptr<inode> n) :
			table_(t),
			node_(std::move(n))
		{
			node_->reading++;
		}
		~read_in_hand()
		{
			if (--node_->reading == 0)
				table_.made_progress();
		}
		read_in_hand(const read_in_hand &) = delete;

	private:
		inode_table &table_;
		const std::shared_ptr<inode> node_;
	};
	// Waits until there is none, for a short time at most: the kernel waits for its pages.
	void let_reads_end(inode &node);
	// A READ fell short of the end that the kernel may believe. True: refuse it.
	// page: the kernel's, in bytes. thread: the reader's; 0: not known.
	bool refuses_short(inode &node, std::uint64_t offset, std::uint64_t length,
			   std::uint64_t got, std::uint64_t page, pid_t thread = 0);
	// A READ has come, perhaps of a reader of which an earlier one was refused.
	void returns(inode &node, pid_t thread, std::uint64_t offset, std::uint64_t length);
	// Another request of this thread has come, so it has acted on what it was answered before.
	void has_acted(inode &node, pid_t thread);
	// Until when attributes and notifications wait for such readers.
	static std::chrono::steady_clock::time_point acts_until(inode &node);
	// Attributes on their way to the kernel: such READs are waited for before, and a READ that
	// is refused waits for this, since the reader's next one must not be overtaken.
	class telling
	{
	public:
		telling(inode_table &t, inode &n);
		~telling();
		telling(const telling &) = delete;
		telling(telling &&) = default;

	private:
		inode_table *table_;
		std::shared_ptr<inode> node_;
	};
	// An open file with write access begins or ends.
	void writer_came(inode &node);
	void writer_gone(inode &node);
	// Called after a lock was granted: the kernel's pages of older versions must be dropped,
	// even while there are writers. True: the kernel has been told; call dropped() once it has
	// dropped them. Also true if an earlier lock or an open told it and it may still have them.
	[[nodiscard]] bool must_drop(inode &node);
	void dropped(inode &node);
	// See storage_options::on_locks_in_doubt: the kernel drops what it has of these files.
	void locks_in_doubt(const std::function<bool(const handle &)> &locked);
	// See storage_options::on_lock_lost: the same, and what was stored to pages is not written.
	void lock_lost(const handle &);
	// For the one who tells the kernel to drop the pages, before it does so: null: the kernel
	// has forgotten the file, or there is nothing left to drop, because an open drops it.
	std::shared_ptr<inode> to_drop(std::uint64_t id, bool even_if_opened);
	// A local change of [offset, offset + length) took the file from version
	// before.version_before to attr. The caller holds the inode's order.
	void changed(inode &node, const write_result &r, std::uint64_t offset,
		     std::uint64_t length);
	// The same for a write that is not in the kernel's pages. True: the kernel may have pages
	// of these bytes, or will; it must drop them before it gets the answer.
	[[nodiscard]] bool changed_past_cache(inode &node, const write_result &r,
					      std::uint64_t offset, std::uint64_t length);
	// A local change of attributes is done: its reply has the latest extended attributes.
	void beside(inode &node, const attributes &attr);
	// Whether the file lacks these (enum coop_st_has), while we believe its attributes.
	bool without(inode &node, std::uint32_t has);
	// The last known attributes of what is no regular file, for when storage does not tell.
	// False: none.
	bool last_known(inode &node, attributes &out);
	// It has been proved that it was removed: those attributes have link count 0.
	void removed(inode &node);
	// Whether it is a regular file with set-id bits that a write clears, as far as known.
	bool has_set_id(inode &node);
	// Whether this is the last known mode minus the set-id bits that a write clears.
	bool is_mode_after_write(inode &node, mode_t mode);
	// Storage put a write elsewhere than the kernel did in its own pages.
	void misplaced(inode &node);
	// O_TRUNC emptied the file. The caller holds the inode's order. Returns a ticket for
	// truncated(), to be called when the kernel has acted on the reply.
	[[nodiscard]] ticket emptied(inode &node, const attributes &attr);
	void truncated(inode &node, ticket);
	// Waits until the kernel has acted on all such replies, for a short time at most.
	void let_truncations_end(inode &node);

private:
	std::shared_ptr<inode> find(const coop_fid &);
	std::vector<std::shared_ptr<inode>> locked();
	// Call with the inode's lock held. True: the kernel's pages are stale and may be dropped
	// now.
	bool follow(inode &node, const write_result &r, std::uint64_t offset, std::uint64_t length,
		    bool cached);
	// Takes over a version outside our own chain; true: the kernel's pages are stale and may be
	// dropped now.
	bool replace(inode &node, const attributes &attr);
	static void learn_extras(inode &node, ticket asked, const attributes &attr);
	void stale(inode &node);
	static bool shrinks(const inode &node);
	static bool may_act(inode &node, std::chrono::steady_clock::time_point until);
	ticket notifies(inode &node);
	void notified(inode &node);
	template <class condition>
	void wait(std::chrono::steady_clock::time_point until, condition);
	void made_progress()
	{
		if (waiters_)
			wake();
	}
	void wake();

	page_store &store_;
	inode_events events_;
	std::atomic<ticket> clock_{0};
	mutable std::mutex lock_;
	std::unordered_map<coop_fid, std::shared_ptr<inode>, fid_hash, fid_equal> by_fid_;
	inode_numbers ids_;                // its find() needs no lock
	std::atomic<unsigned> waiters_{0}; // for the kernel
	std::mutex wait_lock_;             // guards nothing but the wait
	std::condition_variable progress_;
};

} // namespace coop::client
