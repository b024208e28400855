// SPDX-License-Identifier: MIT
// unstable.cpp - see unstable.hpp.
#include "userland/client/unstable.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

namespace coop::client
{

namespace
{

// Bytes that newer changes have replaced: disjoint ranges, end by start.
class replaced
{
public:
	// The parts of [from, to) outside of it.
	std::vector<std::pair<std::uint64_t, std::uint64_t>> rest(std::uint64_t from,
								  std::uint64_t to) const
	{
		std::vector<std::pair<std::uint64_t, std::uint64_t>> out;
		auto it = ends_.upper_bound(from);
		if (it != ends_.begin())
			from = std::max(from, std::prev(it)->second);
		for (; it != ends_.end() && it->first < to; ++it) {
			if (from < it->first)
				out.emplace_back(from, it->first);
			from = it->second;
		}
		if (from < to)
			out.emplace_back(from, to);
		return out;
	}
	void add(std::uint64_t from, std::uint64_t to)
	{
		auto it = ends_.upper_bound(from);
		if (it != ends_.begin() && std::prev(it)->second >= from)
			--it;
		while (it != ends_.end() && it->first <= to) {
			from = std::min(from, it->first);
			to = std::max(to, it->second);
			it = ends_.erase(it);
		}
		ends_.emplace(from, to);
	}

private:
	std::map<std::uint64_t, std::uint64_t> ends_;
};

unstable::kept part(const unstable::kept &k, std::uint64_t from, std::uint64_t to)
{
	unstable::kept out = k;
	out.bytes += from - k.offset;
	out.offset = from;
	out.length = static_cast<std::size_t>(to - from);
	return out;
}

} // namespace

unstable::mark unstable::attach(std::uint64_t open_id, bool writes)
{
	std::lock_guard guard(lock_);
	opens_++;
	if (writes)
		writers_.push_back(open_id);
	return losses_;
}

void unstable::detach(std::uint64_t open_id)
{
	std::lock_guard guard(lock_);
	std::erase(writers_, open_id);
	if (--opens_)
		return;
	kept_.clear();
	loose_ = 0;
	dropped_locked();
}

void unstable::leave(std::uint64_t open_id)
{
	std::lock_guard guard(lock_);
	std::erase(writers_, open_id);
	std::vector<kept> left;
	for (kept &k : kept_)
		if (k.open_id == open_id)
			left.push_back(std::move(k));
	std::erase_if(kept_, [&](const kept &k) { return k.open_id == open_id; });
	for (const kept &k : left) {
		loosen_locked(k.verifier);
		// Other open files' kept bytes of this range may be older and would overwrite it.
		loosen_in_locked(k.offset, k.end());
		cut_locked(k.offset, k.end());
	}
	dropped_locked();
}

void unstable::let_go()
{
	std::lock_guard guard(lock_);
	releases_++;
	for (const kept &k : kept_)
		loosen_locked(k.verifier);
	kept_.clear();
	dropped_locked();
}

std::uint64_t unstable::releases() const
{
	std::lock_guard guard(lock_);
	return releases_;
}

void unstable::spoiled(std::uint64_t offset, std::uint64_t length)
{
	const std::uint64_t end = length > to_the_end - offset ? to_the_end : offset + length;
	std::lock_guard guard(lock_);
	loosen_in_locked(offset, end);
	cut_locked(offset, end);
}

void unstable::loosen_in_locked(std::uint64_t from, std::uint64_t to)
{
	for (const kept &k : kept_)
		if (k.offset < to && from < k.end())
			loosen_locked(k.verifier);
}

void unstable::acknowledged(std::uint64_t verifier, std::uint64_t offset, std::uint64_t length)
{
	std::lock_guard guard(lock_);
	if (!opens_)
		return;
	cut_locked(offset, length > to_the_end - offset ? to_the_end : offset + length);
	loosen_locked(verifier);
}

bool unstable::wrote(kept_memory &memory, std::uint64_t verifier, std::uint64_t open_id,
		     std::uint64_t era, std::uint64_t offset, std::span<const iovec> data,
		     std::size_t length)
{
	std::lock_guard guard(lock_);
	if (!opens_ || !length)
		return false;
	const bool first = kept_.empty();
	kept k{changes_ + 1, verifier, open_id, era, offset, length, nullptr, {}};
	if (append_locked(memory, std::move(k), data)) {
		changes_++;
		return first;
	}
	cut_locked(offset, offset + length);
	loosen_locked(verifier);
	return false;
}

bool unstable::wrote_stable(const cover &c, std::uint64_t verifier)
{
	std::lock_guard guard(lock_);
	if (loose_ && verifier_ != verifier)
		return false;
	if (loose_ <= c.number)
		loose_ = 0;
	return true;
}

bool unstable::append_locked(kept_memory &memory, kept k, std::span<const iovec> data)
{
	// A record counts as part of the chunk, so that the memory of one-byte writes is bounded
	// too.
	const std::size_t needs = k.length + sizeof(kept);
	if (chunk_.size < chunk_.used + chunk_.records * sizeof(kept) + needs) {
		std::size_t size =
			std::max(needs, std::min(2 * chunk_.size, kept_memory::chunk_max));
		kept_memory::chunk made = memory.take(size);
		if (!made)
			return false;
		chunk_ = {std::move(made), size, 0, 0};
	}
	std::byte *to = chunk_.memory.get() + chunk_.used;
	k.bytes = to;
	for (const iovec &v : data) {
		std::memcpy(to, v.iov_base, v.iov_len);
		to += v.iov_len;
	}
	chunk_.used += k.length;
	kept *const last = kept_.empty() ? nullptr : &kept_.back();
	if (last && last->number > asked_ && last->bytes + last->length == k.bytes &&
	    last->end() == k.offset && last->verifier == k.verifier && last->open_id == k.open_id &&
	    last->era == k.era && last->memory == chunk_.memory) {
		last->length += k.length;
		last->number = k.number;
		return true;
	}
	k.memory = chunk_.memory;
	kept_.push_back(std::move(k));
	chunk_.records++;
	return true;
}

unstable::cover unstable::covered()
{
	std::lock_guard guard(lock_);
	asked_ = changes_;
	return {loose_ || !kept_.empty(), changes_, loose_ != 0, verifier_};
}

bool unstable::committed(const cover &c, std::uint64_t verifier)
{
	std::lock_guard guard(lock_);
	if (c.loose && loose_) {
		const bool same = c.verifier == verifier_;
		// If the verifier has changed in between, the loss is already counted.
		if (verifier != c.verifier && same)
			lost_locked(-EIO);
		if (loose_ <= c.number)
			loose_ = 0;
		else if (same)
			verifier_ = verifier;
	}
	for (const kept &k : kept_)
		if (k.number <= c.number && k.verifier != verifier)
			return true;
	std::erase_if(kept_, [&](const kept &k) { return k.number <= c.number; });
	dropped_locked();
	return false;
}

std::vector<unstable::kept> unstable::take_again(const cover &c, std::uint64_t verifier)
{
	std::lock_guard guard(lock_);
	std::vector<kept> out;
	replaced newer;
	for (auto k = kept_.rbegin(); k != kept_.rend(); ++k) {
		if (k->number <= c.number && k->verifier != verifier)
			for (const auto &[from, to] : newer.rest(k->offset, k->end()))
				out.push_back(part(*k, from, to));
		newer.add(k->offset, k->end());
	}
	std::reverse(out.begin(), out.end());
	std::erase_if(kept_, [&](const kept &k) { return k.number <= c.number; });
	dropped_locked();
	return out;
}

void unstable::keep_locked(kept k)
{
	if (!opens_)
		return;
	k.number = ++changes_;
	if (std::find(writers_.begin(), writers_.end(), k.open_id) == writers_.end())
		return loosen_locked(k.verifier);
	kept_.push_back(std::move(k));
}

void unstable::rewrote(kept k, std::uint64_t verifier)
{
	std::lock_guard guard(lock_);
	k.verifier = verifier;
	keep_locked(std::move(k));
}

void unstable::put_back(kept k)
{
	std::lock_guard guard(lock_);
	keep_locked(std::move(k));
}

void unstable::lost(const cover &c, int err)
{
	std::lock_guard guard(lock_);
	lost_locked(err);
	std::erase_if(kept_, [&](const kept &k) { return k.number <= c.number; });
	if (loose_ <= c.number)
		loose_ = 0;
	dropped_locked();
}

void unstable::lost(int err)
{
	std::lock_guard guard(lock_);
	lost_locked(err);
}

std::vector<std::uint64_t> unstable::writers() const
{
	std::lock_guard guard(lock_);
	return writers_;
}

bool unstable::keeps() const
{
	std::lock_guard guard(lock_);
	return !kept_.empty();
}

int unstable::lost_since(mark &m)
{
	std::lock_guard guard(lock_);
	const int err = m != losses_ ? error_ : 0;
	m = losses_;
	return err;
}

void unstable::lost_locked(int err)
{
	losses_++;
	error_ = err;
}

// Counts one more change without bytes.
void unstable::loosen_locked(std::uint64_t verifier)
{
	if (loose_ && verifier != verifier_)
		lost_locked(-EIO);
	verifier_ = verifier;
	loose_ = ++changes_;
}

void unstable::cut_locked(std::uint64_t from, std::uint64_t to)
{
	const auto apart = [&](const kept &k) { return k.end() <= from || to <= k.offset; };
	if (from >= to || std::all_of(kept_.begin(), kept_.end(), apart))
		return;
	std::vector<kept> left;
	for (kept &k : kept_) {
		if (apart(k)) {
			left.push_back(std::move(k));
			continue;
		}
		holes_ += k.offset < from && to < k.end();
		if (k.offset < from)
			left.push_back(part(k, k.offset, from));
		if (to < k.end())
			left.push_back(part(k, to, k.end()));
	}
	kept_ = std::move(left);
	if (holes_ > most_holes) {
		loosen_in_locked(0, to_the_end);
		kept_.clear();
	}
	dropped_locked();
}

// With nothing kept, hold no memory.
void unstable::dropped_locked()
{
	if (kept_.empty()) {
		chunk_ = {};
		holes_ = 0;
		std::vector<kept>().swap(kept_);
	}
}

} // namespace coop::client
