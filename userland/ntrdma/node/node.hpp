// SPDX-License-Identifier: MIT
// node.hpp - this process as an owner of queue pairs: its lock, its thread, its links.
//
// One lock guards all of the core. Applications' threads make progress when they post and poll;
// the node's own thread does it for those that do not (they wait for events, or their peer writes
// while they compute), sets up links, and sees to it that a dead or silent peer ends them.
//
// The thread sleeps in one of two ways:
//	armed	every peer is told to ring its eventfd: nothing is missed, each batch costs a wake
//	driven	the application polls anyway: no peer rings, answers go along with what it posts,
//		and the thread only looks now and then whether the application leaves any work
// drive.hpp decides between them.
//
// By TCP, an answer costs a system call, and a frame that most programs send just after it anyway.
// So what the application's polls get owing waits for its next post, the second poll without one,
// or the thread, which finds it within hold_most and sends it after as long again. No call of the
// application sees to that: bytes that come keep the thread from sleeping for longer. A process
// that ends would take the answer with it, so it is sent before: see send_answers().
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <sched.h>

#include "userland/ntrdma/core/queue_pair.hpp"
#include "userland/ntrdma/node/address_news.hpp"
#include "userland/ntrdma/node/far_greeting.hpp"
#include "userland/ntrdma/node/lock.hpp"
#include "userland/ntrdma/stream/backend.hpp"
#include "userland/ntrdma/stream/sockets.hpp"
#include "userland/ntrdma/stream/stream.hpp"
#include "userland/ntrdma/window/greeting.hpp"

namespace coop::ntrdma
{

using ticks = std::chrono::steady_clock::time_point;

/// The states of a link; NTRDMA.md has the table of their transitions.
enum class link_stage : std::uint8_t {
	down,     // the queue pair has no peer
	calling,  // the higher number: nobody answers yet
	greeting, // the higher number: HELLO is sent
	awaiting, // the lower number: no HELLO yet
	welcomed, // the lower number: WELCOME is sent
	up,
	over, // ended; only a reset of the queue pair leads out
};

const char *text_of(link_stage);
const char *text_of(pair_state);
std::string text_of(const ip_address &);

constexpr std::chrono::milliseconds hold_most{1}; // see above

constexpr int news_of_link = -1; // in the set, instead of a descriptor: a link by TCP stirs

/// A queue pair of datagrams, for `coop-verbs info`. Its owner keeps it up to date.
struct datagram_figures {
	pair_state state = pair_state::reset;
	std::uint32_t posted = 0, taken = 0; // receives, all told
	std::uint64_t sent = 0, received = 0;
	std::uint64_t dropped = 0; // those that found no receive
};

/// A queue pair and its link.
struct member {
	std::unique_ptr<queue_pair> pair;
	link_stage stage = link_stage::down;
	std::unique_ptr<window> memory; // until the port has it
	std::unique_ptr<window_port> port;
	std::optional<route> by_tcp;      // none: the peer is reached by a window
	std::unique_ptr<stream_port> far; // up, by TCP
	int lost = 0;                     // why it is no longer read, -errno
	far_text text;                    // of a greeting that comes by TCP
	unique_fd socket;
	unique_fd bell; // the peer's, until the port has it
	pid_t peer = 0;
	unique_fd life;
	coop::ntrdma::probe sign; // of the peer, until the port has it
	ticks since{};            // of the stage
	ticks asked{};            // the last sign of life that was asked for
	bool asking = false;
	std::uint64_t probe = 0;
	std::uint32_t named = 0; // peer for which the link was begun
	std::uint64_t taken = 0; // pair->taken() when the thread looked last
	ticks owes_since{};     // by TCP: when the thread first saw what the pair owes since `owed`
	std::uint64_t owed = 0; // pair->taken() then
	// Of a UD queue pair, of which `pair` is but the number and the link stays down.
	const datagram_figures *datagrams = nullptr;
};

class drive;

class node final
{
public:
	/// Takes a slot and starts the thread, which calls `addresses_change`, under the lock, each
	/// time that an address of this machine may have come or gone. Throws std::system_error.
	explicit node(watcher &, std::function<void(node *)> addresses_change = {});
	~node();

	/// The lock of everything below.
	[[nodiscard]] node_hold hold()
	{
		// A thread that polls in a loop takes the lock again before a sleeper wakes up for
		// it.
		if (wanted_.load(std::memory_order_relaxed)) [[unlikely]]
			sched_yield();
		if (int p = sched_getcpu(); p != processor_.load(std::memory_order_relaxed))
			[[unlikely]]
			processor_.store(p, std::memory_order_relaxed);
		return node_hold{lock_};
	}
	region_table &regions() { return regions_; }

	/// Null if there are too many.
	member *create(pair_options);
	void destroy(member *);
	/// The state or the peer of a queue pair was changed.
	void changed(member *);
	/// Removes a region after peers that pull from it are done. `hold` may be let go meanwhile.
	bool remove_region(std::uint32_t key, node_hold &hold);
	/// An application's thread polled. Under the lock.
	void polled()
	{
		polls_.store(polls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
		if (!far_.empty()) [[unlikely]]
			poll_far();
	}
	/// An application's thread leaves work behind: the node's thread goes on with it.
	void take_over();
	/// Sends the answers that wait by TCP, before what may end the process; after `last` none
	/// waits any more. Gives up soon if a thread keeps the lock: it may be the caller, which a
	/// signal has interrupted.
	void send_answers(bool last);
	/// A thread of the application will wait for an event.
	void will_wait()
	{
		if (driven_)
			kick();
	}
	/// How long a silent peer may take.
	std::chrono::milliseconds bound() const { return bound_; }
	backend reaches() const { return backend_; }

private:
	struct caller {
		unique_fd socket;
		pid_t process;
		bool said = false;
		greeting hello{};
		std::vector<unique_fd> fds;
		ticks since;
	};
	struct far_caller {
		unique_fd socket;
		ip_address from;
		far_text text;
		far_greeting hello{};
		bool said = false;
		ticks since;
	};

	// thread.cpp
	void run();
	bool holds(member &);
	bool progress(member &);
	bool progress_all();
	bool progress_what_is_left();
	bool awaited() const;
	bool arm(bool on);
	bool sleep(node_hold &, drive &, bool *heard);
	int next_timeout();
	void kick();

	// links.cpp
	void tend(ticks now);
	void tend(member &, ticks now);
	void beat(member &, ticks now);
	void call_peer(member &, ticks now);
	void answer_call(member &, caller &);
	void hear(member &, ticks now);
	void bring_up(member &, unsigned side, unsigned other, bool pulls, ticks now);
	void join_itself(member &, ticks now);
	void accept_callers(ticks now);
	void hear_callers(ticks now);
	void end_link(member &, link_stage);
	void begin_again(member &, link_stage, ticks now);
	std::string describe() const;
	void tell_of_version(const std::string &peer);
	void watch(int fd);
	/// Before a watched descriptor is closed: a child of fork may hold what is behind it open,
	/// and the thread would hear of it for ever.
	void unwatch(const unique_fd &);
	std::list<caller>::iterator drop(std::list<caller>::iterator);

	// far.cpp
	bool listen_far();
	void watch_far(const unique_fd &, bool up);
	void accept_far(ticks now);
	void hear_far_callers(ticks now);
	bool answer_far(member &, far_caller &, ticks now);
	void call_far(member &, ticks now);
	void hear_far(member &, ticks now);
	void bring_up_far(member &, ticks now);
	void end_far(member &);
	void end_lost(member &);
	bool serve_far(member &);
	bool serve_all_far();
	void poll_far();
	bool may_wait(const member &m) const { return m.by_tcp ? !ending_ : driven_; }

	watcher &watcher_;
	std::function<void(node *)> addresses_change_;
	address_news address_news_; // in the set, too
	node_lock lock_;
	std::atomic<bool> wanted_{false};
	alignas(64) std::atomic<int> processor_{-1}; // of the application's last call
	alignas(64) std::atomic<std::uint64_t> polls_{0};
	region_table regions_;
	std::uint32_t slot_ = 0;
	std::uint32_t next_index_;
	unique_fd listener_, bell_, epoll_;
	std::unordered_map<std::uint32_t, std::unique_ptr<member>> members_;
	std::list<caller> callers_;
	std::set<std::string> told_of_; // peers of another version
	backend backend_;
	unique_fd far_listener_;
	std::list<far_caller> far_callers_;
	std::vector<member *> far_;        // whose links are up by TCP
	std::size_t far_next_ = 0;         // the next that a poll looks at
	bool far_deaf_ = false;            // a caller waits for a descriptor
	std::uint32_t far_reads_ = 0;      // that brought something
	std::uint32_t far_reads_seen_ = 0; // by the thread
	ticks far_stirred_{};              // when it saw the count change
	bool looped_ = false;  // the application polls in a loop, as the thread looked last
	bool holding_ = false; // the thread has left an answer
	bool brief_ = false;   // the thread sleeps for hold_most at most
	bool ending_ = false;  // the process is about to end: answers do not wait
	std::chrono::milliseconds bound_;
	bool may_pull_;
	std::uint64_t pull_from_;
	bool deaf_ = false; // the listener is not watched, for lack of descriptors
	ticks deaf_since_{};
	bool changed_ = false;
	bool driven_ = false; // how the thread sleeps
	bool sleeps_ = false; // the thread does, and was not woken yet
	bool stop_ = false;
	std::thread thread_;
};

} // namespace coop::ntrdma
