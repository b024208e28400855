// SPDX-License-Identifier: MIT
// sends.cpp - see sends.hpp.
#include "sends.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace coop::net::fabric
{

namespace
{

// Most messages that a peer can make us queue by not receiving.
constexpr std::size_t urgent_most = 1u << 16;
// Most answers to a peer that are not sent yet; one in answers_told reports when it is sent.
constexpr std::uint64_t answers_most = 1024, answers_told = 64;
// Enough for most control messages: a peer can make us keep many of those.
constexpr std::size_t small_copy = 128;
// Interval of polling while libfabric has work and does not tell us when it can go on.
constexpr std::chrono::microseconds tick{50};

} // namespace

// libfabric queues what the peer does not read: tcp never reports a lack of room, nor the end of an
// injected send. So count the answers. (Our own operations bound what we send for them.)
void sends::answer(link &l, const control &c)
{
	if (l.answers - l.answers_gone >= answers_most)
		return env_.endings.fail(l, -ENOBUFS);
	send(l, c, ++l.answers % answers_told ? 0 : l.answers);
}

void sends::refuse(link &l, std::uint32_t peer_id, int status)
{
	control c;
	c.verb = control::verb::done;
	c.peer = peer_id;
	c.status = status;
	answer(l, c);
}

// The peer learns of the room from our next word, or early enough to continue without a pause.
void sends::consumed(link &l)
{
	l.taken--;
	env_.endings.ended_on(l);
	if (++l.owed >= env_.options.window / 2) {
		control c;
		c.verb = control::verb::credit;
		answer(l, c);
	}
}

// nth: ordinal of the answer, if we want to know when it has been sent; else 0.
void sends::send(link &l, const control &c, std::uint64_t nth)
{
	if (l.state != link::state::ready && l.state != link::state::closing)
		return;
	std::byte text[control::size_most];
	const std::size_t n = encode(c, text);
	if (n <= env_.inject && l.urgent.empty() && !nth) {
		const std::uint64_t w = l.stamp(kind::control);
		const ssize_t r = fi_injectdata(l.ep, text, n, w, l.dest);
		if (r == 0)
			return l.stamped(w);
		if (r != -FI_EAGAIN)
			return env_.endings.fail(l, -ECONNRESET);
	}
	bounce *b = l.urgent.size() < urgent_most ? make_copy(n, kind::control) : nullptr;
	if (!b)
		return env_.endings.fail(l, -ENOBUFS);
	std::memcpy(b->data, text, n);
	b->answer = nth;
	const int r = l.urgent.empty() ? post(l, *b) : -EAGAIN;
	if (r == 0)
		return;
	if (r != -EAGAIN) {
		free(*b);
		return env_.endings.fail(l, -ECONNRESET);
	}
	queue(l, *b);
}

int sends::post(link &l, bounce &b)
{
	const std::uint64_t data = l.stamp(b.what);
	const bool injected = b.length <= env_.inject && !b.answer;
	ssize_t r;
	if (injected) {
		r = fi_injectdata(l.ep, b.data, b.length, data, l.dest);
	} else {
		const iovec piece{b.data, b.length};
		fi_msg m{&piece, &b.desc, 1, l.dest, static_cast<posted *>(&b), data};
		r = fi_sendmsg(l.ep, &m, FI_COMPLETION | FI_REMOTE_CQ_DATA);
	}
	if (r)
		return static_cast<int>(r);
	l.stamped(data);
	if (injected) {
		free(b);
	} else {
		posted_on(l, b);
		b.in_use = true;
	}
	return 0;
}

void sends::completed(bounce &b)
{
	out_--;
	if (link *l = take_off(b))
		l->answers_gone = std::max(l->answers_gone, b.answer);
	b.in_use = false;
	free(b);
}

bounce *sends::make_copy(std::size_t length, kind what)
{
	const bool small = length <= small_copy;
	std::vector<bounce *> &unused = small ? small_ : large_;
	if (unused.empty()) {
		const std::size_t size = small ? small_copy : env_.buffer_size;
		bounce &b = copies_.emplace_back(role::copy);
		b.small = small;
		b.own.reset(new std::byte[size]);
		b.data = b.own.get();
		if (env_.memory.enter_own(b.data, size, FI_SEND, b.region, b.desc)) {
			copies_.pop_back();
			return nullptr;
		}
		unused.push_back(&b);
	}
	bounce *b = unused.back();
	unused.pop_back();
	b->length = length;
	b->what = what;
	b->answer = 0;
	return b;
}

void sends::posted_on(link &l, posted &p)
{
	out_++;
	if (!env_.port.wakes())
		nudge();
	if (p.on)
		return;
	p.on = &l;
	p.on_before = nullptr;
	p.on_after = l.under_way;
	if (l.under_way)
		l.under_way->on_before = &p;
	l.under_way = &p;
	posting_.join(&l, link::posting_place);
}

// No completion for `p` is to come.
link *sends::take_off(posted &p)
{
	link *l = std::exchange(p.on, nullptr);
	if (!l)
		return nullptr;
	(p.on_before ? p.on_before->on_after : l->under_way) = p.on_after;
	if (p.on_after)
		p.on_after->on_before = p.on_before;
	if (!l->under_way)
		posting_.leave(l, link::posting_place);
	return l;
}

void sends::completed(work &w)
{
	out_--;
	if (w.out && --w.out == 0)
		(void)take_off(w);
}

void sends::forget_copies()
{
	for (bounce &b : copies_)
		if (b.in_use)
			completed(b);
}

void sends::detach(link &l)
{
	while (l.under_way)
		(void)take_off(*l.under_way);
	backlog_.leave(&l, link::backlog_place);
}

void sends::close_regions()
{
	for (bounce &b : copies_)
		b.region.reset();
}

void sends::nudge()
{
	if (tick_ == never)
		tick_ = env_.sink.now() + tick;
}

void sends::try_again(link &l)
{
	if (l.backlog_at)
		return;
	backlog_.join(&l, link::backlog_place);
	nudge();
}

void sends::expire(time_point now)
{
	if (tick_ > now)
		return;
	tick_ = never;
	// A connection that has room again reports a completion.
	if (!env_.provider.connected() && (!backlog_.empty() || (out_ && !env_.port.wakes())))
		tick_ = now + tick;
}

} // namespace coop::net::fabric
