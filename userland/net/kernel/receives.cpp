// SPDX-License-Identifier: MIT
// receives.cpp - see receives.hpp.
#include "receives.hpp"

#include <algorithm>
#include <cerrno>

namespace coop::net::kernel
{

receives::receives(handles &h, rings &r, spi::sink &s) : handles_(h), rings_(r), sink_(s) {}

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

// To the module.
void receives::give(receive &r)
{
	const std::uint32_t h = handles_.take(handles::use::receive, 0);
	if (h == handles::none)
		return; // later
	if (by_handle_.size() <= h)
		by_handle_.resize(h + 1);
	by_handle_[h] = by_token_[r.token];
	r.handle = h;
	r.base = r.filled;
	r.at = where::module;
	home_--;
	coop_net_op op{};
	op.code = COOP_NET_RECV;
	op.handle = h;
	op.buffer = r.buffer;
	op.offset = r.base;
	op.length = r.size - r.base;
	op.u.recv.min_size = r.min_size;
	op.u.recv.max_messages = r.left;
	rings_.push(op);
}

void receives::give_back()
{
	// A new one is at the end.
	for (auto r = all_.rbegin(); home_ != 0 && r != all_.rend(); ++r)
		if (r->at == where::home)
			give(*r);
}

void receives::remove(place p)
{
	if (p->at == where::home)
		home_--;
	by_token_.erase(p->token);
	all_.erase(p);
}

void receives::finish(place p, int status)
{
	const spi::token t = p->token;
	const bool closed = p->closed;
	remove(p);
	if (!closed)
		sink_.completed(t, status, 0);
}

bool receives::cancel(spi::token t)
{
	const auto it = by_token_.find(t);
	if (it == by_token_.end())
		return false;
	receive &r = *it->second;
	r.cancelled = true;
	if (r.at == where::home)
		finish(it->second, -ECANCELED);
	else if (r.at == where::module)
		take_home(r);
	return true;
}

// Asks for it; over() follows.
void receives::take_home(receive &r)
{
	r.at = where::coming;
	rings_.cancel(r.handle);
}

void receives::report(receive &r, const message &m)
{
	if (m.from != spi::no_peer) // else no number was left for its sender
		r.closed |= !sink_.received_in(r.token, m.offset, m.length, m.from);
}

void receives::received(const coop_net_event &ev, spi::peer_number from)
{
	receive &r = *by_handle_[ev.handle];
	const message m{r.base + ev.offset, ev.length, from};
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
		if (!r.closed)
			report(r, m);
	const bool asked_for = r.at == where::coming;
	r.at = where::home;
	home_++;
	if (r.closed)
		finish(p, 0);
	else if (r.cancelled)
		finish(p, -ECANCELED);
	else if (!asked_for || full(r))
		finish(p, ev.code == COOP_NET_RECV_OVER ? ev.status : 0);
}

int receives::deliver(const ud::op &o)
{
	while (!all_.empty()) {
		const place p = all_.begin();
		receive &r = *p;
		if (r.at == where::module)
			take_home(r);
		if (r.at == where::coming)
			return -ENOBUFS;
		if (o.length > r.size - r.filled) {
			if (r.filled == 0)
				return -EMSGSIZE;
			finish(p, 0);
			continue;
		}
		const message m{r.filled, o.length, o.peer};
		spi::copy(r.memory, m.offset, o.memory, 0, o.length);
		r.filled += o.length;
		r.left--;
		report(r, m);
		if (r.closed || full(r))
			finish(p, 0);
		return 0;
	}
	return -ENOBUFS;
}

} // namespace coop::net::kernel
