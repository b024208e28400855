// SPDX-License-Identifier: MIT
// file.cpp - an open file: open, read, write, release.
#include "userland/client/file.hpp"

#include <fcntl.h>
#include <future>

#include "rpc/base/bits.h"
#include "rpc/storage/stale.h"
#include "userland/client/asker.hpp"

namespace coop::client
{

namespace
{

// Version changes that a read follows before it reads without a version.
constexpr int max_versions = 4;
// The most bytes worth carrying in the reply to an open.
constexpr std::uint32_t inline_bytes = 64u << 10;

// Errors after which part of the bytes may have been written.
bool half_done(int err)
{
	return err == -EIO || err == -ENOSPC || err == -EDQUOT || err == -EFBIG;
}

} // namespace

files::files(storage &s, page_store &p, reader &r, inode_table &t, membership &m,
	     commit_options how) :
	storage_(s),
	store_(p),
	reader_(r),
	inodes_(t),
	membership_(m),
	kept_(kept_memory::create(how.keep)),
	commit_on_close_(how.on_close),
	committer_(*kept_, {[&s] { return s.stats().reconnects; },
			    [this](inode &node) { return bring(node, 0); }}),
	watch_(s, t)
{
}

// Decides what the kernel may keep. judged: the inode knows the version from the reply; otherwise a
// change of ours was under way, and we ask storage again once none is.
void files::admit(inode &node, const caller &who, open_result &r, bool judged, open_answer &out)
{
	change_order::hold turn;
	if (!judged) {
		judged = revalidate(who, node, &r.openers, turn) == 0;
		r.inline_data.clear(); // likely of an older version
	}
	{
		std::lock_guard guard(node.lock);
		const bool holds_it = node.kernel_pages() != inode::pages::foreign;
		out.keep = judged && node.version && holds_it && !node.unsettled && !node.dropping;
		out.attr_stale = node.kernel_attr && node.kernel_attr != r.attr.version;
		node.opened = inodes_.now();
		node.opens++;
		if (out.keep && node.kernel_version)
			watch_.add_locked(node);
		if (!out.keep) {
			node.kernel_version = 0;
			node.unsettled++;
			node.drops_by_open = true;
			out.file->unsettled = true;
		}
	}
	if (r.inline_data.empty() && r.attr.st.st_size < static_cast<off_t>(COOP_FOREST_UNIT))
		return;
	auto c = content_of(*out.file); // peers may want pages of a large file from now on
	if (!r.inline_data.empty() && c->key.version == r.attr.version)
		reader_.put_inline(*c, r.inline_data);
}

// While the turn is held, no local change begins.
int files::take_turn(inode &node, change_order::hold &out)
{
	return node.order.take(inodes_.keep(node), storage_.patience(), out);
}

// The same for a caller that is about to send a change.
int files::begin_change(inode &node, change_order::hold &out)
{
	change_order::hold turn;
	if (int err = take_turn(node, turn))
		return err;
	{
		std::lock_guard guard(node.lock);
		node.changing = true;
	}
	out = change_order::hold(&node.order, [turn, &node](change_order *) {
		std::lock_guard guard(
			node.lock); // the turn keeps the inode alive, and ends after this
		node.changing = false;
	});
	return 0;
}

// Handles the reply to a change whose caller has gone. It may come while open files are being
// destroyed, but not after the inode table. replaced: the bytes that the change affects.
storage::late_reply files::inherit(inode &node, change_order::hold turn, range replaced)
{
	return [&t = inodes_, asked = inodes_.now(), node = node.shared_from_this(),
		turn = std::move(turn), replaced](int err, const write_result &r) {
		if (err || !S_ISREG(r.attr.st.st_mode))
			return;
		node->changes.acknowledged(r.verifier, replaced.offset, replaced.length);
		{
			std::lock_guard guard(node->lock);
			node->changing = false; // the reply has come
		}
		t.learn(*node, asked, r.attr, nullptr);
		t.misplaced(
			*node); // we do not know which pages the kernel kept after the failed write
	};
}

// If we or the kernel have the first pages, the open reply need not carry them.
bool files::held(inode &node)
{
	content_key key;
	{
		std::lock_guard guard(node.lock);
		key = {node.fid, node.version};
	}
	if (!key.version)
		return false;
	const block_ref start = store_.find(key, 0, false);
	return (start && start->valid() & 1) || store_.in_kernel().noted(key, 0) & 1;
}

int files::open(const caller &who, inode &node, int flags, open_answer &out, const seen &by_kernel)
{
	const bool empties = flags & O_TRUNC;
	const bool proved = by_kernel.can_look_again && !empties;
	if (proved && inodes_.in_doubt(node))
		return -ESTALE;
	const bool had_set_id = empties && inodes_.has_set_id(node);
	change_order::hold turn;
	if (int err = empties ? begin_change(node, turn) : 0)
		return err;
	auto wanted = (flags & O_ACCMODE) == O_WRONLY || empties || held(node) ? 0 : inline_bytes;
	const membership::opening opening(membership_, node.fid);
	ticket asked = inodes_.now();
	open_result r;
	int err = storage_.open(
		who, node.fh,
		flags & (O_ACCMODE | O_TRUNC | O_APPEND | storage::open_exec | storage::open_named),
		wanted, r, empties ? inherit(node, turn, {0, unstable::to_the_end}) : nullptr);
	if (err)
		return err;
	bool judged = true;
	ticket emptied = 0;
	if (empties)
		emptied = inodes_.emptied(node, r.attr);
	else
		judged = inodes_.learn(node, asked, r.attr, &r.openers);
	if (proved && inodes_.in_doubt(node)) {
		inodes_.not_opened(node);
		if (write_result end; (flags & O_ACCMODE) == O_RDONLY)
			storage_.close_reader(node.fh, r.open_id);
		else
			(void)storage_.close(node.fh, r.open_id, end);
		return -ESTALE;
	}
	if (by_kernel.bumps)
		inodes_.prove(node, *by_kernel.bumps, by_kernel.version);
	out.file = std::make_unique<open_file>(node, who, r.open_id, flags);
	if (out.file->writes())
		inodes_.writer_came(node);
	if (empties) {
		out.file->emptied = emptied;
		node.changes.acknowledged(r.verifier, 0, unstable::to_the_end);
	}
	admit(node, who, r, judged, out);
	if (!empties)
		inodes_.let_truncations_end(node);
	else // the kernel knows what O_TRUNC does, except to the mode
		out.attr_stale = had_set_id && !inodes_.has_set_id(node);
	return 0;
}

int files::create(const caller &who, const handle &dir, std::string_view name, int flags,
		  const new_mode &mode, entry &made, inode *&ino, open_answer &out)
{
	ticket asked = inodes_.now();
	open_result r;
	const int wanted = flags & (O_ACCMODE | O_TRUNC | O_APPEND | O_EXCL);
	const int err = name.empty() ? storage_.tmpfile(who, dir, wanted, mode, made, r)
				     : storage_.create(who, dir, name, wanted, mode, made, r);
	if (err)
		return err;
	ino = inodes_.ref(made);
	const bool judged = inodes_.learn(*ino, asked, r.attr, &r.openers);
	(void)inodes_.told(*ino, asked, r.attr, true);
	out.file = std::make_unique<open_file>(*ino, who, r.open_id, flags);
	if (out.file->writes())
		inodes_.writer_came(*ino);
	ino->changes.acknowledged(r.verifier);
	admit(*ino, who, r, judged, out);
	return 0;
}

// out: f, or its other half. The caller holds the turn of the file's changes, so this reply tells
// nothing that the change's own will not.
int files::open_as(open_file &f, bool appends, open_file *&out)
{
	out = &f;
	if (f.appends() == appends)
		return 0;
	if (!f.other) {
		const int flags = (f.flags & O_ACCMODE) | (appends ? O_APPEND : 0);
		open_result r;
		if (int err = storage_.open(f.opener, f.node->fh, flags, 0, r))
			return err;
		if (write_result end; !storage_.goes_with(r.open_id, f.open_id)) {
			(void)storage_.close(f.node->fh, r.open_id, end);
			return -EBADF;
		}
		f.other = std::make_unique<open_file>(*f.node, f.opener, r.open_id, flags);
	}
	out = f.other.get();
	return 0;
}

// The file's contents at the newest known version, as this opener may read them. breaks: they are
// for the kernel, which may cache them from now on (see inode::breaks).
std::shared_ptr<const content> files::content_of(open_file &f, std::uint64_t *breaks)
{
	std::scoped_lock guard(f.lock, f.node->lock);
	if (breaks) {
		*breaks = f.node->breaks;
		kernel_gets(*f.node, f.node->version);
		watch_.add_locked(*f.node);
	}
	const inode &n = *f.node;
	if (f.current && f.current->key.version == n.version)
		return f.current;
	f.current = std::make_shared<const content>(
		content{{n.fid, n.version}, n.size, n.fh, f.open_id, n.openers});
	if (n.version && n.size >= COOP_FOREST_UNIT && (f.flags & O_ACCMODE) != O_WRONLY)
		membership_.opened(f.current);
	return f.current;
}

// First use of a file after its open: the kernel has acted on the open's answer.
void files::settle(open_file &f)
{
	if (f.emptied)
		if (const ticket since = f.emptied.exchange(0))
			inodes_.truncated(*f.node, since);
	if (!f.unsettled.exchange(false))
		return;
	std::lock_guard guard(f.node->lock);
	f.node->unsettled--;
}

// Asks storage for the version while no change of ours is under way. turn: taken unless held.
int files::revalidate(const caller &who, inode &node, const std::vector<std::uint32_t> *openers,
		      change_order::hold &turn)
{
	if (int err = turn ? 0 : take_turn(node, turn))
		return err;
	ticket asked = inodes_.now();
	attributes attr;
	int err = storage_.getattr(who, node.fh, attr);
	if (!err)
		inodes_.learn(node, asked, attr, openers);
	return err;
}

// Call with the inode's lock held.
void files::kernel_gets(inode &node, std::uint64_t version)
{
	if (!node.kernel_version)
		node.kernel_version = version;
	else if (node.kernel_version != version)
		node.kernel_version = inode::mixed;
}

int files::read_direct(open_file &f, std::uint64_t breaks, std::uint64_t offset,
		       std::uint32_t length, read_answer &out)
{
	out.pieces.clear();
	out.direct = std::make_shared_for_overwrite<std::byte[]>(length);
	// Shared: set_value() may still be returning when the result is already here, and a reader
	// that gives up leaves the memory to storage's thread.
	auto promise = std::make_shared<std::promise<storage::read_result>>();
	auto answer = promise->get_future();
	storage_.read(f.node->fh, f.open_id, offset, {iovec{out.direct.get(), length}}, 0,
		      [promise, memory = out.direct](const storage::read_result &r) {
			      promise->set_value(r);
		      });
	while (answer.wait_for(asker::look_again) != std::future_status::ready)
		if (asker::has_gone())
			return -EINTR;
	auto r = answer.get();
	out.direct_length = r.err ? 0 : static_cast<std::size_t>(r.bytes);
	std::lock_guard guard(f.node->lock);
	if (f.node->breaks != breaks && breaks >= f.node->truncated_before)
		kernel_gets(*f.node, inode::mixed);
	return r.err;
}

int files::read(open_file &f, std::uint64_t offset, std::uint32_t length, read_answer &out)
{
	settle(f);
	if (const int err = storage_.vouch(f.node->fh, f.open_id))
		return err;
	change_order::hold turn;
	for (bool again = false;; again = true) {
		std::uint64_t end, breaks;
		out = {};
		{
			const std::lock_guard guard(f.node->lock);
			end = std::max(f.node->size, f.node->told_end);
			breaks = f.node->breaks;
		}
		if (const int err = read_newest(f, offset, length, out, turn))
			return err;
		out.length = out.direct_length;
		for (const piece &p : out.pieces)
			out.length += p.length;
		out.falls_short = out.length < length && offset + out.length < end;
		if (!out.falls_short || again)
			return 0;
		// It may have grown again, and a fault behind its end is an error to a program.
		if (const int err = revalidate(f.opener, *f.node, nullptr, turn))
			return err;
		const std::lock_guard guard(f.node->lock);
		if (f.node->breaks == breaks)
			return 0;
	}
}

// turn: held from the first -ESTALE on.
int files::read_newest(open_file &f, std::uint64_t offset, std::uint32_t length, read_answer &out,
		       change_order::hold &turn)
{
	std::uint64_t breaks = 0;
	for (int i = 0; i < max_versions; i++) {
		auto c = content_of(f, &breaks);
		if (!c->key.version)
			break;
		out.pieces.clear();
		int err = reader_.read(*c, f.stream, offset, length, out.pieces);
		if (err == -ESTALE) {
			err = revalidate(f.opener, *f.node, nullptr, turn);
			if (err)
				return err;
			continue;
		}
		if (err == -ENOMEM) // every block is pinned, but storage can still be read
			break;
		if (err)
			return err;
		out.company = membership_.place(c->key, 0).member;
		std::lock_guard guard(f.node->lock);
		if (f.node->breaks != breaks && breaks >= f.node->truncated_before)
			kernel_gets(*f.node, c->key.version);
		return 0;
	}
	return read_direct(f, turn ? inode::mixed : breaks, offset, length, out);
}

void files::given(read_answer &&a)
{
	const std::uint64_t page_bytes = std::uint64_t{1} << store_.page_shift();
	for (piece &p : a.pieces) {
		const std::uint64_t at = p.arena_offset - p.pin->arena_offset(0);
		const std::uint64_t n = (p.length + page_bytes - 1) / page_bytes;
		if (at % page_bytes == 0)
			store_.given(std::move(p.pin),
				     coop_mask(static_cast<std::uint32_t>(n)) << at / page_bytes,
				     a.company);
	}
}

int files::write(open_file &f, bool appends, std::uint64_t offset, std::span<const iovec> data,
		 std::size_t length, std::optional<range> &drop)
{
	settle(f);
	drop.reset();
	inode &node = *f.node;
	open_file *as = nullptr;
	change_order::hold turn;
	write_result r;
	// Before taking the turn: the committer may need it to make room.
	if (int err = appends ? 0 : kept_->wait_for_room(storage_.patience()))
		return err;
	if (int err = begin_change(node, turn))
		return err;
	if (int err = open_as(f, appends, as))
		return err;
	const std::uint64_t era = appends ? 0 : storage_.lock_era(node.fh);
	// For O_DSYNC the kernel asks for an fsync after each write. Without commits at close that
	// fsync always commits.
	const bool commits = f.flags & O_DSYNC && commit_on_close_ && !appends && !f.uncommitted &&
			     !node.changes.keeps();
	const unstable::cover before = commits ? node.changes.covered() : unstable::cover{};
	if (int err =
		    storage_.write(node.fh, as->open_id, offset, data, r,
				   inherit(node, turn, {offset, appends ? 0 : length}), commits)) {
		if (half_done(err)) {
			node.changes.spoiled(offset, appends ? unstable::to_the_end : length);
			// Bytes of the old version may not be the file's any more: the kernel reads
			// the failed write's pages again.
			look_again(f, turn, err);
		}
		return err;
	}
	// Told to 'inodes_' once the change is recorded.
	const auto changed = [&] {
		if (!f.past_cache())
			inodes_.changed(node, r, offset, length);
		else if (inodes_.changed_past_cache(node, r, offset, length))
			drop = {offset, length};
	};
	// Set 'uncommitted' after the change is recorded: a concurrent close looks at both.
	if (appends) {
		// The daemon chose the offset; the kernel had assumed one.
		auto end = static_cast<std::uint64_t>(r.attr.st.st_size);
		auto assumed = offset;
		offset = end >= length ? end - length : 0;
		// Cannot be written again: it would go to another offset.
		node.changes.acknowledged(r.verifier, offset, length);
		f.uncommitted = true;
		changed();
		if (assumed == offset)
			return 0;
		// The kernel also gets the end of the file wrong.
		if (f.past_cache())
			drop = range{};
		else
			inodes_.misplaced(node);
		return 0;
	}
	if (commits && r.stable && node.changes.wrote_stable(before, r.verifier)) {
		changed();
		return 0;
	}
	if (node.changes.wrote(*kept_, r.verifier, as->open_id, era, offset, data, length))
		committer_.began(node);
	f.uncommitted = true;
	if (kept_->crowded())
		committer_.hurry();
	changed();
	return 0;
}

void files::release(std::unique_ptr<open_file> f)
{
	settle(*f);
	{
		std::lock_guard guard(f->node->lock);
		f->node->opens--;
	}
	membership_.closed(f->node->fid, f->open_id);
	if (f->current && !membership_.place(f->current->key, 0).member)
		store_.closed(f->current->key);
	if (!f->writes()) {
		if (storage_.lock_era(f->node->fh))
			let_go(*f->node);
		return storage_.close_reader(f->node->fh, f->open_id);
	}
	leave(*f);
	if (f->other) {
		leave(*f->other);
		close_writer(*f->other);
	}
	close_writer(*f);
	inodes_.writer_gone(*f->node);
}

void files::close_writer(open_file &f)
{
	ticket asked = inodes_.now();
	write_result r;
	if (!storage_.close(f.node->fh, f.open_id, r))
		inodes_.learn(*f.node, asked, r.attr, nullptr);
}

int files::lock(open_file &f, const coop_st_lock &what, bool wait, storage::lock_granted granted,
		std::uint64_t &cookie)
{
	settle(f);
	f.node->locked = true;
	let_go_of(f, what); // the daemon may release the owner's old lock in this range
	return storage_.lock(f.node->fh, f.open_id, what, wait, std::move(granted), cookie);
}

// flock(2) has released its older lock before it waits.
std::optional<coop_st_lock> files::undo_of(const open_file &f, const coop_st_lock &what)
{
	coop_st_lock any = what;
	any.type = COOP_ST_LOCK_READ;
	if (what.kind != COOP_ST_LOCK_FLOCK && storage_.holds_lock(f.node->fh, any))
		return {};
	return what;
}

// Takes the turn of the file's changes, so that a version that is not ours is foreign.
int files::refresh(open_file &f, const std::optional<coop_st_lock> &undo, bool &drop)
{
	change_order::hold turn;
	if (int err = revalidate(f.opener, *f.node, nullptr, turn)) {
		turn.reset(); // unlock() takes it
		if (undo)
			(void)unlock(f, *undo);
		return err;
	}
	drop = inodes_.must_drop(*f.node);
	return 0;
}

void files::dropped(open_file &f)
{
	inodes_.dropped(*f.node);
}

void files::let_go_of(open_file &f, const coop_st_lock &what)
{
	coop_st_lock any = what;
	any.type = COOP_ST_LOCK_READ;
	if (storage_.holds_lock(f.node->fh, any))
		let_go(*f.node);
}

int files::unlock(open_file &f, const coop_st_lock &what)
{
	let_go_of(f, what);
	return storage_.unlock(f.node->fh, what);
}

bool files::holds_lock(const open_file &f, const coop_st_lock &what)
{
	return storage_.holds_lock(f.node->fh, what);
}

bool files::is_removed(const caller &who, inode &node)
{
	attributes last;
	entry up;
	const handle &root = storage_.root().fh;
	if (inodes_.last_known(node, last) && !last.st.st_nlink)
		return true;
	if (node.fh == root || !coop_st_stale_proves(storage_.lookup(who, root, "..", up)))
		return false;
	inodes_.removed(node);
	return true;
}

int files::getattr(const caller &who, inode &node, attributes &out)
{
	for (int tries = 1;; tries++) {
		const ticket asked = inodes_.now();
		if (const int err = storage_.getattr(who, node.fh, out)) {
			// A descriptor or a working directory leads to it even if it was removed.
			const bool known = err == -ESTALE && inodes_.last_known(node, out);
			if (!known || !is_removed(who, node))
				return err;
			out.st.st_nlink = 0;
			return 0;
		}
		inodes_.learn(node, asked, out, nullptr);
		// Always true unless others open the file all the time, while it changes.
		if (inodes_.told(node, asked, out, tries == max_versions))
			return 0;
	}
}

void files::show(inode &node, ticket asked, attributes &attr)
{
	inodes_.learn(node, asked, attr, nullptr);
	if (inodes_.told(node, asked, attr, false))
		return;
	attributes newer;
	// Root may ask for what the caller has just been shown. An error: the file has gone.
	if (getattr({0, 0, {}}, node, newer) == 0)
		attr = newer;
	else
		(void)inodes_.told(node, asked, attr, true);
}

int files::setattr(const caller &who, inode &node, const storage::setattr_request &q,
		   attributes &out)
{
	change_order::hold turn;
	write_result r;
	if (int err = begin_change(node, turn))
		return err;
	const ticket asked = inodes_.now();
	const bool cuts = q.valid & storage::set_size;
	const range cut{q.size, cuts ? unstable::to_the_end : 0};
	if (int err = storage_.setattr(who, node.fh, q, r, inherit(node, turn, cut)))
		return err;
	out = r.attr;
	inodes_.beside(node, out);
	if (!S_ISREG(out.st.st_mode))
		return 0;
	node.changes.acknowledged(r.verifier, cut.offset, cut.length);
	// A truncation affects the bytes between the old and the new end.
	std::uint64_t before;
	{
		std::lock_guard guard(node.lock);
		before = node.size;
	}
	auto after = static_cast<std::uint64_t>(out.st.st_size);
	inodes_.changed(node, r, std::min(before, after),
			std::max(before, after) - std::min(before, after));
	(void)inodes_.told(node, asked, out, true); // the kernel takes them in any case
	return 0;
}

template <class act> int files::change_beside(inode &node, act ask)
{
	change_order::hold turn;
	write_result r;
	if (int err = take_turn(node, turn))
		return err;
	if (int err = ask(r, inherit(node, turn)))
		return err;
	inodes_.beside(node, r.attr);
	if (!S_ISREG(r.attr.st.st_mode))
		return 0;
	node.changes.acknowledged(r.verifier);
	inodes_.changed(node, r, 0, 0);
	return 0;
}

int files::setxattr(const caller &who, inode &node, std::string_view name, std::string_view value,
		    int flags)
{
	return change_beside(node, [&](write_result &r, storage::late_reply late) {
		return storage_.setxattr(who, node.fh, name, value, flags, r, std::move(late));
	});
}

int files::removexattr(const caller &who, inode &node, std::string_view name)
{
	return change_beside(node, [&](write_result &r, storage::late_reply late) {
		return storage_.removexattr(who, node.fh, name, r, std::move(late));
	});
}

} // namespace coop::client
