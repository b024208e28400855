// SPDX-License-Identifier: MIT
// host_socket.cpp - see host_socket.hpp.
#include "host_socket.hpp"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <dirent.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

namespace coop::net::fabric
{

namespace
{

constexpr std::size_t packet_most = 512;
constexpr char prefix[] = "coop-net-";

int open_socket(const std::string &provider, const address &a, sockaddr_un &name, socklen_t &size,
		descriptor &out)
{
	const std::string text = "coop-net/" + provider + '/' + format(a);
	name = {};
	name.sun_family = AF_UNIX;
	if (text.size() + 1 > sizeof(name.sun_path))
		return -EINVAL;
	std::memcpy(name.sun_path + 1, text.data(), text.size());
	size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
	out = descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	return out ? 0 : -errno;
}

// Start time of the process in ticks since boot: together with the pid it identifies the process.
// 0: there is no such process, or it is dead.
unsigned long long birth(int pid)
{
	char path[64], text[1024];
	std::snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	std::FILE *f = std::fopen(path, "re");
	if (!f)
		return 0;
	const std::size_t n = std::fread(text, 1, sizeof(text) - 1, f);
	std::fclose(f);
	text[n] = 0;
	// The name in parentheses may contain anything, so parse after the last parenthesis.
	const char *p = std::strrchr(text, ')');
	char state = 0;
	unsigned long long start = 0;
	if (!p || std::sscanf(p + 1,
			      " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
			      "%*d %*d %llu",
			      &state, &start) != 2)
		return 0;
	return state == 'Z' || state == 'X' ? 0 : start;
}

// Pids are meaningful only within one PID namespace.
unsigned long long pid_namespace()
{
	struct stat s;
	return ::stat("/proc/self/ns/pid", &s) ? 0 : s.st_ino;
}

bool credentials(int fd, ucred &out)
{
	socklen_t size = sizeof(out);
	return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &out, &size) == 0;
}

} // namespace

int listen_here(const std::string &provider, const address &a, descriptor &out)
{
	sockaddr_un name;
	socklen_t size;
	if (int r = open_socket(provider, a, name, size, out))
		return r;
	if (::bind(out.get(), reinterpret_cast<sockaddr *>(&name), size) ||
	    ::listen(out.get(), 1024))
		return -errno;
	return 0;
}

int connect_there(const std::string &provider, const address &a, descriptor &out)
{
	sockaddr_un name;
	socklen_t size;
	if (int r = open_socket(provider, a, name, size, out))
		return r;
	if (::connect(out.get(), reinterpret_cast<sockaddr *>(&name), size))
		return errno == EINPROGRESS ? -EAGAIN : -errno;
	return 0;
}

bool is_own_user(int fd)
{
	ucred who;
	return credentials(fd, who) && (who.uid == ::geteuid() || who.uid == 0);
}

int peer_process(int fd, descriptor &end)
{
	ucred who;
	if (!credentials(fd, who) || who.pid <= 0)
		return 0;
	end = descriptor(static_cast<int>(::syscall(SYS_pidfd_open, who.pid, 0)));
	return end ? who.pid : 0;
}

bool has_gone(int socket, int end)
{
	pollfd p[2] = {{socket, POLLRDHUP, 0}, {end, POLLIN, 0}};
	return ::poll(p, 2, 0) > 0; // if interrupted, report no end
}

int send_packet(int fd, const std::string &text, int first, int second)
{
	iovec piece{const_cast<char *>(text.data()), text.size()};
	alignas(cmsghdr) char space[CMSG_SPACE(2 * sizeof(int))] = {};
	msghdr m{};
	m.msg_iov = &piece;
	m.msg_iovlen = 1;
	m.msg_control = space;
	m.msg_controllen = sizeof(space);
	cmsghdr *c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(2 * sizeof(int));
	const int fds[2] = {first, second};
	std::memcpy(CMSG_DATA(c), fds, sizeof(fds));
	return ::sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

int receive_packet(int fd, std::string &text, descriptor &first, descriptor &second)
{
	text.resize(packet_most);
	iovec piece{text.data(), text.size()};
	alignas(cmsghdr) char space[CMSG_SPACE(4 * sizeof(int))];
	msghdr m{};
	m.msg_iov = &piece;
	m.msg_iovlen = 1;
	m.msg_control = space;
	m.msg_controllen = sizeof(space);
	const ssize_t n = ::recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return errno == EAGAIN ? -EAGAIN : 0;
	unsigned count = 0;
	for (cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		const std::size_t fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (std::size_t i = 0; i < fds; i++, count++) {
			int got;
			std::memcpy(&got, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			descriptor d(got);
			if (count == 0)
				first = std::move(d);
			else if (count == 1)
				second = std::move(d);
		}
	}
	text.resize(static_cast<std::size_t>(n));
	return m.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? -EPROTO : static_cast<int>(n);
}

std::string new_shared_name()
{
	static std::atomic<unsigned> count{0};
	char name[128];
	std::snprintf(name, sizeof(name), "%s%llu-%d-%llu-%u", prefix, pid_namespace(),
		      static_cast<int>(::getpid()), birth(::getpid()), count++);
	return name;
}

void sweep_shared_names()
{
	DIR *d = ::opendir("/dev/shm");
	if (!d)
		return;
	const unsigned long long here = pid_namespace();
	while (const dirent *e = ::readdir(d)) {
		if (std::strncmp(e->d_name, prefix, sizeof(prefix) - 1))
			continue;
		unsigned long long space, start;
		int pid;
		if (std::sscanf(e->d_name + sizeof(prefix) - 1, "%llu-%d-%llu", &space, &pid,
				&start) == 3 &&
		    space == here && birth(pid) != start)
			::shm_unlink(e->d_name); // fails for another user's file
	}
	::closedir(d);
}

} // namespace coop::net::fabric
