// SPDX-License-Identifier: MIT
// inodes.cpp - the bounded table of inodes, and one inode's data descriptor.
#include "userland/daemon/inodes.hpp"

#include <cerrno>
#include <fcntl.h>

namespace coop::daemon
{

int inode::reopen(int flags, unique_fd &out) const
{
	char name[32];
	std::snprintf(name, sizeof(name), "/proc/self/fd/%d", path.get());
	out = unique_fd(::open(name, flags | O_CLOEXEC));
	return out ? 0 : -errno;
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

void inode::offer_locked(unique_fd fd)
{
	if (data_)
		return;
	data_ = std::make_shared<unique_fd>(std::move(fd));
	writable_ = false;
}

int inode::want_writable_locked()
{
	if (writable_)
		return 0;
	// Readers of the old descriptor keep it through their own reference; until they are done a
	// write lease is refused, and versions are provisional.
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

int inode::observe_locked(struct stat &st, std::uint64_t &version)
{
	version = 0;
	if (::fstatat(path.get(), "", &st, AT_EMPTY_PATH))
		return -errno;
	if (type != S_IFREG)
		return 0;
	if (record.settled(st)) {
		version = change_time_ns(st);
		return 0;
	}
	int err;
	std::shared_ptr<unique_fd> fd = data_;
	if (!fd) { // not worth keeping: nobody reads it yet
		fd = std::make_shared<unique_fd>();
		err = reopen(O_RDONLY, *fd);
		if (err && err != -EACCES)
			return err;
	}
	stillness still(fd->get(), data_ && writable_);
	if (::fstatat(path.get(), "", &st, AT_EMPTY_PATH))
		return -errno;
	version = record.observe(st, still, in.clock());
	return 0;
}

inode_ref inode_table::find(std::string_view handle)
{
	std::lock_guard lock(mutex_);
	auto it = slots_.find(std::string(handle));
	if (it == slots_.end())
		return nullptr;
	uses_.splice(uses_.end(), uses_, it->second.use);
	return it->second.node;
}

int inode_table::get(const exported &in, std::string_view handle, inode_ref &out)
{
	out = find(handle);
	if (out)
		return &out->in == &in ? 0 : -ESTALE;
	exported::named named{std::string(handle), {}};
	unique_fd path;
	if (int err = in.open(handle, path, named.fid))
		return err;
	struct stat st;
	if (::fstatat(path.get(), "", &st, AT_EMPTY_PATH))
		return -errno;
	out = put(in, named, std::move(path), st.st_mode & S_IFMT);
	return 0;
}

inode_ref inode_table::put(const exported &in, const exported::named &named, unique_fd path,
			   mode_t type)
{
	std::lock_guard lock(mutex_);
	auto [it, fresh] = slots_.try_emplace(named.handle);
	if (fresh) {
		it->second.node =
			std::make_shared<inode>(in, named.handle, named.fid, std::move(path), type);
		it->second.use = uses_.insert(uses_.end(), it->first);
	} else {
		uses_.splice(uses_.end(), uses_, it->second.use);
	}
	inode_ref out = it->second.node;
	if (fresh)
		trim_locked();
	return out;
}

void inode_table::trim_locked()
{
	// Inodes in use are passed over, a bounded number of them at a time.
	constexpr unsigned passes = 32;
	for (unsigned i = 0; slots_.size() > max_ && i < passes; i++) {
		auto it = slots_.find(uses_.front());
		if (it->second.node.use_count() > 1) {
			uses_.splice(uses_.end(), uses_, uses_.begin());
			continue;
		}
		uses_.pop_front();
		slots_.erase(it);
	}
}

void inode_table::discard(std::string_view handle)
{
	inode_ref last; // closes its descriptors after the lock is released
	std::lock_guard lock(mutex_);
	auto it = slots_.find(std::string(handle));
	if (it == slots_.end() || it->second.node.use_count() > 1)
		return;
	last = std::move(it->second.node);
	uses_.erase(it->second.use);
	slots_.erase(it);
}

std::size_t inode_table::size() const
{
	std::lock_guard lock(mutex_);
	return slots_.size();
}

} // namespace coop::daemon
