// SPDX-License-Identifier: MIT
// version.hpp - data versions: equal versions of one file mean equal bytes.
//
// A version is the file's change time if that is proof, and otherwise a number that is given to one
// reply and never again. The change time is proof when
//
//   1. no other process has the file open for writing. The kernel grants a read
//      lease (or, on our only writable descriptor, a write lease) in just that
//      case; mapped files count as open. So no store is under way that has
//      already set the change time, and none can follow without setting it
//      again; and
//   2. the next change will get another time: the file system's change times
//      are fine-grained (probed: two changes with a look between them differ),
//      or the clock that stamps changes has passed this time by more than their
//      granularity. Read that clock, not the time of day: it stands still while
//      a tick is late, which may be long where a machine is emulated or its
//      processors are taken away. If another machine stamps the changes,
//      settle_ns is added: clocks that differ by less do no harm.
//
// Without leases (a file system that has none, a daemon that is not root on another user's file)
// age replaces rule 1: see settle_ns. STORAGE.md says which error that leaves possible.
//
// All functions need the inode's mutex held. A lost record (restart, eviction) costs a fresh
// number, never a wrong one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <sys/stat.h>

namespace coop::daemon
{

constexpr std::uint64_t provisional_bit = 1ull << 63;
constexpr std::uint64_t settle_ns =
	2'000'000'000; // age that stands for a lease where there is none
constexpr std::uint64_t coarse_ns =
	20'000'000;                       // more than a tick of any kernel, and FAT is not served
constexpr unsigned provisional_kept = 16; // numbers of one state that a read may still name

// A number that was never given out: counts up from a random start.
std::uint64_t provisional_version();

// A lower bound of the time that the kernel would stamp on a change made now; in nanoseconds.
std::uint64_t stamping_time_ns();

// Properties of one file system's change times.
struct change_clock {
	bool fine = false;
	bool ours = true; // this machine's clock stamps its changes
	std::uint64_t (*now)() = stamping_time_ns;
	// Not writable: treated as coarse, because probing has to write.
	static change_clock probe(int dir_fd, bool writable = true);
};

std::uint64_t change_time_ns(const struct stat &);

// Whether a change that is made now would get another time than this one, in nanoseconds.
bool is_past(std::uint64_t change_time, const change_clock &);
// The same for a change after the clock showed 'now'.
bool is_past(std::uint64_t change_time, const change_clock &, std::uint64_t now);

// While it lives and is granted(), no other process can open the file for writing.
class stillness
{
public:
	// writable: fd is the process' only descriptor of this file that can write.
	stillness(int fd, bool writable);
	stillness(const stillness &) = delete;
	stillness &operator=(const stillness &) = delete;
	~stillness();
	[[nodiscard]] bool granted() const { return granted_; }
	// Leases do not work here: nothing is known of other writers.
	[[nodiscard]] bool unknown() const { return unknown_; }

private:
	int fd_;
	bool granted_ = false, unknown_ = false;
};

class version_record
{
public:
	// The version of the file's current contents. st: fstat() taken while 'still' lives.
	std::uint64_t observe(const struct stat &st, const stillness &still, const change_clock &);
	// Whether 'version' was given for the state that st shows.
	[[nodiscard]] bool matches(std::uint64_t version, const struct stat &st) const;
	// Whether observe() would need no proof.
	[[nodiscard]] bool settled(const struct stat &st) const
	{
		return settled_ && change_time_ns(st) == ctime_;
	}

private:
	std::uint64_t ctime_ = 0;
	bool settled_ = false;
	unsigned given_ = 0; // provisional numbers given for this state
	std::array<std::uint64_t, provisional_kept> provisional_{};
};

} // namespace coop::daemon
