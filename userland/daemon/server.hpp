// SPDX-License-Identifier: MIT
// server.hpp - the daemon: accepts connections, owns connections, sessions and members.
//
// A thread that finds a connection readable reads the requests that have arrived, passes all but
// the first to other threads and executes the first itself. So a single request costs no thread
// switch, and many run at once. File-system calls block their thread; the number of threads limits
// how many run.
#pragma once

#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <list>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "userland/daemon/event_loop.hpp"
#include "userland/daemon/lanes.hpp"
#include "userland/daemon/service.hpp"

namespace coop::daemon
{

constexpr std::uint16_t default_port = 17430;
// Connections that have not authenticated yet. A new one evicts the oldest, so that a crowd of
// silent connections cannot shut out a real client, which needs only a few round trips.
constexpr std::size_t strangers_max = 64;
constexpr std::chrono::seconds stranger_time{10};
constexpr std::chrono::seconds drain_time{10};
// Between a change of a file's members and the push of their new roles: members that come together
// cost each of the others one push. Longer where pushes would take more than a part of the time.
constexpr std::chrono::milliseconds roles_time{2};
constexpr int roles_part = 10;

struct settings {
	std::vector<export_spec> exports;
	std::string listen; // ADDR[:PORT]; empty: loopback without a key, all addresses with one
	std::string key_file;
	std::string state_dir;  // for what must survive a restart; empty: default
	std::string stats_file; // counters, written at the end and on request
	unsigned threads = 16;
	unsigned max_connections = 1024;
	std::size_t max_inodes = 0; // 0: from RLIMIT_NOFILE
	bool path_handles = false;  // for tests: as if the file system had no handles
	std::string boot_id;        // for tests: replaces the kernel's boot id
	std::uint16_t newest_version = COOP_ST_VERSION; // for tests: an older daemon's
	std::chrono::milliseconds lock_grace = daemon::lock_grace;
	std::chrono::milliseconds silence{COOP_ST_SILENCE_MS};          // for tests: less
	std::chrono::milliseconds session_grace{daemon::session_grace}; // for tests: less
};

// The settings make no sense; other errors come from the machine.
struct usage_error : std::runtime_error {
	using runtime_error::runtime_error;
};

class connection;

class server
{
public:
	// Listens and serves. Throws std::runtime_error (usage_error for bad settings) with a text
	// that tells the administrator what to change.
	explicit server(const settings &);
	~server();
	server(const server &) = delete;
	server &operator=(const server &) = delete;

	std::uint16_t port() const { return port_; }
	std::string address() const { return address_; }
	std::string stats_text() const;
	void write_stats() const; // to the stats file, if there is one
	void log_connections() const;
	// Finishes running requests, accepts no new ones, and ends.
	void drain();

	// For connections:
	service &files() { return *service_; }
	member_table &members() { return members_; }
	event_loop &loop() { return loop_; }
	lane &lane_of(const exported &);
	const secret &key() const { return key_; }
	std::uint16_t newest_version() const { return settings_.newest_version; }
	// Finds or makes the session. -EUSERS: too many; -EACCES: it is of another export.
	[[nodiscard]] int attach(const std::string &id, const exported &, bool &fresh,
				 std::shared_ptr<session> &);
	void detach(std::shared_ptr<session>, bool forget);
	bool known(connection &); // authenticated; false: too many connections
	void gone(connection &);
	std::atomic<std::uint64_t> malformed{0}, refused{0}, auth_failures{0}, accepted{0};

private:
	void listen(const std::string &);
	void accept();
	void forget_locked(session &);
	void end(std::shared_ptr<session>);
	void reap();
	// In silence.cpp:
	bool is_silent_locked(const session &) const;
	lock_table::ids silent_of(const lock_table::ids &) const;
	bool lapse(const lock_table::ids &);
	void lapse_all();
	void lapse_later(const session &);
	void hear_the_clock();
	void end_silent(const std::vector<std::shared_ptr<connection>> &);
	void push_roles();
	void expire_after(std::chrono::milliseconds pause);
	void forget_stranger_locked(connection &);

	const settings settings_;
	const state_directory state_;
	unsigned max_connections_ = 0;
	secret key_;
	std::unique_ptr<service> service_;
	member_table members_;
	mutable std::mutex mutex_; // guards connections, sessions, strangers
	std::set<std::shared_ptr<connection>> connections_;
	std::map<std::string, std::shared_ptr<session>> sessions_;
	std::list<std::weak_ptr<connection>> strangers_; // oldest first
	bool draining_ = false;
	std::atomic<bool> stopped_{false}; // the loop
	const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
	bool grace_over_ = false; // owned by the reaper: sessions of an earlier daemon are gone
	// When the reaper last ran, and when it last did not run in time; zero: never.
	std::atomic<boot_clock::time_point> ran_{boot_clock::now()}, woke_{};
	// Declared after all that connections use in their destructors: handlers that never ran own
	// some.
	lanes lanes_; // of the exports, in their order
	event_loop loop_;
	asio::ip::tcp::acceptor acceptor_;
	asio::steady_timer reaper_, accept_pause_;
	// Owned by push_roles() and the call that leads to it:
	asio::steady_timer roles_pause_;
	std::chrono::steady_clock::duration roles_cost_{}; // of the latest pushes, together
	asio::steady_timer linger_pause_;
	std::uint16_t port_ = 0;
	std::string address_;
};

} // namespace coop::daemon
