// SPDX-License-Identifier: MIT
// whole_file.cpp - a new file under a name of its own, then a rename.
#include "userland/daemon/whole_file.hpp"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coop/unique_fd.hpp"

namespace coop::daemon
{

namespace
{

int write_all(int fd, std::string_view bytes)
{
	while (!bytes.empty()) {
		const ssize_t n = ::write(fd, bytes.data(), bytes.size());
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		bytes.remove_prefix(static_cast<std::size_t>(n));
	}
	return 0;
}

// A file that nobody else has: made by this call. Two daemons may share a directory, so the name
// has the process id. What is there already was left by a process that crashed.
unique_fd make_new(int dir, const std::string &name, mode_t mode)
{
	constexpr int flags = O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC;
	unique_fd fd(::openat(dir, name.c_str(), flags, mode));
	if (!fd && errno == EEXIST && !::unlinkat(dir, name.c_str(), 0))
		fd = unique_fd(::openat(dir, name.c_str(), flags, mode));
	return fd;
}

int put_in_place(int dir, const std::string &from, const std::string &to, existing old)
{
	if (old == existing::replace)
		return ::renameat(dir, from.c_str(), dir, to.c_str()) ? -errno : 0;
	if (!::renameat2(dir, from.c_str(), dir, to.c_str(), RENAME_NOREPLACE))
		return 0;
	if (errno != EINVAL) // some file systems lack the flag
		return -errno;
	if (::linkat(dir, from.c_str(), dir, to.c_str(), 0))
		return -errno;
	::unlinkat(dir, from.c_str(), 0);
	return 0;
}

} // namespace

int write_whole(int dir, const std::string &name, std::string_view bytes, const whole_file &how)
{
	static std::atomic<unsigned> count{0};
	const std::string made =
		'.' + name + '.' + std::to_string(::getpid()) + '.' + std::to_string(count++);
	const unique_fd fd = make_new(dir, made, how.mode);
	if (!fd)
		return -errno;
	int err = write_all(fd.get(), bytes);
	// Of an empty file only the name matters.
	if (!err && how.sync == synced::yes && !bytes.empty() && ::fsync(fd.get()))
		err = -errno;
	if (!err)
		err = put_in_place(dir, made, name, how.old);
	if (err)
		::unlinkat(dir, made.c_str(), 0);
	else if (how.sync == synced::yes && ::fsync(dir))
		err = -errno;
	return err;
}

int publish(const std::string &path, std::string_view text)
{
	constexpr mode_t for_all = 0644;
	const std::size_t slash = path.rfind('/');
	const std::string name = slash == path.npos ? path : path.substr(slash + 1);
	const std::string above = slash == path.npos ? "." : path.substr(0, slash + 1);
	const unique_fd dir(::open(above.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	if (!dir)
		return -errno;
	struct stat st;
	if (!::fstatat(dir.get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) && !S_ISREG(st.st_mode)) {
		// Replacing it would take /dev/null away from the machine.
		const unique_fd fd(::openat(dir.get(), name.c_str(),
					    O_WRONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
		return fd ? write_all(fd.get(), text) : -errno;
	}
	return write_whole(dir.get(), name, text, {for_all, existing::replace, synced::no});
}

} // namespace coop::daemon
