// SPDX-License-Identifier: MIT
// holders.cpp - noting whom bytes were sent, and choosing whom to name.
#include "userland/daemon/holders.hpp"

#include <algorithm>
#include <tuple>

namespace coop::daemon
{

namespace
{

constexpr std::uint64_t unit_pages = COOP_FOREST_UNIT_PAGES;
// Of a holder that may be named to others. Their level is below those of roles.
constexpr unsigned named_depth_max = COOP_LEVEL_ROOT - 1 - COOP_LEVEL_REDIRECTED;
// Named for a unit, of a reader that can wait for any.
constexpr std::size_t named_in_unit = 2;
// A holder is named so often before a deeper one is: as in a tree with so many children a node.
constexpr unsigned named_in_turn = 2;

} // namespace

// Calls use(part) for each unit that the range touches, while it returns true. False: it did not.
template <class function> bool holder_table::each_part(const page_range &r, function use)
{
	for (std::uint64_t n = r.first / unit_pages; n * unit_pages < r.end; n++) {
		const std::uint64_t start = n * unit_pages;
		const std::uint64_t first = r.first > start ? r.first - start : 0;
		const std::uint64_t end = std::min(r.end - start, unit_pages);
		if (!use(part{n, static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(end)}))
			return false;
	}
	return true;
}

void holder_table::joined(std::uint32_t node, bool forwards)
{
	std::lock_guard lock(mutex_);
	nodes_[node] = forwards;
}

void holder_table::left(std::uint32_t node)
{
	std::lock_guard lock(mutex_);
	nodes_.erase(node);
}

// The depth that a holder must not reach to be named to this node.
unsigned holder_table::depth_below_locked(const unit &u, std::uint32_t node, const part &p) const
{
	unsigned most = named_depth_max + 1;
	for (const holder &h : u)
		if (h.node == node && h.first < p.end && p.first < h.end)
			most = std::min<unsigned>(most, h.depth);
	return most;
}

bool holder_table::name_in_locked(unit &u, std::uint32_t node, const part &p, unsigned most,
				  bool chained, answer &out)
{
	std::erase_if(u, [&](const holder &h) { return !nodes_.contains(h.node); });
	std::vector<holder *> fit;
	// One with the first half will do: the reader asks again for what is missing, and only
	// that.
	for (holder &h : u)
		if (h.node != node && h.first <= p.first && h.end > p.first &&
		    2 * h.end >= p.first + p.end && h.depth < most)
			fit.push_back(&h);
	const auto rank = [&](const holder *h) {
		return std::tuple(!nodes_.at(h->node), h->named / named_in_turn, h->depth);
	};
	std::stable_sort(fit.begin(), fit.end(),
			 [&](const holder *x, const holder *y) { return rank(x) < rank(y); });
	const std::size_t wanted = chained ? named_in_unit : 1;
	std::size_t found = 0;
	for (holder *h : fit) {
		if (found == wanted)
			break;
		const bool known =
			std::find(out.nodes.begin(), out.nodes.end(), h->node) != out.nodes.end();
		if (!known && out.nodes.size() == COOP_ST_HOLDERS_MAX)
			break;
		if (!known)
			out.nodes.push_back(h->node);
		if (!found && h->named != UINT16_MAX)
			h->named++;
		out.level = std::max<std::uint32_t>(out.level, COOP_LEVEL_REDIRECTED + h->depth);
		found++;
	}
	return found != 0;
}

bool holder_table::name_locked(held &f, std::uint32_t node, const reading &r, answer &out)
{
	const bool one_unit =
		r.asked.first / unit_pages + 1 >= (r.asked.end + unit_pages - 1) / unit_pages;
	return each_part(r.asked,
			 [&](const part &p) {
				 const auto u = f.units.find(p.unit);
				 if (u == f.units.end())
					 return false;
				 const unsigned below = depth_below_locked(u->second, node, p);
				 const std::size_t before = u->second.size();
				 const bool named =
					 name_in_locked(u->second, node, p,
							r.chained ? below : std::min(below, 1u),
							r.chained && one_unit, out);
				 f.noted -= before - u->second.size();
				 noted_ -= before - u->second.size();
				 if (u->second.empty())
					 f.units.erase(u);
				 return named;
			 }) &&
	       !out.nodes.empty();
}

// The holder does not have these pages. False: it has no others.
bool holder_table::lose(holder &h, const holder &lost)
{
	if (h.first >= lost.end || lost.first >= h.end)
		return true;
	// It has one range: the longer of what is left.
	const int before = lost.first - h.first, after = h.end - lost.end;
	if (before >= after)
		h.end = lost.first;
	else
		h.first = lost.end;
	return std::max(before, after) > 0;
}

// Each holder has one range of pages: if the two do not meet, only the later one is noted.
void holder_table::note_in(unit &u, const holder &now, bool insists)
{
	if (insists) // those that were named for these pages did not have them
		std::erase_if(u, [&](holder &h) { return h.node != now.node && !lose(h, now); });
	for (holder &h : u) {
		if (h.node != now.node)
			continue;
		const bool meet = now.first <= h.end && now.end >= h.first;
		h.first = meet ? std::min(h.first, now.first) : now.first;
		h.end = meet ? std::max(h.end, now.end) : now.end;
		h.depth = std::max(h.depth, now.depth);
		return;
	}
	if (u.size() >= unit_holders_max)
		u.erase(std::max_element(u.begin(), u.end(), [](const holder &x, const holder &y) {
			return x.named < y.named;
		}));
	u.push_back(now);
}

void holder_table::note_locked(const file_version &f, const page_range &whole, const holder &what,
			       bool insists)
{
	if (whole.first >= whole.end)
		return;
	const auto [at, fresh] = files_.try_emplace(f);
	held &file = at->second;
	if (fresh)
		file.use = uses_.insert(uses_.end(), f);
	else
		uses_.splice(uses_.end(), uses_, file.use);
	each_part(whole, [&](const part &p) {
		unit &u = file.units[p.unit];
		holder now = what;
		now.first = p.first;
		now.end = p.end;
		const std::size_t before = u.size();
		note_in(u, now, insists);
		file.noted += u.size() - before;
		noted_ += u.size() - before;
		return true;
	});
	while (noted_ > noted_max_ || files_.size() > versions_max_)
		forget_locked(uses_.front());
}

void holder_table::forget_locked(const file_version &f)
{
	const auto at = files_.find(f);
	noted_ -= at->second.noted;
	uses_.erase(at->second.use);
	files_.erase(at);
}

bool holder_table::redirect(std::uint32_t node, const file_version &f, const reading &r,
			    answer &out)
{
	std::lock_guard lock(mutex_);
	out = {};
	if (!nodes_.contains(node))
		return false;
	const auto at = files_.find(f);
	if (r.may_redirect && !r.insists && at != files_.end() &&
	    name_locked(at->second, node, r, out)) {
		if (r.chained && out.level - COOP_LEVEL_REDIRECTED < named_depth_max)
			note_locked(
				f, r.whole,
				{node, 0, 0,
				 static_cast<std::uint8_t>(out.level - COOP_LEVEL_REDIRECTED + 1),
				 0},
				false);
		return true;
	}
	out = {};
	note_locked(f, r.whole, {node, 0, 0, 0, 0}, r.insists);
	return false;
}

std::vector<std::uint32_t> holder_table::sent(const file_version &f, const page_range &r,
					      std::size_t most) const
{
	std::vector<std::uint32_t> out;
	std::lock_guard lock(mutex_);
	const auto at = files_.find(f);
	if (at == files_.end())
		return out;
	const auto u = at->second.units.find(r.first / unit_pages);
	if (u == at->second.units.end())
		return out;
	const std::uint64_t start = r.first / unit_pages * unit_pages;
	for (const bool forwards : {true, false})
		for (const holder &h : u->second) {
			const auto node = nodes_.find(h.node);
			if (out.size() < most && node != nodes_.end() && node->second == forwards &&
			    !h.depth && start + h.first <= r.first && r.end <= start + h.end)
				out.push_back(h.node);
		}
	return out;
}

bool holder_table::any_but(std::uint32_t node, const std::vector<std::uint32_t> &of) const
{
	std::lock_guard lock(mutex_);
	return std::any_of(of.begin(), of.end(), [&](std::uint32_t other) {
		return other != node && nodes_.contains(other);
	});
}

std::size_t holder_table::noted() const
{
	std::lock_guard lock(mutex_);
	return noted_;
}

std::size_t holder_table::versions() const
{
	std::lock_guard lock(mutex_);
	return files_.size();
}

} // namespace coop::daemon
