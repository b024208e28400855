// SPDX-License-Identifier: MIT
// reader.cpp - a program that reads whole files, one after the other, with a window of readahead.
#include <algorithm>
#include <numeric>

#include "tests/sim/scale/node.hpp"
#include "tests/sim/scale/world.hpp"

namespace coop::scale
{

void node::arrive()
{
	const shape &s = w_.is();
	started_at_ = w_.time().now();
	if (s.shuffled) {
		sim::dice own(sim::mix(s.seed ^ 0x6f72646572, number_));
		order_.resize(s.units);
		std::iota(order_.begin(), order_.end(), u16{0});
		for (u32 i = s.units; i > 1; --i)
			std::swap(order_[i - 1], order_[own.below(i)]);
	}
	if (opened(0))
		read_on();
	else
		open(0);
}

void node::start_open(u32 file)
{
	open_.push_back({file,
			 w_.members().roles_of(file, number_),
			 w_.members().openers(file, number_),
			 {}});
}

void node::open(u32 file)
{
	w_.time().after(w_.is().delay_ns + w_.is().host_ns, what::open, number_, life_, file);
}

void node::open_reply(u32 file)
{
	open_.push_back({file,
			 w_.members().roles_of(file, number_),
			 w_.members().openers(file, number_),
			 {}});
	file_ = file;
	next_ = issued_ = 0;
	read_on();
}

// Readahead of a file in order reaches so far ahead of the program. One in an order of its own has
// so many units under way, as loaders of shuffled data do.
bool node::room() const
{
	const u32 window = w_.is().window;
	return order_.empty() ? issued_ < next_ + window : wanted_ < window;
}

// Moves on over units that are here, and keeps the window full.
void node::read_on()
{
	const shape &s = w_.is();
	if (finished_at_ || !started_at_)
		return;
	const u32 file = file_;
	while (next_ < s.units && have(file, unit_at(next_)) == all())
		++next_;
	issued_ = std::max(issued_, next_);
	while (issued_ < s.units && room()) {
		const u32 unit = unit_at(issued_);
		if (have(file, unit) != all()) {
			const u32 l = find(file, unit);
			if (l == nobody) {
				if (start_load(file, unit, own_level(opened(file), unit), false,
					       now_us() + (s.coop ? s.budget_us
								  : s.peer_timeout_us)) == nobody)
					break; // the end of a load makes room
			} else {
				wanted_ += !loads_[l].reader;
				loads_[l].reader = true;
			}
		}
		++issued_;
	}
	if (next_ < s.units)
		return;
	if (file + 1 < s.files) {
		w_.members().leave(file, number_, false);
		w_.changed();
		std::erase_if(open_, [=](const open_file &f) { return f.file == file; });
		++file_;
		next_ = issued_ = 0;
		open(file_);
		return;
	}
	finished_at_ = w_.time().now();
	w_.reader_done();
}

} // namespace coop::scale
