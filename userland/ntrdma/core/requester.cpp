// SPDX-License-Identifier: MIT
// requester.cpp - a queue pair's own requests: into the peer's ring, and back as completions.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "userland/ntrdma/core/bytes.hpp"
#include "userland/ntrdma/core/queue_pair.hpp"

namespace coop::ntrdma
{

/// The memory of a request's segments. False if a key, a bound, the PD or a right is wrong.
bool queue_pair::gather(const pending_send &p, places &out, std::uint32_t rights,
			std::uint32_t *count)
{
	*count = 0;
	if (p.r.flags & inlined) {
		std::size_t slot = static_cast<std::size_t>(&p - sends_.data());
		out[(*count)++] = {inline_.data() + slot * options_.inline_bytes, p.length};
		return true;
	}
	for (std::uint32_t i = 0; i < p.r.segments; i++) {
		const segment &s = p.r.at[i];
		if (!s.length)
			continue;
		auto at = regions_.check(s.lkey, options_.domain, s.addr, s.length, rights);
		if (!at)
			return false;
		out[(*count)++] = *at;
	}
	return true;
}

void queue_pair::produce()
{
	if (state_ != pair_state::sends)
		return;
	while (linked() && send_prod_ != send_post_) {
		pending_send &p = send_at(send_prod_);
		if (!p.stored && !store(p))
			return;
		if (p.how == carriage::stream && !feed(p))
			return;
		send_prod_++;
	}
}

/// Stores the WQE of the oldest request that has none. False if it has to wait, or failed.
bool queue_pair::store(pending_send &p)
{
	if (mine_.wqe_prod - theirs_.wqe_cons == ring_entries)
		return false;
	if ((p.r.flags & fenced) && send_cons_ != send_prod_)
		return false;
	bool reads = p.r.op == operation::read || is_atomic(p.r.op);
	places at;
	std::uint32_t count;
	if (!gather(p, at, reads ? std::uint32_t{local_write} : 0, &count)) {
		// The older ones come first: their outcome is still open.
		if (send_cons_ == send_prod_)
			fail(status::local_protection);
		return false;
	}
	wqe &out = out_->wqes[mine_.wqe_prod % ring_entries];
	wqe w;
	// If other indices have changed too, the bell tells: an answer's bytes are found by them.
	if (!dirty_ && owes_answers()) {
		told_.wqe_cons = mine_.wqe_cons;
		// First: the index never falls behind what an entry has told.
		out_->wqe_cons.store(mine_.wqe_cons, std::memory_order_release);
	}
	w.cons = told_.wqe_cons;
	w.op = static_cast<std::uint8_t>(p.r.op);
	w.flags = p.r.flags & solicited;
	w.segments = 0;
	w.imm = p.r.imm;
	w.length = p.length;
	w.rkey = p.r.rkey;
	w.remote = p.r.remote;
	std::span<const place> list{at.data(), count};
	p.moved = 0;
	if (reads || !p.length) {
		p.how = carriage::none;
		wire_operands o{p.r.compare_add, p.r.swap};
		if (is_atomic(p.r.op))
			std::memcpy(out.body, &o, sizeof(o));
	} else if (p.length <= body_bytes) {
		p.how = carriage::within;
		std::uint8_t *to = out.body;
		for_pieces(list, 0, p.length, [&](const std::uint8_t *from, std::uint64_t n) {
			std::memcpy(to, from, n);
			to += n;
		});
	} else if (!(p.r.flags & inlined) && p.length >= options_.pull_from && port_->can_pull() &&
		   pulled_best()) {
		p.how = carriage::pull;
		for (std::uint32_t i = 0; i < count; i++) {
			wire_segment s{reinterpret_cast<std::uintptr_t>(at[i].at), at[i].length};
			std::memcpy(out.body + i * sizeof(s), &s, sizeof(s));
		}
		w.segments = static_cast<std::uint8_t>(count);
	} else {
		p.how = carriage::stream;
	}
	w.how = static_cast<std::uint8_t>(p.how);
	constexpr std::size_t first = offsetof(wqe, cons);
	std::memcpy(&out.cons, &w.cons, offsetof(wqe, body) - first);
	__atomic_store_n(&out.turn, ++mine_.wqe_prod, __ATOMIC_RELEASE);
	if (takes_receive(p.r.op))
		receives_sent_++;
	p.stored = true;
	return true;
}

/// Of a large message, by the peer's advice.
bool queue_pair::pulled_best()
{
	bool other = ways::other_way(++large_);
	return (in_->streams.load(std::memory_order_relaxed) != 0) == other;
}

/// Moves a request's bytes into the stream as far as there is room. True when all are there.
bool queue_pair::feed(pending_send &p)
{
	places at;
	std::uint32_t count;
	if (!gather(p, at, 0, &count)) {
		fail(status::local_protection);
		return false;
	}
	// In pieces, each of which is told of: the peer copies one out while this side copies the
	// next one in.
	for (;;) {
		std::uint64_t room = stream_bytes - (mine_.stream_prod - theirs_.stream_cons);
		std::uint64_t n = std::min({room, stream_piece, std::uint64_t{p.length - p.moved}});
		if (!n)
			return false;
		for_pieces({at.data(), count}, p.moved, n,
			   [&](const std::uint8_t *from, std::uint64_t n) {
				   into_stream(out_->stream, mine_.stream_prod, from, n);
				   mine_.stream_prod += n;
			   });
		p.moved += static_cast<std::uint32_t>(n);
		dirty_ = true;
		if (p.moved == p.length)
			return true;
		tell_of_piece();
	}
}

void queue_pair::collect()
{
	while (linked() && send_cons_ != theirs_.wqe_cons) {
		pending_send &p = send_at(send_cons_);
		cqe c{};
		if (refused_ || is_atomic(p.r.op))
			c = copy_once(in_->cqes[send_cons_ % ring_entries]);
		auto result = static_cast<status>(c.result);
		if (result != status::success) {
			bool known = result == status::remote_access ||
				     result == status::remote_invalid ||
				     result == status::remote_operation;
			if (!known)
				return lie();
			return fail(result);
		}
		if (send_cons_ == send_prod_)
			return lie(); // it cannot have carried out what it does not have
		if (p.r.op == operation::read && !take_answers(p))
			return linked() ? lie() : void();
		if (is_atomic(p.r.op)) {
			places at;
			std::uint32_t count;
			if (!gather(p, at, local_write, &count))
				return fail(status::local_protection);
			const auto *from = reinterpret_cast<const std::uint8_t *>(&c.value);
			for_pieces({at.data(), count}, 0, sizeof(c.value),
				   [&](std::uint8_t *to, std::uint64_t n) {
					   std::memcpy(to, from, n);
					   from += n;
				   });
		}
		complete_send(p, status::success);
	}
	if (!linked() || send_cons_ == send_prod_)
		return;
	// The oldest request is not done. If it is a read, its bytes may arrive in pieces.
	pending_send &head = send_at(send_cons_);
	if (head.r.op == operation::read)
		take_answers(head);
	if (linked() && theirs_.read_grant != mine_.read_ack)
		pull_read();
}

/// Takes a read's bytes from the answer stream. True when it has all.
bool queue_pair::take_answers(pending_send &p)
{
	std::uint64_t n = std::min<std::uint64_t>(theirs_.answer_prod - mine_.answer_cons,
						  p.length - p.moved);
	if (n) {
		places at;
		std::uint32_t count;
		if (!gather(p, at, local_write, &count)) {
			fail(status::local_protection);
			return false;
		}
		for_pieces({at.data(), count}, p.moved, n, [&](std::uint8_t *to, std::uint64_t n) {
			from_stream(in_->answer, mine_.answer_cons, to, n);
			mine_.answer_cons += n;
		});
		p.moved += static_cast<std::uint32_t>(n);
		dirty_ = true;
	}
	return p.moved == p.length;
}

/// The peer granted the oldest request, a read: copies from its memory, a piece at a time.
void queue_pair::pull_read()
{
	pending_send &p = send_at(send_cons_);
	if (p.r.op != operation::read || !port_->can_pull())
		return lie();
	places at;
	std::uint32_t count;
	if (!gather(p, at, local_write, &count))
		return fail(status::local_protection);
	cqe c = copy_once(in_->cqes[send_cons_ % ring_entries]);
	std::uint64_t n = std::min<std::uint64_t>(pull_bytes, p.length - p.moved);
	std::array<place, max_segments> to;
	std::size_t pieces = slice<place>({at.data(), count}, p.moved, n, to.data());
	wire_segment from{c.value + p.moved, n};
	int rc = n ? port_->pull({&from, 1}, {to.data(), pieces}) : 0;
	std::atomic_thread_fence(std::memory_order_seq_cst);
	bool withdrawn = in_->word.load(std::memory_order_seq_cst) !=
			 static_cast<std::uint32_t>(link_word::open);
	if (rc || withdrawn)
		return fail(rc == -EFAULT ? status::remote_operation : status::retry_exceeded);
	p.moved += static_cast<std::uint32_t>(n);
	if (p.moved < p.length) {
		more_ = true;
		return;
	}
	mine_.read_ack++;
	counts_.pulled++;
	dirty_ = true;
}

void queue_pair::complete_send(pending_send &p, status result)
{
	p.result = result;
	send_cons_++;
	if (static_cast<std::int32_t>(send_prod_ - send_cons_) < 0)
		send_prod_ = send_cons_;
	if (result == status::success) {
		counts_.sent++;
		counts_.sent_bytes += p.length;
	}
	if (result != status::success || (p.r.flags & signalled))
		options_.send_queue->note(result != status::success);
}

} // namespace coop::ntrdma
