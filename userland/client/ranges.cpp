// SPDX-License-Identifier: MIT
// ranges.cpp - ranges of open files: allocated, punched, searched and copied by storage.
//
// Each of these is a change like a write: it takes its turn, and its reply has the versions before
// and after, so pages outside the range stay valid. Only storage knows the state after a failure in
// the middle, so we look at the file again.
#include <algorithm>
#include <fcntl.h>
#include <linux/falloc.h>
#include <utility>

#include "userland/client/file.hpp"

namespace coop::client
{

namespace
{

// The bytes that change, except those that a new end of file adds or removes.
std::pair<std::uint64_t, std::uint64_t> touched(int mode, std::uint64_t offset,
						std::uint64_t length)
{
	if (mode & (FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE))
		return {offset, UINT64_MAX};
	if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE))
		return {offset, length};
	return {0, 0};
}

} // namespace

// After a failure. A change that is still under way reports by its late reply.
void files::look_again(open_file &f, change_order::hold &turn, int err)
{
	turn.reset();
	if (err != -EINTR && err != -ETIMEDOUT)
		(void)revalidate(f.opener, *f.node, nullptr, turn);
}

int files::fallocate(open_file &f, int mode, std::uint64_t offset, std::uint64_t length)
{
	settle(f);
	inode &node = *f.node;
	change_order::hold turn;
	write_result r;
	if (int err = begin_change(node, turn))
		return err;
	const auto [from, bytes] = touched(mode, offset, length);
	if (int err = storage_.fallocate(node.fh, f.open_id, mode, offset, length, r,
					 inherit(node, turn, {from, bytes}))) {
		look_again(f, turn, err);
		return err;
	}
	node.changes.acknowledged(r.verifier, from, bytes);
	f.uncommitted = true;
	inodes_.changed(node, r, from, bytes);
	return 0;
}

int files::seek(open_file &f, int whence, std::uint64_t &at)
{
	return storage_.seek(f.node->fh, f.open_id, whence, at, at);
}

int files::copy(open_file &from, std::uint64_t from_at, open_file &to, std::uint64_t to_at,
		std::uint64_t &length)
{
	settle(to);
	inode &node = *to.node;
	open_file *as = nullptr;
	change_order::hold turn;
	write_result r;
	if (int err = begin_change(node, turn))
		return err;
	if (int err = open_as(to, false, as)) // the kernel has refused it if O_APPEND is set now
		return err;
	if (int err = storage_.copy({from.node->fh, from.open_id, from_at},
				    {node.fh, as->open_id, to_at}, length, r,
				    inherit(node, turn, {to_at, length}))) {
		look_again(to, turn, err);
		return err;
	}
	node.changes.acknowledged(r.verifier, to_at, length);
	to.uncommitted = true;
	inodes_.changed(node, r, to_at, length);
	return 0;
}

} // namespace coop::client
