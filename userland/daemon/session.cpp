// SPDX-License-Identifier: MIT
// session.cpp - open files and remembered replies of one session.
#include "userland/daemon/session.hpp"

#include <algorithm>
#include <cerrno>

namespace coop::daemon
{

void opener::fill(coop_st_cred &c) const
{
	c.uid = uid;
	c.gid = gid;
	c.n_groups = static_cast<std::uint32_t>(groups.size());
	std::copy(groups.begin(), groups.end(), c.groups);
}

opener opener::of(const coop_st_cred &c)
{
	return {c.uid, c.gid, {c.groups, c.groups + c.n_groups}};
}

open_file::~open_file()
{
	if (!node)
		return;
	if (flags & COOP_ST_O_WRITE) {
		std::lock_guard lock(node->mutex);
		node->writers--;
		node->use->writers--;
		node->drop_writable_locked();
	}
	node->in.unnamed().closed(node->fid);
}

std::shared_ptr<open_file> session::find(std::uint64_t open_id)
{
	std::lock_guard lock(mutex_);
	auto it = opens_.find(open_id);
	return it == opens_.end() ? nullptr : it->second;
}

int session::add(std::uint64_t open_id, std::shared_ptr<open_file> f, std::size_t most,
		 bool restored)
{
	std::lock_guard lock(mutex_);
	if (!restored && std::find(given_up_.begin(), given_up_.end(), open_id) != given_up_.end())
		return -EBADF;
	if (lost_.contains(open_id))
		return -EEXIST;
	const auto [it, added] = opens_.try_emplace(open_id);
	if (!added)
		return it->second->opening ? -EAGAIN : -EEXIST;
	if (opens_.size() + lost_.size() > most) {
		opens_.erase(it);
		return -EMFILE;
	}
	it->second = std::move(f);
	return 0;
}

void session::stays(open_file &f)
{
	std::lock_guard lock(mutex_);
	f.opening = false;
}

std::shared_ptr<open_file> session::take(std::uint64_t open_id)
{
	std::lock_guard lock(mutex_);
	auto node = opens_.extract(open_id);
	return node ? std::move(node.mapped()) : nullptr;
}

std::shared_ptr<open_file> session::close(std::uint64_t open_id)
{
	std::lock_guard lock(mutex_);
	for (open_files *const all : {&opens_, &lost_})
		if (auto node = all->extract(open_id))
			return std::move(node.mapped());
	given_up_.push_back(open_id);
	if (given_up_.size() > replies_kept)
		given_up_.pop_front();
	return nullptr;
}

bool session::take_back(std::uint64_t open_id, const open_file &f)
{
	std::lock_guard lock(mutex_);
	const auto it = opens_.find(open_id);
	if (it == opens_.end() || it->second.get() != &f)
		return false;
	opens_.erase(it); // the caller refers to the file
	return true;
}

done_names *session::names(done_files &files)
{
	std::call_once(names_asked_, [&] { names_ = files.open(id, over); });
	return names_.get();
}

std::size_t session::opens() const
{
	std::lock_guard lock(mutex_);
	return opens_.size() + lost_.size();
}

// A LOCK that the client sends again must be run again: it does not hold what the reply says.
std::vector<std::shared_ptr<open_file>> session::lapse()
{
	std::vector<std::shared_ptr<open_file>> ended;
	std::lock_guard lock(mutex_);
	for (auto &[id, f] : opens_) {
		if (f->node->constant) // a bundle, which ends with the connection
			ended.push_back(std::move(f));
		else
			lost_.emplace(id, std::move(f));
	}
	opens_.clear();
	std::erase_if(order_, [this](std::uint64_t request) {
		const auto it = replies_.find(request);
		coop_st_header h;
		const bool is_lock = !coop_st_header_get(&h, reinterpret_cast<const u8 *>(
								     it->second.encoded.data())) &&
				     h.op == COOP_ST_LOCK;
		if (is_lock)
			replies_.erase(it);
		return is_lock;
	});
	relied_on = false;
	return ended;
}

std::shared_ptr<open_file> session::opened_again(std::uint64_t open_id, const inode_ref &node,
						 std::uint32_t flags)
{
	constexpr std::uint32_t access =
		COOP_ST_O_READ | COOP_ST_O_WRITE | COOP_ST_O_APPEND | COOP_ST_O_EXEC;
	const auto is_it = [&](const open_files::iterator it, const open_files &all) {
		return it != all.end() && it->second->node == node &&
		       (it->second->flags & access) == (flags & access);
	};
	std::lock_guard lock(mutex_);
	if (const auto it = opens_.find(open_id); is_it(it, opens_))
		return it->second;
	const auto it = lost_.find(open_id);
	if (!is_it(it, lost_))
		return nullptr;
	return opens_.insert(lost_.extract(it)).position->second;
}

void session::opened_late(std::uint64_t open_id)
{
	std::lock_guard lock(mutex_);
	if (auto node = lost_.extract(open_id))
		opens_.insert(std::move(node));
}

std::uint64_t session::renew(pusher push, std::function<void()> flush, bool roles)
{
	std::lock_guard lock(mutex_);
	takes_roles = roles;
	push_ = std::move(push);
	flush_ = std::move(flush);
	return ++epoch_;
}

bool session::push(std::uint16_t op, const coop_st_body &body)
{
	pusher to;
	{
		std::lock_guard lock(mutex_);
		to = push_;
	}
	return to && to(op, body);
}

void session::flush()
{
	std::function<void()> to;
	{
		std::lock_guard lock(mutex_);
		to = flush_;
	}
	if (to)
		to();
}

void session::wants_no_roles(std::uint64_t epoch)
{
	std::lock_guard lock(mutex_);
	if (epoch == epoch_)
		takes_roles = takes_bundles = false;
}

void session::is_node(std::uint64_t epoch, std::uint32_t registered, const node_ability &can)
{
	std::lock_guard lock(mutex_);
	if (epoch != epoch_)
		return;
	forwards = can.forwards;
	mbps = can.mbps;
	node = registered;
}

session::verdict session::admit(std::uint64_t epoch, std::uint64_t request, deliver to,
				std::string &out)
{
	std::lock_guard lock(mutex_);
	if (epoch != epoch_)
		return verdict::late;
	auto [it, fresh] = replies_.try_emplace(request);
	if (!fresh && it->second.finished) {
		out = it->second.encoded;
		return verdict::answered;
	}
	it->second.to = std::move(to);
	return fresh ? verdict::run : verdict::running;
}

session::deliver session::done(std::uint64_t request, const std::string &encoded)
{
	std::lock_guard lock(mutex_);
	kept &k = replies_[request];
	k.finished = true;
	k.encoded = encoded;
	order_.push_back(request);
	deliver to = std::move(k.to);
	k.to = nullptr;
	if (order_.size() > replies_kept) {
		replies_.erase(order_.front());
		order_.pop_front();
	}
	return to;
}

} // namespace coop::daemon
