// SPDX-License-Identifier: MIT
// inodes.cpp - the bounded table of inodes, and an inode's data descriptor.
#include "userland/daemon/inodes.hpp"

#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <vector>

namespace coop::daemon
{

int look(int fd, file_look &out)
{
	struct statx sx;
	if (::statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &sx))
		return -errno;
	const auto time = [](const struct statx_timestamp &t) {
		return timespec{static_cast<time_t>(t.tv_sec), static_cast<long>(t.tv_nsec)};
	};
	out = {};
	out.st.st_dev = ::makedev(sx.stx_dev_major, sx.stx_dev_minor);
	out.st.st_rdev = ::makedev(sx.stx_rdev_major, sx.stx_rdev_minor);
	out.st.st_ino = sx.stx_ino;
	out.st.st_mode = sx.stx_mode;
	out.st.st_nlink = sx.stx_nlink;
	out.st.st_uid = sx.stx_uid;
	out.st.st_gid = sx.stx_gid;
	out.st.st_size = static_cast<off_t>(sx.stx_size);
	out.st.st_blocks = static_cast<blkcnt_t>(sx.stx_blocks);
	out.st.st_blksize = static_cast<blksize_t>(sx.stx_blksize);
	out.st.st_atim = time(sx.stx_atime);
	out.st.st_mtim = time(sx.stx_mtime);
	out.st.st_ctim = time(sx.stx_ctime);
	out.has_btime = sx.stx_mask & STATX_BTIME;
	if (out.has_btime)
		out.btime = {sx.stx_btime.tv_sec, sx.stx_btime.tv_nsec};
	// Some traits change without moving the change time.
	out.traits_known = static_cast<std::uint32_t>(sx.stx_attributes_mask) & COOP_ST_TRAIT_ALL;
	out.traits = static_cast<std::uint32_t>(sx.stx_attributes) & out.traits_known;
	return 0;
}

int inode::reopen(int flags, unique_fd &out) const
{
	char name[32];
	std::snprintf(name, sizeof(name), "/proc/self/fd/%d", path.get());
	// O_NONBLOCK: waiting for the holder of a lease would block a thread for up to
	// lease-break-time.
	out = unique_fd(::open(name, flags | O_CLOEXEC | O_NONBLOCK));
	if (!out)
		return errno == EWOULDBLOCK ? -EAGAIN : -errno;
	::fcntl(out.get(), F_SETFL, 0); // some file systems obey O_NONBLOCK in read(2)
	return 0;
}

std::shared_ptr<unique_fd> inode::data_locked(int &err)
{
	if (!data_) {
		auto fd = std::make_shared<unique_fd>();
		err = reopen(O_RDONLY, *fd);
		if (err)
			return nullptr;
		data_ = std::move(fd);
		writable_ = false;
	}
	err = 0;
	return data_;
}

std::shared_ptr<unique_fd> inode::data(int &err)
{
	std::lock_guard lock(mutex);
	return data_locked(err);
}

void inode::offer_locked(unique_fd fd, bool writable)
{
	if (!fd || (data_ && writable_ >= writable))
		return;
	data_ = std::make_shared<unique_fd>(std::move(fd));
	writable_ = writable;
}

int inode::want_writable_locked()
{
	if (writable_)
		return 0;
	// Readers of the old descriptor keep it by their own reference; until they drop it, the
	// kernel refuses a write lease, and versions are provisional.
	auto fd = std::make_shared<unique_fd>();
	int err = reopen(O_RDWR, *fd);
	if (err == -EACCES)
		err = reopen(O_WRONLY, *fd);
	if (err)
		return err;
	data_ = std::move(fd);
	writable_ = true;
	return 0;
}

void inode::drop_writable_locked()
{
	if (writable_ && !writers) {
		data_.reset();
		writable_ = false;
	}
}

int inode::observe_locked(file_look &now, std::uint64_t &version)
{
	const struct stat &st = now.st;
	version = 0;
	if (int err = look(path.get(), now))
		return err;
	if (type != S_IFREG || constant) {
		version = constant;
		return 0;
	}
	if (record.settled(st)) {
		version = change_time_ns(st);
		return 0;
	}
	int err;
	std::shared_ptr<unique_fd> fd = data_;
	if (!fd) { // not kept: there is no reader yet
		fd = std::make_shared<unique_fd>();
		err = reopen(O_RDONLY, *fd);
		if (err && err != -EACCES && err != -EAGAIN) // without it there is no proof
			return err;
	}
	stillness still(fd->get(), data_ && writable_);
	if ((err = look(path.get(), now)))
		return err;
	version = record.observe(st, still, in.clock());
	return 0;
}

std::string inode::self() const
{
	return "/proc/self/fd/" + std::to_string(path.get());
}

std::uint32_t inode::extras_locked(const struct stat &st)
{
	constexpr std::size_t usual = 512; // bytes of names
	char names[usual];
	std::vector<char> more;
	// A change of attributes moves the change time, if that is fine enough to tell.
	if (extras_time_ == change_time_ns(st) && record.settled(st))
		return extras_;
	const std::string name = self();
	const char *at = names;
	ssize_t n = ::listxattr(name.c_str(), names, usual);
	if (n < 0 && errno == ERANGE) {
		more.resize(COOP_ST_XATTR_MAX);
		at = more.data();
		n = ::listxattr(name.c_str(), more.data(), more.size());
		if (n < 0 && errno != EOPNOTSUPP)
			return COOP_ST_HAS_XATTRS; // more than the kernel lists
	}
	extras_time_ = change_time_ns(st);
	extras_ = n > 0 ? COOP_ST_HAS_XATTR : 0;
	for (std::string_view left(at, n > 0 ? static_cast<std::size_t>(n) : 0); !left.empty();) {
		const std::string_view one = left.substr(0, left.find('\0'));
		left.remove_prefix(std::min(one.size() + 1, left.size()));
		if (one == "system.posix_acl_access")
			extras_ |= COOP_ST_HAS_ACL;
		else if (one == "system.posix_acl_default")
			extras_ |= COOP_ST_HAS_DEFAULT_ACL;
		else if (one == "security.capability")
			extras_ |= COOP_ST_HAS_CAPABILITY;
	}
	return extras_;
}

// References share one control block; the last one calls let_go().
inode_ref inode_table::hold_locked(slot &s)
{
	inode_ref r = s.held.lock();
	if (r)
		return r;
	if (!s.holders++)
		idle_.erase(s.idle);
	slot *const at = &s;
	r = inode_ref(s.node.get(), [this, at](inode *) { let_go(at); });
	s.held = r;
	return r;
}

void inode_table::let_go(slot *s)
{
	std::unique_ptr<inode> last; // closes its descriptors after the lock is released
	std::lock_guard lock(mutex_);
	if (--s->holders) // after the last one a new reference may have been made
		return;
	if (s->discarded) {
		last = std::move(s->node);
		slots_.erase(last->handle);
	} else {
		s->idle = idle_.insert(idle_.end(), s);
	}
}

inode_ref inode_table::find(std::string_view handle)
{
	std::lock_guard lock(mutex_);
	auto it = slots_.find(std::string(handle));
	return it == slots_.end() ? nullptr : hold_locked(*it->second);
}

int inode_table::get(const exported &in, std::string_view handle, inode_ref &out)
{
	out = find(handle);
	if (out)
		return &out->in == &in ? 0 : -ESTALE;
	exported::named named;
	unique_fd path;
	if (int err = in.open(handle, path, named))
		return err;
	struct stat st;
	if (::fstatat(path.get(), "", &st, AT_EMPTY_PATH))
		return -errno;
	return put(in, named, std::move(path), st.st_mode & S_IFMT, out);
}

int inode_table::put(const exported &in, const exported::named &named, unique_fd path, mode_t type,
		     inode_ref &out)
{
	std::unique_ptr<inode> evicted; // closed after the lock is released
	std::lock_guard lock(mutex_);
	auto it = slots_.find(named.handle);
	if (it == slots_.end()) {
		if (slots_.size() >= max_) {
			evicted = evict_locked();
			if (!evicted)
				return -ENFILE;
		}
		auto s = std::make_unique<slot>();
		s->node = std::make_unique<inode>(in, named, use_of(in, named.file),
						  std::move(path), type);
		s->idle = idle_.insert(idle_.end(), s.get());
		it = slots_.emplace(named.handle, std::move(s)).first;
	}
	out = hold_locked(*it->second);
	return 0;
}

std::shared_ptr<file_use> inode_table::use_of(const exported &in, const coop_fid &file)
{
	if (in.siblings().empty())
		return std::make_shared<file_use>();
	std::lock_guard lock(mutex_);
	std::weak_ptr<file_use> &known = shared_[file];
	std::shared_ptr<file_use> use = known.lock();
	if (!use)
		known = use = std::make_shared<file_use>();
	if (shared_.size() >= sweep_at_) {
		std::erase_if(shared_, [](const auto &s) { return s.second.expired(); });
		sweep_at_ = std::max(sweep_at_, 2 * shared_.size());
	}
	return use;
}

std::unique_ptr<inode> inode_table::evict_locked()
{
	if (idle_.empty())
		return nullptr;
	std::unique_ptr<inode> last = std::move(idle_.front()->node);
	idle_.pop_front();
	slots_.erase(last->handle);
	return last;
}

void inode_table::discard(std::string_view handle)
{
	std::unique_ptr<inode> last; // closed after the lock is released
	std::lock_guard lock(mutex_);
	auto it = slots_.find(std::string(handle));
	if (it == slots_.end())
		return;
	if (it->second->holders) {
		it->second->discarded = true;
		return;
	}
	last = std::move(it->second->node);
	idle_.erase(it->second->idle);
	slots_.erase(it);
}

std::size_t inode_table::size() const
{
	std::lock_guard lock(mutex_);
	return slots_.size();
}

bool inode_table::half_free() const
{
	std::lock_guard lock(mutex_);
	return slots_.size() - idle_.size() < max_ / 2;
}

std::size_t inode_table::idle() const
{
	std::lock_guard lock(mutex_);
	return idle_.size();
}

} // namespace coop::daemon
