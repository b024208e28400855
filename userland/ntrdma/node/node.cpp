// SPDX-License-Identifier: MIT
// node.cpp - queue pairs and regions of this process; see node.hpp.
#include "userland/ntrdma/node/node.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <system_error>
#include <utility>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>

namespace coop::ntrdma
{

namespace
{

std::uint32_t random_number()
{
	std::uint32_t n = 0;
	[[maybe_unused]] ssize_t got = getrandom(&n, sizeof(n), 0);
	return n;
}

/// A number of the environment; `usual` if it is not set. Throws if it is none within the bounds.
std::uint64_t setting(const char *name, std::uint64_t usual, std::uint64_t least,
		      std::uint64_t most)
{
	const char *text = std::getenv(name);
	if (!text || !*text)
		return usual;
	char *end;
	unsigned long long n = std::strtoull(text, &end, 10);
	if (*end || n < least || n > most)
		throw std::system_error{EINVAL, std::generic_category(),
					std::string{name} + "=" + text + " is no number from " +
						std::to_string(least) + " to " +
						std::to_string(most)};
	return n;
}

} // namespace

const char *text_of(link_stage s)
{
	constexpr const char *names[] = {"down",     "calling", "greeting", "awaiting",
					 "welcomed", "up",      "over"};
	return names[static_cast<unsigned>(s)];
}

const char *text_of(pair_state s)
{
	constexpr const char *names[] = {"RESET", "INIT", "RTR", "RTS", "ERR"};
	return names[static_cast<unsigned>(s)];
}

node::node(watcher &w, std::function<void(node *)> addresses_change) :
	watcher_{w},
	addresses_change_{std::move(addresses_change)},
	next_index_{random_number() % pairs_most},
	backend_{chosen_backend()},
	bound_{setting("COOP_NTRDMA_BOUND_MS", 10000, 100, 3600000)},
	may_pull_{setting("COOP_NTRDMA_PULL", 1, 0, 1) != 0},
	pull_from_{setting("COOP_NTRDMA_PULL_FROM", 16384, 1, max_message)}
{
	// A random start makes it unlikely that a peer of a dead process finds another in its slot.
	std::uint32_t start = random_number();
	for (std::uint32_t i = 0; i < slots - 1 && !listener_; i++) {
		slot_ = 1 + (start + i) % (slots - 1);
		listener_ = listen_at(slot_name(slot_));
		// Of another user, a process with the same slot may have its port.
		if (listener_ && backend_ != backend::window && !listen_far())
			listener_ = unique_fd{};
	}
	if (!listener_)
		throw std::system_error{EBUSY, std::generic_category(),
					"ntrdma: every slot of this user is taken"};
	bell_ = unique_fd{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
	epoll_ = unique_fd{epoll_create1(EPOLL_CLOEXEC)};
	if (!bell_ || !epoll_)
		throw std::system_error{errno, std::generic_category(), "ntrdma: node"};
	watch(listener_.get());
	if (far_listener_)
		watch_far(far_listener_, false);
	watch(bell_.get());
	if (address_news_.fd())
		watch(address_news_.fd().get());
	// Signals are for the application's threads.
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	thread_ = std::thread{[this] { run(); }};
	pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

node::~node()
{
	{
		auto held = hold();
		stop_ = true;
		kick();
	}
	thread_.join();
	// A queue pair hangs up by its port, and so has to end before it.
	while (!members_.empty())
		destroy(members_.begin()->second.get());
}

void node::watch(int fd)
{
	epoll_event e{};
	e.events = EPOLLIN | EPOLLRDHUP;
	e.data.fd = fd;
	epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &e);
}

void node::unwatch(const unique_fd &fd)
{
	if (fd)
		epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd.get(), nullptr);
}

member *node::create(pair_options o)
{
	if (members_.size() >= pairs_most)
		return nullptr;
	do
		o.number = slot_ << slot_shift | next_index_++ % pairs_most;
	while (members_.count(o.number));
	o.pull_from = static_cast<std::uint32_t>(pull_from_);
	auto m = std::make_unique<member>();
	m->pair = std::make_unique<queue_pair>(regions_, watcher_, o);
	m->pair->answers_wait = may_wait(*m);
	member *made = m.get();
	members_.emplace(o.number, std::move(m));
	return made;
}

void node::destroy(member *m)
{
	m->pair->set_state(pair_state::reset);
	end_link(*m, link_stage::down);
	members_.erase(m->pair->options().number);
}

void node::changed(member *m)
{
	pair_state s = m->pair->state();
	if (s == pair_state::reset && m->stage != link_stage::down)
		end_link(*m, link_stage::down);
	if ((s == pair_state::ready || s == pair_state::sends) && m->stage == link_stage::down) {
		std::uint32_t own = m->pair->options().number, peer = m->pair->peer;
		bool calls = own > peer ||
			     // Two hosts may have the same numbers, never the same address. Without
			     // another host it is its own peer.
			     (own == peer && (!m->by_tcp || m->by_tcp->own > m->by_tcp->to));
		m->stage = calls ? link_stage::calling : link_stage::awaiting;
		m->named = m->pair->peer;
		m->pair->answers_wait = may_wait(*m);
		m->since = {};
	}
	changed_ = true;
	kick();
}

bool node::remove_region(std::uint32_t key, node_hold &held)
{
	// Bounded: a peer that does not end its pull in time is silent, and loses the link.
	auto until = std::chrono::steady_clock::now() + 2 * bound_;
	for (;;) {
		region *r = regions_.find(key);
		if (!r)
			return false;
		r->closing = true;
		if (!r->grants)
			return regions_.remove(key);
		if (std::chrono::steady_clock::now() > until) {
			for (auto &[number, m] : members_)
				if (m->pair->grants(key))
					m->pair->peer_gone();
			return regions_.remove(key);
		}
		held.unlock();
		sched_yield();
		held = hold();
		for (auto &[number, m] : members_)
			m->pair->progress();
	}
}

} // namespace coop::ntrdma
