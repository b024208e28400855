// SPDX-License-Identifier: MIT
// page_store_arena.cpp - see page_store_arena.hpp.
#include "userland/client/page_store_arena.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <string>
#include <system_error>

namespace coop::client
{

namespace
{

#ifndef MADV_COLLAPSE
constexpr int MADV_COLLAPSE = 25; // Linux 6.1
#endif

// 0: the kernel has none.
std::size_t huge_page_bytes()
{
	std::size_t bytes = 0;
	std::ifstream("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") >> bytes;
	return bytes;
}

std::size_t round_down(std::size_t n, std::size_t unit)
{
	return unit != 0 ? n / unit * unit : 0;
}

} // namespace

arena::arena(std::size_t bytes, std::size_t frame_bytes, std::size_t kept, std::size_t prefault) :
	size_(bytes),
	frame_bytes_(frame_bytes),
	huge_bytes_(std::max(huge_page_bytes(), frame_bytes)),
	huge_end_(round_down(kept, huge_bytes_)),
	present_(new std::atomic<bool>[bytes / frame_bytes] {}),
	tried_(new std::atomic<bool>[huge_end_ / huge_bytes_] {})
{
	fd_ = ::memfd_create("coopfs-pages", MFD_CLOEXEC);
	if (fd_ < 0)
		throw std::system_error(errno, std::generic_category(), "page store: memfd_create");
	if (::ftruncate(fd_, static_cast<off_t>(bytes)) == 0)
		map();
	if (base_ == nullptr) {
		const int err = errno;
		::close(fd_);
		throw std::system_error(err, std::generic_category(),
					"page store: cannot map " + std::to_string(bytes) +
						" bytes; lower cache_size=");
	}
	const auto frames = static_cast<std::uint32_t>(std::min(prefault, kept) / frame_bytes);
	if (frames != 0)
		thread_ = std::thread([this, frames] { this->prefault(frames); });
}

// At an address where a huge page can begin.
void arena::map()
{
	const std::size_t room = size_ + huge_bytes_;
	void *p = ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
			 0);
	if (p == MAP_FAILED)
		return;
	auto *begin = static_cast<std::byte *>(p);
	const std::size_t before = -reinterpret_cast<std::uintptr_t>(begin) % huge_bytes_;
	if (::mmap(begin + before, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_, 0) ==
	    MAP_FAILED) {
		const int err = errno;
		::munmap(begin, room);
		errno = err;
		return;
	}
	base_ = begin + before;
	if (before != 0)
		::munmap(begin, before);
	::munmap(base_ + size_, huge_bytes_ - before);
}

arena::~arena()
{
	stop_.store(true);
	if (thread_.joinable())
		thread_.join();
	::munmap(base_, size_);
	::close(fd_);
}

// True: the huge page that has this frame is there, with all its frames.
bool arena::make_huge(std::uint32_t frame)
{
	const std::size_t page = std::size_t{frame} * frame_bytes_ / huge_bytes_;
	const std::size_t at = page * huge_bytes_;
	if (at >= huge_end_ || tried_[page].exchange(true, std::memory_order_relaxed))
		return false;
	// The kernel does not collapse what is one hole.
	if (::madvise(base_ + at, frame_bytes_ / 64, MADV_POPULATE_READ) != 0 ||
	    ::madvise(base_ + at, huge_bytes_, MADV_COLLAPSE) != 0)
		return false;
	const auto first = static_cast<std::uint32_t>(at / frame_bytes_);
	for (std::size_t i = 0; i < huge_bytes_ / frame_bytes_; i++)
		present_[first + i].store(true, std::memory_order_relaxed);
	return true;
}

void arena::make_present(std::uint32_t frame)
{
	if (make_huge(frame))
		return;
	const std::size_t at = std::size_t{frame} * frame_bytes_;
	// Allocating through the file first costs less than by faults. Both are helps: where the
	// kernel has not got them, or there is no memory, the first access faults.
	(void)::fallocate(fd_, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
			  static_cast<off_t>(frame_bytes_));
	(void)::madvise(base_ + at, frame_bytes_, MADV_POPULATE_WRITE);
	present_[frame].store(true, std::memory_order_relaxed);
}

void arena::prefault(std::uint32_t frames)
{
	const sched_param none{};
	(void)::sched_setscheduler(0, SCHED_IDLE, &none);
	for (std::uint32_t frame = 0; frame < frames && !stop_.load(); frame++)
		need_frame(frame);
}

void arena::punch(std::size_t at, std::size_t length)
{
	(void)::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
			  static_cast<off_t>(length));
}

} // namespace coop::client
