// SPDX-License-Identifier: MIT
// fake_fabric.hpp - a libfabric whose network is a list, in place of the real one.
//
// It has one provider, of connected end points, which does what fi_endpoint(3), fi_cm(3),
// fi_rma(3) and fi_cq(3) promise and is as late as they allow: it reads memory of a send or
// write when the network takes it, it writes registered memory until its region is closed, and
// operations that a close cuts off complete with errors. It checks keys as a provider must; a
// wrong one breaks the connection.
//
// An end of a connection without an end point is the enemy's.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <netinet/in.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_rma.h>
#include <vector>

#include "rpc/fetch/engine.h"

namespace fuzz_net
{

struct fake_node;
struct fake_ep;

/// A message, a write or the request of a read in flight.
struct passage {
	bool write = false, read = false, has_word = false;
	u64 word = 0, address = 0, key = 0;
	std::vector<u8> bytes;
	std::vector<iovec> pieces; // read when it leaves; of a read: written when it arrives
	void *context = nullptr;
};

struct connection {
	struct end {
		fake_ep *ep = nullptr;
		bool open = false;
		std::deque<passage> out;
	};
	std::array<end, 2> ends; // 0: the side that asked for it
	sockaddr_in from{}, to{};
	std::vector<u8> asked, answered; // the texts of the handshake
	bool pending = true;             // neither accepted nor refused
	bool queued = false;             // an event names it
	/// The handle from which an accepting end point is made.
	fid as_handle{};
};

struct fake_network {
	std::map<std::pair<u32, u16>, fake_node *> listeners; // host order
	std::vector<std::shared_ptr<connection>> connections;
	/// Called when something reaches the enemy, or a connection to it is requested.
	std::function<void(connection &, unsigned side, const passage &)> to_enemy;
	u32 enemy_ip = 0;
	unsigned refuse = 0; // calls that the provider refuses for want of room
	bool ordered = true, wide = true, reads = true;
	std::size_t lockable = ~std::size_t{0}; // bytes of a region that can be registered
	std::atomic<unsigned> registered{0};    // regions so far
	u32 foreign_ip = 0;                     // no device has it
	u32 out_of_reach = 0;                   // the device has no way to it
	/// The device was removed; a listener is told once for each `tell_gone`.
	std::atomic<bool> gone{false};
	std::atomic<unsigned> tell_gone{0};

	std::shared_ptr<connection> connect(const sockaddr_in &from, const sockaddr_in &to,
					    std::vector<u8> text, fake_ep *ep);
	/// Moves the next item from this side. False: there is none, or it must wait.
	bool move(connection &, unsigned side);
	/// By one end: what it has not sent is lost, and the other end is told.
	void hang_up(connection &, unsigned side);
	/// By the network: both ends are told.
	void break_off(connection &);
	/// The enemy's answers to a requested connection.
	void take_up(connection &, std::vector<u8> text);
	void turn_down(connection &);
	void forget_dead();

private:
	void serve(connection &, unsigned side, const passage &);
};

/// The one behind fi_getinfo() and fi_fabric().
extern fake_network *the_fabric;

} // namespace fuzz_net
