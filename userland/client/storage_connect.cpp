// SPDX-License-Identifier: MIT
// storage_connect.cpp - connecting and reconnecting.
//
// After a loss come exponential backoff with jitter, the handshake, the state that the daemon may
// have forgotten (open files and locks if it does not know the session, the node's address), and
// then every call without a reply. The handshake proves to each side that the other knows the
// cluster key, with nonces of both.
#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <random>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "userland/client/storage_codec.hpp"
#include "userland/client/storage_link.hpp"

namespace coop::client
{

namespace
{

constexpr std::chrono::seconds connect_most{5};
constexpr int idle_ms = 100;           // how often the thread checks deadlines
constexpr int user_timeout_ms = 30000; // TCP_USER_TIMEOUT: unacknowledged bytes
constexpr std::chrono::milliseconds backoff_first{50}, backoff_most{5000};
constexpr unsigned restore_tries = 20; // for a file on which a process at the daemon holds a lease

void option(int fd, int level, int name, int value)
{
	::setsockopt(fd, level, name, &value, sizeof(value));
}

void receive_timeout(int fd, int ms)
{
	const struct timeval t = {ms / 1000, ms % 1000 * 1000};
	::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
}

bool watch(const unique_fd &epoll, int fd, std::uint32_t events)
{
	struct epoll_event e = {};
	e.events = events;
	e.data.fd = fd;
	return ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &e) == 0;
}

// go_on: called from time to time; false: give up.
int connect_to(const struct addrinfo &a, const std::function<bool()> &go_on)
{
	const int fd = ::socket(a.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	int err = ::connect(fd, a.ai_addr, a.ai_addrlen) ? errno : 0;
	if (err == EINPROGRESS) {
		struct pollfd p = {fd, POLLOUT, 0};
		socklen_t len = sizeof(err);
		const auto end = std::chrono::steady_clock::now() + connect_most;
		int ready;
		while ((ready = ::poll(&p, 1, idle_ms)) == 0)
			if (!go_on() || std::chrono::steady_clock::now() >= end)
				break;
		if (ready <= 0)
			err = ETIMEDOUT;
		else if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len))
			err = errno;
	}
	if (err) {
		::close(fd);
		return -err;
	}
	::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
	option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
	option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
	option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
	option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, user_timeout_ms);
	return fd;
}

} // namespace

storage_link::storage_link(const storage_options &o) :
	options_(o),
	callers_input_(::epoll_create1(EPOLL_CLOEXEC)),
	input_(::epoll_create1(EPOLL_CLOEXEC)),
	stop_listening_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
	handed_over_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))
{
	if (!watch(callers_input_, stop_listening_.get(), EPOLLIN) ||
	    !watch(input_, handed_over_.get(), EPOLLIN))
		throw std::runtime_error(std::string("epoll: ") + std::strerror(errno));
	if (!o.key_file.empty())
		key_ = load_cluster_key(o.key_file);
	session_.resize(COOP_ST_SESSION);
	random_bytes(session_.data(), session_.size());
	std::string why;
	const int err = greet(why);
	if (err) {
		if (fd_ >= 0)
			::close(fd_);
		throw std::runtime_error("storage " + o.server + ":" + std::to_string(o.port) +
					 ":" + o.export_name + ": " + why);
	}
	handshaking_ = false;
	epoch_ = send_epoch_ = ++epochs_;
	connected_ = true;
	thread_ = std::thread([this] { run(); });
}

storage_link::~storage_link()
{
	auto bye = make(COOP_ST_BYE, coop_st_body{});
	bye->done = [](outcome &) {};
	submit(bye);
	{
		std::lock_guard lock(mutex_);
		stop_ = true;
	}
	wake_.notify_all();
	{
		std::lock_guard lock(send_mutex_);
		if (fd_ >= 0)
			::shutdown(fd_,
				   SHUT_WR); // BYE is still sent; the daemon then closes, which
					     // wakes the thread
	}
	thread_.join();
	if (fd_ >= 0)
		::close(fd_);
}

int storage_link::dial(std::string &why)
{
	struct addrinfo hints = {}, *found = nullptr;
	hints.ai_socktype = SOCK_STREAM;
	const int gai = ::getaddrinfo(options_.server.c_str(),
				      std::to_string(options_.port).c_str(), &hints, &found);
	if (gai) {
		why = ::gai_strerror(gai);
		return -EHOSTUNREACH;
	}
	int fd = -EHOSTUNREACH;
	for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next)
		fd = connect_to(*a, [this] { return attend(); });
	::freeaddrinfo(found);
	if (fd < 0) {
		why = std::string(std::strerror(-fd)) +
		      (fd == -ECONNREFUSED ? " (does coopfsd run there?)" : "");
		return fd;
	}
	receive_timeout(fd, idle_ms);
	// The order matters: the kernel wakes the first of both at which a thread waits.
	if (!watch(callers_input_, fd, EPOLLIN | EPOLLEXCLUSIVE) ||
	    !watch(input_, fd, EPOLLIN | EPOLLEXCLUSIVE)) {
		const int err = errno;
		why = std::strerror(err);
		::close(fd);
		return -err;
	}
	have_ = used_ = 0;
	drained_ = false;
	std::lock_guard lock(send_mutex_);
	fd_ = fd;
	return 0;
}

// Sends a request and waits for its reply, while only pushes are in flight.
int storage_link::exchange(std::uint16_t op, const coop_st_body &request, coop_st_header &h,
			   coop_st_body &reply)
{
	auto c = make(op, request);
	if (!c)
		return -EINVAL;
	{
		std::lock_guard lock(mutex_);
		c->id = ++last_id_;
	}
	h = {};
	h.op = op;
	h.body_len = static_cast<u32>(c->frame.size() - COOP_ST_HEADER);
	h.id = c->id;
	coop_st_header_put(&h, reinterpret_cast<u8 *>(c->frame.data()));
	{
		std::lock_guard lock(send_mutex_);
		if (!send_all({{c->frame.data(), c->frame.size()}}))
			return -errno;
	}
	for (;;) {
		if (!fill(COOP_ST_HEADER, false))
			return -errno;
		if (coop_st_header_get(&h, in_.data() + used_) || h.data_len)
			return -EPROTO;
		if (!fill(COOP_ST_HEADER + h.body_len, false))
			return -errno;
		const std::uint8_t *body = in_.data() + used_ + COOP_ST_HEADER;
		used_ += COOP_ST_HEADER + h.body_len;
		if (!h.id) {
			take_push(h, body);
			continue;
		}
		if (h.id != c->id || h.op != op)
			return -EPROTO;
		if (h.body_len || !h.status)
			return coop_st_body_get(&reply, coop_st_reply_fields(op), body, h.body_len)
				       ? -EPROTO
				       : 0;
		return 0;
	}
}

void storage_link::hang_up()
{
	if (fd_ >= 0) {
		std::lock_guard lock(send_mutex_);
		::close(fd_.exchange(-1));
	}
}

// Connects, and leaves the connection to the caller, also after an error.
int storage_link::greet(std::string &why)
{
	int err = dial(why);
	if (!err)
		err = shake_hands(COOP_ST_VERSION, why);
	// An older daemon gives roles to all clients of the versions that have them.
	if (err == -EPROTOTYPE) {
		hang_up();
		err = dial(why);
		if (!err)
			err = shake_hands(COOP_ST_VERSION_MIN, why);
	}
	return err;
}

// What belongs to the daemon's run, from daemons that tell.
int storage_link::learn_run(std::string &why)
{
	coop_st_header h{};
	coop_st_body ask{}, got{};
	if (version_ < coop_st_op_since(COOP_ST_RUN)) {
		run_ = {};
		make_fabric_key();
		return 0;
	}
	ask.flags = COOP_ST_RUN_LAPSES | (options_.on_roles ? 0 : COOP_ST_RUN_PLAIN);
	int err = exchange(COOP_ST_RUN, ask, h, got);
	if (!err)
		err = -static_cast<int>(h.status);
	if (err) {
		why = std::strerror(-err);
		return err;
	}
	std::copy_n(got.nonce, run_.nonce.size(), run_.nonce.begin());
	run_.verifier = got.verifier;
	make_fabric_key();
	return 0;
}

// Of older daemons all nodes have the key that follows from the cluster key. Without that one they
// have no secret, so this node takes a key that nobody else has, and asks and serves nobody.
void storage_link::make_fabric_key()
{
	std::array<std::uint8_t, 16> key;
	if (version_ >= coop_st_op_since(COOP_ST_RUN))
		key = coop::fabric_key(key_, as_view(run_.nonce));
	else if (!key_.empty())
		key = coop::fabric_key(key_);
	else
		random_bytes(key.data(), key.size());
	std::lock_guard lock(mutex_);
	fabric_key_ = key;
}

// -EPROTOTYPE: the daemon would give this client roles that it does not want.
int storage_link::shake_hands(std::uint16_t newest, std::string &why)
{
	coop_st_header h;
	coop_st_body ask{}, got{};
	random_bytes(ask.nonce, sizeof(ask.nonce));
	std::memcpy(ask.session, session_.data(), sizeof(ask.session));
	ask.version_min = COOP_ST_VERSION_MIN;
	ask.version_max = newest;
	ask.text = bytes_of(options_.export_name);
	int err = exchange(COOP_ST_HELLO, ask, h, got);
	if (err) {
		why = err == -EPROTO ? "the server does not speak the coopfs storage protocol"
				     : std::strerror(-err);
		return err;
	}
	if (h.status == EPROTONOSUPPORT || got.version_min < ask.version_min ||
	    got.version_min > ask.version_max) {
		why = "the daemon speaks protocol version " + std::to_string(got.version_max) +
		      ", not " + std::to_string(ask.version_max);
		return -EPROTONOSUPPORT;
	}
	version_ = got.version_min;
	if (!options_.on_roles && version_ >= COOP_ST_VERSION_ROLES &&
	    version_ < coop_st_op_since(COOP_ST_RUN))
		return -EPROTOTYPE;
	const struct handshake shake = {
		std::string(reinterpret_cast<const char *>(ask.nonce), sizeof(ask.nonce)),
		std::string(reinterpret_cast<const char *>(got.nonce), sizeof(got.nonce)),
		session_,
		options_.export_name,
		ask.version_min,
		ask.version_max,
		got.version_min,
		got.flags};
	const bool keyed = got.flags & COOP_ST_W_KEYED;
	if (keyed != !key_.empty()) {
		why = keyed ? "the daemon requires a cluster key: give key=FILE"
			    : "the daemon has no cluster key, but this client has one";
		return -EKEYREJECTED;
	}
	coop_st_body prove{};
	if (keyed) {
		const digest theirs = shake.proof(key_, "server"),
			     ours = shake.proof(key_, "client");
		if (!equal_secret(theirs.data(), got.proof, theirs.size())) {
			why = "the daemon has a different cluster key";
			return -EKEYREJECTED;
		}
		std::memcpy(prove.proof, ours.data(), ours.size());
	}
	err = exchange(COOP_ST_PROOF_OP, prove, h, got);
	if (err || h.status) {
		why = h.status == ENOENT ? "no such export"
		      : h.status == EACCES
			      ? "the daemon refuses this client: the export is not for its "
				"address, or the client has no cluster key and is run neither by "
				"root nor by the daemon's user; the daemon's log says which"
			      : std::strerror(err ? -err : static_cast<int>(h.status));
		return err ? err : -static_cast<int>(h.status);
	}
	window_ = std::clamp<u32>(got.count, 1, COOP_ST_REQUESTS_MAX);
	const bool first = root_.fh.empty();
	if (first)
		root_ = {std::string(reinterpret_cast<const char *>(got.fh.p), got.fh.len),
			 attributes_of(got.attr)};
	err = learn_run(why);
	if (!err && !first && got.flags & COOP_ST_W_NEW_SESSION)
		err = restore(why);
	return err;
}

// The daemon does not know the session: it has restarted, or we were away too long.
int storage_link::restore(std::string &why)
{
	restores_++;
	locks_.forgotten();
	drop_abandoned();
	std::map<std::uint64_t, open_record> opens;
	{
		std::lock_guard lock(mutex_);
		opens = opens_;
	}
	for (const auto &[id, o] : opens) {
		coop_st_header h;
		coop_st_body ask{}, got;
		fill_cred(o.who, ask.cred);
		ask.fh = bytes_of(o.fh);
		ask.open_id = id;
		ask.flags = (o.flags & (COOP_ST_O_READ | COOP_ST_O_WRITE | COOP_ST_O_APPEND |
					COOP_ST_O_EXEC)) |
			    COOP_ST_O_AGAIN;
		for (unsigned i = 0; i < restore_tries; i++) {
			if (int err = exchange(COOP_ST_OPEN, ask, h, got)) {
				why = std::strerror(-err);
				return err;
			}
			if (h.status != EAGAIN)
				break;
			std::this_thread::sleep_for(backoff_first);
		}
		if (h.status) // unlinked, or no longer permitted: its users get -EBADF
			spdlog::warn("storage {}: cannot reopen an open file: {}", options_.server,
				     std::strerror(static_cast<int>(h.status)));
	}
	return reclaim(why);
}

// Reclaims the locks that this mount held, and closes the open files whose locks are lost. If the
// connection is lost meanwhile, the next one does both again: so nothing is forgotten before the
// daemon has closed all of them. A file that it still had open could be written under a lock of
// another client.
int storage_link::reclaim(std::string &why)
{
	std::map<std::uint64_t, handle> lost_files;
	coop_st_header h;
	coop_st_body got;
	const auto say = [&](std::uint16_t op, const coop_st_body &ask) {
		const int err = exchange(op, ask, h, got);
		if (err)
			why = std::strerror(-err);
		return err;
	};
	for (const lock_book::lock &l : locks_.held()) {
		coop_st_body ask{};
		ask.fh = bytes_of(l.fh);
		ask.open_id = l.open_id;
		ask.lock = l.what;
		ask.flags = COOP_ST_L_RECLAIM;
		if (int err = say(COOP_ST_LOCK, ask))
			return err;
		if (h.status)
			lost_files.emplace(l.open_id, l.fh);
	}
	{
		std::lock_guard lock(mutex_);
		for (const auto &[id, o] : opens_)
			if (lost_files.contains(o.with))
				lost_files.emplace(id, o.fh);
	}
	for (const auto &[id, fh] : lost_files) {
		coop_st_body ask{};
		ask.fh = bytes_of(fh);
		ask.open_id = id;
		if (int err = say(COOP_ST_CLOSE, ask))
			return err;
	}
	for (const auto &[id, fh] : lost_files) {
		spdlog::error("storage {}: a lock is lost; its open file can no longer be used",
			      options_.server);
		closed(id);
		locks_.lost(id);
		if (options_.on_lock_lost)
			options_.on_lock_lost(fh);
	}
	return say(COOP_ST_RECLAIMED, coop_st_body{});
}

void storage_link::ask_for_locks()
{
	for (const auto &[cookie, l] : locks_.waiting())
		ask_for_lock(cookie, l);
}

bool storage_link::lock_queued(std::uint64_t cookie, const lock_book::lock &l, const outcome &o)
{
	if (locks_.queued(cookie, restores_))
		return true;
	// A reply that the daemon remembers may be older than the grant, and the grant lost with
	// the connection.
	if (o.repeated)
		ask_for_lock(cookie, l);
	return false;
}

void storage_link::ask_for_lock(std::uint64_t cookie, const lock_book::lock &l)
{
	if (!locks_.ask_again(cookie))
		return;
	coop_st_body ask{};
	ask.fh = bytes_of(l.fh);
	ask.open_id = l.open_id;
	ask.lock = l.what;
	ask.flags = COOP_ST_L_WAIT;
	ask.cookie = cookie;
	auto c = make(COOP_ST_LOCK, ask);
	c->deadline = clock::time_point::max(); // the waiter decides how long
	c->done = [this, cookie, l](outcome &o) {
		const auto by = o.err ? std::nullopt : std::optional(restores_);
		if (const auto ended = locks_.answered(cookie, by)) {
			if (!ended->cancelled)
				ended->done(0); // granted before this answer
			else if (!o.err)
				ended->settle(cookie, o.body->flags);
		} else if (o.err) {
			if (const auto w = locks_.end(cookie))
				w->done(o.err);
		} else if (o.body->flags == COOP_ST_LOCK_QUEUED) {
			(void)lock_queued(cookie, l, o);
		} else {
			lock_granted(cookie);
		}
	};
	submit(std::move(c));
}

void storage_link::lost()
{
	connected_ = false;
	{
		std::lock_guard lock(mutex_);
		if (!stop_)
			spdlog::warn("storage {}: connection lost; reconnecting", options_.server);
		epoch_ = 0;
		in_flight_ = 0;
		for (auto &[id, c] : calls_) {
			c->repeated |= c->epoch != 0;
			c->epoch = 0;
		}
	}
	{
		// After the shutdown no sender blocks in here, and none enters without the epoch.
		::shutdown(fd_, SHUT_RDWR);
		std::lock_guard lock(send_mutex_);
		send_epoch_ = 0;
		::close(fd_.exchange(-1));
	}
	have_ = used_ = 0;
	if (options_.on_lost)
		options_.on_lost();
	forget_nodes();
}

void storage_link::reconnect()
{
	std::minstd_rand jitter(std::random_device{}());
	auto wait = backoff_first;
	handshaking_ = true;
	for (unsigned attempt = 0;; attempt++) {
		std::string why;
		held_.clear();
		held_roles_.clear();
		holding_ = true;
		int err = greet(why);
		// Before members come, and before others come to know this node.
		if (!err && options_.on_fabric_key)
			options_.on_fabric_key(fabric_key());
		bool has_addr;
		coop_st_body ask{};
		{
			std::lock_guard lock(mutex_);
			if (stop_)
				return;
			has_addr = has_addr_;
			ask = join_body(addr_, ability_);
		}
		if (!err && has_addr) {
			coop_st_header h;
			coop_st_body got;
			err = exchange(join_op(), ask, h, got);
			if (!err && h.status)
				spdlog::warn("storage {}: cannot register the node again: {}",
					     options_.server,
					     std::strerror(static_cast<int>(h.status)));
			why = "registration";
		}
		if (!err)
			break;
		hang_up();
		if (attempt % 8 == 3)
			spdlog::warn("storage {}: {}; retrying", options_.server, why);
		expire(false);
		std::unique_lock lock(mutex_);
		// Half of the delay is random, so that the clients of a daemon do not reconnect in
		// step.
		wake_.wait_for(lock, wait / 2 + wait * (jitter() % 1000) / 2000,
			       [this] { return stop_; });
		if (stop_)
			return;
		wait = std::min(wait * 2, backoff_most);
	}
	handshaking_ = false;
	reconnects_.fetch_add(1, std::memory_order_relaxed);
	connected_ = true;
	spdlog::info("storage {}: reconnected", options_.server);
	{
		std::scoped_lock lock(mutex_, send_mutex_);
		epoch_ = send_epoch_ = ++epochs_;
		in_flight_ = 0;
	}
	if (options_.on_reconnect)
		options_.on_reconnect();
	holding_ = false;
	for (const node_event &e : held_)
		tell(e);
	held_.clear();
	for (const file_roles &r : held_roles_)
		if (options_.on_roles)
			options_.on_roles(r);
	held_roles_.clear();
	ask_for_locks();
	pump();
}

} // namespace coop::client
