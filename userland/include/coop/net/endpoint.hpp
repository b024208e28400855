// SPDX-License-Identifier: MIT
// endpoint.hpp - a transfer machine that messages are sent to or received from.
//
// There is one object for each address and local transfer machine, found through a hash table, with
// a reference count inside. The last reference releases it. Taking or dropping a reference while
// others exist is one atomic instruction without a lock.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "address.hpp"

namespace coop::net
{

/// One for each address and local transfer machine, so comparing pointers compares addresses. Made
/// by transfer_machine::make_endpoint() and by received messages. May outlive its transfer machine,
/// but then cannot be sent to.
/// @par Source
/// Motr's network end point: one counted object for an address.
class COOP_NET_API endpoint
{
public:
	endpoint(const endpoint &) = delete;
	endpoint &operator=(const endpoint &) = delete;

	/// The remote address, never with `*`. Valid as long as the end point.
	const net::address &address() const noexcept { return address_; }
	/// The address as text that parse() accepts.
	std::string text() const { return format(address_); }

protected:
	/// For transfer machines only.
	explicit endpoint(const net::address &a) : address_(a) {}
	~endpoint() = default;

private:
	friend class endpoint_ptr;
	friend class core::peers;

	void get() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
	void put() noexcept
	{
		std::uint32_t n = references_.load(std::memory_order_relaxed);
		while (n > 1)
			if (references_.compare_exchange_weak(n, n - 1, std::memory_order_release,
							      std::memory_order_relaxed))
				return;
		put_last();
	}
	void put_last() noexcept; // the count reaches 0 under the lock of the transfer machine

	const net::address address_;
	std::atomic<std::uint32_t> references_{0};
};

/// A counted reference, or none. Construct one from buffer_event::sender to keep it. Different
/// threads may use different references to one end point at a time, but not one reference.
/// @par Source
/// Motr's m0_net_end_point_get() and _put(), as a smart pointer.
class endpoint_ptr
{
public:
	/// No reference.
	endpoint_ptr() = default;
	/// Takes a reference to `e`, to which another reference must exist during the call; null:
	/// none.
	explicit endpoint_ptr(endpoint *e) noexcept : e_(e)
	{
		if (e_)
			e_->get();
	}
	/// Takes one more reference.
	endpoint_ptr(const endpoint_ptr &o) noexcept : endpoint_ptr(o.e_) {}
	/// Takes over the other's reference, which becomes empty.
	endpoint_ptr(endpoint_ptr &&o) noexcept : e_(std::exchange(o.e_, nullptr)) {}
	/// Replaces the reference.
	endpoint_ptr &operator=(endpoint_ptr o) noexcept
	{
		std::swap(e_, o.e_);
		return *this;
	}
	~endpoint_ptr() { reset(); }

	/// Drops the reference. Dropping the last one of an end point takes the lock of its
	/// transfer machine; a handler may do so.
	void reset() noexcept
	{
		if (endpoint *e = std::exchange(e_, nullptr))
			e->put();
	}
	/// The end point or null, for operation::to; the reference stays here.
	endpoint *get() const noexcept { return e_; }
	/// Must not be empty.
	endpoint *operator->() const noexcept { return e_; }
	/// Must not be empty.
	endpoint &operator*() const noexcept { return *e_; }
	/// Whether there is a reference.
	explicit operator bool() const noexcept { return e_ != nullptr; }
	/// For end points of one machine: whether the addresses are equal, or both are empty.
	bool operator==(const endpoint_ptr &) const = default;

private:
	endpoint *e_ = nullptr;
};

} // namespace coop::net
