// SPDX-License-Identifier: MIT
// inbox.hpp - messages that arrive.
//
// Owns a record for each message between its first datagram and its end at rpc/chan. The memory is
// written by this code, not by the network, so a receive buffer can be returned at any time:
// what still arrives for it is dropped. So messages that have stopped halfway lose their places
// when one that arrives finds none. Used under the lock of the machine.
#pragma once

#include <array>
#include <vector>

#include "chan_engine.hpp"
#include "outbox.hpp"

namespace coop::net::ud
{

class inbox
{
public:
	inbox(const options &, operations &, peers &, outbox &, chan_engine &, spi::sink &);

	/// A message begins: accepts or refuses it. @return whether to call copy().
	bool accept(coop_chan_in &, const std::byte *datagram, const coop_addr &from,
		    std::uint64_t now);
	/// Takes the bytes of a datagram. @return whether they completed a program's message, which
	/// has been delivered.
	bool copy(const coop_chan_in &, const std::byte *datagram, std::uint64_t now);
	/// rpc/chan is done with a message. @return the text of a complete bulk message, valid
	/// until the next accept(), and its sender; else null.
	const std::uint8_t *over(std::uint32_t index, bool whole, spi::peer_number &from);
	/// Abandons all messages for this receive buffer.
	void give_back(spi::token, std::uint64_t now);

private:
	static constexpr std::uint32_t none = token_map::none;
	/// A sender that lives repeats what is lost at least every second (rpc/chan's rto_max_us).
	static constexpr std::uint64_t halfway_us = 2000000;

	struct arrival {
		spi::landing landing;
		spi::peer_number from = spi::no_peer;
		bool bulk = false;
		bool told = false;   // delivered or abandoned; what still comes is dropped
		bool listed = false; // more of it is to come: in the list of its buffer
		std::uint32_t before = none, after = none;          // in that list
		std::uint32_t older = none, newer = none;           // among all that are listed
		std::uint64_t came_at = 0;                          // the last part of it
		std::uint32_t receive = 0;                          // at rpc/chan
		std::array<std::uint8_t, bulk_message::bytes> text; // bulk
	};

	bool crowded(const coop_chan_in &, const std::byte *datagram, identity) const;
	spi::peer_number sender(const coop_chan_in &, identity, std::uint64_t now);
	void list(std::uint32_t index);
	void unlist(std::uint32_t index);
	void join_newest(std::uint32_t index, std::uint64_t now);
	void leave_age(std::uint32_t index);
	void give_up(std::uint32_t index, std::uint64_t now);
	void give_up_halfway(std::uint64_t now);

	const options &options_;
	const operations &operations_;
	peers &peers_;
	outbox &outbox_;
	chan_engine &chan_;
	spi::sink &sink_;
	std::vector<arrival> arrivals_;
	std::vector<std::uint32_t> free_;
	token_map of_buffer_; // the first message in the list of each receive buffer
	std::uint32_t oldest_ = none, newest_ = none; // by came_at
};

} // namespace coop::net::ud
