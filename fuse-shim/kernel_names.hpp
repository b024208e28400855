// SPDX-License-Identifier: MIT
// kernel_names.hpp - the names that the kernel may use without asking us, and how they end.
//
// A reply that names a file lets the kernel use the name for a second. The lease of the name's
// directory must not end before the kernel has been told to ask again: until we return the lease,
// storage changes no name in the directory.
//
// Telling the kernel (FUSE_NOTIFY_INVAL_ENTRY) takes the directory's inode lock, which a task may
// hold whose request waits for us. So threads of their own tell it. The lease waits for that, with
// two exceptions, since two nodes that change one directory would wait for each other:
// - while a request of this node to change the directory is under way, and
// - for longer than the kernel believes names at all.
// Linux before 6.2 can only drop names, with what is mounted on them and the paths of open files,
// so there names just end after their time.
//
// A name that the kernel may still use after its directory's lease, or without one, is in doubt:
// op_open() asks the kernel to look again before it opens the file.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include <fuse_lowlevel.h>

#include "fuse-shim/background.hpp"

namespace coop::shim
{

class kernel_names
{
public:
	using clock = std::chrono::steady_clock;
	static constexpr std::chrono::seconds time{1}; // for which the kernel believes a name

	// Makes the kernel ask for the name again; it may wait. Null: not possible.
	using expire = std::function<void(fuse_ino_t dir, const std::string &name)>;

	kernel_names() = default;
	~kernel_names() { stop(); }
	void start(expire);
	void stop();

	// Before a request is sent whose reply will name files.
	std::uint64_t now() const { return ends_; }
	// The reply that the caller is about to send names the file. leased: the directory's lease
	// covers that; asked: now() from before.
	void given(fuse_ino_t dir, std::string_view name, fuse_ino_t node, bool leased,
		   std::uint64_t asked);
	// Our own change of the name is done, as the kernel does it to its own.
	void removed(fuse_ino_t dir, std::string_view name);
	void moved(fuse_ino_t dir, std::string_view name, fuse_ino_t to, std::string_view to_name,
		   bool exchanged);

	// The directory's lease is over. Calls then() when the kernel uses none of its names any
	// more. changing: a request of ours to change the directory is under way.
	void lease_over(fuse_ino_t dir, bool changing, std::function<void()> then);
	// All leases are over, and storage waits for nobody.
	void leases_over();
	// May the kernel have come to this file by a name that means another file by now?
	bool doubtful(fuse_ino_t node);

private:
	struct name {
		fuse_ino_t node;
		clock::time_point until; // the kernel believes it
		bool doubtful;
	};
	using names = std::unordered_map<std::string, name>;
	struct doubts {
		unsigned names = 0;
		clock::time_point until{};
	};
	struct ending {
		fuse_ino_t dir;
		std::vector<std::string> list;
		std::function<void()> then;
		clock::time_point deadline;
	};
	using ending_ref = std::shared_ptr<ending>;

	void doubt_locked(name &);
	void forget_locked(const name &);
	void sweep_locked(clock::time_point now);
	std::vector<std::string> end_locked(names &, clock::time_point now);
	void tell();
	void watch();

	std::mutex mutex_; // guards all below
	std::unordered_map<fuse_ino_t, names> dirs_;
	std::unordered_map<fuse_ino_t, doubts> doubts_;
	std::size_t known_ = 0, sweep_at_ = 4096;
	std::atomic<std::uint64_t> ends_{0}; // of leases
	std::atomic<std::size_t> doubted_{0};
	expire expire_;
	bool running_ = false;
	std::deque<ending_ref> endings_;  // oldest first, those that wait for the teller
	std::vector<ending_ref> overdue_; // whose then() has not been called; oldest first
	std::condition_variable tell_wake_, watch_wake_;
	std::thread teller_, watcher_;
	background patient_; // tells names that no lease waits for
};

} // namespace coop::shim
