// SPDX-License-Identifier: MIT
// version.hpp - data versions: equal versions of one file mean equal bytes.
//
// A version is the file's change time where that is proof, and otherwise a
// number that is given to one reply and never again. Change time is proof when
//
//   1. nobody else has the file open for writing. The kernel grants a read lease
//      (or, on our only writable descriptor, a write lease) in just that case;
//      mapped files count as open. So no store is under way that has already
//      set the change time, and none can follow without setting it anew; and
//   2. the next change will get another time: the file system's change times
//      are fine-grained (probed: two changes with a look between them differ),
//      or the clock that stamps changes has left this one behind by more than
//      their granularity. It is that clock that is asked, not the time: it
//      stands still while a tick is late, which may be long where a machine is
//      emulated or its processors are taken away. Where another machine stamps
//      them, settle_ns is added: clocks that differ by less do no harm.
//
// Where leases cannot be had (a file system without them, a daemon that is not
// root on another's file) rule 1 is replaced by age: see settle_ns. STORAGE.md
// says what that leaves open.
//
// All functions want the inode's mutex held. A record that is lost (restart,
// eviction) costs a fresh number, never a wrong one.
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

// A number that was never given out: a random start, counted up.
std::uint64_t provisional_version();

// The time that the kernel stamps a change with if it comes now, or less; in nanoseconds.
std::uint64_t stamping_time_ns();

// How the change times of one file system behave.
struct change_clock {
	bool fine = false;
	bool ours = true; // its changes are stamped with this machine's clock
	std::uint64_t (*now)() = stamping_time_ns;
	// Not writable: coarse, because asking takes writing.
	static change_clock probe(int dir_fd, bool writable = true);
};

std::uint64_t change_time_ns(const struct stat &);

// While it lives nobody else can open the file for writing, if granted().
class stillness
{
public:
	// writable: fd is the process' only descriptor of this file that can write.
	stillness(int fd, bool writable);
	stillness(const stillness &) = delete;
	stillness &operator=(const stillness &) = delete;
	~stillness();
	[[nodiscard]] bool granted() const { return granted_; }
	// Leases do not work here at all: no statement about other writers.
	[[nodiscard]] bool unknown() const { return unknown_; }

private:
	int fd_;
	bool granted_ = false, unknown_ = false;
};

class version_record
{
public:
	// The version of what the file holds now. st: fstat() taken while 'still' lives.
	std::uint64_t observe(const struct stat &st, const stillness &still, const change_clock &);
	// Whether 'version' was given for the state that st shows.
	[[nodiscard]] bool matches(std::uint64_t version, const struct stat &st) const;
	// observe() would not need a proof.
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
