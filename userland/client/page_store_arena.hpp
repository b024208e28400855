// SPDX-License-Identifier: MIT
// page_store_arena.hpp - the memory under the page store: a memfd, mapped, in
// frames of 64 pages.
//
// Memory of a memfd is dear the first time: allocating, clearing and mapping a
// GiB page by page takes over half a second of processor time, more than all that a
// fetch over the network does with it. In huge pages it takes a tenth of that, and
// a splice out of them a fifth. A memfd gets none by itself, but they may be asked for
// (MADV_COLLAPSE), whatever the administrator's default is.
//
// So memory becomes present a huge page at a time, before the first use of a frame
// in it, and a part of it beforehand, by a thread that runs only when nothing else
// wants the processor. Where a huge page cannot be had it is a frame at a time, and
// where that fails the first access faults.
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
	// Throws std::system_error. kept: bytes from the start that are never punched; prefault: so
	// many of them are made present beforehand.
	arena(std::size_t bytes, std::size_t frame_bytes, std::size_t kept, std::size_t prefault);
	~arena();
	arena(const arena &) = delete;
	arena &operator=(const arena &) = delete;

	int fd() const { return fd_; }
	std::byte *base() const { return base_; }
	std::size_t size() const { return size_; }
	// Before a frame's first use. Any thread; what is in the frame stays.
	void need_frame(std::uint32_t frame)
	{
		if (!present_[frame].load(std::memory_order_relaxed))
			make_present(frame);
	}
	// Gives memory back to the system; it is zero when it is used next.
	void punch(std::size_t at, std::size_t length);

private:
	void map();
	void make_present(std::uint32_t frame);
	bool make_huge(std::uint32_t frame);
	void prefault(std::uint32_t frames);

	int fd_ = -1;
	std::byte *base_ = nullptr;
	const std::size_t size_, frame_bytes_;
	const std::size_t huge_bytes_;                 // of a huge page; 0: there are none
	const std::size_t huge_end_;                   // where the last whole one ends
	std::unique_ptr<std::atomic<bool>[]> present_; // by frame
	std::unique_ptr<std::atomic<bool>[]> tried_;   // by huge page
	std::atomic<bool> stop_{false};
	std::thread thread_;
};

} // namespace coop::client
