// SPDX-License-Identifier: MIT
// receives.cpp - see receives.hpp.
#include "receives.hpp"

#include <algorithm>
#include <cerrno>

namespace coop::net::kernel
{

receives::receives(handles &h, rings &r, const address &own, spi::sink &s) :
	handles_(h),
	rings_(r),
	own_(own),
	sink_(s)
{
}

int receives::add(spi::token t, const spi::transfer &x, std::uint32_t buffer)
{
	receive r;
	r.token = t;
	r.memory = x.memory;
	r.size = x.length;
	r.min_size = x.min_receive_size;
	r.left = x.max_receive_msgs;
	r.buffer = buffer;
	all_.push_back(std::move(r));
	by_token_[t] = std::prev(all_.end());
	home_++;
	return 0;
}

void receives::give(receive &r)
{
	const std::uint32_t h = handles_.take(handles::use::receive, 0);
	if (h == handles::none)
		return; // later
	if (by_handle_.size() <= h)
		by_handle_.resize(h + 1);
	by_handle_[h] = by_token_[r.token];
	r.handle = h;
	r.home = false;
	home_--;
	coop_net_op op{};
	op.code = COOP_NET_RECV;
	op.handle = h;
	op.buffer = r.buffer;
	op.length = r.size;
	op.u.recv.min_size = r.min_size;
	op.u.recv.max_messages = r.left;
	rings_.push(op);
}

void receives::give()
{
	// A new one is at the end.
	for (auto r = all_.rbegin(); home_ != 0 && r != all_.rend(); ++r)
		if (r->home)
			give(*r);
}

void receives::finish(place p, int status)
{
	const spi::token t = p->token;
	const bool closed = p->closed;
	home_ -= p->home;
	by_token_.erase(t);
	all_.erase(p);
	if (!closed)
		sink_.completed(t, status, 0);
}

bool receives::cancel(spi::token t)
{
	const auto it = by_token_.find(t);
	if (it == by_token_.end())
		return false;
	receive &r = *it->second;
	if (r.home)
		finish(it->second, -ECANCELED);
	else if (!std::exchange(r.cancelled, true))
		rings_.cancel(r.handle); // over() follows
	return true;
}

void receives::report(receive &r, const message &m)
{
	if (!r.closed && m.from != spi::no_peer) // else no number was left for its sender
		r.closed = !sink_.received_in(r.token, m.offset, m.length, m.from);
	if (m.own && --unreported_ == 0)
		sink_.release(m.from);
}

void receives::received(const coop_net_event &ev, spi::peer_number from)
{
	receive &r = *by_handle_[ev.handle];
	message m{ev.offset, ev.length, from, ev.peer == 0};
	if (m.own) {
		m.from = sink_.peer(own_);
		unreported_++;
	}
	r.filled = std::max(r.filled, m.offset + m.length);
	r.left -= r.left != 0;
	// The core believes that messages come in order.
	if (!(ev.flags & COOP_NET_FINAL) && (full(r) || !r.late.empty()))
		r.late.push_back(m);
	else if (r.late.empty())
		report(r, m);
	else
		r.late.push_back(m);
	if (ev.flags & COOP_NET_FINAL)
		over(ev);
}

void receives::over(const coop_net_event &ev)
{
	const place p = by_handle_[ev.handle];
	receive &r = *p;
	handles_.release(ev.handle);
	// The one that reaches furthest is the last.
	std::sort(r.late.begin(), r.late.end(),
		  [](const message &a, const message &b) { return a.offset < b.offset; });
	for (const message &m : std::exchange(r.late, {}))
		report(r, m);
	if (r.closed)
		finish(p, 0);
	else if (r.cancelled)
		finish(p, -ECANCELED);
	else
		finish(p, ev.code == COOP_NET_RECV_OVER ? ev.status : 0);
}

} // namespace coop::net::kernel
