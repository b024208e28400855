// SPDX-License-Identifier: MIT
// orphans.cpp - giving nameless open files a name, and removing it.
#include "userland/daemon/orphans.hpp"

#include <cerrno>
#include <cstdio>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

namespace coop::daemon
{

orphans::orphans(int root, std::string prefix, bool writable) :
	root_(root),
	prefix_(std::move(prefix))
{
	if (writable)
		inherit();
}

std::string orphans::name_of(const coop_fid &f) const
{
	return prefix_ + fmt::format(".{:016x}{:016x}", f.hi, f.lo);
}

// The directory must be ours alone: another user could redirect us elsewhere.
int orphans::open_directory(bool make, unique_fd &out) const
{
	const std::string name(directory);
	if (make && ::mkdirat(root_, name.c_str(), 0700) && errno != EEXIST)
		return -errno;
	unique_fd dir(
		::openat(root_, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
	struct stat st;
	if (!dir || ::fstat(dir.get(), &st))
		return -errno;
	if (st.st_uid != ::geteuid() || st.st_mode & 077)
		return -EPERM;
	out = std::move(dir);
	return 0;
}

void orphans::inherit()
{
	unique_fd dir;
	if (open_directory(false, dir))
		return;
	const std::unique_ptr<DIR, int (*)(DIR *)> list(::fdopendir(dir.release()), ::closedir);
	while (const dirent *e = list ? ::readdir(list.get()) : nullptr) {
		unsigned long long hi, lo;
		const std::string_view name(e->d_name);
		if (!name.starts_with(prefix_ + ".") ||
		    std::sscanf(e->d_name + prefix_.size() + 1, "%16llx%16llx", &hi, &lo) != 2)
			continue;
		const coop_fid f{hi, lo};
		if (name != name_of(f))
			continue;
		of(f).files[f] = {0, true, true};
		kept_++;
	}
}

orphans::guard orphans::hold(const coop_fid &f)
{
	return guard(of(f).mutex);
}

void orphans::opened(const coop_fid &f)
{
	stripe &s = of(f);
	std::lock_guard lock(s.mutex);
	s.files[f].opens++;
}

void orphans::closed(const coop_fid &f)
{
	stripe &s = of(f);
	std::lock_guard lock(s.mutex);
	const auto it = s.files.find(f);
	if (it == s.files.end() || --it->second.opens)
		return;
	if (!it->second.kept)
		s.files.erase(it);
	else if (!frozen_ && !it->second.inherited)
		drop_locked(s.files, it);
}

bool orphans::open_locked(const coop_fid &f)
{
	const table &files = of(f).files;
	const auto it = files.find(f);
	return it != files.end() && it->second.opens;
}

int orphans::keep_locked(const coop_fid &f, int path)
{
	table &files = of(f).files;
	const auto it = files.find(f);
	if (it == files.end() || it->second.kept)
		return 0;
	const std::string from = "/proc/self/fd/" + std::to_string(path), to = name_of(f);
	int err = -ENOENT;
	constexpr unsigned tries = 8; // the directory vanishes with its last name, at any moment
	for (unsigned i = 0; i < tries && err == -ENOENT; i++) {
		unique_fd dir;
		err = open_directory(true, dir);
		if (!err &&
		    ::linkat(AT_FDCWD, from.c_str(), dir.get(), to.c_str(), AT_SYMLINK_FOLLOW))
			err = -errno;
	}
	if (err)
		return err;
	it->second.kept = true;
	kept_++;
	return 0;
}

void orphans::settle_locked(const coop_fid &f, int path)
{
	table &files = of(f).files;
	const auto it = files.find(f);
	struct stat st;
	if (it != files.end() && it->second.kept && !::fstatat(path, "", &st, AT_EMPTY_PATH) &&
	    st.st_nlink > 1)
		drop_locked(files, it);
}

void orphans::drop_locked(table &files, table::iterator it)
{
	unique_fd dir;
	if (!open_directory(false, dir))
		::unlinkat(dir.get(), name_of(it->first).c_str(), 0);
	it->second.kept = it->second.inherited = false;
	if (!it->second.opens)
		files.erase(it);
	if (!--kept_)
		::unlinkat(root_, std::string(directory).c_str(), AT_REMOVEDIR);
}

bool orphans::has(const coop_fid &f)
{
	if (!kept_)
		return false;
	stripe &s = of(f);
	std::lock_guard lock(s.mutex);
	const auto it = s.files.find(f);
	return it != s.files.end() && it->second.kept;
}

int orphans::find(const coop_fid &f, unique_fd &path) const
{
	unique_fd dir;
	if (int err = open_directory(false, dir))
		return err;
	path = unique_fd(::openat(dir.get(), name_of(f).c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
	return path ? 0 : -errno;
}

void orphans::end_grace()
{
	if (!kept_)
		return;
	for (stripe &s : stripes_) {
		std::lock_guard lock(s.mutex);
		for (auto it = s.files.begin(); it != s.files.end();) {
			const auto at = it++;
			at->second.inherited = false;
			if (at->second.kept && !at->second.opens)
				drop_locked(s.files, at);
		}
	}
}

} // namespace coop::daemon
