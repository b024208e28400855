// SPDX-License-Identifier: MIT
// mount.cpp - coopfs mount, and the mount helper of mount(8).
//
// A mount is made by the kernel module, if this kernel has it, or by the coopfs-fuse process.
// Success means usable: the mount is in mountinfo and its control file can be read. After a failure
// in between, the mount is taken down again.
#include <fcntl.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>

#include "userland/cli/commands.hpp"
#include "userland/cli/control.hpp"
#include "userland/cli/mount_kernel.hpp"
#include "userland/cli/mount_options.hpp"
#include "userland/cli/mounts.hpp"
#include "userland/cli/process.hpp"
#include "userland/include/coop/unique_fd.hpp"

namespace coop::cli
{

namespace
{

const std::string fuse_program = "coopfs-fuse";

result<std::string> check_mountpoint(const std::string &path)
{
	struct stat st;
	if (::stat(path.c_str(), &st) != 0) {
		const int err = errno;
		if (err == ENOENT)
			return failure{exit_failure, path + " does not exist; `mkdir -p " + path +
							     "` creates it"};
		if (err == ENOTCONN)
			return failure{exit_failure, path + " is a dead mount; `coopfs umount " +
							     path + "` first"};
		return failure{status_of(err), path + ": " + std::strerror(err)};
	}
	if (!S_ISDIR(st.st_mode))
		return failure{exit_failure, path + " is not a directory"};
	auto real = canonical(path);
	const auto mounts = read_mounts();
	if (!mounts)
		return mounts.error();
	for (const auto &m : *mounts)
		if (m.mountpoint == real && m.is_coopfs()) {
			// The kernel may still answer from its caches for a dead mount.
			const auto info = read_control(real, "info");
			if (!info && info.error().status == exit_failure)
				return info.error();
			return failure{exit_failure,
				       path + " is already a coopfs mount (" + m.source + ")"};
		}
	return real;
}

// The mount at 'path' itself, not one that contains it.
result<mount_entry> mounted_at(const std::string &path)
{
	const auto real = canonical(path);
	const auto mounts = read_mounts();
	if (!mounts)
		return mounts.error();
	for (const auto &m : *mounts)
		if (m.mountpoint == real && m.is_coopfs())
			return m;
	return failure{exit_not_coopfs,
		       path + " is no coopfs mount; `coopfs mount` without remount creates one"};
}

// Options that the kernel shows for every FUSE mount.
bool shown_by_fuse(std::string_view word)
{
	for (const std::string_view name :
	     {"user_id=", "group_id=", "rootmode=", "max_read=", "fd=", "blksize=", "subtype="})
		if (word.starts_with(name))
			return true;
	return word == "allow_other" || word == "default_permissions";
}

// A number, with an optional K, M, G or T (powers of 1024), as options take it.
std::optional<unsigned long long> number(const std::string &text)
{
	constexpr std::string_view units = "kKmMgGtT";
	char *end;
	errno = 0;
	const unsigned long long n = std::strtoull(text.c_str(), &end, 0);
	const auto unit = units.find(*end ? *end : '-');
	if (errno || end == text.c_str() || (*end && (unit == units.npos || end[1])))
		return std::nullopt;
	return unit == units.npos ? n : n << (10 * (unit / 2 + 1));
}

// Whether the mount has the option as the word gives it. options: its control file.
bool repeats(const std::string &options, const std::string &word)
{
	const auto equals = word.find('=');
	const std::string value = equals == word.npos ? "yes" : word.substr(equals + 1);
	const std::string key = word.substr(0, equals) + '=';
	std::istringstream lines(options);
	for (std::string line; std::getline(lines, line);)
		if (line.starts_with(key)) {
			const std::string now = line.substr(key.size());
			return now == value || (number(now) && number(now) == number(value));
		}
	return false;
}

// A FUSE mount keeps the options from its start; the kernel keeps the flags.
result<done> remount_fuse(const mount_request &r, const std::string &dir,
			  const mount_options &options)
{
	// mount(8) passes the options in the table of mounts and in fstab; those stay as they are.
	const auto now = options.fs.empty() ? result<std::string>(std::string())
					    : read_control(dir, "options");
	for (const auto &word : options.fs) {
		if ((r.from_mount8 && shown_by_fuse(word)) || (now && repeats(*now, word)))
			continue;
		return failure{exit_usage,
			       "option '" + word +
				       "': a FUSE mount accepts options only at its start; "
				       "unmount it and mount it again"};
	}
	if (!r.from_mount8 && !options.said)
		return done{};
	constexpr unsigned long known = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME |
					MS_NODIRATIME | MS_RELATIME | MS_SYNCHRONOUS | MS_DIRSYNC |
					MS_NOSYMFOLLOW;
	unsigned long flags = options.flags;
	if (!r.from_mount8) { // mount(2) replaces them all
		struct statvfs now;
		if (::statvfs(dir.c_str(), &now) != 0)
			return failure{status_of(errno), dir + ": " + std::strerror(errno)};
		// ST_ and MS_ are the same bits, but for this one.
		constexpr unsigned long st_nosymfollow = 0x2000;
		flags |= now.f_flag & known & ~(options.said | MS_NOSYMFOLLOW);
		if (now.f_flag & st_nosymfollow)
			flags |= ~options.said & MS_NOSYMFOLLOW;
	}
	if (!r.fake &&
	    ::mount(r.spec.c_str(), dir.c_str(), nullptr, MS_REMOUNT | flags, nullptr) != 0)
		return failure{status_of(errno), "remounting " + dir + ": " + std::strerror(errno)};
	return done{};
}

result<done> remount(const mount_request &r, const mount_options &options)
{
	const auto m = mounted_at(r.mountpoint);
	if (!m)
		return m.error();
	return m->type == "coopfs" ? remount_kernel(r, m->mountpoint, options)
				   : remount_fuse(r, m->mountpoint, options);
}

bool is_mounted(const std::string &dir)
{
	const auto mounts = read_mounts();
	if (!mounts)
		return false;
	for (const auto &m : *mounts)
		if (m.mountpoint == dir && m.is_coopfs())
			return true;
	return false;
}

// A mount that exists but does not answer yet is not ready.
bool usable(const std::string &dir)
{
	return is_mounted(dir) && read_control(dir, "info");
}

// The child has printed the error; this adds the consequence.
failure child_failed(int status)
{
	constexpr int fuse_usage = 1; // its exit status for a wrong command line
	std::string how =
		status > 128 ? " ended by signal " + std::to_string(status - 128) : " failed";
	return {status == fuse_usage ? exit_usage : exit_failure,
		fuse_program + how + "; nothing is mounted"};
}

result<done> wait_usable(const process &child, const std::string &dir, deadline limit,
			 double seconds)
{
	// The kernel flags a change of the mount table on this descriptor (POLLPRI).
	const unique_fd table(::open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC));
	for (bool running = true; running || milliseconds_until(limit) > 0;) {
		if (running && child.ended_by({})) {
			running = false;
			if (const int status = child.reap(); status != 0)
				return child_failed(status);
		}
		if (!running && usable(dir))
			return done{};
		if (milliseconds_until(limit) == 0)
			break;
		// The child has gone into the background, so the mount exists or will soon.
		pollfd p[] = {{table.get(), POLLPRI, 0}, {child.descriptor(), POLLIN, 0}};
		::poll(p, running ? 2 : 1, running ? milliseconds_until(limit) : 20);
	}
	child.signal(SIGTERM);
	if (is_mounted(dir))
		::umount2(dir.c_str(), MNT_DETACH);
	std::array<char, 32> text;
	std::snprintf(text.data(), text.size(), "%g", seconds);
	return failure{
		exit_failure,
		std::string("no usable mount after ") + text.data() +
			" s; is the server reachable? `coopfs mount --foreground` shows more"};
}

result<done> mount_fuse(const mount_request &r, const std::string &dir,
			const mount_options &options)
{
	const auto program = find_program(fuse_program);
	if (program.empty())
		return failure{exit_failure,
			       fuse_program + " is neither beside this program nor in PATH, " +
				       "and this kernel has no coopfs module"};
	if (::access("/dev/fuse", R_OK | W_OK) != 0)
		return errno == ENOENT ? failure{exit_failure, "/dev/fuse does not exist; "
							       "`modprobe fuse` as root creates it"}
				       : failure{exit_permission,
						 std::string("/dev/fuse: ") + std::strerror(errno)};
	if (::access(dir.c_str(), W_OK) != 0 && errno == EACCES)
		return failure{exit_permission,
			       dir + ": mounting needs write permission for the directory"};

	std::vector<std::string> argv = {program, r.spec, dir};
	if (const auto text = options.fuse_text(); !text.empty())
		argv.insert(argv.end(), {"-o", text});
	if (r.foreground)
		argv.emplace_back("-f");
	if (r.verbose) {
		std::string line;
		for (const auto &a : argv)
			line += " " + a;
		std::fprintf(stderr, "coopfs:%s\n", line.c_str());
	}
	if (r.fake)
		return done{};
	if (r.foreground)
		return become(argv);
	const auto limit = deadline_after(r.timeout_s);
	auto child = process::start(argv);
	if (!child)
		return child.error();
	return wait_usable(*child, dir, limit, r.timeout_s);
}

} // namespace

int run_mount(const mount_request &r)
{
	const auto spec = parse_spec(r.spec);
	if (!spec)
		return report(spec.error());
	const auto options = sort_options(r.options);
	if (options.remount) {
		const auto ok = remount(r, options);
		return ok ? exit_ok : report(ok.error());
	}
	const auto dir = check_mountpoint(r.mountpoint);
	if (!dir)
		return report(dir.error());
	const bool kernel =
		r.type == "coopfs" || (r.type.empty() && !r.foreground && kernel_has_coopfs());
	if (kernel && r.foreground)
		return report(
			{exit_usage, "--foreground is for FUSE; a kernel mount has no process"});
	if (r.type == "coopfs" && !kernel_has_coopfs())
		return report(
			{exit_failure,
			 "this kernel has no coopfs module and modprobe finds none; "
			 "install it (`make dkms-install`), or mount by FUSE: -t fuse.coopfs"});
	if (!kernel && spec->servers.size() > 1)
		return report({exit_usage,
			       "FUSE mounts support one server; several are for the module only"});
	const auto ok =
		kernel ? mount_kernel(r, *spec, *dir, options) : mount_fuse(r, *dir, options);
	return ok ? exit_ok : report(ok.error());
}

} // namespace coop::cli
