// SPDX-License-Identifier: MIT
// unsaid_opens.hpp - open files of which storage does not know yet.
//
// Each open is reported at most once. A call that needs storage to know waits for its answer; a
// close before the report costs nothing, one after it is a close at storage.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "userland/client/lease_book.hpp"

namespace coop::client
{

class unsaid_opens
{
public:
	using answer = std::function<void(int err)>;

	explicit unsaid_opens(lease_book &book) : book_(book) {}
	void start(storage &s) { storage_ = &s; }

	// True: the book knows all of the reply to an open for reading ('what' is the right to
	// it), and the file is open.
	[[nodiscard]] bool open(const handle &, const caller &, int flags, lease_book::right what,
				open_result &out);
	// Returns the open id.
	std::uint64_t add(const handle &, const caller &, int flags);
	bool unsaid(std::uint64_t open_id) const;
	// Whether an unreported open of this file exists; empty: of any file.
	bool any_of(const handle &) const;
	// done: storage knows the open, or err says why not. Any thread; done may run at once.
	void tell(std::uint64_t open_id, answer done);
	// done: storage knows all files that were open at the call.
	void tell_all_of(const handle &, std::function<void()> done);
	void tell_all(std::function<void()> done);
	// Waits until storage knows of this open file. 0, -errno of the open, or -EINTR: the asker
	// has gone.
	int say(std::uint64_t open_id);
	// The same for all open files of fh, or for all: empty. What the opens return is no error.
	int say_all_of(const handle &fh);
	// Reports those that have been open for long.
	void tell_old();
	// Names of unknown files that are being removed: until then open() is false.
	std::atomic<unsigned> removing{0};
	// Closes the file, at storage too if storage may have it open.
	void close(const handle &, std::uint64_t open_id);

private:
	using clock = std::chrono::steady_clock;
	struct open_file {
		handle fh;
		caller who;
		int flags;
		clock::time_point since;
		std::vector<answer> waiting;
		bool telling = false, closed = false;
		bool unanswered = false; // a report was: storage may have it open
	};
	void ask(std::uint64_t open_id, const open_file &);
	void told(std::uint64_t open_id, int err);
	template <class predicate> void tell_some(predicate, std::function<void()> done);

	lease_book &book_;
	storage *storage_ = nullptr;
	mutable std::mutex mutex_; // guards all below
	std::map<std::uint64_t, open_file> opens_;
	std::map<std::uint64_t, int> failed_; // storage has refused them
};

} // namespace coop::client
