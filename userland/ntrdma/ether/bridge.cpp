// SPDX-License-Identifier: MIT
// bridge.cpp - the loop that moves frames, and its sleep; see bridge.hpp.
#include "userland/ntrdma/ether/bridge.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include <sys/epoll.h>

namespace coop::ntrdma
{

namespace
{

/// Frames of one direction before the other has its turn.
constexpr int turn = 16;
/// Rounds without a sleep after which signals and other descriptors have their turn.
constexpr int rounds = 16;
/// Time after which a frame is offered again that the kernel had no memory for.
constexpr int memory_ms = 1;

} // namespace

/// Moves frames from the interface to the peer. True if it may have more of them.
bool bridge::pump_out()
{
	pipe &p = *link_->pipe;
	for (int n = 0; n < turn; n++) {
		if (!p.room()) {
			if (!p.look())
				return lose("it breaks the protocol");
			if (!p.room()) {
				counts_.stops += !blocked_;
				blocked_ = true;
				return false;
			}
		}
		blocked_ = false;
		ssize_t got = tap_.read(p.space());
		if (got == -EAGAIN || got == -EINTR)
			return false;
		if (got < static_cast<ssize_t>(frame_least))
			throw trouble{tap_.name() + ": cannot be read any more: was it deleted?"};
		auto bytes = static_cast<std::uint32_t>(got);
		counts_.sent++;
		counts_.sent_bytes += bytes;
		p.send(bytes);
	}
	return true;
}

/// Moves frames from the peer to the interface. True if there are more of them.
bool bridge::pump_in()
{
	pipe &p = *link_->pipe;
	for (int n = 0; n < turn && p.waiting(); n++) {
		span_pair at;
		std::uint32_t bytes;
		if (!p.next(&at, &bytes))
			return lose("it breaks the protocol");
		if (!put(at, bytes))
			return false;
		p.take();
	}
	return p.waiting();
}

/// Hands a frame to the kernel. False if it has to be offered again.
bool bridge::put(const span_pair &at, std::uint32_t bytes)
{
	full_ = false;
	switch (tap_.write(at)) {
	case 0:
		counts_.received++;
		counts_.received_bytes += bytes;
		return true;
	case -EAGAIN:
	case -EINTR:
	case -ENOMEM:
	case -ENOBUFS:
		full_ = true;
		return false;
	case -EIO:
		counts_.down++;
		return true;
	case -EBADFD:
		throw trouble{tap_.name() + ": cannot be written any more: was it deleted?"};
	default:
		counts_.refused++;
		return true;
	}
}

/// True if there is more to do at once.
bool bridge::pump()
{
	pipe &p = *link_->pipe;
	if (!p.look())
		return lose("it breaks the protocol");
	bool more = pump_in();
	if (link_) {
		more |= pump_out();
		if (link_)
			link_->pipe->ring();
	}
	if (link_ && p.peer_up() != carrier_)
		follow();
	if (link_ && p.ended())
		peer_ended();
	return more;
}

/// Says what the peer shall wake this process for. False if that has come already.
bool bridge::may_sleep()
{
	if (!link_)
		return true;
	pipe &p = *link_->pipe;
	p.wait(blocked_ ? pipe::room_too : pipe::frames);
	if (p.look() && !p.ended() && (full_ || !p.waiting()) && !(blocked_ && p.much_room()) &&
	    p.peer_up() == carrier_)
		return true;
	p.wait(pipe::nothing);
	return false;
}

/// Milliseconds until something has to be done unasked; -1: never.
int bridge::patience(clock::time_point now) const
{
	if (!link_)
		return meeting_.talk() >= 0 || meeting_.restless() || asker_ ? 100 : -1;
	if (full_)
		return memory_ms;
	if (!link_->pipe->outstanding() && !link_->asking)
		return meeting_.talk() >= 0 || asker_ ? 100 : -1;
	auto next = link_->asked + (link_->asking ? options_.bound : options_.bound / 4);
	auto left = std::chrono::ceil<std::chrono::milliseconds>(next - now).count();
	return static_cast<int>(std::clamp<long>(left, 1, 1000));
}

/// Until something happens, or, if `wait` is false, only looks whether it has.
void bridge::sleep(const sigset_t &mask, bool wait)
{
	if (wait)
		listen_to_interface(link_ && !blocked_);
	std::array<epoll_event, 8> events;
	int n = epoll_pwait(epoll_.get(), events.data(), events.size(),
			    wait ? patience(clock::now()) : 0, &mask);
	if (n < 0 && errno != EINTR)
		throw std::system_error{errno, std::generic_category(), "epoll_pwait"};
	if (link_)
		link_->pipe->wait(pipe::nothing);
	bool others = n > 0 && std::any_of(events.begin(), events.begin() + n,
					   [](const epoll_event &e) { return e.data.u32 != 0; });
	if (others || !link_ || meeting_.talk() >= 0 || asker_)
		tend();
	if (link_)
		beat(clock::now());
}

/// While the queue is stopped, the frames that come into it wake nobody.
void bridge::listen_to_interface(bool on)
{
	if (on == listens_)
		return;
	listens_ = on;
	epoll_event e{on ? std::uint32_t{EPOLLIN} : 0u, {.u32 = 0}};
	if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, tap_.fd(), &e))
		throw std::system_error{errno, std::generic_category(), "epoll_ctl"};
}

/// Adds a descriptor, unless it is there already; a closed one leaves by itself.
void bridge::watch(int fd, std::uint32_t events, bool moves_frames)
{
	epoll_event e{events, {.u32 = moves_frames ? 0u : 1u}};
	if (fd >= 0 && epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &e) && errno != EEXIST)
		throw std::system_error{errno, std::generic_category(), "epoll_ctl"};
}

void bridge::run(const std::atomic<bool> &stop, const sigset_t &mask)
{
	for (int round = 0; !stop; round++) {
		if (link_ && pump()) {
			if (round % rounds == 0)
				sleep(mask, false);
		} else if (may_sleep()) {
			sleep(mask, true);
		}
	}
}

} // namespace coop::ntrdma
