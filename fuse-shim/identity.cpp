// SPDX-License-Identifier: MIT
// identity.cpp - the caller's groups, read once a second for each process.
#include "fuse-shim/identity.hpp"

namespace coop::shim
{

namespace
{

std::vector<gid_t> read_groups(fuse_req_t req)
{
	std::vector<gid_t> groups(32);
	int n = fuse_req_getgroups(req, static_cast<int>(groups.size()), groups.data());
	if (n > static_cast<int>(groups.size())) {
		groups.resize(static_cast<std::size_t>(n));
		n = fuse_req_getgroups(req, n, groups.data());
	}
	// A process in another pid namespace, or one that has exited: only the primary group is
	// known.
	groups.resize(n < 0 ? 0 : std::min(groups.size(), static_cast<std::size_t>(n)));
	return groups;
}

} // namespace

client::caller identity_cache::of(fuse_req_t req)
{
	const fuse_ctx *ctx = fuse_req_ctx(req);
	auto now = std::chrono::steady_clock::now();
	{
		std::lock_guard guard(lock_);
		auto it = by_pid_.find(ctx->pid);
		if (it != by_pid_.end() && it->second.until > now &&
		    it->second.who.uid == ctx->uid && it->second.who.gid == ctx->gid)
			return it->second.who;
	}
	client::caller who{ctx->uid, ctx->gid, read_groups(req)};
	std::lock_guard guard(lock_);
	if (by_pid_.size() >= limit)
		by_pid_.clear();
	by_pid_[ctx->pid] = {who, now + std::chrono::seconds(1)};
	return who;
}

} // namespace coop::shim
