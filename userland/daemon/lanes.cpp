// SPDX-License-Identifier: MIT
// lanes.cpp - see lanes.hpp.
#include "userland/daemon/lanes.hpp"

#include <functional>
#include <iterator>
#include <spdlog/spdlog.h>

namespace coop::daemon
{

namespace
{

// What it does not get on with for so long is logged, and then again each time.
constexpr std::chrono::seconds tell_time{30};

// Takes one of 'most', if there is one.
bool take(std::atomic<unsigned> &of, unsigned most)
{
	unsigned n = of.load();
	while (n < most)
		if (of.compare_exchange_weak(n, n + 1))
			return true;
	return false;
}

} // namespace

lane::visit::visit(lane &l, unsigned file) :
	in_(l.enter(file) ? &l : nullptr),
	file_(file),
	before_(here_)
{
	if (in_)
		here_ = in_;
}

lane::visit::visit(lane &l, unsigned file, entered) : in_(&l), file_(file), before_(here_)
{
	here_ = in_;
}

lane::visit::~visit()
{
	if (!in_)
		return;
	here_ = before_;
	in_->leave(file_);
}

unsigned lane::file(std::string_view handle)
{
	return static_cast<unsigned>(std::hash<std::string_view>()(handle) % files);
}

bool lane::enter(unsigned file)
{
	if (file != no_file && !take(changing_[file], all_.changes_most()))
		return false;
	if (take(working_, all_.most())) {
		if (take(all_.working_, all_.room_))
			return true;
		working_--;
	}
	if (file != no_file)
		changing_[file]--;
	return false;
}

// Who waits counts itself before it looks for room, and we look for those who wait after we have
// made room: one of both finds the other.
void lane::leave(unsigned file)
{
	visits_.fetch_add(1, std::memory_order_relaxed);
	if (file != no_file)
		changing_[file]--;
	working_--;
	all_.working_--;
	if (!all_.waiting_)
		return;
	std::lock_guard lock(all_.mutex_);
	all_.admit_locked();
}

void lane::wait(std::function<void()> work, const void *owner, unsigned file)
{
	std::lock_guard lock(all_.mutex_);
	waiting_.push_back({std::move(work), owner, file});
	all_.waiting_++;
	all_.admit_locked();
}

// Admits the first that may enter.
bool lane::admit_locked()
{
	if (waiting_.empty() || working_ >= all_.most())
		return false;
	const auto first = std::find_if(waiting_.begin(), waiting_.end(),
					[this](const waiter &w) { return enter(w.file); });
	if (first == waiting_.end())
		return false;
	all_.waiting_--;
	all_.loop_.post([this, w = std::move(*first)]() mutable {
		const visit now(*this, w.file, visit::entered());
		w.work();
		w.work = nullptr; // what it owns may end in the file system
	});
	waiting_.erase(first);
	return true;
}

void lane::forget(const void *owner)
{
	std::deque<waiter> gone; // destroyed without the lock
	std::lock_guard lock(all_.mutex_);
	const auto first =
		std::stable_partition(waiting_.begin(), waiting_.end(),
				      [owner](const waiter &w) { return w.owner != owner; });
	std::move(first, waiting_.end(), std::back_inserter(gone));
	all_.waiting_ -= gone.size();
	waiting_.erase(first, waiting_.end());
}

std::size_t lane::waiting() const
{
	std::lock_guard lock(all_.mutex_);
	return waiting_.size();
}

lane::state lane::look() const
{
	std::lock_guard lock(all_.mutex_);
	state s{working_, waiting_.size(), {}};
	if (s.working && seen_ == visits_ && since_ != clock::time_point{})
		s.stuck = std::chrono::duration_cast<std::chrono::seconds>(clock::now() - since_);
	return s;
}

lane &lanes::add(std::string name)
{
	return *lanes_.emplace_back(std::make_unique<lane>(*this, std::move(name)));
}

// The lanes take turns.
void lanes::admit_locked()
{
	for (std::size_t idle = 0; waiting_ && idle < lanes_.size();)
		idle = lanes_[next_++ % lanes_.size()]->admit_locked() ? 0 : idle + 1;
}

void lanes::drop()
{
	std::deque<lane::waiter> gone; // destroyed without the lock
	std::lock_guard lock(mutex_);
	for (const auto &l : lanes_)
		std::move(l->waiting_.begin(), l->waiting_.end(), std::back_inserter(gone));
	for (const auto &l : lanes_)
		l->waiting_.clear();
	waiting_ = 0;
}

bool lanes::is_stuck_locked(lane &l, lane::clock::time_point now)
{
	const std::uint64_t visits = l.visits_;
	const bool told = l.told_ != lane::clock::time_point{};
	if (!l.working_ || visits != l.seen_ || l.since_ == lane::clock::time_point{}) {
		if (told)
			spdlog::warn("export {}: its file system answers again", l.name());
		l.seen_ = visits;
		l.since_ = l.working_ ? now : lane::clock::time_point{};
		l.told_ = {};
		return false;
	}
	if (now - l.since_ >= tell_time && (!told || now - l.told_ >= tell_time)) {
		l.told_ = now;
		spdlog::warn(
			"export {}: {} requests have waited {} s for its file system, and {} "
			"wait behind them",
			l.name(), l.working_.load(),
			std::chrono::duration_cast<std::chrono::seconds>(now - l.since_).count(),
			l.waiting_.size());
	}
	return now - l.since_ >= stuck_time;
}

void lanes::look(lane::clock::time_point now)
{
	std::lock_guard lock(mutex_);
	unsigned stuck = 0;
	for (const auto &l : lanes_)
		if (is_stuck_locked(*l, now))
			stuck += l->working_;
	// Never fewer: a thread once started costs nothing while it sleeps.
	if (usual_ + stuck <= room_)
		return;
	loop_.grow(threads(usual_ + stuck));
	room_ = usual_ + stuck;
	admit_locked();
}

} // namespace coop::daemon
