// SPDX-License-Identifier: MIT
// listings.hpp - open directories, kept between two READDIRs.
//
// A client reads a directory in pieces and continues from the cookie of the last entry. Some file
// systems find that place by counting entries (tmpfs before Linux 6.6), so a removal between two
// pieces makes them skip others: `rm -r` then fails. An open directory keeps its position, so we
// keep it open until the client continues, together with the entries read ahead.
//
// This is a cache: without a kept listing, READDIR starts a new one at the cookie.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "coop/unique_fd.hpp"
#include "rpc/storage/message.h"

namespace coop::daemon
{

struct raw_entry {
	std::string_view name;
	std::uint64_t ino, cookie; // of the position after it
	unsigned char type;        // DT_*
};

// One directory, read from a given position. One thread at a time.
class listing
{
public:
	explicit listing(unique_fd directory) : directory_(std::move(directory)) {}
	// Returns 0 or -errno. Call it before the first look().
	int seek(std::uint64_t cookie);
	// The entry at the current position. Returns 0; 1: end of directory; or -errno. Valid until
	// the next step().
	int look(raw_entry &);
	void step();

private:
	unique_fd directory_;
	alignas(std::uint64_t) std::array<char, 32768> raw_;
	std::size_t at_ = 0, end_ = 0;
};

class inode;
// The daemon looks with its own rights, not the caller's. False also if it cannot read the
// directory.
bool holds_no_names(const inode &directory);

class listings
{
public:
	static constexpr std::size_t limit = 64; // 64 descriptors and 2 MiB
	static constexpr std::chrono::seconds patience{60};

	// Null: no listing is kept at that position.
	std::unique_ptr<listing> take(const std::string &session, const coop_fid &,
				      std::uint64_t cookie, std::uint64_t &begun);
	// begun: number of the whole reading, from begin(). Of two listings at one position the one
	// that began later stays: its read-ahead is no older than what its reader has seen.
	void leave(const std::string &session, const coop_fid &, std::uint64_t cookie,
		   std::uint64_t begun, std::unique_ptr<listing>);
	std::uint64_t begin();

private:
	struct place {
		std::string session;
		coop_fid directory;
		std::uint64_t cookie, begun;
		std::chrono::steady_clock::time_point left;
		std::unique_ptr<listing> what;
	};
	using places = std::list<place>;
	static bool same_directory(const place &, const std::string &session, const coop_fid &);
	void drop_oldest_locked(places &dropped);

	std::mutex mutex_; // guards all below
	places places_;    // oldest first
	std::uint64_t last_ = 0;
};

} // namespace coop::daemon
