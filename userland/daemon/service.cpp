// SPDX-License-Identifier: MIT
// service.cpp - dispatch, names and attributes. What is inside files is in
// content.cpp.
//
// The daemon's own ids are in force everywhere but inside an as_user scope; a
// scope holds exactly the calls that the user's rights decide.
#include "userland/daemon/service.hpp"

#include <cerrno>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#include "userland/daemon/identity.hpp"

namespace coop::daemon
{

std::string_view view(const coop_st_bytes &b)
{
	return {reinterpret_cast<const char *>(b.p), b.len};
}

namespace
{

coop_st_bytes bytes(std::string_view s)
{
	return {reinterpret_cast<const u8 *>(s.data()), static_cast<u32>(s.size())};
}

coop_st_time time_of(const struct timespec &t)
{
	return {t.tv_sec, static_cast<u32>(t.tv_nsec)};
}

int checked(std::string_view name)
{
	if (good_name(name))
		return 0;
	return name.size() > COOP_ST_NAME_MAX ? -ENAMETOOLONG : -EINVAL;
}

} // namespace

void fill_attr(const struct stat &st, const coop_fid &fid, std::uint64_t version, coop_st_attr &a)
{
	a = {};
	a.fid = fid;
	a.version = version;
	a.ino = st.st_ino;
	a.size = static_cast<u64>(st.st_size);
	a.blocks = static_cast<u64>(st.st_blocks);
	a.rdev = st.st_rdev;
	a.mode = st.st_mode;
	a.nlink = static_cast<u32>(st.st_nlink);
	a.uid = st.st_uid;
	a.gid = st.st_gid;
	a.blksize = static_cast<u32>(st.st_blksize);
	a.atime = time_of(st.st_atim);
	a.mtime = time_of(st.st_mtim);
	a.ctime = time_of(st.st_ctim);
}

service::service(std::vector<std::unique_ptr<exported>> exports, std::size_t inodes_max) :
	inodes(inodes_max),
	exports_(std::move(exports))
{
}

const exported *service::find_export(std::string_view name) const
{
	if (name.starts_with('/'))
		name.remove_prefix(1);
	for (const auto &e : exports_)
		if (e->name() == name)
			return e.get();
	return nullptr;
}

void service::execute(const exported &in, session &s, const request &r, reply &out)
{
	stats.calls[r.head.op].fetch_add(1, std::memory_order_relaxed);
	int err;
	try {
		err = dispatch(in, s, r, out);
	} catch (const std::bad_alloc &) {
		err = -ENOMEM;
	}
	if (err) {
		stats.errors.fetch_add(1, std::memory_order_relaxed);
		out = {};
		out.status = static_cast<std::uint32_t>(-err);
	}
}

int service::dispatch(const exported &in, session &s, call r, reply &out)
{
	switch (r.head.op) {
	case COOP_ST_LOOKUP:
		return lookup(in, r, out);
	case COOP_ST_GETATTR:
		return getattr(in, r, out);
	case COOP_ST_SETATTR:
		return setattr(in, s, r, out);
	case COOP_ST_OPEN:
		return open(in, s, r, out);
	case COOP_ST_CREATE:
		return create(in, s, r, out);
	case COOP_ST_CLOSE:
		return close(s, r, out);
	case COOP_ST_READ:
		return read(s, r, out);
	case COOP_ST_CHECK:
		return check(s, r, out);
	case COOP_ST_WRITE:
		return write(s, r, out);
	case COOP_ST_COMMIT:
		return commit(s, r, out);
	case COOP_ST_MKDIR:
		return mkdir(in, r, out);
	case COOP_ST_UNLINK:
		return remove(in, r, 0);
	case COOP_ST_RMDIR:
		return remove(in, r, AT_REMOVEDIR);
	case COOP_ST_RENAME:
		return rename(in, r);
	case COOP_ST_LINK:
		return link(in, r, out);
	case COOP_ST_SYMLINK:
		return symlink(in, r, out);
	case COOP_ST_READLINK:
		return readlink(in, r, out);
	case COOP_ST_READDIR:
		return readdir(in, r, out);
	case COOP_ST_STATFS:
		return statfs(in, r, out);
	case COOP_ST_PING:
		return 0;
	default:
		return -EOPNOTSUPP;
	}
}

int service::attributes(inode &n, coop_st_attr &a)
{
	std::lock_guard lock(n.mutex);
	struct stat st;
	std::uint64_t version;
	if (int err = n.observe_locked(st, version))
		return err;
	fill_attr(st, n.fid, version, a);
	return 0;
}

int service::directory(const exported &in, const coop_st_bytes &fh, inode_ref &out)
{
	if (int err = inodes.get(in, view(fh), out))
		return err;
	return out->type == S_IFDIR ? 0 : -ENOTDIR;
}

int service::entry(const inode &dir, std::string_view name, unique_fd path, reply &out,
		   inode_ref *keep)
{
	exported::named named;
	struct stat st;
	if (int err = dir.in.name_of(path.get(), dir.handle, name, named))
		return err;
	if (::fstatat(path.get(), "", &st, AT_EMPTY_PATH))
		return -errno;
	inode_ref node = inodes.put(dir.in, named, std::move(path), st.st_mode & S_IFMT);
	out.text = named.handle;
	out.body.fh = bytes(out.text);
	if (keep)
		*keep = node;
	return attributes(*node, out.body.attr);
}

int service::root(const exported &in, reply &out)
{
	exported::named named;
	if (int err = in.name_of(in.root(), {}, {}, named))
		return err;
	inode_ref node;
	if (int err = inodes.get(in, named.handle, node))
		return err;
	out.text = named.handle;
	out.body.fh = bytes(out.text);
	return attributes(*node, out.body.attr);
}

int service::lookup(const exported &in, call r, reply &out)
{
	inode_ref dir;
	unique_fd path;
	if (int err = directory(in, r.body.fh, dir))
		return err;
	{
		as_user user(r.body.cred);
		if (user.error())
			return user.error();
		if (int err = in.walk(dir->path.get(), view(r.body.name), path))
			return err;
	}
	return entry(*dir, view(r.body.name), std::move(path), out, nullptr);
}

int service::getattr(const exported &in, call r, reply &out)
{
	inode_ref node;
	if (int err = inodes.get(in, view(r.body.fh), node))
		return err;
	return attributes(*node, out.body.attr);
}

int service::mkdir(const exported &in, call r, reply &out)
{
	inode_ref dir;
	unique_fd path;
	const std::string name(view(r.body.name));
	if (int err = directory(in, r.body.fh, dir))
		return err;
	if (int err = checked(name))
		return err;
	{
		as_user user(r.body.cred);
		if (user.error())
			return user.error();
		if (::mkdirat(dir->path.get(), name.c_str(), r.body.mode & 07777))
			return -errno;
		if (int err = in.walk(dir->path.get(), name, path))
			return err;
	}
	return entry(*dir, name, std::move(path), out, nullptr);
}

service::victim service::find_victim(const exported &in, const inode &dir, const std::string &name)
{
	victim v;
	exported::named named;
	if (!in.walk(dir.path.get(), name, v.path) &&
	    !in.name_of(v.path.get(), dir.handle, name, named))
		v.handle = named.handle;
	return v;
}

void service::forget(victim v)
{
	struct stat st;
	if (v.handle.empty() || ::fstatat(v.path.get(), "", &st, AT_EMPTY_PATH) ||
	    (st.st_nlink && !S_ISDIR(st.st_mode)))
		return;
	inodes.discard(v.handle);
}

int service::remove(const exported &in, call r, int flags)
{
	inode_ref dir;
	const std::string name(view(r.body.name));
	if (int err = directory(in, r.body.fh, dir))
		return err;
	if (int err = checked(name))
		return err;
	as_user user(r.body.cred);
	if (user.error())
		return user.error();
	victim gone = find_victim(in, *dir, name);
	if (::unlinkat(dir->path.get(), name.c_str(), flags))
		return -errno;
	forget(std::move(gone));
	return 0;
}

int service::rename(const exported &in, call r)
{
	inode_ref from, to;
	const std::string name(view(r.body.name)), name2(view(r.body.name2));
	if (int err = directory(in, r.body.fh, from))
		return err;
	if (int err = directory(in, r.body.fh2, to))
		return err;
	if (int err = checked(name))
		return err;
	if (int err = checked(name2))
		return err;
	if (r.body.flags & ~(COOP_ST_R_NOREPLACE | COOP_ST_R_EXCHANGE))
		return -EINVAL;
	const unsigned flags = (r.body.flags & COOP_ST_R_NOREPLACE ? RENAME_NOREPLACE : 0u) |
			       (r.body.flags & COOP_ST_R_EXCHANGE ? RENAME_EXCHANGE : 0u);
	unique_fd path;
	{
		as_user user(r.body.cred);
		if (user.error())
			return user.error();
		victim gone;
		if (!flags)
			gone = find_victim(in, *to, name2);
		if (::renameat2(from->path.get(), name.c_str(), to->path.get(), name2.c_str(),
				flags))
			return -errno;
		forget(std::move(gone));
		if (!in.by_path() || in.walk(to->path.get(), name2, path))
			return 0;
	}
	exported::named named;
	if (!in.name_of(path.get(), to->handle, name2, named))
		in.moved(named.handle, to->handle, name2);
	return 0;
}

int service::link(const exported &in, call r, reply &out)
{
	inode_ref dir, node;
	unique_fd path;
	const std::string name(view(r.body.name));
	if (int err = directory(in, r.body.fh, dir))
		return err;
	if (int err = inodes.get(in, view(r.body.fh2), node))
		return err;
	if (int err = checked(name))
		return err;
	{
		as_user user(r.body.cred);
		if (user.error())
			return user.error();
		// Through /proc, because linking by descriptor wants a capability that users lack.
		const std::string self = "/proc/self/fd/" + std::to_string(node->path.get());
		if (::linkat(AT_FDCWD, self.c_str(), dir->path.get(), name.c_str(),
			     AT_SYMLINK_FOLLOW))
			return -errno;
		if (int err = in.walk(dir->path.get(), name, path))
			return err;
	}
	return entry(*dir, name, std::move(path), out, nullptr);
}

int service::symlink(const exported &in, call r, reply &out)
{
	inode_ref dir;
	unique_fd path;
	const std::string name(view(r.body.name)), target(view(r.body.text));
	if (int err = directory(in, r.body.fh, dir))
		return err;
	if (int err = checked(name))
		return err;
	if (target.empty() || target.find('\0') != target.npos)
		return -EINVAL;
	{
		as_user user(r.body.cred);
		if (user.error())
			return user.error();
		if (::symlinkat(target.c_str(), dir->path.get(), name.c_str()))
			return -errno;
		if (int err = in.walk(dir->path.get(), name, path))
			return err;
	}
	return entry(*dir, name, std::move(path), out, nullptr);
}

int service::readlink(const exported &in, call r, reply &out)
{
	inode_ref node;
	if (int err = inodes.get(in, view(r.body.fh), node))
		return err;
	if (node->type != S_IFLNK)
		return -EINVAL;
	out.text.resize(COOP_ST_TEXT_MAX + 1);
	const ssize_t n = ::readlinkat(node->path.get(), "", out.text.data(), out.text.size());
	if (n < 0)
		return -errno;
	if (n > COOP_ST_TEXT_MAX)
		return -ENAMETOOLONG;
	out.text.resize(static_cast<std::size_t>(n));
	out.body.text = bytes(out.text);
	return 0;
}

int service::readdir(const exported &in, call r, reply &out)
{
	struct linux_dirent {
		std::uint64_t ino;
		std::int64_t off;
		unsigned short reclen;
		unsigned char type;
		char name[];
	};
	constexpr std::size_t chunk = 32768;
	inode_ref dir;
	unique_fd fd;
	if (int err = directory(in, r.body.fh, dir))
		return err;
	{
		as_user user(r.body.cred);
		if (user.error())
			return user.error();
		if (int err = dir->reopen(O_RDONLY | O_DIRECTORY, fd))
			return err;
	}
	if (!r.body.count)
		return 0; // asked only whether it may be read
	if (r.body.cookie > INT64_MAX)
		return -EINVAL;
	if (r.body.cookie && ::lseek(fd.get(), static_cast<off_t>(r.body.cookie), SEEK_SET) < 0)
		return -errno;
	const std::uint32_t room = std::min(r.body.count, COOP_ST_IO_MAX);
	std::vector<char> raw(chunk);
	std::uint32_t used = 0;
	out.data.resize(room);
	for (;;) {
		const long n = ::syscall(SYS_getdents64, fd.get(), raw.data(), raw.size());
		if (n < 0)
			return -errno;
		if (n == 0) {
			out.body.flags = 1; // end
			break;
		}
		for (long at = 0; at < n;) {
			const auto *d = reinterpret_cast<const linux_dirent *>(raw.data() + at);
			at += d->reclen;
			const std::string_view name(d->name);
			if (!good_name(name))
				continue;
			coop_st_body e{};
			unique_fd path;
			int err;
			{
				as_user user(r.body.cred);
				err = user.error() ? user.error()
						   : in.walk(dir->path.get(), name, path);
			}
			if (err == -ENOENT || err == -EXDEV) // gone meanwhile; another mount
				continue;
			exported::named named;
			struct stat st;
			if (!err && !in.name_of(path.get(), dir->handle, name, named) &&
			    !::fstatat(path.get(), "", &st, AT_EMPTY_PATH)) {
				inode_ref node = inodes.find(named.handle);
				const mode_t type = st.st_mode & S_IFMT;
				// What is listed is often opened next; but listing must not evict
				// what is used.
				if (!node && inodes.roomy())
					node = inodes.put(in, named, std::move(path), type);
				if (!node)
					node = std::make_shared<inode>(in, named.handle, named.fid,
								       std::move(path), type);
				if (!attributes(*node, e.attr))
					e.fh = bytes(named.handle);
			}
			if (!e.fh.len) { // may be listed, not looked at
				e.attr = {};
				e.attr.ino = d->ino;
				e.attr.mode = static_cast<u32>(d->type) << 12;
			}
			e.name = bytes(name);
			e.cookie = static_cast<u64>(d->off);
			const int size =
				coop_st_dirent_put(&e, out.data.data() + used, room - used);
			if (size < 0) {
				out.data.resize(used);
				return used ? 0 : -EINVAL;
			}
			used += static_cast<std::uint32_t>(size);
		}
	}
	out.data.resize(used);
	return 0;
}

int service::statfs(const exported &in, call r, reply &out)
{
	inode_ref node;
	if (int err = inodes.get(in, view(r.body.fh), node))
		return err;
	struct statvfs s;
	if (::fstatvfs(node->path.get(), &s))
		return -errno;
	out.body.statfs = {s.f_blocks,
			   s.f_bfree,
			   s.f_bavail,
			   s.f_files,
			   s.f_ffree,
			   static_cast<u32>(s.f_bsize),
			   static_cast<u32>(s.f_frsize),
			   static_cast<u32>(s.f_namemax)};
	return 0;
}

} // namespace coop::daemon
