// SPDX-License-Identifier: MIT
// arena.cpp - see arena.hpp.
#include "userland/client/arena.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>

namespace coop::client
{

arena::arena(std::size_t bytes, std::size_t frame_bytes, std::size_t ahead, std::size_t most) :
	size_(bytes),
	frame_bytes_(frame_bytes),
	ahead_(static_cast<std::uint32_t>(std::min(ahead, most) / frame_bytes)),
	most_(static_cast<std::uint32_t>(most / frame_bytes)),
	present_(new std::atomic<bool>[bytes / frame_bytes] {}),
	held_(new std::atomic<bool>[bytes / frame_bytes] {}),
	goal_(ahead_)
{
	fd_ = ::memfd_create("coopfs-pages", MFD_CLOEXEC);
	if (fd_ < 0)
		throw std::system_error(errno, std::generic_category(), "page store: memfd_create");
	void *p = MAP_FAILED;
	if (::ftruncate(fd_, static_cast<off_t>(bytes)) == 0)
		p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
	if (p == MAP_FAILED) {
		const int err = errno;
		::close(fd_);
		throw std::system_error(err, std::generic_category(),
					"page store: cannot map " + std::to_string(bytes) +
						" bytes; lower cache_size=");
	}
	base_ = static_cast<std::byte *>(p);
	if (ahead_ != 0)
		thread_ = std::thread([this] { run_ahead(); });
}

arena::~arena()
{
	goal_.store(stopping);
	goal_.notify_one();
	if (thread_.joinable())
		thread_.join();
	::munmap(base_, size_);
	::close(fd_);
}

void arena::use_frame(std::uint32_t frame)
{
	hold(frame);
	std::uint32_t used = used_.load(std::memory_order_relaxed);
	while (frame >= used && !used_.compare_exchange_weak(used, frame + 1))
		;
}

void arena::tick()
{
	const std::uint32_t used = used_.load(std::memory_order_relaxed);
	if (used != last_used_) {
		last_used_ = used;
		return;
	}
	const std::uint32_t goal = std::min(used + ahead_, most_);
	if (goal > goal_.load(std::memory_order_relaxed)) {
		goal_.store(goal);
		goal_.notify_one();
	}
}

void arena::hold(std::uint32_t frame)
{
	if (!holds(frame) && !held_[frame].exchange(true, std::memory_order_relaxed))
		frames_held_.fetch_add(1, std::memory_order_relaxed);
}

void arena::now_present(std::uint32_t frame)
{
	hold(frame);
	if (!present_[frame].exchange(true, std::memory_order_relaxed))
		frames_present_.fetch_add(1, std::memory_order_relaxed);
}

void arena::make_present(std::uint32_t frame)
{
	// Allocating through the file first costs less than by faults.
	(void)::fallocate(fd_, FALLOC_FL_KEEP_SIZE,
			  static_cast<off_t>(std::size_t{frame} * frame_bytes_),
			  static_cast<off_t>(frame_bytes_));
	// Where the kernel cannot, or there is no memory, the first access faults.
	(void)::madvise(base_ + std::size_t{frame} * frame_bytes_, frame_bytes_,
			MADV_POPULATE_WRITE);
	now_present(frame);
}

// By faults: preempted within a long call, this thread would hold the lock of the file
// (fallocate) or of the process' mappings (madvise), and block every other thread until the
// processor is idle again, which has been seconds. The first page of a frame is asked for,
// since a fault for which there is no memory would be fatal.
bool arena::fault_in(std::uint32_t frame)
{
	const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
	std::byte *const at = base_ + std::size_t{frame} * frame_bytes_;
	if (::madvise(at, page, MADV_POPULATE_WRITE))
		return false;
	for (std::size_t done = page; done < frame_bytes_ && !is_present(frame); done += page)
		__atomic_fetch_or(reinterpret_cast<unsigned char *>(at + done), 0,
				  __ATOMIC_RELAXED);
	now_present(frame);
	return true;
}

void arena::run_ahead()
{
	const sched_param none{};
	(void)::sched_setscheduler(0, SCHED_IDLE, &none);
	for (std::uint32_t frame = 0; frame < most_;) {
		const std::uint32_t goal = goal_.load();
		if (goal == stopping)
			return;
		if (frame >= goal) {
			goal_.wait(goal);
			continue;
		}
		if (!is_present(frame) && !fault_in(frame))
			return;
		frame++;
	}
}

bool arena::punch(std::size_t at, std::size_t length)
{
	if (kept_.load())
		return false;
	(void)::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
			  static_cast<off_t>(length));
	return true;
}

bool arena::give_back(std::uint32_t frame)
{
	if (!punch(std::size_t{frame} * frame_bytes_, frame_bytes_))
		return false;
	if (present_[frame].exchange(false, std::memory_order_relaxed))
		frames_present_.fetch_sub(1, std::memory_order_relaxed);
	if (held_[frame].exchange(false, std::memory_order_relaxed))
		frames_held_.fetch_sub(1, std::memory_order_relaxed);
	return true;
}

} // namespace coop::client
