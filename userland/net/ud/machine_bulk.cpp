// SPDX-License-Identifier: MIT
// machine_bulk.cpp - bulk operations: who may read what, and what the two sides tell each
// other about it (bulk_message.hpp). Who sent a message is told by its tag. An operation ends when
// no request reads its memory any more; its slot is free when the other side has been told as well.
#include <cerrno>

#include "machine.hpp"

namespace coop::net::ud
{

namespace
{

constexpr std::uint8_t most_attempts = 4; // sessions that may end under a bulk message

void put64(std::uint8_t *p, std::uint64_t v)
{
	for (unsigned i = 0; i < 8; i++)
		p[i] = static_cast<std::uint8_t>(v >> 8 * i);
}

std::uint64_t get64(const std::uint8_t *p)
{
	std::uint64_t v = 0;
	for (unsigned i = 0; i < 8; i++)
		v |= std::uint64_t(p[i]) << 8 * i;
	return v;
}

} // namespace

// Among the others of its peer, from where it is found when that is gone.
void machine::begin_bulk(std::uint32_t index)
{
	op &o = ops_[index];
	peer &p = peers_[o.peer];
	if (p.bulk == none) {
		p.bulk_since = now_us();
		p.probe_at = p.bulk_since + watch_every_us;
	} else {
		ops_[p.bulk].before = index;
	}
	o.before = none;
	o.after = p.bulk;
	o.under_way = true;
	p.bulk = index;
	count_active(o.peer, 1);
}

void machine::bulk_over(std::uint32_t index)
{
	op &o = ops_[index];
	if (!std::exchange(o.under_way, false))
		return; // the number is another's by now
	(o.before != none ? ops_[o.before].after : peers_[o.peer].bulk) = o.after;
	if (o.after != none)
		ops_[o.after].before = o.before;
	count_active(o.peer, -1);
}

// ---- the active side, and the passive one of a PUT ---------------------------------

// Its peer's address is known.
void machine::begin_reading(std::uint32_t index, std::uint64_t now)
{
	op &o = ops_[index];
	if (o.queue == queue_type::active_bulk_send) {
		bulk_message m{bulk_kind::put};
		m.token = o.remote;
		m.key = o.remote_key;
		m.sender = o.token;
		m.sender_key = o.key;
		m.length = o.length;
		begin_bulk(index);
		tell(index, op_state::offered, m, now);
		return;
	}
	o.state = op_state::reading;
	read(index, now);
}

void machine::read(std::uint32_t index, std::uint64_t now)
{
	op &o = ops_[index];
	o.who = peers_[o.peer].who;
	o.read = std::make_unique<reading>();
	reading &r = *o.read;
	r.memory = o.memory;
	r.length = o.length;
	r.from = o.remote;
	r.key = o.remote_key;
	r.peer = o.peer;
	r.op = index;
	r.engine_peer = engine_peer(o.peer, false, now);
	begin_bulk(index);
	if (o.queue == queue_type::active_bulk_recv)
		list_reading(index);
	reader_->begin(r, now);
}

// The peer at rpc/fetch. Those that nothing is under way with give up their places.
std::uint32_t machine::engine_peer(spi::peer_number n, bool anew, std::uint64_t now)
{
	const coop_addr &a = peers_[n].addr.command;
	if (anew) // what was found out about it is forgotten, unless a request is under way
		(void)coop_engine_peer_del(engine_, &a, COOP_PEER_BY_DAEMON);
	s64 id = coop_engine_peer_add(engine_, &a, COOP_PEER_BY_DAEMON, now);
	std::uint32_t cursor = 0;
	coop_peer_info info;
	while (id == -ENOSPC && coop_engine_peer_next(engine_, &cursor, &info)) {
		if (info.in_flight)
			continue;
		(void)coop_engine_peer_del(engine_, &info.addr, COOP_PEER_BY_DAEMON);
		id = coop_engine_peer_add(engine_, &a, COOP_PEER_BY_DAEMON, now);
	}
	return id > 0 ? static_cast<std::uint32_t>(id) : 0;
}

void machine::read_over(reading &r, std::uint64_t now)
{
	const std::uint32_t index = r.op;
	op &o = ops_[index];
	const int status = r.status;
	const spi::token t = o.token;
	const std::size_t length = status ? 0 : o.length;
	const bool active = o.queue == queue_type::active_bulk_recv;
	o.read.reset();
	bulk_over(index);
	by_token_.erase(t);
	const peer &p = peers_[o.peer];
	if (active && status)
		remember(o, outcome::failed); // told when it is asked for
	if ((active && status) || !p.used || !(p.who == o.who)) {
		release(index); // there is nothing to tell, or nobody
	} else {
		bulk_message m{bulk_kind::done};
		m.result = !status                ? outcome::good
			   : status == -ECANCELED ? outcome::gone
						  : outcome::failed;
		m.token = o.remote;
		m.key = o.remote_key;
		m.length = o.length;
		o.result = m.result;
		telling_++;
		tell(index, op_state::telling, m, now);
	}
	sink_.completed(t, status == -ENOENT && !active ? -ECONNRESET : status, length);
}

// ---- the ends of operations ----------------------------------------------------------

void machine::end_bulk(std::uint32_t index, int status, std::size_t length)
{
	op &o = ops_[index];
	if (o.state == op_state::offered) {
		o.state = op_state::passive; // counted once
		bulk_over(index);
	}
	if (o.serving) {
		if (!o.ending) {
			o.ending = true;
			o.status = status;
			o.length = length;
		}
		return;
	}
	const spi::token t = o.token;
	not_begun(index);
	by_token_.erase(t);
	if (o.sending) {
		o.state = op_state::telling; // of no interest, but its text is in use
		o.who = peers_[o.peer].who;
		telling_++;
	} else {
		release(index);
	}
	sink_.completed(t, status, length);
}

void machine::cancel_bulk(std::uint32_t index, int status, std::uint64_t now)
{
	op &o = ops_[index];
	if (o.read)
		reader_->cancel(*o.read, status, now);
	else
		end_bulk(index, status, 0);
}

int machine::bulk_to_self(std::uint32_t index)
{
	const op &o = ops_[index];
	const std::uint32_t other = by_token_.find(o.remote);
	const queue_type wanted = o.queue == queue_type::active_bulk_recv
					  ? queue_type::passive_bulk_send
					  : queue_type::passive_bulk_recv;
	if (other == none || !sink_.find(o.remote, o.remote_key))
		return -ENOENT;
	const op &p = ops_[other];
	if (p.queue != wanted || p.state != op_state::passive || p.ending || p.read ||
	    p.length < o.length || (p.peer != spi::no_peer && p.peer != o.peer))
		return -ENOENT;
	const bool in = o.queue == queue_type::active_bulk_recv;
	spi::cursor from(in ? p.memory : o.memory);
	const spi::memory &to = in ? o.memory : p.memory;
	std::size_t at = 0;
	for (auto piece = from.next(o.length); !piece.empty(); piece = from.next(o.length - at)) {
		spi::scatter(to, at, piece.data(), piece.size());
		at += piece.size();
	}
	end_bulk(other, 0, o.length);
	return 0;
}

// ---- source::owner: the memory of others' requests -------------------------------------

bool machine::open(spi::token t, std::uint64_t key, identity asker, const coop_addr &from,
		   source::offer &out)
{
	const std::uint32_t index = by_token_.find(t);
	if (index == none || !sink_.find(t, key))
		return false;
	op &o = ops_[index];
	const bool passive =
		o.state == op_state::passive && o.queue == queue_type::passive_bulk_send;
	if ((!passive && o.state != op_state::offered) || o.ending)
		return false;
	if (o.peer != spi::no_peer &&
	    (!(peers_[o.peer].who == asker) || !believable(o.peer, asker, from)))
		return false;
	o.serving++;
	if (passive)
		begun(index, asker);
	out = {o.memory, o.length, index};
	return true;
}

bool machine::holds(const source::offer &x)
{
	return !ops_[x.op].ending;
}

void machine::close(const source::offer &x)
{
	op &o = ops_[x.op];
	if (--o.serving)
		return;
	o.ask_at = now_us() + watch_every_us;
	if (o.ending)
		end_bulk(x.op, o.status, o.length);
}

// ---- what is told ------------------------------------------------------------------

void machine::tell(std::uint32_t index, op_state state, const bulk_message &m, std::uint64_t now)
{
	op &o = ops_[index];
	auto *p = reinterpret_cast<std::uint8_t *>(slab_->at(text_at_ + index * text_bytes));
	std::memset(p, 0, text_bytes);
	p[0] = static_cast<std::uint8_t>(m.kind);
	p[1] = static_cast<std::uint8_t>(m.result);
	put64(p + 8, m.token);
	put64(p + 16, m.key);
	put64(p + 24, m.sender);
	put64(p + 32, m.sender_key);
	put64(p + 40, m.length);
	o.state = state;
	o.sending = true;
	o.attempts = 0;
	o.who = peers_[o.peer].who;
	go(index, now);
}

// The bulk message of this operation has arrived, or cannot.
void machine::told(std::uint32_t index, int err, std::uint64_t now)
{
	op &o = ops_[index];
	const peer &p = peers_[o.peer];
	if ((err == -ECONNRESET || err == -ECANCELED) && ++o.attempts < most_attempts && p.used &&
	    p.who == o.who) {
		go(index, now);
		return;
	}
	o.sending = false;
	if (o.state == op_state::telling) {
		telling_--;
		if (o.question)
			question_over(o, err);
		else if (err && o.result)
			remember(o, *o.result);
		release(index);
	} else if (err) {
		end_bulk(index, err, 0);
	}
}

void machine::bulk_text(const std::uint8_t *p, spi::peer_number from, std::uint64_t now)
{
	bulk_message m{static_cast<bulk_kind>(p[0])};
	m.result = static_cast<outcome>(p[1]);
	m.token = get64(p + 8);
	m.key = get64(p + 16);
	m.sender = get64(p + 24);
	m.sender_key = get64(p + 32);
	m.length = get64(p + 40);
	if (m.kind == bulk_kind::put)
		asked_to_read(m, from, now);
	else if (m.kind == bulk_kind::done)
		other_is_done(m, from);
	else if (m.kind == bulk_kind::ask)
		asked_what_became(m, from, now);
}

void machine::asked_to_read(const bulk_message &m, spi::peer_number from, std::uint64_t now)
{
	std::uint32_t index = by_token_.find(m.token);
	bool good = index != none && sink_.find(m.token, m.key) && !stopping_;
	if (good) {
		op &o = ops_[index];
		if (o.read && o.remote == m.sender && o.peer == from)
			return; // asked again, over a new session
		good = o.queue == queue_type::passive_bulk_recv && o.state == op_state::passive &&
		       !o.read && !o.ending && m.length && m.length <= o.length && m.sender &&
		       m.sender_key && (o.peer == spi::no_peer || o.peer == from);
	}
	if (good) {
		op &o = ops_[index];
		o.peer = from;
		o.remote = m.sender;
		o.remote_key = m.sender_key;
		o.length = static_cast<std::size_t>(m.length);
		read(index, now);
		return;
	}
	bulk_message answer{bulk_kind::done, outcome::gone};
	answer.token = m.sender;
	answer.key = m.sender_key;
	if (const untold *u = recall(peers_[from].who, m.sender, m.sender_key))
		answer.result = u->result; // it was read, and its sender does not know
	reply(from, answer, now);
}

// A message that belongs to no operation here.
void machine::reply(spi::peer_number to, const bulk_message &m, std::uint64_t now)
{
	spi::transfer none_of_ours{};
	none_of_ours.queue = queue_type::passive_bulk_recv;
	none_of_ours.peer = to;
	const std::uint32_t index = allocate(0, none_of_ours);
	if (index == none)
		return; // place() sees to it that there is one
	telling_++;
	tell(index, op_state::telling, m, now);
}

void machine::other_is_done(const bulk_message &m, spi::peer_number from)
{
	const std::uint32_t index = by_token_.find(m.token);
	if (index == none || !sink_.find(m.token, m.key))
		return;
	op &o = ops_[index];
	if (o.ending || (o.peer != spi::no_peer && o.peer != from))
		return;
	if (o.state == op_state::offered) {
		const int status = m.result == outcome::good   ? 0
				   : m.result == outcome::gone ? -ENOENT
							       : -EIO;
		end_bulk(index, status, status ? 0 : o.length);
	} else if (o.state == op_state::passive && o.queue == queue_type::passive_bulk_send) {
		if (m.result == outcome::good)
			end_bulk(index, 0, std::min<std::size_t>(o.length, m.length));
		else
			reader_says(index, m.result, from);
	}
}

} // namespace coop::net::ud
