// SPDX-License-Identifier: MIT
// node_ids.cpp - see node_ids.hpp.
#include "userland/client/node_ids.hpp"

#include <random>

#include "userland/client/inode.hpp"

namespace coop::client
{

namespace
{

// A random place with more numbers after it than a mount can use.
std::uint64_t random_start()
{
	std::random_device random;
	const std::uint64_t high = random() & 0x3fffffff;
	return node_ids::first + (high << 32 | random());
}

} // namespace

node_ids::node_ids(std::size_t most) :
	most_(most),
	generation_(std::random_device{}()),
	next_(random_start())
{
}

std::uint64_t node_ids::claim(const coop_fid &fid)
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

void node_ids::enter(inode &node)
{
	shard &s = shard_of(node.id);
	std::lock_guard guard(s.lock);
	s.inodes[node.id] = &node;
}

void node_ids::forget(const inode &node)
{
	{
		shard &s = shard_of(node.id);
		std::lock_guard guard(s.lock);
		s.inodes.erase(node.id);
	}
	const place at =
		forgotten_.insert(forgotten_.end(), forgotten{node.id, {node.fid, node.fh}});
	by_id_[node.id] = at;
	by_fid_[node.fid] = at;
	if (forgotten_.size() <= most_)
		return;
	by_id_.erase(forgotten_.front().id);
	by_fid_.erase(forgotten_.front().what.fid);
	forgotten_.pop_front();
}

inode *node_ids::find(std::uint64_t id) const
{
	const shard &s = shard_of(id);
	std::shared_lock guard(s.lock);
	const auto it = s.inodes.find(id);
	return it == s.inodes.end() ? nullptr : it->second;
}

std::optional<node_ids::file> node_ids::identify(std::uint64_t id) const
{
	if (const inode *node = find(id))
		return file{node->fid, node->fh};
	const auto it = by_id_.find(id);
	return it == by_id_.end() ? std::nullopt : std::optional(it->second->what);
}

} // namespace coop::client
