// SPDX-License-Identifier: MIT
// lease_book.hpp - what this mount knows of files that it has a lease of.
//
// Replies come in any order and on any thread, recalls on one. So each request
// takes a ticket before it is sent, and what its reply tells is kept only if
// nothing has happened to the file since: no recall, no change of ours that has
// begun or ended. A file that is changed by us at the moment is not known. What a
// reply tells of a file was true when the daemon looked, so the lease must have been
// known before it was asked for, or have come with the same reply, for the daemon looks
// when it has given it.
//
// A lease is of one file. What is known of a directory's names is gone with the
// directory's lease, what is known of the files behind them with theirs.
//
// Who may search, list or open is not worked out here from mode bits: what storage
// has permitted to a user once holds for that user until the lease ends or the
// attributes are changed.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "userland/client/storage.hpp"

namespace coop::client
{

class lease_book
{
public:
	using ticket = std::uint64_t;
	// What a request has shown; the last three are answers of access(2).
	enum class right { search, list, read, execute, access_read, access_write, access_execute };
	enum class found { unknown, here, absent };

	static constexpr std::size_t files_max = 10000;
	static constexpr std::size_t names_max = 65536; // of one directory

	ticket now();

	// What replies tell. asked: from before the request was sent. Attributes without a lease
	// end the one that there is. True: they tell of one that is believed, and so is what else
	// the same reply tells of that file ('within').
	bool learned(ticket asked, const handle &, const attributes &);
	void allowed(ticket asked, const handle &, const caller &, right, bool within = false);
	void named(ticket asked, const handle &dir, std::string_view name, const handle &node);
	void absent(ticket asked, const handle &dir, std::string_view name);
	void listed(ticket asked, const handle &dir, std::uint64_t cookie,
		    const std::vector<dir_entry> &, bool end);
	void points_at(ticket asked, const handle &link, const std::string &target);
	void opened_by(ticket asked, const handle &, const std::vector<std::uint32_t> &openers,
		       bool within = false);

	// What is known.
	bool attributes_of(const handle &, attributes &out);
	bool may(const handle &, const caller &, right);
	found lookup(const handle &dir, std::string_view name, const caller &, entry &out);
	// False: not known. Entries whose attributes are not known have no handle. Who reads on
	// (cookie not 0) gets the rest of the listing that was begun, over our own changes of
	// names: storage may not find the place again when names before it have gone.
	bool list(const handle &dir, const caller &, std::uint64_t cookie, std::size_t max_bytes,
		  std::vector<dir_entry> &out, bool &end);
	bool target_of(const handle &link, std::string &out);
	// What the name means, whoever asks; an empty handle: nothing.
	std::optional<handle> named_so(const handle &dir, std::string_view name);
	std::vector<std::uint32_t> openers_of(const handle &);

	// A change of ours, from before it is sent until its reply. names: of a directory's names
	// alone, which stay known. Nobody else may know of a change that was given up: 'unsure'.
	void begin_change(const handle &, bool names);
	void end_change(const handle &, bool names);
	void unsure(const handle &);
	// After end_change(): the directory's name is this now; "": none.
	void renamed(const handle &dir, std::string_view name, const handle &node);
	void names_unknown(const handle &dir);
	// A directory that we have just made: nothing is in it.
	void empty(ticket asked, const handle &dir);
	// The reply to a change told the attributes that followed, in the place of end_change().
	void end_change(const handle &, ticket begun, const attributes &after);

	// What leads to the end of leases. Returns the handle, if the file is known. Until
	// returned() no lease of that file is believed: the daemon may execute the return after
	// what was sent later.
	std::optional<handle> recalled(const coop_fid &);
	void returned(const coop_fid &);
	// All are gone, and none is believed until resume().
	void lost();
	void resume();
	// Leases that there was no room for: to be returned, as those that are recalled.
	std::vector<coop_fid> evicted();
	// A file that is open keeps its place.
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
		ticket broken = 0; // what was asked for before is not believed
		ticket since = 0;  // when the lease became known: what else was asked for before
				   // may be older than it
		attributes attr{};
		bool attr_known = false;
		std::vector<std::pair<caller, right>> rights;
		std::vector<std::uint32_t> openers;
		std::string target;
		// Directories. A name without a handle is absent; 'complete': all others are too.
		std::unordered_map<std::string, handle> names;
		bool complete = false;
		struct {
			std::vector<item> items; // in the order of storage
			std::unordered_map<std::uint64_t, std::size_t> after; // cookie to index
			bool complete = false;
		} listing, before; // before our own last change of names: see list()
		std::list<handle>::iterator place; // in order of use
	};
	struct hash {
		std::size_t operator()(const coop_fid &f) const { return f.lo; }
	};
	struct equal {
		bool operator()(const coop_fid &a, const coop_fid &b) const
		{
			return a.hi == b.hi && a.lo == b.lo;
		}
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

	mutable std::mutex mutex_; // all below
	ticket clock_ = 0, floor_ = 0;
	bool believing_ = true;
	std::unordered_map<handle, file> files_;
	std::unordered_map<coop_fid, handle, hash, equal> by_fid_;      // of leased files
	std::unordered_map<coop_fid, ticket, hash, equal> recalled_;    // lately
	std::unordered_map<coop_fid, unsigned, hash, equal> returning_; // without an answer yet
	std::list<handle> order_;                                       // longest unused first
	std::vector<coop_fid> evicted_;
};

} // namespace coop::client
