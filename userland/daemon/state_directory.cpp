// SPDX-License-Identifier: MIT
// state_directory.cpp - opening the directory safely, and its files.
#include "userland/daemon/state_directory.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <spdlog/spdlog.h>
#include <stdexcept>
#include <sys/stat.h>

namespace coop::daemon
{

namespace
{

constexpr mode_t owner_only = 0700, secret = 0600;
constexpr mode_t others = 077, others_write = 022;

bool is_own_file(const struct stat &st)
{
	// A second link could be another user's name for it, or have been one of another file.
	return S_ISREG(st.st_mode) && st.st_uid == ::geteuid() && !(st.st_mode & others) &&
	       st.st_nlink == 1;
}

std::vector<std::string> list(int dir)
{
	std::vector<std::string> out;
	unique_fd again(::openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	const std::unique_ptr<DIR, int (*)(DIR *)> all(
		again ? ::fdopendir(again.get()) : nullptr,
		[](DIR *d) { return d ? ::closedir(d) : 0; });
	if (all)
		(void)again.release(); // closedir() closes it
	while (const dirent *e = all ? ::readdir(all.get()) : nullptr)
		if (std::strcmp(e->d_name, ".") != 0 && std::strcmp(e->d_name, "..") != 0)
			out.emplace_back(e->d_name);
	return out;
}

// Whether this is how daemons up to protocol version 9 made it: writable by all. Any other
// directory, such as /tmp, keeps its mode.
bool is_of_former_daemon(int dir, const struct stat &st)
{
	constexpr std::array<std::string_view, 4> known{"handle.key", "verifier", "verifier.new",
							"locks"};
	const std::vector<std::string> names = list(dir);
	return (st.st_mode & 07777) == 0777 &&
	       std::all_of(names.begin(), names.end(), [&](const std::string &name) {
		       return std::find(known.begin(), known.end(), name) != known.end();
	       });
}

[[noreturn]] void refuse(const std::string &path, const std::string &why)
{
	throw std::runtime_error("state directory " + path + ": " + why);
}

// Throws, or returns 0 or -errno. inner: in a directory that has passed.
int make_safe(int dir, const std::string &path, bool inner)
{
	struct stat st, above;
	if (::fstat(dir, &st))
		return -errno;
	if (st.st_uid != ::geteuid())
		refuse(path,
		       fmt::format("it belongs to user {}, not to the user of the daemon, {}: "
				   "chown it, or give another one with --state DIR",
				   st.st_uid, ::geteuid()));
	if (st.st_mode & others_write && (inner || is_of_former_daemon(dir, st))) {
		spdlog::warn("{}: all users could write there; its mode is 0700 now", path);
		if (::fchmod(dir, owner_only))
			return -errno;
		st.st_mode = owner_only;
	}
	if (st.st_mode & others_write)
		refuse(path, "other users may write there: look at what is in it, then chmod 700 " +
				     path + ", or give another one with --state DIR");
	// Whoever may rename it can put another directory in its place.
	if (!inner && !::fstatat(dir, "..", &above, 0) && above.st_mode & S_IWOTH &&
	    !(above.st_mode & S_ISVTX))
		refuse(path, "all users may write to the directory above and so replace it: give "
			     "another one with --state DIR");
	return 0;
}

int open_directory(int at, const std::string &name, unique_fd &out)
{
	const bool made = !::mkdirat(at, name.c_str(), owner_only);
	if (!made && errno != EEXIST)
		return -errno;
	const int link = at == AT_FDCWD ? 0 : O_NOFOLLOW;
	out = unique_fd(::openat(at, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | link));
	if (!out)
		return -errno;
	if (made) { // a synced file in it needs its name too
		const unique_fd above(
			::openat(out.get(), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
		if (above)
			(void)::fsync(above.get());
	}
	return 0;
}

} // namespace

std::string state_directory::usual_path()
{
	const char *home = std::getenv("HOME"), *state = std::getenv("XDG_STATE_HOME");
	if (::geteuid() == 0)
		return "/var/lib/coopfsd";
	if (state && *state)
		return std::string(state) + "/coopfsd";
	return std::string(home ? home : ".") + "/.local/state/coopfsd";
}

state_directory::state_directory(std::string path) : path_(std::move(path))
{
	while (path_.size() > 1 && path_.ends_with('/'))
		path_.pop_back();
	constexpr mode_t above = 0755; // whatever the umask; open_directory() says why it failed
	for (std::size_t end = path_.find('/', 1); end != path_.npos;
	     end = path_.find('/', end + 1))
		(void)::mkdir(path_.substr(0, end).c_str(), above);
	error_ = open_directory(AT_FDCWD, path_, dir_);
	if (!error_)
		error_ = make_safe(dir_.get(), path_, false);
}

state_directory::state_directory(std::string path, unique_fd dir, int error) :
	path_(std::move(path)),
	dir_(std::move(dir)),
	error_(error)
{
}

state_directory state_directory::below(const std::string &name) const
{
	const std::string path = path_ + "/" + name;
	unique_fd dir;
	int err = error_ ? error_ : open_directory(dir_.get(), name, dir);
	if (!err)
		err = make_safe(dir.get(), path, true);
	else if (!error_ && (err == -ELOOP || err == -ENOTDIR))
		refuse(path, "it is no directory: another user may have put it there. Remove it");
	return {path, std::move(dir), err};
}

int state_directory::read(const std::string &name, std::string &bytes) const
{
	if (error_)
		return error_;
	const unique_fd fd(::openat(dir_.get(), name.c_str(),
				    O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
	struct stat st;
	if (!fd)
		return errno == ELOOP || errno == EACCES ? -EPERM : -errno;
	if (::fstat(fd.get(), &st))
		return -errno;
	if (!is_own_file(st))
		return -EPERM;
	bytes.resize(static_cast<std::size_t>(st.st_size));
	std::size_t have = 0;
	while (have < bytes.size()) {
		const ssize_t n = ::read(fd.get(), bytes.data() + have, bytes.size() - have);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			break;
		have += static_cast<std::size_t>(n);
	}
	bytes.resize(have);
	return 0;
}

int state_directory::create(const std::string &name, std::string_view bytes, synced s) const
{
	return error_ ? error_ : write_whole(dir_.get(), name, bytes, {secret, existing::keep, s});
}

int state_directory::replace(const std::string &name, std::string_view bytes, synced s) const
{
	return error_ ? error_
		      : write_whole(dir_.get(), name, bytes, {secret, existing::replace, s});
}

int state_directory::open(const std::string &name, unique_fd &out) const
{
	if (error_)
		return error_;
	out = unique_fd(::openat(dir_.get(), name.c_str(),
				 O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC,
				 secret));
	struct stat st;
	if (!out || ::fstat(out.get(), &st))
		return errno == ELOOP || errno == EACCES ? -EPERM : -errno;
	return is_own_file(st) ? 0 : -EPERM;
}

int state_directory::remove(const std::string &name, synced s) const
{
	if (error_)
		return error_;
	const int err = ::unlinkat(dir_.get(), name.c_str(), 0) ? -errno : 0;
	if (err && err != -ENOENT)
		return err;
	return s == synced::yes && ::fsync(dir_.get()) ? -errno : err;
}

int state_directory::sync() const
{
	return error_ ? error_ : ::fsync(dir_.get()) ? -errno : 0;
}

std::vector<std::string> state_directory::names() const
{
	std::vector<std::string> out = error_ ? std::vector<std::string>() : list(dir_.get());
	std::erase_if(out, [this](const std::string &name) {
		struct stat st;
		return ::fstatat(dir_.get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) ||
		       !is_own_file(st);
	});
	return out;
}

} // namespace coop::daemon
