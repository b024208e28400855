// SPDX-License-Identifier: MIT
// shim.hpp - used by every FUSE operation: the mount, the caller, the reply.
//
// FUSE's inode number is that of the client's inode (userland/client/inode_numbers.hpp), which
// lives until the kernel has forgotten every reference; small numbers are the root and the files of
// .coopfs.
#pragma once

#include <functional>

#include <fuse_lowlevel.h>

#include "fuse-shim/background.hpp"
#include "fuse-shim/control.hpp"
#include "fuse-shim/identity.hpp"
#include "fuse-shim/kernel_names.hpp"
#include "fuse-shim/lock_waits.hpp"
#include "fuse-shim/second_looks.hpp"
#include "fuse-shim/short_wait.hpp"
#include "userland/client/mount.hpp"

namespace coop::shim
{

struct context {
	client::mount &mount;
	control files_of_control;
	identity_cache identities;
	fuse_session *session = nullptr;
	client::inode *root = nullptr;
	std::function<void()> on_init; // called when INIT is done
	// Calls the function once the kernel has dropped all pages that it was told to drop so far.
	std::function<void(std::function<void()>)> pages_dropped;
	// The kernel forgets the attributes that it has of the file, and ignores those that are on
	// their way.
	void forget_attributes(client::inode &);
	// The same, unless another open has just done it for this version.
	void announce(client::inode &);
	lock_waits waits;
	background later;
	kernel_names names{};
	second_looks looks{};
	last_figures figures{};
};

// Seconds for which the kernel may believe names and attributes that another node may change.
inline double lifetime(const context &c)
{
	return c.mount.options().strict ? 0.0 : 1.0;
}

inline context &context_of(fuse_req_t req)
{
	return *static_cast<context *>(fuse_req_userdata(req));
}

// The kernel holds a reference to it.
inline client::inode &inode_of(context &c, fuse_ino_t ino)
{
	return ino == FUSE_ROOT_ID ? *c.root : *c.mount.inodes().find(ino);
}

inline fuse_ino_t number_of(context &c, client::inode &node)
{
	return &node == c.root ? FUSE_ROOT_ID : node.id;
}

inline client::caller caller_of(fuse_req_t req)
{
	return context_of(req).identities.of(req);
}

// Mode of a new file. The kernel leaves the umask to us (FUSE_CAP_DONT_MASK).
inline client::new_mode mode_of(fuse_req_t req, mode_t mode)
{
	return {mode, fuse_req_ctx(req)->umask};
}

// The open file that open or create has given to the kernel.
inline client::open_file &file_of(const fuse_file_info *fi)
{
	return *reinterpret_cast<client::open_file *>(fi->fh);
}

// A name in the root that belongs to us, not to storage.
inline bool reserved(fuse_ino_t parent, std::string_view name)
{
	return parent == FUSE_ROOT_ID && name == control::directory_name;
}

// Replies once the kernel has dropped the file's pages of older versions, for the reply has a new
// end of the file, which must not make zeros behind the old one readable.
template <class replying> void after_pages(context &c, client::inode &node, replying reply)
{
	auto told = [&c, file = node.shared_from_this(), reply = std::move(reply)] {
		const client::inode_table::telling turn(c.mount.inodes(), *file);
		reply();
	};
	if (node.dropping_pages || c.mount.options().strict)
		c.pages_dropped(std::move(told));
	else
		told();
}

// err: 0 or -errno.
inline void reply_status(fuse_req_t req, int err)
{
	fuse_reply_err(req, -err);
}

// After a change of the file's bytes. Storage makes it with the rights of the user that opened the
// file, and root's changes keep set-id bits. If another user got the open file from root, and the
// kernel did not know of the bits, clear them now.
void take_set_id(fuse_req_t req, context &c, client::open_file &f);

// From before storage is asked about files.
struct asking {
	explicit asking(context &c) : files(c.mount.inodes().now()), names(c.names.now()) {}
	client::ticket files;
	std::uint64_t names;
};

// A name that a reply gives to the kernel. listed: with many others.
struct given_name {
	fuse_ino_t dir;
	std::string_view name;
	bool listed = false;
};

// The entry's reply for an inode to which the kernel has a reference.
fuse_entry_param entry_of(context &c, client::inode &, const client::attributes &);
// The same, of a name that the kernel gets with it.
fuse_entry_param entry_of(context &c, client::inode &, const client::entry &, const given_name &,
			  const asking &);
// Gives the kernel a reference to the entry. e.attr: out, what the kernel is shown.
fuse_entry_param make_entry(context &c, client::entry &e, const given_name &, const asking &);
void reply_entry(fuse_req_t req, client::entry &e, const given_name &, const asking &);
// Replies to an operation on a name in the directory. If storage says that the directory has gone,
// the kernel looks again, and then there is no such name.
void reply_failed(fuse_req_t req, fuse_ino_t dir, int err);

const fuse_lowlevel_ops &operations();

// Operations, by file: ops_name.cpp, ops_attr.cpp, ops_xattr.cpp, ops_file.cpp, ops_range.cpp,
// ops_dir.cpp.
void op_lookup(fuse_req_t, fuse_ino_t parent, const char *name);
void op_forget(fuse_req_t, fuse_ino_t, std::uint64_t n);
void op_forget_multi(fuse_req_t, std::size_t count, fuse_forget_data *);
void op_mkdir(fuse_req_t, fuse_ino_t parent, const char *name, mode_t);
void op_mknod(fuse_req_t, fuse_ino_t parent, const char *name, mode_t, dev_t);
void op_unlink(fuse_req_t, fuse_ino_t parent, const char *name);
void op_rmdir(fuse_req_t, fuse_ino_t parent, const char *name);
void op_rename(fuse_req_t, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
	       const char *new_name, unsigned flags);
void op_link(fuse_req_t, fuse_ino_t, fuse_ino_t new_parent, const char *new_name);
void op_symlink(fuse_req_t, const char *target, fuse_ino_t parent, const char *name);
void op_readlink(fuse_req_t, fuse_ino_t);

void op_getattr(fuse_req_t, fuse_ino_t, fuse_file_info *);
void op_statx(fuse_req_t, fuse_ino_t, std::size_t, std::uint64_t); // see newer_requests.hpp
void op_setattr(fuse_req_t, fuse_ino_t, struct stat *, int to_set, fuse_file_info *);
void op_access(fuse_req_t, fuse_ino_t, int mask);
void op_statfs(fuse_req_t, fuse_ino_t);

void op_getxattr(fuse_req_t, fuse_ino_t, const char *name, std::size_t room);
void op_listxattr(fuse_req_t, fuse_ino_t, std::size_t room);
void op_setxattr(fuse_req_t, fuse_ino_t, const char *name, const char *value, std::size_t size,
		 int flags);
void op_removexattr(fuse_req_t, fuse_ino_t, const char *name);

void op_open(fuse_req_t, fuse_ino_t, fuse_file_info *);
void op_create(fuse_req_t, fuse_ino_t parent, const char *name, mode_t, fuse_file_info *);
void op_read(fuse_req_t, fuse_ino_t, std::size_t size, off_t, fuse_file_info *);
void op_retrieved(fuse_req_t, void *cookie, fuse_ino_t, off_t, fuse_bufvec *);
void op_write(fuse_req_t, fuse_ino_t, const char *, std::size_t size, off_t, fuse_file_info *);
void op_flush(fuse_req_t, fuse_ino_t, fuse_file_info *);
void op_fsync(fuse_req_t, fuse_ino_t, int datasync, fuse_file_info *);
void op_release(fuse_req_t, fuse_ino_t, fuse_file_info *);

// ops_lock.cpp
void op_getlk(fuse_req_t, fuse_ino_t, fuse_file_info *, struct flock *);
void op_setlk(fuse_req_t, fuse_ino_t, fuse_file_info *, struct flock *, int sleep);
void op_flock(fuse_req_t, fuse_ino_t, fuse_file_info *, int op);
// A process closes the file: releases its byte-range locks. Answers with 'status'.
void unlock_at_close(fuse_req_t, fuse_ino_t, fuse_file_info *, int status);
void op_fallocate(fuse_req_t, fuse_ino_t, int mode, off_t, off_t length, fuse_file_info *);
void op_lseek(fuse_req_t, fuse_ino_t, off_t, int whence, fuse_file_info *);
void op_copy_file_range(fuse_req_t, fuse_ino_t in, off_t in_at, fuse_file_info *, fuse_ino_t out,
			off_t out_at, fuse_file_info *, std::size_t length, int flags);

void op_opendir(fuse_req_t, fuse_ino_t, fuse_file_info *);
void op_fsyncdir(fuse_req_t, fuse_ino_t, int datasync, fuse_file_info *);
void op_readdir(fuse_req_t, fuse_ino_t, std::size_t size, off_t, fuse_file_info *);
void op_readdirplus(fuse_req_t, fuse_ino_t, std::size_t size, off_t, fuse_file_info *);
void op_releasedir(fuse_req_t, fuse_ino_t, fuse_file_info *);

} // namespace coop::shim
