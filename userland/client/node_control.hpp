// SPDX-License-Identifier: MIT
// node_control.hpp - the public queue pair of a node, over which requests, commits
// and queries go.
//
// Anybody on the fabric can send to it, so it can be killed by a datagram that is
// longer than its work request; ours take any datagram, and should it die all the
// same it recycles itself: all WRs flushed, RESET, ready, posted anew, with the
// same number. What was lost meanwhile is asked for again by the protocol.
#pragma once

#include <cstdint>
#include <vector>

#include "userland/client/node_memory.hpp"
#include "userland/ud/endpoint.hpp"

namespace coop::client
{

class node_control
{
public:
	node_control(ud::endpoint &, const node_memory &, std::uint32_t qkey);
	std::uint32_t qp() const { return qp_; }
	ud::address self() const;
	// Copies the message; it leaves at the endpoint's flush(). Drops it when too many are
	// unsent: loss is normal.
	void send(const ud::address &dst, const void *message, std::uint32_t length);
	// The message of a successful receive; take() its buffer back when it was read.
	const std::byte *message(const ud::completion &c) const
	{
		return memory_.control_recv(static_cast<std::size_t>(c.wr_id));
	}
	void take(const ud::completion &); // any completion of this queue pair
	void repost();                     // after a batch of completions

private:
	void post(const std::vector<std::uint32_t> &buffers);

	ud::endpoint &endpoint_;
	const node_memory &memory_;
	std::uint32_t qp_;
	std::uint32_t mtu_;
	std::uint32_t posted_ = 0; // receive WRs in the queue pair
	bool dead_ = false;
	std::vector<std::uint32_t> back_;   // receive buffers to post again
	std::vector<std::uint32_t> unsent_; // send buffers that are free
};

} // namespace coop::client
