// SPDX-License-Identifier: MIT
// output.cpp - sending replies.
//
// A thread that adds to an idle queue sends until the socket is full; the thread that finds the
// socket writable continues. File data go from the page cache to the socket by sendfile(). The
// header has announced their length: if the file has since shrunk, zeros fill the gap, and the tail
// says that the file changed. sendfile() may wait for the file system, so only threads in the
// export's lane call it. The socket still refers to pages of the file when sendfile() returns, so
// the tail is no final proof; the client asks again (CHECK) when it has the bytes.
#include <array>
#include <netinet/in.h>
#include <spdlog/spdlog.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "userland/daemon/connection.hpp"

namespace coop::daemon
{

namespace
{
constexpr unsigned gather_max = 32; // small replies sent by one call

std::array<std::uint32_t, 2 * COOP_FOREST_COLOURS> named_in(const coop_st_roles &r)
{
	std::array<std::uint32_t, 2 * COOP_FOREST_COLOURS> nodes{};
	for (std::uint32_t c = 0; c < r.n_colours; c++) {
		nodes[2 * c] = r.colours[c].parent;
		nodes[2 * c + 1] = r.colours[c].alternate;
	}
	return nodes;
}

} // namespace

std::string connection::encode(const coop_st_header &request, const reply &r) const
{
	std::uint8_t buf[COOP_ST_HEADER + COOP_ST_BODY_MAX];
	coop_st_header h{};
	h.op = request.op;
	h.flags = request.id ? COOP_ST_F_REPLY : 0; // else a push
	if (r.shared_dir)
		h.flags |= COOP_ST_F_SHARED_DIR;
	h.id = request.id;
	h.status = r.status;
	if (!r.status || request.op == COOP_ST_HELLO) {
		const int len = coop_st_body_put(&r.body, coop_st_reply_fields(request.op),
						 buf + COOP_ST_HEADER, COOP_ST_BODY_MAX);
		if (len < 0)
			h.status = EOVERFLOW;
		else
			h.body_len = static_cast<u32>(len);
	}
	if (!h.status) {
		h.data_len = r.file ? r.count : static_cast<u32>(r.data.size());
		if (r.file)
			h.flags |= COOP_ST_F_STREAM;
	}
	coop_st_header_put(&h, buf);
	return {reinterpret_cast<const char *>(buf), COOP_ST_HEADER + h.body_len};
}

void connection::answer(const request &r, reply &out, bool more)
{
	will_name({out.body.nodes, out.body.n_nodes});
	item i;
	i.head = encode(r.head, out);
	i.data = std::move(out.data);
	i.file = out.file;
	i.offset = out.offset;
	i.left = out.file ? out.count : 0;
	i.request = true;
	if (out.file)
		i.source = std::make_unique<reply>(std::move(out));
	enqueue(std::move(i), more);
}

// One buffer takes the pushes until a reply or the socket does: when many nodes come, each of them
// is told of all others.
void connection::append_locked(std::string_view messages)
{
	pushes_ += messages;
	pushed_ += messages.size();
}

// What is pushed stays before what is queued later.
void connection::take_pushes_locked(item &i)
{
	if (pushes_.empty())
		return;
	i.pushed = pushes_.size();
	pushes_ += i.head;
	i.head = std::move(pushes_);
	pushes_.clear();
}

// True: the caller calls post_flush(), without the lock.
bool connection::posts_locked()
{
	if (pushed_ <= pushes_max && (writing_ || posted_)) // who writes takes them, too
		return false;
	posted_ = true;
	return true;
}

// Callers may hold the locks of the tables.
void connection::post_flush()
{
	server_.loop().post([self = shared_from_this()] {
		bool slow;
		{
			std::lock_guard lock(self->mutex_);
			slow = self->pushed_ > pushes_max;
		}
		if (slow)
			self->shut("too many pushes not read");
		else
			self->flush();
	});
}

// Before the message that names them is queued.
void connection::will_name(std::span<const std::uint32_t> nodes)
{
	if (!nodes.empty())
		server_.members().name(knows_as_, nodes);
}

void connection::push_nodes(std::string_view messages, bool soon)
{
	bool post;
	{
		std::lock_guard lock(mutex_);
		if (over_)
			return;
		append_locked(messages);
		post = (soon || pushed_ > pushes_max) && posts_locked();
	}
	if (post)
		post_flush();
}

bool connection::push(std::uint16_t op, const coop_st_body &b)
{
	std::uint8_t buf[COOP_ST_HEADER + COOP_ST_BODY_MAX];
	coop_st_header h{};
	h.op = op;
	h.body_len = static_cast<u32>(coop_st_body_put(&b, coop_st_reply_fields(op),
						       buf + COOP_ST_HEADER, COOP_ST_BODY_MAX));
	coop_st_header_put(&h, buf);
	const bool roles = op == COOP_ST_ROLES;
	if (roles)
		will_name(named_in(b.roles));
	bool post;
	{
		std::lock_guard lock(mutex_);
		if (over_ || (roles && pushed_ >= roles_max))
			return false;
		append_locked({reinterpret_cast<const char *>(buf), COOP_ST_HEADER + h.body_len});
		post = !roles && posts_locked();
	}
	if (post)
		post_flush();
	return true;
}

void connection::enqueue(item i, bool more)
{
	{
		std::lock_guard lock(mutex_);
		if (over_)
			return;
		take_pushes_locked(i);
		unsent_ += i.data.size();
		out_.push_back(std::move(i));
	}
	if (!more)
		flush();
}

void connection::flush()
{
	{
		std::lock_guard lock(mutex_);
		posted_ = false;
		if (writing_ || over_)
			return;
		writing_ = true;
	}
	send();
}

// The caller has set writing_.
void connection::send()
{
	for (;;) {
		switch (send_some()) {
		case progress::done: // writing_ is false then
			return;
		case progress::broken:
			shut(std::strerror(errno));
			return;
		case progress::drained:
			shut("the daemon shuts down");
			return;
		case progress::reads:
			lane_->run([self = shared_from_this()] { self->send(); });
			return;
		case progress::blocked:
			socket_.async_wait(asio::ip::tcp::socket::wait_write,
					   server_.loop().wrap([self = shared_from_this()](
								       asio::error_code ec) {
						   {
							   std::lock_guard lock(self->mutex_);
							   self->writing_ = false;
						   }
						   if (ec)
							   self->shut(ec.message());
						   else
							   self->flush();
					   }));
			return;
		}
	}
}

// Sends until the queue is empty or the socket full. Only the thread that set writing_ runs this,
// and only it removes items; appending to a deque moves no items.
connection::progress connection::send_some()
{
	for (;;) {
		struct iovec v[2 * gather_max];
		unsigned n = 0;
		std::size_t total = 0;
		item *stream = nullptr;
		{
			std::lock_guard lock(mutex_);
			if (over_) {
				writing_ = false;
				return progress::done;
			}
			if (out_.empty() && pushes_.empty()) {
				writing_ = false;
				if (draining_ && !in_flight_)
					return progress::drained;
				return progress::done;
			}
			if (out_.empty())
				take_pushes_locked(out_.emplace_back());
			for (item &i : out_) {
				std::size_t skip = i.sent;
				const std::pair<const void *, std::size_t> parts[] = {
					{i.head.data(), i.head.size()},
					{i.data.data(), i.data.size()}};
				for (const auto &[p, len] : parts) {
					if (skip < len) {
						v[n++] = {const_cast<char *>(
								  static_cast<const char *>(p)) +
								  skip,
							  len - skip};
						total += len - skip;
					}
					skip -= std::min(skip, len);
				}
				if (i.left) {
					stream = &i;
					break;
				}
				if (n + 2 > std::size(v))
					break;
			}
		}
		if (total) {
			struct msghdr m = {};
			m.msg_iov = v;
			m.msg_iovlen = n;
			ssize_t sent = ::sendmsg(
				fd_, &m, MSG_DONTWAIT | MSG_NOSIGNAL | (stream ? MSG_MORE : 0));
			if (sent < 0) {
				if (errno == EINTR)
					continue;
				return errno == EAGAIN ? progress::blocked : progress::broken;
			}
			tx_bytes_.fetch_add(static_cast<std::uint64_t>(sent),
					    std::memory_order_relaxed);
			const bool all = static_cast<std::size_t>(sent) == total;
			bool resume = false;
			{
				std::lock_guard lock(mutex_);
				while (!over_ && !out_.empty()) {
					item &i = out_.front();
					const std::size_t len =
						i.head.size() + i.data.size() - i.sent;
					const std::size_t took =
						std::min(len, static_cast<std::size_t>(sent));
					i.sent += took;
					sent -= static_cast<ssize_t>(took);
					if (took < len || i.left)
						break;
					if (i.request) {
						in_flight_--;
						resume = paused_;
					}
					pushed_ -= i.pushed;
					unsent_ -= i.data.size();
					out_.pop_front();
					if (!sent)
						break;
				}
				if (resume)
					paused_ = false;
			}
			if (resume)
				server_.loop().post(
					[self = shared_from_this()] { self->readable(); });
			if (!all)
				continue; // next send: is the socket full?
		}
		if (stream) {
			if (!lane_->is_here())
				return progress::reads;
			const progress p = send_file(*stream);
			if (p != progress::done)
				return p;
		}
	}
}

connection::progress connection::send_file(item &i)
{
	static const std::vector<std::uint8_t> zeros(65536);
	while (i.left) {
		ssize_t n = 0;
		if (!i.status) {
			off_t at = static_cast<off_t>(i.offset);
			n = ::sendfile(fd_, i.file->get(), &at, i.left);
			if (n < 0 && errno == EINTR)
				continue;
			if (n < 0 && errno == EAGAIN)
				return progress::blocked;
			if (n < 0 && (errno == EPIPE || errno == ECONNRESET || errno == ETIMEDOUT))
				return progress::broken;
			if (n <= 0)
				i.status = n ? static_cast<std::uint32_t>(errno) : ESTALE;
		}
		if (i.status) {
			n = ::send(fd_, zeros.data(), std::min<std::size_t>(zeros.size(), i.left),
				   MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE);
			if (n < 0) {
				if (errno == EINTR)
					continue;
				return errno == EAGAIN ? progress::blocked : progress::broken;
			}
		}
		i.offset += static_cast<std::uint64_t>(n);
		i.left -= static_cast<std::uint32_t>(n);
		tx_bytes_.fetch_add(static_cast<std::uint64_t>(n), std::memory_order_relaxed);
	}
	std::uint8_t tail[COOP_ST_TAIL];
	const std::uint32_t status = i.status ? i.status : service::still(*i.source);
	coop_st_tail_put(status, i.source->version, tail);
	std::lock_guard lock(mutex_);
	i.head.assign(reinterpret_cast<const char *>(tail), sizeof(tail));
	i.sent = 0;
	i.file.reset();
	i.source.reset();
	return progress::done;
}

} // namespace coop::daemon
