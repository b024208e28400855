// SPDX-License-Identifier: MIT
// leases.hpp - which clients were promised that a file will not change before
// they have been told.
//
// A lease is of one file or directory, for reading. It covers the attributes, a
// regular file's contents and a directory's names. Before a change the leases of all other
// clients are recalled, and the change waits until they are given back or have
// been unanswered for lease_answer_time: a client relies on its leases only for
// as long as it hears from us, which is shorter.
//
// No lease is granted while a change is under way, so the order "grant, then look
// at the file, then judge its user" gives a client nothing that is older than its lease. And
// no lease that a client may rely on ends without its knowledge: several requests of one
// client run at once, and what one of them finds another's reply may have told already.
//
// Programs on the daemon's own machine: the kernel keeps them from opening a file for
// writing while a client may open it within a lease (file_watch, guard). What they do to
// names and attributes is told after it has happened.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "userland/daemon/file_watch.hpp"
#include "userland/daemon/inodes.hpp"

namespace coop::daemon
{

class session;

constexpr std::size_t leases_max = 10000; // a session
// A recall that is unanswered for that long ends the lease.
constexpr std::chrono::milliseconds lease_answer_time{COOP_ST_LEASE_TRUST_MS + 5000};

class lease_table
{
public:
	using clock = std::chrono::steady_clock;
	using fids = std::vector<coop_fid>;
	using number = std::uint64_t; // of a lease; 0: none
	struct counters {
		std::atomic<std::uint64_t> granted{0}, recalled{0}, unanswered{0}, foreign{0};
	};

	explicit lease_table(inode_table &);

	// Before the file is looked at, and its user judged. 0: it is changing, or there are too
	// many. What the session has already stays what it is.
	[[nodiscard]] number grant(const std::shared_ptr<session> &, const inode_ref &);
	// As well: who may open the file without asking. Programs on this machine that want to
	// write wait then. False: there is one that writes, or there are too many files.
	[[nodiscard]] bool guard(const inode_ref &);
	// True: it stands since it was granted, and the reply is to tell of it. changed: what the
	// reply tells; a change that the kernel reports and that leaves it so is ours. It must not
	// be older than what another reply has told. lease 0: the one that the session has kept
	// over a change of its own, which has not ended yet.
	[[nodiscard]] bool tell(const session *, const coop_fid &, number lease,
				const coop_st_time &changed);
	// The reply does not tell of it after all. A client that another reply may have told of it
	// is asked to return it.
	void withdraw(const session *, const coop_fid &, number lease);
	// The same of a reply that says nothing of the file: what another has told stands.
	void forgo(const session *, const coop_fid &, number lease);
	bool holds(const session *, const coop_fid &) const; // and has not been told to return it
	void give_back(const session *, const coop_fid &);
	void give_back_all(const session *);

	// A change of these files by a client is about to begin. Its own leases of the first
	// 'keeps' of them stay, and so do none of the others. True: it may begin now. False: go()
	// is called, on any thread, when it may.
	[[nodiscard]] bool begin(const std::shared_ptr<session> &by, const fids &,
				 std::size_t keeps, std::function<void()> go);
	void end(const fids &);
	// It has changed already.
	void changed(const coop_fid &);
	// The daemon ends: changes that wait are not made, and sessions are not held any more.
	void clear();
	// Ends leases whose recall has been unanswered for too long.
	void expire(clock::time_point now = clock::now());

	std::size_t held() const;
	// The rest of their descriptors is for the moments when an inode has three.
	std::size_t guards_max() const { return inodes_.capacity() - inodes_.capacity() / 8; }
	counters count;

	// A lease that is granted and that no reply has told of yet. What is neither told nor
	// withdrawn is forgone.
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
		// True: the reply is to tell of it. False: it is forgone.
		[[nodiscard]] bool tell(const coop_st_time &changed);
		void withdraw();

	private:
		lease_table *table_ = nullptr;
		const session *who_ = nullptr; // the request's, which outlives this
		coop_fid file_{};
		number lease_ = 0; // 0: none, or not to be settled any more
	};

private:
	struct holder {
		std::shared_ptr<session> who;
		number lease;
		bool told = false;            // it may rely on it, as soon as it has the reply
		clock::time_point recalled{}; // not yet: zero
	};
	struct recall {
		clock::time_point when;
		coop_fid file;
		const session *who; // to be compared only
	};
	struct change {
		const session *by;
		std::size_t waits_for = 0; // files of which others hold leases
		fids files;                // all that it touches, if it waits
		std::function<void()> go;
	};
	struct file {
		std::vector<holder> holders;
		unsigned changing = 0; // changes that wait or run
		unsigned held_up = 0;  // those of them that wait
		std::vector<std::shared_ptr<change>> waiting;
		std::string handle;
		coop_st_time seen{};
		int watch = -1, guard = -1;
		bool breaking = false; // a program waits for the guard
	};
	struct hash {
		std::size_t operator()(const coop_fid &f) const { return f.lo; }
	};
	struct equal {
		bool operator()(const coop_fid &a, const coop_fid &b) const
		{
			return a.hi == b.hi && a.lo == b.lo;
		}
	};
	using files = std::unordered_map<coop_fid, file, hash, equal>;
	using set = std::unordered_set<coop_fid, hash, equal>;
	// What is done when the lock has been let go of.
	struct todo {
		std::vector<std::pair<std::shared_ptr<session>, coop_fid>> recalls;
		std::vector<std::function<void()>> go;
		std::vector<std::shared_ptr<session>> unused; // their last reference may be ours
	};
	void run(todo &&);

	static bool others_hold(const file &, const session *by);
	holder *standing_locked(const session *, const coop_fid &, number lease);
	void recall_one_locked(const coop_fid &, holder &, todo &);
	void recall_locked(const coop_fid &, file &, const session *but, todo &);
	void remove_locked(files::iterator, const session *, todo &);
	void tidy_locked(files::iterator);
	bool stat_locked(const file &, coop_st_time &changed) const;
	void on_event(int watch);
	void on_writer(int guard);
	void stop_writer_locked(const coop_fid &, todo &);

	inode_table &inodes_;
	mutable std::mutex mutex_; // all below
	files files_;
	std::unordered_map<const session *, set> held_;
	std::unordered_map<int, coop_fid> watched_, guarded_;
	std::deque<recall> recalls_; // oldest first; some have been answered
	std::size_t total_ = 0;
	number last_ = 0;
	file_watch watch_; // ends first: its thread calls on_event()
};

} // namespace coop::daemon
