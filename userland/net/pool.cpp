// SPDX-License-Identifier: MIT
// pool.cpp - see pool_state.hpp for the lists.
//
// Each call sweeps a few buffers, from the one idle longest, and stops at the first whose colour is
// still valid.
#include "coop/net/buffer_pool.hpp"

#include <cerrno>
#include <cstdlib>
#include <new>
#include <system_error>

#include "domain_state.hpp"
#include "fatal.hpp"
#include "machine.hpp"
#include "pool_state.hpp"

namespace coop::net
{

namespace core
{

namespace
{

constexpr std::size_t page = 4096;
constexpr unsigned swept_a_call = 4;

} // namespace

pool_state::pool_state(std::shared_ptr<domain_state> d, net::domain &h, const pool_options &o,
		       buffer_pool *p) :
	domain(std::move(d)),
	handle(p),
	domain_handle_(h),
	options_(o)
{
	if (o.segments == 0 || o.segment_size == 0)
		throw std::system_error(EINVAL, std::generic_category(),
					"a pool of buffers without memory");
	domain->add_child();
}

pool_state::~pool_state()
{
	domain->let_go(*this);
	domain->remove_child();
}

void pool_state::list::push(buffer_state *b)
{
	auto &e = b->pooled;
	e.previous = nullptr;
	e.next = head;
	(head ? head->pooled.previous : tail) = b;
	head = b;
}

void pool_state::list::erase(buffer_state *b)
{
	auto &e = b->pooled;
	(e.previous ? e.previous->pooled.next : head) = e.next;
	(e.next ? e.next->pooled.previous : tail) = e.previous;
}

void pool_state::push(buffer_state *b)
{
	auto &e = b->pooled;
	if (e.colour == buffer_pool::no_colour) {
		plain_.push(b);
		return;
	}
	coloured_.push(b);
	if (e.colour >= heads_.size())
		heads_.resize(e.colour + 1);
	buffer_state *&head = heads_[e.colour];
	e.colour_previous = nullptr;
	e.colour_next = head;
	if (head)
		head->pooled.colour_previous = b;
	head = b;
}

void pool_state::erase(buffer_state *b)
{
	auto &e = b->pooled;
	if (e.colour == buffer_pool::no_colour) {
		plain_.erase(b);
		return;
	}
	coloured_.erase(b);
	(e.colour_previous ? e.colour_previous->pooled.colour_next : heads_[e.colour]) =
		e.colour_next;
	if (e.colour_next)
		e.colour_next->pooled.colour_previous = e.colour_previous;
}

void pool_state::sweep(time_point now)
{
	for (unsigned i = 0; i < swept_a_call; i++) {
		buffer_state *b = coloured_.tail;
		if (!b || now - b->pooled.put < options_.affinity)
			return;
		erase(b);
		b->pooled.colour = buffer_pool::no_colour;
		push(b);
	}
}

pool_state::taken pool_state::take(std::uint32_t colour)
{
	std::lock_guard guard(lock_);
	if (coloured_.tail)
		sweep(clock::now());
	buffer_state *b = nullptr;
	if (colour < heads_.size())
		b = heads_[colour];
	if (!b)
		b = plain_.head;
	if (!b)
		b = coloured_.tail;
	if (!b)
		return {nullptr, false};
	erase(b);
	b->pooled.in = false;
	b->pooled.colour = colour;
	const std::uint32_t left = free.load(std::memory_order_relaxed) - 1;
	free.store(left);
	return {b, left + 1 == options_.threshold};
}

int pool_state::give(buffer_state *b, bool &first)
{
	first = false;
	if (!b || b->pooled.pool != this)
		return -EINVAL;
	if (b->queued())
		return -EBUSY;
	std::lock_guard guard(lock_);
	if (b->pooled.in)
		return -EINVAL;
	const time_point now = clock::now();
	b->pooled.in = true;
	b->pooled.put = now;
	push(b);
	sweep(now);
	const std::uint32_t before = free.load(std::memory_order_relaxed);
	free.store(before + 1);
	first = before == 0;
	return 0;
}

int pool_state::grow(std::uint32_t n)
{
	try {
		while (n--) {
			const std::size_t size = buffer_size();
			owned o{{static_cast<std::byte *>(
					 std::aligned_alloc(page, (size + page - 1) / page * page)),
				 [](std::byte *p) { std::free(p); }},
				nullptr};
			if (!o.memory)
				return -ENOMEM;
			std::vector<segment> list;
			for (std::uint32_t i = 0; i < options_.segments; i++)
				list.push_back({o.memory.get() + i * options_.segment_size,
						options_.segment_size});
			o.buffer = std::make_unique<net::buffer>(domain_handle_, list);
			buffer_state *b = state_of(*o.buffer);
			b->pooled.pool = this;
			b->pooled.colour = buffer_pool::no_colour;
			bool first;
			{
				std::lock_guard guard(lock_);
				owned_.push_back(std::move(o));
			}
			total.fetch_add(1);
			if (give(b, first) == 0 && first)
				tell_not_empty();
		}
		return 0;
	} catch (const std::system_error &e) {
		return -e.code().value();
	} catch (const std::bad_alloc &) {
		return -ENOMEM;
	}
}

void pool_state::tell_below()
{
	if (options_.handler)
		options_.handler->below_threshold(*handle);
}

void pool_state::tell_not_empty()
{
	if (options_.handler)
		options_.handler->not_empty(*handle);
	if (waiting_.load() != 0)
		domain->provision(*this);
}

pool_state::short_list::iterator pool_state::add_short(machine &m)
{
	std::lock_guard guard(short_lock_);
	const auto at = short_.insert(short_.end(), &m);
	waiting_.fetch_add(1);
	return at;
}

void pool_state::remove_short(short_list::iterator at)
{
	std::lock_guard guard(short_lock_);
	waiting_.fetch_sub(1);
	short_.erase(at);
}

std::shared_ptr<machine> pool_state::next_short()
{
	std::lock_guard guard(short_lock_);
	if (short_.empty() || free.load() == 0)
		return nullptr;
	short_.splice(short_.end(), short_, short_.begin());
	return short_.back()->shared_from_this();
}

buffer_state *pool_state::state_of(net::buffer &b)
{
	return b.state_.get();
}

pool_state &pool_state::of(buffer_pool &p)
{
	return *p.state_;
}

} // namespace core

buffer_pool::buffer_pool(domain &d, const pool_options &o) :
	state_(std::make_shared<core::pool_state>(core::domain_state::of(d), d, o, this))
{
	if (int r = state_->grow(o.buffers))
		throw std::system_error(-r, std::generic_category(), "buffers of a pool");
}

buffer_pool::~buffer_pool()
{
	if (state_->attached != 0)
		core::fatal("a pool was destroyed before a transfer machine that it serves");
	if (state_->free != state_->total)
		core::fatal("a pool was destroyed while buffers of it were out");
}

buffer *buffer_pool::get(std::uint32_t colour)
{
	const auto t = state_->take(colour < max_colours ? colour : no_colour);
	if (t.below)
		state_->tell_below();
	return t.buffer ? t.buffer->handle : nullptr;
}

int buffer_pool::put(buffer *b)
{
	bool first;
	const int r = state_->give(b ? core::pool_state::state_of(*b) : nullptr, first);
	if (first)
		state_->tell_not_empty();
	return r;
}

int buffer_pool::grow(std::uint32_t n)
{
	return state_->grow(n);
}

std::uint32_t buffer_pool::free() const noexcept
{
	return state_->free.load();
}

std::size_t buffer_pool::buffer_size() const noexcept
{
	return state_->buffer_size();
}

std::uint32_t buffer_pool::total() const noexcept
{
	return state_->total.load();
}

} // namespace coop::net
