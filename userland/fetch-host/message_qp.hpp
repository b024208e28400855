// SPDX-License-Identifier: MIT
// message_qp.hpp - a queue pair that carries messages, and the slots of its work requests.
//
// Every node of the fabric can send to it. So each of its receives takes a datagram of any
// length: what is longer than a message runs on into scrap memory. If the queue pair fails all
// the same it recycles itself: it waits until all its work requests are flushed, goes through
// reset to ready under the same number, and posts its receives again. The protocols that use it
// repeat what was lost.
//
// A user that builds sends of several entries claims a slot for the head of each, with a tag,
// and posts them itself; send() is for messages that are copied whole.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "userland/fetch-host/slab.hpp"
#include "userland/ud/endpoint.hpp"

namespace coop::fetch_host
{

class message_qp
{
public:
	struct shape {
		std::uint32_t bytes;         // of a message, at most
		std::uint32_t recvs;         // posted at most
		std::uint32_t sends;         // likewise
		std::uint32_t own_sends;     // of those, by send()
		std::uint32_t head_room = 0; // of a send slot, beside the bytes
		ud::qp_attr attr{};          // but for the numbers of work requests
	};
	static constexpr std::uint32_t no_tag = 0xffffffff;

	/// Reserves memory; nothing may be called before make().
	message_qp(ud::endpoint &, slab &, const shape &);
	message_qp(const message_qp &) = delete;
	message_qp &operator=(const message_qp &) = delete;
	/// Creates the queue pair and posts its receives. @throw std::system_error.
	void make();

	std::uint32_t qp() const { return qp_; }
	std::uint32_t bytes() const { return shape_.bytes; } // of a message, at most
	/// The end point as peers reach it by this queue pair.
	ud::address self() const;
	static ud::address sender(const ud::completion &);

	/// The message of a successful receive, until take(). Null data: it was no such completion,
	/// or the datagram was longer than any message.
	std::span<const std::byte> message(const ud::completion &c) const
	{
		if (!c.is_recv || c.status != ud::wc_status::success || c.byte_len < COOP_GRH ||
		    c.byte_len - COOP_GRH > shape_.bytes)
			return {};
		return {receive_slot(c.wr_id), c.byte_len - COOP_GRH};
	}
	/// Any completion of this queue pair: frees its slot. @return the tag of a send that is
	/// over, unless send() posted it.
	std::uint32_t take(const ud::completion &c)
	{
		dead_ |= c.status != ud::wc_status::success;
		const auto slot = static_cast<std::uint32_t>(c.wr_id);
		if (c.is_recv) {
			posted_--;
			back_.push_back(slot);
			return no_tag;
		}
		return copies_ ? no_tag : release(slot); // copied: it was over when it was posted
	}
	/// After a batch of completions.
	void repost()
	{
		if (dead_)
			recycle();
		// Posting them one by one costs more than posting many at a time.
		if (!dead_ && back_.size() >= shape_.recvs / 8)
			post_recvs();
	}

	/// Copies the message; it leaves with others, at the latest at the end point's flush().
	/// Drops it if too many are unsent: loss is normal.
	void send(const ud::address &to, const void *message, std::uint32_t length);

	bool full() const { return free_.empty(); }
	/// Sends end in post_send(), without a completion.
	bool copies() const { return copies_; }
	/// A slot that is free: full() is false.
	std::uint32_t claim(std::uint32_t tag)
	{
		const std::uint32_t slot = free_.back();
		free_.pop_back();
		tag_[slot] = tag;
		return slot;
	}
	std::byte *slot(std::uint32_t i) const { return slab_.at(send_at_ + i * send_bytes_); }
	/// The send of this slot is over. @return its tag.
	std::uint32_t release(std::uint32_t slot)
	{
		own_ -= tag_[slot] == no_tag;
		free_.push_back(slot);
		return tag_[slot];
	}

private:
	std::byte *receive_slot(std::size_t i) const
	{
		return slab_.at(recv_at_ + i * recv_bytes_);
	}
	void recycle();
	void post_recvs();

	ud::endpoint &endpoint_;
	const slab &slab_;
	shape shape_;
	const bool copies_;
	const std::size_t recv_bytes_, send_bytes_; // of a slot
	std::size_t recv_at_, send_at_;
	std::uint32_t qp_ = 0;
	std::uint32_t posted_ = 0; // receives
	std::uint32_t own_ = 0;    // sends of send()
	bool dead_ = false;
	std::vector<std::uint32_t> back_, free_; // receive slots to post; send slots
	std::vector<std::uint32_t> tag_;         // by send slot
};

} // namespace coop::fetch_host
