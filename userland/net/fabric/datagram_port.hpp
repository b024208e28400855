// SPDX-License-Identifier: MIT
// datagram_port.hpp - links over one reliable-datagram end point (FI_EP_RDM): psm3, efa, opx,
// ofi_rxm.
//
// Such providers do not report when a peer appears or dies, and their addresses are their own. So
// each link has a TCP connection beside it, from IP address to IP address, on the ports of our
// addresses. Over it the two sides exchange their greetings and the names of their end points; its
// end is the end of the link. No message follows the greeting there.
//
// Nor can such a provider end what is under way with one peer: a write that this side has posted,
// or one that the peer has, may touch memory at any later time. If a link ends in the middle of a
// transfer, the whole end point is closed and another one is opened, and all other links end too.
#pragma once

#include <list>
#include <map>
#include <string>

#include "coop/unique_fd.hpp"
#include "objects.hpp"
#include "port.hpp"

namespace coop::net::fabric
{

class datagram_port final : public port
{
public:
	using port::port;
	~datagram_port() override { shut(); }

	int prepare(const address &own, events &) override;
	int start(const address &own) override;
	fid_domain &domain() override { return *base_.domain; }
	fid_cq &queue() override { return *base_.queue; }
	fid_ep &receiver() override { return *ep_; }
	void catch_up(link &) override;
	void close(link &) override;
	bool shares() const override { return true; }
	void shut() override;
	int reopen() override;
	unsigned poll() override;
	bool arm() override;
	bool wakes() const override { return wakes_; }
	int fd() const override { return epoll_.get(); }
	time_point deadline() const override;
	void expire(time_point now) override;

	/// A greeting on the wire: the hello, the length of the name (2 bytes), the name.
	static constexpr std::size_t name_most = 256, head = hello::size + 2;

private:
	struct half : search {
		unique_fd socket;
		fabric::link *link = nullptr; ///< null: a stranger, who has not sent a greeting
		bool greets = false;          ///< the connection is established, ours is sent
		std::string heard;            ///< of the greeting, so far
		std::string name;             ///< of the peer's end point; empty: not yet
	};

	int attempt(link &) override;
	void abandon(link &) override;
	std::unique_ptr<search> make_search() const override { return std::make_unique<half>(); }

	int watch(int fd, void *what, std::uint32_t events);
	void forget(half &);
	void accept_all();
	void mind_listener();
	void drop_stranger(half &);
	int greet(half &);
	void react(half &);
	void connected(half &);
	void heard(half &);
	void answered(half &, const hello &);
	void asked(half &, const hello &);
	int receive(half &, hello &);
	bool pair(half &, const address &);

	address own_address_;
	info_ptr info_; // for our IP address, if the provider has those
	objects base_;
	handle<fid_av> table_;
	handle<fid_ep> ep_;
	std::string name_; // of the end point
	bool wakes_ = false;
	unique_fd epoll_, listener_;
	bool listening_ = false;
	time_point deaf_until_ = never; ///< for lack of a descriptor; never: it is not
	std::list<std::unique_ptr<half>> strangers_;
	/// Addresses in the table, by name, and how many links use each.
	std::map<std::string, std::pair<fi_addr_t, unsigned>> names_;
	time_point look_at_ = never; ///< for completions, while a thread sleeps
};

} // namespace coop::net::fabric
