// SPDX-License-Identifier: MIT
// domain.cpp - opens a transport; the thread that provisions machines from pools.
//
// The thread starts with the first machine that has a pool. It examines only pools to which buffers
// were returned, and the machines that wait for those, however many others there are.
#include "coop/net/domain.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "descriptor.hpp"
#include "domain_state.hpp"
#include "fatal.hpp"
#include "machine.hpp"
#include "pool_state.hpp"
#include "thread.hpp"

namespace coop::net
{

namespace core
{

namespace
{

const spi::transport &named(const std::string &name)
{
	if (const spi::transport *t = spi::find_transport(name))
		return *t;
	std::string known;
	for (const std::string &n : domain::transports())
		known += known.empty() ? n : ", " + n;
	throw std::system_error(EPROTONOSUPPORT, std::generic_category(),
				"no transport '" + name + "'; there are: " + known);
}

} // namespace

domain_state::domain_state(const domain_options &o) :
	name_(o.transport),
	id_(transport_id(named(name_).wire()))
{
	const spi::transport &t = named(name_);
	const spi::parameter_values values(name_, t.parameters(), o.parameters);
	transport_ = t.open(values);
	for (const spi::parameter &p : t.parameters()) {
		std::string value = transport_->chosen(p.key);
		if (value.empty())
			value = values.text(p.key);
		parameters_.push_back(
			{p.key, std::move(value), p.standard, p.sides == spi::sides::agree});
	}
	limits_ = transport_->limits();
	traits_ = transport_->traits();
	limits_.max_queued = std::min(limits_.max_queued, slot_table::most_queued);
	limits_.max_descriptor = descriptor::fixed + traits_.descriptor_part;
}

const std::shared_ptr<domain_state> &domain_state::of(domain &d)
{
	return d.state_;
}

domain_state::~domain_state()
{
	if (!thread_.joinable())
		return;
	{
		std::lock_guard guard(lock_);
		exit_ = true;
	}
	wake_.notify_all();
	thread_.join();
}

void domain_state::serve_pools()
{
	std::lock_guard guard(lock_);
	if (!thread_.joinable())
		thread_ = background_thread([this] { run(); });
}

void domain_state::let_go(const machine *m)
{
	std::unique_lock guard(lock_);
	idle_.wait(guard, [&] { return serving_ != m; });
}

void domain_state::provision(pool_state &p)
{
	{
		std::lock_guard guard(lock_);
		if (std::exchange(p.wanted, true))
			return;
		wanted_.push_back(&p);
	}
	wake_.notify_one();
}

void domain_state::let_go(pool_state &p)
{
	std::lock_guard guard(lock_);
	if (std::exchange(p.wanted, false))
		std::erase(wanted_, &p);
}

void domain_state::run()
{
	std::unique_lock guard(lock_);
	for (;;) {
		wake_.wait(guard, [&] { return !wanted_.empty() || exit_; });
		if (exit_)
			return;
		pool_state &p = *wanted_.front();
		wanted_.pop_front();
		std::shared_ptr<machine> m = p.next_short();
		p.wanted = m != nullptr;
		if (!m)
			continue;
		// Pools take turns: two machines could otherwise pass one buffer back and forth
		// without end.
		wanted_.push_back(&p);
		serving_ = m.get();
		guard.unlock();
		m->provision();
		m.reset();
		guard.lock();
		serving_ = nullptr;
		idle_.notify_all();
	}
}

} // namespace core

domain::domain(const domain_options &o) : state_(std::make_shared<core::domain_state>(o)) {}

domain::~domain()
{
	if (state_->children() != 0)
		core::fatal("a domain was destroyed before its buffers, pools and machines");
}

const std::string &domain::transport() const noexcept
{
	return state_->name();
}

const domain_limits &domain::limits() const noexcept
{
	return state_->limits();
}

const transport_traits &domain::traits() const noexcept
{
	return state_->traits().visible;
}

const std::vector<domain_parameter> &domain::parameters() const noexcept
{
	return state_->parameters();
}

} // namespace coop::net
