// SPDX-License-Identifier: MIT
// connection.cpp - reading requests, and running them. Output is in output.cpp, what comes before
// the first request in handshake.cpp.
#include "userland/daemon/connection.hpp"

#include <algorithm>
#include <netinet/tcp.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace coop::daemon
{

namespace
{

constexpr unsigned batch_max = 32; // requests read before other connections get a turn

// Operations that cost less than a hand-over to another thread. Clients send the CLOSEs of readers
// together with other requests.
bool quick(std::uint16_t op)
{
	return op == COOP_ST_CLOSE || op == COOP_ST_CHECK;
}

// Whether a client sends it to a daemon that has forgotten the session, before it has restored all
// that the session held.
bool restores(const request &r)
{
	switch (r.head.op) {
	case COOP_ST_REGISTER:
	case COOP_ST_JOIN:
	case COOP_ST_LEAVE:
	case COOP_ST_RUN:
	case COOP_ST_PING:
	case COOP_ST_CLOSE:
	case COOP_ST_LEASE_RETURN:
		return true;
	case COOP_ST_OPEN:
		return r.body.flags & COOP_ST_O_AGAIN;
	case COOP_ST_LOCK:
		return r.body.flags & COOP_ST_L_RECLAIM;
	default:
		return false;
	}
}

// Requests of this kind on one file run one after the other.
bool changes_content(std::uint16_t op)
{
	return op == COOP_ST_WRITE || op == COOP_ST_COMMIT || op == COOP_ST_FALLOCATE ||
	       op == COOP_ST_COPY || op == COOP_ST_SETATTR;
}

void option(int fd, int level, int name, int value)
{
	if (::setsockopt(fd, level, name, &value, sizeof(value)))
		spdlog::debug("socket option {}/{}: {}", level, name, std::strerror(errno));
}

} // namespace

connection::connection(server &s, asio::ip::tcp::socket socket) :
	server_(s),
	socket_(std::move(socket)),
	fd_(socket_.native_handle()),
	deadline_(s.loop().io()),
	in_(hello_max)
{
	asio::error_code ec;
	const auto remote = socket_.remote_endpoint(ec);
	address_ = ec ? "?" : remote.address().to_string();
	peer_ = ec ? "?" : address_ + ":" + std::to_string(remote.port());
	socket_.native_non_blocking(true, ec);
	option(fd_, IPPROTO_TCP, TCP_NODELAY, 1);
	option(fd_, SOL_SOCKET, SO_KEEPALIVE, 1);
	option(fd_, IPPROTO_TCP, TCP_KEEPIDLE, 10);
	option(fd_, IPPROTO_TCP, TCP_KEEPINTVL, 5);
	option(fd_, IPPROTO_TCP, TCP_KEEPCNT, 3);
	option(fd_, IPPROTO_TCP, TCP_USER_TIMEOUT, send_timeout_ms);
}

connection::~connection()
{
	if (session_)
		server_.detach(std::move(session_), forget_);
}

void connection::start()
{
	deadline_.expires_after(stranger_time);
	deadline_.async_wait(server_.loop().wrap([self = shared_from_this()](asio::error_code ec) {
		if (!ec)
			self->shut("not authenticated in time");
	}));
	arm();
}

void connection::arm()
{
	socket_.async_wait(asio::ip::tcp::socket::wait_read,
			   server_.loop().wrap([self = shared_from_this()](asio::error_code ec) {
				   if (ec)
					   self->shut(ec.message());
				   else
					   self->readable();
			   }));
}

void connection::again()
{
	server_.loop().post([self = shared_from_this()] { self->readable(); });
}

void connection::pause()
{
	{
		std::lock_guard lock(mutex_);
		if (over_ || draining_)
			return;
		if (in_flight_) {
			paused_ = true; // until a reply has been sent
			return;
		}
	}
	again();
}

void connection::shut(std::string_view why)
{
	lane *waits;
	{
		std::lock_guard lock(mutex_);
		if (over_)
			return;
		over_ = true;
		waits = lane_;
		if (!writing_) // otherwise the sending thread still uses it
			out_.clear();
	}
	spdlog::debug("{}: connection ended: {}", peer_, why);
	::shutdown(fd_, SHUT_RDWR);
	server_.loop().post([self = shared_from_this()] {
		std::lock_guard lock(self->mutex_);
		self->deadline_.cancel();
	});
	leave_fabric();
	if (waits)
		waits->forget(this); // the client repeats what has not begun
	server_.gone(*this);
}

void connection::drain()
{
	bool idle;
	{
		std::lock_guard lock(mutex_);
		draining_ = true;
		idle = !in_flight_ && out_.empty();
	}
	if (idle)
		shut("the daemon shuts down");
}

bool connection::ended()
{
	std::lock_guard lock(mutex_);
	return over_;
}

std::string connection::describe() const
{
	std::lock_guard lock(mutex_);
	return fmt::format("{} export={} node={} requests={} sent_bytes={} in_flight={}", peer_,
			   export_ ? export_->name() : "-", node_.load(), requests_.load(),
			   tx_bytes_.load(), in_flight_);
}

const session *connection::silent() const
{
	std::lock_guard lock(mutex_);
	int unread = 0;
	// Constant from the time at which lane_ is set.
	const bool reads = lane_ && !over_ && !paused_ && !draining_;
	return reads && !::ioctl(fd_, FIONREAD, &unread) && !unread ? session_.get() : nullptr;
}

void connection::readable()
{
	std::vector<work> batch;
	const char *end = nullptr;
	bool full = false, drained = false;
	while (!end && !full && batch.size() < batch_max) {
		if (partial_) {
			receive_data(end);
			if (partial_)
				break;
			continue;
		}
		switch (parse(batch)) {
		case parsed::bad:
			server_.malformed.fetch_add(1, std::memory_order_relaxed);
			end = "not the coopfs storage protocol";
			continue;
		case parsed::full:
			full = true;
			continue;
		case parsed::more:
			break;
		}
		if (partial_)
			continue;
		if (drained)
			break;
		const std::size_t room = in_.size() - have_;
		const ssize_t n = ::recv(fd_, in_.data() + have_, room, MSG_DONTWAIT);
		if (n > 0) {
			if (session_)
				session_->hears();
			have_ += static_cast<std::size_t>(n);
			drained = static_cast<std::size_t>(n) < room;
		} else if (n == 0)
			end = "closed by the client";
		else if (errno != EAGAIN && errno != EINTR)
			end = std::strerror(errno);
		else
			drained = true;
	}
	if (end) {
		// Run what arrived before the end, above all BYE.
		if (state_ == state::ready)
			for (work &w : batch)
				run(std::move(w));
		shut(end);
		return;
	}
	// Before authentication, requests are few and each changes what the parser accepts: run
	// them in order.
	if (state_ != state::ready) {
		if (batch.empty())
			arm();
		else
			greet(std::move(batch));
		return;
	}
	// The client has waited longest for the first request, so this thread runs it itself,
	// unless it is an operation that would block this thread's input.
	const auto slow = std::stable_partition(batch.begin(), batch.end(),
						[](const work &w) { return quick(w->head.op); });
	work mine;
	static_assert(COOP_ST_OP_END <= event_loop::kinds_max);
	if (slow != batch.end() && !server_.loop().blocks((*slow)->head.op))
		mine = std::move(*slow);
	for (auto w = mine ? slow + 1 : slow; w != batch.end(); w++)
		server_.loop().post([self = shared_from_this(),
				     w = std::make_shared<work>(std::move(*w))]() mutable {
			self->run(std::move(*w));
		});
	// From here on another thread may run readable().
	if (full)
		pause();
	else if (batch.size() >= batch_max)
		again();
	else
		arm();
	for (auto w = batch.begin(); w != slow; w++)
		run(std::move(*w), true);
	if (mine)
		run(std::move(mine));
	if (slow != batch.begin())
		flush(); // that request's reply may come later
}

// Takes the complete messages out of the buffer.
connection::parsed connection::parse(std::vector<work> &batch)
{
	std::size_t at = 0;
	parsed result = parsed::more;
	while (have_ - at >= COOP_ST_HEADER && batch.size() < batch_max) {
		auto w = std::make_unique<request>();
		coop_st_header &h = w->head;
		if (coop_st_header_get(&h, in_.data() + at) || h.flags & COOP_ST_F_REPLY || !h.id ||
		    h.data_len > coop_st_request_data_max(h.op) ||
		    (state_ != state::ready &&
		     (h.data_len || COOP_ST_HEADER + h.body_len > hello_max))) {
			result = parsed::bad;
			break;
		}
		if (have_ - at < COOP_ST_HEADER + h.body_len)
			break;
		{
			std::lock_guard lock(mutex_);
			if (over_ || draining_ || in_flight_ >= COOP_ST_REQUESTS_MAX ||
			    (unwritten_ && unwritten_ + h.data_len > unwritten_max)) {
				result = parsed::full;
				break;
			}
			in_flight_++;
			unwritten_ += h.data_len;
		}
		const std::uint8_t *body = in_.data() + at + COOP_ST_HEADER;
		w->raw.assign(body, body + h.body_len);
		at += COOP_ST_HEADER + h.body_len;
		if (h.data_len) {
			w->data.resize(h.data_len);
			data_have_ = std::min<std::size_t>(h.data_len, have_ - at);
			std::memcpy(w->data.data(), in_.data() + at, data_have_);
			at += data_have_;
			if (data_have_ < h.data_len) {
				partial_ = std::move(w);
				break;
			}
		}
		batch.push_back(std::move(w));
		if (state_ != state::ready)
			break;
	}
	have_ -= at;
	std::memmove(in_.data(), in_.data() + at, have_);
	return result;
}

void connection::receive_data(const char *&end)
{
	while (data_have_ < partial_->data.size()) {
		const ssize_t n = ::recv(fd_, partial_->data.data() + data_have_,
					 partial_->data.size() - data_have_, MSG_DONTWAIT);
		if (n > 0) {
			session_->hears();
			data_have_ += static_cast<std::size_t>(n);
		} else if (n < 0 && errno == EINTR)
			continue;
		else {
			if (n == 0)
				end = "closed by the client";
			else if (errno != EAGAIN)
				end = std::strerror(errno);
			return;
		}
	}
	server_.loop().post([self = shared_from_this(),
			     w = std::make_shared<work>(std::move(partial_))]() mutable {
		self->run(std::move(*w));
	});
}

void connection::run(work w, bool more)
{
	request &r = *w;
	event_loop::doing(r.head.op);
	requests_.fetch_add(1, std::memory_order_relaxed);
	const bool newer = shake_.version < coop_st_op_since(r.head.op);
	if (!coop_st_op_known(r.head.op) || coop_st_op_is_push(r.head.op) || newer ||
	    r.head.op <= COOP_ST_PROOF_OP)
		return refuse(r, EOPNOTSUPP);
	if (coop_st_body_get(&r.body, coop_st_request_fields(r.head.op), r.raw.data(),
			     static_cast<u32>(r.raw.size()))) {
		server_.malformed.fetch_add(1, std::memory_order_relaxed);
		return refuse(r, EBADMSG);
	}
	// What touches no file must be answered also while the export's file system hangs.
	const bool waits = coop_st_request_fields(r.head.op) & COOP_ST_FH &&
			   r.head.op != COOP_ST_UNLOCK && r.head.op != COOP_ST_LOCK_TEST;
	if (!waits)
		return serve(std::move(w), more);
	const unsigned file =
		changes_content(r.head.op) ? lane::file(view(r.body.fh)) : lane::no_file;
	if (const lane::visit now(*lane_, file); now)
		return serve(std::move(w), more);
	lane_->wait(
		[self = shared_from_this(), w = std::make_shared<work>(std::move(w))] {
			event_loop::doing((*w)->head.op);
			self->serve(std::move(*w), false);
		},
		this, file);
}

void connection::serve(work w, bool more)
{
	request &r = *w;
	const bool relies = !session_->relied_on && !restores(r); // threads share it: write once
	const bool changes = coop_st_op_changes(r.head.op);
	if (relies && !changes)
		session_->relied_on = true;
	reply out;
	switch (r.head.op) {
	case COOP_ST_REGISTER:
	case COOP_ST_JOIN:
		return enroll(r);
	case COOP_ST_LEAVE:
		return withdraw(r);
	case COOP_ST_BYE: {
		answer(r, out);
		std::lock_guard lock(mutex_);
		forget_ = true;
		return;
	}
	case COOP_ST_RUN: {
		if (r.body.flags & ~COOP_ST_RUN_ALL)
			return refuse(r, EINVAL);
		if (r.body.flags & COOP_ST_RUN_PLAIN)
			session_->wants_no_roles(epoch_);
		session_->lapses = r.body.flags & COOP_ST_RUN_LAPSES;
		const auto &nonce = export_->run_nonce();
		std::copy(nonce.begin(), nonce.end(), out.body.nonce);
		out.body.verifier = server_.files().stable.verifier(export_->fs(), {});
		return answer(r, out);
	}
	case COOP_ST_STATS: {
		const std::string text = server_.stats_text();
		out.data.assign(text.begin(), text.end());
		return answer(r, out);
	}
	default:
		break;
	}
	if (r.head.op == COOP_ST_BUNDLE)
		return bundle(std::move(w));
	if (!changes) {
		r.copy_most = copy_most();
		server_.files().execute(*export_, *session_, r, out);
		return answer(r, out, more);
	}
	if (r.head.flags & COOP_ST_F_REPEAT)
		more = false; // the reply may come later
	std::string encoded;
	auto to = [weak = weak_from_this(), unwritten = r.head.data_len,
		   more](const std::string &text) {
		if (auto self = weak.lock()) {
			item i;
			i.head = text;
			i.request = true;
			{
				std::lock_guard lock(self->mutex_);
				self->unwritten_ -= unwritten;
			}
			self->enqueue(std::move(i), more);
		}
	};
	switch (session_->admit(epoch_, r.head.id, to, encoded)) {
	case session::verdict::running:
		return;
	case session::verdict::late: // the client has repeated it on a newer connection
		return shut("replaced by a newer connection of its session");
	case session::verdict::answered:
		if (r.head.op == COOP_ST_OPEN || r.head.op == COOP_ST_CREATE ||
		    r.head.op == COOP_ST_TMPFILE)
			session_->opened_late(r.body.open_id);
		return to(encoded);
	case session::verdict::run:
		break;
	}
	if (relies)
		session_->relied_on = true;
	change(std::move(w));
}

// No other client may hold a lease on what the request changes. This thread does not wait for the
// recalls: the clients' answers need threads too.
void connection::change(work w)
{
	struct pending {
		std::shared_ptr<connection> self;
		work w;
		lease_table::extent what;
		void execute()
		{
			request &r = *w;
			reply out;
			event_loop::doing(r.head.op);
			self->server_.files().execute(*self->export_, *self->session_, r, out);
			self->server_.files().changed(what, !out.status);
			// If it goes to a newer connection, that one ignores nodes unknown to it.
			self->will_name({out.body.nodes, out.body.n_nodes});
			const std::string plain = self->encode(r.head, out);
			if (out.data.empty()) {
				if (const auto deliver = self->session_->done(r.head.id, plain))
					deliver(plain);
				return;
			}
			const std::string all =
				plain + std::string(out.data.begin(), out.data.end());
			// Do not keep inline bytes: a client that repeats the request reads them.
			out.data.clear();
			if (const auto deliver =
				    self->session_->done(r.head.id, self->encode(r.head, out)))
				deliver(all);
		}
	};
	auto p = std::make_shared<pending>(pending{shared_from_this(), std::move(w), {}});
	if (server_.files().begin_change(*export_, *session_, *p->w, p->what, [p] {
		    p->self->server_.loop().post(
			    [p] { p->self->lane_->run([p] { p->execute(); }); });
	    }))
		p->execute();
}

// While another thread makes the bundle, this one does not wait for it.
void connection::bundle(work w)
{
	const auto p = std::make_shared<work>(std::move(w));
	if (!server_.files().begin_bundle(*export_, *session_, **p, [self = shared_from_this(), p] {
		    self->server_.loop().post([self, p] {
			    self->lane_->run([self, p] { self->bundle(std::move(*p)); });
		    });
	    }))
		return;
	reply out;
	server_.files().execute(*export_, *session_, **p, out);
	will_name(out.known);
	answer(**p, out);
}

std::uint32_t connection::copy_most() const
{
	std::lock_guard lock(mutex_);
	return unsent_ < unsent_most ? copy_max : copy_slow_max;
}

void connection::refuse(const request &r, int err)
{
	server_.refused.fetch_add(1, std::memory_order_relaxed);
	reply out;
	out.status = static_cast<std::uint32_t>(err);
	{
		std::lock_guard lock(mutex_);
		unwritten_ -= r.head.data_len;
	}
	answer(r, out);
}

// Requests run concurrently: of two addresses the one sent later is valid.
void connection::enroll(const request &r)
{
	reply out;
	if (r.body.flags & ~COOP_ST_JOIN_ALL)
		return refuse(r, EINVAL);
	const node_ability can = {!(r.body.flags & COOP_ST_JOIN_LEAF), r.body.count};
	{
		std::lock_guard order(enroll_mutex_);
		if (r.head.id > enrolled_) {
			enrolled_ = r.head.id;
			const std::uint32_t node = server_.members().join(
				r.body.addr,
				[weak = weak_from_this()](std::string_view messages, bool soon) {
					if (auto self = weak.lock())
						self->push_nodes(messages, soon);
				},
				r.body.flags & COOP_ST_JOIN_NAMED, node_,
				{export_, shake_.version >= coop_st_op_since(COOP_ST_RUN)});
			if (!node) {
				out.status = EUSERS;
			} else {
				knows_as_ = node;
				if (session_->takes_roles)
					server_.files().holders.joined(node, can.forwards);
				session_->is_node(epoch_, node, can);
				server_.files().audiences.moved(*session_);
				if (const std::uint32_t before = node_.exchange(node)) {
					server_.members().leave(before, node);
					server_.files().openers.left(before);
					server_.files().holders.left(before);
				}
				spdlog::debug("{}: node {} has joined", peer_, node);
			}
		}
		out.body.node_id = node_;
	}
	if (ended()) // the connection ended before node_ was set, so nothing else unregisters it
		leave_fabric();
	answer(r, out);
}

// As enroll(): a registration that was sent later stays.
void connection::withdraw(const request &r)
{
	reply out;
	{
		std::lock_guard order(enroll_mutex_);
		if (r.head.id > enrolled_) {
			enrolled_ = r.head.id;
			leave_fabric();
		}
	}
	answer(r, out);
}

void connection::leave_fabric()
{
	const std::uint32_t node = node_.exchange(0);
	if (!node)
		return;
	std::uint32_t mine = node;
	session_->node.compare_exchange_strong(mine, 0);
	server_.files().audiences.moved(*session_);
	server_.members().leave(node);
	server_.files().openers.left(node);
	server_.files().holders.left(node);
	spdlog::debug("{}: node {} has left", peer_, node);
}

} // namespace coop::daemon
