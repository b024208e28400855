// SPDX-License-Identifier: MIT
// inode.cpp - decides which replies are believed, and what a new version does to pages of the old
// one.
#include "userland/client/inode.hpp"

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

namespace coop::client
{

namespace
{

// The most that we wait for the kernel to act on a reply, or for a read to be answered.
constexpr std::chrono::milliseconds kernel_acts{50};
// The same after a READ fell short.
constexpr std::chrono::seconds shrinking_acts{1};
// What we give a reader to act on a reply that falls short, after which it does not answer us, and
// to come again after a refusal: it may wait for a processor.
constexpr std::chrono::milliseconds reader_acts{50}, reader_returns{200};
// How long a reader may take to come to a page, or to the one page, of a READ that was refused.
constexpr std::chrono::seconds pages_left{10}, page_left{1};
// Opens that wait for the look-up of another, which needs a thread of the FUSE program, too: it has
// 64.
constexpr unsigned waiters_most = 32;
constexpr std::size_t refused_most = 16; // READs of a file

} // namespace

inode_table::inode_table(page_store &store, inode_events events) :
	store_(store),
	events_(std::move(events))
{
}

inode *inode_table::ref(const entry &e)
{
	std::lock_guard guard(lock_);
	auto &slot = by_fid_[e.attr.fid];
	if (!slot) {
		slot = std::make_shared<inode>(e, ids_.claim(e.attr.fid));
		ids_.enter(slot->id, *slot);
	}
	slot->lookups++;
	return slot.get();
}

void inode_table::forget(inode *node, std::uint64_t n)
{
	std::shared_ptr<inode> last; // destroyed after the lock is released
	std::lock_guard guard(lock_);
	node->lookups -= std::min(n, node->lookups);
	if (node->lookups)
		return;
	auto it = by_fid_.find(node->fid);
	if (it == by_fid_.end() || it->second.get() != node)
		return;
	ids_.forget(node->id, {node->fid, node->fh});
	last = std::move(it->second);
	by_fid_.erase(it);
}

std::optional<inode_numbers::file> inode_table::identify(std::uint64_t id) const
{
	std::lock_guard guard(lock_);
	if (const inode *node = ids_.find(id))
		return inode_numbers::file{node->fid, node->fh};
	return ids_.forgotten_file(id);
}

std::shared_ptr<inode> inode_table::find(const coop_fid &fid)
{
	std::lock_guard guard(lock_);
	const auto it = by_fid_.find(fid);
	return it == by_fid_.end() ? nullptr : it->second;
}

void inode_table::lease_over(const coop_fid &fid, std::function<void()> then)
{
	const bool all = !fid.hi && !fid.lo;
	const std::shared_ptr<inode> node = all ? nullptr : find(fid);
	if (events_.lease_over && (all || node))
		events_.lease_over(node.get(), std::move(then));
	else
		then();
}

int inode_table::retrieve(const coop_fid &fid, std::uint64_t offset, std::uint32_t length,
			  std::uint64_t cookie)
{
	const std::shared_ptr<inode> node = find(fid);
	return node && events_.retrieve ? events_.retrieve(*node, offset, length, cookie) : -ENOENT;
}

std::shared_ptr<inode> inode_table::keep(inode &node)
{
	std::lock_guard guard(lock_);
	node.lookups++;
	return {&node, [this, owner = node.shared_from_this()](inode *n) { forget(n, 1); }};
}

inode_table::figures inode_table::count() const
{
	std::lock_guard guard(lock_);
	return {by_fid_.size(), ids_.forgotten_files()};
}

bool inode_table::replace(inode &node, const attributes &attr)
{
	if (node.version && node.version != attr.version) {
		store_.drop({node.fid, node.version});
		if (node.size != static_cast<std::uint64_t>(attr.st.st_size))
			node.unproved = true;
	}
	node.version = attr.version;
	node.size = static_cast<std::uint64_t>(attr.st.st_size);
	node.openers.clear();
	node.breaks++;
	if (node.kernel_pages() != inode::pages::foreign)
		return false;
	node.kernel_version = inode::mixed;
	node.overdue = node.writers > 0;
	return !node.overdue;
}

void inode_table::writer_came(inode &node)
{
	std::lock_guard guard(node.lock);
	node.writers++;
	node.bumps++;
}

void inode_table::writer_gone(inode &node)
{
	bool drops = false;
	{
		std::lock_guard guard(node.lock);
		if (--node.writers == 0)
			drops = std::exchange(node.overdue, false);
	}
	if (drops)
		stale(node);
}

bool inode_table::must_drop(inode &node)
{
	{
		std::lock_guard guard(node.lock);
		const bool told = node.dropping || (node.unsettled && node.drops_by_open);
		const bool foreign = node.kernel_pages() == inode::pages::foreign;
		if (!foreign && !told)
			return false;
		if (foreign) {
			// A read under way may still bring pages of an older version; it notices
			// that 'breaks' has changed since it began.
			node.kernel_version = 0;
			node.overdue = false;
		}
		node.drops_by_open = false;
		node.dropping++;
	}
	// Also if told: whoever counted the drop may not have announced it yet.
	stale(node);
	return true;
}

void inode_table::dropped(inode &node)
{
	std::lock_guard guard(node.lock);
	node.dropping--;
}

std::vector<std::shared_ptr<inode>> inode_table::locked()
{
	std::vector<std::shared_ptr<inode>> out;
	std::lock_guard guard(lock_);
	for (const auto &[fid, node] : by_fid_)
		if (node->locked)
			out.push_back(node);
	return out;
}

// Called each second while the locks are in doubt. The next call drops what this one cannot: the
// pages that a read under way still brings, which notices that 'breaks' has changed, and those of a
// file with a change under way, because a pwrite() may be on its way too and would be lost.
void inode_table::locks_in_doubt(const std::function<bool(const handle &)> &holds)
{
	for (const auto &node : locked()) {
		if (!holds(node->fh))
			continue;
		{
			std::lock_guard guard(node->lock);
			if (!node->kernel_version || node->changing)
				continue;
			node->kernel_version = inode::mixed;
			node->breaks++;
		}
		if (must_drop(*node))
			events_.pages_dropped([this, node] { dropped(*node); });
	}
}

void inode_table::lock_lost(const handle &fh)
{
	for (const auto &node : locked()) {
		if (node->fh != fh)
			continue;
		node->lost_stores++;
		{
			std::lock_guard guard(node->lock);
			node->kernel_version = 0;
			node->overdue = false;
			node->breaks++;
			node->dropping++;
		}
		stale(*node);
		events_.pages_dropped([this, node] {
			dropped(*node);
			node->lost_stores--;
		});
	}
}

void inode_table::learn_extras(inode &node, ticket asked, const attributes &attr)
{
	std::lock_guard guard(node.lock);
	if (asked <= node.has_asked)
		return;
	node.has_asked = asked;
	node.has = attr.has;
	node.mode = attr.st.st_mode;
	node.has_until = boot_clock::now() + attributes_last;
	if (S_ISREG(attr.st.st_mode))
		return;
	if (!node.last)
		node.last = std::make_unique<struct stat>();
	*node.last = attr.st;
}

bool inode_table::last_known(inode &node, attributes &out)
{
	std::lock_guard guard(node.lock);
	if (!node.last)
		return false;
	out = {};
	out.fid = node.fid;
	out.has = node.has;
	out.st = *node.last;
	return true;
}

void inode_table::removed(inode &node)
{
	std::lock_guard guard(node.lock);
	if (node.last)
		node.last->st_nlink = 0;
}

void inode_table::beside(inode &node, const attributes &attr)
{
	learn_extras(node, now(), attr);
}

bool inode_table::has_set_id(inode &node)
{
	std::lock_guard guard(node.lock);
	return S_ISREG(node.mode) &&
	       (node.mode & S_ISUID || (node.mode & S_ISGID && node.mode & S_IXGRP));
}

bool inode_table::is_mode_after_write(inode &node, mode_t mode)
{
	std::lock_guard guard(node.lock);
	const mode_t gone =
		S_ISUID | ((node.mode & S_IXGRP) ? static_cast<mode_t>(S_ISGID) : mode_t{0});
	return S_ISREG(node.mode) && node.mode & gone && mode == (node.mode & 07777 & ~gone);
}

bool inode_table::without(inode &node, std::uint32_t has)
{
	std::lock_guard guard(node.lock);
	return !(node.has & has) && boot_clock::now() < node.has_until;
}

bool inode_table::learn(inode &node, ticket asked, const attributes &attr,
			const std::vector<std::uint32_t> *openers)
{
	learn_extras(node, asked, attr);
	if (!S_ISREG(attr.st.st_mode))
		return true;
	bool drops = false;
	{
		std::lock_guard guard(node.lock);
		if (asked <= node.believed)
			return asked <= node.judged;
		if (node.changing && attr.version != node.version)
			return false;
		node.believed = node.judged = asked;
		if (attr.version != node.version)
			drops = replace(node, attr);
		if (openers)
			node.openers = *openers;
	}
	// For an open, its own reply tells the kernel what to do with the pages.
	if (drops && !openers)
		stale(node);
	return true;
}

// cached: the kernel wrote the same bytes to its own pages before it sent us the write.
bool inode_table::follow(inode &node, const write_result &r, std::uint64_t offset,
			 std::uint64_t length, bool cached)
{
	node.believed = now();
	if (!node.version || node.version != r.version_before) {
		// In the kernel's page cache our new pages are valid, those around them are not.
		if (!node.kernel_version && cached)
			node.kernel_version = inode::mixed;
		return replace(node, r.attr);
	}
	const auto size = static_cast<std::uint64_t>(r.attr.st.st_size);
	if (r.attr.version != node.version)
		store_.advance({node.fid, node.version}, r.attr.version, offset, length, node.size,
			       size);
	if (node.kernel_version == r.version_before || (!node.kernel_version && cached))
		node.kernel_version = r.attr.version;
	if (node.kernel_attr == r.version_before)
		node.kernel_attr = r.attr.version; // the kernel's own change
	node.version = r.attr.version;
	node.size = size;
	return false;
}

void inode_table::changed(inode &node, const write_result &r, std::uint64_t offset,
			  std::uint64_t length)
{
	bool drops = false;
	beside(node, r.attr);
	{
		std::lock_guard guard(node.lock);
		drops = follow(node, r, offset, length, true);
	}
	if (drops)
		stale(node);
}

bool inode_table::changed_past_cache(inode &node, const write_result &r, std::uint64_t offset,
				     std::uint64_t length)
{
	bool drops = false, has_pages = false;
	beside(node, r.attr);
	{
		std::lock_guard guard(node.lock);
		has_pages = node.kernel_version || node.unsettled;
		drops = follow(node, r, offset, length, false);
	}
	if (drops)
		stale(node);
	return has_pages;
}

void inode_table::misplaced(inode &node)
{
	{
		std::lock_guard guard(node.lock);
		node.kernel_version = inode::mixed;
	}
	stale(node);
}

ticket inode_table::emptied(inode &node, const attributes &attr)
{
	const ticket since = now();
	learn_extras(node, since, attr);
	std::lock_guard guard(node.lock);
	node.believed = now();
	replace(node, attr);
	node.unproved = false;
	node.kernel_version = 0; // no page of before remains, whatever it was
	node.overdue = false;
	node.truncated_before = node.breaks;
	node.truncated_at = std::chrono::steady_clock::now();
	node.truncating++;
	return since;
}

// The kernel ignores attributes of requests from before its truncation, as after a notification.
void inode_table::truncated(inode &node, ticket since)
{
	announced(node, since);
	node.truncating--;
	made_progress();
}

void inode_table::stale(inode &node)
{
	node.dropping_pages++;
	events_.pages_stale(node);
}

std::shared_ptr<inode> inode_table::to_drop(std::uint64_t id, bool even_if_opened)
{
	std::shared_ptr<inode> node;
	{
		std::lock_guard guard(lock_);
		if (inode *found = ids_.find(id))
			node = found->shared_from_this();
	}
	if (!node || even_if_opened)
		return node;
	std::lock_guard guard(node->lock);
	const bool left = node->kernel_pages() == inode::pages::foreign || node->dropping;
	if (!left)
		node->dropping_pages = 0;
	return left ? node : nullptr;
}

// ---- the kernel's attributes -----------------------------------------------------------

bool inode_table::told(inode &node, ticket asked, const attributes &attr, bool always)
{
	if (!S_ISREG(attr.st.st_mode))
		return true;
	std::lock_guard guard(node.lock);
	if (!always && asked < node.opened && attr.version != node.version)
		return false;
	node.attr_told = std::max(node.attr_told, always ? now() : asked);
	const auto end = static_cast<std::uint64_t>(attr.st.st_size);
	const auto at = std::chrono::steady_clock::now();
	if (end >= node.told_end || at - node.told_end_at > attributes_last) {
		node.told_end = end;
		node.told_end_at = at;
	}
	for (inode::refused_read &r : node.refused)
		if (r.answered)
			r.until = std::min(r.until, at + kernel_acts);
	if (!always && asked < node.attr_fence)
		return true;
	if (node.kernel_attr && node.kernel_attr != attr.version)
		node.kernel_attr = inode::mixed;
	else
		node.kernel_attr = attr.version;
	return true;
}

bool inode_table::believes_other(inode &node, std::uint64_t version)
{
	std::lock_guard guard(node.lock);
	return node.kernel_attr && node.kernel_attr != version;
}

void inode_table::announced(inode &node, ticket since)
{
	std::lock_guard guard(node.lock);
	node.attr_fence = std::max(node.attr_fence, since);
	// Otherwise the kernel may have taken those before or after the notification.
	if (node.attr_told < since)
		node.kernel_attr = 0;
}

// What the kernel has by now, or will take of replies on their way, is not older than this version:
// the open that found it came before the notification, and told() refuses what is older.
void inode_table::announced(inode &node, ticket since, std::uint64_t version)
{
	announced(node, since);
	std::lock_guard guard(node.lock);
	if (node.kernel_attr)
		node.kernel_attr = version;
}

ticket inode_table::notifies(inode &node)
{
	std::lock_guard guard(node.lock);
	node.bumps++;
	node.notifying++;
	return now();
}

void inode_table::notified(inode &node)
{
	{
		std::lock_guard guard(node.lock);
		node.notifying--;
	}
	made_progress();
}

// With writers here, the kernel moves the end of the file by itself, when it has our replies.
bool inode_table::in_doubt(inode &node)
{
	std::unique_lock guard(node.lock);
	if (node.unproved && node.looking && waiters_ < waiters_most) {
		const auto until = node.looking_until;
		guard.unlock();
		wait(until, [&] {
			const std::lock_guard again(node.lock);
			return !node.looking;
		});
		guard.lock();
		if (node.looking_until == until)
			node.looking = 0;
	}
	if (!node.unproved || node.writers || node.changing)
		return false;
	node.opened = now();
	return true;
}

void inode_table::not_opened(inode &node)
{
	bool drops;
	{
		std::lock_guard guard(node.lock);
		drops = node.kernel_pages() == inode::pages::foreign && !node.overdue;
	}
	if (drops)
		stale(node);
}

std::optional<std::uint64_t> inode_table::looks_again(inode &node)
{
	std::optional<std::uint64_t> count;
	const auto until = std::chrono::steady_clock::now() + kernel_acts;
	wait(until, [&] {
		std::lock_guard guard(node.lock);
		if (!node.notifying)
			count = node.bumps;
		return count.has_value();
	});
	std::lock_guard guard(node.lock);
	node.looking++;
	node.looking_until = until;
	return count;
}

void inode_table::has_looked(inode &node)
{
	{
		std::lock_guard guard(node.lock);
		if (node.looking)
			node.looking--;
	}
	made_progress();
}

void inode_table::prove(inode &node, std::uint64_t bumps, std::uint64_t version)
{
	std::lock_guard guard(node.lock);
	if (version == node.version && bumps == node.bumps && !node.writers && !node.changing)
		node.unproved = false;
}

// ---- waiting for the kernel ------------------------------------------------------------

template <class condition>
void inode_table::wait(std::chrono::steady_clock::time_point until, condition holds)
{
	if (holds())
		return;
	waiters_++;
	{
		std::unique_lock guard(wait_lock_);
		progress_.wait_until(guard, until, holds);
	}
	waiters_--;
}

void inode_table::wake()
{
	const std::lock_guard guard(wait_lock_);
	progress_.notify_all();
}

void inode_table::let_reads_end(inode &node)
{
	using clock = std::chrono::steady_clock;
	const auto begun = clock::now();
	const auto none = [&] { return !node.reading; };
	wait(begun + kernel_acts, none);
	if (!node.shrinks_until || !shrinks(node))
		return;
	const auto until = begun + shrinking_acts;
	for (auto now = clock::now(); now < until; now = clock::now()) {
		const auto acts = acts_until(node);
		if (node.reading)
			wait(until, none);
		else if (now < acts)
			wait(std::min(acts, until),
			     [&] { return node.reading || acts_until(node) <= clock::now(); });
		else
			return;
	}
}

// Until when readers of which a READ was refused may be about to ask again, or those that got less
// than they asked for have not moved the end of the file.
std::chrono::steady_clock::time_point inode_table::acts_until(inode &node)
{
	const std::lock_guard guard(node.lock);
	auto last = node.short_at + reader_acts;
	for (const inode::refused_read &r : node.refused)
		if (!r.returned)
			last = std::max(last, r.since + reader_returns);
	return last;
}

void inode_table::returns(inode &node, pid_t thread, std::uint64_t offset, std::uint64_t length)
{
	if (!node.shrinks_until)
		return;
	const auto at = std::chrono::steady_clock::now();
	const std::lock_guard guard(node.lock);
	if (node.short_by == thread)
		node.short_at = {};
	for (inode::refused_read &r : node.refused)
		if (!r.returned && offset < r.to && r.from < offset + length) {
			r.since = at;
			r.returned = offset + length >= r.to;
		}
}

void inode_table::has_acted(inode &node, pid_t thread)
{
	if (!node.shrinks_until || !thread)
		return;
	{
		const std::lock_guard guard(node.lock);
		if (node.short_by == thread)
			node.short_at = {};
		for (inode::refused_read &r : node.refused)
			r.returned = r.returned || r.by == thread;
	}
	made_progress();
}

bool inode_table::shrinks(const inode &node)
{
	return std::chrono::steady_clock::now().time_since_epoch().count() < node.shrinks_until;
}

bool inode_table::refuses_short(inode &node, std::uint64_t offset, std::uint64_t length,
				std::uint64_t got, std::uint64_t page, pid_t thread)
{
	const auto at = std::chrono::steady_clock::now();
	node.shrinks_until = (at + attributes_last).time_since_epoch().count();
	const std::lock_guard guard(node.lock);
	auto &all = node.refused;
	std::erase_if(all, [&](const auto &r) { return r.until <= at; });
	// A page that has bytes may be asked for without readahead.
	bool again = length <= page && got;
	for (inode::refused_read &r : all) {
		const bool repeated = !r.answered && offset == r.from && offset + length == r.to;
		if ((length > page && !repeated) || offset < r.from || offset >= r.to)
			continue;
		again = r.answered = r.returned = true;
		// This moves the kernel's end of the file. Readers of what is behind it, or before,
		// may be on their way, until it moves again (told()); a single page has no others.
		if (r.to - r.from <= page)
			r.until = at;
	}
	if (again) {
		node.bumps++; // the kernel ignores attributes that it has asked for
		// Of several, none is known to be the last.
		node.short_by =
			at < node.short_at + reader_acts && node.short_by != thread ? 0 : thread;
		node.short_at = at;
		return false;
	}
	if (all.size() >= refused_most)
		all.erase(all.begin());
	all.push_back({offset, offset + length, at, at + (length > page ? pages_left : page_left),
		       thread, false, false});
	return true;
}

void inode_table::let_truncations_end(inode &node)
{
	if (!node.truncating)
		return;
	std::chrono::steady_clock::time_point last;
	{
		std::lock_guard guard(node.lock);
		last = node.truncated_at;
	}
	wait(last + kernel_acts, [&] { return !node.truncating; });
}

} // namespace coop::client
