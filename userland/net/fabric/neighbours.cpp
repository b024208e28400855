// SPDX-License-Identifier: MIT
// neighbours.cpp - see neighbours.hpp.
#include "neighbours.hpp"

#include <rdma/fi_domain.h>

namespace coop::net::fabric
{

namespace
{

// All names of a process differ in the number at the end.
std::string_view process_of(std::string_view name)
{
	return name.substr(0, name.rfind('-'));
}

// Removes the name's entry from the table. The end point still exists. False: the table is full.
bool take_out(fid_av &table, const std::string &name)
{
	fi_addr_t at = FI_ADDR_UNSPEC;
	return fi_av_insert(&table, name.c_str(), 1, &at, 0, nullptr) == 1 &&
	       fi_av_remove(&table, &at, 1, 0) == 0;
}

} // namespace

neighbours &neighbours::here()
{
	static neighbours &the = *new neighbours;
	return the;
}

void neighbours::opened(const std::string &name)
{
	const std::lock_guard guard(lock_);
	all_.try_emplace(name);
}

bool neighbours::meet(const std::string &own, const std::string &other)
{
	const std::lock_guard guard(lock_);
	const auto it = all_.find(other);
	if (it == all_.end() || !it->second.open)
		return process_of(own) != process_of(other);
	if (own != other) {
		it->second.met.insert(own);
		all_[own].met.insert(other);
	}
	return true;
}

void neighbours::done(const std::string &name, std::unique_ptr<remains> r)
{
	const std::lock_guard guard(lock_);
	neighbour &n = all_[name];
	// All these end points still exist: each has met this one, which was open until now. The
	// port's own entries are already removed, so there is room in the table.
	for (const auto *some : {&n.met, &n.gone})
		for (const std::string &other : *some)
			(void)take_out(*r->table, other);
	(void)take_out(*r->table, name);
	n.left = std::move(r);
	n.open = false;
	for (const std::string &other : n.met) {
		neighbour &o = all_[other];
		o.met.erase(name);
		o.gone.insert(name);
	}
	for (const std::string &other : n.gone) {
		all_[other].met.erase(name);
		bury(other);
	}
	n.gone.clear();
	bury(name);
}

std::vector<std::string> neighbours::gone(const std::string &own)
{
	const std::lock_guard guard(lock_);
	const std::set<std::string> &all = all_[own].gone;
	return {all.begin(), all.end()};
}

void neighbours::part(const std::string &own, const std::string &other, fid_av &table)
{
	const std::lock_guard guard(lock_);
	if (!take_out(table, other))
		return;
	all_[own].gone.erase(other);
	all_[other].met.erase(own);
	bury(other);
}

bool neighbours::any(const std::string &own)
{
	const std::lock_guard guard(lock_);
	const neighbour &n = all_[own];
	return !n.met.empty() || !n.gone.empty();
}

void neighbours::bury(const std::string &name)
{
	const auto it = all_.find(name);
	if (it != all_.end() && !it->second.open && it->second.met.empty())
		all_.erase(it);
}

} // namespace coop::net::fabric
