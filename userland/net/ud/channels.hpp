// SPDX-License-Identifier: MIT
// channels.hpp - the two queue pairs of rpc/chan.
//
// A send is a head, copied into a slot, and the pieces of the payload in place. Sends to one queue
// pair are collected and posted together. Owns the queue pairs and the sends that are collected.
// Used under the lock of the machine.
#pragma once

#include <array>
#include <vector>

#include "pages.hpp"
#include "rpc/chan/chan.h"
#include "userland/fetch-host/message_qp.hpp"
#include "userland/net/memory.hpp"

namespace coop::net::ud
{

using fetch_host::message_qp;

class channels
{
public:
	static constexpr std::uint32_t credits = 192; ///< sends of rpc/chan, posted at most
	static constexpr std::uint32_t controls = 64; ///< of other messages
	static constexpr std::uint32_t recvs = 256;   ///< posted on the command channel; data: 2x

	/// Reserves memory; nothing may be called before make().
	/// `direct`: work requests may name any memory, not only the slab and memory with keys.
	channels(coop::ud::endpoint &, fetch_host::slab &, std::uint32_t qkey, bool direct);
	/// Creates the queue pairs and posts. @throw std::system_error.
	void make();

	/// The command channel carries the control messages of rpc/fetch as well.
	message_qp &line(std::uint32_t channel) { return line_[channel]; }
	/// Payload bytes of a datagram.
	std::uint32_t mtu(std::uint32_t channel) const { return line_[channel].bytes(); }
	/// Addresses of both, as peers need them.
	coop_chan_peer_addr self() const;
	/// Posts the receive slots that are free again.
	void repost();

	/// A send that is over.
	struct over {
		std::uint32_t channel, id;
		bool good;
	};
	/// Collects a datagram of rpc/chan, and posts what must go first. `payload`: of the whole
	/// message.
	void add(const coop_chan_tx &, const keyed_memory *payload);
	/// Posts the collected datagrams.
	void post();
	/// The sends that ended since the last call, in `out`.
	bool take_over(std::vector<over> &out)
	{
		out.clear();
		out.swap(over_);
		return !out.empty();
	}

	/// The network reads and writes it in place.
	bool direct(const keyed_memory &m) const { return direct_ || !m.keys.empty(); }

private:
	static constexpr std::uint32_t most_sge = 16, batch = 32;
	static constexpr std::uint32_t head_room = 128;
	static constexpr std::uint32_t inline_bytes =
		256; // a head and some; every ACK but the longest
	static_assert(head_room >= COOP_CHAN_HEADER_MOST);

	struct collected {
		std::uint32_t slot, id, n_sge;
	};

	static message_qp::shape shape(std::uint32_t channel, const coop::ud::endpoint_info &device,
				       std::uint32_t qkey);
	bool full(const coop_chan_tx &next) const;

	coop::ud::endpoint &endpoint_;
	std::array<message_qp, COOP_CHAN_CHANNELS> line_;
	const std::uint32_t entries_; // of a work request
	const bool direct_;

	std::uint32_t channel_ = 0, n_ = 0; // of what is collected
	coop_addr to_{};
	std::array<collected, batch> what_;
	std::vector<over> over_;
	std::array<std::array<coop::ud::sge, most_sge>, batch> sges_;
};

} // namespace coop::net::ud
