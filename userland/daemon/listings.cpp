// SPDX-License-Identifier: MIT
// listings.cpp - READDIR, and the directories that it leaves open.
#include "userland/daemon/listings.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "userland/daemon/identity.hpp"
#include "userland/daemon/service.hpp"

namespace coop::daemon
{

namespace
{

// The layout of getdents64(2).
struct dirent_head {
	std::uint64_t ino;
	std::int64_t off;
	unsigned short reclen;
	unsigned char type;
};
constexpr std::size_t name_at = 19;

} // namespace

int listing::seek(std::uint64_t cookie)
{
	return cookie && ::lseek(directory_.get(), static_cast<off_t>(cookie), SEEK_SET) < 0
		       ? -errno
		       : 0;
}

int listing::look(raw_entry &e)
{
	if (at_ == end_) {
		const long n =
			::syscall(SYS_getdents64, directory_.get(), raw_.data(), raw_.size());
		if (n < 0)
			return -errno;
		at_ = 0;
		end_ = static_cast<std::size_t>(n);
		if (!n)
			return 1;
	}
	dirent_head d;
	std::memcpy(&d, raw_.data() + at_, name_at);
	e = {raw_.data() + at_ + name_at, d.ino, static_cast<std::uint64_t>(d.off), d.type};
	return 0;
}

void listing::step()
{
	dirent_head d;
	std::memcpy(&d, raw_.data() + at_, name_at);
	at_ += d.reclen;
}

bool listings::same_directory(const place &p, const std::string &session, const coop_fid &f)
{
	return p.directory.lo == f.lo && p.directory.hi == f.hi && p.session == session;
}

std::uint64_t listings::begin()
{
	std::lock_guard lock(mutex_);
	return ++last_;
}

bool holds_no_names(const inode &directory)
{
	unique_fd fd;
	if (directory.reopen(O_RDONLY | O_DIRECTORY, fd))
		return false;
	listing names(std::move(fd));
	raw_entry e;
	int err;
	for (; !(err = names.look(e)); names.step())
		if (good_name(e.name))
			return false;
	return err == 1;
}

std::unique_ptr<listing> listings::take(const std::string &session, const coop_fid &f,
					std::uint64_t cookie, std::uint64_t &begun)
{
	std::lock_guard lock(mutex_);
	const auto p = std::find_if(places_.begin(), places_.end(), [&](const place &each) {
		return each.cookie == cookie && same_directory(each, session, f);
	});
	if (p == places_.end())
		return nullptr;
	begun = p->begun;
	auto what = std::move(p->what);
	places_.erase(p);
	return what;
}

// Drops all listings of that directory: none that stays may be older than a dropped one.
void listings::drop_oldest_locked(places &dropped)
{
	const std::string session = places_.front().session;
	const coop_fid directory = places_.front().directory;
	for (auto p = places_.begin(); p != places_.end();) {
		const auto here = p++;
		if (same_directory(*here, session, directory))
			dropped.splice(dropped.end(), places_, here);
	}
}

void listings::leave(const std::string &session, const coop_fid &f, std::uint64_t cookie,
		     std::uint64_t begun, std::unique_ptr<listing> what)
{
	places dropped; // closed after the lock is released
	const auto now = std::chrono::steady_clock::now();
	std::lock_guard lock(mutex_);
	const auto p = std::find_if(places_.begin(), places_.end(), [&](const place &each) {
		return each.cookie == cookie && same_directory(each, session, f);
	});
	if (p != places_.end()) {
		if (p->begun > begun) {
			dropped.push_back({session, f, cookie, begun, now, std::move(what)});
			return;
		}
		dropped.splice(dropped.end(), places_, p);
	}
	while (!places_.empty() &&
	       (places_.size() >= limit || places_.front().left + patience < now))
		drop_oldest_locked(dropped);
	places_.push_back({session, f, cookie, begun, now, std::move(what)});
}

int service::list_entry(const exported &in, session &s, call r, const inode &dir,
			const raw_entry &d, payload &data, std::uint32_t &used)
{
	coop_st_body e{};
	unique_fd path;
	const int err = as(r.body.cred, [&] { return in.walk(dir.path.get(), d.name, path); });
	if (err == -ENOENT || err == -EXDEV) // removed in between; another mount
		return 0;
	exported::named named;
	inode_ref node;
	struct stat st = {};
	if (!err && !in.name_of(path.get(), dir.handle, d.name, named) &&
	    ((node = inodes.find(named.handle)) ||
	     !::fstatat(path.get(), "", &st, AT_EMPTY_PATH))) {
		const mode_t type = st.st_mode & S_IFMT;
		// Listed files are often opened next, but listing must not evict inodes in use.
		if (!node &&
		    (!inodes.roomy() || inodes.put(in, named, std::move(path), type, node)))
			node = std::make_shared<inode>(in, named, inodes.use_of(in, named.file),
						       std::move(path), type);
		if (!leased_attributes(s, r, node, e.attr))
			e.fh = bytes(named.handle);
	}
	if (!e.fh.len) { // the caller may list it, but not look at it
		e.attr = {};
		e.attr.ino = d.ino;
		e.attr.mode = static_cast<u32>(d.type) << 12;
	}
	e.name = bytes(d.name);
	e.cookie = d.cookie;
	const int size =
		coop_st_dirent_put(&e, data.data() + used, static_cast<u32>(data.size()) - used);
	if (size < 0)
		return -ENOSPC;
	used += static_cast<std::uint32_t>(size);
	return 0;
}

int service::readdir(const exported &in, session &s, call r, reply &out)
{
	inode_ref dir;
	unique_fd fd;
	if (int err = directory(in, r.body.fh, dir))
		return err;
	// On each call, to check the caller's right to read it.
	if (int err = as(r.body.cred, [&] { return dir->reopen(O_RDONLY | O_DIRECTORY, fd); }))
		return err;
	if (!r.body.count)
		return 0; // the client only asks for the right to read
	out.shared_dir = is_shared(s, r, *dir);
	if (r.body.cookie > INT64_MAX)
		return -EINVAL;
	std::uint64_t begun = 0;
	std::unique_ptr<listing> names =
		r.body.cookie ? listed.take(s.id, dir->fid, r.body.cookie, begun) : nullptr;
	if (!names) {
		begun = listed.begin();
		names = std::make_unique<listing>(std::move(fd));
		if (int err = names->seek(r.body.cookie))
			return err;
	}
	std::uint32_t used = 0;
	std::uint64_t cookie = 0;
	out.data.resize(std::min(r.body.count, COOP_ST_IO_MAX));
	raw_entry e;
	int err;
	for (; !(err = names->look(e)); names->step()) {
		if (!good_name(e.name) || hidden(in, *dir, e.name))
			continue;
		if ((err = list_entry(in, s, r, *dir, e, out.data, used)))
			break;
		cookie = e.cookie;
	}
	out.data.resize(used);
	if (err == 1)
		out.body.flags = 1; // end
	else if (err != -ENOSPC)
		return err;
	else if (!used)
		return -EINVAL;
	else
		listed.leave(s.id, dir->fid, cookie, begun, std::move(names));
	return 0;
}

} // namespace coop::daemon
