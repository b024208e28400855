// SPDX-License-Identifier: MIT
// meeting.cpp - the lock, the socket and the three messages of a meeting point; see meeting.hpp.
#include "userland/ntrdma/ether/meeting.hpp"

#include <cerrno>
#include <cstring>
#include <span>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "userland/ntrdma/ether/trouble.hpp"
#include "userland/ntrdma/window/descriptors.hpp"

namespace coop::ntrdma
{

namespace
{

constexpr std::chrono::seconds patience{2}; // with a caller that is silent, and a busy listener

sockaddr_un address_of(const std::string &path)
{
	sockaddr_un a{};
	a.sun_family = AF_UNIX;
	std::memcpy(a.sun_path, path.data(), path.size());
	return a;
}

unique_fd new_socket()
{
	return unique_fd{socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
}

bool say(int socket, const meeting_words &w, std::span<const int> fds)
{
	return send_message(socket, std::as_bytes(std::span{&w, 1}), fds);
}

/// 1 and the message; 0 if there is none yet; -1 if the peer hung up or sent something else.
int hear(int socket, meeting_words *w, std::vector<unique_fd> *fds)
{
	int rc = take_message(socket, std::as_writable_bytes(std::span{w, 1}), *fds);
	return rc > 0 && w->magic != meeting_magic ? -1 : rc;
}

/// Whether the process at the other end is of this user. Its pid is 0 if it has none here.
bool is_own_user(int socket, ucred *who)
{
	socklen_t length = sizeof(*who);
	return !getsockopt(socket, SOL_SOCKET, SO_PEERCRED, who, &length) && who->uid == geteuid();
}

} // namespace

meeting::meeting(std::string path, int bell, unsigned mtu) :
	path_{std::move(path)},
	bell_{bell},
	mtu_{mtu}
{
	if (path_.empty() || path_.size() >= sizeof(sockaddr_un::sun_path))
		throw trouble{"path \"" + path_ + "\": use 1 to " +
			      std::to_string(sizeof(sockaddr_un::sun_path) - 1) +
			      " characters (--path /run/coop/link0)"};
	struct stat st;
	if (!lstat(path_.c_str(), &st) && !S_ISSOCK(st.st_mode))
		throw trouble{path_ + ": is not a socket: choose another path (--path)"};
}

meeting::~meeting()
{
	if (!listener_)
		return;
	// Under the lock: nobody else listens here.
	unlink(path_.c_str());
	unlink((path_ + ".lock").c_str());
}

bool meeting::take_lock()
{
	std::string name = path_ + ".lock";
	while (true) {
		unique_fd fd{open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)};
		if (!fd && errno == ENOENT)
			give_up(name, errno, "make its directory, or choose another path (--path)");
		if (!fd)
			give_up(name, errno, "choose a path that this user may write (--path)");
		if (flock(fd.get(), LOCK_EX | LOCK_NB)) {
			if (errno != EWOULDBLOCK)
				give_up("locking " + name, errno,
					"choose a path on a file system with locks");
			return false;
		}
		// The one before may have taken the file away between the two calls.
		struct stat held, named;
		if (!fstat(fd.get(), &held) && !stat(name.c_str(), &named) &&
		    held.st_ino == named.st_ino && held.st_dev == named.st_dev) {
			lock_ = std::move(fd);
			return true;
		}
	}
}

void meeting::listen()
{
	struct stat st;
	if (!lstat(path_.c_str(), &st) && !S_ISSOCK(st.st_mode))
		throw trouble{path_ + ": is not a socket: choose another path (--path)"};
	unlink(path_.c_str()); // of a process that died
	sockaddr_un a = address_of(path_);
	unique_fd fd = new_socket();
	mode_t mask = umask(0177);
	int error = !fd || bind(fd.get(), reinterpret_cast<sockaddr *>(&a), sizeof(a)) ? errno : 0;
	umask(mask);
	if (error || ::listen(fd.get(), 16))
		give_up("listening at " + path_, error ? error : errno,
			"choose another path (--path)");
	listener_ = std::move(fd);
}

/// True if there is a connection and HELLO is sent.
bool meeting::call()
{
	sockaddr_un a = address_of(path_);
	unique_fd fd = new_socket();
	if (!fd || connect(fd.get(), reinterpret_cast<sockaddr *>(&a), sizeof(a))) {
		if (errno == EACCES || errno == EPERM)
			give_up(path_, errno,
				"its listener is of another user: both have to be the same");
		return false; // not yet, or no more
	}
	ucred who{};
	if (!is_own_user(fd.get(), &who))
		throw trouble{path_ + ": the process there belongs to user " +
			      std::to_string(who.uid) + ": both have to be of the same user"};
	unique_fd memory, streams;
	memory_ = window::create(&memory);
	streams_ = frame_streams::create(&streams);
	meeting_words w;
	w.kind = meeting_kind::hello;
	w.mtu = mtu_;
	int fds[] = {memory.get(), streams.get(), bell_};
	if (!say(fd.get(), w, fds))
		return false;
	talk_ = std::move(fd);
	return true;
}

void meeting::hang_up()
{
	talk_ = unique_fd{};
	memory_.reset();
	streams_.reset();
}

bool meeting::hear_answer(acquaintance *out)
{
	meeting_words w;
	std::vector<unique_fd> fds;
	int rc = hear(talk_.get(), &w, &fds);
	if (!rc)
		return false;
	ucred who{};
	bool own = is_own_user(talk_.get(), &who);
	if (rc > 0 && (w.version != meeting_version || w.layout != sizeof(half)))
		throw trouble{path_ + ": process " + std::to_string(who.pid) +
			      " there is coop-verbs of another version: use the same for both"};
	if (rc > 0 && w.kind == meeting_kind::busy && busy_since_ == clock::time_point{})
		busy_since_ = clock::now();
	// For a while that may be a peer that has just died.
	if (rc > 0 && w.kind == meeting_kind::busy && !has_met_ &&
	    clock::now() - busy_since_ > patience)
		throw trouble{path_ + ": process " + std::to_string(who.pid) +
			      " there is linked with process " + std::to_string(w.pid) +
			      " already: choose another path (--path), or stop one of them"};
	if (rc < 0 || !own || w.kind != meeting_kind::welcome || fds.size() != 1 ||
	    !take_bell(fds[0])) {
		hang_up();
		return false;
	}
	busy_since_ = {};
	*out = {std::move(talk_),
		std::move(memory_),
		std::move(streams_),
		0,
		std::move(fds[0]),
		who.pid,
		w.mtu};
	has_met_ = true;
	return true;
}

/// Answers every caller that has said something. True if one of them is the peer.
bool meeting::hear_callers(pid_t linked, acquaintance *out)
{
	while (talk_ || accept_caller())
		if (int rc = hear_caller(linked, out); rc >= 0)
			return rc > 0;
	return false;
}

bool meeting::accept_caller()
{
	talk_ = unique_fd{accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
	since_ = clock::now();
	return static_cast<bool>(talk_);
}

/// 1: it is the peer. 0: it has said nothing yet. -1: it was sent away.
int meeting::hear_caller(pid_t linked, acquaintance *out)
{
	meeting_words w;
	std::vector<unique_fd> fds;
	ucred who{};
	bool own = is_own_user(talk_.get(), &who);
	int rc = own ? hear(talk_.get(), &w, &fds) : -1;
	if (!rc && clock::now() - since_ < patience)
		return 0;
	meeting_words reply;
	reply.kind = meeting_kind::welcome;
	reply.mtu = mtu_;
	std::unique_ptr<window> memory;
	std::unique_ptr<frame_streams> streams;
	bool same = rc > 0 && w.version == meeting_version && w.layout == sizeof(half);
	if (rc > 0 && (linked || !same)) {
		reply.kind = meeting_kind::busy;
		reply.pid = linked;
		say(talk_.get(), reply, {});
	} else if (same && w.kind == meeting_kind::hello && fds.size() == 3 && take_bell(fds[2])) {
		memory = window::map(fds[0].get());
		streams = frame_streams::map(fds[1].get());
	}
	if (!memory || !streams || !say(talk_.get(), reply, {&bell_, 1})) {
		hang_up();
		return -1;
	}
	*out = {std::move(talk_),
		std::move(memory),
		std::move(streams),
		1,
		std::move(fds[2]),
		who.pid,
		w.mtu};
	has_met_ = true;
	return 1;
}

bool meeting::step(pid_t linked, acquaintance *out)
{
	if (!listener_ && !linked && !talk_ && (lock_ || take_lock()))
		listen();
	if (listener_)
		return hear_callers(linked, out);
	if (linked)
		return false;
	if (!talk_ && !call())
		return false;
	return hear_answer(out);
}

} // namespace coop::ntrdma
