// SPDX-License-Identifier: MIT
// bundle_policy.cpp - see bundle_policy.hpp.
#include "userland/client/bundle_policy.hpp"

#include <algorithm>

namespace coop::client
{

bool bundle_policy::turn::begin(clock::time_point now)
{
	if (asking || now < not_before)
		return false;
	return asking = true;
}

void bundle_policy::turn::wait(clock::time_point now)
{
	const bool rare = now > not_before + pause_max;
	pause = rare ? clock::duration(bundle_policy::pause)
		     : std::min<clock::duration>(2 * pause, pause_max);
	not_before = now + pause;
}

bundle_policy::dir_state &bundle_policy::dir_locked(const handle &dir)
{
	if (dirs_.size() >= dirs_max && !dirs_.contains(dir))
		dirs_.clear();
	return dirs_[dir];
}

void bundle_policy::placed(const handle &parent, const handle &dir)
{
	std::lock_guard lock(mutex_);
	dir_locked(dir).parent = parent;
	dir_locked(parent);
}

void bundle_policy::listed(const handle &dir, const handle &file)
{
	std::lock_guard lock(mutex_);
	if (files_.size() >= files_max)
		files_.clear();
	files_[file] = dir;
}

std::optional<handle> bundle_policy::opened(const handle &file)
{
	std::lock_guard lock(mutex_);
	const auto known = files_.find(file);
	if (known == files_.end())
		return {};
	const auto dir = dirs_.find(known->second);
	if (dir == dirs_.end() || !dir->second.notices || ++dir->second.opens < opens_wanted)
		return {};
	return dir->first;
}

void bundle_policy::had(const handle &dir)
{
	std::lock_guard lock(mutex_);
	dir_locked(dir).had = true;
}

std::optional<bundle_policy::want> bundle_policy::part_locked(const handle &dir, dir_state &d,
							      const handle &sought)
{
	d.sought = sought;
	dirs_.at(sought).had = false;
	return want{dir, true, d.part, d.at_nodes};
}

std::optional<bundle_policy::want> bundle_policy::noticed(const handle &dir, clock::time_point now)
{
	std::lock_guard lock(mutex_);
	dir_state &d = dir_locked(dir);
	d.notices++;
	handle at = dir;
	for (unsigned i = 0; i < depth_max && !at.empty(); i++) {
		const auto above = dirs_.find(at);
		if (above == dirs_.end())
			break;
		dir_state &s = above->second;
		if (s.begun && !s.subtree.begin(now))
			return std::nullopt; // a part is on its way, and may have it
		if (s.begun)
			return part_locked(at, s, dir);
		at = s.parent;
	}
	if (d.notices < notices_wanted)
		return std::nullopt;
	at = d.parent;
	for (unsigned i = 0; i < levels && !at.empty(); i++) {
		const auto above = dirs_.find(at);
		if (above == dirs_.end())
			break;
		dir_state &s = above->second;
		if (s.children >= children_wanted && s.subtree.begin(now)) {
			s.begun = true;
			s.part = s.misses = 0;
			s.at_nodes = true;
			return part_locked(at, s, dir);
		}
		at = s.parent;
	}
	return d.plain.begin(now) ? std::optional(want{dir, false, 0}) : std::nullopt;
}

void bundle_policy::came(const want &w, bool used, bool more, clock::time_point now)
{
	std::lock_guard lock(mutex_);
	dir_state &d = dir_locked(w.dir);
	turn &t = w.subtree ? d.subtree : d.plain;
	t.asking = false;
	d.notices = d.opens = 0;
	if (w.subtree) {
		d.children = 0;
		const auto sought = dirs_.find(d.sought);
		d.misses = sought != dirs_.end() && sought->second.had ? 0 : d.misses + 1;
		d.begun = used && more && d.misses < misses_most;
		d.part = w.part + 1;
		d.at_nodes = w.at_nodes;
	}
	if (!w.subtree || !d.begun) // else the next part may follow at once
		t.wait(now);
	if (!used || w.part)
		return;
	handle at = d.parent;
	for (unsigned i = 0; i < levels; i++) {
		const auto above = dirs_.find(at);
		if (above == dirs_.end())
			return;
		above->second.children++;
		at = above->second.parent;
	}
}

} // namespace coop::client
