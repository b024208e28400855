// SPDX-License-Identifier: MIT
// device.hpp - /dev/coop-net, as one transfer machine has it open (msg/abi.h).
//
// Owns the file and the mapping of its rings. Used under the lock of the machine, except
// drop_buffer().
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "rings.hpp"
#include "userland/net/memory.hpp"
#include "userland/net/registrations.hpp"
#include "userland/net/ud/options.hpp"

namespace coop::net::kernel
{

using ud::options;

/// Numbers that follow from the parameters.
struct ring_sizes {
	std::uint32_t operations = 64, events = 64, handles = 1;
};

class device final : public rings
{
public:
	/// @throw std::system_error whose text says what is missing and what to do.
	device(const options &, const ring_sizes &);
	~device() override;
	device(const device &) = delete;
	device &operator=(const device &) = delete;

	int fd() const { return fd_; }
	/// What the module has chosen.
	const coop_net_setup &setup() const { return setup_; }
	/// The own addresses, which may change.
	coop_chan_peer_addr self() const;
	/// Bytes of messages and of bulk data that went over it.
	coop_net_count count() const;

	// Peers. 0 or -errno.
	int open_peer(coop_net_peer &) const;
	int admit_peer(coop_net_peer &) const;
	/// Behind the operations so far.
	void close_peer(std::uint32_t);
	int peer_info(coop_net_peer &) const;

	// Memory. 0 or -errno.
	int add_buffer(std::span<const segment>, std::uint32_t &number);
	/// On any thread. A buffer that an operation still uses goes when that is over.
	void drop_buffer(std::uint32_t number);
	/// Drops those that an operation still used.
	void drop_late();

private:
	int call(unsigned long request, void *argument) const;
	void enter() override;
	[[noreturn]] void fail(int error, const std::string &what);

	int fd_ = -1;
	coop_net_setup setup_{};
	void *mapping_ = nullptr;
	std::mutex lock_;                 // of late_
	std::vector<std::uint32_t> late_; // buffers to drop
	std::atomic<bool> is_late_ = false;
};

/// The coop_chan_peer_addr of an address of the module, and back.
coop_chan_peer_addr address_of(const coop_net_addr &);
coop_net_addr address_of(const coop_chan_peer_addr &);

/// A buffer that a machine's device knows, until this ends.
class lent_buffer
{
public:
	lent_buffer() = default;
	lent_buffer(device &d, std::uint32_t number) : device_(&d), number_(number) {}
	lent_buffer(lent_buffer &&o) noexcept :
		device_(std::exchange(o.device_, nullptr)),
		number_(o.number_)
	{
	}
	lent_buffer &operator=(lent_buffer &&o) noexcept
	{
		std::swap(device_, o.device_);
		std::swap(number_, o.number_);
		return *this;
	}
	~lent_buffer()
	{
		if (device_)
			device_->drop_buffer(number_);
	}

private:
	device *device_ = nullptr;
	std::uint32_t number_ = 0;
};

/// The buffers of a domain at its machines' devices. The first segment's key is the buffer's
/// number.
using buffers = registrations<lent_buffer, std::uint32_t>;

/// Pins them all for this device, and those that are made until buffers::close(). @return 0 or
/// -errno.
int pin(buffers &, device &);

} // namespace coop::net::kernel
