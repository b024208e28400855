// SPDX-License-Identifier: MIT
// transfer.hpp - one bulk operation with its own memory.
//
// It owns itself while the network may use its memory: from a successful begin() until its final
// event has been handled. So the call or the request that it belongs to may end before.
//
// A peer chooses the descriptor that it sends. It must name memory of that peer, of the length that
// the head gives; otherwise this side would connect to a third machine and report the result, or
// hand out bytes that it did not read.
#pragma once

#include <cerrno>
#include <functional>
#include <memory>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "coop/net/messenger.hpp"

#include "budget.hpp"
#include "inside.hpp"
#include "userland/net/descriptor.hpp"
#include "userland/net/domain_state.hpp"

namespace coop::net::core
{

class transfer final : public buffer_handler, public std::enable_shared_from_this<transfer>
{
public:
	/// Gets the bytes and the end.
	using completion = std::function<void(std::vector<std::byte> &&, int status)>;

	/// @return 0 or -errno: there is no memory, or none can be registered.
	static int make(domain &d, std::vector<std::byte> &&bytes, std::shared_ptr<transfer> &out)
	{
		try {
			out = std::make_shared<transfer>(d, std::move(bytes));
			return 0;
		} catch (const std::bad_alloc &) {
			return -ENOMEM;
		} catch (const std::system_error &e) {
			return -e.code().value();
		}
	}
	/// The same, for `size` bytes to be filled.
	static int make(domain &d, std::size_t size, std::shared_ptr<transfer> &out)
	{
		try {
			return make(d, std::vector<std::byte>(size), out);
		} catch (const std::bad_alloc &) {
			return -ENOMEM;
		}
	}

	/// For make().
	transfer(domain &d, std::vector<std::byte> &&bytes) :
		bytes_(std::move(bytes)),
		buffer_(std::make_unique<buffer>(d, bytes_.data(), bytes_.size()))
	{
	}

	/// Reads all bytes from memory that `from` offers. @return as begin(); -EPROTO: the
	/// descriptor is none, or for other memory.
	int read(domain &d, messenger &m, const address &from,
		 std::span<const std::byte> descriptor, time_point deadline, completion over)
	{
		core::descriptor named;
		if (decode(descriptor, named) || named.size != bytes_.size())
			return -EPROTO;
		if (!domain_state::of(d)->traits().networks_apart) {
			named.machine.net = from.net;
			named.machine.instance = from.instance;
		}
		if (named.machine != from)
			return -EPROTO;
		operation o;
		o.queue = queue_type::active_bulk_recv;
		o.descriptor = descriptor;
		o.deadline = deadline;
		return begin(m, o, std::move(over));
	}
	/// For as long as it has its memory, or until the bytes are somebody else's.
	grant spent;

	/// @return as add(); after an error `over` is not called.
	int begin(messenger &m, operation o, completion over)
	{
		messenger_ = &m;
		over_ = std::move(over);
		self_ = shared_from_this();
		o.handler = this;
		const int status = m.machine().add(*buffer_, o);
		if (status) {
			self_.reset();
			over_ = {};
		}
		return status == -ETIME ? -ETIMEDOUT : status;
	}
	void cancel(messenger &m) { m.machine().del(*buffer_); }
	/// Passive, after begin().
	std::span<const std::byte> descriptor() const { return buffer_->descriptor(); }

private:
	void on_buffer(const buffer_event &e) override
	{
		const inside scope(messenger_);
		const std::shared_ptr<transfer> self = std::move(self_);
		const completion over = std::move(over_);
		const bool part = e.queue == queue_type::active_bulk_recv && e.status == 0 &&
				  e.length != bytes_.size();
		// Registered memory may not be freed. A passive one can still be asked to end.
		if (e.queue == queue_type::active_bulk_recv)
			buffer_.reset();
		std::vector<std::byte> bytes = std::move(bytes_);
		spent = {};
		over(std::move(bytes), part ? -EPROTO : e.status);
	}

	std::vector<std::byte> bytes_;
	std::unique_ptr<buffer> buffer_;
	std::shared_ptr<transfer> self_;
	const messenger *messenger_ = nullptr; ///< whose callback it is
	completion over_;
};

} // namespace coop::net::core
