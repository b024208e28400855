// SPDX-License-Identifier: MIT
// registry.cpp - joins, leaves, and whose roles they change.
#include "tests/sim/scale/registry.hpp"

#include <algorithm>
#include <utility>

namespace coop::scale
{

namespace
{

constexpr u32 most_depth = COOP_LEVEL_ROOT - COOP_LEVEL_REDIRECTED; // of a redirect
constexpr u32 most_holders = 16;                                    // remembered of a unit

} // namespace

registry::registry(const shape &s) : s_(s), trees_(s.trees, s.arity), f_(s.files)
{
	for (file &f : f_)
		f.sent.resize(s.redirect ? s.units : 0);
}

// The roles of this block's members, and of those that have parents in it.
void registry::touch(u32 file, u32 block)
{
	const auto &f = f_[file];
	const auto mark = [&](u32 b) {
		const std::size_t first = std::size_t{b} * trees_.count();
		for (std::size_t i = first; i < first + trees_.count() && i < f.list.size(); ++i)
			dirty_.push_back({file, f.list[i]});
	};
	mark(block);
	for (u32 i = 0; i < trees_.arity(); ++i)
		mark(trees_.first_below(block) + i);
	const u32 n = static_cast<u32>(f.list.size());
	for (u32 j = 0; n && j < f.leaves.size(); ++j)
		if (trees_.block_of_leaf(n, j) == block)
			dirty_.push_back({file, f.leaves[j]});
}

void registry::join(u32 file, u32 node, bool leaf)
{
	auto &f = f_[file];
	std::erase(f.recent, node);
	f.recent.push_back(node);
	if (f.recent.size() > most_hints)
		f.recent.erase(f.recent.begin());
	auto &list = leaf ? f.leaves : f.list;
	if (!(leaf ? f.leaf : f.number).emplace(node, static_cast<u32>(list.size())).second)
		return;
	list.push_back(node);
	const u32 n = static_cast<u32>(f.list.size());
	if (leaf)
		dirty_.push_back({file, node});
	else
		touch(file, trees_.block(n - 1));
}

// The last of the list takes the place.
void registry::take_out(u32 file, std::vector<u32> &list, std::unordered_map<u32, u32> &number,
			u32 node)
{
	const auto it = number.find(node);
	const u32 i = it->second, last = static_cast<u32>(list.size()) - 1;
	number.erase(it);
	if (i != last) {
		list[i] = list[last];
		number[list[i]] = i;
		dirty_.push_back({file, list[i]});
	}
	list.pop_back();
}

void registry::leave(u32 file, u32 node, bool gone)
{
	auto &f = f_[file];
	if (f.leaf.count(node))
		take_out(file, f.leaves, f.leaf, node);
	if (const auto it = f.number.find(node); it != f.number.end()) {
		const u32 i = it->second, last = static_cast<u32>(f.list.size()) - 1;
		touch(file, trees_.block(last)); // while its leaves are below it
		take_out(file, f.list, f.number, node);
		touch(file, trees_.block(i));
		touch(file, trees_.block(last));
		std::erase(dirty_, std::pair{file, node});
	}
	for (auto &holders : f.sent) {
		if (gone)
			std::erase_if(holders, [=](const holder &h) { return h.node == node; });
	}
}

roles registry::roles_of(u32 file, u32 node) const
{
	const auto &f = f_[file];
	const u32 n = static_cast<u32>(f.list.size());
	const auto member = f.number.find(node), leaf = f.leaf.find(node);
	roles r;
	if (member == f.number.end() && leaf == f.leaf.end())
		return r;
	r.members = n ? n + static_cast<u32>(f.leaves.size()) : 1;
	const auto node_at = [&](u32 i) { return i == nobody ? nobody : f.list[i]; };
	for (u32 c = 0; c < trees_.count() && r.members > 1; ++c) {
		r.in[c] = member != f.number.end() ? trees_.of(n, member->second, c)
						   : trees_.of_leaf(n, leaf->second, c);
		r.in[c].parent = node_at(r.in[c].parent);
		r.in[c].alternate = node_at(r.in[c].alternate);
	}
	return r;
}

std::vector<u32> registry::openers(u32 file, u32 besides) const
{
	std::vector<u32> out(f_[file].recent.rbegin(), f_[file].recent.rend());
	std::erase(out, besides);
	return out;
}

std::vector<std::pair<u32, u32>> registry::publish()
{
	std::sort(dirty_.begin(), dirty_.end());
	dirty_.erase(std::unique(dirty_.begin(), dirty_.end()), dirty_.end());
	return std::exchange(dirty_, {});
}

void registry::sent(u32 file, u32 unit, u32 node)
{
	if (f_[file].sent.empty())
		return;
	auto &holders = f_[file].sent[unit];
	std::erase_if(holders, [=](const holder &h) { return h.node == node; });
	holders.push_back({node, 0, 0});
}

// With chain, those that were redirected are named as well: they are about to have the bytes. Of
// those that have been named least often, the nearest to storage.
registry::redirect registry::redirect_of(u32 file, u32 unit, u32 asker)
{
	redirect out;
	if (f_[file].sent.empty())
		return out;
	auto &holders = f_[file].sent[unit];
	std::stable_sort(holders.begin(), holders.end(), [](const holder &x, const holder &y) {
		return x.named != y.named ? x.named < y.named : x.depth < y.depth;
	});
	u32 depth = 0;
	for (holder &h : holders) {
		if (h.node == asker || h.depth >= most_depth ||
		    out.n == (s_.chain ? 2 : most_named))
			continue;
		h.named += !out.n;
		depth = std::max(depth, h.depth + 1);
		out.node[out.n++] = h.node;
	}
	out.level = COOP_LEVEL_REDIRECTED - 1 + depth;
	const auto same = [=](const holder &h) { return h.node == asker; };
	if (out.n && s_.chain && std::none_of(holders.begin(), holders.end(), same) &&
	    holders.size() < most_holders)
		holders.push_back({asker, depth, 0});
	return out;
}

} // namespace coop::scale
