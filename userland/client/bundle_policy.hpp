// SPDX-License-Identifier: MIT
// bundle_policy.hpp - when a mount asks for a bundle, and of what.
//
// Storage says with a reply that other clients use the directory too. The second such reply about
// one directory is the reason to ask for its bundle: a program that looks at one file does not want
// all of them. After a listing there may be no second reply about the directory, only opens of what
// was listed: the second of these is such a reason, too. When the bundles of three directories in
// one, or one level further below, were of use, that one is asked for with all that is below it,
// one part after another, each when a directory that the earlier parts did not have is looked in.
// Parts that do not have that directory either end this: the subtree is large, and the program uses
// little of it.
//
// A directory is asked for again only some time later, and the time doubles: one that keeps
// changing, or that has no bundle, costs few requests.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "userland/client/storage.hpp"

namespace coop::client
{

class bundle_policy
{
public:
	using clock = std::chrono::steady_clock;
	static constexpr unsigned notices_wanted = 2;  // replies about one directory
	static constexpr unsigned opens_wanted = 2;    // of files of one listing
	static constexpr unsigned children_wanted = 3; // bundles below one directory
	static constexpr unsigned levels = 2;          // above a bundle that count it
	static constexpr unsigned misses_most = 3;     // parts in a row without what was wanted
	static constexpr std::chrono::milliseconds pause{1000}, pause_max{64000};
	static constexpr std::size_t dirs_max = 16384;  // known; beyond that all are forgotten
	static constexpr std::size_t files_max = 16384; // of listings; the same
	static constexpr unsigned depth_max = 64;       // looked at above a directory

	struct want {
		handle dir;
		bool subtree;
		std::uint32_t part;
		// Contents that nodes have stay there. The parts of a subtree are all of one kind,
		// which the reply to the first one says: set it before came().
		bool at_nodes = true;
	};
	// 'dir' is in 'parent'.
	void placed(const handle &parent, const handle &dir);
	// A reply has said that others use this directory. Ask now for what is returned, and call
	// came() in any case.
	std::optional<want> noticed(const handle &dir, clock::time_point now = clock::now());
	// A listing has this file, and storage has said with it that others use the directory.
	void listed(const handle &dir, const handle &file);
	// Storage is about to be asked to open this file. Returns the directory of which this is a
	// notice: call noticed() for it.
	std::optional<handle> opened(const handle &file);
	// A bundle had this directory.
	void had(const handle &dir);
	// used: the bundle was of use; more: its subtree has another part.
	void came(const want &, bool used, bool more, clock::time_point now = clock::now());

private:
	struct turn {
		bool asking = false;
		clock::time_point not_before{};
		clock::duration pause{};
		bool begin(clock::time_point now);
		void wait(clock::time_point now); // a while before it is asked for again
	};
	struct dir_state {
		handle parent; // empty: unknown
		unsigned notices = 0, opens = 0, children = 0;
		turn plain, subtree;
		bool begun = false;     // its subtree: asked for, or more parts are to come
		std::uint32_t part = 0; // the next one
		bool at_nodes = true;   // this and the next ones
		handle sought;          // the directory that the part is to have
		unsigned misses = 0;
		bool had = false;
	};
	dir_state &dir_locked(const handle &);
	std::optional<want> part_locked(const handle &, dir_state &, const handle &sought);

	std::mutex mutex_; // guards all below
	std::unordered_map<handle, dir_state> dirs_;
	std::unordered_map<handle, handle> files_; // of listings: the directory of each
};

} // namespace coop::client
