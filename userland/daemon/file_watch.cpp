// SPDX-License-Identifier: MIT
// file_watch.cpp - see file_watch.hpp.
#include "userland/daemon/file_watch.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <string>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <unordered_map>

namespace coop::daemon
{

namespace
{

// Events of the file itself, or of names in the directory.
constexpr std::uint32_t of_itself =
	IN_ATTRIB | IN_MODIFY | IN_CLOSE_WRITE | IN_MOVE_SELF | IN_DELETE_SELF;
// A directory gets these for the files in it, too: each event would wake the thread needlessly.
constexpr std::uint32_t of_bytes = IN_MODIFY | IN_CLOSE_WRITE;
constexpr std::uint32_t of_names = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO;

// Events that say nothing come in rows, as of each file that an archive is unpacked to. So the
// thread lets some gather before it looks again: without that it wakes for each.
constexpr int gather_ms = 2;

// A real-time signal: the kernel queues one for each guard.
int writing_signal()
{
	return SIGRTMIN + 3;
}

} // namespace

file_watch::file_watch(std::function<void(int, const names &)> changed,
		       std::function<void(int)> writing) :
	changed_(std::move(changed)),
	writing_(std::move(writing)),
	events_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)),
	stop_(::eventfd(0, EFD_CLOEXEC))
{
	if (!events_ || !stop_)
		return;
	thread_ = std::thread([this] { listen(); });
	thread_id_.wait(0);
}

file_watch::~file_watch()
{
	const std::uint64_t one = 1;
	if (thread_.joinable() && ::write(stop_.get(), &one, sizeof(one)) == sizeof(one))
		thread_.join();
}

int file_watch::add(int path, bool directory)
{
	if (!thread_.joinable())
		return -1;
	const std::string self = "/proc/self/fd/" + std::to_string(path);
	return ::inotify_add_watch(events_.get(), self.c_str(),
				   directory ? (of_itself & ~of_bytes) | of_names : of_itself);
}

void file_watch::remove(int watch)
{
	::inotify_rm_watch(events_.get(), watch);
}

// F_SETSIG and the owner are set before the lease: otherwise the kernel would signal the process.
int file_watch::guard(int path) const
{
	if (!thread_.joinable())
		return -1;
	const std::string self = "/proc/self/fd/" + std::to_string(path);
	unique_fd fd(::open(self.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
	const f_owner_ex owner{F_OWNER_TID, thread_id_};
	if (!fd || ::fcntl(fd.get(), F_SETOWN_EX, &owner) ||
	    ::fcntl(fd.get(), F_SETSIG, writing_signal()) || ::fcntl(fd.get(), F_SETLEASE, F_RDLCK))
		return -1;
	return fd.release();
}

void file_watch::unguard(int guard)
{
	::close(guard);
}

bool file_watch::stands(int guard)
{
	return ::fcntl(guard, F_GETLEASE) == F_RDLCK;
}

void file_watch::listen()
{
	sigset_t ours;
	sigemptyset(&ours);
	sigaddset(&ours, writing_signal());
	sigaddset(&ours, SIGIO); // sent in its place when the kernel's signal queue is full
	pthread_sigmask(SIG_BLOCK, &ours, nullptr);
	const unique_fd signals(::signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK));
	thread_id_ = static_cast<int>(::syscall(SYS_gettid));
	thread_id_.notify_all();
	while (listen_once(signals.get()))
		;
}

// False: stop.
bool file_watch::listen_once(int signals)
{
	alignas(inotify_event) std::array<char, 64u << 10> buffer;
	pollfd what[] = {
		{events_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}, {signals, POLLIN, 0}};
	if (::poll(what, 3, -1) < 0)
		return errno == EINTR;
	if (what[1].revents)
		return false;
	signalfd_siginfo info;
	while (::read(signals, &info, sizeof(info)) == sizeof(info))
		writing_(info.ssi_signo == SIGIO ? any : info.ssi_fd);
	const ssize_t n = ::read(events_.get(), buffer.data(), buffer.size());
	std::unordered_map<int, names> told; // many events of one file count as one
	for (ssize_t at = 0; at < n;) {
		const auto *e = reinterpret_cast<const inotify_event *>(&buffer[at]);
		at += static_cast<ssize_t>(sizeof(*e) + e->len);
		// Changes of the files in a directory do not change the directory.
		const bool matters =
			e->len ? e->mask & of_names : e->mask & (of_itself | IN_Q_OVERFLOW);
		if (!matters)
			continue;
		names &of = told[e->mask & IN_Q_OVERFLOW ? overflow : e->wd];
		if (e->len)
			of.emplace_back(e->name); // zeros follow it up to 'len'
	}
	for (const auto &[watch, of] : told)
		changed_(watch, of);
	if (n > 0 && told.empty())
		(void)::poll(&what[1], 2, gather_ms);
	return true;
}

} // namespace coop::daemon
