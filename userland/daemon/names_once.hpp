// SPDX-License-Identifier: MIT
// names_once.hpp - a change of names that runs once, also if its request is repeated after the
// process that ran it first has ended.
//
// What an earlier process noted as ended is not run again: the reply has its outcome. Of what it
// had only begun, traces decide whether it was made:
// - a name that got a new file: the change fails now because the name exists, and that file was
//   born since the change began and before the next process did. No other client can have made it,
//   because the change had the mutex of the directory until then;
// - a name that was taken from a file: it has no file now, or another one than when the change
//   began. So a repeat never removes or moves what others have made since;
// - an append: its bytes are where the file ended when it began, and were there before a later
//   process changed the file;
// - a range that is collapsed or inserted: the file had another size before a later process changed
//   it than when the change began. Run twice, it would move what is behind it twice.
#pragma once

#include <optional>
#include <string>
#include <sys/stat.h>
#include <utility>

#include "userland/daemon/done_names.hpp"

namespace coop::daemon
{

// The file that has this name.
file_identity identify(int dir, const std::string &name);

class names_once
{
public:
	// names: null: nothing is kept. repeated: the request may have run in an earlier process.
	names_once(done_names *names, std::uint64_t request, std::uint64_t verifier, bool repeated);
	names_once(names_once &&o) noexcept :
		names_(o.names_),
		mine_(o.mine_),
		place_(std::exchange(o.place_, done_names::nowhere)),
		before_(o.before_),
		verifier_differs_(o.verifier_differs_)
	{
	}
	~names_once()
	{
		if (names_)
			names_->drop(place_);
	}

	// The outcome of the earlier process; none: run the change.
	[[nodiscard]] std::optional<int> answer() const;
	// The names in question may have been changed under another verifier than the present one.
	[[nodiscard]] bool verifier_differs() const { return verifier_differs_; }
	// An earlier process may have made the change.
	[[nodiscard]] bool uncertain() const { return before_ && !before_->ended; }

	// Before run(), under the mutex of the directory: the change takes this name from its file.
	// Returns that file.
	file_identity takes(int dir, const std::string &name);
	// It no longer has the name that it had when an earlier process began the change.
	[[nodiscard]] bool taken(const file_identity &now) const
	{
		return source().ino && source() != now;
	}
	// The file that had that name when an earlier process began the change.
	[[nodiscard]] file_identity source() const
	{
		return uncertain() ? before_->source : file_identity();
	}
	// Where the bytes of an append are, as far as an earlier process has made it.
	struct made {
		std::uint64_t from, most;
	};
	// Under the mutex of the file, of this size.
	[[nodiscard]] std::optional<made> appended(std::uint64_t size) const;
	// Before run(), under that mutex: the append goes to this offset.
	void appends(const coop_fid &file, std::uint64_t at);
	// The same for a change that collapses or inserts a range.
	[[nodiscard]] bool shifted(std::uint64_t size) const;
	void shifts(const coop_fid &file, std::uint64_t size);
	// Runs change(), which returns 0 or -errno, under the mutex of the directory; not if there
	// is an answer. traces(): it has been made before, though change() fails.
	template <class act, class look> int run(act change, look traces)
	{
		if (const auto known = answer())
			return *known;
		if (names_ && place_ == done_names::nowhere)
			place_ = names_->begin(mine_);
		int err = change();
		if (err && uncertain() && traces(err))
			err = 0;
		if (names_)
			names_->ended(std::exchange(place_, done_names::nowhere), mine_, err);
		return err;
	}
	template <class act> int run(act change)
	{
		return run(change, [](int) { return false; });
	}
	// Whether this file can be what the earlier process made: this user's, of this type, and
	// born between the begin and the end of that change, or of that process. fd: O_PATH.
	[[nodiscard]] bool born(int fd, mode_t type, uid_t owner) const;
	// Whether the file's inode was changed since then.
	[[nodiscard]] bool touched(int fd) const;

private:
	void begins(done_names::kind, const coop_fid &file, std::uint64_t number);

	done_names *const names_;
	done_names::change mine_;
	std::size_t place_ = done_names::nowhere;
	std::optional<done_names::change> before_;
	bool verifier_differs_ = false;
};

} // namespace coop::daemon
