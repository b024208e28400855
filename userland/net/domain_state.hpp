// SPDX-License-Identifier: MIT
// domain_state.hpp - the implementation of a domain: the open transport, and the thread that serves
// transfer machines whose pool was empty.
//
// With this thread, buffer_pool::put() only has to wake it. Filling a receive queue takes the
// machine's lock and runs its transport, which must not happen on an arbitrary thread that calls
// put().
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
	std::uint32_t id() const { return id_; } // of the transport, as in descriptors
	spi::transport_domain &transport() const { return *transport_; }
	const domain_limits &limits() const { return limits_; }
	const spi::traits &traits() const { return traits_; }
	const std::vector<domain_parameter> &parameters() const { return parameters_; }

	void add_child() { children_.fetch_add(1, std::memory_order_relaxed); }
	void remove_child() { children_.fetch_sub(1, std::memory_order_release); }
	unsigned children() const { return children_.load(std::memory_order_acquire); }

	/// Starts the provisioning thread if necessary.
	void serve_pools();
	/// For a machine without a deficit: when it returns, the thread no longer uses the machine.
	void let_go(const machine *);
	/// The pool may now serve machines with a deficit.
	void provision(pool_state &);
	/// For a pool to which no machine is attached: the thread forgets it.
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

	std::mutex lock_; // guards all below
	std::condition_variable wake_, idle_;
	std::deque<pool_state *> wanted_; // pools to be examined, each once
	const machine *serving_ = nullptr;
	bool exit_ = false;
	std::thread thread_;
};

} // namespace coop::net::core
