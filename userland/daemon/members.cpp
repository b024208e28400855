// SPDX-License-Identifier: MIT
// members.cpp - registration of nodes, and the openers of file versions.
#include "userland/daemon/members.hpp"

#include "coop/cluster_key.hpp"

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

std::uint32_t member_table::join(const coop_addr &addr, push to)
{
	std::lock_guard lock(mutex_);
	if (members_.size() >= members_max)
		return 0;
	if (!last_)
		random_bytes(&last_, sizeof(last_));
	do
		last_++;
	while (!last_ || last_ == COOP_NONE || members_.contains(last_));
	std::string mine = message(true, last_, addr), others;
	others.reserve(members_.size() * mine.size());
	for (auto &[id, m] : members_) {
		m.to(mine);
		others += m.joined;
	}
	if (!others.empty())
		to(others);
	members_.emplace(last_, member{std::move(mine), std::move(to)});
	return last_;
}

void member_table::leave(std::uint32_t node)
{
	std::lock_guard lock(mutex_);
	if (!members_.erase(node))
		return;
	const std::string gone = message(false, node, {});
	for (auto &[id, m] : members_)
		m.to(gone);
}

std::size_t member_table::size() const
{
	std::lock_guard lock(mutex_);
	return members_.size();
}

} // namespace coop::daemon
