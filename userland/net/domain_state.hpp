// SPDX-License-Identifier: MIT
// domain_state.hpp - what is behind a domain: the open transport and the thread that serves
// transfer machines whose pool had nothing to give.
//
// The thread exists so that whoever puts a buffer back does no more than wake it: filling a
// receive queue takes the lock of the machine and runs its transport, and that is not to
// happen on any thread that happens to call buffer_pool::put().
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "transport.hpp"

namespace coop::net::core
{

class domain_state
{
public:
	/// @throw as domain().
	explicit domain_state(const domain_options &);
	~domain_state();

	static const std::shared_ptr<domain_state> &of(domain &d);

	const std::string &name() const { return name_; }
	std::uint32_t id() const { return id_; } // of the transport, in descriptors
	spi::transport_domain &transport() const { return *transport_; }
	const domain_limits &limits() const { return limits_; }
	const spi::traits &traits() const { return traits_; }
	const std::vector<domain_parameter> &parameters() const { return parameters_; }

	void add_child() { children_.fetch_add(1, std::memory_order_relaxed); }
	void remove_child() { children_.fetch_sub(1, std::memory_order_release); }
	unsigned children() const { return children_.load(std::memory_order_acquire); }

	/// Starts the thread that provisions, if there is none.
	void serve_pools();
	/// When it returns the thread has no hand on the machine, which has no deficit, any more.
	void let_go(const machine *);
	/// Machines with a deficit may find something in this pool.
	void provision(pool_state &);
	/// The thread is to know nothing of the pool, which no machine is attached to, any more.
	void let_go(pool_state &);

private:
	void run();

	const std::string name_;
	const std::uint32_t id_;
	std::unique_ptr<spi::transport_domain> transport_;
	domain_limits limits_;
	spi::traits traits_;
	std::vector<domain_parameter> parameters_;
	std::atomic<unsigned> children_{0};

	std::mutex lock_; // of all below
	std::condition_variable wake_, idle_;
	std::deque<pool_state *> wanted_; // to be looked at; each once
	const machine *serving_ = nullptr;
	bool exit_ = false;
	std::thread thread_;
};

} // namespace coop::net::core
