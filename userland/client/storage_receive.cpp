// SPDX-License-Identifier: MIT
// storage_receive.cpp - bytes from the daemon become replies, which complete their calls, and
// pushes. All of it runs on the connection's thread, except as storage_listen.cpp says.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include "userland/client/buffer_list.hpp"
#include "userland/client/storage_link.hpp"

namespace coop::client
{

namespace
{

constexpr std::size_t prefetch = 8192;      // bytes received at once when no length is known
constexpr std::chrono::seconds stalled{30}; // an incomplete message without progress
constexpr std::chrono::seconds handshake{10};

int error_of(const coop_st_header &h)
{
	return h.status && h.status < 4096 ? -static_cast<int>(h.status) : h.status ? -EIO : 0;
}

} // namespace

// Within a message: whether to keep waiting.
bool storage_link::patient(clock::time_point &began)
{
	const auto now = clock::now();
	if (began == clock::time_point{})
		began = now;
	return handshaking_ ? attend() && now - began < handshake : now - began < stalled;
}

// While connecting, no call's memory is in use: completes expired calls. False: the link shuts
// down.
bool storage_link::attend()
{
	expire(false);
	std::lock_guard lock(mutex_);
	return !stop_;
}

// Ensures 'want' unused bytes in the buffer. idle_ok: returns false also if there is nothing now.
bool storage_link::fill(std::size_t want, bool idle_ok)
{
	if (have_ - used_ >= want)
		return true;
	std::memmove(in_.data(), in_.data() + used_, have_ - used_);
	have_ -= used_;
	used_ = 0;
	const std::size_t room = std::max(want, prefetch);
	clock::time_point began{};
	while (have_ < want) {
		const int how = idle_ok && have_ == 0 ? MSG_DONTWAIT : 0;
		const ssize_t n = ::recv(fd_, in_.data() + have_, room - have_, how);
		drained_ = n < static_cast<ssize_t>(room - have_);
		if (n > 0) {
			have_ += static_cast<std::size_t>(n);
			rx_bytes_.fetch_add(static_cast<std::uint64_t>(n),
					    std::memory_order_relaxed);
		} else if (n < 0 && errno == EINTR) {
			continue;
		} else {
			if (n == 0)
				errno = ECONNRESET;
			else if (errno == EAGAIN && idle_ok && have_ == 0)
				errno = 0;
			else if (errno == EAGAIN && patient(began))
				continue;
			else if (errno == EAGAIN)
				errno = ETIMEDOUT;
			return false;
		}
	}
	return true;
}

bool storage_link::receive_into(std::vector<iovec> v)
{
	while (!v.empty() && have_ > used_) {
		const std::size_t n = std::min(v[0].iov_len, have_ - used_);
		std::memcpy(v[0].iov_base, in_.data() + used_, n);
		used_ += n;
		advance(v, n);
	}
	clock::time_point began{};
	while (!v.empty()) {
		struct msghdr m = {};
		m.msg_iov = v.data();
		m.msg_iovlen = std::min<std::size_t>(v.size(), 512);
		const ssize_t n = ::recvmsg(fd_, &m, MSG_WAITALL);
		drained_ = false;
		if (n < 0 && (errno == EINTR || (errno == EAGAIN && patient(began))))
			continue;
		if (n <= 0)
			return false;
		began = {};
		rx_bytes_.fetch_add(static_cast<std::uint64_t>(n), std::memory_order_relaxed);
		advance(v, static_cast<std::size_t>(n));
	}
	return true;
}

// Receives one message. False: the connection is lost.
bool storage_link::receive()
{
	struct coop_st_incoming next;
	coop_st_incoming_init(&next);
	if (!fill(next.want, true))
		return errno == 0;
	if (coop_st_incoming_next(&next, in_.data() + used_) < 0) {
		spdlog::error("storage {}: protocol error; reconnecting", options_.server);
		return false;
	}
	const coop_st_header &h = next.head;
	if (!fill(COOP_ST_HEADER + h.body_len, false))
		return false;
	const std::uint8_t *body = in_.data() + used_ + COOP_ST_HEADER;
	used_ += COOP_ST_HEADER + h.body_len;
	if (!h.id) {
		take_push(h, body);
		return true;
	}
	return h.status == EAGAIN ? postpone(h) : deliver(h, body);
}

bool storage_link::deliver(const coop_st_header &h, const std::uint8_t *raw)
{
	std::shared_ptr<call> c;
	{
		std::lock_guard lock(mutex_);
		auto it = calls_.find(h.id);
		if (it != calls_.end()) {
			c = it->second; // stays in the table, in case the connection breaks now
			if (c->op != h.op || c->epoch != epoch_)
				return false; // not a reply to this call
		}
	}
	outcome o;
	o.err = error_of(h);
	o.shared_dir = h.flags & COOP_ST_F_SHARED_DIR;
	std::string body_copy(reinterpret_cast<const char *>(raw),
			      h.body_len); // the data may overwrite it
	coop_st_body body;
	if (!o.err) {
		if (coop_st_body_get(&body, coop_st_reply_fields(h.op),
				     reinterpret_cast<const u8 *>(body_copy.data()), h.body_len))
			return false;
		o.body = &body;
	}
	std::vector<iovec> dest;
	if (h.data_len) {
		if (c && !c->dest.empty()) {
			if (h.data_len > length_of(c->dest))
				return false; // more than requested
			dest = slice(c->dest, 0, h.data_len);
			o.bytes = h.data_len;
		} else { // small, or for a call that has ended
			o.data.resize(h.data_len);
			dest = {{o.data.data(), o.data.size()}};
		}
	}
	std::uint8_t tail[COOP_ST_TAIL];
	if (h.flags & COOP_ST_F_STREAM)
		dest.push_back({tail, sizeof(tail)});
	if (!receive_into(std::move(dest)))
		return false;
	if (h.flags & COOP_ST_F_STREAM) {
		u32 status;
		u64 version;
		if (coop_st_tail_get(&status, &version, tail))
			return false;
		o.streamed = true;
		if (status)
			o.err = status < 4096 ? -static_cast<int>(status) : -EIO;
	}
	rx_data_.fetch_add(h.data_len, std::memory_order_relaxed);
	{
		std::lock_guard lock(mutex_);
		if (!c)
			return true; // it had timed out, and was subtracted from in_flight_ then
		if (!calls_.erase(h.id))
			return true;
		in_flight_--;
	}
	complete(c, o);
	pump();
	return true;
}

} // namespace coop::client
