// SPDX-License-Identifier: MIT
// listings.hpp - directories that are being read, between two READDIRs.
//
// A client reads a directory in pieces and names the place where it goes on by the
// cookie of the last entry. Where the export's file system finds that place by
// counting entries (tmpfs before Linux 6.6), entries that were removed meanwhile
// make it skip others: `rm -r` then fails. An open directory keeps its place, so it
// is kept open here until the client goes on, with what was read ahead of it.
//
// A listing that is not here is begun at its cookie, as ever: this is a cache.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "rpc/storage/message.h"
#include "userland/daemon/fd.hpp"

namespace coop::daemon
{

struct raw_entry {
	std::string_view name;
	std::uint64_t ino, cookie; // of the place behind it
	unsigned char type;        // DT_*
};

// One directory, read from a place on. One thread at a time.
class listing
{
public:
	explicit listing(unique_fd directory) : directory_(std::move(directory)) {}
	// 0 or -errno. Before the first look.
	int seek(std::uint64_t cookie);
	// The entry at this place. 0, 1: there is none, -errno. Valid until the next step().
	int look(raw_entry &);
	void step();

private:
	unique_fd directory_;
	alignas(std::uint64_t) std::array<char, 32768> raw_;
	std::size_t at_ = 0, end_ = 0;
};

class inode;
// Looked up by the daemon itself, whatever a caller may. False as well if it cannot be read.
bool holds_no_names(const inode &directory);

class listings
{
public:
	static constexpr std::size_t limit = 64; // descriptors, and 2 MiB
	static constexpr std::chrono::seconds patience{60};

	// Null: none was left at that place.
	std::unique_ptr<listing> take(const std::string &session, const coop_fid &,
				      std::uint64_t cookie, std::uint64_t &begun);
	// begun: of the reading that it is part of, from begin(). Of two at one place the one that
	// began later stays: what it has read ahead is no older than what its reader has seen.
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

	std::mutex mutex_; // all below
	places places_;    // left longest ago first
	std::uint64_t last_ = 0;
};

} // namespace coop::daemon
