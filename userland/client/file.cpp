// SPDX-License-Identifier: MIT
// file.cpp - one open file's life: open, read and write, commit, release.
#include "userland/client/file.hpp"

#include <fcntl.h>
#include <future>

#include "userland/client/asker.hpp"

namespace coop::client
{

namespace
{

// Versions that a read follows before it takes the bytes without one.
constexpr int max_versions = 4;
// More than that is not worth carrying in the reply to an open.
constexpr std::uint32_t inline_bytes = 64u << 10;

} // namespace

files::files(storage &s, page_store &p, reader &r, inode_table &t) :
	storage_(s),
	store_(p),
	reader_(r),
	inodes_(t)
{
}

// Decides what the kernel keeps, and makes the open file.
void files::admit(inode &node, open_result &r, open_answer &out)
{
	{
		std::lock_guard guard(node.lock);
		out.keep = node.version && node.kernel_version == node.version && !node.unsettled;
		out.attr_stale = node.kernel_attr != r.attr.version;
		if (!out.keep) {
			node.kernel_version = 0;
			node.unsettled++;
			out.file->unsettled = true;
		}
	}
	if (r.inline_data.empty())
		return;
	auto c = content_of(*out.file);
	if (c->key.version == r.attr.version)
		reader_.put_inline(*c, r.inline_data);
}

int files::take_turn(inode &node, change_order::hold &out)
{
	return node.order.take(inodes_.keep(node), storage_.patience(), out);
}

// For the reply to a change that nobody waits for any more. It comes while files may be on their
// way out, but not the table.
storage::late_reply files::inherit(inode &node, change_order::hold turn)
{
	return [&t = inodes_, asked = inodes_.now(), node = node.shared_from_this(),
		turn = std::move(turn)](int err, const write_result &r) {
		if (err || !S_ISREG(r.attr.st.st_mode))
			return;
		node->changes.acknowledged(r.verifier);
		t.learn(*node, asked, r.attr, nullptr, false);
		t.misplaced(*node); // what the kernel made of a failed write is its own affair
	};
}

// What is here already need not come with the open reply.
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
	return start && start->valid() & 1;
}

int files::open(const caller &who, inode &node, int flags, open_answer &out)
{
	bool empties = flags & O_TRUNC;
	change_order::hold turn;
	if (int err = empties ? take_turn(node, turn) : 0)
		return err;
	auto wanted = (flags & O_ACCMODE) == O_WRONLY || empties || held(node) ? 0 : inline_bytes;
	ticket asked = inodes_.now();
	open_result r;
	int err = storage_.open(who, node.fh,
				flags & (O_ACCMODE | O_TRUNC | O_APPEND | storage::open_exec),
				wanted, r, empties ? inherit(node, turn) : nullptr);
	if (err)
		return err;
	if (empties)
		inodes_.emptied(node, r.attr);
	else
		inodes_.learn(node, asked, r.attr, &r.openers, false);
	out.file = std::make_unique<open_file>(node, who, r.open_id, flags);
	if (empties)
		node.changes.acknowledged(r.verifier);
	admit(node, r, out);
	return 0;
}

int files::create(const caller &who, const handle &dir, std::string_view name, int flags,
		  const new_mode &mode, entry &made, inode *&ino, open_answer &out)
{
	ticket asked = inodes_.now();
	open_result r;
	int err = storage_.create(who, dir, name, flags & (O_ACCMODE | O_TRUNC | O_APPEND | O_EXCL),
				  mode, made, r);
	if (err)
		return err;
	ino = inodes_.ref(made);
	inodes_.learn(*ino, asked, r.attr, &r.openers, true);
	out.file = std::make_unique<open_file>(*ino, who, r.open_id, flags);
	ino->changes.acknowledged(r.verifier);
	admit(*ino, r, out);
	return 0;
}

// The file's contents as of the newest version known, as this opener may read them.
std::shared_ptr<const content> files::content_of(open_file &f)
{
	std::scoped_lock guard(f.lock, f.node->lock);
	const inode &n = *f.node;
	if (!f.current || f.current->key.version != n.version)
		f.current = std::make_shared<const content>(
			content{{n.fid, n.version}, n.size, n.fh, f.open_id, n.openers});
	return f.current;
}

// The first use of a file after its open: the kernel has done what the open told it.
void files::settle(open_file &f)
{
	if (!f.unsettled.exchange(false))
		return;
	std::lock_guard guard(f.node->lock);
	f.node->unsettled--;
}

int files::revalidate(open_file &f)
{
	ticket asked = inodes_.now();
	attributes attr;
	int err = storage_.getattr(f.opener, f.node->fh, attr);
	if (!err)
		inodes_.learn(*f.node, asked, attr, nullptr, false);
	return err;
}

int files::read_direct(open_file &f, std::uint64_t offset, std::uint32_t length, read_answer &out)
{
	out.pieces.clear();
	out.direct = std::make_shared_for_overwrite<std::byte[]>(length);
	// Shared: set_value() may still be returning when the result is already here, and who
	// gives up leaves the memory to those who fill it.
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
	f.node->kernel_version = inode::mixed; // bytes of no version
	return r.err;
}

int files::read(open_file &f, std::uint64_t offset, std::uint32_t length, read_answer &out)
{
	settle(f);
	for (int i = 0; i < max_versions; i++) {
		auto c = content_of(f);
		if (!c->key.version)
			break;
		out.pieces.clear();
		int err = reader_.read(*c, f.stream, offset, length, out.pieces);
		if (err == -ESTALE) {
			err = revalidate(f);
			if (err)
				return err;
			continue;
		}
		if (err == -ENOMEM) // every block is pinned, but storage still has the bytes
			break;
		if (err)
			return err;
		std::lock_guard guard(f.node->lock);
		auto &has = f.node->kernel_version;
		if (!has)
			has = c->key.version;
		else if (has != c->key.version)
			has = inode::mixed;
		return 0;
	}
	return read_direct(f, offset, length, out);
}

int files::write(open_file &f, std::uint64_t offset, std::span<const iovec> data,
		 std::size_t length)
{
	settle(f);
	inode &node = *f.node;
	change_order::hold turn;
	write_result r;
	if (int err = take_turn(node, turn))
		return err;
	if (int err = storage_.write(node.fh, f.open_id, offset, data, r, inherit(node, turn)))
		return err;
	f.uncommitted = true;
	node.changes.acknowledged(r.verifier);
	if (f.flags & O_APPEND) {
		// The daemon chose the place; the kernel had assumed one.
		auto end = static_cast<std::uint64_t>(r.attr.st.st_size);
		auto assumed = offset;
		offset = end >= length ? end - length : 0;
		inodes_.changed(node, r, offset, length);
		if (assumed != offset)
			inodes_.misplaced(node);
		return 0;
	}
	inodes_.changed(node, r, offset, length);
	return 0;
}

int files::commit(open_file &f)
{
	settle(f);
	unstable &changes = f.node->changes;
	f.uncommitted = false; // before looking: what is written from here on is for another call
	const unstable::cover covered = changes.covered();
	if (covered.pending) {
		ticket asked = inodes_.now();
		write_result r;
		if (int err = storage_.commit(f.node->fh, f.open_id, r)) {
			f.uncommitted = true; // the next fsync or close tries, and tells, again
			return err;
		}
		changes.committed(covered, r.verifier);
		inodes_.learn(*f.node, asked, r.attr, nullptr, false);
	}
	std::lock_guard guard(f.lock);
	return changes.lost_since(f.losses) ? -EIO : 0;
}

int files::flush(open_file &f)
{
	if (f.uncommitted.exchange(false))
		return commit(f);
	settle(f);
	return 0;
}

void files::release(std::unique_ptr<open_file> f)
{
	settle(*f);
	if ((f->flags & O_ACCMODE) == O_RDONLY)
		return storage_.close_reader(f->node->fh, f->open_id);
	ticket asked = inodes_.now();
	write_result r;
	int err = storage_.close(f->node->fh, f->open_id, r);
	if (!err)
		inodes_.learn(*f->node, asked, r.attr, nullptr, false);
}

int files::lock(open_file &f, const coop_st_lock &what, bool wait, storage::lock_granted granted,
		std::uint64_t &cookie)
{
	return storage_.lock(f.node->fh, f.open_id, what, wait, std::move(granted), cookie);
}

// A reply that a local change has overtaken is not believed, and may have been the one that knew
// of somebody else's: so ask until one is.
int files::refresh(open_file &f)
{
	constexpr int tries = 64;
	for (int i = 0; i < tries; i++) {
		ticket asked = inodes_.now();
		attributes attr;
		if (int err = storage_.getattr(f.opener, f.node->fh, attr))
			return err;
		inodes_.learn(*f.node, asked, attr, nullptr, false);
		std::lock_guard guard(f.node->lock);
		if (f.node->believed <= asked)
			return 0;
	}
	inodes_.misplaced(*f.node); // written all the time: nothing that the kernel has is sure
	return 0;
}

int files::unlock(open_file &f, const coop_st_lock &what)
{
	return storage_.unlock(f.node->fh, f.open_id, what);
}

bool files::holds_lock(const open_file &f, const coop_st_lock &what)
{
	return storage_.holds_lock(f.node->fh, what);
}

int files::getattr(const caller &who, inode &node, attributes &out)
{
	ticket asked = inodes_.now();
	int err = storage_.getattr(who, node.fh, out);
	if (!err)
		inodes_.learn(node, asked, out, nullptr, true);
	return err;
}

int files::setattr(const caller &who, inode &node, const storage::setattr_request &q,
		   attributes &out)
{
	change_order::hold turn;
	write_result r;
	if (int err = take_turn(node, turn))
		return err;
	if (int err = storage_.setattr(who, node.fh, q, r, inherit(node, turn)))
		return err;
	out = r.attr;
	if (!S_ISREG(out.st.st_mode))
		return 0;
	node.changes.acknowledged(r.verifier);
	// What a truncation touches: from the end that was to the end that is, or the reverse.
	std::uint64_t before;
	{
		std::lock_guard guard(node.lock);
		before = node.size;
	}
	auto after = static_cast<std::uint64_t>(out.st.st_size);
	inodes_.changed(node, r, std::min(before, after),
			std::max(before, after) - std::min(before, after));
	std::lock_guard guard(node.lock);
	node.kernel_attr = out.version;
	return 0;
}

} // namespace coop::client
