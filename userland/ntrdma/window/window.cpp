// SPDX-License-Identifier: MIT
// window.cpp - shared memory, pulls and doorbells between processes; see window.hpp.
#include "userland/ntrdma/window/window.hpp"

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <poll.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "userland/ntrdma/core/types.hpp"
#include "userland/ntrdma/window/sealed.hpp"

namespace coop::ntrdma
{

namespace
{

constexpr std::size_t window_bytes = 2 * sizeof(half);

/// The numbers of a process's threads; none if it has ended.
std::vector<pid_t> threads_of(pid_t process)
{
	std::vector<pid_t> all;
	std::error_code error;
	std::filesystem::directory_iterator at{"/proc/" + std::to_string(process) + "/task", error};
	for (const std::filesystem::directory_iterator end; !error && at != end;
	     at.increment(error)) {
		const std::string name = at->path().filename();
		pid_t thread = 0;
		std::from_chars(name.data(), name.data() + name.size(), thread);
		all.push_back(thread);
	}
	return all;
}

/// What read(number) says, 0 or a negative errno. The number of a thread that has ended leads to no
/// memory, -ESRCH, even if it is that of the process, whose first thread may end before the others.
/// So that of any other thread will do, which is remembered.
template <typename F> int read_by(pid_t process, pid_t *thread, int life, F read)
{
	int rc = read(*thread);
	if (rc != -ESRCH || has_ended(life))
		return rc;
	for (pid_t other : threads_of(process))
		if ((rc = read(other)) != -ESRCH) {
			*thread = other;
			return rc;
		}
	return rc;
}

} // namespace

std::unique_ptr<window> window::create(unique_fd *fd)
{
	*fd = make_sealed("coop-ntrdma", window_bytes);
	auto made = *fd ? map(fd->get()) : nullptr;
	if (!made)
		throw std::system_error{errno, std::generic_category(), "ntrdma: window"};
	return made;
}

std::unique_ptr<window> window::map(int fd)
{
	void *at = map_sealed(fd, window_bytes);
	return std::unique_ptr<window>{at ? new window{static_cast<half *>(at)} : nullptr};
}

window::~window()
{
	munmap(halves_, window_bytes);
}

window_port::window_port(std::unique_ptr<window> w, unsigned side, unsigned other, unique_fd bell,
			 pid_t peer, unique_fd peer_life, bool pulls, std::function<void()> ended,
			 probe sign) :
	window_{std::move(w)},
	out_{window_->side(side)},
	in_{window_->side(other)},
	bell_{std::move(bell)},
	peer_{peer},
	thread_{peer},
	life_{std::move(peer_life)},
	pulls_{pulls},
	ended_{std::move(ended)},
	sign_{sign}
{
}

int window_port::pull(std::span<const wire_segment> from, std::span<const place> to)
{
	std::array<iovec, max_segments + 1> remote, local;
	std::size_t n = 0, m = 0;
	std::uint64_t total = 0, seen = 0;
	if (sign_.at) {
		// First: one call reads one address space, and a short one has read this at least.
		remote[n++] = {reinterpret_cast<void *>(sign_.at), sizeof(seen)};
		local[m++] = {&seen, sizeof(seen)};
		total = sizeof(seen);
	}
	for (const wire_segment &s : from)
		remote[n++] = {reinterpret_cast<void *>(s.addr), s.length};
	for (const place &p : to) {
		local[m++] = {p.at, p.length};
		total += p.length;
	}
	int rc = read_by(peer_, &thread_, life_.get(), [&](pid_t thread) {
		ssize_t got = process_vm_readv(thread, local.data(), m, remote.data(), n, 0);
		int rc = got < 0 ? -errno : static_cast<std::uint64_t>(got) != total ? -EFAULT : 0;
		bool other = sign_.at && (got < 0 ? rc == -EFAULT : seen != sign_.value);
		return other ? -ESRCH : rc;
	});
	// Without this, the bytes might be those of another process that got the same number.
	return has_ended(life_.get()) ? -ESRCH : rc;
}

std::uint64_t window_port::now()
{
	auto now = std::chrono::steady_clock::now().time_since_epoch();
	return static_cast<std::uint64_t>(std::chrono::nanoseconds{now}.count());
}

void window_port::ring()
{
	// Pairs with wait(): either this load sees the flag, or the peer sees the new bell.
	std::atomic_thread_fence(std::memory_order_seq_cst);
	if (!in_.waiting.load(std::memory_order_relaxed))
		return;
	std::uint64_t one = 1;
	[[maybe_unused]] ssize_t n = write(bell_.get(), &one, sizeof(one));
}

bool has_ended(int life)
{
	pollfd p{life, POLLIN, 0};
	int n;
	do
		n = poll(&p, 1, 0);
	while (n < 0 && errno == EINTR);
	return n > 0;
}

bool can_read(pid_t peer, std::uint64_t addr, std::uint64_t value)
{
	std::uint64_t got = 0;
	iovec local{&got, sizeof(got)}, remote{reinterpret_cast<void *>(addr), sizeof(got)};
	pid_t thread = peer;
	int rc = read_by(peer, &thread, -1, [&](pid_t thread) {
		return process_vm_readv(thread, &local, 1, &remote, 1, 0) < 0 ? -errno : 0;
	});
	return !rc && got == value;
}

} // namespace coop::ntrdma
