// SPDX-License-Identifier: MIT
// fabric_enemy.hpp - a peer of the fabric transport that sends anything.
//
// It connects like every peer, through the transport's own ports, and then talks to libfabric
// itself. It keeps what it hears, to use it in what it says.
#pragma once

#include <deque>
#include <vector>

#include "userland/net/fabric/port.hpp"

namespace conformance
{

namespace net = coop::net;

class fabric_enemy final : private net::fabric::port::events
{
public:
	/// `polled`: what its port learns. @throw std::system_error.
	fabric_enemy(const std::string &provider, const net::address &own, bool polled = false);
	~fabric_enemy();

	/// The greeting that it sends when it connects or accepts.
	net::fabric::hello greeting_of(const net::address &to) const;
	/// @return whether a link came up in time.
	bool connect(const net::address &, const net::fabric::hello &);
	/// Takes what has arrived; lets others connect.
	void look();

	/// False: it cannot be sent now.
	bool say(std::uint64_t word, std::span<const std::byte> text);
	bool say(net::fabric::control);
	/// Writes with a key, at an address; if `word` is not 0, with that word.
	void write(net::fabric::region to, std::size_t length, std::uint64_t word);

	/// False: it takes nothing from the wire beyond its posted receives.
	bool reads = true;
	/// Readable when look() has something to do.
	int fd() const { return port_->fd(); }
	bool arm() { return port_->arm(); }
	net::time_point deadline() const { return port_->deadline(); }
	bool linked() const { return link_ && link_->ready(); }
	const net::fabric::link &link() const { return *link_; }
	/// The peer's messages, in order.
	std::deque<net::fabric::control> heard;

private:
	bool mute() const override { return false; }
	net::fabric::link *admit(const net::fabric::hello &) override;
	net::fabric::hello greeting(const net::fabric::link &) const override { return hello_; }
	void linked(net::fabric::link &l) override { l.state = net::fabric::link::state::ready; }
	bool accept(net::fabric::link &, const net::fabric::hello &) override;
	void unlinked(net::fabric::link &l, int) override
	{
		l.state = net::fabric::link::state::dying;
	}
	net::time_point now() override { return net::clock::now(); }
	bool polled() const override { return polled_; }
	void post(net::fabric::bounce &);
	void post_unread();

	static constexpr std::size_t text_most = 1u << 15;

	const net::fabric::provider provider_;
	const net::address own_;
	const bool polled_;
	net::fabric::hello hello_;
	std::deque<net::fabric::bounce> receives_, sends_;
	std::vector<net::fabric::bounce *> unread_;
	std::unique_ptr<net::fabric::link> link_;
	std::unique_ptr<net::fabric::port> port_;
};

} // namespace conformance
