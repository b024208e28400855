// SPDX-License-Identifier: MIT
// station.hpp - a transfer machine with its domain and its way of making progress.
//
// Client and server are written as handlers that do not depend on their thread; the station hides
// the differences between polling, blocking and notification. At most one thread runs handlers at a
// time.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coop/net.hpp"
#include "trouble.hpp"

namespace coop::net_tools
{

namespace net = coop::net;

/// The thread that makes progress, and its cost while idle.
enum class progress : std::uint8_t {
	poll,   ///< synchronous delivery, the caller's thread polls: a whole processor
	block,  ///< automatic delivery, the background thread sleeps: nothing
	notify, ///< synchronous delivery, the caller's thread sleeps on a channel: nothing
};
const char *name(progress);

struct settings {
	std::string transport = "ud";
	std::vector<std::pair<std::string, std::string>> parameters;
	net_tools::progress progress = progress::poll;
	std::vector<unsigned> cpus; ///< processors of its threads; none: any
	std::string from;           ///< own IP; empty: the one that routes to the server
};

/// Reached by handlers and by signals; station::until() waits for it.
struct goal {
	std::atomic<bool> reached{false};
	std::atomic<std::uint64_t> steps{0}; ///< signs of life

	/// For handlers: one thread at a time runs them.
	void step()
	{
		steps.store(steps.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
	}
};

class station final : public net::tm_handler
{
public:
	/// @throw std::system_error as net::domain and net::transfer_machine.
	explicit station(const settings &);
	~station();
	station(const station &) = delete;
	station &operator=(const station &) = delete;

	/// Starts at the address. Messages arrive at `h` in buffers of a pool.
	trouble start(const std::string &address, net::buffer_handler &h);
	/// Stops the machine, for good; afterwards no buffer is queued and no handler runs.
	/// `at_once`: do not give peers time to see the end of operations under way.
	void stop(bool at_once = false);

	/// Makes or awaits progress until the goal is reached. @return false: there was no step for
	/// `patience`, or the machine has failed. `quiet` is called on this thread repeatedly while
	/// there is no step.
	bool until(goal &, std::chrono::milliseconds patience,
		   const std::function<void()> &quiet = {});
	/// -errno with which the machine has failed since it started; 0: it has not.
	int lost() const { return lost_.load(std::memory_order_relaxed); }
	/// Reaches the goal; async-signal-safe.
	void reach(goal &);

	/// Returns a receive buffer that is no longer queued to the pool.
	void put_back(net::buffer *b) { (void)pool_->put(b); }
	const settings &how() const { return settings_; }
	const net::domain &domain() const { return domain_; }
	const net::domain_limits &limits() const { return domain_.limits(); }
	net::domain &domain() { return domain_; }
	/// Not started before start().
	net::transfer_machine &machine() { return machine_; }

private:
	void on_state(const net::tm_event &) override;

	const settings settings_;
	net::domain domain_;
	net::channel bell_;
	std::atomic<int> lost_{0};
	std::unique_ptr<net::buffer_pool> pool_;
	net::transfer_machine machine_;
};

/// Parses an address as users write it: a form of net::parse(), or a bare IPv4 address, which
/// stands for portal 31 and TMID 0. `wildcard`: its number may be `*`.
trouble full_address(const std::string &text, const net::domain &, net::address &out,
		     bool wildcard = false);
/// The address for a client of `server`: this host's address that routes there, with `*`.
std::string own_address(const net::address &server);
/// Whether this program can run on each of these processors; `option` named them.
trouble may_run_on(const char *option, const std::vector<unsigned> &cpus);
/// Confines the calling thread to these processors. @return 0 or -errno.
int confine_thread(const std::vector<unsigned> &cpus);

} // namespace coop::net_tools
