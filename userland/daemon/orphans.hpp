// SPDX-License-Identifier: MIT
// orphans.hpp - files that lost their last name while a client has them open.
//
// An open file lives until its last close, also over a restart of the daemon. Our descriptor keeps
// an unlinked file only while we run, and no handle opens it again. So before the last name of an
// open file goes, we link the file into a directory at the root of the export, which clients never
// see. The last close removes that name. After a restart we keep the names found there as long as
// sessions live, until clients have opened their files again.
//
// A stripe's lock makes "is it open?" and the removal of a name one atomic step.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "coop/fid.hpp"
#include "coop/unique_fd.hpp"
#include "rpc/storage/message.h"

namespace coop::daemon
{

class orphans
{
public:
	static constexpr std::string_view directory = ".coopfs-orphans";

	// root: the export's root, open for longer than this object. prefix: distinguishes exports
	// that share a directory. Takes over the names that an earlier daemon left, except in a
	// read-only export: there they stay.
	orphans(int root, std::string prefix, bool writable);

	// Held from the question whether a file is open to the removal of its name.
	using guard = std::unique_lock<std::mutex>;
	[[nodiscard]] guard hold(const coop_fid &);

	void opened(const coop_fid &);
	// The last close removes the orphan name.
	void closed(const coop_fid &);
	// Call before removing a name: an open file gets an orphan name. 0, or -errno: it has none,
	// and lives only while this daemon runs.
	int keep_locked(const coop_fid &, int path);
	// Call after removing a name: drops the orphan name if the file has others.
	void settle_locked(const coop_fid &, int path);
	[[nodiscard]] bool open_locked(const coop_fid &);
	// Whether one of the file's links is the orphan name.
	[[nodiscard]] bool has(const coop_fid &);
	// Opens the file of this identity among the orphans.
	[[nodiscard]] int find(const coop_fid &, unique_fd &path) const;

	// The sessions of an earlier daemon have ended: removes orphans that no client opened
	// again.
	void end_grace();
	// This daemon ends: keeps the orphans of open files for the next one.
	void freeze() { frozen_ = true; }

private:
	struct record {
		unsigned opens = 0;
		bool kept = false;
		bool inherited = false; // from an earlier daemon, whose clients may come back
	};
	using table = std::unordered_map<coop_fid, record, fid_hash, fid_equal>;
	struct stripe {
		std::mutex mutex;
		table files;
	};
	stripe &of(const coop_fid &f) { return stripes_[f.hi % stripes_.size()]; }
	std::string name_of(const coop_fid &) const;
	[[nodiscard]] int open_directory(bool make, unique_fd &) const;
	void drop_locked(table &, table::iterator);
	void inherit();

	const int root_;
	const std::string prefix_;
	std::array<stripe, 64> stripes_;
	std::atomic<std::size_t> kept_{0};
	std::atomic<bool> frozen_{false};
};

} // namespace coop::daemon
