// SPDX-License-Identifier: MIT
// invalidator.cpp - the thread behind invalidator.hpp. A file that the kernel has
// forgotten meanwhile is no error; one asked for many times is done once.
#include "fuse-shim/invalidator.hpp"

namespace coop::shim
{

void invalidator::start(fuse_session *session)
{
	std::lock_guard guard(lock_);
	running_ = true;
	thread_ = std::thread([this, session] { run(session); });
}

void invalidator::stop()
{
	{
		std::lock_guard guard(lock_);
		running_ = false;
		waiting_.clear();
	}
	wake_.notify_all();
	if (thread_.joinable())
		thread_.join();
}

void invalidator::pages_stale(fuse_ino_t ino)
{
	{
		std::lock_guard guard(lock_);
		if (!running_)
			return;
		waiting_.insert(ino);
	}
	wake_.notify_one();
}

void invalidator::run(fuse_session *session)
{
	std::unique_lock guard(lock_);
	for (;;) {
		wake_.wait(guard, [this] { return !running_ || !waiting_.empty(); });
		if (!running_)
			return;
		auto list = std::move(waiting_);
		waiting_.clear();
		guard.unlock();
		for (fuse_ino_t ino : list)
			fuse_lowlevel_notify_inval_inode(session, ino, 0, 0);
		guard.lock();
	}
}

} // namespace coop::shim
