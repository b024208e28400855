// SPDX-License-Identifier: MIT
// mount.cpp - builds the parts from the options: storage first (it has the fabric key), then the
// page store, the end point and its node, then the registration, by which the daemon reports this
// node to others.
#include "userland/client/mount.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <chrono>
#include <netdb.h>
#include <netinet/in.h>
#include <stdexcept>
#include <sys/socket.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "rpc/base/addr.h"
#include "userland/ud/endpoint.hpp"

namespace coop::client
{

namespace
{

constexpr std::chrono::seconds address_wait{5}; // for one still held by an exiting mount
// Limits of the bytes of writes kept until storage has them on its disk: a quarter of cache_size,
// within these bounds.
constexpr std::uint64_t keep_min = 16ull << 20, keep_max = 256ull << 20;
constexpr std::size_t ahead_most = 64u << 20; // bytes of the page store that wait for their use

// The source address that the routing table chooses for packets to the server.
std::string local_address_towards(const mount_options &o)
{
	addrinfo hints{};
	hints.ai_socktype = SOCK_DGRAM;
	addrinfo *list = nullptr;
	int err = getaddrinfo(o.server.c_str(), std::to_string(o.port).c_str(), &hints, &list);
	if (err)
		throw std::runtime_error(
			fmt::format("server '{}': {}", o.server, gai_strerror(err)));
	std::unique_ptr<addrinfo, void (*)(addrinfo *)> owned(list, freeaddrinfo);
	for (addrinfo *a = list; a; a = a->ai_next) {
		int s = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		if (s < 0)
			continue;
		sockaddr_storage self{};
		socklen_t length = sizeof(self);
		bool found = connect(s, a->ai_addr, a->ai_addrlen) == 0 &&
			     getsockname(s, reinterpret_cast<sockaddr *>(&self), &length) == 0;
		close(s);
		char text[NI_MAXHOST];
		if (found && getnameinfo(reinterpret_cast<sockaddr *>(&self), length, text,
					 sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0)
			return text;
	}
	throw std::runtime_error(
		fmt::format("no route to the server '{}': give option addr=", o.server));
}

bool is_loopback(const std::string &ip)
{
	in_addr v4;
	in6_addr v6;
	if (inet_pton(AF_INET, ip.c_str(), &v4) == 1)
		return ntohl(v4.s_addr) >> 24 == IN_LOOPBACKNET;
	return inet_pton(AF_INET6, ip.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

std::unique_ptr<ud::endpoint> make_endpoint(const mount_options &o)
{
	if (!o.ib_devname.empty()) {
		ud::verbs_options v;
		v.device = o.ib_devname;
		v.port = static_cast<std::uint8_t>(o.ib_port);
		v.gid_index = o.ib_gid;
		v.sl = static_cast<std::uint8_t>(o.ib_sl);
		v.traffic_class = static_cast<std::uint8_t>(o.ib_tclass);
		v.mtu = o.ib_mtu;
		return ud::make_verbs(v);
	}
	ud::soft_roce_options s;
	s.traffic_class = static_cast<std::uint8_t>(o.ib_tclass);
	s.ip = o.addr.empty() ? local_address_towards(o) : o.addr;
	if (o.key.empty() && !is_loopback(s.ip))
		throw std::runtime_error(fmt::format(
			"{}: without a cluster key a node keeps to loopback, as the daemon does: "
			"leave addr= out, or give key=FILE, also to the daemon",
			s.ip));
	if (o.ib_mtu)
		s.mtu = o.ib_mtu;
	// A mount that was just unmounted releases its address when its process exits.
	const auto limit = std::chrono::steady_clock::now() + address_wait;
	for (bool said = false;; std::this_thread::sleep_for(std::chrono::milliseconds(50))) {
		try {
			return ud::make_soft_roce(s);
		} catch (const std::system_error &e) {
			if (e.code().value() != EADDRINUSE ||
			    std::chrono::steady_clock::now() > limit)
				throw;
		}
		if (!std::exchange(said, true))
			spdlog::info("address {} is in use; waiting for it, at most {} s", s.ip,
				     address_wait.count());
	}
}

page_store::copies copies_of(const mount_options &o)
{
	using copies = page_store::copies;
	switch (o.keep_copies) {
	case mount_options::copies::always:
		return copies::keep;
	case mount_options::copies::automatic:
		return o.ib ? copies::spare : copies::drop;
	case mount_options::copies::never:
		break;
	}
	return o.ib ? copies::prove : copies::drop;
}

// What this node can send to others, megabits a second; 0: unknown.
std::uint32_t own_rate(std::uint32_t link, std::uint32_t limit)
{
	return link && limit ? std::min(link, limit) : std::max(link, limit);
}

// Memory that no process uses.
std::size_t idle_memory()
{
	const long pages = ::sysconf(_SC_AVPHYS_PAGES);
	return pages > 0 ? static_cast<std::size_t>(pages) *
				   static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))
			 : 0;
}

} // namespace

mount::mount(const mount_options &o, inode_events events) : options_(o)
{
	try {
		start(std::move(events));
	} catch (...) {
		end();
		throw;
	}
}

void mount::start(inode_events events)
{
	const mount_options &o = options_;
	storage_options s;
	s.server = o.server;
	s.port = o.port;
	s.export_name = o.export_name;
	s.key_file = o.key;
	s.leases = !o.nolease;
	s.on_lease_over = [this](const coop_fid &file, std::function<void()> then) {
		inode_table *const inodes = inodes_for_leases_;
		inodes ? inodes->lease_over(file, std::move(then)) : then();
	};
	s.on_locks_in_doubt = [this](const std::function<bool(const handle &)> &locked) {
		if (inode_table *const inodes = inodes_for_leases_)
			inodes->locks_in_doubt(locked);
	};
	s.on_lock_lost = [this](const handle &fh) {
		if (inode_table *const inodes = inodes_for_leases_)
			inodes->lock_lost(fh);
	};
	s.on_node = [this](const node_event &e) { on_node(e); };
	s.on_fabric_key = [this](const std::array<std::uint8_t, 16> &key) {
		if (client::node *const n = node_for_events_)
			n->rekey(key);
	};
	if (o.ib && o.tree) {
		s.on_roles = [this](const file_roles &r) { membership_.on_roles(r); };
		s.on_lost = [this] { membership_.on_lost(); };
		if (o.bundles && s.leases)
			s.bundles = bundles_ = std::make_shared<bundle_fetch>(membership_);
	}
	storage_ = storage::connect(s);
	pages_ = page_store::create(o.cache_size, COOP_PAGE_MIN_SHIFT,
				    std::min(ahead_most, idle_memory() / 4));
	pages_->set_copies(copies_of(o));
	if (o.ib)
		start_node();
	// After the node, which may have registered the memory with a device: then all of it stays.
	if (!pages_->keeps_memory())
		keeper_ = std::make_unique<memory_keeper>(*pages_);
	reader_ = reader::create({o.readahead, o.ra_async, o.wait_timeout_ms}, *pages_, node_.get(),
				 *storage_, o.tree ? &membership_ : nullptr);
	if (bundles_)
		bundles_->start(*reader_, *pages_);
	inodes_ = std::make_unique<inode_table>(*pages_, std::move(events));
	inodes_for_leases_ = inodes_.get();
	{
		const std::lock_guard lock(relay_mutex_);
		reader_for_peers_ = reader_.get();
	}
	files_ = std::make_unique<client::files>(
		*storage_, *pages_, *reader_, *inodes_, membership_,
		commit_options{std::clamp(o.cache_size / 4, keep_min, keep_max),
			       o.commit_on_close});
}

// Order: the reader waits for its loads, which the node and storage still complete; storage reports
// late replies to changes to the inodes.
void mount::end()
{
	node_for_events_ = nullptr;
	inodes_for_leases_ = nullptr;
	{
		const std::lock_guard lock(relay_mutex_);
		reader_for_peers_ = nullptr;
	}
	{
		const std::lock_guard lock(self_mutex_);
		registered_ = false;
	}
	files_.reset();
	if (bundles_)
		bundles_->stop();
	reader_.reset();
	storage_.reset();
	inodes_.reset();
	node_.reset();
	kernel_loads_.reset();
	keeper_.reset();
	pages_.reset();
}

void mount::start_node()
{
	std::unique_ptr<ud::endpoint> endpoint;
	std::uint32_t mbps = 0;
	try {
		endpoint = make_endpoint(options_);
		mbps = own_rate(endpoint->info().mbps, options_.serve_mbps);
		endpoint_name_ = endpoint->info().name;
		node_options n;
		n.num_rrpc = options_.ib_num_rrpc;
		n.num_srpc = options_.ib_num_srpc;
		n.peer_timeout_ms = options_.peer_timeout_ms;
		n.qkey = options_.ib_qkey;
		n.serve_bytes_s = options_.serve_mbps * 125000;
		n.page_crc = options_.page_crc;
		n.page_mac = options_.page_mac;
		n.fabric_key = storage_->fabric_key();
		if (options_.forward)
			n.on_wanted = [this](const wanted_pages &w) {
				const std::lock_guard lock(relay_mutex_);
				if (reader_for_peers_ != nullptr)
					reader_for_peers_->relay(w);
			};
		if (options_.keep_copies != mount_options::copies::always) {
			kernel_loads_ = std::make_unique<client::kernel_loads>(
				*pages_, [this](const coop_fid &fid, std::uint64_t offset,
						std::uint32_t length, std::uint64_t cookie) {
					return inodes_->retrieve(fid, offset, length, cookie);
				});
			n.on_retrieve = [this](const wanted_pages &w) {
				const std::lock_guard lock(relay_mutex_);
				if (reader_for_peers_ != nullptr)
					kernel_loads_->begin(w);
			};
		}
		if (options_.tree) {
			n.others = [this](const content_key &key, std::uint64_t block) {
				return membership_.others(key, block);
			};
			n.on_offered = [this](const offered_pages &o) {
				const std::lock_guard lock(relay_mutex_);
				if (reader_for_peers_ != nullptr)
					reader_for_peers_->take(o);
			};
		}
		n.on_self = [this](const coop_addr *a) { on_self(a); };
		node_ = std::make_unique<client::node>(n, std::move(endpoint), *pages_);
	} catch (const std::exception &e) {
		throw std::runtime_error(fmt::format(
			"option 'ib{}': no endpoint for peers: {}",
			options_.ib_devname.empty() ? "" : ",ib_devname=" + options_.ib_devname,
			e.what()));
	}
	node_for_events_ = node_.get();
	node_->rekey(storage_->fabric_key()); // it may have changed before that line
	const coop_addr first = node_->self();
	node_id_ = storage_->register_node(first, {options_.forward, mbps});
	if (!node_id_)
		throw std::runtime_error("the storage daemon refused to register this node");
	// If the address has changed before this line, or the port went down, the daemon has not
	// been told.
	const coop_addr self = node_->self();
	const bool up = node_->endpoint_state().port_up;
	const std::lock_guard lock(self_mutex_);
	registered_ = true;
	if (!up)
		storage_->withdraw_node();
	else if (!coop_addr_same(&self, &first))
		storage_->update_node(self);
}

void mount::on_self(const coop_addr *self)
{
	const std::lock_guard lock(self_mutex_);
	if (!registered_)
		return;
	if (self) {
		storage_->update_node(*self);
	} else {
		storage_->withdraw_node();
		membership_.on_lost(); // as far as the daemon is concerned it is a member no more
	}
}

void mount::on_node(const node_event &e)
{
	client::node *n = node_for_events_;
	if (!n)
		return;
	if (e.joined)
		n->daemon_join(e.node, e.addr);
	else
		n->daemon_leave(e.node);
	spdlog::debug("node {} {}", e.node, e.joined ? "joined" : "left");
}

} // namespace coop::client
