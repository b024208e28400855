// SPDX-License-Identifier: MIT
// storage_listen.cpp - who receives from the daemon: the connection's thread, or the one caller
// that has nothing else to wait for.
//
// A program that works file by file has one request under way at a time. If the connection's
// thread receives the reply, it wakes the caller, which costs as much as all else about the call.
// So a caller whose reply is the next to come waits at the socket. It takes its own reply, and
// those that need no thread of their own. Everything else it leaves to the connection's thread:
// pushes, data that are still on their way, and errors.
//
// Both wait with an epoll(7) instance of their own, in which the socket is EPOLLEXCLUSIVE: bytes
// that come wake the caller if it waits, else the connection's thread. So nobody hands the socket
// back. Who was woken answers for the bytes: it receives until there are no more, or wakes the
// other (hand_over()). What one of them receives and does not use stays in the buffer, in order,
// for the connection's thread.
#include <cerrno>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "userland/client/asker.hpp"
#include "userland/client/storage_link.hpp"

namespace coop::client
{

namespace
{

constexpr int thread_rests_ms = 100; // then it checks deadlines

void signal_to(const unique_fd &event)
{
	(void)::eventfd_write(event.get(), 1);
}

void quench(const unique_fd &event)
{
	eventfd_t ignored;
	(void)::eventfd_read(event.get(), &ignored);
}

} // namespace

// All that is under way besides may be taken by any thread.
bool storage_link::is_next(const call &mine) const
{
	const std::lock_guard lock(mutex_);
	if (!epoch_ || mine.epoch != epoch_)
		return false;
	if (in_flight_ == 1 && calls_.size() == 1)
		return true;
	for (const auto &[id, c] : calls_)
		if (c.get() != &mine && !c->anywhere)
			return false;
	return true;
}

// Until the call is done, or something else comes, or it is time to look after the asker.
void storage_link::listen(const call &mine, const std::function<bool()> &done)
{
	for (;;) {
		struct epoll_event what[2];
		const int n = ::epoll_wait(callers_input_.get(), what, 2,
					   static_cast<int>(asker::look_again.count()));
		bool told = false, input = false;
		for (int i = 0; i < n; i++)
			(what[i].data.fd == stop_listening_.get() ? told : input) = true;
		if (told)
			quench(stop_listening_); // perhaps meant for who listened before
		if (input && !take_replies(mine))
			return hand_over();
		if (done() || n == 0)
			return;
		if (n < 0 && errno != EINTR)
			return hand_over();
	}
}

// The caller that listens has its reply from another thread.
void storage_link::stop_listening()
{
	signal_to(stop_listening_);
}

// The connection's thread shall look at the buffer and at the socket.
void storage_link::hand_over()
{
	signal_to(handed_over_);
}

void storage_link::wait_for_input()
{
	struct epoll_event what[2];
	const int n = ::epoll_wait(input_.get(), what, 2, thread_rests_ms);
	for (int i = 0; i < n; i++)
		if (what[i].data.fd == handed_over_.get())
			quench(handed_over_);
}

// False: the connection's thread has to go on, with the buffer or the socket.
bool storage_link::take_replies(const call &mine)
{
	const std::unique_lock receiving(receive_mutex_, std::try_to_lock);
	if (!receiving || fd_ < 0 || have_ != used_)
		return false;
	have_ = used_ = 0;
	const ssize_t n = ::recv(fd_, in_.data(), in_.size(), MSG_DONTWAIT);
	if (n <= 0)
		return n < 0 && errno == EAGAIN;
	have_ = static_cast<std::size_t>(n);
	rx_bytes_.fetch_add(have_, std::memory_order_relaxed);
	drained_ = have_ < in_.size();
	while (have_ > used_)
		if (!take_reply(mine))
			return false;
	return drained_;
}

// One that is complete in the buffer, and may be completed here.
bool storage_link::take_reply(const call &mine)
{
	const std::size_t left = have_ - used_;
	struct coop_st_incoming next;
	coop_st_incoming_init(&next);
	if (left < next.want || coop_st_incoming_next(&next, in_.data() + used_) < 0)
		return false;
	const coop_st_header &h = next.head;
	if (!h.id || h.status == EAGAIN || h.flags & COOP_ST_F_STREAM ||
	    left < COOP_ST_HEADER + std::size_t{h.body_len} + h.data_len)
		return false;
	{
		const std::lock_guard lock(mutex_);
		const auto it = calls_.find(h.id);
		if (it == calls_.end())
			return false;
		const call &c = *it->second;
		if (!c.anywhere && (&c != &mine || c.abandoned))
			return false;
	}
	const std::uint8_t *const body = in_.data() + used_ + COOP_ST_HEADER;
	used_ += COOP_ST_HEADER + h.body_len;
	taken_.fetch_add(1, std::memory_order_relaxed);
	if (deliver(h, body))
		return true;
	::shutdown(fd_, SHUT_RDWR); // the connection's thread notices, and connects again
	return false;
}

} // namespace coop::client
