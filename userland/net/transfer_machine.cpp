// SPDX-License-Identifier: MIT
// transfer_machine.cpp - the handle: takes the lock of the machine and calls the part concerned.
//
// End points that outlive it and the domain's thread share the machine.
#include "coop/net/transfer_machine.hpp"

#include <cerrno>
#include <system_error>

#include "machine.hpp"
#include "processors.hpp"

namespace coop::net
{

using core::machine;

transfer_machine::transfer_machine(domain &d, tm_handler *h) :
	state_(std::make_shared<machine>(*this, core::domain_state::of(d), h))
{
}

transfer_machine::~transfer_machine()
{
	state_->end();
}

// ---- settings --------------------------------------------------------------------

int transfer_machine::confine(std::span<const unsigned> cpus)
{
	const cpu_set_t online = core::online_processors(), wanted = core::processor_set(cpus);
	cpu_set_t both;
	CPU_AND(&both, &online, &wanted);
	return state_->set([&](machine &m) {
		if (CPU_COUNT(&both) == 0)
			return -EINVAL;
		m.cpus_.assign(cpus.begin(), cpus.end());
		return 0;
	});
}

int transfer_machine::deliver_synchronously()
{
	return state_->set([&](machine &m) {
		m.delivery_.sync = true;
		return 0;
	});
}

int transfer_machine::poll_before_block(std::chrono::microseconds t)
{
	return state_->set([&](machine &m) {
		m.spin_ = t;
		return 0;
	});
}

int transfer_machine::attach(buffer_pool &pool, buffer_handler &h, std::size_t min_size,
			     std::uint32_t max_msgs)
{
	core::pool_state &p = core::pool_state::of(pool);
	return state_->set([&](machine &m) {
		if (m.receive_.pool || p.domain != m.station_.domain || min_size == 0 ||
		    max_msgs == 0)
			return -EINVAL;
		if (min_size > p.buffer_size())
			return -EFBIG;
		try {
			m.station_.domain->serve_pools();
		} catch (const std::system_error &e) {
			return -e.code().value();
		}
		m.receive_.pool = &p;
		m.receive_.handler = &h;
		m.receive_.min_size = min_size;
		m.receive_.max_msgs = max_msgs;
		m.station_.pooled = true;
		p.attached.fetch_add(1);
		return 0;
	});
}

int transfer_machine::set_pool_length(std::uint32_t n)
{
	return state_->set([&](machine &m) {
		if (n == 0)
			return -EINVAL;
		m.receive_.length = n;
		return 0;
	});
}

int transfer_machine::set_colour(std::uint32_t c)
{
	return state_->set([&](machine &m) {
		if (c >= buffer_pool::max_colours)
			return -EINVAL;
		m.receive_.colour = c;
		return 0;
	});
}

// ---- life ------------------------------------------------------------------------

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
	machine::hold h(*state_);
	return state_->address_;
}

std::uint32_t transfer_machine::colour() const noexcept
{
	return state_->receive_.colour;
}

// ---- end points ------------------------------------------------------------------

int transfer_machine::make_endpoint(std::string_view text, endpoint_ptr &out)
{
	net::address a;
	if (int r = parse(text, a))
		return r;
	return make_endpoint(a, out);
}

int transfer_machine::make_endpoint(const net::address &a, endpoint_ptr &out)
{
	endpoint_ptr found; // the previous referent of `out` is released outside of the hold
	{
		machine::hold h(*state_);
		if (!state_->station_.operable())
			return -EBADFD;
		if (!is_valid(a) || a.wildcard())
			return -EINVAL;
		core::peer *p = nullptr;
		if (int r = state_->peers_.open(a, p))
			return r;
		found = endpoint_ptr(p);
		state_->peers_.want(*p);
	}
	out = std::move(found);
	return 0;
}

std::size_t transfer_machine::endpoints() const
{
	machine::hold h(*state_);
	return state_->peers_.wanted();
}

// ---- operations and events -------------------------------------------------------

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
	machine::hold h(*state_);
	return state_->operations_.queue(q).count();
}

std::uint32_t transfer_machine::receive_deficit() const noexcept
{
	return state_->receive_deficit();
}

bool transfer_machine::pending()
{
	machine::hold h(*state_);
	return state_->poll();
}

std::size_t transfer_machine::deliver_all()
{
	return state_->deliver_all();
}

int transfer_machine::notify(channel &c)
{
	machine::hold h(*state_);
	if (!state_->delivery_.sync)
		return -EBADFD;
	state_->notify_ = &c;
	return 0;
}

queue_stats transfer_machine::stats(queue_type q, bool reset)
{
	queue_stats c;
	{
		machine::hold h(*state_);
		c = state_->operations_.stats(q, reset);
	}
	c.total_time = core::ticks_to_ns(c.total_time);
	return c;
}

std::vector<rail_stats> transfer_machine::rails()
{
	machine::hold h(*state_);
	const spi::transport_machine *t = state_->station_.transport.get();
	return t && state_->state() == tm_state::started ? t->rails() : std::vector<rail_stats>();
}

} // namespace coop::net
