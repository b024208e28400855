// SPDX-License-Identifier: MIT
// queue_pair.hpp - a reliable connected queue pair: its rings, and both its roles on a link.
//
//	requester: post -> [post) produce() -> WQE ring -> [prod) ... collect() -> [cons) reap() ->
//[cmpl) 	responder: WQE ring -> serve(): check, take a receive, move the bytes -> CQE ring
//
// A send request is in one of four states, told by the free-running indices of its ring:
//	cons..prod  stored in the peer's WQE ring
//	prod..post  posted; waits for room there
//	cmpl..cons  done; its completion waits to be polled
// Bytes are written only by the side that holds the memory: small messages go through the rings,
// large ones are pulled by the responder (writes, sends) or by the requester (reads).
//
// A send that finds no receive waits in the ring, with all behind it. The first error is
// reported; all else is flushed. After fail() or reset() the queue pair touches neither the port
// nor the memory of any request.
//
// No input or output, no clock, no lock: the owner calls progress() and brings the port.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "userland/ntrdma/core/port.hpp"
#include "userland/ntrdma/core/queues.hpp"
#include "userland/ntrdma/core/tables.hpp"
#include "userland/ntrdma/core/types.hpp"
#include "userland/ntrdma/core/ways.hpp"

namespace coop::ntrdma
{

enum class pair_state : std::uint8_t {
	reset, // no queue takes anything
	init,  // receives may be posted
	ready, // the peer is named; receives work (RTR)
	sends, // sends work too (RTS)
	error, // every request is flushed
};

struct pair_options {
	std::uint32_t number = 0; // its own, 24 bits
	std::uint32_t domain = 0;
	std::uint32_t send_depth = 1, recv_depth = 1;
	std::uint32_t inline_bytes = 0;
	bool all_signalled = false;
	completion_queue *send_queue = nullptr, *recv_queue = nullptr;
	shared_receives *shared = nullptr;
	std::uint32_t pull_from = 16384; // messages of so many bytes are pulled, not streamed
};

struct pair_counts {
	std::uint64_t sent = 0, sent_bytes = 0; // requests that the peer completed
	std::uint64_t served = 0, served_bytes = 0;
	std::uint64_t pulled = 0, streamed = 0; // messages, as responder and reader
	std::uint64_t waits = 0;                // sends that found no receive
	std::uint64_t errors = 0;
};

class queue_pair
{
public:
	queue_pair(region_table &, watcher &, const pair_options &);
	~queue_pair();
	queue_pair(const queue_pair &) = delete;
	queue_pair &operator=(const queue_pair &) = delete;

	const pair_options &options() const { return options_; }
	pair_state state() const { return state_; }
	/// Own state; the owner validates the transition. `reset` forgets every request.
	void set_state(pair_state);
	void set_rights(std::uint32_t access) { rights_ = access; }
	std::uint32_t rights() const { return rights_; }
	std::uint32_t peer = 0; // its number
	// Answers go along with the next post, or out with the next progress() without it: for
	// applications that reply at once, and call progress() again and again.
	bool answers_wait = false;

	/// The link is up. The port stays valid until detach().
	void attach(port &);
	/// The queue pair is done with its port; the owner closes the link.
	bool wants_detach() const { return port_ && closing_; }
	void detach();
	bool linked() const { return port_ && !closing_; }

	/// 0, -EINVAL, -ENOMEM (full).
	int post_send(const send_request &, const std::uint8_t *inline_data = nullptr);
	int post_recv(const recv_request &);
	/// The batch is complete: stores it in the peer's ring, and rings once.
	void flush_posts() { progress(true); }
	/// True if the rings have room for a send of so many bytes: once posted, store_posts()
	/// copies all of it, and its memory is the application's again.
	bool takes(std::uint32_t bytes) const;
	/// The same for receives: less to do, since nothing of the peer's waits for this.
	void flush_receive_posts();
	/// Stores what was posted, without waking the peer, which flush_posts() does.
	void store_posts() { produce(); }

	/// True if the peer has stored something that was not taken yet.
	bool has_news() const
	{
		return linked() &&
		       (is_there(in_->wqes[theirs_.wqe_prod % ring_entries], theirs_.wqe_prod) ||
			in_->bell.load(std::memory_order_acquire) != bell_seen_ ||
			in_->word.load(std::memory_order_relaxed) !=
				static_cast<std::uint32_t>(link_word::open));
	}
	/// False if progress() would find nothing, and has nothing to tell.
	bool stirs() const { return has_news() || unfinished() || owes(); }
	/// True if an answer, or another index, waits for the next post or progress().
	bool owes() const { return linked() && (dirty_ || owes_answers()); }
	/// Tells the peer of what waits, and does no other work.
	void tell() { publish(); }
	/// Differs once something that the peer stored is taken.
	std::uint64_t taken() const { return std::uint64_t{theirs_.wqe_prod} << 32 | bell_seen_; }
	/// True if reap() finds anything.
	bool has_completions(const completion_queue &queue) const
	{
		return (send_cmpl_ != send_cons_ && &queue == options_.send_queue) ||
		       (done_got_ != done_put_ && &queue == options_.recv_queue);
	}
	/// True if reap() finds one that is worth a notice: of these, also if only solicited ones
	/// and failures are.
	bool has_noticeable(const completion_queue &queue, bool solicited_only) const;
	/// How many completions of that queue are there to be polled.
	std::size_t waiting(const completion_queue &) const;
	/// Works off what the peer stored. False if nothing had changed.
	bool progress(bool posted = false);
	/// The same, but an end of the link is left for the next progress().
	bool work(bool posted = false);
	/// The same, and also takes what the peer answered and has not rung for.
	void take_all();
	/// True if progress() has left work that waits for no event of the peer, such as the rest
	/// of a large copy.
	bool unfinished() const { return linked() && more_; }
	/// `successes`: up to the first failure.
	std::size_t reap(completion_queue &queue, std::span<completion> out, bool successes = false)
	{
		return has_completions(queue) ? take_completions(queue, out, successes) : 0;
	}

	/// Ends everything outstanding: the oldest send with `first`, the rest flushed.
	void fail(status first);
	/// The same, after the completions that other queue pairs of its completion queues have.
	void lose(status first);
	/// The same, because the peer is gone or silent: what it had stored still counts.
	void peer_gone();
	/// Asks the peer for a sign of life, which any progress() of its gives. Only while
	/// linked().
	void ask();
	bool answered() const;
	/// True if a request waits for something that the peer has to do.
	bool outstanding() const;
	/// True if a message of the peer waits for a receive.
	bool starved() const { return current_.active && waiting_counted_; }
	/// True if the peer is pulling from the region of that key.
	bool grants(std::uint32_t key) const { return current_.granted && current_.w.rkey == key; }
	bool sends_outstanding() const { return send_cons_ != send_post_; }
	std::uint32_t unpolled() const { return send_cons_ - send_cmpl_ + done_put_ - done_got_; }

	struct levels {
		std::uint32_t post, prod, cons, cmpl; // sends
		std::uint32_t recv_post, recv_cons;
	};
	levels rings() const;
	const pair_counts &counts() const { return counts_; }
	/// The peer's receives that are posted and unused, by its own word.
	std::uint32_t credits() const;

	void *owner = nullptr; // the host's object

private:
	struct pending_send {
		send_request r;
		std::uint32_t length;
		std::uint32_t moved; // bytes fed into the stream, or read from the answers
		carriage how;
		status result;
		bool stored;
	};
	struct done_receive {
		std::uint64_t id;
		status result;
		operation op;
		std::uint32_t bytes, imm;
		bool solicited; // or failed
	};
	/// The peer's WQE that is being carried out.
	struct current {
		wqe w;
		recv_request into;
		std::uint32_t moved; // bytes
		std::uint64_t since; // port::now(); 0: not measured
		bool active, has_receive, granted;
	};
	using places = std::array<place, max_segments>;

	pending_send &send_at(std::uint32_t i) { return sends_[i & send_mask_]; }
	std::size_t take_completions(completion_queue &, std::span<completion> out, bool successes);
	done_receive &done_at(std::uint32_t i) { return dones_[i & (dones_.size() - 1)]; }
	bool look();         // takes the peer's indices; false if they are impossible
	bool look_at_wqes(); // the same of its new WQEs
	bool owes_answers() const { return mine_.wqe_cons != told_.wqe_cons; }
	void tell_receives();
	void store_indices();
	void tell_of_piece();
	void publish();
	void lie(); // the peer broke the protocol

	// requester.cpp
	void produce();
	bool store(pending_send &);
	bool feed(pending_send &);
	bool pulled_best();
	bool gather(const pending_send &, places &, std::uint32_t rights, std::uint32_t *count);
	void collect();
	bool take_answers(pending_send &);
	void pull_read();
	void complete_send(pending_send &, status);

	// responder.cpp
	void serve();
	bool begin();
	bool step();
	status target(places &, std::uint32_t *count, bool *mine_is_wrong);
	bool move_in(const places &, std::uint32_t count);
	void judge_way();
	bool give_read(const place &);
	void answer(status, std::uint64_t value = 0);
	void end_current(status);
	void finish_receive(status, std::uint32_t bytes);
	void put_done(const done_receive &);
	bool more_receives() const;
	void flush_receives();
	void peer_closed();
	void hang_up(link_word);
	void peer_lost();
	void release_grant();

	region_table &regions_;
	watcher &watcher_;
	pair_options options_;
	pair_state state_ = pair_state::reset;
	std::uint32_t rights_ = 0;
	port *port_ = nullptr;
	const half *in_ = nullptr; // the port's
	half *out_ = nullptr;
	bool closing_ = false;
	bool peer_left_ = false; // it closed the link in good order
	bool more_ = false;      // work was left for the next progress()
	// In take_all(), on behalf of a queue pair that is lost: a loss of its own waits, or the
	// two would make each other catch up for ever.
	bool catches_up_ = false;
	bool dirty_ = false;   // indices other than wqe_prod and wqe_cons have changed
	bool refuses_ = false; // the last answer is an error
	bool refused_ = false; // the peer's last one is
	std::uint32_t bell_ = 0, bell_seen_ = 0, ping_ = 0, pong_ = 0;
	indices mine_, theirs_;
	indices told_; // the part of mine_ that the peer was told

	std::vector<pending_send> sends_;
	std::vector<std::uint8_t> inline_;
	std::uint32_t send_mask_;
	std::uint32_t send_post_ = 0, send_prod_ = 0, send_cons_ = 0, send_cmpl_ = 0;
	std::uint32_t receives_sent_ = 0;
	std::uint32_t large_ = 0; // messages that the peer may pull

	std::vector<recv_request> recvs_;
	std::uint32_t recv_mask_;
	std::uint32_t recv_post_ = 0, recv_take_ = 0;
	std::vector<done_receive> dones_; // a power of two
	std::uint32_t done_put_ = 0, done_got_ = 0;
	current current_{};
	bool waiting_counted_ = false;
	ways ways_;
	pair_counts counts_;
};

inline bool completion_queue::stirs() const
{
	for (const member &m : pairs_)
		if (m.pair->has_completions(*this) || m.pair->stirs())
			return true;
	return false;
}

} // namespace coop::ntrdma
