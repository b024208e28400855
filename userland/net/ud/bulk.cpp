// SPDX-License-Identifier: MIT
// bulk.cpp - see bulk.hpp.
#include "bulk.hpp"

#include <algorithm>
#include <cerrno>

namespace coop::net::ud
{

namespace
{

constexpr std::uint8_t most_attempts = 4;       // sessions that may end under a bulk message
constexpr std::uint64_t put_again_us = 5000000; // a PUT that is not being read is sent again

} // namespace

bulk::bulk(const options &o, operations &ops, peers &p, outbox &out, reader &r, message_engine &c,
	   offers *f, peer_rails *rails, spi::sink &sink) :
	options_(o),
	operations_(ops),
	peers_(p),
	outbox_(out),
	reader_(r),
	chan_(c),
	offers_(f),
	rails_(rails),
	sink_(sink),
	readers_(ops),
	log_(ops)
{
}

// ---- operations ------------------------------------------------------------------

void bulk::submit(std::uint32_t index, std::uint64_t now)
{
	op &o = operations_[index];
	const bool named = o.peer != spi::no_peer, self = named && peers_[o.peer].self;
	if (o.queue == queue_type::passive_bulk_recv || o.queue == queue_type::passive_bulk_send) {
		o.state = op_state::passive;
		// For one peer alone, whose address has to be known when it asks.
		if (options_.verbs && named && !self && !peers_[o.peer].resolved)
			peers_.ask(o.peer, now);
		if (named && !self)
			want_rails(index, now);
		offer(index);
	} else if (self) {
		const int status = copy(index);
		operations_.finish(index, status, status ? 0 : operations_[index].length);
	} else {
		outbox_.go(index, now);
	}
}

// To or from this machine itself.
int bulk::copy(std::uint32_t index)
{
	const op &o = operations_[index];
	const bool in = o.queue == queue_type::active_bulk_recv;
	const std::uint32_t other = operations_.find(o.remote, o.remote_key);
	if (other == none)
		return -ENOENT;
	const op &p = operations_[other];
	if (p.queue != (in ? queue_type::passive_bulk_send : queue_type::passive_bulk_recv) ||
	    p.state != op_state::passive || p.ending || p.read || p.reusable != o.reusable ||
	    p.length < o.length || o.remote_offset > p.length - o.length ||
	    (p.peer != spi::no_peer && p.peer != o.peer))
		return -ENOENT;
	if (in)
		spi::copy(o.memory, 0, p.memory, o.remote_offset, o.length);
	else
		spi::copy(p.memory, o.remote_offset, o.memory, 0, o.length);
	if (!p.reusable)
		end(other, 0, o.length);
	return 0;
}

void bulk::reported(const outbox::report &r, std::uint64_t now)
{
	const op &o = operations_[r.index];
	if (o.state == op_state::gone)
		release(r.index);
	else if (o.sending)
		told(r.index, r.status, now);
	else if (r.status)
		end(r.index, r.status, 0);
	else
		begin(r.index, now);
}

// The address of its peer is known.
void bulk::begin(std::uint32_t index, std::uint64_t now)
{
	op &o = operations_[index];
	if (o.queue == queue_type::active_bulk_recv) {
		o.state = op_state::reading;
		read(index, now);
		if (!operations_[index].reusable)
			log_.begin(index);
		return;
	}
	join_peer(index, now);
	offer(index);
	tell(index, op_state::offered,
	     {o.reusable ? bulk_kind::put_at : bulk_kind::put, outcome::good, o.remote,
	      o.remote_key, o.token, o.key, o.length, o.remote_offset},
	     now);
}

void bulk::read(std::uint32_t index, std::uint64_t now)
{
	op &o = operations_[index];
	o.who = peers_[o.peer].who;
	o.read = std::make_unique<reading>();
	reading &r = *o.read;
	r.memory = o.memory;
	r.start = o.offset;
	r.length = o.length;
	r.offset = o.remote_offset;
	r.size = o.reusable ? o.remote_size : o.length;
	r.from = o.remote;
	r.key = o.remote_key;
	r.peer = o.peer;
	r.op = index;
	join_peer(index, now);
	reader_.begin(r, now);
}

void bulk::read_over(reading &r, std::uint64_t now)
{
	const std::uint32_t index = r.op;
	op &o = operations_[index];
	const int status = r.status;
	const std::size_t length = status ? 0 : o.length;
	const bool active = o.queue == queue_type::active_bulk_recv;
	o.read.reset();
	leave_peer(index);
	if (active && o.reusable) { // its passive side does not ask, and is not told
		operations_.finish(index, status, length);
		return;
	}
	o.result = !status                           ? outcome::good
		   : status == -ECANCELED && !active ? outcome::gone
						     : outcome::failed;
	// A peer that was given up may have lost its number, and be there again.
	if (!active && !stopping_ && !peers_.is(o.peer, o.who))
		o.peer = peers_.number_of(o.who);
	if ((active && status) || !peers_.is(o.peer, o.who)) { // told when it asks
		log_.remember(o, *o.result);
		log_.leave(index);
		operations_.finish(index, status == -ENOENT && !active ? -ECONNRESET : status,
				   length);
		return;
	}
	telling_++;
	operations_.complete(index, status == -ENOENT && !active ? -ECONNRESET : status, length);
	tell(index, op_state::telling,
	     {bulk_kind::done, *o.result, o.remote, o.remote_key, 0, 0, o.length}, now);
}

void bulk::cancel(std::uint32_t index, int status, std::uint64_t now)
{
	op &o = operations_[index];
	switch (o.state) {
	case op_state::passive:
	case op_state::reading:
	case op_state::offered:
		if (o.read)
			reader_.cancel(*o.read, status, now);
		else
			end(index, status, 0);
		return;
	default:
		return;
	}
}

void bulk::end(std::uint32_t index, int status, std::size_t length)
{
	op &o = operations_[index];
	if (o.state == op_state::offered) {
		o.state = op_state::passive; // counted once
		leave_peer(index);
	}
	if (o.serving || o.lent) {
		if (!o.ending && o.lent)
			offers_->end(index);
		if (!o.ending) {
			o.ending = true;
			o.status = status;
			o.length = length;
		}
		return;
	}
	readers_.left(index);
	if (!o.sending) {
		log_.leave(index);
		operations_.finish(index, status, length);
		return;
	}
	o.state = op_state::telling; // its end is told by other means, but its text is in use
	o.who = peers_[o.peer].who;
	telling_++;
	operations_.complete(index, status, length);
}

void bulk::release(std::uint32_t index)
{
	log_.leave(index);
	operations_.release(index);
}

// ---- by peer ---------------------------------------------------------------------

void bulk::join_peer(std::uint32_t index, std::uint64_t now)
{
	op &o = operations_[index];
	if (o.peer >= by_peer_.size())
		by_peer_.resize(o.peer + 1);
	with_peer &p = by_peer_[o.peer];
	if (p.first == none) {
		p.since = now;
		p.probe_at = now + watch_every_us;
	} else {
		operations_[p.first].before = index;
	}
	o.before = none;
	o.after = p.first;
	o.under_way = true;
	p.first = index;
	peers_.began(o.peer, now);
	want_rails(index, now);
}

// To read over them, or to let the peer do it.
void bulk::want_rails(std::uint32_t index, std::uint64_t now)
{
	if (rails_)
		rails_->want(operations_[index].peer, now);
}

void bulk::leave_peer(std::uint32_t index)
{
	op &o = operations_[index];
	if (!std::exchange(o.under_way, false))
		return; // the number has been reused
	(o.before != none ? operations_[o.before].after : by_peer_[o.peer].first) = o.after;
	if (o.after != none)
		operations_[o.after].before = o.before;
	peers_.ended(o.peer);
}

// A copy: the end of one operation may end others.
std::vector<std::uint32_t> bulk::under_way_with(spi::peer_number n) const
{
	std::vector<std::uint32_t> all;
	if (n < by_peer_.size())
		for (std::uint32_t i = by_peer_[n].first; i != none; i = operations_[i].after)
			all.push_back(i);
	return all;
}

void bulk::lost(spi::peer_number n, int status, std::uint64_t now)
{
	for (const std::uint32_t i : under_way_with(n))
		if (operations_[i].under_way && operations_[i].peer == n)
			cancel(i, status, now);
}

void bulk::restarted(spi::peer_number n, std::uint64_t now)
{
	for (const std::uint32_t i : under_way_with(n)) {
		op &o = operations_[i];
		if (o.state == op_state::offered && !o.sending && !o.ending) {
			o.sending = true;
			outbox_.go(i, now);
		}
	}
}

void bulk::forget(spi::peer_number n)
{
	for (const std::uint32_t i : under_way_with(n))
		operations_[i].under_way = false; // it ends when the number may have been reused
	if (n < by_peer_.size())
		by_peer_[n] = {};
}

// A peer that lives may still not read: its DONE may be lost, as when it had given us up and then
// found us again. It ignores a PUT that it reads or whose end it is telling, and else tells the
// end.
void bulk::put_again(spi::peer_number n, std::uint64_t now)
{
	for (const std::uint32_t i : under_way_with(n)) {
		op &o = operations_[i];
		if (o.state != op_state::offered || o.sending || o.ending || o.serving ||
		    now - o.told_at < put_again_us)
			continue;
		o.sending = true;
		o.attempts = 0;
		outbox_.go(i, now);
	}
}

// Bulk moves without rpc/chan, so this asks rpc/chan to probe the peer.
void bulk::watch(std::uint64_t now)
{
	for (const spi::peer_number n : peers_.watched()) {
		if (rails_)
			rails_->want(n, now);
		coop_chan_peer_info info;
		if (n >= by_peer_.size() || by_peer_[n].first == none || now < by_peer_[n].probe_at)
			continue;
		put_again(n, now);
		if (!peers_[n].resolved || !chan_.info(peers_[n].chan, info))
			continue;
		by_peer_[n].probe_at = now + probe_every_us;
		if (!info.in_flight && !info.queued) {
			peers_.probe(n, false, now);
			// It answers, and nothing has come: does the path take datagrams as long as
			// those? rpc/fetch does not know, rpc/chan finds out.
			if (info.srtt_us && info.carried < chan_.unit() &&
			    reader_.came_at(n) < by_peer_[n].since)
				peers_.probe(n, true, now);
		}
		peers_.ask(n, now);
	}
}

// ---- the memory of others' requests ----------------------------------------------

std::uint32_t bulk::open(spi::token t, std::uint64_t key, const asker &by, const coop_addr &from,
			 unsigned rail, bool &later)
{
	later = false;
	const std::uint32_t index = operations_.find(t, key);
	if (index == none)
		return none;
	op &o = operations_[index];
	const bool passive =
		o.state == op_state::passive && o.queue == queue_type::passive_bulk_send;
	if ((!passive && o.state != op_state::offered) || o.ending)
		return none;
	if (o.peer != spi::no_peer) {
		const bool same = peers_[o.peer].who == by.who;
		if (!same || !(rail ? rails_->believable(o.peer, rail, from)
				    : peers_.believable(o.peer, from))) {
			// It may be there, and not be proven yet.
			want_rails(index, now_us(sink_));
			later = same && rail == 0 && !peers_.fixed_places();
			return none;
		}
	}
	if (by.shift && (!o.reusable || !passive || by.shift >= page_bytes || by.shift >= o.length))
		return none;
	o.serving++;
	if (passive && !o.reusable)
		readers_.began(index, by.who, now_us(sink_));
	return index;
}

void bulk::close(std::uint32_t index)
{
	op &o = operations_[index];
	if (--o.serving)
		return;
	readers_.paused(index, now_us(sink_));
	if (o.ending)
		end(index, o.status, o.length);
}

// Passive and put operations that `offers` shows to their readers.
void bulk::offer(std::uint32_t index)
{
	op &o = operations_[index];
	if (!offers_ || o.queue == queue_type::passive_bulk_recv)
		return;
	o.lent = true;
	offers_->begin(index);
}

void bulk::read_by(std::uint32_t index, identity asker, bool reading)
{
	op &o = operations_[index];
	o.serving = reading;
	if (o.state != op_state::passive || o.ending)
		return;
	readers_.began(index, asker, now_us(sink_));
	if (!reading)
		readers_.paused(index, now_us(sink_));
}

void bulk::over(std::uint32_t index, int status, std::uint64_t now)
{
	op &o = operations_[index];
	o.lent = false;
	o.serving = 0;
	if (o.ending)
		end(index, o.status, o.length);
	else if (status)
		cancel(index, status, now);
}

// ---- what is told ----------------------------------------------------------------

void bulk::tell(std::uint32_t index, op_state state, const bulk_message &m, std::uint64_t now)
{
	op &o = operations_[index];
	m.write(reinterpret_cast<std::uint8_t *>(chan_.text(index)));
	o.state = state;
	o.sending = true;
	o.attempts = 0;
	o.told_at = 0;
	o.who = peers_[o.peer].who;
	outbox_.go(index, now);
}

// The bulk message of this operation has arrived, or cannot.
void bulk::told(std::uint32_t index, int err, std::uint64_t now)
{
	op &o = operations_[index];
	if ((err == -ECONNRESET || err == -ECANCELED) && ++o.attempts < most_attempts &&
	    peers_.is(o.peer, o.who)) {
		outbox_.go(index, now);
		return;
	}
	o.sending = false;
	if (o.state == op_state::telling) {
		telling_--;
		if (o.question) {
			const std::uint32_t about = operations_.find(o.remote);
			if (about != none && operations_[about].key == o.remote_key)
				if (const int status = readers_.answered(about, err, now))
					end(about, status, 0);
		} else if (o.result && err) {
			log_.remember(o, *o.result);
		} else if (o.result && o.of_reusable) {
			log_.told(o, *o.result);
		}
		release(index);
	} else if (err && (err != -ENOBUFS || !o.told_at)) {
		end(index, err, 0);
	} else {
		o.told_at = now; // or told before, and the peer has no room to hear it again
	}
}

// Answers a question about a read, in a record of its own.
void bulk::reply(spi::peer_number to, const bulk_message &question, std::uint64_t now)
{
	bulk_message m{bulk_kind::done, outcome::gone, question.sender, question.sender_key};
	if (const auto *e = log_.recall(peers_[to].who, m.token, m.key)) {
		m.result = e->result; // it was read, and the other side does not know
		m.length = e->length;
	}
	spi::transfer none_of_ours{};
	none_of_ours.queue = queue_type::passive_bulk_recv;
	none_of_ours.peer = to;
	const std::uint32_t index = operations_.add(0, none_of_ours);
	if (index == none)
		return; // cannot be: inbox refuses bulk messages before
	operations_.reply(index, peers_[to].who);
	telling_++;
	tell(index, op_state::telling, m, now);
}

void bulk::ask_readers(std::uint64_t now)
{
	std::vector<std::uint32_t> due; // a copy: an answer may end others
	readers_.due(now, due);
	for (const std::uint32_t index : due)
		if (operations_[index].begun_at && !operations_[index].serving)
			ask_reader(index, now);
}

void bulk::ask_reader(std::uint32_t index, std::uint64_t now)
{
	if (stopping_ || peers_.crowded() || operations_.crowded())
		return;
	const spi::peer_number n = peers_.number_of(operations_[index].reader);
	if (n == spi::no_peer)
		return;
	spi::transfer question{};
	question.queue = queue_type::passive_bulk_send;
	question.peer = n;
	question.remote = operations_[index].token;
	question.remote_key = operations_[index].key;
	const std::uint32_t carrier = operations_.add(0, question);
	if (carrier == none)
		return;
	readers_.asked(index);
	operations_[carrier].question = true;
	telling_++;
	tell(carrier, op_state::telling,
	     {bulk_kind::ask, outcome::good, 0, 0, question.remote, question.remote_key, 0}, now);
}

// ---- what is heard ---------------------------------------------------------------

void bulk::heard(const bulk_message &m, spi::peer_number from, std::uint64_t now)
{
	if (m.kind == bulk_kind::put || m.kind == bulk_kind::put_at)
		heard_put(m, from, now);
	else if (m.kind == bulk_kind::done)
		heard_done(m, from);
	else if (m.kind == bulk_kind::ask)
		heard_ask(m, from, now);
}

void bulk::heard_put(const bulk_message &m, spi::peer_number from, std::uint64_t now)
{
	const bool at = m.kind == bulk_kind::put_at;
	if (log_.pending(peers_[from].who, m.sender, m.sender_key))
		return; // sent again
	const std::uint32_t index = stopping_ ? none : operations_.find(m.token, m.key);
	if (index != none) {
		const op &o = operations_[index];
		if (o.queue == queue_type::passive_bulk_recv && o.state == op_state::passive &&
		    !o.read && !o.ending && m.sender && m.sender_key && o.reusable == at &&
		    (o.peer == spi::no_peer || o.peer == from)) {
			if (at && put_range(index, m, from, now))
				return;
			if (!at && m.length && m.length <= o.length)
				return take(index, m, from, now);
		}
	}
	reply(from, m, now);
}

// Reads what a PUT offers into our operation.
void bulk::take(std::uint32_t index, const bulk_message &m, spi::peer_number from,
		std::uint64_t now)
{
	op &o = operations_[index];
	o.peer = from;
	o.remote = m.sender;
	o.remote_key = m.sender_key;
	o.length = static_cast<std::size_t>(m.length);
	read(index, now);
	log_.begin(index);
}

// A use of a reusable operation is an operation of its own. False: it is refused. A PUT that is
// sent again may arrive after the end of its use, whose end is remembered for that.
bool bulk::put_range(std::uint32_t index, const bulk_message &m, spi::peer_number from,
		     std::uint64_t now)
{
	const spi::transfer *x = sink_.find(operations_[index].token);
	if (log_.recall(peers_[from].who, m.sender, m.sender_key) ||
	    spi::check_range(*x, m.offset, m.length))
		return false;
	const spi::token t = sink_.use(operations_[index].token, m.offset, m.length, from);
	const std::uint32_t use = t ? operations_.add(t, *sink_.find(t)) : none;
	if (use == none) {
		sink_.given_up(t);
		return false;
	}
	operations_[use].state = op_state::passive;
	operations_[use].of_reusable = true;
	take(use, m, from, now);
	return true;
}

void bulk::heard_done(const bulk_message &m, spi::peer_number from)
{
	const std::uint32_t index = operations_.find(m.token, m.key);
	if (index == none)
		return;
	op &o = operations_[index];
	if (o.ending || (o.peer != spi::no_peer && o.peer != from))
		return;
	if (o.state == op_state::offered) {
		const int status = m.result == outcome::good   ? 0
				   : m.result == outcome::gone ? -ENOENT
							       : -EIO;
		end(index, status, status ? 0 : o.length);
	} else if (o.state == op_state::passive && o.queue == queue_type::passive_bulk_send &&
		   !o.reusable) {
		if (m.result == outcome::good)
			end(index, 0, std::min<std::size_t>(o.length, m.length));
		else if (const int status = readers_.gave_up(index, m.result, peers_[from].who))
			end(index, status, 0);
	}
}

void bulk::heard_ask(const bulk_message &m, spi::peer_number from, std::uint64_t now)
{
	// A read that is still listed tells its end by itself.
	if (!log_.pending(peers_[from].who, m.sender, m.sender_key))
		reply(from, m, now);
}

} // namespace coop::net::ud
