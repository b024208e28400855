// SPDX-License-Identifier: MIT
// ops_range.cpp - ranges of open files: fallocate, SEEK_DATA and SEEK_HOLE,
// copy_file_range.
//
// Of fallocate the kernel passes on allocating, punching and zeroing, and drops its own pages of
// the range when we answer. It does not pass on cloning (FICLONE).
#include "fuse-shim/shim.hpp"

#include <cerrno>

namespace coop::shim
{

void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
		  fuse_file_info *fi)
{
	if (control::owns(ino))
		return reply_status(req, -EOPNOTSUPP);
	context &c = context_of(req);
	client::open_file &f = file_of(fi);
	const int err = c.mount.files().fallocate(f, mode, static_cast<std::uint64_t>(offset),
						  static_cast<std::uint64_t>(length));
	if (!err)
		take_set_id(req, c, f);
	reply_status(req, err);
}

void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence, fuse_file_info *fi)
{
	if (control::owns(ino))
		return reply_status(req, -EINVAL);
	auto at = static_cast<std::uint64_t>(offset);
	if (int err = context_of(req).mount.files().seek(file_of(fi), whence, at))
		return reply_status(req, err);
	fuse_reply_lseek(req, static_cast<off_t>(at));
}

void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in, fuse_file_info *fi_in,
			fuse_ino_t ino_out, off_t off_out, fuse_file_info *fi_out, std::size_t len,
			int)
{
	// The kernel falls back to reads and writes.
	if (control::owns(ino_in) || control::owns(ino_out))
		return reply_status(req, -EOPNOTSUPP);
	context &c = context_of(req);
	client::open_file &out = file_of(fi_out);
	std::uint64_t length = len;
	if (int err = c.mount.files().copy(file_of(fi_in), static_cast<std::uint64_t>(off_in), out,
					   static_cast<std::uint64_t>(off_out), length))
		return reply_status(req, err);
	take_set_id(req, c, out);
	fuse_reply_write(req, length);
}

} // namespace coop::shim
