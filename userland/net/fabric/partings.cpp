// SPDX-License-Identifier: MIT
// partings.cpp - see partings.hpp.
#include "partings.hpp"

#include <utility>

namespace coop::net::fabric
{

namespace
{

// Links examined for each new link when room is short: more than one, so that their number falls.
constexpr unsigned looks = 2;

} // namespace

void partings::watch(link &l)
{
	l.look_at = env_.sink.now() + env_.options.idle;
	l.earlier = last_;
	l.later = nullptr;
	(last_ ? last_->later : first_) = &l;
	last_ = &l;
}

void partings::unwatch(link &l)
{
	(l.earlier ? l.earlier->later : first_) = l.later;
	(l.later ? l.later->earlier : last_) = l.earlier;
}

void partings::look(link &l)
{
	unwatch(l);
	watch(l);
	const bool used = std::exchange(l.used, false);
	if (l.ready() && !used && l.quiet())
		part(l, true);
	else if (l.state == link::state::closing && !l.works && std::exchange(l.late, true))
		env_.endings.fail(l, -ETIMEDOUT); // it never sent farewell
}

void partings::make_room()
{
	for (unsigned n = 0; n < looks && first_; n++)
		look(*first_);
}

void partings::part(link &l, bool idle)
{
	control c;
	c.verb = control::verb::bye;
	c.length = idle;
	sends_.send(l, c);
	peers_.forget(l);
	if (l.ready())
		l.state = link::state::closing;
}

// The peer begins nothing on this link any more; to send, this side makes another one.
void partings::on_bye(link &l, bool idle)
{
	peers_.forget(l);
	l.leaving = idle && l.ready() && !l.quiet();
	if (l.leaving)
		return; // farewell is sent when that has ended
	control f;
	f.verb = control::verb::farewell;
	sends_.send(l, f);
	if (l.ready())
		l.state = link::state::closing;
}

void partings::on_farewell(link &l)
{
	if (l.state != link::state::closing)
		return;
	l.left = l.taken && !stopping_;
	if (!l.left)
		env_.endings.fail(l, -ECONNRESET);
}

void partings::take_leaves()
{
	for (link *l : env_.endings.take_leaving())
		if (l->leaving)
			on_bye(*l, true);
		else if (l->left)
			on_farewell(*l);
}

} // namespace coop::net::fabric
