// SPDX-License-Identifier: MIT
// endpoint.hpp - a transfer machine that messages go to or come from.
//
// There is one object for an address and a transfer machine, found through a hash table,
// with a reference count inside. The last reference releases it; taking and dropping one
// while there are others is one atomic instruction and needs no lock.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "address.hpp"

namespace coop::net
{

/// One per address and transfer machine, so pointers compare as addresses do. Made by
/// transfer_machine::make_endpoint() and by messages that arrive. May outlive its transfer
/// machine; then it can no longer be sent to.
/// @par Source
/// Motr's network end point: one object for an address, counted.
class COOP_NET_API endpoint
{
public:
	endpoint(const endpoint &) = delete;
	endpoint &operator=(const endpoint &) = delete;

	/// Whose it is; never with `*`. Lives as long as the end point.
	const net::address &address() const noexcept { return address_; }
	/// The address as parse() reads it.
	std::string text() const { return format(address_); }

protected:
	/// Transfer machines make them.
	explicit endpoint(const net::address &a) : address_(a) {}
	~endpoint() = default;

private:
	friend class endpoint_ptr;
	friend class core::machine;

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
/// references to one end point may be used by different threads at a time, one reference may not.
/// @par Source
/// Motr's m0_net_end_point_get() and _put(), as a smart pointer.
class endpoint_ptr
{
public:
	/// None.
	endpoint_ptr() = default;
	/// One more to `e`, which somebody else refers to meanwhile; null: none.
	explicit endpoint_ptr(endpoint *e) noexcept : e_(e)
	{
		if (e_)
			e_->get();
	}
	/// One more.
	endpoint_ptr(const endpoint_ptr &o) noexcept : endpoint_ptr(o.e_) {}
	/// The other's, which has none then.
	endpoint_ptr(endpoint_ptr &&o) noexcept : e_(std::exchange(o.e_, nullptr)) {}
	/// Gives up what it had.
	endpoint_ptr &operator=(endpoint_ptr o) noexcept
	{
		std::swap(e_, o.e_);
		return *this;
	}
	~endpoint_ptr() { reset(); }

	/// Gives it up. The last one of an end point takes the lock of its transfer machine; a
	/// handler may do it.
	void reset() noexcept
	{
		if (endpoint *e = std::exchange(e_, nullptr))
			e->put();
	}
	/// The end point or null, for operation::to; the reference remains.
	endpoint *get() const noexcept { return e_; }
	/// There has to be one.
	endpoint *operator->() const noexcept { return e_; }
	/// There has to be one.
	endpoint &operator*() const noexcept { return *e_; }
	/// Whether there is one.
	explicit operator bool() const noexcept { return e_ != nullptr; }
	/// Of one machine: whether they are to the same address, or both to none.
	bool operator==(const endpoint_ptr &) const = default;

private:
	endpoint *e_ = nullptr;
};

} // namespace coop::net
