// SPDX-License-Identifier: MIT
// arena.hpp - the memory under the page store: a memfd, mapped, in
// frames of 64 pages.
//
// Memory follows use. The system gives a frame when it is needed, and takes it back
// when the store frees it and says so. Fresh memory of a memfd is expensive:
// allocating, clearing and mapping a GiB takes more than half a second of processor
// time, longer than the network needs to fill it. So a thread that runs only on an
// idle processor makes some frames present before the first read, and after each burst
// of reads. During a burst it sleeps: there it would only be woken for every frame, at
// twice the cost. A frame that it has not reached is made present in one call, which
// costs less than a fault a page.
//
// A device that has registered the memory holds its physical pages. A frame given
// back would get other pages when it is used next: the device would send and receive
// the old ones. After keep() no memory goes back.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>

namespace coop::client
{

class arena
{
public:
	// bytes: whole frames. ahead: bytes to keep present beyond those in use, within the
	// first 'most' bytes; 0: none. Throws std::system_error.
	arena(std::size_t bytes, std::size_t frame_bytes, std::size_t ahead, std::size_t most);
	~arena();
	arena(const arena &) = delete;
	arena &operator=(const arena &) = delete;

	int fd() const { return fd_; }
	std::byte *base() const { return base_; }
	std::size_t size() const { return size_; }
	// Bytes made present a frame at a time; faults for single pages come on top.
	std::size_t present() const
	{
		return frames_present_.load(std::memory_order_relaxed) * frame_bytes_;
	}
	bool is_present(std::uint32_t frame) const
	{
		return present_[frame].load(std::memory_order_relaxed);
	}
	// Frames that may have memory, and whether this one may: a block has lain in it since it
	// was given back, or it is present.
	std::uint32_t held() const { return frames_held_.load(std::memory_order_relaxed); }
	bool holds(std::uint32_t frame) const
	{
		return held_[frame].load(std::memory_order_relaxed);
	}
	// A block now lies in the frame. Any thread; never waits.
	void use_frame(std::uint32_t frame);
	// Once a second: lets the thread run ahead again if no further frame came into use since
	// the last call. One caller at a time.
	void tick();
	// Before most of a frame is used. Any thread; what is in the frame stays.
	void need_frame(std::uint32_t frame)
	{
		if (!is_present(frame))
			make_present(frame);
	}
	// Gives memory back to the system; it is zero when it is used next. Only what no block
	// holds; false after keep().
	bool punch(std::size_t at, std::size_t length);
	bool give_back(std::uint32_t frame);
	// From now on memory stays: a device has registered it.
	void keep() { kept_.store(true); }
	bool kept() const { return kept_.load(); }

private:
	void hold(std::uint32_t frame);
	void now_present(std::uint32_t frame);
	void make_present(std::uint32_t frame);
	void run_ahead();
	bool fault_in(std::uint32_t frame);

	int fd_;
	std::byte *base_;
	const std::size_t size_, frame_bytes_;
	const std::uint32_t ahead_, most_;                    // frames
	std::unique_ptr<std::atomic<bool>[]> present_, held_; // by frame
	std::atomic<std::size_t> frames_present_{0};
	std::atomic<std::uint32_t> frames_held_{0};
	std::atomic<std::uint32_t> used_{0}; // frames from the start that have been in use
	std::uint32_t last_used_ = 0;        // as tick() saw it last
	// The frames that the thread makes present, or 'stopping'. It waits without a lock:
	// preempted while it held one, it would block tick() until the processor is idle.
	std::atomic<std::uint32_t> goal_;
	static constexpr std::uint32_t stopping = ~std::uint32_t{0};
	std::atomic<bool> kept_{false};
	std::thread thread_;
};

} // namespace coop::client
