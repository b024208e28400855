// SPDX-License-Identifier: MIT
// transfer_machine.cpp - the handle: forwards every call to the machine.
//
// End points that outlive it and the domain's thread share the machine.
#include "coop/net/transfer_machine.hpp"

#include <cerrno>

#include "machine.hpp"

namespace coop::net
{

transfer_machine::transfer_machine(domain &d, tm_handler *h) :
	state_(std::make_shared<core::machine>(*this, core::domain_state::of(d), h))
{
}

transfer_machine::~transfer_machine()
{
	state_->end();
}

int transfer_machine::confine(std::span<const unsigned> cpus)
{
	return state_->confine(cpus);
}

int transfer_machine::deliver_synchronously()
{
	return state_->deliver_synchronously();
}

int transfer_machine::poll_before_block(std::chrono::microseconds t)
{
	return state_->poll_before_block(t);
}

int transfer_machine::attach(buffer_pool &pool, buffer_handler &h, std::size_t min_receive_size,
			     std::uint32_t max_receive_msgs)
{
	return state_->attach(core::pool_state::of(pool), h, min_receive_size, max_receive_msgs);
}

int transfer_machine::set_pool_length(std::uint32_t n)
{
	return state_->set_pool_length(n);
}

int transfer_machine::set_colour(std::uint32_t c)
{
	return state_->set_colour(c);
}

int transfer_machine::start(std::string_view address)
{
	return state_->start(address);
}

int transfer_machine::stop(bool abort)
{
	return state_->stop(abort);
}

int transfer_machine::fini()
{
	return state_->fini();
}

tm_state transfer_machine::state() const noexcept
{
	return state_->state();
}

int transfer_machine::wait(tm_state wanted, time_point deadline)
{
	return state_->wait(wanted, deadline);
}

net::address transfer_machine::address() const
{
	return state_->address();
}

std::uint32_t transfer_machine::colour() const noexcept
{
	return state_->colour();
}

int transfer_machine::make_endpoint(std::string_view text, endpoint_ptr &out)
{
	net::address a;
	if (int r = parse(text, a))
		return r;
	return state_->make_endpoint(a, out);
}

int transfer_machine::make_endpoint(const net::address &a, endpoint_ptr &out)
{
	return state_->make_endpoint(a, out);
}

std::size_t transfer_machine::endpoints() const
{
	return state_->endpoints();
}

int transfer_machine::add(buffer &b, const operation &op)
{
	return state_->add(b, op);
}

bool transfer_machine::del(buffer &b)
{
	return state_->del(b);
}

std::size_t transfer_machine::queued(queue_type q) const
{
	return state_->queued(q);
}

std::uint32_t transfer_machine::receive_deficit() const noexcept
{
	return state_->receive_deficit();
}

bool transfer_machine::pending()
{
	return state_->pending();
}

std::size_t transfer_machine::deliver_all()
{
	return state_->deliver_all();
}

int transfer_machine::notify(channel &c)
{
	return state_->notify(c);
}

queue_stats transfer_machine::stats(queue_type q, bool reset)
{
	return state_->stats(q, reset);
}

} // namespace coop::net
