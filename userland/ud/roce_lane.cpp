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
	if (usable_ || refused_ || ++alike_ < sends_in_a_row)
		return;
	if (is_open()) { // another's
		leave();
		alike_ = sends_in_a_row - 1; // until it has gone
		return;
	}
	alike_ = 0;
	fd_ = socket_.open_connected(to_);
	refused_ = !is_open();
	peer_ = to_;
	usable_ = others_first_ = is_open();
	empty_ = 0;
}

// Whoever has much to say there does not keep the lane waiting.
void roce_lane::looked_at_others(bool found)
{
	others_first_ = others_first_ && found;
	looks_ = found ? looks_a_turn - 2 : 0;
}

void roce_lane::looked(bool found)
{
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
