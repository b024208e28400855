// SPDX-License-Identifier: MIT
// tap.hpp - a TAP interface: how frames leave and enter the kernel of this network namespace.
//
// Frames carry a struct virtio_net_hdr, so that segments of up to 64 KiB pass in one piece and
// check sums of frames that never leave the machine are not computed. The interface ends with its
// owner.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sys/types.h>

#include "userland/ntrdma/ether/pipe.hpp"
#include "userland/ntrdma/ether/trouble.hpp"
#include "userland/ntrdma/window/window.hpp"

namespace coop::ntrdma
{

struct tap_options {
	std::string name = "coopeth%d";     ///< %d: the first number that is free
	std::vector<std::string> addresses; ///< ADDRESS/PREFIX, IPv4 and IPv6
	unsigned mtu = 1500;
	unsigned queue = 1000; ///< packets that the interface holds while nobody reads
};

constexpr unsigned mtu_least = 68, mtu_most = 65521; // of the kernel

class tap
{
public:
	/// Creates the interface, without a carrier, and brings it up. Throws trouble.
	explicit tap(const tap_options &);

	const std::string &name() const { return name_; }
	unsigned mtu() const { return mtu_; }
	int fd() const { return fd_.get(); }
	/// The link is up, or down.
	void set_carrier(bool);
	/// Whether an administrator wants the interface up; true if it was moved to another
	/// namespace, where this process cannot ask. Throws trouble if it was deleted.
	bool wanted() const;
	/// A descriptor that is readable after an interface of the namespace was changed.
	int changes() const { return changes_.get(); }
	/// Reads away what it tells.
	void changes_seen();

	/// Bytes of one frame, or -errno: EAGAIN if there is none.
	ssize_t read(const span_pair &);
	/// 0 or -errno; EIO if the interface is not up, EINVAL if the kernel refuses the frame.
	int write(const span_pair &);

private:
	void configure(const tap_options &);
	void add_address(const std::string &);

	unique_fd fd_, control_, changes_;
	std::string name_;
	unsigned mtu_ = 0;
	int index_ = 0;
};

} // namespace coop::ntrdma
