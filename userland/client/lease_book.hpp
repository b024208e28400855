// SPDX-License-Identifier: MIT
// lease_book.hpp - what this mount knows of the files on which it holds a lease.
//
// Replies come in any order and on any thread, recalls on one. So each request takes a ticket
// before it is sent, and the content of its reply is kept only if nothing has happened to the file
// since: no recall, and no begin or end of a change of ours. While we change a file, nothing about
// it is known. A reply was true when the daemon looked. So the lease must have been known before
// the request was sent, or have come with the same reply, because the daemon looks after it has
// granted the lease.
//
// A lease is on one file. The names of a directory are forgotten with the directory's lease, and
// the data of each file with its own.
//
// Permissions to search, list or open are not computed here from mode bits: what storage has once
// permitted to a user holds for that user until the lease ends or the attributes change.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "coop/fid.hpp"
#include "userland/client/storage.hpp"

namespace coop::client
{

class lease_book
{
public:
	using ticket = std::uint64_t;
	// Rights that a request has proved; the last three are answers of access(2).
	enum class right { search, list, read, execute, access_read, access_write, access_execute };
	enum class found { unknown, here, absent };

	static constexpr std::size_t files_max = 10000;
	static constexpr std::size_t names_max = 65536; // of one directory

	ticket now();

	// Records contents of replies. asked: ticket from before the request was sent. Attributes
	// without a lease end the file's lease. True: the lease is believed, and so are the other
	// statements about that file in the same reply ('within').
	bool learned(ticket asked, const handle &, const attributes &);
	void allowed(ticket asked, const handle &, const caller &, right, bool within = false);
	// True: the lease covers the name.
	bool named(ticket asked, const handle &dir, std::string_view name, const handle &node);
	void absent(ticket asked, const handle &dir, std::string_view name);
	// True: the lease covers these names.
	bool listed(ticket asked, const handle &dir, std::uint64_t cookie,
		    const std::vector<dir_entry> &, bool end, bool within = false);
	void points_at(ticket asked, const handle &link, const std::string &target,
		       bool within = false);
	void opened_by(ticket asked, const handle &, const std::vector<std::uint32_t> &openers,
		       bool within = false);

	// Queries.
	bool attributes_of(const handle &, attributes &out);
	bool may(const handle &, const caller &, right);
	found lookup(const handle &dir, std::string_view name, const caller &, entry &out);
	// False: not known. Entries without known attributes have no handle. A reader that
	// continues (cookie not 0) gets the rest of the listing that it began, over our own changes
	// of names: storage may not find the position again after earlier names were removed.
	bool list(const handle &dir, const caller &, std::uint64_t cookie, std::size_t max_bytes,
		  std::vector<dir_entry> &out, bool &end);
	bool target_of(const handle &link, std::string &out);
	// The file of this name, for any user; an empty handle: none.
	std::optional<handle> named_so(const handle &dir, std::string_view name);
	std::vector<std::uint32_t> openers_of(const handle &);

	// A change of ours, from before it is sent until its reply. names: it changes a directory's
	// names alone, which stay known. unsure(): the change was given up, so its result is
	// unknown.
	void begin_change(const handle &, bool names);
	void end_change(const handle &, bool names);
	void unsure(const handle &);
	// After end_change(): the name now means 'node'; "": no file. True: the lease covers it.
	bool renamed(const handle &dir, std::string_view name, const handle &node);
	void names_unknown(const handle &dir);
	// A directory that we have just made: it is empty.
	void empty(ticket asked, const handle &dir);
	// In place of end_change(), when the reply to a change had the attributes after it.
	void end_change(const handle &, ticket begun, const attributes &after);

	// A recall. Returns the handle if the file is known. Until returned() no lease on that file
	// is believed: the daemon may execute the return after requests that were sent later.
	std::optional<handle> recalled(const coop_fid &);
	// A change of ours is under way.
	bool changes(const handle &);
	void returned(const coop_fid &);
	// All leases are gone, and none is believed until resume().
	void lost();
	void resume();
	// Leases for which there was no room: return them like recalled ones.
	std::vector<coop_fid> evicted();
	// An open file is not evicted.
	void keep(const handle &, int more);

	std::size_t held() const;

private:
	struct item {
		std::string name;
		handle fh;
		std::uint64_t cookie;
		std::uint64_t ino;
		mode_t type;
	};
	struct file {
		coop_fid fid{};
		bool leased = false;
		bool unsure = false;
		unsigned changing = 0, kept = 0;
		ticket broken = 0; // replies to older requests are not believed
		ticket since = 0;  // when the lease became known: other replies to older
				   // requests may predate it
		attributes attr{};
		bool attr_known = false;
		std::vector<std::pair<caller, right>> rights;
		std::vector<std::uint32_t> openers;
		std::string target;
		// Directories. A name with an empty handle is absent; 'complete': so are all names
		// not here.
		std::unordered_map<std::string, handle> names;
		bool complete = false;
		struct {
			std::vector<item> items;                              // in storage's order
			std::unordered_map<std::uint64_t, std::size_t> after; // cookie to index
			bool complete = false;
		} listing, before; // before: as of our last change of names, see list()
		std::list<handle>::iterator place; // in order of use
	};

	file &file_locked(const handle &);
	file *known_locked(const handle &);
	file *believing_locked(ticket asked, const handle &, bool within = false);
	static bool may_locked(const file &, const caller &, right);
	static void forget_locked(file &);
	static void forget_listing_locked(file &);
	static void retire_listing_locked(file &);
	void break_locked(file &);
	void evict_locked(const coop_fid &);
	void trim_locked();

	mutable std::mutex mutex_; // guards all below
	ticket clock_ = 0, floor_ = 0;
	bool believing_ = true;
	std::unordered_map<handle, file> files_;
	std::unordered_map<coop_fid, handle, fid_hash, fid_equal> by_fid_;      // of leased files
	std::unordered_map<coop_fid, ticket, fid_hash, fid_equal> recalled_;    // recently
	std::unordered_map<coop_fid, unsigned, fid_hash, fid_equal> returning_; // not yet answered
	std::list<handle> order_; // least recently used first
	std::vector<coop_fid> evicted_;
};

} // namespace coop::client
