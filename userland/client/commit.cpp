// SPDX-License-Identifier: MIT
// commit.cpp - fsync and close: what was written is on stable storage afterwards,
// written again if storage had lost it, or told as lost.
//
// One commit of a file is under way at a time (inode::committing). It is taken before
// the turn of the file's changes, which writing again needs: so nothing newer is written
// here meanwhile, and no open file that it goes through is closed.
#include <cerrno>

#include "userland/client/file.hpp"

namespace coop::client
{

namespace
{

// Commits in a row that each return a verifier of their own.
constexpr unsigned most_tries = 8;

// Storage has not said what became of it: who waited was killed, or storage is away.
bool undecided(int err)
{
	return err == -EINTR || err == -ETIMEDOUT || err == -ESHUTDOWN;
}

} // namespace

// Some may be lost, and say so.
int files::commit_through_any(inode &node, write_result &r)
{
	int err = -EBADF;
	for (const std::uint64_t open_id : node.changes.writers())
		if ((err = storage_.commit(node.fh, open_id, r)) != -EBADF)
			break;
	return err;
}

int files::bring(inode &node, std::uint64_t open_id)
{
	change_order::hold only;
	// Before looking: while another writes again, what it took is in no book.
	if (int err = node.committing.take(inodes_.keep(node), storage_.patience(), only))
		return err;
	for (unsigned i = 0; i < most_tries; i++) {
		const unstable::cover covered = node.changes.covered();
		// Without commits at close others may have left something that is in no book: who
		// has it open asks, the committer does not.
		if (!covered.pending && (commit_on_close_ || !open_id))
			return 0;
		// The last writer has gone since the committer looked. What it left is told to
		// those who have the file open, if their commit does not cover it.
		if (!open_id && node.changes.writers().empty())
			return 0;
		ticket asked = inodes_.now();
		write_result r;
		if (int err = open_id ? storage_.commit(node.fh, open_id, r)
				      : commit_through_any(node, r)) {
			// An open file that was lost: another one may do it yet.
			if (undecided(err) || (open_id && err == -EBADF))
				return err;
			// The kernel of storage's machine tells this once and takes the bytes for
			// written: it would say nothing at a second try.
			node.changes.lost(covered, err == -EBADF ? -EIO : err);
			return 0;
		}
		inodes_.learn(node, asked, r.attr, nullptr, false);
		if (!node.changes.committed(covered, r.verifier))
			return 0;
		if (int err = write_again(node, covered, r.verifier)) {
			if (node.changes.keeps())
				committer_.began(node); // its entry may have gone meanwhile
			return err;
		}
	}
	node.changes.lost(node.changes.covered(), -EIO);
	return 0;
}

int files::write_again(inode &node, const unstable::cover &covered, std::uint64_t verifier)
{
	change_order::hold turn;
	int left = 0;
	if (int err = begin_change(node, turn))
		return err;
	const std::uint64_t releases = node.changes.releases();
	for (unstable::kept &k : node.changes.take_again(covered, verifier)) {
		// Who gives a lock back does not wait for a turn if it is killed.
		if (node.changes.releases() != releases) {
			node.changes.lost(-EIO);
			continue;
		}
		if (left) {
			node.changes.put_back(std::move(k));
			continue;
		}
		if (k.era && k.era != storage_.lock_era(node.fh)) {
			node.changes.lost(-EIO);
			continue;
		}
		const iovec data{const_cast<std::byte *>(k.bytes), k.length};
		const range bytes{k.offset, k.length};
		write_result r;
		const int err = storage_.write(node.fh, k.open_id, k.offset, {&data, 1}, r,
					       inherit(node, turn, bytes));
		if (undecided(err)) {
			left = err;
			node.changes.put_back(std::move(k));
		} else if (err) {
			node.changes.lost(err == -EBADF ? -EIO : err);
		} else {
			written_again_.fetch_add(1, std::memory_order_relaxed);
			node.changes.rewrote(std::move(k), r.verifier);
			inodes_.changed(node, r, bytes.offset, bytes.length);
		}
	}
	return left;
}

int files::commit(open_file &f)
{
	settle(f);
	f.uncommitted = false; // before looking: what is written from here on is for another call
	if (int err = bring(*f.node, f.open_id)) {
		f.uncommitted = true; // the next fsync or close tries, and tells, again
		return err;
	}
	std::lock_guard guard(f.lock);
	return f.node->changes.lost_since(f.losses);
}

int files::flush(open_file &f)
{
	if (f.uncommitted && commit_on_close_)
		return commit(f);
	settle(f);
	std::lock_guard guard(f.lock);
	return f.uncommitted ? f.node->changes.lost_since(f.losses) : 0;
}

// The last of an open file that may write. What it wrote since its close, through a mapping or a
// descriptor of another process, has nobody to be told to any more, but is brought to storage.
void files::leave(open_file &f)
{
	inode &node = *f.node;
	change_order::hold only;
	if (f.uncommitted && commit_on_close_)
		(void)commit(f);
	if (storage_.lock_era(node.fh)) // it may end with this
		let_go(node);
	// Nothing goes out through it from here on.
	(void)node.committing.take(inodes_.keep(node), storage_.patience(), only);
	node.changes.leave(f.open_id);
}

// The next holder of a lock may write where we did. With the turn in hand nothing is being written
// again; who cannot have it goes on, as does the change that has it.
void files::let_go(inode &node)
{
	change_order::hold turn;
	(void)take_turn(node, turn);
	node.changes.let_go();
}

} // namespace coop::client
