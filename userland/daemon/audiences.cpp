// SPDX-License-Identifier: MIT
// audiences.cpp - joining and leaving audiences, and telling members their roles.
#include "userland/daemon/audiences.hpp"

#include <algorithm>
#include <bit>
#include <iterator>

#include "rpc/base/bits.h"

namespace coop::daemon
{

namespace
{

constexpr std::uint32_t block_size = COOP_FOREST_COLOURS;
// Roles pushed, or members ended, before other threads may have the table.
constexpr unsigned pushes_at_once = 256;

// Of what the client acts on; never 0.
std::uint64_t digest_of(const coop_st_roles &r)
{
	std::uint64_t d = 1;
	for (std::uint32_t i = 0; i < r.n_colours; i++) {
		const coop_st_parents &p = r.colours[i];
		d = coop_mix(d ^ p.parent);
		d = coop_mix(d ^ (static_cast<std::uint64_t>(p.alternate) << 32 | p.level));
	}
	return d ? d : 1;
}

} // namespace

void rate_classes::count(std::uint32_t mbps, std::uint32_t by)
{
	if (!mbps)
		return;
	known_[std::bit_width(mbps)] += by;
	all_ += by;
}

std::uint32_t rate_classes::at(std::uint32_t rank) const
{
	std::uint32_t below = 0, c = 0;
	while (c + 1 < known_.size() && (below += known_[c]) <= rank)
		c++;
	return c;
}

std::uint32_t rate_classes::slow_below()
{
	if (all_ >= rates_steady)
		median_ = std::clamp(median_, at(all_ / 8 * 3), at(all_ / 8 * 5));
	else
		median_ = all_ ? at(all_ / 2) : 0;
	return median_ > 2 ? 1u << (median_ - 3) : 0; // 1 << (median_ - 1) is a rate of its class
}

audience_table::seat::~seat()
{
	if (table_)
		table_->leave(*place_);
}

audience_table::key audience_table::key_of(const audience_client *who, const coop_fid &fid)
{
	return {who, fid.hi, fid.lo};
}

void audience_table::on_change(std::function<void()> changed)
{
	std::lock_guard lock(mutex_);
	changed_ = std::move(changed);
}

void audience_table::on_linger(std::function<void()> lingers,
			       std::function<clock::time_point()> now)
{
	std::lock_guard lock(mutex_);
	lingers_ = std::move(lingers);
	now_ = std::move(now);
}

audience_table::seat audience_table::join(const std::shared_ptr<audience_client> &who,
					  const file_version &file)
{
	std::lock_guard lock(mutex_);
	place fresh{who.get(), who, file};
	place &p = places_.try_emplace(key_of(who.get(), file.fid), fresh).first->second;
	p.who = who;
	rouse_locked(p);
	p.opens++;
	if (lingers_)
		p.since = now_();
	const std::uint32_t node = who->role_node(); // before the ability, which is set first
	settle_locked(p, file, node, who->ability());
	if (p.node) {
		// The client may have closed the file and forgotten its roles, and we may execute
		// that CLOSE after this OPEN.
		if (!audiences_[p.file].lone())
			p.told = 0;
		tell_locked(p, who.get());
		stale_.erase(&p);
	}
	wake_locked();
	return {this, &p};
}

void audience_table::leave(place &p)
{
	std::lock_guard lock(mutex_);
	if (--p.opens)
		return;
	const file_version file = p.file;
	if (may_linger_locked(p))
		linger_locked(p);
	else
		end_locked(p);
	thin_out_locked(file);
	wake_locked();
}

// Who has had the file open for long may keep it closed for long.
bool audience_table::may_linger_locked(const place &p) const
{
	return p.node && !p.leaf && lingers_ && now_() - p.since < linger_time;
}

void audience_table::linger_locked(place &p)
{
	p.lingers = true;
	p.since = now_();
	p.turn = lingering_.insert(lingering_.end(), &p);
	audiences_[p.file].lingering++;
	if (lingering_.size() > lingering_max)
		end_locked(*lingering_.front());
	if (expires_)
		return;
	expires_ = true;
	lingers_();
}

// It lingers no longer.
void audience_table::rouse_locked(place &p)
{
	if (!std::exchange(p.lingers, false))
		return;
	lingering_.erase(p.turn);
	audiences_[p.file].lingering--;
}

void audience_table::end_locked(place &p)
{
	rouse_locked(p);
	if (p.node)
		drop_locked(p);
	places_.erase(key_of(p.client, p.file.fid));
}

void audience_table::thin_out_locked(const file_version &file)
{
	const auto it = audiences_.find(file);
	if (it == audiences_.end() || !it->second.crowded())
		return;
	// A lone reader waits for none. Otherwise so many at a time, because the table is locked:
	// each further change of the file comes here again. Those at the end of the list leave no
	// hole that another one would have to move to.
	const bool all = it->second.open() < 2;
	std::vector<place *> gone;
	for (const auto *list : {&it->second.leaves, &it->second.members})
		for (auto p = list->rbegin();
		     p != list->rend() && (all || gone.size() < pushes_at_once); ++p)
			if ((*p)->lingers)
				gone.push_back(*p);
	for (place *p : gone)
		end_locked(*p);
}

bool audience_table::expire()
{
	for (;;) {
		std::lock_guard lock(mutex_);
		const auto old = [this, now = now_()] {
			return !lingering_.empty() &&
			       now - lingering_.front()->since >= linger_time;
		};
		for (unsigned i = 0; i < pushes_at_once && old(); i++)
			end_locked(*lingering_.front());
		wake_locked();
		if (old())
			continue;
		expires_ = !lingering_.empty();
		return expires_;
	}
}

void audience_table::depart(const audience_client &who, const file_version &found)
{
	std::lock_guard lock(mutex_);
	const auto i = places_.find(key_of(&who, found.fid));
	if (i == places_.end() || i->second.file == found)
		return;
	if (i->second.lingers)
		end_locked(i->second);
	else
		settle_locked(i->second, {found.fid, 0}, 0);
	wake_locked();
}

void audience_table::moved(const audience_client &who)
{
	std::lock_guard lock(mutex_);
	const std::uint32_t node = who.role_node(); // before the ability, which is set first
	std::vector<place *> its;                   // what changes here may end others' places
	for (auto i = places_.lower_bound({&who, 0, 0});
	     i != places_.end() && std::get<0>(i->first) == &who; ++i)
		its.push_back(&i->second);
	for (place *p : its)
		if (p->lingers)
			end_locked(*p);
		else
			settle_locked(*p, p->file, p->file.version ? node : 0, who.ability());
	wake_locked();
}

// Makes it a member of this version's audience under this id; node 0: of none.
void audience_table::settle_locked(place &p, const file_version &file, std::uint32_t node,
				   const node_ability &can)
{
	if (p.node == node && p.file == file)
		return;
	if (p.node && node && p.file == file && p.can == can) {
		p.node = node; // the others know it under its old id
		p.told = 0;
		if (p.leaf)
			stale_.insert(&p);
		else
			mark_around_locked(audiences_[p.file], p.number / block_size);
		return;
	}
	const file_version before = p.file;
	if (p.node)
		drop_locked(p);
	p.file = file;
	if (node)
		enter_locked(p, node, can);
	thin_out_locked(before);
}

void audience_table::enter_locked(place &p, std::uint32_t node, const node_ability &can)
{
	audience &a = audiences_[p.file];
	p.node = node;
	p.can = can;
	p.told = 0;
	a.rates.add(can.mbps);
	insert_locked(a, p);
	sort_out_locked(a);
}

void audience_table::drop_locked(place &p)
{
	const auto it = audiences_.find(p.file);
	audience &a = it->second;
	remove_locked(a, p);
	p.node = 0;
	a.rates.remove(p.can.mbps);
	if (a.empty())
		audiences_.erase(it);
	else
		sort_out_locked(a);
}

void audience_table::insert_locked(audience &a, place &p)
{
	p.leaf = a.for_leaves(p.can);
	std::vector<place *> &list = p.leaf ? a.leaves : a.members;
	p.number = static_cast<std::uint32_t>(list.size());
	list.push_back(&p);
	if (p.leaf)
		stale_.insert(&p);
	else // it has no child blocks; leaves that come to a new block are below it now
		mark_locked(a, p.number / block_size);
	mark_lone_locked(a);
}

void audience_table::remove_locked(audience &a, place &p)
{
	std::vector<place *> &list = p.leaf ? a.leaves : a.members;
	place *const last = list.back();
	const std::uint32_t last_block = last->number / block_size;
	if (!p.leaf) // while its leaves are below it
		mark_locked(a, last_block);
	list.pop_back();
	if (last != &p) {
		list[p.number] = last;
		last->number = p.number;
		if (p.leaf)
			stale_.insert(last);
		else
			mark_around_locked(a, p.number / block_size);
	}
	if (!p.leaf)
		mark_locked(a, last_block);
	mark_lone_locked(a);
	stale_.erase(&p);
}

// Moves those that have become slow, or no longer are.
void audience_table::sort_out_locked(audience &a)
{
	const std::uint32_t before = std::exchange(a.slow_below, a.rates.slow_below());
	if (a.slow_below == before)
		return;
	std::vector<place *> move;
	for (const auto *list : {&a.members, &a.leaves})
		std::copy_if(list->begin(), list->end(), std::back_inserter(move),
			     [&](const place *p) { return a.for_leaves(p->can) != p->leaf; });
	for (place *p : move) {
		remove_locked(a, *p);
		insert_locked(a, *p);
	}
}

// The members of a block, and the leaves below it.
void audience_table::mark_locked(audience &a, std::uint32_t block)
{
	const std::size_t first = std::size_t{block} * block_size;
	for (std::size_t i = first; i < std::min(first + block_size, a.members.size()); i++)
		stale_.insert(a.members[i]);
	const std::uint32_t blocks = coop_forest_blocks(static_cast<u32>(a.members.size()));
	if (block >= blocks)
		return;
	const std::uint32_t step = std::bit_floor(blocks); // those of a block agree in these bits
	for (std::uint32_t i = block % step; i < a.leaves.size(); i += step)
		if (coop_forest_leaf_block(blocks, i) == block)
			stale_.insert(a.leaves[i]);
}

// A single member has roles as long as there are leaves.
void audience_table::mark_lone_locked(audience &a)
{
	if (a.members.size() == 1 && a.leaves.size() < 2)
		stale_.insert(a.members[0]);
}

// A block's members are named in the roles of their own block and of its child blocks.
void audience_table::mark_around_locked(audience &a, std::uint32_t block)
{
	mark_locked(a, block);
	for (std::uint32_t i = 1; i <= COOP_FOREST_ARITY; i++)
		mark_locked(a, COOP_FOREST_ARITY * block + i);
}

// Leaves are numbered after the members, of which a leaf is told as many as make its number valid.
coop_st_roles audience_table::roles_of(const audience &a, const place &p)
{
	const auto n = static_cast<std::uint32_t>(a.members.size());
	coop_st_roles out{};
	out.members = 1;
	if (a.lone() || !n)
		return out;
	out.members = p.leaf ? n + p.number + 1 : std::max(n, 2u);
	out.index = p.leaf ? n + p.number : p.number;
	out.n_colours = COOP_FOREST_COLOURS;
	const auto id = [&](std::uint32_t number) {
		return number == COOP_NONE ? 0 : a.members[number]->node;
	};
	for (std::uint32_t c = 0; c < COOP_FOREST_COLOURS; c++) {
		coop_role r;
		if (p.leaf)
			coop_forest_leaf_role(n, p.number, c, &r);
		else
			coop_forest_role(n, p.number, c, &r);
		out.colours[c] = {id(r.parent), id(r.alternate), r.level};
	}
	return out;
}

bool audience_table::tell_locked(place &p, audience_client *who)
{
	coop_st_body b{};
	b.fid = p.file.fid;
	b.version = p.file.version;
	b.roles = roles_of(audiences_[p.file], p);
	const std::uint64_t digest = digest_of(b.roles);
	if (digest == p.told || (!b.roles.n_colours && !p.told))
		return false;
	p.told = who && who->push(COOP_ST_ROLES, b) ? digest : 0;
	pushed.fetch_add(p.told != 0, std::memory_order_relaxed);
	return p.told != 0;
}

void audience_table::wake_locked()
{
	if (awake_ || stale_.empty() || !changed_)
		return;
	awake_ = true;
	changed_();
}

bool audience_table::flush()
{
	// Released without the lock: the last reference to a session releases its seats.
	std::vector<std::shared_ptr<audience_client>> told, others;
	{
		std::lock_guard lock(mutex_);
		for (unsigned i = 0; i < pushes_at_once && !stale_.empty(); i++) {
			place *const p = *stale_.begin();
			stale_.erase(stale_.begin());
			if (p->lingers)
				continue; // its next open tells it
			std::shared_ptr<audience_client> who = p->who.lock();
			const bool tell = tell_locked(*p, who.get());
			(tell ? told : others).push_back(std::move(who));
		}
	}
	for (const auto &who : told)
		who->flush();
	// Awake until all is sent: one flush at a time.
	std::lock_guard lock(mutex_);
	awake_ = !stale_.empty();
	return awake_;
}

std::size_t audience_table::leaves() const
{
	std::lock_guard lock(mutex_);
	std::size_t n = 0;
	for (const auto &[file, a] : audiences_)
		n += a.leaves.size();
	return n;
}

std::size_t audience_table::lingering() const
{
	std::lock_guard lock(mutex_);
	return lingering_.size();
}

std::size_t audience_table::size() const
{
	std::lock_guard lock(mutex_);
	return audiences_.size();
}

} // namespace coop::daemon
