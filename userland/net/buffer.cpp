// SPDX-License-Identifier: MIT
// buffer.cpp - registering and deregistering memory.
//
// Limits are checked here, so a transport sees only lists within its declared limits.
#include "coop/net/buffer.hpp"

#include <cerrno>
#include <sys/resource.h>
#include <system_error>
#include <utility>

#include "buffer_state.hpp"
#include "domain_state.hpp"
#include "fatal.hpp"
#include "pool_state.hpp"

namespace coop::net
{

namespace core
{

namespace
{

[[noreturn]] void refuse(int error, const std::string &text)
{
	throw std::system_error(error, std::generic_category(), text);
}

// Drivers report the limit of locked memory by different errors.
std::string unregistered(int error, std::size_t size)
{
	std::string text = "memory of a buffer (" + std::to_string(size) +
			   " bytes) cannot be registered with the device";
	rlimit limit{};
	if ((error != ENOMEM && error != EAGAIN && error != EPERM) ||
	    ::getrlimit(RLIMIT_MEMLOCK, &limit))
		return text;
	text += "; raise the limit of locked memory (ulimit -l; it is ";
	text += limit.rlim_cur == RLIM_INFINITY ? "unlimited"
						: std::to_string(limit.rlim_cur / 1024) + " KiB";
	return text + "), or make fewer or smaller buffers";
}

} // namespace

buffer_state::buffer_state(std::shared_ptr<domain_state> d, std::span<const segment> list) :
	domain(std::move(d)),
	segments_(list.begin(), list.end())
{
	const domain_limits &limits = domain->limits();
	if (list.empty())
		refuse(EINVAL, "a buffer without segments");
	if (list.size() > limits.max_segments)
		refuse(E2BIG, "a buffer of " + std::to_string(list.size()) + " segments; " +
				      std::to_string(limits.max_segments) + " are allowed");
	for (const segment &s : list) {
		if (!s.base || !s.length)
			refuse(EINVAL, "a buffer with an empty segment");
		if (s.length > limits.max_segment || s.length > limits.max_buffer - memory.size)
			refuse(EFBIG, "a buffer larger than the limit of its domain");
		memory.size += s.length;
	}
	memory.segments = segments_;
	if (int r = domain->transport().register_memory(memory.segments, &memory.registration))
		refuse(-r, unregistered(-r, memory.size));
	domain->add_child();
}

buffer_state::~buffer_state()
{
	domain->transport().deregister_memory(memory.registration);
	domain->remove_child();
}

} // namespace core

buffer::buffer(domain &d, std::span<const segment> segments) :
	state_(std::make_unique<core::buffer_state>(core::domain_state::of(d), segments))
{
	state_->handle = this;
}

buffer::buffer(domain &d, void *base, std::size_t length) :
	buffer(d, std::span(std::initializer_list<segment>{{base, length}}.begin(), 1))
{
}

buffer::buffer(buffer &&o) noexcept : state_(std::move(o.state_))
{
	if (state_)
		state_->handle = this;
}

buffer &buffer::operator=(buffer &&o) noexcept
{
	if (state_ && state_->queued())
		core::fatal("a buffer was assigned to while it was queued");
	state_ = std::move(o.state_);
	if (state_)
		state_->handle = this;
	return *this;
}

buffer::~buffer()
{
	if (state_ && state_->queued())
		core::fatal("a buffer was destroyed while it was queued");
}

std::span<const segment> buffer::segments() const noexcept
{
	return state_->memory.segments;
}

std::size_t buffer::size() const noexcept
{
	return state_->memory.size;
}

bool buffer::queued() const noexcept
{
	return state_->queued();
}

std::span<const std::byte> buffer::descriptor() const noexcept
{
	return state_->descriptor;
}

buffer_pool *buffer::pool() const noexcept
{
	return state_->pooled.pool ? state_->pooled.pool->handle : nullptr;
}

} // namespace coop::net
