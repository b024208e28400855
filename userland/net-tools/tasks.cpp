// SPDX-License-Identifier: MIT
// tasks.cpp - see tasks.hpp.
#include "tasks.hpp"

#include <cerrno>

namespace coop::net_tools
{

namespace
{

constexpr std::uint64_t samples_at_once = 1 << 20;

net::time_point in(double seconds)
{
	return net::clock::now() + std::chrono::duration_cast<net::clock::duration>(
					   std::chrono::duration<double>(seconds));
}

std::uint64_t ns_between(net::time_point a, net::time_point b)
{
	return static_cast<std::uint64_t>(
		std::chrono::duration_cast<std::chrono::nanoseconds>(b - a).count());
}

// Expected bytes for `mirror`: different in each message.
std::byte expected(std::uint32_t number, std::size_t i)
{
	return static_cast<std::byte>(number * 31 + i * 7 + (i >> 8));
}

} // namespace

ping_task::ping_task(std::size_t size, extent e, bool check) :
	size_(size),
	extent_(e),
	check_(check)
{
	samples_.reserve(std::min(e.count, samples_at_once));
}

void ping_task::go(client &c)
{
	end_ = in(extent_.seconds);
	next(c);
	if (!check_)
		last_ = net::clock::now();
}

void ping_task::next(client &c)
{
	outbox::slot *const s = c.take();
	waiting_ = !s;
	if (!s)
		return;
	number_++;
	if (check_) {
		for (std::size_t i = head::size; i < size_; i++)
			s->data()[i] = expected(number_, i);
		// Filling and comparing are not part of the time.
		last_ = net::clock::now();
	}
	c.send(*s, check_ ? command::mirror : command::echo, number_, size_);
}

void ping_task::sent(client &c)
{
	if (waiting_)
		next(c);
}

void ping_task::message(client &c, const head &h, std::span<const std::byte> m)
{
	if (h.command != command::reply || h.number != number_ || waiting_)
		return; // a duplicate is an error of the transport, and appears as a loss
	if (m.size() != size_) {
		c.fail(-EBADMSG);
		return;
	}
	if (check_) {
		took(net::clock::now());
		for (std::size_t i = head::size; i < size_; i++) {
			if (m[i] != expected(number_, i)) {
				c.fail(-EBADMSG);
				return;
			}
		}
		if (over_)
			c.finish();
		else
			next(c);
		return;
	}
	// A round trip lasts from one send to the next, so that reading the clock delays no send.
	const bool last = over_ || samples_.size() + 1 == extent_.count;
	if (!last)
		next(c);
	took(net::clock::now());
	if (last)
		c.finish();
}

void ping_task::took(net::time_point now)
{
	samples_.push_back(ns_between(last_, now));
	last_ = now;
	over_ = now >= end_ || samples_.size() == extent_.count;
}

stream_task::stream_task(std::size_t size, extent e, unsigned depth) :
	size_(size),
	extent_(e),
	depth_(depth)
{
}

void stream_task::go(client &c)
{
	end_ = in(extent_.seconds);
	next(c);
}

void stream_task::next(client &c)
{
	constexpr std::uint64_t sends_a_look = 64;
	while (!over_ && under_way_ < depth_) {
		outbox::slot *const s = c.take();
		if (!s)
			return;
		under_way_++;
		sent_++;
		over_ = sent_ == extent_.count ||
			(sent_ % sends_a_look == 0 && net::clock::now() >= end_);
		c.send(*s, command::count, static_cast<std::uint32_t>(sent_), size_);
	}
}

void stream_task::sent(client &c)
{
	under_way_--;
	if (!over_)
		next(c);
	else if (under_way_ == 0)
		c.finish();
}

bulk_task::bulk_task(client &c, command direction, std::size_t size, extent e, unsigned depth) :
	client_(c),
	direction_(direction),
	size_(size),
	extent_(e)
{
	for (unsigned i = 0; i < depth; i++) {
		memory m = allocate(size);
		std::byte *const base = m.get();
		pieces_.push_back(std::make_unique<piece>(
			piece{std::move(m), net::buffer(c.at().domain(), base, size)}));
	}
	samples_.reserve(std::min(e.count, samples_at_once));
}

void bulk_task::go(client &)
{
	end_ = in(extent_.seconds);
	for (const auto &p : pieces_)
		if (begun_ < extent_.count)
			begin(*p);
}

void bulk_task::begin(piece &p)
{
	net::operation o;
	o.queue = direction_ == command::fetch ? net::queue_type::passive_bulk_send
					       : net::queue_type::passive_bulk_recv;
	o.to = client_.server();
	o.handler = this;
	o.context = &p;
	begun_++;
	under_way_++;
	p.began = net::clock::now();
	if (const int status = client_.at().machine().add(p.buffer, o)) {
		client_.fail(status);
		return;
	}
	if (outbox::slot *s = client_.take())
		ask_for(p, *s);
	else
		unasked_.push_back(&p);
}

void bulk_task::ask_for(piece &p, outbox::slot &s)
{
	const auto d = p.buffer.descriptor();
	put64(s.data() + head::size, size_);
	std::copy(d.begin(), d.end(), s.data() + offer_size);
	client_.send(s, direction_, static_cast<std::uint32_t>(begun_), offer_size + d.size());
}

void bulk_task::sent(client &c)
{
	if (unasked_.empty())
		return;
	piece *const p = unasked_.back();
	unasked_.pop_back();
	ask_for(*p, *c.take());
}

void bulk_task::message(client &c, const head &h, std::span<const std::byte> m)
{
	if (h.command != command::failed || m.size() != failed_size)
		return;
	const auto status = static_cast<std::int64_t>(get64(m.data() + head::size));
	c.fail(status < 0 && status > -4096 ? static_cast<int>(status) : -EBADMSG);
}

void bulk_task::on_buffer(const net::buffer_event &e)
{
	client_.step();
	piece &p = *static_cast<piece *>(e.context);
	under_way_--;
	if (e.status) {
		client_.fail(e.status);
		return;
	}
	if (e.length != size_) {
		client_.fail(-EBADMSG);
		return;
	}
	const net::time_point now = net::clock::now();
	samples_.push_back(ns_between(p.began, now));
	if (begun_ < extent_.count && now < end_)
		begin(p);
	else if (under_way_ == 0)
		client_.finish();
}

} // namespace coop::net_tools
