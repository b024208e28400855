// SPDX-License-Identifier: MIT
// offers.cpp - see offers.hpp.
#include "offers.hpp"

#include <cerrno>

namespace coop::net::kernel
{

all_offers::all_offers(ud::offers &first, std::vector<further_offers *> others, ud::operations &o) :
	first_(first),
	others_(std::move(others)),
	operations_(o)
{
}

all_offers::state &all_offers::of(std::uint32_t index)
{
	if (index >= states_.size())
		states_.resize(index + 1);
	return states_[index];
}

void all_offers::begin(std::uint32_t index)
{
	state &s = of(index) = {};
	first_.begin(index);
	const ud::op &o = operations_[index];
	if (!o.lent)
		return;
	s.open = 1;
	for (unsigned rail = 1; rail <= others_.size(); rail++) {
		further_offers &there = *others_[rail - 1];
		if (lost_ >> rail & 1)
			continue;
		if (o.peer != spi::no_peer && !there.knows(o.peer))
			s.waits |= 1u << rail;
		else if (there.begin(index))
			s.open |= 1u << rail;
	}
	if (s.waits)
		waiting_.insert(index);
}

void all_offers::proven(unsigned rail, spi::peer_number n)
{
	for (auto i = waiting_.begin(); i != waiting_.end();) {
		const std::uint32_t index = *i;
		state &s = states_[index];
		if (s.waits >> rail & 1 && operations_[index].peer == n) {
			s.waits &= ~(1u << rail);
			if (others_[rail - 1]->begin(index))
				s.open |= 1u << rail;
		}
		i = s.waits ? std::next(i) : waiting_.erase(i);
	}
}

void all_offers::end(std::uint32_t index)
{
	state &s = states_[index];
	if (s.ending)
		return;
	close(index, s.open);
	conclude(index);
}

// Takes it back on these rails; it begins on no other.
void all_offers::close(std::uint32_t index, unsigned rails)
{
	state &s = states_[index];
	s.ending = true;
	s.waits = 0;
	waiting_.erase(index);
	if (rails & 1)
		first_.end(index);
	for (unsigned rail = 1; rail <= others_.size(); rail++)
		if (rails >> rail & 1)
			others_[rail - 1]->end(index);
}

bool all_offers::reading(unsigned rail, std::uint32_t index, bool on)
{
	state &s = of(index);
	s.read = on ? s.read | 1u << rail : s.read & ~(1u << rail);
	return s.read;
}

void all_offers::over(unsigned rail, std::uint32_t index, int status)
{
	state &s = of(index);
	s.open &= ~(1u << rail);
	s.read &= ~(1u << rail);
	if (rail == 0 && !s.ending) {
		s.status = status;
		close(index, s.open);
	}
	conclude(index);
}

void all_offers::conclude(std::uint32_t index)
{
	state &s = states_[index];
	if (s.ending && !s.open)
		over_.push_back({index, s.status});
}

std::vector<std::uint32_t> all_offers::lost(unsigned rail)
{
	std::vector<std::uint32_t> paused;
	lost_ |= 1u << rail;
	for (std::uint32_t index = 0; index < states_.size(); index++) {
		state &s = states_[index];
		if (s.waits >> rail & 1 && (s.waits &= ~(1u << rail)) == 0)
			waiting_.erase(index);
		if (!(s.open >> rail & 1))
			continue;
		const bool read = s.read;
		over(rail, index, -ENODEV);
		if (read && !s.read && !s.ending)
			paused.push_back(index);
	}
	return paused;
}

bool all_offers::next_over(end_of &e)
{
	if (over_.empty())
		return false;
	e = over_.back();
	over_.pop_back();
	return true;
}

} // namespace coop::net::kernel
