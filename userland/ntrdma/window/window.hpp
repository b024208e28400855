// SPDX-License-Identifier: MIT
// window.hpp - the back end for two processes of one machine: both halves in one shared memory.
//
// The memory is a memfd, sealed against a change of its size, so that a peer cannot make an access
// fault. Large data are pulled with process_vm_readv, where the kernel allows it: the process that
// owns the target copies, so a dead or stopped peer holds nothing. A doorbell is an eventfd of the
// peer, written only while the peer says that it waits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <sys/types.h>

#include "userland/include/coop/unique_fd.hpp"
#include "userland/ntrdma/core/port.hpp"

namespace coop::ntrdma
{

using coop::unique_fd;

/// The shared memory of a link.
class window
{
public:
	/// A new one, zeroed. Throws std::system_error.
	static std::unique_ptr<window> create(unique_fd *fd);
	/// A peer's. Null if it is not sealed, or has another size; errno is ENOMEM if it has not.
	static std::unique_ptr<window> map(int fd);
	~window();
	half &side(unsigned i) { return halves_[i]; }

private:
	explicit window(half *halves) : halves_{halves} {}
	half *halves_;
};

/// A word of a process that tells it from what another program in its place would have there.
struct probe {
	std::uint64_t at = 0, value = 0; ///< at 0: none
};

class window_port final : public port
{
public:
	/// `side`: whose half is the own one: 0 for the process that created the window; `other`:
	/// the peer's half. They are one for a queue pair that is its own peer.
	/// `bell`: the peer's eventfd. `peer`, `peer_life`: its process, and a pidfd of that.
	/// `sign`: of the peer; a pull that does not find it ends with -ESRCH, since exec() leaves
	/// the process and takes its memory.
	window_port(std::unique_ptr<window>, unsigned side, unsigned other, unique_fd bell,
		    pid_t peer, unique_fd peer_life, bool pulls, std::function<void()> ended,
		    probe sign = {});
	window_port(std::unique_ptr<window> w, unsigned side, unique_fd bell, pid_t peer,
		    unique_fd peer_life, bool pulls, std::function<void()> ended, probe sign = {}) :
		window_port{std::move(w), side,
			    1 - side,     std::move(bell),
			    peer,         std::move(peer_life),
			    pulls,        std::move(ended),
			    sign}
	{
	}

	half &out() override { return out_; }
	const half &in() const override { return in_; }
	bool can_pull() const override { return pulls_; }
	int pull(std::span<const wire_segment> from, std::span<const place> to) override;
	void ring() override;
	std::uint64_t now() override;
	void ended() override { ended_(); }
	/// The own half's `waiting`: before sleeping set it, then look at news(), then sleep.
	void wait(bool on) { out_.waiting.store(on, std::memory_order_seq_cst); }
	std::uint32_t bell() const { return in_.bell.load(std::memory_order_seq_cst); }
	pid_t peer() const { return peer_; }
	const unique_fd &life() const { return life_; }

private:
	std::unique_ptr<window> window_;
	half &out_;
	const half &in_;
	unique_fd bell_;
	pid_t peer_;
	pid_t thread_; // by whose number the peer's memory is read
	unique_fd life_;
	bool pulls_;
	std::function<void()> ended_;
	probe sign_;
};

/// True if the process of the pidfd has ended. A signal that interrupts the question does not
/// count.
bool has_ended(int life);

/// True if this process may read `peer`'s memory: what is at `addr` there is `value`.
bool can_read(pid_t peer, std::uint64_t addr, std::uint64_t value);

} // namespace coop::ntrdma
