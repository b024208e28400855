// SPDX-License-Identifier: MIT
// machine_idle.cpp - links that nobody uses are closed, and made anew when somebody does.
//
// All links stand in one line. Whoever is at its head is looked at when its time has come,
// and goes to the end again if it was used since: so a use costs a store, a link is looked at
// once in a period, and nothing is searched for. One that was not used, and on which nothing
// is under way, is parted with: what this side begins goes by a new link from then on. The
// other side ends what it had begun, unaware of that, and says farewell. When there is hardly
// room for another link those at the head are not given the rest of their time.
#include <cerrno>
#include <utility>

#include "machine.hpp"

namespace coop::net::fabric
{

namespace
{

// Looks at others for a new link when room is short: more than one, so that they become fewer.
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
		unlinked(l, -ETIMEDOUT); // it never said farewell
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

// What has been idle is closed by both.
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

// It begins nothing here any more, and whoever wants to send makes another link.
void machine::on_bye(link &l, bool idle)
{
	if (peers_[l.peer].link == &l)
		peers_[l.peer].link = nullptr;
	l.leaving = idle && l.state == link::state::ready && !l.quiet();
	if (l.leaving)
		return; // when that is over
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

// Something of it is over, within a call that may still need the link.
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
