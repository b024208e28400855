// SPDX-License-Identifier: MIT
// file_watch.hpp - the kernel tells of changes of files, whoever on this machine
// makes them: inotify(7), and the thread that listens to it.
//
// It tells after the change, and of changes through the daemon as well. Stores
// through a mapping are told when the file is closed.
//
// A guard tells before: it is a read lease of the kernel's (fcntl(2), F_SETLEASE), so
// whoever opens the file for writing, or truncates it, waits until the guard is gone.
// It does not see changes of names and attributes. The kernel's signal goes to the
// thread, which keeps it blocked: the process needs no handler.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "userland/daemon/fd.hpp"

namespace coop::daemon
{

class file_watch
{
public:
	static constexpr int overflow = -1; // events were lost: of any file
	// changed: called on a thread of this object, with the number of the watch.
	// writing: the same, with the number of the guard that is in the way.
	file_watch(std::function<void(int watch)> changed, std::function<void(int guard)> writing);
	~file_watch();
	file_watch(const file_watch &) = delete;
	file_watch &operator=(const file_watch &) = delete;

	// path: a descriptor, O_PATH suffices. The number of the watch, one per file, or -1: the
	// kernel has no room for more (fs.inotify.max_user_watches).
	[[nodiscard]] int add(int path, bool directory);
	void remove(int watch);
	// The guard's number, or -1: the file is open for writing, or the kernel grants us none.
	[[nodiscard]] int guard(int path) const;
	static void unguard(int guard);
	// All guards are to be looked at: some signals were too many for the kernel.
	static constexpr int any = -1;
	static bool stands(int guard);

private:
	void listen();
	bool listen_once(int signals);

	const std::function<void(int)> changed_, writing_;
	unique_fd events_, stop_;
	std::atomic<int> thread_id_{0};
	std::thread thread_;
};

} // namespace coop::daemon
