// SPDX-License-Identifier: MIT
// committer.hpp - a thread that commits files whose writes are kept (unstable.hpp)
// when no fsync or close does it soon enough.
//
// It does so when their memory is more than half used, the files that began to keep
// first before others; and with all of them after a connection was made again, since
// storage's machine may have lost what they wrote: until it is written again, a reader
// sees the file as the crash has left it. It also gives memory back that is not needed
// any more.
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
		std::function<std::uint64_t()> connections; // counts those that were made again
		std::function<int(inode &)> commit;         // an error: it is to be tried again
	};
	committer(kept_memory &, duties);
	~committer();

	// Called by who has written: the file has begun to keep, or the memory is crowded.
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
	std::size_t due_ = 0;                    // first so many are committed, crowded or not
	bool asleep_ = false;                    // until it is woken; otherwise it looks by itself
	std::uint64_t connections_ = 0;          // as of the last look
	std::atomic<bool> stop_{false};
	std::thread thread_; // from the first file on
};

} // namespace coop::client
