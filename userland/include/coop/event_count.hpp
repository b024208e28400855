// SPDX-License-Identifier: MIT
// event_count.hpp - the descriptor beside a list of events: an eventfd that counts those unread.
//
// Programs poll the descriptor, and their threads read it before they take the lock of the list. So
// a thread may hold the count of an event that is erased meanwhile: the next thread with a count
// reads again.
#pragma once

#include <cstdint>

#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

namespace coop
{

class event_count
{
public:
	/// A descriptor, which belongs to the structure that programs see. -1 and errno if it
	/// fails.
	static int open() { return eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE); }

	/// Waits for a count, as long as the descriptor blocks. False and errno if it fails.
	/// Without the lock, which the rest needs.
	static bool wait(int fd)
	{
		std::uint64_t one;
		return read(fd, &one, sizeof(one)) == sizeof(one);
	}
	/// True if the list has an event for the count that wait() has taken.
	bool claim()
	{
		if (!erased_)
			return true;
		erased_--;
		return false;
	}
	/// An event came into the list.
	static void add(int fd)
	{
		std::uint64_t one = 1;
		[[maybe_unused]] ssize_t n = write(fd, &one, sizeof(one));
	}
	/// An event was erased from it, unread.
	void erase(int fd)
	{
		// A read that waits would keep the lock from those who add. Where the kernel knows
		// no other (before 5.8), the count stays for a reader to find.
		std::uint64_t one;
		iovec to{&one, sizeof(one)};
		if (preadv2(fd, &to, 1, -1, RWF_NOWAIT) != sizeof(one))
			erased_++;
	}

private:
	std::uint32_t erased_ = 0; // events whose count a reader has, or will find
};

} // namespace coop
