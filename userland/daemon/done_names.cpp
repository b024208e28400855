// SPDX-License-Identifier: MIT
// done_names.cpp - see done_names.hpp.
#include "userland/daemon/done_names.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coop/cluster_key.hpp"

namespace coop::daemon
{

namespace
{

constexpr char magic[16] = "coopfs names 1";
constexpr std::uint32_t errno_max = 4095;
constexpr const char *what_it_means =
	"changes of names that a restart of this daemon interrupts may run twice";

std::uint64_t nanoseconds(clockid_t clock)
{
	struct timespec t;
	::clock_gettime(clock, &t);
	return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 +
	       static_cast<std::uint64_t>(t.tv_nsec);
}

// A session's id lets its holder act as the session, so it is not told to those who list the files.
std::string file_of(const std::string &session)
{
	const digest d = sha256("coopfs session " + session);
	std::string name;
	for (std::size_t i = 0; i < 16; i++)
		name += fmt::format("{:02x}", d[i]);
	return name;
}

} // namespace

std::uint64_t change_time_now()
{
	return nanoseconds(CLOCK_REALTIME_COARSE);
}

done_names::head done_names::head_of(const std::string &boot)
{
	head h{};
	const digest d = sha256("coopfs boot " + boot);
	static_assert(sizeof(h.boot) == sizeof(d));
	std::memcpy(h.magic, magic, sizeof(magic));
	std::memcpy(h.boot, d.data(), d.size());
	return h;
}

bool done_names::is_of(const std::string &boot, std::string_view file)
{
	const head h = head_of(boot);
	return file.size() <= bytes && file.size() >= sizeof(h) &&
	       std::memcmp(file.data(), &h, sizeof(h)) == 0;
}

std::unique_ptr<done_names> done_names::load(unique_fd fd, const std::string &boot,
					     std::uint64_t since, std::string name)
{
	std::string file(bytes + 1, '\0'); // a longer one is none of ours
	const ssize_t n = ::pread(fd.get(), file.data(), file.size(), 0);
	if (n < 0)
		return nullptr;
	file.resize(static_cast<std::size_t>(n));
	contents all{};
	if (is_of(boot, file)) {
		std::memcpy(all.data(), file.data() + sizeof(head), file.size() - sizeof(head));
	} else {
		const head h = head_of(boot);
		// No head before the old contents are gone.
		if (::ftruncate(fd.get(), 0) || ::pwrite(fd.get(), &h, sizeof(h), 0) != sizeof(h))
			return nullptr;
	}
	return std::unique_ptr<done_names>(
		new done_names(std::move(fd), since, std::move(name), all));
}

done_names::done_names(unique_fd fd, std::uint64_t since, std::string name, const contents &all) :
	fd_(std::move(fd)),
	since_(since),
	name_(std::move(name))
{
	for (std::size_t i = running_max; i < all.size(); i++) {
		const change &c = all[i];
		if (!c.request || !c.ended || c.status > errno_max)
			continue;
		outcomes_.push_back(c);
		number_ = std::max(number_, c.number);
	}
	for (std::size_t i = 0; i < running_max; i++) {
		const change &c = all[i];
		const bool ended =
			std::any_of(outcomes_.begin(), outcomes_.end(),
				    [&](const change &o) { return o.request == c.request; });
		if (c.request && !ended)
			left_.emplace_back(i, c);
		else
			free_.push_back(i);
	}
}

bool done_names::bound_names()
{
	bool contents = false;
	std::lock_guard lock(mutex_);
	for (auto &[place, c] : left_) {
		contents |= c.what == kind::append || c.what == kind::shift;
		if (c.what != kind::name || c.number)
			continue;
		c.number = since_;
		(void)write(place, c); // without it, the start of a later process counts
	}
	return contents;
}

bool done_names::bound_contents(const coop_fid &file, std::uint64_t size)
{
	bool left = false;
	std::lock_guard lock(mutex_);
	for (auto &[place, c] : left_) {
		if (c.what != kind::append && c.what != kind::shift)
			continue;
		if (c.source != file_identity{file.hi, file.lo}) {
			left = true;
			continue;
		}
		if (c.what == kind::append) {
			c.what = kind::bounded_append;
			c.grown = static_cast<std::uint32_t>(std::min<std::uint64_t>(
				size - std::min(size, c.number), COOP_ST_IO_MAX));
		} else {
			c.what = kind::bounded_shift;
			c.grown = size != c.number;
		}
		(void)write(place, c);
	}
	return left;
}

bool done_names::write(std::size_t index, const change &c)
{
	const auto at = static_cast<off_t>(sizeof(head) + index * sizeof(c));
	if (::pwrite(fd_.get(), &c, sizeof(c), at) == sizeof(c))
		return true;
	if (!told_.exchange(true))
		spdlog::warn("{}: {}: {}", name_, std::strerror(errno), what_it_means);
	return false;
}

std::optional<done_names::change> done_names::earlier(std::uint64_t request, std::size_t &place)
{
	place = nowhere;
	std::lock_guard lock(mutex_);
	for (const change &c : outcomes_)
		if (c.request == request)
			return c;
	const auto it = std::find_if(left_.begin(), left_.end(), [request](const auto &l) {
		return l.second.request == request;
	});
	if (it == left_.end())
		return {};
	place = it->first;
	const change c = it->second;
	left_.erase(it); // its place is the caller's
	return c;
}

std::size_t done_names::begin(change &c)
{
	c.begun = change_time_now();
	std::size_t place;
	{
		std::lock_guard lock(mutex_);
		if (free_.empty()) {
			// With what the client may still repeat, the requests in flight are too
			// many: it will not repeat the oldest.
			const auto oldest = std::min_element(
				left_.begin(), left_.end(), [](const auto &a, const auto &b) {
					return a.second.begun < b.second.begun;
				});
			if (oldest == left_.end())
				return nowhere;
			free_.push_back(oldest->first);
			left_.erase(oldest);
		}
		place = free_.back();
		free_.pop_back();
	}
	if (write(place, c))
		return place;
	std::lock_guard lock(mutex_);
	free_.push_back(place);
	return nowhere;
}

void done_names::keep_locked(change c)
{
	c.number = ++number_;
	(void)write(running_max + number_ % outcomes_max, c);
}

void done_names::ended(std::size_t place, const change &begun, int err)
{
	if (place == nowhere)
		return;
	change c = begun;
	c.status = static_cast<std::uint16_t>(-err);
	c.ended = change_time_now();
	std::lock_guard lock(mutex_);
	keep_locked(c);
	free_.push_back(place); // what it says there does not count beside the outcome
}

void done_names::moved(std::size_t place, const change &c)
{
	(void)write(place, c);
}

void done_names::drop(std::size_t place)
{
	if (place == nowhere)
		return;
	std::lock_guard lock(mutex_);
	free_.push_back(place);
}

void done_names::again(const change &c)
{
	std::lock_guard lock(mutex_);
	keep_locked(c);
}

done_files::done_files(const state_directory &state, std::string boot) :
	dir_(state.below("names")),
	boot_(std::move(boot)),
	since_(nanoseconds(CLOCK_REALTIME)) // no stamp until now is later
{
	for (const std::string &name : dir_.names()) {
		std::string text;
		unique_fd fd;
		std::shared_ptr<done_names> names;
		if (dir_.read(name, text) || !done_names::is_of(boot_, text))
			(void)dir_.remove(name);
		else if (!dir_.open(name, fd))
			names = done_names::load(std::move(fd), boot_, since_,
						 dir_.path() + "/" + name);
		if (names && names->bound_names())
			with_contents_.emplace(name, std::move(names));
	}
	contents_left_ = !with_contents_.empty();
}

std::shared_ptr<done_names> done_files::open(const std::string &session,
					     const std::atomic<bool> &over)
{
	const std::string name = file_of(session);
	std::lock_guard lock(mutex_); // also against forget(): it leaves no file
	if (over || mine_.size() >= most_ || boot_.empty())
		return nullptr;
	if (const auto it = with_contents_.find(name); it != with_contents_.end()) {
		mine_.insert(name);
		return it->second;
	}
	unique_fd fd;
	const std::string path = dir_.path() + "/" + name;
	int err = dir_.open(name, fd);
	std::shared_ptr<done_names> out;
	if (!err) {
		out = done_names::load(std::move(fd), boot_, since_, path);
		err = out ? 0 : -errno;
	}
	if (out)
		mine_.insert(name);
	else if (!std::exchange(told_, true))
		spdlog::warn("{}: {}: {}", path, std::strerror(-err), what_it_means);
	return out;
}

void done_files::bound_contents(const coop_fid &file, std::uint64_t size)
{
	std::lock_guard lock(mutex_);
	std::erase_if(with_contents_,
		      [&](const auto &n) { return !n.second->bound_contents(file, size); });
	contents_left_ = !with_contents_.empty();
}

void done_files::drop_locked(const std::string &name)
{
	with_contents_.erase(name);
	contents_left_ = !with_contents_.empty();
	(void)dir_.remove(name);
}

void done_files::forget(const std::string &session)
{
	const std::string name = file_of(session);
	std::lock_guard lock(mutex_);
	if (mine_.erase(name))
		drop_locked(name);
}

void done_files::end_grace()
{
	for (const std::string &name : dir_.names()) {
		std::lock_guard lock(mutex_);
		if (!mine_.contains(name))
			drop_locked(name);
	}
}

} // namespace coop::daemon
