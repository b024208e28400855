// SPDX-License-Identifier: MIT
// leases.hpp - the leases of clients: promises to tell a client before a file changes.
//
// A lease is on one file or directory, for reading. It covers the attributes, a regular file's
// contents and a directory's names. Before a change the leases of all other clients are recalled,
// and the change waits until they are returned, or until lease_answer_time has passed since the
// client's latest input before the recall.
//
// Why the client does not rely on the lease then: the recall leaves before the replies to all later
// input, so a client that takes such a reply has taken the recall first. The replies before the
// recall answer older input, and a client trusts its leases for a shorter time than ours since it
// sent the latest request that was answered. So a client that has been silent for that long when
// its lease is recalled delays nobody, and one that stops delays others once. The end of its
// connection proves nothing sooner: the client may not know of it yet.
//
// No lease is granted while a change is under way. So the order "grant, look at the file, then
// check its user's rights" gives a client nothing older than its lease. A lease that a client may
// rely on never ends without the client's knowledge: several requests of a client run at once, and
// another request's reply may already have reported the lease that this one finds.
//
// Programs on the daemon's own machine: the kernel keeps them from opening a file for writing while
// a client may open it within a lease (file_watch, guard). Their changes of names and attributes
// are reported after the fact.
//
// No call that may wait for a file system is made with the table locked, nor on the watch's thread:
// both serve all exports. The attributes of a file that we hold open do not wait, unless another
// machine keeps them (change_clock::ours).
//
// The watch reports the clients' own changes too, so an event that leaves the file at the change
// time that the holders know is ignored. Two kinds of change can hide behind such a time (vague):
// what a program did while a client's change ran, because the time is taken at its end; and, where
// change times are coarse, what it did in the same tick. For a directory these are told apart by
// name: only names that clients' changes make or remove are explained.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "coop/boot_clock.hpp"
#include "coop/fid.hpp"
#include "userland/daemon/file_watch.hpp"
#include "userland/daemon/inodes.hpp"

namespace coop::daemon
{

class session;

constexpr std::size_t leases_max = 10000; // per session
// Expected events of a directory. Beyond that, a client's own change may recall its lease.
constexpr std::size_t names_expected = 1024;
// After this time since the latest input before its recall, a client does not rely on a lease.
constexpr std::chrono::milliseconds lease_answer_time{COOP_ST_SILENCE_MS};

class lease_table
{
public:
	using clock = boot_clock;
	using fids = std::vector<coop_fid>;
	using number = std::uint64_t; // of a lease; 0: none
	// Files are meant by inode::file, which is the same for the clients of all exports, except
	// in give_back(), where the client means one.
	// What a change touches.
	struct extent {
		fids files;
		// Names that it makes or removes, one for each event of the kernel, and the index
		// of their directory.
		std::vector<std::pair<std::size_t, std::string>> names;
	};
	struct counters {
		std::atomic<std::uint64_t> granted{0}, recalled{0}, unanswered{0}, foreign{0};
	};

	explicit lease_table(inode_table &);
	// Who runs what may wait for this export's file system, now or later; the default: at once.
	using runner = std::function<void(const exported &, std::function<void()>)>;
	void run_by(runner r) { runner_ = std::move(r); } // before the first lease

	// Call before looking at the file and before checking the user's rights. Returns 0 if the
	// file is changing, or if there are too many leases. A lease that the session already has
	// is returned as it is.
	[[nodiscard]] number grant(const std::shared_ptr<session> &, const inode_ref &);
	// In addition, lets the holders open the file without asking us: programs of this machine
	// that want to write wait. False: one has it open for writing, or too many files are
	// guarded.
	[[nodiscard]] bool guard(const inode_ref &);
	// True: the lease has stood since it was granted, and the reply may report it. changed: the
	// change time in the reply; an inotify event that leaves the file at it is caused by us. It
	// must not be older than the one that another reply has reported. lease 0: the lease that
	// the session kept over its own change, which has not ended yet.
	[[nodiscard]] bool tell(const session *, const coop_fid &, number lease,
				const coop_st_time &changed);
	// The reply does not report the lease. If another reply may have reported it, the client is
	// asked to return it.
	void withdraw(const session *, const coop_fid &, number lease);
	// The same for a reply without this file's attributes: a lease that another reply has
	// reported stands.
	void forgo(const session *, const coop_fid &, number lease);
	bool holds(const session *, const coop_fid &) const; // and it is not being recalled
	// Whether another client holds a lease of the file.
	bool other_clients_hold(const session *, const coop_fid &) const;
	// All leases of 'from' on these files, each told, become leases of 'to' too. False: one of
	// them is being recalled, or 'to' cannot have so many; then nothing has happened.
	[[nodiscard]] bool share(const session *from, const std::shared_ptr<session> &to,
				 const fids &);
	void give_back(const session *, const coop_fid &fid);
	void give_back_all(const session *);

	// A client is about to change these files. It keeps its own leases on the first 'keeps' of
	// them and loses those on the others. True: the change may begin now. False: go() is
	// called, on any thread, when it may.
	[[nodiscard]] bool begin(const std::shared_ptr<session> &by, const extent &,
				 std::size_t keeps, std::function<void()> go);
	// done: it has been made, and the kernel reports its names.
	void end(const extent &, bool done);
	// The file has already changed.
	void changed(const coop_fid &);
	// The daemon ends: drops waiting changes, and all references to sessions.
	void clear();
	// Ends leases whose recall has been unanswered for too long.
	void expire(clock::time_point now = clock::now());

	std::size_t held() const;
	// The remaining descriptors serve inodes that have three for a moment.
	std::size_t guards_max() const { return inodes_.capacity() - inodes_.capacity() / 8; }
	counters count;

	// A granted lease that no reply has reported yet. If it is neither told nor withdrawn, the
	// destructor forgoes it.
	class offer
	{
	public:
		offer() = default;
		offer(lease_table &, const std::shared_ptr<session> &, const inode_ref &);
		offer(offer &&o) noexcept :
			table_(o.table_),
			who_(o.who_),
			file_(o.file_),
			lease_(std::exchange(o.lease_, 0))
		{
		}
		offer &operator=(offer &&) = delete;
		~offer();
		explicit operator bool() const { return lease_; }
		// True: the reply may report the lease. False: it is forgone.
		[[nodiscard]] bool tell(const coop_st_time &changed);
		void withdraw();

	private:
		lease_table *table_ = nullptr;
		const session *who_ = nullptr; // of the request, which outlives the offer
		coop_fid file_{};
		number lease_ = 0; // 0: none, or already settled
	};

private:
	struct holder {
		std::shared_ptr<session> who;
		number lease;
		bool told = false;            // the client relies on it once it has the reply
		clock::time_point recalled{}; // zero: not recalled
		std::uint64_t since = 0;      // by the export's clock: before it was granted
		coop_fid fid{};               // the file's name in the export of the session
	};
	struct recall {
		coop_fid file;
		const session *who; // only compared, never dereferenced
		clock::time_point when;
	};
	struct change {
		const session *by;
		std::size_t waits_for = 0; // number of files on which others hold leases
		fids files;                // all files that it touches, if it waits
		std::function<void()> go;
	};
	struct file {
		std::vector<holder> holders;
		unsigned changing = 0; // changes that wait or run
		unsigned held_up = 0;  // those of them that wait
		std::vector<std::shared_ptr<change>> waiting;
		const exported *in = nullptr;
		std::string handle;
		coop_st_time seen{};
		bool vague =
			false; // a change that no holder knows may have left the file at 'seen'
		change_clock times{};
		// Names in this directory of clients' changes whose events have not come yet.
		std::deque<std::string> ours;
		int watch = -1, guard = -1;
		bool breaking = false; // a program waits for the guard
	};
	using files = std::unordered_map<coop_fid, file, fid_hash, fid_equal>;
	using names = std::unordered_map<coop_fid, coop_fid, fid_hash, fid_equal>;
	// Work to do after the lock has been released.
	struct told {
		std::shared_ptr<session> who;
		coop_fid file, fid;
		clock::time_point when; // zero: the lease has ended already
	};
	struct todo {
		std::vector<told> recalls;
		std::vector<std::function<void()>> go;
		std::vector<std::shared_ptr<session>> unused; // we may hold their last reference
	};
	void run(todo &&);
	// Calls change(todo &) with the table locked, then does what it left to do.
	template <class act> void locked(act change)
	{
		todo out;
		{
			std::lock_guard lock(mutex_);
			change(out);
		}
		run(std::move(out));
	}

	static bool others_hold(const file &, const session *by);
	static std::vector<holder>::iterator holder_of(file &, const session *);
	holder *standing_locked(const session *, const coop_fid &, number lease);
	void recall_one_locked(const coop_fid &, holder &, todo &);
	void recall_locked(const coop_fid &, file &, const session *but, todo &);
	void remove_locked(files::iterator, const session *, todo &);
	bool lapse_locked(const recall &, todo &);
	void await_answers(const std::vector<told> &);
	void tidy_locked(files::iterator);
	bool look(const std::string &handle, coop_st_time &changed) const;
	bool is_as_seen_locked(const file &) const;
	std::vector<std::pair<coop_fid, coop_st_time>> look_ahead(const fids &) const;
	void look_again(const coop_fid &, bool foreign);
	void on_foreign_locked(const coop_fid &, file &, todo &);
	void on_event(int watch, const file_watch::names &);
	void on_writer(int guard);
	void stop_writer_locked(const coop_fid &, todo &);

	inode_table &inodes_;
	runner runner_ = [](const exported &, const std::function<void()> &work) { work(); };
	std::atomic<bool> distant_{false}; // another machine keeps attributes of an export's files
	mutable std::mutex mutex_;         // guards all below
	files files_;
	std::unordered_map<const session *, names> held_; // from fids to files
	std::unordered_map<int, coop_fid> watched_, guarded_;
	std::multimap<clock::time_point, recall> recalls_; // by their end; some are answered
	std::size_t total_ = 0;
	number last_ = 0;
	file_watch watch_; // destroyed first: its thread calls on_event()
};

} // namespace coop::daemon
