// SPDX-License-Identifier: MIT
// ends.cpp - how a bridge's link comes up and ends, and what it tells of itself; see bridge.hpp.
#include <cerrno>
#include <cstdio>
#include <random>
#include <system_error>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "userland/ntrdma/ether/bridge.hpp"
#include "userland/ntrdma/window/greeting.hpp"

namespace coop::ntrdma
{

namespace
{

constexpr std::chrono::seconds asker_patience{2};

unique_fd new_bell()
{
	unique_fd fd{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
	if (!fd)
		throw std::system_error{errno, std::generic_category(), "eventfd"};
	return fd;
}

} // namespace

bridge::bridge(const bridge_options &o) :
	options_{o},
	tap_{o.interface},
	bell_{new_bell()},
	epoll_{epoll_create1(EPOLL_CLOEXEC)},
	meeting_{o.path, bell_.get(), o.interface.mtu}
{
	if (!epoll_)
		throw std::system_error{errno, std::generic_category(), "epoll_create"};
	// Nobody reads the doorbell: each ring is an edge.
	watch(bell_.get(), EPOLLIN | EPOLLET, true);
	watch(tap_.fd(), EPOLLIN, true);
	watch(tap_.changes(), EPOLLIN);
	unsigned first = std::random_device{}() % slots;
	for (unsigned i = 0; i < slots && !slot_; i++) {
		slot_number_ = (first + i) % slots;
		slot_ = listen_at(slot_name(slot_number_));
	}
	tend();
}

bridge::~bridge()
{
	if (link_)
		link_->pipe->end(link_word::closed);
}

/// Takes every step that does not move frames.
void bridge::tend()
{
	if (link_) {
		char byte;
		ssize_t n = recv(link_->peer.socket.get(), &byte, 1, MSG_DONTWAIT);
		if (n >= 0 || (errno != EAGAIN && errno != EINTR))
			peer_ended();
	}
	acquaintance met;
	pid_t linked = !link_ ? 0 : link_->peer.peer ? link_->peer.peer : -1;
	if (meeting_.step(linked, &met)) {
		watch(met.socket.get(), EPOLLIN | EPOLLRDHUP);
		link_ = std::make_unique<link>();
		link &l = *link_;
		l.peer = std::move(met);
		l.port = std::make_unique<window_port>(std::move(l.peer.memory), l.peer.side,
						       std::move(l.peer.bell), l.peer.peer,
						       unique_fd{}, false, [] {});
		l.pipe.emplace(*l.port, l.peer.streams->side(l.peer.side),
			       l.peer.streams->side(1 - l.peer.side));
		l.asked = clock::now();
		blocked_ = full_ = false;
		counts_.links++;
		l.pipe->say_up(wanted_);
		std::printf("%s: linked with process %d at %s\n", tap_.name().c_str(), l.peer.peer,
			    meeting_.path().c_str());
		if (l.peer.mtu != tap_.mtu())
			std::printf(
				"%s: its MTU is %u, the peer's is %u: give both the same (--mtu)\n",
				tap_.name().c_str(), tap_.mtu(), l.peer.mtu);
		std::fflush(stdout);
	}
	// Of these the edge is enough: each step takes all that is there.
	watch(meeting_.listener(), EPOLLIN | EPOLLET);
	watch(meeting_.talk(), EPOLLIN);
	follow();
	answer_askers();
	watch(slot_.get(), EPOLLIN | EPOLLET);
	watch(asker_.get(), EPOLLIN);
}

/// Asks for signs of life while the peer has something to take, and ends a silent link.
void bridge::beat(clock::time_point now)
{
	link &l = *link_;
	if (l.asking && l.pipe->answered()) {
		l.asking = false;
		l.asked = now;
	}
	if (l.asking) {
		if (now - l.asked >= options_.bound)
			lose("no sign of life for " + std::to_string(options_.bound.count()) +
			     " ms");
	} else if (!l.pipe->outstanding()) {
		l.asked = now;
	} else if (now - l.asked >= options_.bound / 4) {
		l.asking = true;
		l.asked = now;
		l.pipe->ask();
	}
}

/// The peer's word or its connection says that it is done: what it had stored, it had sent.
void bridge::peer_ended()
{
	auto word = static_cast<link_word>(link_->port->in().word.load(std::memory_order_acquire));
	if (link_->pipe->look())
		while (link_ && pump_in())
			;
	if (!link_)
		return;
	if (word == link_word::failed) {
		lose("the peer gave it up");
	} else if (word != link_word::closed) {
		lose("the peer died");
	} else {
		std::printf("%s: the peer left\n", tap_.name().c_str());
		std::fflush(stdout);
		link_->pipe->end(link_word::closed);
		drop_link();
	}
}

/// Ends the link otherwise than in good order. False: there is nothing more to do for it.
bool bridge::lose(const std::string &why)
{
	std::printf("%s: link lost: %s\n", tap_.name().c_str(), why.c_str());
	std::fflush(stdout);
	link_->pipe->end(link_word::failed);
	counts_.lost++;
	drop_link();
	return false;
}

void bridge::drop_link()
{
	counts_.abandoned += link_->pipe->outstanding();
	link_.reset();
	blocked_ = full_ = false;
	follow();
}

/// The carrier follows the link and the peer's interface; the peer is told of the own one.
void bridge::follow()
{
	tap_.changes_seen();
	bool wanted = tap_.wanted();
	if (wanted != wanted_ && link_)
		link_->pipe->say_up(wanted);
	wanted_ = wanted;
	bool carrier = link_ && link_->pipe->peer_up();
	if (carrier != carrier_)
		tap_.set_carrier(carrier);
	carrier_ = carrier;
}

void bridge::answer_askers()
{
	while (true) {
		if (!asker_ && slot_) {
			asker_ = unique_fd{accept4(slot_.get(), nullptr, nullptr,
						   SOCK_CLOEXEC | SOCK_NONBLOCK)};
			asker_since_ = clock::now();
		}
		if (!asker_)
			return;
		greeting g;
		std::vector<unique_fd> fds;
		bool own = process_behind(asker_.get());
		int rc = own ? receive_greeting(asker_.get(), &g, &fds) : -1;
		if (!rc && clock::now() - asker_since_ < asker_patience)
			return;
		if (rc > 0 && g.kind == greeting_kind::ask) {
			std::string text = describe();
			send(asker_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
		}
		asker_ = unique_fd{};
	}
}

std::string bridge::describe() const
{
	const bridge_counts &c = counts_;
	nlohmann::json ether = {
		{"interface", tap_.name()},
		{"path", meeting_.path()},
		{"mtu", tap_.mtu()},
		{"carrier", carrier_},
		{"link", link_                      ? "up"
			 : meeting_.listener() >= 0 ? "awaiting"
						    : "calling"},
		{"peer_pid", link_ ? link_->peer.peer : 0},
		{"peer_mtu", link_ ? link_->peer.mtu : 0},
		{"stopped", blocked_},
		{"send",
		 {{"outstanding", link_ ? link_->pipe->outstanding() : 0},
		  {"outstanding_bytes", link_ ? link_->pipe->outstanding_bytes() : 0},
		  {"credits", link_ ? link_->pipe->credits() : 0}}},
		{"sent", c.sent},
		{"sent_bytes", c.sent_bytes},
		{"received", c.received},
		{"received_bytes", c.received_bytes},
		{"stops", c.stops},
		{"links", c.links},
		{"errors",
		 {{"lost", c.lost},
		  {"abandoned", c.abandoned},
		  {"refused", c.refused},
		  {"down", c.down}}},
	};
	nlohmann::json all = {{"pid", getpid()},
			      {"program", "coop-verbs"},
			      {"slot", slot_number_},
			      {"regions", 0},
			      {"bound_ms", options_.bound.count()},
			      {"pairs", nlohmann::json::array()},
			      {"not_shown", 0},
			      {"ethernet", std::move(ether)}};
	return all.dump() + "\n";
}

} // namespace coop::ntrdma
