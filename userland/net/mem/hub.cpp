// SPDX-License-Identifier: MIT
// hub.cpp - mailboxes, and their map.
//
// A push writes to the mailbox' eventfd only if its owner has armed it, so polling machines
// exchange packets without a system call.
#include "hub.hpp"

#include <cerrno>
#include <sys/eventfd.h>
#include <system_error>
#include <unistd.h>

namespace coop::net::mem
{

namespace
{

int make_eventfd()
{
	const int fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (fd < 0)
		throw std::system_error(errno, std::generic_category(), "eventfd of a mailbox");
	return fd;
}

} // namespace

mailbox::mailbox() : fd_(make_eventfd()) {}

mailbox::~mailbox()
{
	::close(fd_);
}

bool mailbox::push(packet &&p)
{
	std::lock_guard guard(lock_);
	if (closed_ || packets_.size() >= most)
		return false;
	const bool high = p.high;
	packets_.push_back(std::move(p), high);
	waiting_.store(packets_.size(), std::memory_order_release);
	if (armed_) {
		armed_ = false;
		const std::uint64_t one = 1;
		[[maybe_unused]] ssize_t n = ::write(fd_, &one, sizeof(one));
	}
	return true;
}

bool mailbox::pop(packet &p)
{
	if (waiting_.load(std::memory_order_acquire) == 0)
		return false;
	std::lock_guard guard(lock_);
	if (packets_.empty())
		return false;
	p = std::move(packets_.front());
	packets_.pop_front();
	waiting_.store(packets_.size(), std::memory_order_relaxed);
	return true;
}

bool mailbox::arm()
{
	std::lock_guard guard(lock_);
	if (!packets_.empty())
		return false;
	std::uint64_t n;
	[[maybe_unused]] ssize_t r = ::read(fd_, &n, sizeof(n));
	armed_ = true;
	return true;
}

std::deque<packet> mailbox::close()
{
	std::lock_guard guard(lock_);
	closed_ = true;
	waiting_.store(0);
	std::deque<packet> all;
	for (; !packets_.empty(); packets_.pop_front())
		all.push_back(std::move(packets_.front()));
	return all;
}

hub &hub::instance()
{
	static hub the;
	return the;
}

void hub::insert(const address &a, std::shared_ptr<mailbox> m)
{
	std::lock_guard guard(lock_);
	boxes_[a] = std::move(m);
}

void hub::erase(const address &a)
{
	std::lock_guard guard(lock_);
	boxes_.erase(a);
}

std::shared_ptr<mailbox> hub::find(const address &a)
{
	std::lock_guard guard(lock_);
	auto it = boxes_.find(a);
	return it == boxes_.end() ? nullptr : it->second;
}

} // namespace coop::net::mem
