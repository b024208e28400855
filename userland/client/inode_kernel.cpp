// SPDX-License-Identifier: MIT
// inode_kernel.cpp - what the kernel believes about a file, and the waits for it to act on our
// replies. See inode.hpp, "The kernel's attributes" and "The kernel's end of the file".
#include "userland/client/inode.hpp"

#include <algorithm>
#include <thread>
#include <utility>

namespace coop::client
{

namespace
{

// The most that we wait for the kernel to act on a reply, or for a read to be answered.
constexpr std::chrono::milliseconds kernel_acts{50};
// The same after a READ fell short.
constexpr std::chrono::seconds shrinking_acts{2};
// What we give a reader to act on a reply that falls short, after which it does not answer us, and
// to come again after a refusal: it may wait for a processor.
constexpr std::chrono::milliseconds reader_acts{200}, reader_returns{1000};
// How long a reader may take to come to a page, or to the one page, of a READ that was refused.
constexpr std::chrono::seconds pages_left{10}, page_left{1};
// Opens that wait for the look-up of another, which needs a thread of the FUSE program, too: it has
// 64.
constexpr unsigned waiters_most = 32;
constexpr std::size_t refused_most = 16; // READs of a file

} // namespace

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
	const auto until = std::chrono::steady_clock::now() + shrinking_acts;
	for (;;) {
		{
			const std::lock_guard guard(node.lock);
			node.notifying++;
		}
		// The other order would let a READ be refused in between.
		if (may_act(node, until))
			break;
		notified(node);
		let_reads_end(node);
	}
	const std::lock_guard guard(node.lock);
	node.bumps++;
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

// Whether no reader is in need of attributes that stay as they are, or has been waited for until
// then.
bool inode_table::may_act(inode &node, std::chrono::steady_clock::time_point until)
{
	const auto now = std::chrono::steady_clock::now();
	return !node.shrinks_until || !shrinks(node) || now >= until ||
	       (!node.reading && acts_until(node) <= now);
}

void inode_table::returns(inode &node, pid_t thread, std::uint64_t offset, std::uint64_t length)
{
	if (!node.shrinks_until)
		return;
	const auto at = std::chrono::steady_clock::now();
	const std::lock_guard guard(node.lock);
	if (node.short_by == thread)
		node.short_at = {};
	for (inode::refused_read &r : node.refused) {
		if (offset >= r.to || r.from >= offset + length)
			continue;
		r.repeated = std::exchange(r.alone, false) && r.is(offset, length);
		if (r.returned)
			continue;
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
			if (r.by == thread) {
				r.returned = true;
				r.alone = false;
			}
	}
	made_progress();
}

inode_table::telling::telling(inode_table &t, inode &n) : table_(&t), node_(n.shared_from_this())
{
	const auto until = std::chrono::steady_clock::now() + shrinking_acts;
	for (;;) {
		// The other order would let a READ be refused in between.
		n.telling++;
		if (may_act(n, until))
			return;
		n.telling--;
		t.made_progress();
		t.let_reads_end(n);
	}
}

inode_table::telling::~telling()
{
	if (node_ && !--node_->telling)
		table_->made_progress();
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
	std::unique_lock guard(node.lock);
	auto &all = node.refused;
	std::erase_if(all, [&](const auto &r) { return r.until <= at; });
	// A page that has bytes may be asked for without readahead.
	bool again = length <= page && got;
	for (inode::refused_read &r : all) {
		const bool part = length <= page && r.to - r.from > page;
		const bool again_whole = !r.answered && (r.alone || r.repeated);
		if (offset < r.from || offset >= r.to ||
		    !(part || (again_whole && r.is(offset, length))))
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
	guard.unlock();
	wait(at + reader_acts, [&] {
		const std::lock_guard again_locked(node.lock);
		return !node.telling && !node.notifying;
	});
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
