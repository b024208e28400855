// SPDX-License-Identifier: MIT
// responder.cpp - the peer's requests: checked against this side's tables, and carried out.
//
// One WQE at a time, in order. Between two calls a WQE may be half done (its bytes arrive in
// pieces, or it waits for a receive), and the tables may have changed: every step checks again.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "userland/ntrdma/core/bytes.hpp"
#include "userland/ntrdma/core/queue_pair.hpp"

namespace coop::ntrdma
{

void queue_pair::serve()
{
	if (state_ != pair_state::ready && state_ != pair_state::sends)
		return;
	while (linked()) {
		// A peer that gave up has reported these requests as failed: a process that was
		// stopped meanwhile must not carry them out. progress() sees the end of the link.
		if (in_->word.load(std::memory_order_seq_cst) ==
		    static_cast<std::uint32_t>(link_word::failed))
			return;
		if (!current_.active) {
			if (mine_.wqe_cons == theirs_.wqe_prod)
				return;
			if (!begin())
				return lie();
		}
		if (!step())
			return;
	}
}

/// Takes the next WQE. False if it is none that a peer of good faith writes.
bool queue_pair::begin()
{
	current_.moved = 0;
	current_.active = current_.has_receive = current_.granted = false;
	// One copy, of what the entry uses: each line of it comes from the peer's processor.
	wqe &w = current_.w;
	const wqe &shared = in_->wqes[mine_.wqe_cons % ring_entries];
	std::memcpy(&w, &shared, offsetof(wqe, body));
	std::atomic_signal_fence(std::memory_order_seq_cst);
	if (w.op > 6 || w.length > max_message || w.segments > max_segments)
		return false;
	std::size_t bytes = w.how == static_cast<std::uint8_t>(carriage::pull)
				    ? w.segments * sizeof(wire_segment)
			    : w.how == static_cast<std::uint8_t>(carriage::within)
				    ? std::min(w.length, body_bytes)
			    : w.op > static_cast<std::uint8_t>(operation::read)
				    ? sizeof(wire_operands)
				    : 0;
	std::memcpy(w.body, shared.body, bytes);
	std::atomic_signal_fence(std::memory_order_seq_cst);
	auto op = static_cast<operation>(w.op);
	bool reads = op == operation::read || is_atomic(op);
	switch (static_cast<carriage>(w.how)) {
	case carriage::none:
		if (w.length && !reads)
			return false;
		break;
	case carriage::within:
		if (reads || w.length > body_bytes)
			return false;
		break;
	case carriage::stream:
		if (reads || !w.length)
			return false;
		break;
	case carriage::pull: {
		if (reads || !port_->can_pull())
			return false;
		std::array<wire_segment, max_segments> from;
		std::memcpy(from.data(), w.body, bytes);
		std::uint64_t sum = 0;
		for (std::uint32_t i = 0; i < w.segments; i++) {
			if (from[i].length > max_message)
				return false;
			sum += from[i].length;
		}
		if (sum != w.length)
			return false;
		break;
	}
	default:
		return false;
	}
	if (is_atomic(op) && w.length != 8)
		return false;
	bool large = !reads && w.length >= std::max(options_.pull_from, large_least) &&
		     port_->can_pull();
	current_.since = large ? port_->now() : 0;
	current_.active = true;
	waiting_counted_ = false;
	return true;
}

bool queue_pair::more_receives() const
{
	return options_.shared ? !options_.shared->empty() : recv_take_ != recv_post_;
}

/// Where the bytes of the current WQE are to go, or to come from.
status queue_pair::target(places &out, std::uint32_t *count, bool *mine_is_wrong)
{
	const wqe &w = current_.w;
	auto op = static_cast<operation>(w.op);
	*count = 0;
	*mine_is_wrong = false;
	if (op == operation::send || op == operation::send_imm) {
		std::uint64_t room = 0;
		for (std::uint32_t i = 0; i < current_.into.segments; i++)
			room += current_.into.at[i].length;
		*mine_is_wrong = true;
		if (room < w.length)
			return status::remote_invalid;
		std::uint64_t left = w.length;
		std::uint32_t domain =
			options_.shared ? options_.shared->domain() : options_.domain;
		for (std::uint32_t i = 0; i < current_.into.segments && left; i++) {
			const segment &s = current_.into.at[i];
			std::uint64_t n = std::min<std::uint64_t>(s.length, left);
			if (!n)
				continue;
			auto at = regions_.check(s.lkey, domain, s.addr, n, local_write);
			if (!at)
				return status::remote_operation;
			out[(*count)++] = *at;
			left -= n;
		}
		return status::success;
	}
	std::uint32_t right = op == operation::read ? remote_read
			      : is_atomic(op)       ? remote_atomic
						    : remote_write;
	if (!(rights_ & right))
		return status::remote_access;
	if (!w.length)
		return status::success;
	if (is_atomic(op) && w.remote % 8)
		return status::remote_invalid;
	auto at = regions_.check(w.rkey, options_.domain, w.remote, w.length, right);
	if (!at)
		return status::remote_access;
	if (is_atomic(op) && reinterpret_cast<std::uintptr_t>(at->at) % 8)
		return status::remote_invalid;
	out[(*count)++] = *at;
	return status::success;
}

/// One step of the current WQE. True if it is done and the next may follow.
bool queue_pair::step()
{
	const wqe &w = current_.w;
	auto op = static_cast<operation>(w.op);
	if (takes_receive(op) && !current_.has_receive) {
		// A shared receive is for a message whose bytes are there, or it might wait for
		// them for good. What is longer than the stream comes in pieces.
		if (static_cast<carriage>(w.how) == carriage::stream && options_.shared &&
		    theirs_.stream_prod - mine_.stream_cons < std::min(w.length, stream_bytes))
			return false;
		if (!more_receives()) {
			current_.since = 0;
			counts_.waits += !waiting_counted_;
			waiting_counted_ = true;
			return false;
		}
		waiting_counted_ = false;
		if (options_.shared)
			options_.shared->take(current_.into);
		else
			copy_request(current_.into, recvs_[recv_take_++ & recv_mask_]);
		current_.has_receive = true;
	}
	// A granted read goes on to its end, also while its region closes.
	if (op == operation::read && current_.granted)
		return give_read(place{nullptr, 0});
	places at;
	std::uint32_t count;
	bool mine_is_wrong;
	status result = target(at, &count, &mine_is_wrong);
	if (result != status::success) {
		if (mine_is_wrong)
			finish_receive(result == status::remote_invalid ? status::local_length
									: status::local_protection,
				       0);
		end_current(result);
		return false;
	}
	if (op == operation::read)
		return give_read(count ? at[0] : place{nullptr, 0});
	if (is_atomic(op)) {
		auto *word = reinterpret_cast<std::uint64_t *>(at[0].at);
		wire_operands o;
		std::memcpy(&o, w.body, sizeof(o));
		std::uint64_t old = o.compare_add;
		if (op == operation::fetch_add)
			old = __atomic_fetch_add(word, o.compare_add, __ATOMIC_SEQ_CST);
		else
			__atomic_compare_exchange_n(word, &old, o.swap, false, __ATOMIC_SEQ_CST,
						    __ATOMIC_SEQ_CST);
		answer(status::success, old);
		return true;
	}
	if (!move_in(at, count))
		return false;
	if (current_.since)
		judge_way();
	if (current_.has_receive)
		finish_receive(status::success, w.length);
	answer(status::success);
	return true;
}

/// Moves the bytes of a send or write to their places. True when all are there.
bool queue_pair::move_in(const places &at, std::uint32_t count)
{
	const wqe &w = current_.w;
	std::span<const place> list{at.data(), count};
	switch (static_cast<carriage>(w.how)) {
	case carriage::none:
		return true;
	case carriage::within: {
		const std::uint8_t *from = w.body;
		for_pieces(list, 0, w.length, [&](std::uint8_t *to, std::uint64_t n) {
			std::memcpy(to, from, n);
			from += n;
		});
		return true;
	}
	case carriage::stream: {
		// In pieces, as queue_pair::feed().
		while (current_.moved < w.length) {
			std::uint64_t n =
				std::min({theirs_.stream_prod - mine_.stream_cons, stream_piece,
					  std::uint64_t{w.length - current_.moved}});
			if (!n)
				break;
			for_pieces(list, current_.moved, n, [&](std::uint8_t *to, std::uint64_t n) {
				from_stream(in_->stream, mine_.stream_cons, to, n);
				mine_.stream_cons += n;
			});
			current_.moved += static_cast<std::uint32_t>(n);
			dirty_ = true;
			if (current_.moved < w.length)
				tell_of_piece();
		}
		counts_.streamed += current_.moved == w.length;
		return current_.moved == w.length;
	}
	case carriage::pull:
		break;
	}
	std::array<wire_segment, max_segments> all, from;
	std::memcpy(all.data(), w.body, w.segments * sizeof(wire_segment));
	std::array<place, max_segments> to;
	std::uint64_t n = std::min<std::uint64_t>(pull_bytes, w.length - current_.moved);
	std::size_t sources =
		slice<wire_segment>({all.data(), w.segments}, current_.moved, n, from.data());
	std::size_t targets = slice<place>(list, current_.moved, n, to.data());
	int rc = port_->pull({from.data(), sources}, {to.data(), targets});
	// A requester that hung up may have used its memory for something else since.
	std::atomic_thread_fence(std::memory_order_seq_cst);
	bool withdrawn = in_->word.load(std::memory_order_seq_cst) !=
			 static_cast<std::uint32_t>(link_word::open);
	if (withdrawn || (rc && rc != -EFAULT)) {
		more_ = true; // progress() sees the end of the link
		if (!withdrawn && !catches_up_)
			peer_lost();
		return false;
	}
	if (rc) {
		end_current(status::remote_operation);
		return false;
	}
	current_.moved += static_cast<std::uint32_t>(n);
	counts_.pulled += current_.moved == w.length;
	more_ |= current_.moved < w.length;
	return current_.moved == w.length;
}

/// A large message is there: measures its way, and tells the peer which one is best.
void queue_pair::judge_way()
{
	bool streamed = static_cast<carriage>(current_.w.how) == carriage::stream,
	     before = ways_.streams();
	ways_.took(streamed ? ways::streamed : ways::pulled, port_->now() - current_.since,
		   current_.w.length);
	if (ways_.streams() != before)
		out_->streams.store(ways_.streams(), std::memory_order_relaxed);
}

/// Answers a read: lets the peer pull a large one, and copies a small one. True when done.
bool queue_pair::give_read(const place &from)
{
	const wqe &w = current_.w;
	if (w.length >= options_.pull_from && port_->can_pull()) {
		if (!current_.granted) {
			cqe c{0, 0, reinterpret_cast<std::uintptr_t>(from.at)};
			out_->cqes[mine_.wqe_cons % ring_entries] = c;
			mine_.read_grant++;
			current_.granted = dirty_ = true;
			regions_.find(w.rkey)->grants++;
			return false;
		}
		if (theirs_.read_ack != mine_.read_grant)
			return false;
		release_grant();
	} else {
		std::uint64_t room = stream_bytes - (mine_.answer_prod - theirs_.answer_cons);
		std::uint64_t n = std::min<std::uint64_t>(room, w.length - current_.moved);
		if (n)
			into_stream(out_->answer, mine_.answer_prod, from.at + current_.moved, n);
		mine_.answer_prod += n;
		current_.moved += static_cast<std::uint32_t>(n);
		dirty_ |= n != 0;
		if (current_.moved < w.length)
			return false;
	}
	answer(status::success);
	return true;
}

void queue_pair::release_grant()
{
	if (!current_.granted)
		return;
	current_.granted = false;
	if (region *r = regions_.find(current_.w.rkey); r && r->grants)
		r->grants--;
}

/// The current WQE is done. Its CQE is stored if that says more than the index does.
void queue_pair::answer(status result, std::uint64_t value)
{
	refuses_ = result != status::success;
	if (refuses_ || is_atomic(static_cast<operation>(current_.w.op)))
		out_->cqes[mine_.wqe_cons % ring_entries] = {static_cast<std::uint32_t>(result), 0,
							     value};
	// Before the next one's bytes: a thread that waits for those to change in memory finds
	// these, too.
	std::atomic_thread_fence(std::memory_order_release);
	counts_.served++;
	counts_.served_bytes += current_.w.length;
	mine_.wqe_cons++;
	current_.active = current_.has_receive = current_.granted = false;
}

/// The current WQE failed, and with it this queue pair: the peer learns why.
void queue_pair::end_current(status result)
{
	if (current_.has_receive)
		finish_receive(status::flushed, 0);
	release_grant();
	answer(result);
	if (in_ == out_) { // its own peer: as requester it takes the answers before it ends
		publish();
		if (look())
			collect();
	}
	fail(status::flushed);
	watcher_.happened(*this, event::refused_access);
}

void queue_pair::finish_receive(status result, std::uint32_t bytes)
{
	current_.has_receive = false;
	auto op = static_cast<operation>(current_.w.op);
	put_done({current_.into.id, result, op, bytes, current_.w.imm,
		  result != status::success || (current_.w.flags & solicited)});
}

void queue_pair::put_done(const done_receive &d)
{
	// With a shared receive queue, completions of several depths may wait.
	if (done_put_ - done_got_ == dones_.size()) {
		std::vector<done_receive> more;
		more.reserve(dones_.size() * 2);
		for (; done_got_ != done_put_; done_got_++)
			more.push_back(done_at(done_got_));
		done_got_ = 0;
		done_put_ = static_cast<std::uint32_t>(more.size());
		more.resize(more.size() * 2);
		dones_ = std::move(more);
	}
	done_at(done_put_++) = d;
	options_.recv_queue->note(d.solicited);
}

} // namespace coop::ntrdma
