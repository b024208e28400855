// SPDX-License-Identifier: MIT
// version.cpp - leases as proof, change times as versions.
#include "userland/daemon/version.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <fcntl.h>
#include <iterator>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "coop/cluster_key.hpp"
#include "coop/unique_fd.hpp"

namespace coop::daemon
{

std::uint64_t provisional_version()
{
	static std::atomic<std::uint64_t> next = [] {
		std::uint64_t start;
		random_bytes(&start, sizeof(start));
		return start;
	}();
	return next.fetch_add(1, std::memory_order_relaxed) | provisional_bit;
}

std::uint64_t change_time_ns(const struct stat &st)
{
	if (st.st_ctim.tv_sec <= 0 || st.st_ctim.tv_sec > 9'000'000'000)
		return 0; // outside what 63 bits of nanoseconds hold: never settled
	return static_cast<std::uint64_t>(st.st_ctim.tv_sec) * 1'000'000'000 +
	       static_cast<std::uint64_t>(st.st_ctim.tv_nsec);
}

std::uint64_t stamping_time_ns()
{
	struct timespec now {
	}; // 1970 proves nothing
	::clock_gettime(CLOCK_REALTIME_COARSE, &now);
	return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
	       static_cast<std::uint64_t>(now.tv_nsec);
}

// The most that a change time may be rounded down: some file systems keep whole seconds.
static std::uint64_t granularity_ns(std::uint64_t ctime)
{
	return ctime % 1'000'000'000 ? coarse_ns : 1'000'000'000 + coarse_ns;
}

// File systems whose changes this kernel stamps. On others (NFS, SMB, 9p, FUSE ...) another machine
// may stamp them, whose clock we cannot read.
static bool stamps_here(int dir_fd)
{
	constexpr std::uint32_t bcachefs = 0xca451a4e, zfs = 0x2fc12fc1; // not in linux/magic.h
	constexpr std::uint32_t known[] = {
		EXT4_SUPER_MAGIC, // and ext2, ext3
		XFS_SUPER_MAGIC,  BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC,
		TMPFS_MAGIC,      RAMFS_MAGIC,       bcachefs,         zfs,
	};
	struct statfs fs;
	return !::fstatfs(dir_fd, &fs) &&
	       std::find(std::begin(known), std::end(known),
			 static_cast<std::uint32_t>(fs.f_type)) != std::end(known);
}

change_clock change_clock::probe(int dir_fd, bool writable)
{
	// Coarse time steps by a tick, of at least 1 ms. This many changes in so short a time get
	// different times only if the clock is fine; a slow file system could reach that by
	// waiting, hence 'most'.
	constexpr int rounds = 64, attempts = 8;
	constexpr std::chrono::milliseconds most{rounds / 2};
	change_clock clock{.ours = stamps_here(dir_fd)};
	if (!writable || !clock.ours)
		return clock;
	unique_fd fd(::openat(dir_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
	if (!fd)
		return clock;
	std::uint64_t last = 0;
	for (int attempt = 0; attempt < attempts; attempt++) { // a busy machine may need several
		const auto start = std::chrono::steady_clock::now();
		for (int i = 0; i < rounds; i++) {
			struct stat st;
			if (::pwrite(fd.get(), &i, sizeof(i), 0) != sizeof(i) ||
			    ::fstat(fd.get(), &st))
				return clock;
			if (change_time_ns(st) == last)
				return clock;
			last = change_time_ns(st);
		}
		clock.fine = std::chrono::steady_clock::now() - start < most;
		if (clock.fine)
			break;
	}
	return clock;
}

stillness::stillness(int fd, bool writable) : fd_(fd)
{
	if (fd < 0) {
		unknown_ = true;
		return;
	}
	granted_ = ::fcntl(fd, F_SETLEASE, writable ? F_WRLCK : F_RDLCK) == 0;
	unknown_ = !granted_ && errno != EAGAIN;
}

stillness::~stillness()
{
	if (granted_)
		::fcntl(fd_, F_SETLEASE, F_UNLCK);
}

bool is_past(std::uint64_t change_time, const change_clock &clock)
{
	return is_past(change_time, clock, clock.now());
}

bool is_past(std::uint64_t change_time, const change_clock &clock, std::uint64_t now)
{
	return clock.fine ||
	       now > change_time + granularity_ns(change_time) + (clock.ours ? 0 : settle_ns);
}

std::uint64_t version_record::observe(const struct stat &st, const stillness &still,
				      const change_clock &clock)
{
	const std::uint64_t ctime = change_time_ns(st);
	if (settled(st) && ctime)
		return ctime;
	if (ctime != ctime_) {
		ctime_ = ctime;
		given_ = 0;
		provisional_ = {};
	}
	const std::uint64_t now = clock.now();
	const std::uint64_t step = granularity_ns(ctime);
	const bool distinct = is_past(ctime, clock);
	const bool quiet = still.granted() || (still.unknown() && now > ctime + step + settle_ns);
	settled_ = ctime && distinct && quiet;
	if (settled_)
		return ctime;
	const std::uint64_t fresh = provisional_version();
	provisional_[given_++ % provisional_kept] = fresh;
	return fresh;
}

bool version_record::matches(std::uint64_t version, const struct stat &st) const
{
	if (!version || change_time_ns(st) != ctime_)
		return false;
	if (version & provisional_bit)
		return std::find(provisional_.begin(), provisional_.end(), version) !=
		       provisional_.end();
	return settled_ && version == ctime_;
}

} // namespace coop::daemon
