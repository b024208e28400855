// SPDX-License-Identifier: MIT
// audiences.cpp - joining and leaving audiences, and telling members their roles.
#include "userland/daemon/audiences.hpp"

#include <algorithm>

#include "rpc/base/bits.h"

namespace coop::daemon
{

namespace
{

constexpr std::uint32_t block_size = COOP_FOREST_COLOURS;
// Roles pushed before other threads may have the table.
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

audience_table::seat audience_table::join(const std::shared_ptr<audience_client> &who,
					  const file_version &file)
{
	std::lock_guard lock(mutex_);
	place fresh{who.get(), who, file};
	place &p = places_.try_emplace(key_of(who.get(), file.fid), fresh).first->second;
	p.who = who;
	p.opens++;
	settle_locked(p, file, who->role_node());
	if (p.node) {
		// The client may have closed the file and forgotten its roles, and we may execute
		// that CLOSE after this OPEN.
		if (audiences_[p.file].members.size() > 1)
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
	settle_locked(p, p.file, 0);
	places_.erase(key_of(p.client, p.file.fid));
	wake_locked();
}

void audience_table::depart(const audience_client &who, const file_version &found)
{
	std::lock_guard lock(mutex_);
	const auto i = places_.find(key_of(&who, found.fid));
	if (i == places_.end() || i->second.file == found)
		return;
	settle_locked(i->second, {found.fid, 0}, 0);
	wake_locked();
}

void audience_table::moved(const audience_client &who)
{
	std::lock_guard lock(mutex_);
	for (auto i = places_.lower_bound({&who, 0, 0});
	     i != places_.end() && std::get<0>(i->first) == &who; ++i)
		settle_locked(i->second, i->second.file,
			      i->second.file.version ? who.role_node() : 0);
	wake_locked();
}

// Makes it a member of this version's audience under this id; node 0: of none.
void audience_table::settle_locked(place &p, const file_version &file, std::uint32_t node)
{
	if (p.node == node && p.file == file)
		return;
	if (p.node && node && p.file == file) { // the others know it under its old id
		p.node = node;
		p.told = 0;
		return mark_around_locked(audiences_[p.file], p.number / block_size);
	}
	if (p.node)
		drop_locked(p);
	p.file = file;
	if (node)
		enter_locked(p, node);
}

void audience_table::enter_locked(place &p, std::uint32_t node)
{
	audience &a = audiences_[p.file];
	p.node = node;
	p.told = 0;
	p.number = static_cast<std::uint32_t>(a.members.size());
	a.members.push_back(&p);
	mark_locked(a, p.number / block_size); // it has no child blocks
}

void audience_table::drop_locked(place &p)
{
	const auto it = audiences_.find(p.file);
	audience &a = it->second;
	place *const last = a.members.back();
	a.members.pop_back();
	const std::uint32_t last_block = last->number / block_size;
	if (last != &p) {
		a.members[p.number] = last;
		last->number = p.number;
		mark_around_locked(a, p.number / block_size);
	}
	mark_locked(a, last_block);
	stale_.erase(&p);
	p.node = 0;
	if (!a.members.empty())
		return;
	forget_locked(a);
	audiences_.erase(it);
}

void audience_table::mark_locked(audience &a, std::uint32_t block)
{
	const std::size_t first = std::size_t{block} * block_size;
	for (std::size_t i = first; i < std::min(first + block_size, a.members.size()); i++)
		stale_.insert(a.members[i]);
}

// A block's members are named in the roles of their own block and of its child blocks.
void audience_table::mark_around_locked(audience &a, std::uint32_t block)
{
	mark_locked(a, block);
	for (std::uint32_t i = 1; i <= COOP_FOREST_ARITY; i++)
		mark_locked(a, COOP_FOREST_ARITY * block + i);
}

void audience_table::tell_locked(place &p, audience_client *who)
{
	const std::vector<place *> &all = audiences_[p.file].members;
	const auto n = static_cast<std::uint32_t>(all.size());
	coop_st_body b{};
	b.fid = p.file.fid;
	b.version = p.file.version;
	b.roles.members = n;
	b.roles.index = p.number;
	b.roles.n_colours = n > 1 ? COOP_FOREST_COLOURS : 0;
	const auto id = [&](std::uint32_t number) {
		return number == COOP_NONE ? 0 : all[number]->node;
	};
	for (std::uint32_t c = 0; c < b.roles.n_colours; c++) {
		coop_role r;
		coop_forest_role(n, p.number, c, &r);
		b.roles.colours[c] = {id(r.parent), id(r.alternate), r.level};
	}
	const std::uint64_t digest = digest_of(b.roles);
	if (digest == p.told || (n == 1 && !p.told))
		return;
	p.told = who && who->push(COOP_ST_ROLES, b) ? digest : 0;
	pushed.fetch_add(p.told != 0, std::memory_order_relaxed);
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
	std::vector<std::shared_ptr<audience_client>> told;
	std::lock_guard lock(mutex_);
	while (told.size() < pushes_at_once && !stale_.empty()) {
		place *const p = *stale_.begin();
		stale_.erase(stale_.begin());
		told.push_back(p->who.lock());
		tell_locked(*p, told.back().get());
	}
	awake_ = !stale_.empty();
	return awake_;
}

bool audience_table::is_member_locked(const file_version &f, const unit_holder &h) const
{
	const auto i = places_.find(key_of(h.client, f.fid));
	return i != places_.end() && i->second.node == h.node && i->second.file == f;
}

void audience_table::forget_locked(audience &a)
{
	if (!a.sent.size())
		return;
	units_ -= a.sent.size();
	a.sent.clear();
	noted_.erase(a.use);
}

void audience_table::note_locked(const file_version &f, const reading &r, const unit_holder &to)
{
	audience &a = audiences_[f];
	if (r.whole.first >= r.whole.end)
		return;
	if (a.sent.size())
		noted_.splice(noted_.end(), noted_, a.use);
	else
		a.use = noted_.insert(noted_.end(), &a);
	units_ -= a.sent.size();
	a.sent.sent(r.whole, to,
		    [&](const unit_holder &h) { return !r.insists && is_member_locked(f, h); });
	units_ += a.sent.size();
	while (units_ > noted_max_)
		forget_locked(*noted_.front());
}

bool audience_table::redirect(const audience_client &who, const file_version &f, const reading &r,
			      std::vector<std::uint32_t> &nodes)
{
	std::lock_guard lock(mutex_);
	nodes.clear();
	const unit_holder self = {&who, who.role_node()};
	if (!self.node || !is_member_locked(f, self))
		return false;
	const bool named = r.may_redirect && !r.insists &&
			   audiences_[f].sent.holders(r.asked, [&](const unit_holder &h) {
				   if (std::find(nodes.begin(), nodes.end(), h.node) != nodes.end())
					   return true;
				   if (h.node == self.node || nodes.size() == COOP_ST_HOLDERS_MAX ||
				       !is_member_locked(f, h))
					   return false;
				   nodes.push_back(h.node);
				   return true;
			   });
	if (named && !nodes.empty())
		return true;
	nodes.clear();
	note_locked(f, r, self);
	return false;
}

std::size_t audience_table::noted() const
{
	std::lock_guard lock(mutex_);
	return units_;
}

std::size_t audience_table::size() const
{
	std::lock_guard lock(mutex_);
	return audiences_.size();
}

} // namespace coop::daemon
