// SPDX-License-Identifier: MIT
// control_file.cpp - access to a mount's control files: .coopfs/ at the root of a FUSE mount,
// /proc/fs/coopfs/<id>/ of a kernel mount.
//
// A write is one write(2): the mount accepts or refuses a line as a whole. The meaning of each
// errno is explained here once, for every command.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "userland/cli/control.hpp"
#include "userland/cli/mounts.hpp"
#include "userland/include/coop/unique_fd.hpp"

namespace coop::cli
{

namespace
{

constexpr std::size_t largest_file = 4u << 20; // far more than thousands of peers need

// A mount that is not in the table is tried at its FUSE path; the errno then tells its state.
std::string control_path(const std::string &mountpoint, const char *name)
{
	if (const auto mounts = read_mounts())
		for (const auto &m : *mounts)
			if (m.mountpoint == mountpoint && m.type == "coopfs")
				return "/proc/fs/coopfs/" + std::to_string(m.dev_minor) + "/" +
				       name;
	return mountpoint + "/.coopfs/" + name;
}

failure explain(const std::string &mountpoint, const std::string &path, const char *verb, int err)
{
	switch (err) {
	case ENOTCONN:
	case ECONNABORTED:
		return {exit_failure, mountpoint +
					      ": its coopfs-fuse process is gone; `coopfs umount " +
					      mountpoint + "`, then mount it again"};
	case EACCES:
	case EPERM:
		return {exit_permission,
			"cannot " + std::string(verb) + " " + path +
				": only the owner of the mount and root may (try sudo)"};
	case ENOENT:
		return {exit_not_coopfs,
			path + " does not exist: is " + mountpoint + " still mounted?"};
	case EOPNOTSUPP:
		return {exit_failure,
			mountpoint + " has no peers: it was mounted without the option ib"};
	case EROFS: // the kernel refuses without asking us
		return {exit_failure, mountpoint +
					      " is a read-only FUSE mount, so its control files "
					      "cannot be written; `mount -i -o remount,rw " +
					      mountpoint +
					      "`, or mount by the module, which has them in /proc"};
	case ENOSPC:
		return {exit_failure, mountpoint + " has no room for more peers"};
	case EINVAL:
		return {exit_failure,
			path + " refuses the line: an address is \"gid=IPV6 lid=0xN qpn=0xN "
			       "qkey=0xN sl=N\", with gid or lid, qpn and qkey required; qpn 0, "
			       "1 and 0xffffff, multicast groups and the mount itself are not "
			       "peers"};
	default:
		return {exit_failure,
			"cannot " + std::string(verb) + " " + path + ": " + std::strerror(err)};
	}
}

} // namespace

result<std::string> read_control(const std::string &mountpoint, const char *name)
{
	const auto path = control_path(mountpoint, name);
	const unique_fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
	if (file.get() < 0)
		return explain(mountpoint, path, "read", errno);
	std::string text;
	std::array<char, 64 << 10> piece;
	for (;;) {
		const auto n = ::read(file.get(), piece.data(), piece.size());
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return explain(mountpoint, path, "read", errno);
		if (n == 0)
			return text;
		text.append(piece.data(), static_cast<std::size_t>(n));
		if (text.size() > largest_file)
			return failure{exit_failure,
				       path + " is too long: this is not a coopfs mount"};
	}
}

result<done> write_control(const std::string &mountpoint, const char *name, const std::string &text)
{
	const auto path = control_path(mountpoint, name);
	const unique_fd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
	if (file.get() < 0)
		return explain(mountpoint, path, "write", errno);
	ssize_t n;
	do {
		n = ::write(file.get(), text.data(), text.size());
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return explain(mountpoint, path, "write", errno);
	if (static_cast<std::size_t>(n) != text.size())
		return failure{exit_failure, path + " accepted only a part of the text"};
	return done{};
}

result<mount_stats> read_stats(const std::string &mountpoint)
{
	const auto text = read_control(mountpoint, "stats");
	if (!text)
		return text.error();
	auto stats = parse_stats(*text);
	if (!stats)
		return failure{stats.error().status, mountpoint + ": " + stats.error().text};
	return stats;
}

result<std::vector<peer_record>> read_peers(const std::string &mountpoint)
{
	const auto text = read_control(mountpoint, "peers");
	if (!text)
		return text.error();
	auto peers = parse_peers(*text);
	if (!peers)
		return failure{peers.error().status, mountpoint + ": " + peers.error().text};
	return peers;
}

} // namespace coop::cli
