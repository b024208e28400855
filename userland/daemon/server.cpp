// SPDX-License-Identifier: MIT
// server.cpp - accepting connections, the tables of connections and sessions, shutdown.
#include "userland/daemon/server.hpp"

#include <charconv>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include "coop/process_limits.hpp"
#include "userland/daemon/connection.hpp"
#include "userland/daemon/handle_key.hpp"
#include "userland/daemon/identity.hpp"
#include "userland/daemon/whole_file.hpp"

namespace coop::daemon
{

namespace
{

using asio::ip::tcp;

// How descriptors are divided. A connection takes one, and its
// session's file of changes another. An inode takes two, and a third while a
// client may open it within a lease (lease_table::guards_max()), or for the moment in which its
// data descriptor is replaced.
struct descriptor_shares {
	unsigned connections;
	std::size_t inodes;
};

descriptor_shares share_descriptors(unsigned connections, std::size_t inodes)
{
	constexpr std::size_t per_inode = 3, reserve = 64;
	constexpr std::size_t enough = 1u << 20;
	const std::size_t all = std::min<std::uint64_t>(raise_limit(RLIMIT_NOFILE), enough);
	const std::size_t fixed = reserve + strangers_max;
	const std::size_t rest = all > fixed ? all - fixed : 0;
	const auto served =
		static_cast<unsigned>(std::clamp<std::size_t>(rest / 4, 1, connections));
	const std::size_t sessions = std::min<std::size_t>(std::size_t{2} * served, rest);
	const std::size_t most = std::max<std::size_t>((rest - sessions) / per_inode, 8);
	if (served < connections)
		spdlog::warn("{} descriptors (ulimit -n): {} connections at most, not {}", all,
			     served, connections);
	return {served, inodes ? std::min(inodes, most) : most};
}

} // namespace

server::server(const settings &s) :
	settings_(s),
	state_(s.state_dir.empty() ? state_directory::usual_path() : s.state_dir),
	lanes_(loop_, std::max(s.threads, 1u)),
	loop_(lanes::threads(std::max(s.threads, 1u))),
	acceptor_(loop_.io()),
	reaper_(loop_.io()),
	accept_pause_(loop_.io()),
	roles_pause_(loop_.io()),
	linger_pause_(loop_.io())
{
	// Sent to us when a lease is broken; our leases here last microseconds, so ignore it.
	::signal(SIGIO, SIG_IGN);
	::signal(SIGPIPE, SIG_IGN);
	if (!s.key_file.empty())
		key_ = load_cluster_key(s.key_file);
	if (s.exports.empty())
		throw usage_error("nothing to export: give --export NAME=PATH");
	const digest handles = handle_key(key_, state_);
	std::vector<std::unique_ptr<exported>> exports;
	for (const export_spec &e : s.exports) {
		for (const auto &other : exports)
			if (other->name() == e.name)
				throw usage_error("export " + e.name + " is given twice");
		auto in = std::make_unique<exported>(e, handles, s.path_handles);
		for (const auto &other : exports)
			in->meet(*other);
		exports.push_back(std::move(in));
		spdlog::info("export {}: {} ({}, change times {})", e.name, e.path,
			     exports.back()->by_path()
				     ? "handles by path: no CAP_DAC_READ_SEARCH or no "
				       "support by the file system"
				     : "file handles",
			     exports.back()->clock().fine ? "fine-grained" : "coarse");
	}
	if (!can_switch_users())
		spdlog::warn("not root: serves user {} only, with its rights", ::geteuid());
	const descriptor_shares shares = share_descriptors(s.max_connections, s.max_inodes);
	max_connections_ = shares.connections;
	service_ = std::make_unique<service>(std::move(exports), shares.inodes, state_, s.boot_id,
					     s.lock_grace);
	for (const auto &e : service_->exports())
		lanes_.add(e->name());
	service_->done.limit(max_connections_);
	service_->leases.run_by([this](const exported &in, std::function<void()> work) {
		lane_of(in).wait(std::move(work));
	});
	service_->watch_silence({[this](const lock_table::ids &of) { return lapse(of); },
				 [this](const lock_table::ids &of) { return silent_of(of); }});
	service_->audiences.on_change([this] {
		loop_.post([this] {
			const auto pause = std::exchange(roles_cost_, {}) * roles_part;
			roles_pause_.expires_after(
				std::max<std::chrono::steady_clock::duration>(roles_time, pause));
			roles_pause_.async_wait(loop_.wrap([this](asio::error_code ec) {
				if (!ec)
					push_roles();
			}));
		});
	});
	service_->audiences.on_linger(
		[this] { loop_.post([this] { expire_after(linger_time); }); });
	listen(s.listen);
	accept();
	reap();
	loop_.start();
}

server::~server()
{
	drain();
}

void server::listen(const std::string &text)
{
	std::string host = text, port = std::to_string(default_port);
	if (host.empty())
		host = key_.empty() ? "127.0.0.1" : "0.0.0.0";
	if (host.front() == '[') { // [v6]:port
		const std::size_t end = host.find(']');
		if (end == host.npos)
			throw usage_error("--listen " + text + ": missing ]");
		if (end + 1 < host.size() && host[end + 1] == ':')
			port = host.substr(end + 2);
		host = host.substr(1, end - 1);
	} else if (std::count(host.begin(), host.end(), ':') == 1) {
		port = host.substr(host.find(':') + 1);
		host.resize(host.find(':'));
	}
	// The resolver takes a greater number modulo 65536, and no number for any free port.
	std::uint16_t number = 0;
	const auto [end, wrong] = std::from_chars(port.data(), port.data() + port.size(), number);
	if (wrong != std::errc() || end != port.data() + port.size())
		throw usage_error("--listen " + text + ": '" + port +
				  "' is no port: give ADDR[:PORT] with a port from 0 to 65535");
	asio::error_code ec;
	tcp::resolver resolver(loop_.io());
	const auto found = resolver.resolve(host, port, tcp::resolver::passive, ec);
	if (ec)
		throw std::runtime_error("--listen " + text + ": " + ec.message());
	const tcp::endpoint at = *found.begin();
	if (key_.empty() && !at.address().is_loopback())
		throw std::runtime_error(
			"--listen " + text +
			": without a cluster key only loopback addresses are served; "
			"give --key FILE");
	acceptor_.open(at.protocol(), ec);
	if (!ec)
		acceptor_.set_option(tcp::acceptor::reuse_address(true), ec);
	if (!ec)
		acceptor_.bind(at, ec);
	if (!ec)
		acceptor_.listen(asio::socket_base::max_listen_connections, ec);
	if (ec)
		throw std::runtime_error("cannot listen on " + host + " port " + port + ": " +
					 ec.message());
	port_ = acceptor_.local_endpoint().port();
	address_ = at.address().to_string();
	spdlog::info("listening on {} port {}{}", address_, port_,
		     key_.empty() ? " (no cluster key: loopback only)" : "");
}

void server::accept()
{
	acceptor_.async_accept(loop_.wrap([this](asio::error_code ec, tcp::socket socket) {
		if (ec == asio::error::operation_aborted)
			return;
		if (ec) { // out of descriptors or memory: wait until others end
			spdlog::warn("accept: {}", ec.message());
			accept_pause_.expires_after(std::chrono::milliseconds(100));
			accept_pause_.async_wait(loop_.wrap([this](asio::error_code e) {
				if (!e)
					accept();
			}));
			return;
		}
		accepted.fetch_add(1, std::memory_order_relaxed);
		auto c = std::make_shared<connection>(*this, std::move(socket));
		bool full;
		std::shared_ptr<connection> oldest;
		{
			std::lock_guard lock(mutex_);
			if (draining_)
				return;
			if (strangers_.size() >= strangers_max) {
				oldest = strangers_.front().lock();
				strangers_.pop_front();
			}
			full = connections_.size() >= max_connections_ + strangers_max;
			if (!full) {
				strangers_.push_back(c);
				connections_.insert(c);
			}
		}
		if (oldest)
			oldest->shut("too many unauthenticated connections");
		if (full || oldest)
			refused.fetch_add(1, std::memory_order_relaxed);
		if (!full)
			c->start();
		accept();
	}));
}

bool server::known(connection &c)
{
	std::lock_guard lock(mutex_);
	if (connections_.size() - strangers_.size() >= max_connections_)
		return false;
	forget_stranger_locked(c);
	return true;
}

void server::forget_stranger_locked(connection &c)
{
	strangers_.remove_if([&](const auto &s) { return s.lock().get() == &c; });
}

void server::gone(connection &c)
{
	std::lock_guard lock(mutex_);
	forget_stranger_locked(c);
	connections_.erase(c.shared_from_this());
}

int server::attach(const std::string &id, const exported &in, bool &fresh,
		   std::shared_ptr<session> &out)
{
	std::lock_guard lock(mutex_);
	auto it = sessions_.find(id);
	fresh = it == sessions_.end() || !it->second->relied_on;
	if (it == sessions_.end()) {
		if (sessions_.size() >= sessions_max)
			return -EUSERS;
		it = sessions_.emplace(id, std::make_shared<session>(id, &in)).first;
	}
	if (it->second->in != &in)
		return -EACCES;
	it->second->attached++;
	out = it->second;
	return 0;
}

lane &server::lane_of(const exported &in)
{
	const auto &all = service_->exports();
	const auto at = std::find_if(all.begin(), all.end(),
				     [&in](const auto &e) { return e.get() == &in; });
	return *lanes_.all()[static_cast<std::size_t>(at - all.begin())];
}

void server::detach(std::shared_ptr<session> s, bool forget)
{
	std::shared_ptr<session> last;
	{
		std::lock_guard lock(mutex_);
		s->attached--;
		s->detached_at = std::chrono::steady_clock::now();
		auto it = sessions_.find(s->id);
		if (forget && !s->attached && it != sessions_.end() && it->second == s) {
			last = std::move(it->second);
			sessions_.erase(it);
			forget_locked(*last);
		}
	}
	if (last)
		end(std::move(last));
	else
		lapse_later(*s);
}

// The session has been forgotten. Its files are closed by a thread that may wait for them.
void server::end(std::shared_ptr<session> s)
{
	service_->recovery.settle();
	service_->ended(*s);
	if (stopped_)
		return;
	lane &l = lane_of(*s->in);
	l.wait([s = std::move(s)]() mutable { s.reset(); });
}

// Its locks are passed on without this mutex: that pushes to other clients, and may end a
// connection.
void server::forget_locked(session &s)
{
	s.over = true;
	service_->recovery.ended(
		s.id); // under the mutex: later it could be a new session of the same id
	service_->done.forget(s.id);
}

void server::push_roles()
{
	const auto begun = std::chrono::steady_clock::now();
	const bool more = service_->audiences.flush();
	roles_cost_ += std::chrono::steady_clock::now() - begun;
	if (more)
		loop_.post([this] { push_roles(); });
}

void server::expire_after(std::chrono::milliseconds pause)
{
	linger_pause_.expires_after(pause);
	linger_pause_.async_wait(loop_.wrap([this](asio::error_code ec) {
		if (!ec && service_->audiences.expire())
			expire_after(linger_time / 2);
	}));
}

void server::reap()
{
	constexpr std::chrono::seconds every{1};
	reaper_.expires_after(every);
	reaper_.async_wait(loop_.wrap([this](asio::error_code ec) {
		if (ec)
			return;
		hear_the_clock();
		std::vector<std::shared_ptr<session>> dead;
		std::vector<std::shared_ptr<connection>> all;
		{
			std::lock_guard lock(mutex_);
			all.assign(connections_.begin(), connections_.end());
			const auto now = std::chrono::steady_clock::now();
			std::erase_if(sessions_, [&](auto &s) {
				if (s.second->attached ||
				    now - s.second->detached_at < settings_.session_grace)
					return false;
				dead.push_back(s.second);
				forget_locked(*s.second);
				return true;
			});
		}
		for (auto &s : dead)
			end(std::move(s));
		dead.clear();
		for (const auto &c : all)
			c->flush(); // pushes for which nothing was sent since
		end_silent(all);
		all.clear();
		lapse_all();
		service_->leases.expire();
		for (inode_ref &n : service_->replaced.expire()) {
			lane &l = lane_of(n->in);
			l.wait([n = std::move(n)]() mutable { n.reset(); });
		}
		lanes_.look();
		if (!grace_over_ &&
		    std::chrono::steady_clock::now() - started_ >= settings_.session_grace) {
			grace_over_ = true;
			for (const auto &e : service_->exports())
				lane_of(*e).wait([&in = *e] { in.unnamed().end_grace(); });
			lane_of(*service_->exports().front()).wait([this] {
				service_->done.end_grace();
			});
		}
		reap();
	}));
}

void server::drain()
{
	std::vector<std::shared_ptr<connection>> all;
	{
		std::lock_guard lock(mutex_);
		if (draining_)
			return;
		draining_ = true;
		all.assign(connections_.begin(), connections_.end());
	}
	loop_.post([this] {
		asio::error_code ec;
		acceptor_.close(ec);
		accept_pause_.cancel();
		reaper_.cancel();
	});
	for (auto &c : all)
		c->drain();
	const auto deadline = std::chrono::steady_clock::now() + drain_time;
	for (auto &c : all) {
		while (!c->ended() && std::chrono::steady_clock::now() < deadline)
			std::this_thread::sleep_for(std::chrono::milliseconds(2));
		c->shut("the daemon shuts down");
	}
	all.clear();
	loop_.stop();
	stopped_ = true;
	lanes_.drop();
	service_->audiences.on_change({}); // sessions that end later leave their audiences
	service_->audiences.on_linger({});
	service_->freeze(); // before the sessions go
	write_stats();
	service_->replaced.clear();
	service_->leases.clear(); // while the exports exist: open files of sessions refer to them
}

std::string server::stats_text() const
{
	const service_stats &s = service_->stats;
	std::string text = "coopfsd-stats 1\n";
	const auto line = [&](std::string_view key, std::uint64_t value) {
		text += fmt::format("{} {}\n", key, value);
	};
	line("served_bytes", s.read_bytes + s.inline_bytes);
	line("read_bytes", s.read_bytes);
	line("inline_bytes", s.inline_bytes);
	line("written_bytes", s.written_bytes);
	line("errors", s.errors);
	line("malformed", malformed);
	line("refused", refused);
	line("auth_failures", auth_failures);
	line("accepted", accepted);
	line("inodes", service_->inodes.size());
	line("inodes_idle", service_->inodes.idle());
	line("inodes_max", service_->inodes.capacity());
	line("opener_records", service_->openers.size());
	line("members", members_.size());
	line("audiences", service_->audiences.size());
	line("leaves", service_->audiences.leaves());
	line("lingering", service_->audiences.lingering());
	line("roles_pushed", service_->audiences.pushed);
	line("noted_holders", service_->holders.noted());
	line("noted_versions", service_->holders.versions());
	line("redirected", s.redirected);
	line("egress_saved_bytes", s.egress_saved_bytes());
	line("locks", service_->locks.held());
	line("lock_waiters", service_->locks.waiting());
	line("bundles_made", service_->bundles.count.made);
	line("bundles_used", service_->bundles.count.used);
	line("bundles_refused", service_->bundles.count.refused);
	line("bundles_voided", service_->bundles.count.voided);
	line("bundle_bytes", service_->bundles.bytes());
	line("leases", service_->leases.held());
	line("leases_granted", service_->leases.count.granted);
	line("leases_recalled", service_->leases.count.recalled);
	line("leases_unanswered", service_->leases.count.unanswered);
	line("leases_foreign_changes", service_->leases.count.foreign);
	{
		std::lock_guard lock(mutex_);
		line("connections", connections_.size());
		line("sessions", sessions_.size());
		std::size_t opens = 0;
		for (const auto &s : sessions_)
			opens += s.second->opens();
		line("opens", opens);
	}
	for (const auto &l : lanes_.all()) {
		const lane::state now = l->look();
		text += fmt::format("export_working {0} {1}\nexport_waiting {0} {2}\n"
				    "export_stuck_s {0} {3}\n",
				    l->name(), now.working, now.waiting, now.stuck.count());
	}
	for (std::uint16_t op = 0; op < COOP_ST_OP_END; op++)
		if (s.calls[op])
			text += fmt::format("calls {} {}\n", coop_st_op_name(op),
					    s.calls[op].load());
	return text;
}

void server::write_stats() const
{
	if (settings_.stats_file.empty())
		return;
	if (const int err = publish(settings_.stats_file, stats_text()))
		spdlog::error("{}: {}", settings_.stats_file, std::strerror(-err));
}

void server::log_connections() const
{
	std::lock_guard lock(mutex_);
	for (const auto &c : connections_)
		spdlog::info("connection {}", c->describe());
}

} // namespace coop::daemon
