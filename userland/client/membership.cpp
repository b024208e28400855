// SPDX-License-Identifier: MIT
// membership.cpp - see membership.hpp.
#include "userland/client/membership.hpp"

#include <algorithm>

namespace coop::client
{

void membership::on_roles(const file_roles &r)
{
	const std::lock_guard lock(mutex_);
	const auto it = opening_any_ ? files_.try_emplace(r.fid).first : files_.find(r.fid);
	if (it == files_.end())
		return;
	it->second.version = r.version;
	it->second.roles = r.roles.n_colours == COOP_FOREST_COLOURS
				   ? std::make_unique<coop_st_roles>(r.roles)
				   : nullptr;
}

membership::opening::opening(membership &m, const coop_fid &fid) : of_(m), fid_(fid)
{
	const std::lock_guard lock(of_.mutex_);
	of_.files_[fid_].opening++;
}

membership::opening::~opening()
{
	const std::lock_guard lock(of_.mutex_);
	const auto it = of_.files_.find(fid_);
	it->second.opening--;
	if (!it->second.in_use())
		of_.files_.erase(it);
}

membership::opening_any::opening_any(membership &m) : of_(m)
{
	const std::lock_guard lock(of_.mutex_);
	of_.opening_any_++;
}

membership::opening_any::~opening_any()
{
	const std::lock_guard lock(of_.mutex_);
	if (!--of_.opening_any_)
		std::erase_if(of_.files_, [](const auto &f) { return !f.second.in_use(); });
}

void membership::on_lost()
{
	const std::lock_guard lock(mutex_);
	for (auto &[fid, f] : files_)
		f.roles.reset();
}

void membership::opened(const std::shared_ptr<const content> &c)
{
	const std::lock_guard lock(mutex_);
	std::vector<std::shared_ptr<const content>> &open = files_[c->key.fid].open;
	const auto it = std::find_if(open.begin(), open.end(), [&](const auto &known) {
		return known->open_id == c->open_id;
	});
	if (it != open.end())
		*it = c;
	else
		open.push_back(c);
}

void membership::closed(const coop_fid &fid, std::uint64_t open_id)
{
	const std::lock_guard lock(mutex_);
	const auto it = files_.find(fid);
	if (it == files_.end())
		return;
	std::erase_if(it->second.open, [&](const auto &c) { return c->open_id == open_id; });
	if (!it->second.in_use())
		files_.erase(it);
}

forest_place membership::place(const content_key &key, std::uint64_t block) const
{
	const std::lock_guard lock(mutex_);
	const auto it = files_.find(key.fid);
	if (it == files_.end() || !it->second.roles || it->second.version != key.version)
		return {};
	const coop_st_parents &p = it->second.roles->colours[coop_forest_colour(&key.fid, block)];
	return {{p.parent, p.alternate}, p.level, true};
}

std::vector<std::uint32_t> membership::others(const content_key &key, std::uint64_t block) const
{
	constexpr std::size_t enough = 4;
	std::vector<std::uint32_t> out;
	const std::uint32_t colour = coop_forest_colour(&key.fid, block);
	const std::lock_guard lock(mutex_);
	const auto it = files_.find(key.fid);
	if (it == files_.end() || !it->second.roles || it->second.version != key.version)
		return out;
	// A root has parents in other colours.
	for (std::uint32_t i = 0; i < COOP_FOREST_COLOURS && out.size() < enough; i++) {
		const coop_st_parents &p =
			it->second.roles->colours[(colour + i) % COOP_FOREST_COLOURS];
		for (const std::uint32_t id : {p.parent, p.alternate})
			if (id != 0 && std::find(out.begin(), out.end(), id) == out.end())
				out.push_back(id);
	}
	return out;
}

coop_st_roles membership::roles(const content_key &key) const
{
	const std::lock_guard lock(mutex_);
	const auto it = files_.find(key.fid);
	if (it == files_.end() || !it->second.roles || it->second.version != key.version)
		return {.members = 1, .index = 0, .n_colours = 0, .colours = {}};
	return *it->second.roles;
}

forest_figures membership::figures() const
{
	forest_figures f;
	f.parents = parent_trees().size();
	const std::lock_guard lock(mutex_);
	for (const auto &[fid, file] : files_) {
		if (!file.roles)
			continue;
		const coop_st_roles &r = *file.roles;
		f.files++;
		for (std::uint32_t c = 0; c < COOP_FOREST_COLOURS; c++) {
			const coop_forest_part part = coop_forest_part_of(r.colours[c].level);
			f.leaf += part == COOP_PART_LEAF && c == 0;
			f.carrier += part == COOP_PART_CARRIER;
			f.substitute += part == COOP_PART_SUBSTITUTE;
			if (part != COOP_PART_LEAF)
				f.children += coop_forest_children(r.members, r.index, c);
		}
	}
	return f;
}

std::unordered_map<std::uint32_t, std::uint64_t> membership::parent_trees() const
{
	std::unordered_map<std::uint32_t, std::uint64_t> out;
	const std::lock_guard lock(mutex_);
	for (const auto &[fid, file] : files_)
		for (std::uint32_t c = 0; file.roles && c < COOP_FOREST_COLOURS; c++)
			if (const std::uint32_t id = file.roles->colours[c].parent)
				out[id]++;
	return out;
}

std::shared_ptr<const content> membership::open_content(const content_key &key) const
{
	const std::lock_guard lock(mutex_);
	const auto it = files_.find(key.fid);
	if (it == files_.end())
		return nullptr;
	for (const std::shared_ptr<const content> &c : it->second.open)
		if (c->key == key)
			return c;
	return nullptr;
}

} // namespace coop::client
