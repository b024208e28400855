// SPDX-License-Identifier: MIT
// station.hpp - a transfer machine with its domain and its way of making progress.
//
// Client and server are written as handlers that do not know which thread calls them; the
// station is what differs between polling, blocking and being notified. At any time at most
// one thread runs handlers.
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

/// Who makes progress, and what it costs while nothing happens.
enum class progress : std::uint8_t {
	poll,   ///< synchronous delivery, the own thread polls: a whole processor
	block,  ///< automatic delivery, the background thread sleeps: nothing
	notify, ///< synchronous delivery, the own thread sleeps on a channel: nothing
};
const char *name(progress);

struct settings {
	std::string transport = "ud";
	std::vector<std::pair<std::string, std::string>> parameters;
	net_tools::progress progress = progress::poll;
	std::vector<unsigned> cpus; ///< where its threads run; none: anywhere
	std::string from;           ///< own IP; empty: that of the route to the server
};

/// Set by handlers and by signals, waited for by station::until().
struct goal {
	std::atomic<bool> reached{false};
	std::atomic<std::uint64_t> steps{0}; ///< signs of life

	/// By handlers: one thread at a time runs them.
	void step()
	{
		steps.store(steps.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
	}
};

class station final : public net::tm_handler
{
public:
	/// @throw std::system_error as net::domain.
	explicit station(const settings &);
	~station();
	station(const station &) = delete;
	station &operator=(const station &) = delete;

	/// Starts at the address. Messages come to `h` in buffers of a pool.
	trouble start(const std::string &address, net::buffer_handler &h);
	/// Ends everything; afterwards no buffer is queued and no handler runs. `at_once`: peers
	/// are not given the time to see the end of what is under way.
	void stop(bool at_once = false);

	/// Makes or awaits progress until the goal is reached. @return false: there was no step
	/// for as long as `patience`, or the machine has failed. `quiet` is called in this thread
	/// again and again while there is none.
	bool until(goal &, std::chrono::milliseconds patience,
		   const std::function<void()> &quiet = {});
	/// What the machine has failed with since it started, -errno; 0: it has not.
	int lost() const { return lost_.load(std::memory_order_relaxed); }
	/// The goal has been reached; async-signal-safe.
	void reach(goal &);

	/// Puts back a receive buffer that is no longer queued.
	void put_back(net::buffer *b) { (void)pool_->put(b); }
	const settings &how() const { return settings_; }
	const net::domain &domain() const { return domain_; }
	const net::domain_limits &limits() const { return domain_.limits(); }
	net::domain &domain() { return domain_; }
	net::transfer_machine &machine() { return *machine_; }

private:
	void on_state(const net::tm_event &) override;

	const settings settings_;
	net::domain domain_;
	net::channel bell_;
	std::atomic<int> lost_{0};
	std::unique_ptr<net::buffer_pool> pool_;
	std::unique_ptr<net::transfer_machine> machine_;
};

/// The address as a person may write it: what net::parse() takes, or an IPv4 address alone
/// for portal 31 and TMID 0 there. `wildcard`: its number may be `*`.
trouble full_address(const std::string &text, const net::domain &, net::address &out,
		     bool wildcard = false);
/// Where a client of `server` starts: the address of this host on the way there, with `*`.
std::string own_address(const net::address &server);
/// Whether this program can run on each of these processors; `option` named them.
trouble may_run_on(const char *option, const std::vector<unsigned> &cpus);
/// Keeps the calling thread on these processors. @return 0 or -errno.
int confine_thread(const std::vector<unsigned> &cpus);

} // namespace coop::net_tools
