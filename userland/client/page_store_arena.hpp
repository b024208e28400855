// SPDX-License-Identifier: MIT
// page_store_arena.hpp - the memory under the page store: a memfd, mapped, in
// frames of 64 pages.
//
// Memory of a memfd is dear the first time: allocating, clearing and mapping a
// GiB takes over half a second of processor time, more than all that a fetch over
// the network does with it. So a store can have a part of it made present
// beforehand, by a thread that runs only when nothing else wants the processor;
// what it has not reached is made present a frame at a time, which costs less than
// a fault a page.
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
	// Throws std::system_error. prefault: bytes from the start to make present beforehand.
	arena(std::size_t bytes, std::size_t frame_bytes, std::size_t prefault);
	~arena();
	arena(const arena &) = delete;
	arena &operator=(const arena &) = delete;

	int fd() const { return fd_; }
	std::byte *base() const { return base_; }
	std::size_t size() const { return size_; }
	// Bytes made present a frame at a time so far; faults for a page come on top.
	std::size_t present() const
	{
		return frames_present_.load(std::memory_order_relaxed) * frame_bytes_;
	}
	// Before most of a frame is used. Any thread; what is in the frame stays.
	void need_frame(std::uint32_t frame)
	{
		if (!present_[frame].load(std::memory_order_relaxed))
			make_present(frame);
	}
	// Gives memory back to the system; it is zero when it is used next.
	void punch(std::size_t at, std::size_t length);

private:
	void now_present(std::uint32_t frame);
	void make_present(std::uint32_t frame);
	void prefault(std::uint32_t frames);

	int fd_;
	std::byte *base_;
	const std::size_t size_, frame_bytes_;
	std::unique_ptr<std::atomic<bool>[]> present_; // by frame
	std::atomic<std::size_t> frames_present_{0};
	std::atomic<bool> stop_{false};
	std::thread thread_;
};

} // namespace coop::client
