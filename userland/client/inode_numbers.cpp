// SPDX-License-Identifier: MIT
// inode_numbers.cpp - see inode_numbers.hpp.
#include "userland/client/inode_numbers.hpp"

#include <random>

namespace coop::client
{

namespace
{

// A random place with more numbers after it than a mount can use.
std::uint64_t random_start()
{
	std::random_device random;
	const std::uint64_t high = random() & 0x3fffffff;
	return inode_numbers::first + (high << 32 | random());
}

} // namespace

inode_numbers::inode_numbers(std::size_t most) :
	most_(most),
	generation_(std::random_device{}()),
	next_(random_start())
{
}

std::uint64_t inode_numbers::claim(const coop_fid &fid)
{
	const auto known = by_fid_.find(fid);
	if (known == by_fid_.end())
		return next_++;
	const place at = known->second;
	const std::uint64_t id = at->id;
	by_fid_.erase(known);
	by_id_.erase(id);
	forgotten_.erase(at);
	return id;
}

void inode_numbers::enter(std::uint64_t id, inode &node)
{
	shard &s = shard_of(id);
	std::lock_guard guard(s.lock);
	s.inodes[id] = &node;
}

void inode_numbers::forget(std::uint64_t id, const file &what)
{
	{
		shard &s = shard_of(id);
		std::lock_guard guard(s.lock);
		s.inodes.erase(id);
	}
	const place at = forgotten_.insert(forgotten_.end(), forgotten{id, what});
	by_id_[id] = at;
	by_fid_[what.fid] = at;
	if (forgotten_.size() <= most_)
		return;
	by_id_.erase(forgotten_.front().id);
	by_fid_.erase(forgotten_.front().what.fid);
	forgotten_.pop_front();
}

inode *inode_numbers::find(std::uint64_t id) const
{
	const shard &s = shard_of(id);
	std::shared_lock guard(s.lock);
	const auto it = s.inodes.find(id);
	return it == s.inodes.end() ? nullptr : it->second;
}

std::optional<inode_numbers::file> inode_numbers::forgotten_file(std::uint64_t id) const
{
	const auto it = by_id_.find(id);
	return it == by_id_.end() ? std::nullopt : std::optional(it->second->what);
}

} // namespace coop::client
