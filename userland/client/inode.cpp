// SPDX-License-Identifier: MIT
// inode.cpp - decides which replies are believed, and what a new version does to pages of the old
// one.
#include "userland/client/inode.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace coop::client
{

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

} // namespace coop::client
