// SPDX-License-Identifier: MIT
// members.cpp - registration of nodes, and the openers of file versions.
#include "userland/daemon/members.hpp"

#include "coop/cluster_key.hpp"
#include "rpc/base/addr.h"

namespace coop::daemon
{

namespace
{

std::string message(bool joined, std::uint32_t node, const coop_addr &addr)
{
	std::uint8_t buf[COOP_ST_HEADER + COOP_ST_BODY_MAX];
	coop_st_body b{};
	b.flags = joined;
	b.node_id = node;
	b.addr = addr;
	coop_st_header h{};
	h.op = COOP_ST_NODE;
	h.body_len = static_cast<u32>(coop_st_body_put(&b, coop_st_reply_fields(COOP_ST_NODE),
						       buf + COOP_ST_HEADER, COOP_ST_BODY_MAX));
	coop_st_header_put(&h, buf);
	return {reinterpret_cast<const char *>(buf), COOP_ST_HEADER + h.body_len};
}

} // namespace

void opener_table::opened(const file_version &key, std::uint32_t node,
			  std::vector<std::uint32_t> &out)
{
	out.clear();
	std::lock_guard lock(mutex_);
	auto it = slots_.find(key);
	if (it != slots_.end()) {
		for (std::uint32_t n : it->second.nodes)
			if (n != node && out.size() < COOP_MAX_HINTS)
				out.push_back(n);
		uses_.splice(uses_.end(), uses_, it->second.use);
	}
	if (!node)
		return;
	if (it == slots_.end()) {
		it = slots_.try_emplace(key).first;
		it->second.use = uses_.insert(uses_.end(), key);
	}
	auto &nodes = it->second.nodes;
	std::erase(nodes, node);
	nodes.insert(nodes.begin(), node);
	if (nodes.size() > COOP_MAX_HINTS + 1) // one of them may be the next requester itself
		nodes.pop_back();
	if (slots_.size() > openers_max) {
		slots_.erase(uses_.front());
		uses_.pop_front();
	}
}

void opener_table::left(std::uint32_t node)
{
	std::lock_guard lock(mutex_);
	for (auto it = slots_.begin(); it != slots_.end();) {
		std::erase(it->second.nodes, node);
		if (it->second.nodes.empty()) {
			uses_.erase(it->second.use);
			it = slots_.erase(it);
		} else {
			++it;
		}
	}
}

std::size_t opener_table::size() const
{
	std::lock_guard lock(mutex_);
	return slots_.size();
}

bool member_table::set::add(std::size_t i)
{
	if (words_.size() <= i / 64)
		words_.resize(i / 64 + 1);
	const std::uint64_t bit = std::uint64_t{1} << i % 64;
	const bool fresh = !(words_[i / 64] & bit);
	words_[i / 64] |= bit;
	return fresh;
}

bool member_table::set::remove(std::size_t i)
{
	if (!has(i))
		return false;
	words_[i / 64] &= ~(std::uint64_t{1} << i % 64);
	return true;
}

member_table::member *member_table::find_locked(std::uint32_t node)
{
	const auto it = place_.find(node);
	return it == place_.end() ? nullptr : &members_[it->second];
}

std::uint32_t member_table::join(const coop_addr &addr, push to, bool named, std::uint32_t before,
				 const fabric_circle &in)
{
	std::lock_guard lock(mutex_);
	if (place_.size() >= members_max)
		return 0;
	if (!last_)
		random_bytes(&last_, sizeof(last_));
	do
		last_++;
	while (!last_ || last_ == COOP_NONE || place_.contains(last_));
	const member *const old = find_locked(before);
	const std::size_t old_place = old ? place_.at(before) : members_max;
	member mine{last_, named, message(true, last_, addr), std::move(to), {}, addr, in};
	if (old)
		mine.knows = old->knows;
	if (free_.empty()) {
		free_.push_back(members_.size());
		members_.emplace_back();
	}
	const std::size_t place = free_.back();
	free_.pop_back();
	const bool few = place_.size() + !old <= all_told_max;
	std::string others;
	for (std::size_t i = 0; i < members_.size(); i++) {
		member &m = members_[i];
		if (!m.id)
			continue;
		m.superseded |= coop_addr_same(&m.addr, &addr);
		if (i == old_place || m.in != in)
			continue;
		if (few || !m.named || m.knows.has(old_place)) {
			m.to(mine.joined, true);
			m.knows.add(place);
		}
		if ((few || !named) && !m.superseded && mine.knows.add(i))
			others += m.joined;
		if (!m.knows.has(place) || !mine.knows.has(i))
			some_unknown_ = true;
	}
	if (!others.empty())
		mine.to(others, true);
	place_.emplace(last_, place);
	members_[place] = std::move(mine);
	return last_;
}

void member_table::leave(std::uint32_t node, std::uint32_t heir)
{
	std::lock_guard lock(mutex_);
	const auto it = place_.find(node);
	if (it == place_.end())
		return;
	const std::size_t place = it->second;
	place_.erase(it);
	// What was named since the heir joined.
	member *const m = find_locked(heir);
	const std::size_t heir_place = m ? place_.at(heir) : 0;
	for (std::size_t i = 0; m && i < members_.size(); i++) {
		member &other = members_[i];
		if (!other.id || i == place || i == heir_place || !members_[place].knows.has(i))
			continue;
		m->knows.add(i);
		if (other.knows.add(heir_place))
			other.to(m->joined, true);
	}
	members_[place] = {};
	free_.push_back(place);
	const std::string gone = message(false, node, {});
	for (member &m : members_)
		if (m.id && m.knows.remove(place))
			m.to(gone, true);
}

void member_table::name(std::uint32_t to, std::span<const std::uint32_t> nodes)
{
	if (!some_unknown_.load(std::memory_order_relaxed))
		return;
	std::lock_guard lock(mutex_);
	member *const it = find_locked(to);
	if (!it)
		return;
	const std::size_t place = place_.at(to);
	std::string news;
	for (const std::uint32_t node : nodes) {
		const auto at = node && node != to ? place_.find(node) : place_.end();
		if (at == place_.end() || members_[at->second].superseded ||
		    members_[at->second].in != it->in)
			continue;
		const bool fresh = it->knows.add(at->second);
		// What was named to it knows it. Look no further: most are known, all in few words.
		if (!fresh && it->named)
			continue;
		member &other = members_[at->second];
		if (fresh)
			news += other.joined;
		if (!it->superseded && other.knows.add(place))
			other.to(it->joined, false);
	}
	if (!news.empty())
		it->to(news, false);
}

std::size_t member_table::size() const
{
	std::lock_guard lock(mutex_);
	return place_.size();
}

} // namespace coop::daemon
