// SPDX-License-Identifier: MIT
// channels.hpp - the two queue pairs that rpc/chan speaks through, and the memory of their
// work requests.
//
// A receive WR takes a datagram into a slot of its own; what is longer than the slot runs on
// into scrap, so that no datagram can be too long for its WR. A send is a head, copied into a
// slot, and the pieces of the payload where they lie. Sends to one queue pair are collected
// and posted together.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "pages.hpp"
#include "rpc/chan/chan.h"
#include "slab.hpp"
#include "userland/net/memory.hpp"
#include "userland/ud/endpoint.hpp"

namespace coop::net::ud
{

class channels
{
public:
	static constexpr std::uint32_t credits = 192; ///< sends of rpc/chan, posted at most
	static constexpr std::uint32_t controls = 64; ///< of send_control()
	static constexpr std::uint32_t recvs = 256;   ///< posted on the command channel; data: 2x

	/// Reserves memory; nothing may be called before make().
	/// `direct`: work requests may name any memory, and not only the slab and what has keys.
	channels(coop::ud::endpoint &, slab &, std::uint32_t qkey, bool direct);
	/// Creates the queue pairs and posts. @throw std::system_error.
	void make();

	std::uint32_t qp(std::uint32_t channel) const { return line_[channel].qp; }
	/// Payload bytes of a datagram.
	std::uint32_t mtu(std::uint32_t channel) const { return line_[channel].mtu; }
	/// Addresses of both, as peers need them.
	coop_chan_peer_addr self() const;

	/// What lies in the slot of a successful receive.
	const std::byte *data(std::uint32_t channel, const coop::ud::completion &c) const
	{
		return slots_.at(line_[channel].recv_at + c.wr_id * line_[channel].slot);
	}
	/// Takes the slot of a receive back, or ends a send. True: the send of `id` is over.
	bool take(std::uint32_t channel, const coop::ud::completion &, std::uint32_t &id,
		  bool &good);
	/// Posts the slots that have come back.
	void repost();

	/// A send that is over.
	struct over {
		std::uint32_t channel, id;
		bool good;
	};
	/// Collects a datagram of rpc/chan, posting what must go before. `payload`: of the whole
	/// message.
	void add(const coop_chan_tx &, const keyed_memory *payload);
	/// Posts what was collected.
	void post();
	/// What has been over since the last call, in `out`.
	bool take_over(std::vector<over> &out)
	{
		out.clear();
		out.swap(over_);
		return !out.empty();
	}
	/// A datagram that is no part of rpc/chan, by the command channel: copied, sent with
	/// the others. Dropped when there is no room.
	void send_control(const coop_addr &to, const void *data, std::uint32_t length);

	/// The network takes it from where it lies, and puts it there.
	bool direct(const keyed_memory &m) const { return direct_ || !m.keys.empty(); }
	/// Where GRHs go, and the ends of what is too long: MTU bytes.
	std::byte *grh() const { return slots_.at(grh_at_); }
	std::byte *scrap() const { return slots_.at(scrap_at_); }

private:
	static constexpr std::uint32_t most_sge = 16, batch = 32;
	static constexpr std::uint32_t head_room = 128;
	static constexpr std::uint32_t inline_bytes =
		256; // a head and some; every ACK but the longest
	static_assert(head_room >= COOP_CHAN_HEADER_MOST);
	static constexpr std::uint32_t sends = credits + controls;
	static constexpr std::uint32_t control = 0xffffffff; // id of send_control()

	struct line {
		std::uint32_t qp = 0, mtu = 0, slot = 0, n_recv = 0;
		std::size_t recv_at = 0, send_at = 0, send_slot = 0;
		std::uint32_t posted = 0;
		bool dead = false;
		std::vector<std::uint32_t> back, free; // receive slots to post; send slots
		std::vector<std::uint32_t> id;         // by send slot
	};
	struct collected {
		std::uint32_t slot, id, n_sge;
	};

	void create(line &);
	void post_recvs(line &);
	void recycle(line &);
	bool full(const coop_chan_tx &next) const;

	coop::ud::endpoint &endpoint_;
	slab &slots_;
	std::array<line, COOP_CHAN_CHANNELS> line_;
	std::size_t grh_at_, scrap_at_;
	const std::uint32_t qkey_;
	const bool direct_;
	bool copies_ = false;
	std::uint32_t controls_ = 0; // posted

	std::uint32_t channel_ = 0, n_ = 0; // of what is collected
	coop_addr to_{};
	std::array<collected, batch> what_;
	std::vector<over> over_;
	std::array<std::array<coop::ud::sge, most_sge>, batch> sges_;
};

} // namespace coop::net::ud
