// SPDX-License-Identifier: MIT
// kernel_names.cpp - see kernel_names.hpp. The teller may be stuck in the kernel; then the watcher
// ends the wait.
#include "fuse-shim/kernel_names.hpp"

#include <algorithm>
#include <utility>

namespace coop::shim
{

void kernel_names::start(expire how)
{
	std::lock_guard lock(mutex_);
	expire_ = std::move(how);
	running_ = expire_ != nullptr;
	if (!running_)
		return;
	patient_.start();
	teller_ = std::thread([this] { tell(); });
	watcher_ = std::thread([this] { watch(); });
}

void kernel_names::stop()
{
	std::vector<ending_ref> left;
	{
		std::lock_guard lock(mutex_);
		running_ = false;
		endings_.clear();
		left.swap(overdue_);
	}
	for (const ending_ref &e : left)
		e->then();
	tell_wake_.notify_all();
	watch_wake_.notify_all();
	if (teller_.joinable())
		teller_.join();
	if (watcher_.joinable())
		watcher_.join();
	patient_.stop();
}

void kernel_names::doubt_locked(name &n)
{
	if (n.doubtful)
		return;
	n.doubtful = true;
	doubts &d = doubts_[n.node];
	d.names++;
	d.until = std::max(d.until, n.until);
	doubted_++;
}

void kernel_names::forget_locked(const name &n)
{
	known_--;
	if (!n.doubtful)
		return;
	doubted_--;
	const auto it = doubts_.find(n.node);
	if (it != doubts_.end() && !--it->second.names)
		doubts_.erase(it);
}

void kernel_names::sweep_locked(clock::time_point now)
{
	for (auto dir = dirs_.begin(); dir != dirs_.end();) {
		for (auto it = dir->second.begin(); it != dir->second.end();) {
			const auto at = it++;
			if (at->second.until > now)
				continue;
			forget_locked(at->second);
			dir->second.erase(at);
		}
		dir = dir->second.empty() ? dirs_.erase(dir) : std::next(dir);
	}
	sweep_at_ = std::max<std::size_t>(4096, 2 * known_);
}

void kernel_names::given(fuse_ino_t dir, std::string_view text, fuse_ino_t node, bool leased,
			 std::uint64_t asked)
{
	const auto now = clock::now();
	std::lock_guard lock(mutex_);
	if (known_ >= sweep_at_)
		sweep_locked(now);
	const auto [it, fresh] = dirs_[dir].try_emplace(std::string(text));
	if (!fresh)
		forget_locked(it->second);
	it->second = {node, now + time, false};
	known_++;
	if (!leased || asked != ends_)
		doubt_locked(it->second);
}

void kernel_names::removed(fuse_ino_t dir, std::string_view text)
{
	std::lock_guard lock(mutex_);
	const auto d = dirs_.find(dir);
	if (d == dirs_.end())
		return;
	const auto it = d->second.find(std::string(text));
	if (it == d->second.end())
		return;
	forget_locked(it->second);
	d->second.erase(it);
}

void kernel_names::moved(fuse_ino_t dir, std::string_view text, fuse_ino_t to,
			 std::string_view to_text, bool exchanged)
{
	const auto take = [this](fuse_ino_t from, std::string_view what) {
		names &all = dirs_[from];
		auto node = all.extract(std::string(what));
		return node;
	};
	const auto put = [this](fuse_ino_t where, std::string_view what, auto node) {
		if (!node)
			return;
		node.key() = std::string(what);
		dirs_[where].insert(std::move(node));
	};
	std::lock_guard lock(mutex_);
	auto moving = take(dir, text), replaced = take(to, to_text);
	put(to, to_text, std::move(moving));
	if (exchanged)
		put(dir, text, std::move(replaced));
	else if (replaced)
		forget_locked(replaced.mapped());
}

std::vector<std::string> kernel_names::end_locked(names &list, clock::time_point now)
{
	std::vector<std::string> out;
	for (auto &[text, n] : list) {
		if (n.until <= now || n.doubtful)
			continue;
		doubt_locked(n);
		out.push_back(text);
	}
	return out;
}

void kernel_names::lease_over(fuse_ino_t dir, bool changing, std::function<void()> then)
{
	const auto now = clock::now();
	{
		std::lock_guard lock(mutex_);
		ends_++;
		const auto it = dirs_.find(dir);
		auto list = it == dirs_.end() ? std::vector<std::string>()
					      : end_locked(it->second, now);
		if (!list.empty() && running_ && changing) {
			patient_.run([this, dir, list = std::move(list)] {
				for (const std::string &text : list)
					expire_(dir, text);
			});
		} else if (!list.empty() && running_) {
			const auto e = std::make_shared<ending>(
				ending{dir, std::move(list), std::move(then), now + time});
			endings_.push_back(e);
			overdue_.push_back(e);
			tell_wake_.notify_one();
			watch_wake_.notify_one();
			return;
		}
	}
	then();
}

void kernel_names::leases_over()
{
	std::lock_guard lock(mutex_);
	ends_++;
	for (auto &[dir, list] : dirs_)
		(void)end_locked(list, clock::time_point::min());
}

bool kernel_names::doubtful(fuse_ino_t node)
{
	if (!doubted_)
		return false;
	std::lock_guard lock(mutex_);
	const auto it = doubts_.find(node);
	return it != doubts_.end() && it->second.until > clock::now();
}

void kernel_names::tell()
{
	std::unique_lock lock(mutex_);
	for (;;) {
		tell_wake_.wait(lock, [this] { return !running_ || !endings_.empty(); });
		if (!running_)
			return;
		const ending_ref e = std::move(endings_.front());
		endings_.pop_front();
		lock.unlock();
		for (const std::string &text : e->list)
			expire_(e->dir, text);
		lock.lock();
		const auto it = std::find(overdue_.begin(), overdue_.end(), e);
		if (it == overdue_.end())
			continue;
		overdue_.erase(it);
		lock.unlock();
		e->then();
		lock.lock();
	}
}

void kernel_names::watch()
{
	std::unique_lock lock(mutex_);
	while (running_) {
		if (overdue_.empty()) {
			watch_wake_.wait(lock);
			continue;
		}
		const ending_ref e = overdue_.front();
		if (clock::now() < e->deadline) {
			watch_wake_.wait_until(lock, e->deadline);
			continue;
		}
		overdue_.erase(overdue_.begin());
		lock.unlock();
		e->then();
		lock.lock();
	}
}

} // namespace coop::shim
