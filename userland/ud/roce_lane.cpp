// SPDX-License-Identifier: MIT
// roce_lane.cpp - see roce_lane.hpp.
#include "userland/ud/roce_lane.hpp"

#include <unistd.h>

namespace coop::ud
{

void roce_lane::turn(const any_sockaddr &to)
{
	to_ = to;
	alike_ = 0;
	usable_ = is_open() && !leaving_ && socket_.same(to_, peer_);
}

void roce_lane::sent()
{
	if (usable_ || polls_ < polls_awake || ++alike_ < needed_)
		return;
	if (is_open()) { // another peer's: wait until it has closed
		leave();
		alike_ = needed_ - 1;
		return;
	}
	alike_ = 0;
	fd_ = socket_.open_connected(to_);
	needed_ = is_open() ? sends_in_a_row : sends_after_failure;
	peer_ = to_;
	usable_ = is_open();
	others_first_ = others_at_first;
	empty_ = found_ = 0;
}

void roce_lane::rest()
{
	polls_ = 0;
	leave();
}

// A program that has not polled for longer must see all that arrived meanwhile before it runs
// timers.
bool roce_lane::others_overdue() const
{
	return std::chrono::steady_clock::now() - others_at_ >= others_every;
}

// A busy socket of the others must not starve the lane.
void roce_lane::looked_at_others(bool found)
{
	others_first_ = found && others_first_ ? others_first_ - 1 : 0;
	found_ = found ? found_a_turn - 1 : 0;
	if (!found)
		others_at_ = std::chrono::steady_clock::now();
}

void roce_lane::looked(bool found)
{
	found_ += found;
	if (found)
		empty_ = 0;
	else if (leaving_)
		close();
	else if (++empty_ == empty_looks)
		leave();
}

void roce_lane::leave()
{
	alike_ = 0;
	if (!is_open() || leaving_)
		return;
	usable_ = false;
	leaving_ = true;
	socket_.divert(fd_);
}

void roce_lane::close()
{
	if (is_open())
		::close(fd_);
	fd_ = -1;
	usable_ = leaving_ = false;
}

} // namespace coop::ud
