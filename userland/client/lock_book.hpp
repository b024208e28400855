// SPDX-License-Identifier: MIT
// lock_book.hpp - the locks that this mount holds at the daemon, and those that
// it waits for.
//
// The daemon decides; the book is what lets a client ask again for what it held
// when the daemon was restarted, wait without asking again and again, and give
// nothing back that it does not hold. A wait has one end: whoever takes it out of
// the book (its grant, its cancellation, the end of the session) completes it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "coop/lock_ranges.hpp"
#include "rpc/storage/message.h"

namespace coop::client
{

class lock_book
{
public:
	struct lock {
		std::string fh;
		std::uint64_t open_id;
		coop_st_lock what;
	};
	using granted = std::function<void(int err)>; // 0, or -errno: it will not come
	struct wait {
		lock asked;
		granted done;
		bool queued = false; // the daemon has said so
		bool early = false;  // granted before that was heard
	};

	void took(const lock &);
	void freed(const lock &);
	// The open file is closed: the daemon drops what was taken through it.
	void closed(std::uint64_t open_id);
	// What the owner holds in this range of the file.
	[[nodiscard]] bool holds(const lock &, bool exclusive_only = false) const;
	[[nodiscard]] bool holds(std::uint64_t open_id) const;
	// What was taken through the open file is not to be had again.
	void lost(std::uint64_t open_id);
	// See storage::lock_era().
	[[nodiscard]] std::uint64_t era(const std::string &fh) const;
	[[nodiscard]] std::vector<lock> held() const;

	std::uint64_t begin(wait);
	// The daemon has queued it. True: it is granted already, and out of the book.
	[[nodiscard]] bool queued(std::uint64_t cookie);
	// A grant has come. The wait, unless the book does not have it, or its reply is still due.
	[[nodiscard]] std::optional<wait> grant(std::uint64_t cookie);
	[[nodiscard]] std::optional<wait> end(std::uint64_t cookie);
	// Those that the daemon is to be asked for again on a new connection.
	[[nodiscard]] std::vector<std::pair<std::uint64_t, lock>> waiting() const;

private:
	using ranges = lock_ranges<std::uint64_t>;
	static ranges::range range_of(const lock &);

	mutable std::mutex mutex_;
	std::map<std::string, ranges> files_; // by handle
	std::uint64_t era_ = 1;               // one more for each open file whose locks were lost
	std::map<std::uint64_t, wait> waits_; // by cookie
	std::uint64_t last_cookie_ = 0;
};

} // namespace coop::client
