// SPDX-License-Identifier: MIT
// machine.cpp - the life of a transfer machine: start, stop, and what is left at the end.
//
// A transport is never called from inside one of its own calls, and is destroyed only here: work
// that its reports require is noted, and settle() does it when the hold ends.
#include "machine.hpp"

#include <cerrno>
#include <sys/eventfd.h>
#include <system_error>
#include <unistd.h>

#include "fatal.hpp"
#include "processors.hpp"

namespace coop::net::core
{

namespace
{

// Port range for `*`, searched downward: ports that no registry assigns.
constexpr std::uint32_t highest_port = 65535, lowest_port = 49152;

std::uint32_t first_generation(random_source &random)
{
	for (;;)
		if (const auto n = static_cast<std::uint32_t>(random.next()))
			return n;
}

int make_eventfd()
{
	const int fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (fd < 0)
		throw std::system_error(errno, std::generic_category(),
					"eventfd of a transfer machine");
	return fd;
}

} // namespace

machine::machine(transfer_machine &h, std::shared_ptr<domain_state> d, tm_handler *handler) :
	handle_(h),
	domain_(std::move(d)),
	handler_(handler),
	places_(domain_->traits().places),
	slots_(first_generation(random_)),
	queues_{slot_list(slots_, &slot::in_queue), slot_list(slots_, &slot::in_queue),
		slot_list(slots_, &slot::in_queue), slot_list(slots_, &slot::in_queue),
		slot_list(slots_, &slot::in_queue), slot_list(slots_, &slot::in_queue)},
	open_(slots_, &slot::in_open),
	kick_fd_(make_eventfd())
{
	try {
		transport_ = domain_->transport().make_machine(*this);
	} catch (...) {
		::close(kick_fd_);
		throw;
	}
	domain_->add_child();
}

machine::~machine()
{
	::close(kick_fd_);
}

machine::hold::~hold()
{
	m_.settle();
	const bool wake = m_.thread_wanted();
	if (!wake && !m_.pool_below_ && !m_.pool_first_) {
		m_.lock_.unlock();
		return;
	}
	m_.kicked_ |= wake;
	const bool below = std::exchange(m_.pool_below_, false);
	const bool first = std::exchange(m_.pool_first_, false);
	m_.lock_.unlock();
	if (wake)
		m_.kick();
	if (below)
		m_.pool_->tell_below();
	if (first)
		m_.pool_->tell_not_empty();
}

int machine::confine(std::span<const unsigned> cpus)
{
	const cpu_set_t online = online_processors(), wanted = processor_set(cpus);
	cpu_set_t both;
	CPU_AND(&both, &online, &wanted);
	hold h(*this);
	if (state() != tm_state::initialized)
		return -EBADFD;
	if (CPU_COUNT(&both) == 0)
		return -EINVAL;
	cpus_.assign(cpus.begin(), cpus.end());
	return 0;
}

int machine::deliver_synchronously()
{
	hold h(*this);
	if (state() != tm_state::initialized)
		return -EBADFD;
	sync_ = true;
	return 0;
}

int machine::poll_before_block(std::chrono::microseconds t)
{
	hold h(*this);
	if (state() != tm_state::initialized)
		return -EBADFD;
	spin_ = t;
	return 0;
}

int machine::attach(pool_state &p, buffer_handler &h, std::size_t min_size, std::uint32_t max_msgs)
{
	hold guard(*this);
	if (state() != tm_state::initialized)
		return -EBADFD;
	if (pool_ || p.domain != domain_ || min_size == 0 || max_msgs == 0)
		return -EINVAL;
	if (min_size > p.buffer_size())
		return -EFBIG;
	try {
		domain_->serve_pools();
	} catch (const std::system_error &e) {
		return -e.code().value();
	}
	pool_ = &p;
	pool_handler_ = &h;
	pool_min_size_ = min_size;
	pool_max_msgs_ = max_msgs;
	p.attached.fetch_add(1);
	return 0;
}

int machine::set_pool_length(std::uint32_t n)
{
	hold h(*this);
	if (state() != tm_state::initialized)
		return -EBADFD;
	if (n == 0)
		return -EINVAL;
	pool_length_ = n;
	return 0;
}

int machine::set_colour(std::uint32_t c)
{
	hold h(*this);
	if (state() != tm_state::initialized)
		return -EBADFD;
	if (c >= buffer_pool::max_colours)
		return -EINVAL;
	colour_ = c;
	return 0;
}

int machine::start(std::string_view text)
{
	hold h(*this);
	if (state() != tm_state::initialized)
		return -EBADFD;
	net::address a;
	if (parse(text, a))
		return fail_start(-EINVAL);
	if (int r = domain_->transport().check(a))
		return fail_start(r);
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
	set_state(tm_state::starting);
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
	if (!domain_->traits().networks_apart) {
		claimed.net = net::network::tcp;
		claimed.instance = 0;
	}
	for (;; a.id--) {
		claimed.id = a.id;
		if (any) {
			const auto free = claim::highest_free(domain_->name(), claimed);
			if (!free || *free < lowest)
				return -EADDRNOTAVAIL;
			claimed.id = a.id = *free;
		}
		int r = claim_.take(domain_->name(), claimed, domain_->traits().private_addresses);
		if (r == 0) {
			address_ = a;
			slots_.set_machine(lnet ? a.id : 0);
			r = transport_->start(a);
		}
		if (r != -EADDRINUSE || !any)
			return r;
		if (a.id == lowest)
			return -EADDRNOTAVAIL;
	}
}

int machine::fail_start(int status)
{
	transport_over_ = false;
	transport_.reset();
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
	push_state(tm_state::started, 0);
	fill_wanted_ = pool_ != nullptr;
}

void machine::failed(int status)
{
	transport_over_ = true;
	final_ = tm_state::failed;
	final_status_ = status ? status : -EIO;
}

void machine::stopped()
{
	if (transport_over_)
		return;
	transport_over_ = true;
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
	if (pool_)
		set_deficit(0);
	return 0;
}

// Takes the next step of stopping if it is due.
bool machine::advance_stop()
{
	if (stop_called_ || transport_over_)
		return false;
	if (!abort_ &&
	    (queue(queue_type::msg_send).count() || queue(queue_type::active_bulk_recv).count() ||
	     queue(queue_type::active_bulk_send).count()))
		return false;
	if (!swept_) {
		swept_ = true;
		cancel_all(-ECANCELED);
		return true;
	}
	if (slots_.live() != 0)
		return false;
	stop_called_ = true;
	transport_->stop();
	return true;
}

// The transport has reported its end, and no call into it is active.
void machine::close_transport()
{
	transport_over_ = false;
	if (pool_)
		set_deficit(0);
	set_state(final_);
	std::vector<slot *> left;
	for (slot_list &q : queues_)
		for (slot *s = q.first(); s; s = q.after(*s))
			left.push_back(s);
	for (slot *s : left) {
		if (s->open)
			shut(*s);
		s->landings = 0;
		finish(*s, s->reason ? s->reason : final_status_ ? final_status_ : -ECANCELED, 0);
	}
	transport_.reset();
	claim_.release();
	push_state(final_, final_status_);
}

void machine::push_state(tm_state s, int status)
{
	event e{};
	e.state = s;
	e.what.status = status;
	(sync_ ? state_events_ : events_).push_back(e);
}

void machine::settle_all()
{
	for (bool again = true; again;) {
		again = false;
		if (transport_over_)
			close_transport();
		if (fill_wanted_) {
			fill_wanted_ = false;
			if (operable() && pool_)
				fill_from_pool();
		}
		if (starved_ && open_.count() && operable() && !transport_over_) {
			starved_ = false;
			transport_->receivable();
			again = true;
		}
		if (state() == tm_state::stopping)
			again |= advance_stop();
		if (!reaping_.empty())
			reap();
		again |= transport_over_ || fill_wanted_;
	}
}

int machine::fini()
{
	if (on_its_stack())
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
	domain_->let_go(this);
	if (thread_.joinable())
		thread_.join();
	while (deliver_all() != 0)
		;
	std::vector<core::peer *> known;
	{
		std::unique_lock guard(lock_);
		changed_.wait(guard, [&] { return delivering_ == 0; });
		transport_.reset();
		peers_.for_each([&](core::peer &p) { known.push_back(&p); });
		for (core::peer *&p : known) {
			peers_.erase(*p);
			if (p->references_.load(std::memory_order_acquire)) {
				p->orphan = true;
				p = nullptr;
			}
		}
		reaping_.clear();
		wanted_peers_ = 0;
		told_ = tm_state::undefined;
		changed_.notify_all();
	}
	for (core::peer *p : known)
		delete p;
	if (pool_)
		pool_->attached.fetch_sub(1);
	domain_->remove_child();
	return 0;
}

void machine::end()
{
	if (on_its_stack())
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
	if (!come() && on_its_stack())
		return -EDEADLK;
	if (deadline == never)
		changed_.wait(guard, come);
	else if (!changed_.wait_until(guard, deadline, come))
		return -ETIMEDOUT;
	return told_ == wanted ? 0 : -ECANCELED;
}

net::address machine::address()
{
	hold h(*this);
	return address_;
}

time_point machine::now()
{
	if (!now_known_) {
		now_ = clock::now();
		now_known_ = true;
	}
	return now_;
}

} // namespace coop::net::core
