// SPDX-License-Identifier: MIT
// naming.cpp - changes of names: files and directories get them, change them and lose them.
//
// A change holds the mutex of its directories, so that no client changes a name between the change
// and what belongs to it: the lookup of what was made, and the care for an open file that lost its
// last name.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <utility>

#include "userland/daemon/identity.hpp"
#include "userland/daemon/service.hpp"

namespace coop::daemon
{

namespace
{

int checked(std::string_view name)
{
	if (good_name(name))
		return 0;
	return name.size() > COOP_ST_NAME_MAX ? -ENAMETOOLONG : -EINVAL;
}

bool same_inode(int a, int b)
{
	struct stat x, y;
	return !::fstatat(a, "", &x, AT_EMPTY_PATH) && !::fstatat(b, "", &y, AT_EMPTY_PATH) &&
	       x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

} // namespace

names_once service::once(const exported &in, session &s, call r, const inode &dir,
			 const inode *other)
{
	names_once o(s.names(done), r.head.id, stable.verifier(in.fs(), {}),
		     r.head.flags & COOP_ST_F_REPEAT);
	// The client takes the change for one of this run. It must learn if an fsync failed since.
	if (o.verifier_differs()) {
		stable.failed(dir.file);
		if (other)
			stable.failed(other->file);
	}
	return o;
}

int service::place(const exported &in, const coop_st_bytes &fh, const coop_st_bytes &name, int ours,
		   inode_ref &dir, std::string &out)
{
	out = view(name);
	if (int err = directory(in, fh, dir))
		return err;
	if (int err = checked(out))
		return err;
	return hidden(in, *dir, out) ? ours : 0;
}

template <class act>
int service::add(const exported &in, session &s, call r, reply &out, mode_t type,
		 const inode *linked, act make)
{
	inode_ref dir;
	unique_fd path;
	std::string name;
	int err = place(in, r.body.fh, r.body.name, -EPERM, dir, name);
	if (err)
		return err;
	names_once attempt = once(in, s, r, *dir);
	const auto is_ours = [&] {
		return linked ? same_inode(path.get(), linked->path.get())
			      : attempt.born(path.get(), type, r.body.cred.uid);
	};
	{
		std::lock_guard names(dir->mutex); // no client removes it before we look it up
		err = making_as(r.body.cred, r.body.mode, [&] {
			const int made = attempt.run(
				[&] { return make(dir->path.get(), name.c_str()) ? -errno : 0; },
				[&](int e) {
					return e == -EEXIST &&
					       !in.walk(dir->path.get(), name, path) && is_ours() &&
					       (!linked || attempt.touched(path.get()));
				});
			if (made)
				return made;
			// Others may have changed the name since an earlier process made it.
			const int e = path ? 0 : in.walk(dir->path.get(), name, path);
			return attempt.answer() && (e == -ENOENT || (!e && !is_ours())) ? -ESTALE
											: e;
		});
	}
	return err ? err : entry(s, r, *dir, name, std::move(path), out, nullptr);
}

int service::name_file(const exported &in, session &s, call r, inode &dir, int access,
		       named_file &f)
{
	const std::string name(view(r.body.name));
	const bool exclusive = r.body.flags & COOP_ST_O_EXCL;
	names_once attempt = once(in, s, r, dir);
	const auto is_ours = [&] {
		f.ours = !in.walk(dir.path.get(), name, f.path) &&
			 attempt.born(f.path.get(), S_IFREG, r.body.cred.uid);
		return f.ours;
	};
	return making_as(r.body.cred, r.body.mode, [&] {
		if (in.spec().read_only) {
			const int e = in.walk(dir.path.get(), name, f.path);
			return e == -ENOENT ? -EROFS : !e && exclusive ? -EEXIST : e;
		}
		std::lock_guard lock(dir.mutex); // no client removes the name in between
		int e = attempt.run(
			[&] {
				return in.make(dir.path.get(), name, access, r.body.mode, f.path,
					       f.made);
			},
			[&](int failed) { return failed == -EEXIST && is_ours(); });
		// Others may have changed the name since an earlier process made it.
		if (!e && !f.path && !is_ours())
			e = exclusive ? -ESTALE : -EEXIST;
		return e == -EEXIST && !exclusive ? in.walk(dir.path.get(), name, f.path) : e;
	});
}

int service::mkdir(const exported &in, session &s, call r, reply &out)
{
	const int err = add(in, s, r, out, S_IFDIR, nullptr, [&](int dir, const char *name) {
		return ::mkdirat(dir, name, r.body.mode & 07777);
	});
	inode_ref made;
	// Other clients may have created names in it before the lease was granted.
	if (!err && out.body.attr.has & COOP_ST_HAS_LEASE &&
	    !inodes.get(in, view(out.body.fh), made) && holds_no_names(*made))
		out.body.attr.has |= COOP_ST_HAS_NO_NAMES;
	return err;
}

int service::mknod(const exported &in, session &s, call r, reply &out)
{
	const mode_t mode = r.body.mode & (S_IFMT | 07777);
	const std::uint64_t major = r.body.rdev >> 32, minor = r.body.rdev & UINT32_MAX;
	switch (mode & S_IFMT) {
	case S_IFREG:
	case S_IFIFO:
	case S_IFSOCK:
		if (r.body.rdev)
			return -EINVAL;
		break;
	case S_IFCHR:
		// Device number 0 is no device: overlayfs uses it for whiteouts.
		if (!r.body.rdev)
			break;
		[[fallthrough]];
	case S_IFBLK:
		if (major >> 12 || minor >> 20) // limits of Linux' device numbers
			return -EINVAL;
		if (!in.spec().devices)
			return -EPERM;
		break;
	default:
		return -EINVAL;
	}
	const dev_t device = ::makedev(static_cast<unsigned>(major), static_cast<unsigned>(minor));
	return add(in, s, r, out, mode & S_IFMT, nullptr,
		   [&](int dir, const char *name) { return ::mknodat(dir, name, mode, device); });
}

int service::link(const exported &in, session &s, call r, reply &out)
{
	inode_ref node;
	if (int err = inodes.get(in, view(r.body.fh2), node))
		return err;
	// Through /proc, because linking by descriptor needs a capability that users lack.
	const std::string self = "/proc/self/fd/" + std::to_string(node->path.get());
	if (int err = add(in, s, r, out, 0, node.get(), [&](int dir, const char *name) {
		    return ::linkat(AT_FDCWD, self.c_str(), dir, name, AT_SYMLINK_FOLLOW);
	    }))
		return err;
	if (!in.unnamed().has(node->fid))
		return 0;
	// It was created without a name (TMPFILE) and no longer needs the orphan name.
	{
		const orphans::guard hold = in.unnamed().hold(node->fid);
		in.unnamed().settle_locked(node->fid, node->path.get());
	}
	return attributes(*node, out.body.attr);
}

int service::symlink(const exported &in, session &s, call r, reply &out)
{
	const std::string target(view(r.body.text));
	if (target.empty() || target.find('\0') != target.npos)
		return -EINVAL;
	return add(in, s, r, out, S_IFLNK, nullptr, [&](int dir, const char *name) {
		return ::symlinkat(target.c_str(), dir, name);
	});
}

int service::find_victim(const exported &in, const inode &dir, const std::string &name,
			 const coop_st_cred &cred, victim &v)
{
	return as(cred, [&] {
		struct stat st;
		if (in.walk(dir.path.get(), name, v.path) ||
		    ::fstatat(v.path.get(), "", &st, AT_EMPTY_PATH) ||
		    in.name_of(v.path.get(), dir.handle, name, v.named))
			v.named.handle.clear();
		else
			v.type = st.st_mode & S_IFMT;
		return 0;
	});
}

void service::forget(const exported &in, victim &v)
{
	struct stat st;
	if (::fstatat(v.path.get(), "", &st, AT_EMPTY_PATH) ||
	    (st.st_nlink && !S_ISDIR(st.st_mode) && !in.unnamed().has(v.named.fid)))
		return;
	// Also if it is open, and so has a name of ours: its last close may come soon.
	inode_ref node;
	if (v.replaced && v.type == S_IFREG && inodes.half_free() &&
	    !inodes.put(in, v.named, std::move(v.path), v.type, node))
		replaced.keep(std::move(node), static_cast<std::uint64_t>(st.st_blocks) * 512);
	// Where handles are paths, only the descriptor can tell that it was removed, not moved:
	// keep it for as long as the table has room. It also keeps the inode's number from being
	// used again, but not on every file system that stores no time of birth.
	file_look now;
	if (in.by_path() && v.type != S_IFREG && v.path && !look(v.path.get(), now) &&
	    now.has_btime)
		return;
	inodes.discard(v.named.handle);
}

namespace
{

// An export in which the file may be open, which it cannot become or cease to be meanwhile.
struct open_in {
	const exported *in;
	coop_fid fid;
	orphans::guard hold;
};

std::vector<open_in> held_everywhere(const exported &in, int path, const coop_fid &fid)
{
	std::vector<open_in> out;
	out.push_back({&in, fid, {}});
	for (const exported *other : in.siblings()) {
		exported::named named;
		// Nothing is written to a read-only export. A path in one export is none in
		// another.
		if (!other->by_path() && !other->spec().read_only &&
		    !other->name_of(path, {}, {}, named))
			out.push_back({other, named.fid, {}});
	}
	std::sort(out.begin(), out.end(),
		  [](const open_in &a, const open_in &b) { return std::less<>()(a.in, b.in); });
	for (open_in &p : out) // in one order for all threads
		p.hold = p.in->unnamed().hold(p.fid);
	return out;
}

} // namespace

template <class act>
int service::removing(const exported &in, const inode &dir, victim &gone, const coop_st_cred &cred,
		      act change)
{
	if (gone.named.handle.empty())
		return as(cred, change);
	int err;
	if (gone.type == S_IFREG) {
		const std::vector<open_in> places =
			held_everywhere(in, gone.path.get(), gone.named.fid);
		const auto open = std::find_if(places.begin(), places.end(), [](const auto &p) {
			return p.in->unnamed().open_locked(p.fid);
		});
		struct stat st;
		// The orphan link changes the file's change time, so make it only for users who may
		// write to the directory.
		if (open != places.end() && !::fstatat(gone.path.get(), "", &st, AT_EMPTY_PATH) &&
		    st.st_nlink == 1 &&
		    !as(cred, [&] { return permitted(dir.path.get(), W_OK | X_OK); }))
			if (int kept = open->in->unnamed().keep_locked(open->fid, gone.path.get()))
				spdlog::debug("export {}: a removed file that is open is lost "
					      "if this daemon ends: {}",
					      in.name(), std::strerror(-kept));
		err = as(cred, change);
		for (const open_in &p : places)
			p.in->unnamed().settle_locked(p.fid, gone.path.get());
	} else {
		err = as(cred, change);
	}
	if (!err)
		forget(in, gone);
	return err;
}

int service::remove(const exported &in, session &s, call r, int flags)
{
	inode_ref dir;
	std::string name;
	if (int err = place(in, r.body.fh, r.body.name, -ENOENT, dir, name))
		return err;
	names_once attempt = once(in, s, r, *dir);
	if (const auto known = attempt.answer())
		return *known;
	std::lock_guard names(dir->mutex); // the name must not change between lookup and removal
	if (attempt.taken(attempt.takes(dir->path.get(), name)))
		return attempt.run([] { return 0; });
	victim gone;
	if (int err = find_victim(in, *dir, name, r.body.cred, gone))
		return err;
	return removing(in, *dir, gone, r.body.cred, [&] {
		return attempt.run([&] {
			return ::unlinkat(dir->path.get(), name.c_str(), flags) ? -errno : 0;
		});
	});
}

int service::unlink(const exported &in, session &s, call r, reply &)
{
	return remove(in, s, r, 0);
}

int service::rmdir(const exported &in, session &s, call r, reply &)
{
	return remove(in, s, r, AT_REMOVEDIR);
}

int service::rename(const exported &in, session &s, call r, reply &)
{
	inode_ref from, to;
	std::string name, name2;
	if (int err = place(in, r.body.fh, r.body.name, -ENOENT, from, name))
		return err;
	if (int err = place(in, r.body.fh2, r.body.name2, -EPERM, to, name2))
		return err;
	if (r.body.flags & ~(COOP_ST_R_NOREPLACE | COOP_ST_R_EXCHANGE))
		return -EINVAL;
	const unsigned flags = (r.body.flags & COOP_ST_R_NOREPLACE ? RENAME_NOREPLACE : 0u) |
			       (r.body.flags & COOP_ST_R_EXCHANGE ? RENAME_EXCHANGE : 0u);
	names_once attempt = once(in, s, r, *from, to.get());
	if (const auto known = attempt.answer())
		return *known;
	std::unique_lock first(from->mutex, std::defer_lock), second(to->mutex, std::defer_lock);
	if (from == to)
		first.lock();
	else
		std::lock(first, second);
	if (attempt.taken(attempt.takes(from->path.get(), name))) {
		if (int err = attempt.run([&] {
			    return identify(to->path.get(), name2) == attempt.source() ? 0
										       : -ENOENT;
		    }))
			return err;
	} else {
		victim gone;
		if (int err = flags ? 0 : find_victim(in, *to, name2, r.body.cred, gone))
			return err;
		gone.replaced = true;
		if (int err = removing(in, *to, gone, r.body.cred, [&] {
			    return attempt.run([&] {
				    return ::renameat2(from->path.get(), name.c_str(),
						       to->path.get(), name2.c_str(), flags)
						   ? -errno
						   : 0;
			    });
		    }))
			return err;
	}
	unique_fd path;
	exported::named named;
	if (in.by_path() &&
	    !as(r.body.cred, [&] { return in.walk(to->path.get(), name2, path); }) &&
	    !in.name_of(path.get(), to->handle, name2, named))
		in.moved(named.handle, to->handle, name2);
	return 0;
}

} // namespace coop::daemon
