// SPDX-License-Identifier: MIT
// machine_idle.cpp - closing links that are unused; the next use makes a new one.
//
// All links are in one line. The first one is examined when its time has come, and goes to the end
// again if it was used since. So a use costs a store, a link is examined once in a period, and
// there is no search. If a link was not used and nothing is under way on it, this side parts with
// it: it makes a new link for its next operation. The other side, unaware of that, ends what it had
// begun, and says farewell. When there is hardly room for another link, those at the head are
// examined before their time.
#include <cerrno>
#include <utility>

#include "machine.hpp"

namespace coop::net::fabric
{

namespace
{

// Links examined for each new link when room is short: more than one, so that their number falls.
constexpr unsigned looks = 2;

} // namespace

void machine::watch(link &l)
{
	l.look_at = sink_.now() + options_.idle;
	l.earlier = last_link_;
	l.later = nullptr;
	(last_link_ ? last_link_->later : first_link_) = &l;
	last_link_ = &l;
}

void machine::unwatch(link &l)
{
	(l.earlier ? l.earlier->later : first_link_) = l.later;
	(l.later ? l.later->earlier : last_link_) = l.earlier;
}

void machine::look(link &l)
{
	unwatch(l);
	watch(l);
	const bool used = std::exchange(l.used, false);
	if (l.state == link::state::ready && !used && l.quiet())
		part(l);
	else if (l.state == link::state::closing && !l.works && std::exchange(l.late, true))
		unlinked(l, -ETIMEDOUT); // it never sent farewell
}

void machine::look_at_links(time_point now)
{
	while (first_link_ && first_link_->look_at <= now)
		look(*first_link_);
}

void machine::make_room()
{
	if (live_links_ < options_.max_links - options_.max_links / 8)
		return;
	for (unsigned n = 0; n < looks && first_link_; n++)
		look(*first_link_);
}

// Closes an idle link, on both sides.
void machine::part(link &l)
{
	control c;
	c.verb = control::verb::bye;
	c.length = 1;
	send(l, c);
	if (peers_[l.peer].link == &l)
		peers_[l.peer].link = nullptr;
	if (l.state == link::state::ready)
		l.state = link::state::closing;
}

// The peer begins nothing on this link any more; to send, this side makes another one.
void machine::on_bye(link &l, bool idle)
{
	if (peers_[l.peer].link == &l)
		peers_[l.peer].link = nullptr;
	l.leaving = idle && l.state == link::state::ready && !l.quiet();
	if (l.leaving)
		return; // farewell is sent when that has ended
	control f;
	f.verb = control::verb::farewell;
	send(l, f);
	if (l.state == link::state::ready)
		l.state = link::state::closing;
}

void machine::on_farewell(link &l)
{
	if (l.state != link::state::closing)
		return;
	l.left = l.taken && !stopping_;
	if (!l.left)
		unlinked(l, -ECONNRESET);
}

// Something on the link has ended, within a call that may still need the link.
void machine::take_leave(link &l)
{
	if (l.leaving || l.left)
		leaving_.join(&l, link::leaving_place);
}

void machine::take_leaves()
{
	const std::vector<link *> all(leaving_.begin(), leaving_.end());
	for (link *l : all) {
		leaving_.leave(l, link::leaving_place);
		if (l->leaving)
			on_bye(*l, true);
		else if (l->left)
			on_farewell(*l);
	}
}

} // namespace coop::net::fabric
