// SPDX-License-Identifier: MIT
// queue_pair.cpp - posting, reaping, the indices, and every way a link ends.
#include "userland/ntrdma/core/queue_pair.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

namespace coop::ntrdma
{

namespace
{

std::uint32_t ring_size(std::uint32_t depth)
{
	return std::bit_ceil(std::clamp(depth, 1u, max_depth));
}

} // namespace

queue_pair::queue_pair(region_table &regions, watcher &w, const pair_options &options) :
	regions_{regions},
	watcher_{w},
	options_{options},
	sends_(ring_size(options.send_depth)),
	inline_(sends_.size() * options.inline_bytes),
	send_mask_(sends_.size() - 1),
	recvs_(options.shared ? 1 : ring_size(options.recv_depth)),
	recv_mask_(recvs_.size() - 1),
	dones_(options.shared ? options.shared->depth() : recvs_.size())
{
	options_.send_queue->add(*this);
	options_.recv_queue->add(*this);
	if (options_.shared)
		options_.shared->pairs.push_back(this);
}

queue_pair::~queue_pair()
{
	set_state(pair_state::reset);
	options_.send_queue->remove(*this);
	options_.recv_queue->remove(*this);
	if (options_.shared)
		std::erase(options_.shared->pairs, this);
}

void queue_pair::set_state(pair_state s)
{
	if (s == pair_state::error) {
		// What the peer has stored by now came before this end. A device would have carried
		// it out by itself.
		take_all();
		if (state_ == pair_state::error)
			return;
		// By the application's own wish: the peer is not at fault, and is not told of any.
		hang_up(link_word::closed);
		state_ = pair_state::error;
		while (send_cons_ != send_post_)
			complete_send(send_at(send_cons_), status::flushed);
		flush_receives();
		return;
	}
	if (s == pair_state::reset) {
		hang_up(link_word::closed);
		send_post_ = send_prod_ = send_cons_ = send_cmpl_ = 0;
		recv_post_ = recv_take_ = done_put_ = done_got_ = receives_sent_ = 0;
		mine_ = theirs_ = told_ = {};
		current_ = {};
		peer_left_ = waiting_counted_ = more_ = dirty_ = refuses_ = refused_ = false;
	}
	state_ = s;
}

void queue_pair::attach(port &p)
{
	port_ = &p;
	in_ = &p.in();
	out_ = &p.out();
	closing_ = false;
	bell_ = bell_seen_ = ping_ = pong_ = 0;
	out_->streams.store(ways_.streams(), std::memory_order_relaxed);
	watcher_.happened(*this, event::established);
	progress(true);
}

void queue_pair::detach()
{
	port_ = nullptr;
	closing_ = false;
}

int queue_pair::post_send(const send_request &r, const std::uint8_t *inline_data)
{
	if (state_ != pair_state::sends && state_ != pair_state::error)
		return -EINVAL;
	if (r.segments > max_segments || static_cast<unsigned>(r.op) > 6)
		return -EINVAL;
	std::uint64_t length = 0;
	for (std::uint32_t i = 0; i < r.segments; i++)
		length += r.at[i].length;
	if (length > max_message || (is_atomic(r.op) && length != 8))
		return -EINVAL;
	bool inlines = r.flags & inlined;
	if (inlines && (length > options_.inline_bytes || r.op == operation::read ||
			is_atomic(r.op) || (length && !inline_data)))
		return -EINVAL;
	auto reclaimable = [&] {
		const pending_send &p = send_at(send_cmpl_);
		return p.result == status::success && !(p.r.flags & signalled);
	};
	while (send_post_ - send_cmpl_ == sends_.size() && send_cmpl_ != send_cons_ &&
	       reclaimable())
		send_cmpl_++;
	if (send_post_ - send_cmpl_ == sends_.size())
		return -ENOMEM;
	pending_send &p = send_at(send_post_);
	std::memcpy(&p.r, &r, offsetof(send_request, at) + r.segments * sizeof(segment));
	p.length = static_cast<std::uint32_t>(length);
	p.result = status::success;
	p.stored = false;
	if (options_.all_signalled)
		p.r.flags |= signalled;
	if (inlines && length)
		std::memcpy(&inline_[std::size_t{send_post_ & send_mask_} * options_.inline_bytes],
			    inline_data, length);
	send_post_++;
	if (state_ == pair_state::error)
		complete_send(p, status::flushed);
	else if (peer_left_)
		lose(status::retry_exceeded);
	return 0;
}

int queue_pair::post_recv(const recv_request &r)
{
	if (state_ == pair_state::reset || options_.shared || r.segments > max_segments)
		return -EINVAL;
	if (recv_post_ - recv_take_ + current_.has_receive + done_put_ - done_got_ >= recvs_.size())
		return -ENOMEM;
	if (state_ == pair_state::error) {
		put_done({r.id, status::flushed, operation::send, 0, 0, true});
		return 0;
	}
	copy_request(recvs_[recv_post_++ & recv_mask_], r);
	return 0;
}

std::size_t queue_pair::take_completions(completion_queue &queue, std::span<completion> out,
					 bool successes)
{
	std::size_t n = 0;
	if (&queue == options_.send_queue)
		for (; send_cmpl_ != send_cons_ && n < out.size(); send_cmpl_++) {
			const pending_send &p = send_at(send_cmpl_);
			if (p.result == status::success && !(p.r.flags & signalled))
				continue;
			if (successes && p.result != status::success)
				break;
			out[n++] = {p.r.id,   p.result, p.r.op,          false,
				    p.length, 0,        options_.number, peer};
		}
	if (&queue == options_.recv_queue)
		for (; done_got_ != done_put_ && n < out.size(); done_got_++) {
			const done_receive &d = done_at(done_got_);
			if (successes && d.result != status::success)
				break;
			out[n++] = {d.id,  d.result,        d.op, true, d.bytes,
				    d.imm, options_.number, peer};
		}
	return n;
}

bool queue_pair::has_noticeable(const completion_queue &queue, bool solicited_only) const
{
	if (&queue == options_.send_queue)
		for (std::uint32_t i = send_cmpl_; i != send_cons_; i++) {
			const pending_send &p = sends_[i & send_mask_];
			bool failed = p.result != status::success;
			if (failed || (!solicited_only && (p.r.flags & signalled)))
				return true;
		}
	if (&queue == options_.recv_queue)
		for (std::uint32_t i = done_got_; i != done_put_; i++)
			if (!solicited_only || dones_[i & (dones_.size() - 1)].solicited)
				return true;
	return false;
}

std::size_t queue_pair::waiting(const completion_queue &queue) const
{
	std::size_t n = 0;
	if (&queue == options_.send_queue)
		for (std::uint32_t i = send_cmpl_; i != send_cons_; i++) {
			const pending_send &p = sends_[i & send_mask_];
			n += p.result != status::success || (p.r.flags & signalled);
		}
	if (&queue == options_.recv_queue)
		n += done_put_ - done_got_;
	return n;
}

bool queue_pair::progress(bool posted)
{
	bool found = work(posted);
	if (!linked() || in_->word.load(std::memory_order_acquire) ==
				 static_cast<std::uint32_t>(link_word::open))
		return found;
	// The word may be newer than the indices: what the peer carried out before it counts.
	if (look()) {
		collect();
		if (linked())
			peer_closed();
	} else {
		lie();
	}
	return true;
}

bool queue_pair::work(bool posted)
{
	if (!linked())
		return false;
	const half &in = *in_;
	bool entry = is_there(in.wqes[theirs_.wqe_prod % ring_entries], theirs_.wqe_prod);
	bool news = entry || in.bell.load(std::memory_order_acquire) != bell_seen_;
	if (!news && !more_ && !posted) {
		publish();
		return false;
	}
	bool late = dirty_ || owes_answers();
	more_ = false;
	if (posted) {
		produce();
		publish();
	}
	// The bell after the entries: one of them may acknowledge a read, whose bytes an earlier
	// bell has told of.
	bool possible = !entry || look_at_wqes();
	std::uint32_t bell = in.bell.load(std::memory_order_acquire);
	bool rung = bell != bell_seen_;
	bell_seen_ = bell;
	if (!possible || (rung && !look())) {
		lie();
		return true;
	}
	if (linked())
		collect();
	if (linked())
		produce();
	if (linked())
		serve();
	// An answer may go along with what the application posts next; not what the peer needs for
	// the rest of a request. A peer that sees the link end looks at the indices.
	if (!answers_wait || late || posted || (dirty_ && current_.active))
		publish();
	else if (linked() && (dirty_ || owes_answers()))
		store_indices();
	return news || more_;
}

void queue_pair::take_all()
{
	if (!linked())
		return;
	catches_up_ = true;
	work();
	catches_up_ = false;
	if (linked() && !look())
		lie();
	if (linked())
		collect();
}

bool queue_pair::look()
{
	const half &in = *in_;
	constexpr auto acquire = std::memory_order_acquire;
	indices t;
	// In the opposite order of store_indices(): a grant before the index of the read that it is
	// for, and counters before the streams they speak of.
	t.read_grant = in.read_grant.load(acquire);
	t.wqe_cons = in.wqe_cons.load(acquire);
	bool refused = in.refused.load(acquire) != 0;
	t.wqe_prod = theirs_.wqe_prod;
	t.read_ack = in.read_ack.load(acquire);
	t.answer_cons = in.answer_cons.load(acquire);
	t.answer_prod = in.answer_prod.load(acquire);
	t.stream_cons = in.stream_cons.load(acquire);
	t.stream_prod = in.stream_prod.load(acquire);
	// A store would take the line from the peer, who reads `waiting` there.
	if (std::uint32_t ping = in.ping.load(acquire); ping != pong_)
		out_->pong.store(pong_ = ping, std::memory_order_release);
	bool possible = mine_.wqe_prod - t.wqe_cons <= mine_.wqe_prod - theirs_.wqe_cons &&
			t.read_grant - mine_.read_ack <= 1 && mine_.read_grant - t.read_ack <= 1 &&
			t.stream_prod - mine_.stream_cons <= stream_bytes &&
			t.answer_prod - mine_.answer_cons <= stream_bytes &&
			mine_.stream_prod - t.stream_cons <= stream_bytes &&
			mine_.answer_prod - t.answer_cons <= stream_bytes;
	refused_ = refused;
	if (possible)
		theirs_ = t;
	return possible;
}

/// Also of those that wait behind the current one: what they acknowledge may be all that the
/// application waits for.
bool queue_pair::look_at_wqes()
{
	const half &in = *in_;
	for (std::uint32_t n = theirs_.wqe_prod - mine_.wqe_cons; n < ring_entries; n++) {
		const wqe &w = in.wqes[theirs_.wqe_prod % ring_entries];
		if (!is_there(w, theirs_.wqe_prod))
			break;
		theirs_.wqe_prod++;
		std::uint32_t cons = __atomic_load_n(&w.cons, __ATOMIC_RELAXED);
		if (static_cast<std::int32_t>(cons - theirs_.wqe_cons) <= 0)
			continue; // the indices told of more already
		if (cons - theirs_.wqe_cons > mine_.wqe_prod - theirs_.wqe_cons)
			return false;
		theirs_.wqe_cons = cons;
	}
	return true;
}

void queue_pair::tell_receives()
{
	// Nothing of the peer's waits for this index, so it does not ring.
	mine_.recv_post = options_.shared ? options_.shared->posted() : recv_post_;
	if (mine_.recv_post == told_.recv_post)
		return;
	told_.recv_post = mine_.recv_post;
	out_->recv_post.store(told_.recv_post, std::memory_order_release);
}

void queue_pair::flush_receive_posts()
{
	if (linked() && !starved())
		tell_receives();
	else
		flush_posts();
}

std::uint32_t queue_pair::credits() const
{
	return linked() ? in_->recv_post.load(std::memory_order_relaxed) - receives_sent_ : 0;
}

/// Each before those that mean something only with it; look() loads them in the opposite order.
void queue_pair::store_indices()
{
	half &out = *out_;
	constexpr auto release = std::memory_order_release;
	out.stream_prod.store(mine_.stream_prod, release);
	out.stream_cons.store(mine_.stream_cons, release);
	out.answer_prod.store(mine_.answer_prod, release);
	out.answer_cons.store(mine_.answer_cons, release);
	out.read_ack.store(mine_.read_ack, release);
	out.wqe_prod.store(mine_.wqe_prod, release);
	if (refuses_)
		out.refused.store(1, release);
	out.wqe_cons.store(mine_.wqe_cons, release);
	// A grant is for the read at wqe_cons.
	out.read_grant.store(mine_.read_grant, release);
}

/// Tells of a piece of a large message, for a peer that copies at the same time. It does not ring:
/// publish() does, at the end.
void queue_pair::tell_of_piece()
{
	store_indices();
	out_->bell.store(++bell_, std::memory_order_release);
}

void queue_pair::publish()
{
	if (!linked())
		return;
	tell_receives();
	if (dirty_ || owes_answers()) {
		store_indices();
		out_->bell.store(++bell_, std::memory_order_release);
	} else if (mine_.wqe_prod != told_.wqe_prod) {
		out_->wqe_prod.store(mine_.wqe_prod, std::memory_order_release);
	} else {
		return;
	}
	dirty_ = false;
	told_ = mine_;
	port_->ring();
}

/// Tells the peer that this side is done. From here on it ignores what it pulls, so requests'
/// memory may be used again, and this side no longer looks at the port.
void queue_pair::hang_up(link_word word)
{
	release_grant();
	if (!linked())
		return;
	half &out = *out_;
	out.word.store(static_cast<std::uint32_t>(word), std::memory_order_seq_cst);
	out.bell.store(++bell_, std::memory_order_seq_cst);
	std::atomic_thread_fence(std::memory_order_seq_cst);
	port_->ring();
	closing_ = true;
	port_->ended();
}

void queue_pair::fail(status first)
{
	if (state_ == pair_state::error || state_ == pair_state::reset)
		return;
	publish();
	hang_up(link_word::failed);
	state_ = pair_state::error;
	counts_.errors++;
	for (; send_cons_ != send_post_; first = status::flushed)
		complete_send(send_at(send_cons_), first);
	flush_receives();
}

void queue_pair::flush_receives()
{
	if (current_.has_receive)
		finish_receive(status::flushed, 0);
	current_ = {};
	while (recv_take_ != recv_post_)
		put_done({recvs_[recv_take_++ & recv_mask_].id, status::flushed, operation::send, 0,
			  0, true});
	if (options_.shared)
		watcher_.happened(*this, event::last_receive);
}

void queue_pair::lie()
{
	fail(status::bad_response);
	watcher_.happened(*this, event::lost);
}

void queue_pair::peer_closed()
{
	auto word = static_cast<link_word>(in_->word.load(std::memory_order_acquire));
	if (word != link_word::closed) {
		peer_lost();
	} else if (sends_outstanding()) {
		lose(status::retry_exceeded);
	} else {
		// As on a fabric: posted receives stay until the application takes them back,
		// and the next send finds nobody.
		hang_up(link_word::closed);
		if (current_.has_receive)
			finish_receive(status::flushed, 0);
		current_ = {};
		peer_left_ = true;
	}
}

void queue_pair::lose(status first)
{
	// A peer that ends in good order may leave several links at once. What it did on the others
	// before it left this one came first, and a fabric takes far longer to notice a loss.
	options_.send_queue->catch_up(*this);
	if (options_.recv_queue != options_.send_queue)
		options_.recv_queue->catch_up(*this);
	fail(first);
}

void queue_pair::peer_lost()
{
	lose(status::retry_exceeded);
	watcher_.happened(*this, event::lost);
}

void queue_pair::peer_gone()
{
	if (!linked()) {
		if (state_ == pair_state::sends && sends_outstanding())
			lose(status::retry_exceeded);
		return;
	}
	// What it had stored, it had sent.
	progress(true);
	if (linked() && !look())
		lie();
	if (linked())
		collect();
	if (linked())
		peer_lost();
}

void queue_pair::ask()
{
	half &out = *out_;
	out.ping.store(++ping_, std::memory_order_release);
	out.bell.store(++bell_, std::memory_order_release);
	port_->ring();
}

bool queue_pair::answered() const
{
	return in_->pong.load(std::memory_order_acquire) == ping_;
}

bool queue_pair::takes(std::uint32_t bytes) const
{
	return linked() && state_ == pair_state::sends && send_prod_ == send_post_ &&
	       send_post_ - send_cmpl_ < sends_.size() &&
	       mine_.wqe_prod - theirs_.wqe_cons < ring_entries &&
	       (bytes <= body_bytes ||
		bytes <= stream_bytes - (mine_.stream_prod - theirs_.stream_cons));
}

bool queue_pair::outstanding() const
{
	return send_cons_ != send_post_ || current_.active || recv_take_ != recv_post_ ||
	       (options_.shared && !options_.shared->empty());
}

queue_pair::levels queue_pair::rings() const
{
	return {send_post_, send_prod_, send_cons_, send_cmpl_, recv_post_, recv_take_};
}

} // namespace coop::ntrdma
