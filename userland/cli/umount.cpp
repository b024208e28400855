// SPDX-License-Identifier: MIT
// umount.cpp - coopfs umount.
//
// Works on dead mounts too, so nothing here depends on an answer of the mount. If a FUSE mount
// still answers, we first look up its process, and after unmounting wait for it, so that on return
// the node has left the daemon and its port is free.
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <fstream>

#include "userland/cli/commands.hpp"
#include "userland/cli/control.hpp"
#include "userland/cli/mounts.hpp"
#include "userland/cli/process.hpp"

namespace coop::cli
{

namespace
{

std::optional<process> server_of(const mount_entry &mount)
{
	const auto text = read_control(mount.mountpoint, "info");
	if (!text)
		return std::nullopt;
	const auto info = parse_info(*text);
	const auto at = info.find("pid");
	if (at == info.end())
		return std::nullopt;
	pid_t pid = 0;
	std::from_chars(at->second.data(), at->second.data() + at->second.size(), pid);
	if (pid <= 0)
		return std::nullopt;
	auto p = process::adopt(pid);
	// The pid may belong to another PID namespace: wait only for a process of the right name.
	std::ifstream in("/proc/" + std::to_string(pid) + "/comm");
	std::string comm;
	std::getline(in, comm);
	return comm.starts_with("coopfs-fuse") ? std::move(p) : std::nullopt;
}

failure explain(const mount_entry &mount, int err)
{
	const auto &dir = mount.mountpoint;
	if (err == EBUSY)
		return {exit_failure, dir + " is in use; `fuser -vm " + dir +
					      "` lists its users, `coopfs umount -l " + dir +
					      "` detaches it at once"};
	if (err == EPERM || err == EACCES)
		return {exit_permission,
			dir + ": only root and its mounter may unmount it (try sudo)"};
	return {exit_failure, dir + ": " + std::strerror(err)};
}

// Only root may call umount(2); others use fusermount3, which prints its own errors.
result<done> take_down(const mount_entry &mount, const umount_request &r)
{
	const int flags = UMOUNT_NOFOLLOW | (r.lazy ? MNT_DETACH : 0) | (r.force ? MNT_FORCE : 0);
	if (::umount2(mount.mountpoint.c_str(), flags) == 0)
		return done{};
	if (errno == EBUSY && r.read_only &&
	    ::mount("", mount.mountpoint.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY,
		    nullptr) == 0)
		return failure{exit_failure, mount.mountpoint + " is in use; it is read-only now"};
	if (errno != EPERM || mount.type != "fuse.coopfs")
		return explain(mount, errno);
	const auto program = find_program("fusermount3");
	if (program.empty())
		return failure{exit_permission,
			       "fusermount3 is not in PATH; without it only root may unmount"};
	std::vector<std::string> argv = {program, "-u"};
	if (r.lazy)
		argv.emplace_back("-z");
	argv.insert(argv.end(), {"--", mount.mountpoint});
	auto child = process::start(argv);
	if (!child)
		return child.error();
	if (child->reap() != 0)
		return failure{exit_failure, mount.mountpoint + " is still mounted"};
	return done{};
}

} // namespace

int run_umount(const umount_request &r)
{
	const auto mounts = read_mounts();
	if (!mounts)
		return report(mounts.error());
	const auto real = canonical(r.mountpoint);
	const mount_entry *mount = nullptr;
	for (const auto &m : *mounts)
		if (m.mountpoint == real)
			mount = &m;
	if (!mount || !mount->is_coopfs())
		return report(
			{exit_not_coopfs,
			 r.mountpoint +
				 (mount ? " is a mount of type " + mount->type
					: " is not a mount point") +
				 "; `findmnt -t coopfs,fuse.coopfs` lists the coopfs mounts"});
	const auto server = server_of(*mount);
	if (const auto ok = take_down(*mount, r); !ok)
		return report(ok.error());
	// A lazy unmount completes when its last user ends.
	if (server && !r.lazy && !server->ended_by(deadline_after(r.timeout_s)))
		return report({exit_failure, r.mountpoint + " is unmounted, but its process " +
						     std::to_string(server->pid()) +
						     " has not ended yet"});
	return exit_ok;
}

} // namespace coop::cli
