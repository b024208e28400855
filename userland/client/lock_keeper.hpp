// SPDX-License-Identifier: MIT
// lock_keeper.hpp - what a mount owes the daemon, and itself, while it holds locks.
//
// The daemon gives the locks of a client to others when it has heard nothing of it for
// COOP_ST_SILENCE_MS. So a mount that holds some says something every few seconds. If it has not
// been answered for COOP_ST_LEASE_TRUST_MS it stops relying on them: the kernel drops its pages of
// these files, and reads wait for the daemon (storage::vouch). Writes go to the daemon in any case,
// which refuses them.
//
// It has a thread of its own, because that of the connection may be waiting for a name server, or
// for the network. The thread runs while there is a lock, or a wait for one.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "userland/client/storage_link.hpp"

namespace coop::client
{

class lock_keeper
{
public:
	// in_doubt: see storage_options::on_locks_in_doubt. The link outlives it.
	lock_keeper(storage_link &link, decltype(storage_options::on_locks_in_doubt) in_doubt) :
		link_(link),
		in_doubt_(std::move(in_doubt))
	{
	}
	~lock_keeper() { stop(); }
	lock_keeper(const lock_keeper &) = delete;
	lock_keeper &operator=(const lock_keeper &) = delete;

	// The lock book has a lock, or a wait. Any thread.
	void wake();
	void stop();

private:
	void run();
	void look();

	storage_link &link_;
	const decltype(storage_options::on_locks_in_doubt) in_doubt_;
	// A PING is under way, which may outlive us.
	const std::shared_ptr<std::atomic<bool>> asks_ = std::make_shared<std::atomic<bool>>(false);
	unsigned doubted_ = 0; // looks since the locks were last told to be in doubt; its thread's
	std::mutex mutex_;     // guards the rest
	std::condition_variable wake_;
	bool awake_ = false, stop_ = false;
	std::thread thread_;
};

} // namespace coop::client
