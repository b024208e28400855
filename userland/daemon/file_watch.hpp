// SPDX-License-Identifier: MIT
// file_watch.hpp - reports changes that any process of this machine makes to files: inotify(7), and
// the thread that reads it.
//
// A watch reports after the change, and reports the daemon's own changes as well. It reports stores
// through a mapping when the file is closed.
//
// A guard reports before the change: it is a read lease of the kernel (fcntl(2), F_SETLEASE), so a
// process that opens the file for writing, or truncates it, waits until the guard is gone. It does
// not see changes of names and attributes. The thread blocks the lease signal and reads it from a
// signalfd: the process needs no handler.
#pragma once

#include <atomic>
#include <functional>
#include <string_view>
#include <thread>
#include <vector>

#include "coop/unique_fd.hpp"

namespace coop::daemon
{

class file_watch
{
public:
	static constexpr int overflow = -1; // events were lost: any file may have changed
	// Names in a directory that were made or removed, one for each event.
	using names = std::vector<std::string_view>;
	// changed: called on this object's thread with the number of the watch.
	// writing: the same, with the number of the guard that a process waits for.
	file_watch(std::function<void(int watch, const names &)> changed,
		   std::function<void(int guard)> writing);
	~file_watch();
	file_watch(const file_watch &) = delete;
	file_watch &operator=(const file_watch &) = delete;

	// path: a descriptor, O_PATH suffices. Returns the number of the watch, one per file, or
	// -1: the kernel has no room for more (fs.inotify.max_user_watches).
	[[nodiscard]] int add(int path, bool directory);
	void remove(int watch);
	// Returns the guard's number, or -1: the file is open for writing, or the kernel grants no
	// lease.
	[[nodiscard]] int guard(int path) const;
	static void unguard(int guard);
	// Check all guards: the kernel could not queue some signals.
	static constexpr int any = -1;
	static bool stands(int guard);

private:
	void listen();
	bool listen_once(int signals);

	const std::function<void(int, const names &)> changed_;
	const std::function<void(int)> writing_;
	unique_fd events_, stop_;
	std::atomic<int> thread_id_{0};
	std::thread thread_;
};

} // namespace coop::daemon
