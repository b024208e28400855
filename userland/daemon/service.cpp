// SPDX-License-Identifier: MIT
// service.cpp - dispatch, lookups and attributes. Changes of names are in naming.cpp, contents of
// files in content.cpp and writing.cpp.
//
// The daemon's own ids are in force everywhere except inside an as_user scope; a scope contains
// exactly the calls that the user's rights decide.
#include "userland/daemon/service.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "userland/daemon/identity.hpp"

namespace coop::daemon
{

std::string_view view(const coop_st_bytes &b)
{
	return {reinterpret_cast<const char *>(b.p), b.len};
}

coop_st_bytes bytes(std::string_view s)
{
	return {reinterpret_cast<const u8 *>(s.data()), static_cast<u32>(s.size())};
}

namespace
{

coop_st_time time_of(const struct timespec &t)
{
	return {t.tv_sec, static_cast<u32>(t.tv_nsec)};
}

} // namespace

int permitted(int fd, int mask)
{
	const std::string self = "/proc/self/fd/" + std::to_string(fd);
	return ::syscall(SYS_faccessat2, AT_FDCWD, self.c_str(), mask, AT_EACCESS) ? -errno : 0;
}

bool hidden(const exported &in, const inode &dir, std::string_view name)
{
	if (name != orphans::directory)
		return false;
	struct stat at, root;
	if (::fstatat(dir.path.get(), "", &at, AT_EMPTY_PATH))
		return false;
	const auto is_root_of = [&](const exported &e) {
		return !::fstat(e.root(), &root) && at.st_ino == root.st_ino;
	};
	return is_root_of(in) || std::any_of(in.siblings().begin(), in.siblings().end(),
					     [&](const exported *e) { return is_root_of(*e); });
}

void fill_attr(const file_look &now, inode &n, std::uint64_t version, coop_st_attr &a)
{
	const struct stat &st = now.st;
	a = {};
	a.fid = n.fid;
	a.has = n.extras_locked(st);
	a.version = version;
	a.ino = st.st_ino;
	a.size = static_cast<u64>(st.st_size);
	a.blocks = static_cast<u64>(st.st_blocks);
	a.rdev = st.st_rdev;
	a.mode = st.st_mode;
	a.nlink = static_cast<u32>(st.st_nlink);
	if (a.nlink && n.in.unnamed().has(n.fid))
		a.nlink--; // our orphan name
	a.uid = st.st_uid;
	a.gid = st.st_gid;
	a.blksize = static_cast<u32>(st.st_blksize);
	a.atime = time_of(st.st_atim);
	a.mtime = time_of(st.st_mtim);
	a.ctime = time_of(st.st_ctim);
	if (now.has_btime)
		a.has |= COOP_ST_HAS_BTIME;
	a.btime = now.btime;
	a.traits_known = now.traits_known;
	a.traits = now.traits;
}

service::service(std::vector<std::unique_ptr<exported>> exports, std::size_t inodes_max,
		 const state_directory &state, const std::string &boot_id,
		 std::chrono::milliseconds grace) :
	inodes(inodes_max),
	stable(state, boot_id),
	done(state, stable.boot()),
	recovery(state, grace),
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

void service::freeze()
{
	for (const auto &e : exports_)
		e->unnamed().freeze();
}

// An operation that is missing here is not about files, or unknown.
constexpr std::array<service::operation, COOP_ST_OP_END> service::operations = [] {
	std::array<operation, COOP_ST_OP_END> t{};
	t[COOP_ST_LOOKUP] = &service::lookup;
	t[COOP_ST_GETATTR] = &service::getattr;
	t[COOP_ST_ACCESS] = &service::access;
	t[COOP_ST_SETATTR] = &service::setattr;
	t[COOP_ST_OPEN] = &service::open;
	t[COOP_ST_CREATE] = &service::create;
	t[COOP_ST_TMPFILE] = &service::tmpfile;
	t[COOP_ST_CLOSE] = &service::close;
	t[COOP_ST_READ] = &service::read;
	t[COOP_ST_READ_SHARED] = &service::read;
	t[COOP_ST_READ_CHAINED] = &service::read;
	t[COOP_ST_CHECK] = &service::check;
	t[COOP_ST_WRITE] = &service::write;
	t[COOP_ST_COMMIT] = &service::commit;
	t[COOP_ST_MKDIR] = &service::mkdir;
	t[COOP_ST_MKNOD] = &service::mknod;
	t[COOP_ST_GETXATTR] = &service::getxattr;
	t[COOP_ST_SETXATTR] = &service::setxattr;
	t[COOP_ST_LISTXATTR] = &service::listxattr;
	t[COOP_ST_REMOVEXATTR] = &service::removexattr;
	t[COOP_ST_UNLINK] = &service::unlink;
	t[COOP_ST_RMDIR] = &service::rmdir;
	t[COOP_ST_RENAME] = &service::rename;
	t[COOP_ST_LINK] = &service::link;
	t[COOP_ST_SYMLINK] = &service::symlink;
	t[COOP_ST_READLINK] = &service::readlink;
	t[COOP_ST_READDIR] = &service::readdir;
	t[COOP_ST_STATFS] = &service::statfs;
	t[COOP_ST_PING] = &service::ping;
	t[COOP_ST_LOCK] = &service::lock;
	t[COOP_ST_LOCK_TEST] = &service::lock_test;
	t[COOP_ST_UNLOCK] = &service::unlock;
	t[COOP_ST_RECLAIMED] = &service::reclaimed;
	t[COOP_ST_LEASE_RETURN] = &service::lease_return;
	t[COOP_ST_FALLOCATE] = &service::fallocate;
	t[COOP_ST_SEEK] = &service::seek;
	t[COOP_ST_COPY] = &service::copy;
	t[COOP_ST_BUNDLE] = &service::bundle;
	return t;
}();

// Changes that a read-only export refuses. Opens for reading, closes, locks and returns of leases
// change no file: they count as changes of a session only because they must run once and in order.
static bool alters(const request &r)
{
	switch (r.head.op) {
	case COOP_ST_OPEN:
		return r.body.flags & (COOP_ST_O_WRITE | COOP_ST_O_TRUNC);
	case COOP_ST_CREATE: // an existing file is opened as above; none is created
		return r.body.flags & (COOP_ST_O_WRITE | COOP_ST_O_TRUNC);
	case COOP_ST_CLOSE:
	case COOP_ST_LOCK:
	case COOP_ST_UNLOCK:
	case COOP_ST_RECLAIMED:
	case COOP_ST_LEASE_RETURN:
		return false;
	default:
		return coop_st_op_changes(r.head.op);
	}
}

void service::execute(const exported &in, session &s, request &r, reply &out)
{
	in.spec().squash(r.body.cred); // once: code below sees mapped ids only
	stats.calls[r.head.op].fetch_add(1, std::memory_order_relaxed);
	const operation op = operations[r.head.op];
	int err = -EOPNOTSUPP;
	try {
		if (op && in.spec().read_only && alters(r))
			err = -EROFS;
		else if (op)
			err = (this->*op)(in, s, r, out);
		if (!err && coop_st_reply_fields(r.head.op) & COOP_ST_DIR_ATTR)
			tell_directory(in, s, r, out.body.dir);
	} catch (const std::bad_alloc &) {
		err = -ENOMEM;
	}
	if (err) {
		stats.errors.fetch_add(1, std::memory_order_relaxed);
		const bool shared_dir = out.shared_dir;
		out = {};
		out.status = static_cast<std::uint32_t>(-err);
		out.shared_dir = shared_dir;
	}
}

int service::attributes(inode &n, coop_st_attr &a)
{
	std::lock_guard lock(n.mutex);
	file_look now;
	std::uint64_t version;
	if (int err = n.observe_locked(now, version))
		return err;
	fill_attr(now, n, version, a);
	return 0;
}

int service::directory(const exported &in, const coop_st_bytes &fh, inode_ref &out)
{
	if (int err = inodes.get(in, view(fh), out))
		return err;
	return out->type == S_IFDIR ? 0 : -ENOTDIR;
}

int service::entry(session &s, call r, const inode &dir, std::string_view name, unique_fd path,
		   reply &out, inode_ref *keep)
{
	exported::named named;
	if (int err = dir.in.name_of(path.get(), dir.handle, name, named))
		return err;
	inode_ref node = inodes.find(named.handle);
	if (!node) {
		struct stat st;
		if (::fstatat(path.get(), "", &st, AT_EMPTY_PATH))
			return -errno;
		if (int err = inodes.put(dir.in, named, std::move(path), st.st_mode & S_IFMT, node))
			return err;
	}
	out.text = named.handle;
	out.body.fh = bytes(out.text);
	if (keep)
		*keep = node;
	return leased_attributes(s, r, node, out.body.attr);
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

int service::lookup(const exported &in, session &s, call r, reply &out)
{
	inode_ref dir;
	unique_fd path;
	if (int err = directory(in, r.body.fh, dir))
		return err;
	if (view(r.body.name) == "..") {
		if (int err = as(r.body.cred, [&] { return in.above(dir->path.get(), path); }))
			return err;
		// The holder of a directory that was moved out of the export must not get further
		// up.
		if (!in.contains(path.get()))
			return -ESTALE;
		return entry(s, r, *dir, {}, std::move(path), out, nullptr);
	}
	out.shared_dir = is_shared(s, r, *dir);
	if (hidden(in, *dir, view(r.body.name)))
		return -ENOENT;
	if (int err = as(r.body.cred,
			 [&] { return in.walk(dir->path.get(), view(r.body.name), path); }))
		return err;
	return entry(s, r, *dir, view(r.body.name), std::move(path), out, nullptr);
}

int service::getattr(const exported &in, session &s, call r, reply &out)
{
	inode_ref node;
	if (int err = inodes.get(in, view(r.body.fh), node))
		return err;
	return leased_attributes(s, r, node, out.body.attr);
}

int service::access(const exported &in, session &s, call r, reply &out)
{
	const int asked = static_cast<int>(r.body.mode);
	inode_ref node;
	if (asked & ~(R_OK | W_OK | X_OK))
		return -EINVAL;
	if (int err = inodes.get(in, view(r.body.fh), node))
		return err;
	lease_table::offer lease = offer(s, r, node);
	if (int err = attributes(*node, out.body.attr))
		return err;
	int allowed = 0;
	if (int err = as(r.body.cred, [&] {
		    for (const int one : {R_OK, W_OK, X_OK})
			    if (asked & one && !permitted(node->path.get(), one))
				    allowed |= one;
		    return 0;
	    }))
		return err;
	// Writing to a device, FIFO or socket changes nothing in the export.
	if (in.spec().read_only && (node->type == S_IFREG || node->type == S_IFDIR))
		allowed &= ~W_OK;
	out.body.mode = static_cast<u32>(allowed);
	tell_offer(lease, *node, out.body.attr);
	return 0;
}

int service::readlink(const exported &in, session &, call r, reply &out)
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

int service::ping(const exported &, session &, call, reply &)
{
	return 0;
}

int service::statfs(const exported &in, session &, call r, reply &out)
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
