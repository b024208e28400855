// SPDX-License-Identifier: MIT
// committer.hpp - a thread that commits files with kept writes (unstable.hpp) if no fsync or close
// does so soon enough.
//
// It commits when more than half of the memory for kept writes is used, oldest files first. After a
// reconnection it commits all of them, because storage's machine may have lost the writes: until
// they are written again, readers see the file as the crash left it. It also returns unused memory
// to the system.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "userland/client/inode.hpp"
#include "userland/client/kept_memory.hpp"

namespace coop::client
{

class committer
{
public:
	struct duties {
		std::function<std::uint64_t()> connections; // number of reconnections so far
		std::function<int(inode &)> commit;         // an error: try again later
	};
	committer(kept_memory &, duties);
	~committer();

	// began(): after the first kept write of a file. hurry(): the memory is crowded.
	void began(inode &);
	void hurry();

private:
	static constexpr std::chrono::seconds look_again{1};
	struct ending;

	void run();
	void sweep_locked();
	std::shared_ptr<inode> next_locked();

	kept_memory &memory_;
	const duties duties_;
	std::mutex mutex_;
	std::condition_variable wake_;
	std::deque<std::weak_ptr<inode>> queue_; // each once: inode::keeps_listed
	std::size_t sweep_at_ = 64;              // entries
	std::size_t due_ = 0;           // this many at the front are committed, crowded or not
	bool asleep_ = false;           // waits for a wake-up; otherwise it looks periodically
	std::uint64_t connections_ = 0; // as of the last look
	std::atomic<bool> stop_{false};
	std::thread thread_; // started with the first file
};

} // namespace coop::client
