// SPDX-License-Identifier: MIT
// bulk.hpp - bulk operations: who may read what, and what the two sides tell each other about it.
//
// A GET is a fetch of rpc/fetch; when all of it is there, a DONE tells the passive side. For a PUT
// the passive side is asked by a message (PUT) to GET, and answers DONE: so data always falls into
// receives that were posted for it. These are messages of rpc/chan (bulk_message.hpp), sent again
// over a new session if the old one ended under them; their tag proves the sender. A reader that
// has fallen silent without a DONE is asked (ASK): it may be dead, or its DONE may be lost.
//
// A reusable operation stays: its machine is not told when a GET of it ends, and each PUT_AT is a
// use, an operation of its own. A GET of a range shifts the pages that it fetches (pages.hpp).
//
// Owns the lists of operations under way by peer, the log of reads, and the readers. An operation
// ends when no request reads its memory any more; its record is free when the other side has been
// told as well. Used under the lock of the machine. Calls outbox, reader and peers, and none of
// them calls it: the machine passes their events on.
#pragma once

#include <vector>

#include "outbox.hpp"
#include "peer_rails.hpp"
#include "read_log.hpp"
#include "readers.hpp"

namespace coop::net::ud
{

/// Who else answers requests for our memory: the kernel, in the transport of that name.
class offers
{
public:
	/// From now on this operation may be read: by its peer alone, if it has one.
	/// bulk::read_by() reports readers.
	virtual void begin(std::uint32_t index) = 0;
	/// It may not any more: bulk::over() follows when its memory is quiet.
	virtual void end(std::uint32_t index) = 0;

protected:
	~offers() = default;
};

class bulk
{
public:
	/// `o`: null if requests come by open() and close().
	/// `r`: null if there is one rail.
	bulk(const options &, operations &, peers &, outbox &, reader &, message_engine &,
	     offers *o, peer_rails *r, spi::sink &);

	// The core.
	void submit(std::uint32_t index, std::uint64_t now);
	void cancel(std::uint32_t index, int status, std::uint64_t now);
	/// From now on no PUT and no question begins.
	void stop() { stopping_ = true; }
	/// Operations have ended whose peers are still being told.
	bool telling() const { return telling_ != 0; }

	// The outbox.
	void reported(const outbox::report &, std::uint64_t now);

	// The inbox.
	void heard(const bulk_message &, spi::peer_number from, std::uint64_t now);

	// The reader.
	void read_over(reading &, std::uint64_t now);

	// The source of data for others.
	/// A passive operation, or one that is being put, is read from now on, if this asker may.
	/// `rail`: by which its request has come. @return its index or `none`. `later`: the asker
	/// is the one that may, but it is not known yet that it is where its request comes from.
	std::uint32_t open(spi::token, std::uint64_t key, const asker &, const coop_addr &from,
			   unsigned rail, bool &later);
	const op &operation(std::uint32_t index) const { return operations_[index]; }
	/// A request that open() let in is over.
	void close(std::uint32_t index);
	// The same for `offers`, which lets askers in by itself.
	/// This asker has begun to read, or has paused.
	void read_by(std::uint32_t index, identity asker, bool reading);
	/// Its memory is quiet; with a status that is not 0, unasked.
	void over(std::uint32_t index, int status, std::uint64_t now);

	// Peers.
	/// It does not answer any more, or is another machine: its operations end with this.
	void lost(spi::peer_number, int status, std::uint64_t now);
	/// Another session has begun: the machine may be another one, which knows of no PUT.
	void restarted(spi::peer_number, std::uint64_t now);
	/// The number is about to be reused.
	void forget(spi::peer_number);
	/// Whenever peers::watch() is due.
	void watch(std::uint64_t now);

	std::uint64_t deadline() const { return readers_.deadline(); }
	/// At the deadline: asks the readers that have been quiet.
	void ask_readers(std::uint64_t now);

private:
	static constexpr std::uint32_t none = operations::none;

	/// The operations under way with one peer.
	struct with_peer {
		std::uint32_t first = none;
		std::uint64_t since = 0;    // the first of them began
		std::uint64_t probe_at = 0; // it is asked whether it lives
	};

	int copy(std::uint32_t index);
	void begin(std::uint32_t index, std::uint64_t now);
	void offer(std::uint32_t index);
	void read(std::uint32_t index, std::uint64_t now);
	void end(std::uint32_t index, int status, std::size_t length);
	void release(std::uint32_t index);
	void want_rails(std::uint32_t index, std::uint64_t now);
	void join_peer(std::uint32_t index, std::uint64_t now);
	void leave_peer(std::uint32_t index);
	std::vector<std::uint32_t> under_way_with(spi::peer_number) const;
	void put_again(spi::peer_number, std::uint64_t now);
	void tell(std::uint32_t index, op_state, const bulk_message &, std::uint64_t now);
	void told(std::uint32_t index, int err, std::uint64_t now);
	void reply(spi::peer_number, const bulk_message &question, std::uint64_t now);
	void ask_reader(std::uint32_t index, std::uint64_t now);
	void heard_put(const bulk_message &, spi::peer_number from, std::uint64_t now);
	bool put_range(std::uint32_t index, const bulk_message &, spi::peer_number from,
		       std::uint64_t now);
	void take(std::uint32_t index, const bulk_message &, spi::peer_number from,
		  std::uint64_t now);
	void heard_done(const bulk_message &, spi::peer_number from);
	void heard_ask(const bulk_message &, spi::peer_number from, std::uint64_t now);

	const options &options_;
	operations &operations_;
	peers &peers_;
	outbox &outbox_;
	reader &reader_;
	message_engine &chan_;
	offers *const offers_;
	peer_rails *const rails_;
	spi::sink &sink_;
	std::vector<with_peer> by_peer_; // by number
	readers readers_;
	read_log log_;
	std::uint32_t telling_ = 0; // operations
	bool stopping_ = false;
};

} // namespace coop::net::ud
