// SPDX-License-Identifier: MIT
// commit.cpp - fsync and close: they bring written bytes to stable storage, write again what
// storage lost, or report a loss.
//
// A file has one commit under way at a time (inode::committing). Take it before the turn of the
// file's changes, which writing again needs. While it is held, no other commit writes again, and no
// open file that this one writes through is closed.
#include <cerrno>

#include "userland/client/file.hpp"

namespace coop::client
{

namespace
{

// Commits in a row that each return a different verifier.
constexpr unsigned most_tries = 8;

// The result of the commit is unknown: the caller was killed, or storage is unreachable.
bool undecided(int err)
{
	return err == -EINTR || err == -ETIMEDOUT || err == -ESHUTDOWN;
}

} // namespace

// Commits through any open file; -EBADF: the daemon knows none of them.
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
	// Before looking: while another commit writes again, the bytes that it took are in no book.
	if (int err = node.committing.take(inodes_.keep(node), storage_.patience(), only))
		return err;
	for (unsigned i = 0; i < most_tries; i++) {
		const unstable::cover covered = node.changes.covered();
		// Without commits at close, other open files may have left changes that no book
		// lists: an fsync asks storage anyway, the committer does not.
		if (!covered.pending && (commit_on_close_ || !open_id))
			return 0;
		// The last writer closed the file after the committer looked. If that close did not
		// cover its changes, the remaining open files learn of the loss.
		if (!open_id && node.changes.writers().empty())
			return 0;
		ticket asked = inodes_.now();
		write_result r;
		if (int err = open_id ? storage_.commit(node.fh, open_id, r)
				      : commit_through_any(node, r)) {
			// The daemon lost this open file: another one may still commit.
			if (undecided(err) || (open_id && err == -EBADF))
				return err;
			// The kernel of storage's machine reports a failure once and then treats
			// the bytes as written: a second attempt would report success.
			node.changes.lost(covered, err == -EBADF ? -EIO : err);
			return 0;
		}
		inodes_.learn(node, asked, r.attr, nullptr);
		if (!node.changes.committed(covered, r.verifier))
			return 0;
		if (int err = write_again(node, covered, r.verifier)) {
			if (node.changes.keeps())
				committer_.began(node); // the committer may have dropped its entry
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
		// An unlock whose caller is killed does not wait for the turn: check for it here.
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

// An error of storage, or a loss, is reported once to every open directory.
int files::commit_names(inode &dir, std::atomic<std::uint64_t> &known)
{
	bool lost = false;
	const int err = storage_.commit_names(dir.fh, lost);
	if (lost)
		dir.name_losses++;
	const std::uint64_t now = dir.name_losses;
	const bool told = known.exchange(now) == now;
	return err || told ? err : -EIO;
}

int files::commit(open_file &f)
{
	settle(f);
	f.uncommitted = false; // clear it before looking: later writes belong to the next call
	if (int err = bring(*f.node, f.open_id)) {
		f.uncommitted = true; // the next fsync or close tries again, and reports again
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

// An open file with write access ends. Changes since its close(2), made through a mapping or by
// another process' descriptor, have no caller to report to, but are still committed.
void files::leave(open_file &f)
{
	inode &node = *f.node;
	change_order::hold only;
	if (f.uncommitted && commit_on_close_)
		(void)commit(f);
	if (storage_.lock_era(node.fh)) // this may end our lock
		let_go(node);
	// From here on no commit writes through this open file.
	(void)node.committing.take(inodes_.keep(node), storage_.patience(), only);
	node.changes.leave(f.open_id);
}

// After an unlock the next holder may write to the same bytes. While we hold the turn, nothing is
// written again; if we cannot get the turn we go on, and so does the change that holds it.
void files::let_go(inode &node)
{
	change_order::hold turn;
	(void)take_turn(node, turn);
	node.changes.let_go();
}

} // namespace coop::client
