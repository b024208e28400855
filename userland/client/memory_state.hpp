// SPDX-License-Identifier: MIT
// memory_state.hpp - how much memory the machine can spare.
//
// A page store in a memfd is shared memory: the kernel cannot drop it as it drops its
// own page cache, only swap it out or kill for it. So the store itself has to look.
#pragma once

#include <cstdint>
#include <string>

namespace coop::client
{

struct memory_state {
	std::uint64_t available = 0; // bytes that programs can have without swapping
	std::uint64_t reserve = 0;   // bytes that shall stay available
	std::uint64_t lacking() const { return available < reserve ? reserve - available : 0; }
	// Beyond the reserve; negative where memory lacks.
	std::int64_t spare() const
	{
		return static_cast<std::int64_t>(available) - static_cast<std::int64_t>(reserve);
	}
	bool ample() const { return available / 2 >= reserve; }
};

// The one that can spare least: the machine (MemAvailable), the own control group, or one above it
// that has a limit. One whose memory is all in use, as caches too, can spare nothing while all its
// programs wait for memory a fifth of the time (full avg10 of its pressure stall information): what
// counts as available is then the caches that they work with. The events of memory.events are not
// looked at, since a group that reads files has them without end. root: below which /proc and /sys
// are looked for. Where nothing can be read nothing lacks.
memory_state look_at_memory(const std::string &root = "");

} // namespace coop::client
