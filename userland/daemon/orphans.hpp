// SPDX-License-Identifier: MIT
// orphans.hpp - files that lost their last name while a client has them open.
//
// An open file lives until its last close, also over a restart of the daemon. A
// descriptor of ours keeps an unlinked file only while we run, and no handle
// opens it again. So before the last name of an open file goes, the file gets a
// name in a directory of ours at the root of the export, which clients never
// see. The last close removes that name. After a restart the names found there
// are kept for as long as sessions are, until clients have opened their files
// again.
//
// A stripe's lock makes "is it open?" and the removal of a name one step.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "rpc/storage/message.h"
#include "userland/daemon/fd.hpp"

namespace coop::daemon
{

class orphans
{
public:
	static constexpr std::string_view directory = ".coopfs-orphans";

	// root: of the export, open for longer than this. prefix: tells apart the exports that
	// share a directory. Takes over what an earlier daemon left, but in an export that is not
	// writable: there it stays as it is.
	orphans(int root, std::string prefix, bool writable);

	// Held from asking whether a file is open to the removal of its name.
	using guard = std::unique_lock<std::mutex>;
	[[nodiscard]] guard hold(const coop_fid &);

	void opened(const coop_fid &);
	// The last close removes our name of the file.
	void closed(const coop_fid &);
	// Before a name is removed: an open file gets a name of ours. 0, or -errno: it has none
	// and lives only while this daemon runs.
	int keep_locked(const coop_fid &, int path);
	// After that: our name goes if the file has others.
	void settle_locked(const coop_fid &, int path);
	[[nodiscard]] bool open_locked(const coop_fid &);
	// One of the file's links is ours.
	[[nodiscard]] bool has(const coop_fid &);
	// The file of that identity among those that are kept.
	[[nodiscard]] int find(const coop_fid &, unique_fd &path) const;

	// Sessions of an earlier daemon have ended: what nobody opened again goes.
	void end_grace();
	// This daemon ends: what is open stays for the next one.
	void freeze() { frozen_ = true; }

private:
	struct record {
		unsigned opens = 0;
		bool kept = false;
		bool inherited = false; // by an earlier daemon, whose clients may come back
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
	using table = std::unordered_map<coop_fid, record, hash, equal>;
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
