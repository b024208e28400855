// SPDX-License-Identifier: MIT
// operations.hpp - the operations of a machine, until both sides know how they ended.
//
// Owns their records and the table that finds them by token. outbox and bulk drive an operation
// through its states, and each field names the part that writes it. A record may outlive its
// operation: while its index is in a queue (gone), or while its peer has yet to be told (telling).
// Used under the lock of the machine.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "bulk_message.hpp"
#include "identity.hpp"
#include "options.hpp"
#include "reader.hpp"
#include "token_map.hpp"

namespace coop::net::ud
{

enum class op_state : std::uint8_t {
	free,
	gone,    // ended, but still queued; freed when it reaches the head
	address, // waits for its peer's address
	line,    // waits for a place at rpc/chan
	loop,    // to this machine itself, waits for a receive buffer
	sent,    // a message at rpc/chan
	passive, // may be read, or may be written to when asked
	reading, // data comes in
	offered, // PUT: the other side is told or reads
	telling, // the core knows its end; the other side is being told
};

struct op {
	spi::token token = 0;
	queue_type queue{};
	op_state state = op_state::free;
	spi::peer_number peer = spi::no_peer;
	keyed_memory memory;
	std::size_t length = 0;
	spi::token remote = 0;        // the other side's operation
	std::uint64_t key = 0;        // what others must present to use this one
	std::uint64_t remote_key = 0; // what we present to use theirs
	bool reusable = false;        // spi::transfer, as are the next three
	std::size_t offset = 0, remote_offset = 0, remote_size = 0;

	// outbox
	bool cancelled = false;
	bool high = false;       // spi::transfer
	bool sending = false;    // a bulk message of it is at rpc/chan; bulk sets and clears it
	std::uint32_t id = 0;    // at rpc/chan
	std::uint64_t since = 0; // loop: when it began to wait
	bool waiting = false;    // in the queue for its peer's address
	std::uint32_t ahead = token_map::none, behind = token_map::none; // in that queue

	// bulk
	bool ending = false;       // ends when no request reads its memory any more
	bool lent = false;         // `offers` has its memory
	bool under_way = false;    // in the list of its peer
	bool question = false;     // telling: an ASK about our operation `remote`
	bool reply = false;        // telling: the answer to such a question, or to a PUT
	bool of_reusable = false;  // a use of a reusable operation, which a PUT began
	std::uint8_t attempts = 0; // to send its bulk message
	std::uint64_t told_at = 0; // offered: when the peer took its PUT; 0: not yet
	int status = 0;            // of the end, while `ending`
	std::uint32_t serving = 0; // requests that read its memory
	std::uint32_t before = token_map::none, after = token_map::none; // in the list of its peer
	identity who;                  // telling: the peer, whose number may have been reused
	std::optional<outcome> result; // telling: of a read
	std::unique_ptr<reading> read;

	// read_log
	bool logged = false; // a read, and the other side does not know its end

	// readers: passive, and `reader` has begun to read it
	bool asked = false;       // the reader was asked, and has read nothing since
	std::size_t begun_at = 0; // its place among those with a reader
	identity reader;          // the last one
	std::uint64_t ask_at = 0; // when to ask the reader whether it still reads
};

/// Obtains the keys by which a device, or the kernel, knows the memory of an operation.
class memory_lender
{
public:
	/// Sets the keys, or leaves them empty.
	virtual void lend(op &) = 0;

protected:
	~memory_lender() = default;
};

class operations
{
public:
	static constexpr std::uint32_t none = token_map::none;

	operations(const options &, memory_lender &, spi::sink &);
	operations(const operations &) = delete;
	operations &operator=(const operations &) = delete;

	/// The most records: what the core may submit, uses of that, and some whose end is being
	/// told.
	static std::uint32_t most(const options &o)
	{
		return o.max_operations + o.max_operations / 2 + extra;
	}
	/// So few records are left that strangers get none.
	bool crowded() const { return ops_.size() - free_.size() > most(options_) - extra / 2; }
	/// The same for this peer, which may have to take the answers first that it has.
	bool crowded(identity who) const
	{
		const auto i = replies_.find(who.packed());
		return crowded() || (i != replies_.end() && i->second >= most_replies);
	}
	std::uint32_t size() const { return static_cast<std::uint32_t>(ops_.size()); }
	op &operator[](std::uint32_t index) { return ops_[index]; }
	const op &operator[](std::uint32_t index) const { return ops_[index]; }

	/// A record for this transfer, or `none`. References to records become invalid.
	std::uint32_t add(spi::token, const spi::transfer &);
	/// This record is an answer to the peer, until its release.
	void reply(std::uint32_t index, identity who)
	{
		ops_[index].reply = true;
		ops_[index].who = who;
		replies_[who.packed()]++;
	}
	/// By its token, or `none`.
	std::uint32_t find(spi::token t) const { return by_token_.find(t); }
	/// The same for a peer, which must present the key.
	std::uint32_t find(spi::token t, std::uint64_t key) const
	{
		const std::uint32_t index = by_token_.find(t);
		return index != none && sink_.find(t, key) ? index : none;
	}
	/// Tells the core its end; the record stays.
	void complete(std::uint32_t index, int status, std::size_t length)
	{
		const spi::token t = ops_[index].token;
		by_token_.erase(t);
		sink_.completed(t, status, length);
	}
	/// Frees a record that add() has just made.
	void drop(std::uint32_t index)
	{
		by_token_.erase(ops_[index].token);
		release(index);
	}
	/// Frees the record, which is in no queue.
	void release(std::uint32_t index)
	{
		ops_[index].state = op_state::free;
		free_.push_back(index);
		if (std::exchange(ops_[index].reply, false))
			replied(ops_[index].who);
	}
	/// Both.
	void finish(std::uint32_t index, int status, std::size_t length)
	{
		const spi::token t = ops_[index].token;
		by_token_.erase(t);
		release(index);
		sink_.completed(t, status, length);
	}

private:
	static constexpr std::uint32_t extra = 1024;
	static constexpr std::uint32_t most_replies = 64; // to a peer

	void replied(identity);

	const options &options_;
	memory_lender &lender_;
	spi::sink &sink_;
	std::vector<op> ops_;
	std::vector<std::uint32_t> free_;
	std::unordered_map<std::uint64_t, std::uint32_t> replies_; // under way, by identity
	token_map by_token_;
};

} // namespace coop::net::ud
