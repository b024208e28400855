// SPDX-License-Identifier: MIT
// names_once.cpp - see names_once.hpp.
#include "userland/daemon/names_once.hpp"

#include <algorithm>
#include <fcntl.h>

namespace coop::daemon
{

namespace
{

// Kernels with fine-grained times stamp later than the coarse clock says.
constexpr std::uint64_t tick = 20'000'000;

std::uint64_t time_of(const struct statx_timestamp &t)
{
	return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

} // namespace

file_identity identify(int dir, const std::string &name)
{
	struct statx sx;
	if (::statx(dir, name.c_str(), AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_BTIME, &sx))
		return {};
	return {sx.stx_ino, sx.stx_mask & STATX_BTIME ? time_of(sx.stx_btime) : 0};
}

names_once::names_once(done_names *names, std::uint64_t request, std::uint64_t verifier,
		       bool repeated) :
	names_(names)
{
	mine_.request = request;
	mine_.verifier = verifier;
	if (names_ && repeated)
		before_ = names_->earlier(request, place_);
	verifier_differs_ = before_ && before_->verifier != verifier;
	if (answer())
		names_->again(*before_);
	if (uncertain())
		mine_ = *before_; // should this process end, too
}

std::optional<int> names_once::answer() const
{
	if (!before_ || !before_->ended)
		return {};
	return -static_cast<int>(before_->status);
}

file_identity names_once::takes(int dir, const std::string &name)
{
	const file_identity now = names_ ? identify(dir, name) : file_identity();
	if (!uncertain())
		mine_.source = now;
	return now;
}

std::optional<names_once::made> names_once::appended(std::uint64_t size) const
{
	if (!uncertain() || (before_->what != done_names::kind::append &&
			     before_->what != done_names::kind::bounded_append))
		return {};
	const std::uint64_t from = before_->number;
	return made{from, before_->what == done_names::kind::append ? size - std::min(size, from)
								    : before_->grown};
}

void names_once::appends(const coop_fid &file, std::uint64_t at)
{
	begins(done_names::kind::append, file, at);
}

bool names_once::shifted(std::uint64_t size) const
{
	if (!uncertain())
		return false;
	return before_->what == done_names::kind::shift
		       ? before_->number != size
		       : before_->what == done_names::kind::bounded_shift && before_->grown;
}

void names_once::shifts(const coop_fid &file, std::uint64_t size)
{
	begins(done_names::kind::shift, file, size);
}

void names_once::begins(done_names::kind what, const coop_fid &file, std::uint64_t number)
{
	mine_.what = what;
	mine_.source = {file.hi, file.lo};
	mine_.number = number;
	if (names_ && place_ != done_names::nowhere)
		names_->moved(place_, mine_);
}

bool names_once::born(int fd, mode_t type, uid_t owner) const
{
	struct statx sx;
	if (!before_ || ::statx(fd, "", AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW,
				STATX_TYPE | STATX_UID | STATX_BTIME, &sx))
		return false;
	if ((sx.stx_mode & S_IFMT) != type || sx.stx_uid != owner)
		return false;
	if (!(sx.stx_mask & STATX_BTIME))
		return before_->ended;
	const std::uint64_t at = time_of(sx.stx_btime);
	return at >= before_->begun &&
	       at <= (before_->ended ? before_->ended + tick : names_->until(*before_));
}

bool names_once::touched(int fd) const
{
	struct statx sx;
	return before_ && !::statx(fd, "", AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_CTIME, &sx) &&
	       time_of(sx.stx_ctime) >= before_->begun;
}

} // namespace coop::daemon
