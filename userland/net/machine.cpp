// SPDX-License-Identifier: MIT
// machine.cpp - the life of a transfer machine, and the calls of programs and transports.
//
// A transport is never called from inside one of its own calls, and is destroyed only here: work
// that its reports require is noted, and settle() does it when the hold ends.
#include "machine.hpp"

#include <cerrno>
#include <system_error>

#include "fatal.hpp"
#include "processors.hpp"

namespace coop::net
{

void endpoint::put_last() noexcept
{
	auto &p = static_cast<core::peer &>(*this);
	const std::shared_ptr<core::machine> m = p.home; // the call may delete p
	m->put_last(p);
}

namespace core
{

namespace
{

// Port range for `*`, searched downward: ports that no registry assigns.
constexpr std::uint32_t highest_port = 65535, lowest_port = 49152;

} // namespace

machine::machine(transfer_machine &h, std::shared_ptr<domain_state> d, tm_handler *handler) :
	handle_(h),
	handler_(handler),
	station_(std::move(d)),
	peers_(station_, *this),
	operations_(station_, peers_, delivery_, *this),
	receive_(station_, operations_, peers_, delivery_, *this)
{
	station_.transport = station_.domain->transport().make_machine(*this);
	station_.domain->add_child();
}

machine::hold::~hold()
{
	m_.settle();
	station &s = m_.station_;
	const bool wake = m_.sleeper_.asleep() && m_.sleeper_wanted();
	if (!wake && !s.pool_below && !s.pool_not_empty) {
		m_.lock_.unlock();
		return;
	}
	if (wake)
		m_.sleeper_.promise_kick();
	const bool below = std::exchange(s.pool_below, false);
	const bool not_empty = std::exchange(s.pool_not_empty, false);
	m_.lock_.unlock();
	if (wake)
		m_.sleeper_.kick();
	if (below)
		m_.receive_.pool->tell_below();
	if (not_empty)
		m_.receive_.pool->tell_not_empty();
}

// ---- life ------------------------------------------------------------------------

int machine::start(std::string_view text)
{
	net::address a;
	std::unique_ptr<spi::transport_machine> transport;
	{
		hold h(*this);
		if (state() != tm_state::initialized)
			return -EBADFD;
		if (parse(text, a))
			return fail_start(-EINVAL);
		if (int r = station_.domain->transport().check(a))
			return fail_start(r);
		set_state(tm_state::starting);
		// While it prepares, the other calls find no transport and leave it alone.
		transport = std::move(station_.transport);
	}
	const int prepared = transport->prepare(a);
	hold h(*this);
	station_.transport = std::move(transport);
	if (prepared)
		return fail_start(prepared);
	try {
		// It waits for the lock, and then finds the result.
		thread_ = background_thread([this] { run(); });
	} catch (const std::system_error &e) {
		return fail_start(-e.code().value());
	}
	if (!cpus_.empty()) {
		const cpu_set_t set = processor_set(cpus_);
		if (int r = pthread_setaffinity_np(thread_.native_handle(), sizeof(set), &set))
			return fail_start(-r);
	}
	if (int r = claim_and_start(a))
		return fail_start(r);
	return 0;
}

int machine::claim_and_start(net::address a)
{
	const bool lnet = a.kind == net::address::form::lnet, any = a.wildcard();
	const std::uint32_t lowest = !any ? a.id : lnet ? 0 : lowest_port;
	if (any)
		a.id = lnet ? net::address::machines - 1 : highest_port;
	net::address claimed = a;
	if (!station_.domain->traits().networks_apart) {
		claimed.net = net::network::tcp;
		claimed.instance = 0;
	}
	for (;; a.id--) {
		claimed.id = a.id;
		if (any) {
			const auto free = claim::highest_free(station_.domain->name(), claimed);
			if (!free || *free < lowest)
				return -EADDRNOTAVAIL;
			claimed.id = a.id = *free;
		}
		int r = claim_.take(station_.domain->name(), claimed,
				    station_.domain->traits().private_addresses);
		if (r == 0) {
			address_ = a;
			operations_.set_address(a);
			r = station_.transport->start(a);
		}
		if (r != -EADDRINUSE || !any)
			return r;
		if (a.id == lowest)
			return -EADDRNOTAVAIL;
	}
}

int machine::fail_start(int status)
{
	station_.over = false;
	station_.transport.reset();
	claim_.release();
	address_ = {};
	told_ = tm_state::failed;
	set_state(tm_state::failed);
	return status;
}

void machine::started()
{
	if (state() != tm_state::starting)
		return;
	set_state(tm_state::started);
	delivery_.push_state(tm_state::started, 0);
	station_.fill = station_.pooled;
}

void machine::failed(int status)
{
	station_.over = true;
	final_ = tm_state::failed;
	final_status_ = status ? status : -EIO;
}

void machine::stopped()
{
	if (station_.over)
		return;
	station_.over = true;
	final_ = tm_state::stopped;
	final_status_ = 0;
}

int machine::stop(bool abort)
{
	hold h(*this);
	const tm_state s = state();
	if (s == tm_state::stopping ? abort_ || !abort
				    : s != tm_state::starting && s != tm_state::started)
		return -EBADFD;
	abort_ |= abort;
	set_state(tm_state::stopping);
	receive_.end_deficit();
	return 0;
}

// Takes the next step of stopping if it is due.
bool machine::advance_stop()
{
	if (stop_called_ || !station_.live())
		return false;
	if (!abort_ && (operations_.queue(queue_type::msg_send).count() ||
			operations_.queue(queue_type::active_bulk_recv).count() ||
			operations_.queue(queue_type::active_bulk_send).count()))
		return false;
	if (!swept_) {
		swept_ = true;
		cancel_all(-ECANCELED);
		return true;
	}
	if (operations_.live() != 0)
		return false;
	stop_called_ = true;
	station_.transport->stop();
	return true;
}

// The transport has reported its end, and no call into it is active.
void machine::close_transport()
{
	station_.over = false;
	receive_.end_deficit();
	set_state(final_);
	for (const spi::token t : operations_.all()) {
		slot &s = *operations_.find(t);
		receive_.drop(s);
		operations_.finish(s,
				   s.reason        ? s.reason
				   : final_status_ ? final_status_
						   : -ECANCELED,
				   0);
	}
	station_.transport.reset();
	claim_.release();
	delivery_.push_state(final_, final_status_);
}

void machine::settle_all()
{
	for (bool again = true; again;) {
		again = false;
		if (station_.over)
			close_transport();
		if (station_.fill)
			receive_.fill();
		if (station_.starved && receive_.any_open() && station_.operable() &&
		    !station_.over) {
			station_.starved = false;
			station_.transport->receivable();
			again = true;
		}
		if (state() == tm_state::stopping)
			again |= advance_stop();
		if (peers_.unused())
			peers_.reap();
		again |= station_.over || station_.fill;
	}
}

int machine::fini()
{
	if (delivery_.on_its_stack())
		return -EDEADLK;
	{
		hold h(*this);
		const tm_state s = state();
		if (s == tm_state::undefined)
			return 0;
		if (s != tm_state::initialized && s != tm_state::stopped && s != tm_state::failed)
			return -EBUSY;
		set_state(tm_state::undefined);
		exit_ = true;
	}
	station_.domain->let_go(this);
	if (thread_.joinable())
		thread_.join();
	while (deliver_all() != 0)
		;
	std::vector<std::unique_ptr<core::peer>> unused;
	{
		std::unique_lock guard(lock_);
		changed_.wait(guard, [&] { return delivery_.idle(); });
		station_.transport.reset();
		unused = peers_.finish();
		told_ = tm_state::undefined;
		changed_.notify_all();
	}
	unused.clear();
	if (receive_.pool)
		receive_.pool->attached.fetch_sub(1);
	station_.domain->remove_child();
	return 0;
}

void machine::end()
{
	if (delivery_.on_its_stack())
		fatal("a transfer machine was destroyed by one of its own callbacks");
	(void)stop(true);
	{
		std::unique_lock guard(lock_);
		changed_.wait(guard, [&] {
			const tm_state s = state();
			return s == tm_state::undefined || s == tm_state::initialized ||
			       s == tm_state::stopped || s == tm_state::failed;
		});
	}
	(void)fini();
}

int machine::wait(tm_state wanted, time_point deadline)
{
	const auto come = [&] {
		return told_ == wanted || told_ >= tm_state::stopped ||
		       told_ == tm_state::undefined ||
		       (wanted == tm_state::started && state() > tm_state::started);
	};
	std::unique_lock guard(lock_);
	if (!come() && delivery_.on_its_stack())
		return -EDEADLK;
	if (deadline == never)
		changed_.wait(guard, come);
	else if (!changed_.wait_until(guard, deadline, come))
		return -ETIMEDOUT;
	return told_ == wanted ? 0 : -ECANCELED;
}

// ---- calls of programs -----------------------------------------------------------

void machine::put_last(core::peer &p)
{
	bool last;
	{
		hold h(*this);
		last = peers_.drop_reference(p);
	}
	if (last)
		delete &p;
}

int machine::add(net::buffer &b, const operation &op)
{
	buffer_state *s = b.state_.get();
	if (!s || !op.handler || s->domain != station_.domain)
		return -EINVAL;
	if (!s->acquire())
		return -EBUSY;
	hold h(*this);
	slot *placed = nullptr;
	const int r = operations_.add(*s, op, false, placed);
	if (r)
		s->let_go();
	else if (placed)
		receive_.open(*placed);
	return r;
}

bool machine::del(net::buffer &b)
{
	if (!b.state_)
		return false;
	hold h(*this);
	slot *s = operations_.of(*b.state_);
	if (!s)
		return false;
	operations_.count_del(*s);
	cancel(*s, -ECANCELED);
	return true;
}

void machine::cancel(slot &s, int reason)
{
	if (station_.places && s.transfer.queue == queue_type::msg_recv)
		receive_.cancel(s, reason);
	else
		operations_.cancel(s, reason);
}

void machine::cancel_all(int reason)
{
	for (const spi::token t : operations_.all())
		if (slot *s = operations_.find(t))
			cancel(*s, reason);
}

// The pool's notifications that this machine causes are made as the hold ends, on the processors of
// the machine's callbacks. The set is constant after start(), and there is no deficit before.
void machine::provision()
{
	const stay_on there(cpus_);
	hold h(*this);
	receive_.fill();
}

// ---- calls of the transport ------------------------------------------------------

void machine::completed(spi::token t, int status, std::size_t length)
{
	if (slot *s = operations_.find(t))
		operations_.end(*s, status == -ECANCELED && s->reason ? s->reason : status, length);
}

const spi::transfer *machine::find(spi::token t)
{
	const slot *s = operations_.find(t);
	return s ? &s->transfer : nullptr;
}

} // namespace core

} // namespace coop::net
